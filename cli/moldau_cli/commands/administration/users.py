"""``moldau users``: SCRAM credentials of users."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.options import BootstrapServer
from moldau_cli.client.running import with_admin
from moldau_cli.client.settings import connection_config
from moldau_cli.commands.administration.typed import typed_line
from moldau_cli.errors import UsageError
from moldau_cli.words import refuse_principal

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
ToAdd = Annotated[
    Mechanism | None,
    typer.Option("--mechanism", help="Default: the one of this command's own login, or SCRAM-SHA-256 without one."),
]
Of = Annotated[
    Mechanism | None, typer.Option("--mechanism", help="Must be given if the user has credentials for several.")
]
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
    mechanism: ToAdd = None,
    iterations: Iterations = ITERATIONS_MIN,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Add a credential; its password is asked for, or read as one line from standard input."""
    refuse_principal("USER", user)
    _set_password(user, mechanism, iterations, bootstrap_server, exists=False)


@commands.command()
def alter(
    user: User,
    mechanism: Of = None,
    iterations: Iterations = ITERATIONS_MIN,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Change the password of a credential; it is asked for, or read as one line from standard input."""
    _set_password(user, mechanism, iterations, bootstrap_server, exists=True)


@commands.command()
def remove(user: User, mechanism: Of = None, bootstrap_server: BootstrapServer = None) -> None:
    """Remove a credential; connections that have authenticated with it stay."""

    async def work(admin: Admin) -> Mechanism:
        known = _mechanisms(user, await admin.describe_users())
        chosen = mechanism or _only_one(user, known, "remove")
        if known and chosen not in known:
            raise UsageError(_lacking(user, chosen, known, "remove"))
        await admin.remove_user_credential(user, mechanism=chosen.value)
        return chosen

    removed = with_admin(bootstrap_server, work)
    output.answer({"user": user, "mechanism": removed.value, "removed": True}, f"removed {removed.value} of {user}")


async def _described(admin: Admin) -> list[UserCredential]:
    return await admin.describe_users()


def _set_password(
    user: str, mechanism: Mechanism | None, iterations: int, bootstrap_server: str | None, *, exists: bool
) -> None:
    password = _read_password()

    async def work(admin: Admin) -> Mechanism:
        known = _mechanisms(user, await admin.describe_users())
        chosen = mechanism or (_only_one(user, known, "alter") if exists else _of_own_login())
        if exists and chosen not in known:
            raise UsageError(_lacking(user, chosen, known, "alter"))
        if not exists and chosen in known:
            use = f"moldau users alter {user} --mechanism {chosen.value}"
            raise UsageError(f"user {user} has a credential for {chosen.value}; use: {use}")
        await admin.set_user_password(user, password, mechanism=chosen.value, iterations=iterations)
        return chosen

    chosen = with_admin(bootstrap_server, work)
    done = "altered" if exists else "added"
    output.answer(
        {"user": user, "mechanism": chosen.value, "iterations": iterations, done: True},
        f"{done} {chosen.value} of {user}",
    )


def _mechanisms(user: str, credentials: list[UserCredential]) -> list[Mechanism]:
    """Returns those of a user that this version knows; a newer cluster may have others."""
    known = list(Mechanism)
    return sorted(Mechanism(each.mechanism) for each in credentials if each.user == user and each.mechanism in known)


def _of_own_login() -> Mechanism:
    """Returns the mechanism by which this command logs in: the cluster offers it for certain."""
    used = connection_config().get("sasl.mechanism")
    return Mechanism(used) if used in list(Mechanism) else Mechanism.SCRAM_SHA_256


def _only_one(user: str, known: list[Mechanism], command: str) -> Mechanism:
    """Returns the mechanism of the user's credential; that of this command's login for a user without one."""
    if len(known) > 1:
        ways = " or ".join(f"--mechanism {each.value}" for each in known)
        raise UsageError(
            f"user {user} has credentials for {' and '.join(known)}; use: moldau users {command} {user} {ways}"
        )
    return known[0] if known else _of_own_login()


def _lacking(user: str, mechanism: Mechanism, known: list[Mechanism], command: str) -> str:
    """Returns an error for a user without this credential that names the one which the user has.

    Otherwise the next attempt would add a second credential, and the former password would stay valid.
    """
    if not known:
        return f"user {user} has no credential; use: moldau users add {user} --mechanism {mechanism.value}"
    have = " and ".join(known)
    return (
        f"user {user} has no credential for {mechanism.value}, but for {have}; "
        f"use: moldau users {command} {user} --mechanism {known[0].value}"
    )


def _read_password() -> str:
    if sys.stdin.isatty():
        found: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        found = typed_line("the password")
    if not found:
        raise UsageError("the password is empty: give it as one line on standard input")
    return found
