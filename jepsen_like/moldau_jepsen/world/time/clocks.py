"""Provides the clocks of simulated nodes, which have their own rates and can be set.

A clock ticks in steps of 1/1024 ms. With unlimited resolution a task that sleeps until a deadline in milliseconds may
wake a rounding error before it and sleep again for a time too short to advance the virtual time. On a real machine that
costs a microsecond; here the task would loop for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau_jepsen.world.time.timeline import VirtualClock

EPOCH_MS = 1_750_000_000_000
"""Wall-clock time at which every simulated world begins (milliseconds since the Unix epoch)."""


TICKS_PER_MS = 1024.0


class NodeClock:
    """The clock of one node. Invariant: its monotonic time never goes back."""

    __slots__ = ("_base_ms", "_base_seconds", "_clock", "_known_ms", "_known_seconds", "_rate", "_wall_offset_ms")

    def __init__(self, clock: VirtualClock, start_ms: float = 0.0) -> None:
        """Runs at the rate of the world, whose time ``clock`` gives, from ``start_ms``."""
        self._clock = clock
        self._base_ms = start_ms
        self._base_seconds = clock.now
        self._rate = 1.0
        self._known_seconds = -1.0  # time and result of the last reading: many readings share an instant
        self._known_ms = 0.0
        self._wall_offset_ms = EPOCH_MS - start_ms + self._base_seconds * 1000

    def monotonic_ms(self) -> float:
        """See ``Clock.monotonic_ms``."""
        now = self._clock.now
        if now != self._known_seconds:
            exact = self._base_ms + (now - self._base_seconds) * 1000 * self._rate
            self._known_ms = round(exact * TICKS_PER_MS) / TICKS_PER_MS
            self._known_seconds = now
        return self._known_ms

    def wall_ms(self) -> int:
        """See ``Clock.wall_ms``."""
        return int(self.monotonic_ms() + self._wall_offset_ms)

    def wall_ns(self) -> int:
        """See ``Clock.wall_ns``."""
        return self.wall_ms() * 1_000_000

    def set_rate(self, rate: float) -> None:
        """Makes the clock run ``rate`` times as fast as the world (1.001 gains 86 s a day)."""
        assert rate > 0, "time does not stand still or go back"
        self._base_ms = self.monotonic_ms()
        self._base_seconds = self._clock.now
        self._rate = rate

    def jump_wall(self, milliseconds: float) -> None:
        """Sets the wall clock forward, or back if negative. The monotonic clock is unaffected."""
        self._wall_offset_ms += milliseconds
