"""Planted bugs of client quotas, each with the check that must find it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.runtime.net.serving.throttle import Throttle
from moldau_jepsen.planted_bug import Patch, PlantedBug
from moldau_quorum.quotas import precedence
from moldau_quorum.quotas.client_quotas import ClientQuotas
from moldau_quorum.quotas.rate import Rate
from support.quotas.levels import check_every_subset_of_levels
from support.quotas.paused_server import check_pauses_end
from support.quotas.steady_rate import check_steady_rate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def quota_window_off_by_one() -> list[Patch]:
    """The rate is divided by one window more than was measured."""
    good = Rate.window_ms
    return [(Rate, "window_ms", lambda self, now_ms: good(self, now_ms) + self._windows.size_ms)]


def quota_levels_swapped() -> list[Patch]:
    """The default of client ids of a user is looked up after the user itself."""
    levels = list(precedence.LEVELS)
    levels[1], levels[2] = levels[2], levels[1]
    return [(precedence, "LEVELS", tuple(levels))]


def quota_of_each_connection() -> list[Patch]:
    """Every request finds a new sensor: connections of a group do not share their quota."""
    good = ClientQuotas.charge

    def charge(self: ClientQuotas, limit: precedence.Limit, amount: float, now_ms: float) -> int:
        return good(self, limit._replace(client_id=f"{limit.client_id}-{now_ms}"), amount, now_ms)

    return [(ClientQuotas, "charge", charge)]


def pause_never_ends() -> list[Patch]:
    """A paused connection waits for its peer, not for the end of the pause."""

    async def wait(self: Throttle, remaining_ms: float, work: Callable[[], Awaitable[object]]) -> None:
        await work()

    return [(Throttle, "wait", wait)]


def pause_not_obeyed() -> list[Patch]:
    """The answer names a pause, and the connection is read all the same."""
    return [(Throttle, "extend", lambda self, until_ms: None)]


CHECKS: dict[str, Callable[[], object]] = {
    "steady rate": lambda: check_steady_rate(3, 100),
    "eight levels": check_every_subset_of_levels,
    "end of a pause": check_pauses_end,
}
"""The checks by name."""


def _bug(patches: Callable[[], list[Patch]], judge: str) -> PlantedBug:
    text = (patches.__doc__ or "").strip().removesuffix(".")
    return PlantedBug(
        name=patches.__name__.replace("_", "-"),
        area="quotas",
        text=text[0].lower() + text[1:],
        patches=patches,
        judges=(judge,),
    )


BUGS = (
    _bug(quota_window_off_by_one, "steady rate"),
    _bug(quota_of_each_connection, "steady rate"),
    _bug(quota_levels_swapped, "eight levels"),
    _bug(pause_never_ends, "end of a pause"),
    _bug(pause_not_obeyed, "end of a pause"),
)
"""All planted bugs of quotas."""
