"""Rates between two looks at counters, and the pace of requests. Pure.

Times are milliseconds of one clock that never goes back.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

K = TypeVar("K", bound="Hashable")

KEPT_MS: Final = 60_000


class Meter(Generic[K]):
    """Turns counters that were read twice into rates.

    A counter that went back (a topic that was created again, a group that was reset) has no rate until the next look,
    and so has a counter that was not there before. A counter that a look leaves out is kept for ``KEPT_MS``.
    """

    def __init__(self) -> None:
        self._last: dict[K, tuple[float, float]] = {}

    def rates(
        self, counters: Mapping[K, float | None], now_ms: float, taken_ms: Mapping[K, float] | None = None
    ) -> dict[K, float | None]:
        """Returns the change per second of each counter since the last look; None where there is none.

        ``taken_ms`` has the times of counters that were not read at ``now_ms``.
        """
        found: dict[K, float | None] = {}
        times = taken_ms or {}
        seen = {key: last for key, last in self._last.items() if key not in counters and now_ms - last[0] < KEPT_MS}
        for key, value in counters.items():
            found[key] = None
            if value is None:
                continue
            at_ms = times.get(key, now_ms)
            seen[key] = (at_ms, value)
            before = self._last.get(key)
            if before is not None and value >= before[1] and at_ms > before[0]:
                found[key] = (value - before[1]) * 1000 / (at_ms - before[0])
        self._last = seen
        return found


class Pace:
    """Spaces requests so that no second holds more than the limit. Invariant: ``_sent`` has at most ``limit`` times."""

    def __init__(self, limit: int) -> None:
        """Takes the number of requests in any second, at least 1."""
        assert limit >= 1, "a pace lets requests through"
        self._limit = limit
        self._sent: deque[float] = deque(maxlen=limit)
        self.total = 0

    def next_ms(self, now_ms: float) -> float:
        """Returns when the next request may be sent, and counts it as sent then."""
        at = now_ms
        if len(self._sent) == self._limit:
            at = max(at, self._sent[0] + 1000)
        if self._sent:
            at = max(at, self._sent[-1])
        self._sent.append(at)
        self.total += 1
        return at


def seconds_left(lag: int | None, consumed: float | None, produced: float | None) -> float | None:
    """Returns after how many seconds a group has caught up at the present rates; None if it never does."""
    if lag is None or consumed is None or produced is None:
        return None
    if lag == 0:
        return 0.0
    return lag / (consumed - produced) if consumed > produced else None
