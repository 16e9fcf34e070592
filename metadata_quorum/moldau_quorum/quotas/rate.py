"""Measures a rate over windows, and how long a client that is above its quota must pause (Kafka's Rate).

A window begins with the first amount that is recorded after the end of the last window. The rate is the sum of all kept
windows divided by the time since the oldest began. That time counts as at least all windows but one: otherwise the
first request of a client would be divided by no time at all.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, NamedTuple

_LEAST_MS: Final = 1.0
"""A rate over no time is not defined."""
PAUSE_MS_MAX: Final = 2**31 - 1
"""The longest pause that an answer can name, about 25 days."""


class Windows(NamedTuple):
    """How a rate is measured: ``quota.window.num`` windows of ``quota.window.size.seconds``."""

    number: int = 11
    size_ms: float = 1_000.0

    @property
    def kept_ms(self) -> float:
        """How long a recorded amount counts."""
        return self.number * self.size_ms

    @property
    def burst_ms(self) -> float:
        """The time whose allowance a client that was idle may use at once."""
        return max(1, self.number - 1) * self.size_ms


class Rate:
    """Amounts of the last windows. Invariant: ``total`` is their sum, and windows are in the order of their begin."""

    __slots__ = ("_begins", "_sums", "_windows", "total")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._begins: deque[float] = deque()
        self._sums: deque[float] = deque()
        self.total = 0.0

    def record(self, amount: float, now_ms: float) -> None:
        """Adds an amount; a negative one takes back what was just recorded."""
        self._drop_old(now_ms)
        if not self._begins or now_ms - self._begins[-1] >= self._windows.size_ms:
            if len(self._begins) == self._windows.number:
                self._drop_oldest()
            self._begins.append(now_ms)
            self._sums.append(0.0)
        self._sums[-1] += amount
        self.total += amount

    def per_second(self, now_ms: float) -> float:
        """Returns the rate in units per second."""
        window_ms = self.window_ms(now_ms)
        return self.total / window_ms * 1_000.0

    def window_ms(self, now_ms: float) -> float:
        """Returns the time over which the rate is measured."""
        elapsed_ms = now_ms - self._begins[0] if self._drop_old(now_ms) else 0.0
        windows = self._windows
        missing = windows.number - 1 - elapsed_ms // windows.size_ms
        if missing > 0:
            return elapsed_ms + missing * windows.size_ms
        return max(_LEAST_MS, elapsed_ms)

    def throttle_ms(self, limit: float, now_ms: float) -> int:
        """Returns the pause after which the amounts recorded so far are within ``limit`` a second; 0 if they are."""
        window_ms = self.window_ms(now_ms)
        excess = self.total / window_ms * 1_000.0 - limit
        return math.ceil(min(excess / limit * window_ms, PAUSE_MS_MAX)) if excess > 0 else 0

    def _drop_old(self, now_ms: float) -> bool:
        """Drops windows that began too long ago; returns whether any remains."""
        begins = self._begins
        while begins and now_ms - begins[0] >= self._windows.kept_ms:
            self._drop_oldest()
        return bool(begins)

    def _drop_oldest(self) -> None:
        self._begins.popleft()
        self.total -= self._sums.popleft()
        if not self._begins:
            self.total = 0.0  # rounding errors do not add up
