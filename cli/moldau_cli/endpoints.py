"""Admin clients of commands that controllers answer as well as brokers (KIP-919)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from moldau_cli import output
from moldau_cli.client import API_TIMEOUT_MS, command_config, run, use_controllers, with_admin
from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau import Admin

R = TypeVar("R")

BootstrapController = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-controller",
        metavar="HOST:PORT,...",
        help="Controllers to ask instead of brokers, also while no broker runs (KIP-919).",
    ),
]
_NO_LEADER: Final = (
    "no controller leads the quorum: start controllers until a majority runs that has its data; the command waits, and "
    "Ctrl-C ends it"
)
_SILENT: Final = "no controller answers: they hang, or no way leads to them; the command waits, and Ctrl-C ends it"


def with_admin_of(bootstrap: str | None, controllers: str | None, work: Callable[[Admin], Awaitable[R]]) -> R:
    """Runs ``work`` with an open admin client of the brokers, or of ``controllers`` if they are given.

    Raises:
        UsageError: both are given.
    """
    if controllers is None:
        return with_admin(bootstrap, work)
    if bootstrap is not None:
        raise UsageError("give --bootstrap-server or --bootstrap-controller, not both")
    use_controllers(controllers)

    async def main() -> R:
        from moldau import Admin
        from moldau_cli.quorum_watch import NO_LEADER, SILENT, explaining_waits

        reasons = {NO_LEADER: _NO_LEADER, SILENT: _SILENT}
        settings = {
            "default.api.timeout.ms": str(API_TIMEOUT_MS),
            "request.timeout.ms": str(API_TIMEOUT_MS),
            **command_config("admin"),
            "bootstrap.controllers": controllers,
        }
        async with Admin(settings) as admin:
            return await explaining_waits(
                lambda: work(admin), lambda: Admin(settings), lambda reason: output.note(reasons[reason])
            )

    return run(main, controllers, node="controller")
