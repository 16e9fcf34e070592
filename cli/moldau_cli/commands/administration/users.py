"""``moldau users``: SCRAM credentials of users."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client import BootstrapServer, with_admin
from moldau_cli.commands.administration.typed import typed_line
from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from moldau import Admin
    from moldau.admin import UserCredential

commands = typer.Typer(help="List, add, alter and remove users (SCRAM credentials).", rich_markup_mode=None)
ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 16_384


class Mechanism(enum.StrEnum):
    """The SASL mechanisms whose credentials the cluster keeps."""

    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


User = Annotated[str, typer.Argument(metavar="USER")]
Of = Annotated[Mechanism, typer.Option("--mechanism")]
Iterations = Annotated[
    int, typer.Option("--iterations", min=ITERATIONS_MIN, max=ITERATIONS_MAX, help="Cost of guessing the password.")
]


@commands.command("list")
def list_users(bootstrap_server: BootstrapServer = None) -> None:
    """List users with their mechanisms and iteration counts."""
    output.answer_rows(
        "users",
        ["user", "mechanism", "iterations"],
        [
            {"user": each.user, "mechanism": each.mechanism, "iterations": each.iterations}
            for each in with_admin(bootstrap_server, _described)
        ],
    )


@commands.command()
def add(
    user: User,
    mechanism: Of = Mechanism.SCRAM_SHA_256,
    iterations: Iterations = ITERATIONS_MIN,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Add a credential; its password is asked for, or read as one line from standard input."""
    _set_password(user, mechanism, iterations, bootstrap_server, exists=False)


@commands.command()
def alter(
    user: User,
    mechanism: Of = Mechanism.SCRAM_SHA_256,
    iterations: Iterations = ITERATIONS_MIN,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Change the password of a credential; it is asked for, or read as one line from standard input."""
    _set_password(user, mechanism, iterations, bootstrap_server, exists=True)


@commands.command()
def remove(user: User, mechanism: Of = Mechanism.SCRAM_SHA_256, bootstrap_server: BootstrapServer = None) -> None:
    """Remove a credential; connections that have authenticated with it stay."""

    async def work(admin: Admin) -> None:
        known = _mechanisms(user, await admin.describe_users())
        if known and mechanism.value not in known:
            raise UsageError(_lacking(user, mechanism, known, "remove"))
        await admin.remove_user_credential(user, mechanism=mechanism.value)

    with_admin(bootstrap_server, work)
    output.answer({"user": user, "mechanism": mechanism.value, "removed": True}, f"removed {mechanism.value} of {user}")


async def _described(admin: Admin) -> list[UserCredential]:
    return await admin.describe_users()


def _set_password(
    user: str, mechanism: Mechanism, iterations: int, bootstrap_server: str | None, *, exists: bool
) -> None:
    password = _read_password()

    async def work(admin: Admin) -> None:
        known = _mechanisms(user, await admin.describe_users())
        if exists and mechanism.value not in known:
            raise UsageError(_lacking(user, mechanism, known, "alter"))
        if not exists and mechanism.value in known:
            use = f"moldau users alter {user} --mechanism {mechanism.value}"
            raise UsageError(f"user {user} has a credential for {mechanism.value}; use: {use}")
        await admin.set_user_password(user, password, mechanism=mechanism.value, iterations=iterations)

    with_admin(bootstrap_server, work)
    done = "altered" if exists else "added"
    output.answer(
        {"user": user, "mechanism": mechanism.value, "iterations": iterations, done: True},
        f"{done} {mechanism.value} of {user}",
    )


def _mechanisms(user: str, credentials: list[UserCredential]) -> list[str]:
    return sorted(each.mechanism for each in credentials if each.user == user)


def _lacking(user: str, mechanism: Mechanism, known: list[str], command: str) -> str:
    """Returns an error for a user without this credential that names the one which the user has.

    Otherwise the next attempt would add a second credential, and the former password would stay valid.
    """
    if not known:
        return f"user {user} has no credential; use: moldau users add {user} --mechanism {mechanism.value}"
    have = " and ".join(known)
    return (
        f"user {user} has no credential for {mechanism.value}, but for {have}; "
        f"use: moldau users {command} {user} --mechanism {known[0]}"
    )


def _read_password() -> str:
    if sys.stdin.isatty():
        found: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        found = typed_line("the password")
    if not found:
        raise UsageError("the password is empty: give it as one line on standard input")
    return found
