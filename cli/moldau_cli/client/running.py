"""Runs the work of a command: under trio, with an admin client, and with errors as one line."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

import typer

from moldau.runtime.tasks.exceptions import leaves
from moldau_cli import output
from moldau_cli.client.address import DEFAULT_BOOTSTRAP, bootstrap_of
from moldau_cli.client.failures import explained, from_kafka, login_tried
from moldau_cli.client.reachable import check_reachable
from moldau_cli.client.settings import command_config
from moldau_cli.errors import CommandError, OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import trio

    from moldau import Admin
    from moldau.runtime.ports.environment import Environment

R = TypeVar("R")

API_TIMEOUT_MS = 60_000


def run(
    work: Callable[[], Awaitable[R]],
    bootstrap: str,
    *,
    probes: bool = True,
    node: str = "broker",
    settings: Mapping[str, str] | None = None,
) -> R:
    """Runs a coroutine function under trio, with ``probes`` after a check that a broker, or another ``node``, answers.

    ``settings`` are those of its client, if they differ from ``command_config``: a refused login names their user.

    Raises:
        CommandError: with one line; ``UsageError`` if the user asked for something invalid.
    """
    import trio

    from moldau.cluster.arguments import ArgumentError
    from moldau.protocol.errors import ErrorCode, KafkaError
    from moldau.runtime.config import ConfigError

    async def main() -> R:
        if probes:
            await check_reachable(bootstrap, node)
        return await work()

    # An interrupt that came while Python ran a callback of its own, as in an import, would be lost (F277).
    try:
        return trio.run(main, restrict_keyboard_interrupt_to_checkpoints=True, strict_exception_groups=True)
    except BaseException as error:
        causes = list(leaves(error))
        first = next((cause for cause in causes if not isinstance(cause, trio.Cancelled)), error)
        if isinstance(first, CommandError | KeyboardInterrupt | BrokenPipeError | OutputError | typer.Exit):
            raise first from error
        if isinstance(first, ConfigError):
            raise UsageError("; ".join(map(explained, first.problems))) from error
        if isinstance(first, ArgumentError):
            raise UsageError(first.reason) from error
        if isinstance(first, KafkaError):
            reported = from_kafka(first)
            if first.code is ErrorCode.SASL_AUTHENTICATION_FAILED:
                reported = type(reported)(f"{reported}; {login_tried(settings, bootstrap)}")
            raise reported from error
        if isinstance(first, OSError):
            place = "" if first.filename is None else f"{first.filename}: "
            raise CommandError(f"{place}{first.strerror or first}") from error
        if isinstance(first, trio.TooSlowError):
            raise CommandError(str(first) or "no answer in time") from error
        raise


def with_admin(
    bootstrap: str | None, work: Callable[[Admin], Awaitable[R]], *, looks: trio.CancelScope | None = None
) -> R:
    """Runs ``work`` with an open admin client; notes and ``looks`` as in ``explaining_waits``."""
    return run_admin({"bootstrap.servers": bootstrap_of(bootstrap)}, work, output.note, looks=looks)


def run_admin(
    place: Mapping[str, str],
    work: Callable[[Admin], Awaitable[R]],
    note: Callable[[str], None],
    *,
    node: str = "broker",
    looks: trio.CancelScope | None = None,
) -> R:
    """Runs ``work`` with an open admin client of ``place``: the one key that says where it starts, with its addresses.

    ``note`` and ``looks`` as in ``explaining_waits``, ``node`` as in ``run``.
    """

    async def main() -> R:
        from moldau import Admin
        from moldau_cli.quorum_watch import ANSWER_S, explaining_waits

        given = command_config("admin")
        limits = dict.fromkeys(("default.api.timeout.ms", "request.timeout.ms"), str(API_TIMEOUT_MS))
        settings = {**limits, **given, **place}
        async with Admin(settings) as admin:
            return await explaining_waits(
                lambda: work(admin),
                lambda: Admin(settings),
                note,
                answer_s=math.inf if "default.api.timeout.ms" in given else ANSWER_S,
                unanswered=f"no {node} of {address} answers within {ANSWER_S:g} s: it hangs or is down, or another "
                "program has its port",
                looks=looks,
            )

    (address,) = place.values()
    return run(main, address, node=node)


def command_environment() -> Environment:
    """Returns the environment for a command that connects to nodes without a client.

    Raises:
        ConfigError: the keys of ``--command-config`` are invalid.
    """
    from moldau.runtime.config import ADMIN_CONFIG
    from moldau.runtime.ports.real import real_environment
    from moldau.runtime.tls.outgoing import client_environment

    config = ADMIN_CONFIG.parse({"bootstrap.servers": DEFAULT_BOOTSTRAP, **command_config("admin")})
    return client_environment(real_environment(), config)
