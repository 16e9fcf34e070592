"""Clocks of simulated nodes: they run at their own rate and may be set."""

from __future__ import annotations

import trio

EPOCH_MS = 1_750_000_000_000
"""Wall-clock time at which every simulated world begins (milliseconds since the Unix epoch)."""


class NodeClock:
    """The clock of one node. Its monotonic time never goes back, whatever is done to it."""

    __slots__ = ("_base_ms", "_base_seconds", "_rate", "_wall_offset_ms")

    def __init__(self, start_ms: float = 0.0) -> None:
        """Runs at the rate of the world from ``start_ms``."""
        self._base_ms = start_ms
        self._base_seconds = trio.current_time()
        self._rate = 1.0
        self._wall_offset_ms = EPOCH_MS - start_ms + self._base_seconds * 1000

    def monotonic_ms(self) -> float:
        """See ``Clock.monotonic_ms``."""
        return self._base_ms + (trio.current_time() - self._base_seconds) * 1000 * self._rate

    def wall_ms(self) -> int:
        """See ``Clock.wall_ms``."""
        return int(self.monotonic_ms() + self._wall_offset_ms)

    def set_rate(self, rate: float) -> None:
        """Lets the clock run ``rate`` times as fast as the world (1.001 gains 86 s a day)."""
        assert rate > 0, "time does not stand still or go back"
        self._base_ms = self.monotonic_ms()
        self._base_seconds = trio.current_time()
        self._rate = rate

    def jump_wall(self, milliseconds: float) -> None:
        """Sets the wall clock forward, or back if negative. The monotonic clock does not notice."""
        self._wall_offset_ms += milliseconds
