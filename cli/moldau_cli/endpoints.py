"""Admin clients of commands that controllers answer as well as brokers (KIP-919)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from moldau_cli import output
from moldau_cli.client.address import CONTROLLERS_SOURCE, configured_controllers, use_controllers
from moldau_cli.client.running import run_admin, with_admin
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

    Without either option, ``bootstrap.controllers`` of ``--command-config`` is asked, if it is there.

    Raises:
        UsageError: both are given.
    """
    if bootstrap is not None and controllers is not None:
        raise UsageError("give --bootstrap-server or --bootstrap-controller, not both")
    if controllers is not None:
        use_controllers(controllers)
    elif bootstrap is None and (controllers := configured_controllers()) is not None:
        use_controllers(controllers, CONTROLLERS_SOURCE)
    else:
        return with_admin(bootstrap, work)

    def note(reason: str) -> None:
        from moldau_cli.quorum_watch import NO_LEADER, SILENT

        output.note({NO_LEADER: _NO_LEADER, SILENT: _SILENT}[reason])

    return run_admin({"bootstrap.controllers": controllers}, work, note, node="controller")
