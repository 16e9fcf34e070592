"""Holds the sensors of all groups of clients, bounded in number and in age.

A client chooses its client id. Where a default of client ids holds, each new one would add a sensor; so the sensor that
was unused longest leaves when there are too many.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

S = TypeVar("S")

SENSORS_MAX: Final = 10_000
"""Groups whose use is remembered. A sensor takes about one kilobyte."""
UNUSED_MS_MAX: Final = 3_600_000.0
"""A sensor that was not used for an hour is forgotten, as in Kafka."""


class Ledger(Generic[S]):
    """Sensors by group. Invariant: ``_sensors`` is in the order of last use, and ``_used_ms`` has the same keys."""

    __slots__ = ("_make", "_sensors", "_sensors_max", "_unused_ms_max", "_used_ms", "evicted")

    def __init__(
        self, make: Callable[[], S], *, sensors_max: int = SENSORS_MAX, unused_ms_max: float = UNUSED_MS_MAX
    ) -> None:
        """``make`` returns the sensor of a new group."""
        self._make = make
        self._sensors_max = sensors_max
        self._unused_ms_max = unused_ms_max
        self._sensors: OrderedDict[Hashable, S] = OrderedDict()
        self._used_ms: dict[Hashable, float] = {}
        self.evicted = 0
        """Sensors that left because there were too many."""

    def __len__(self) -> int:
        return len(self._sensors)

    def items(self) -> Iterator[tuple[Hashable, S]]:
        """Yields groups and sensors, the last used first."""
        return ((group, self._sensors[group]) for group in reversed(self._sensors))

    def sensor(self, group: Hashable, now_ms: float) -> S:
        """Returns the sensor of a group, and counts it as used."""
        found = self._sensors.get(group)
        if found is None:
            self._make_room(now_ms)
            found = self._sensors[group] = self._make()
        else:
            self._sensors.move_to_end(group)
        self._used_ms[group] = now_ms
        return found

    def _make_room(self, now_ms: float) -> None:
        while self._sensors:
            oldest = next(iter(self._sensors))
            is_used = now_ms - self._used_ms[oldest] < self._unused_ms_max
            if is_used and len(self._sensors) < self._sensors_max:
                return
            self.evicted += is_used
            del self._sensors[oldest], self._used_ms[oldest]
