"""Measures how long elections of partition leaders take, from the decision until the change is committed."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from moldau.runtime.telemetry.metrics import Histogram

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Clock
    from moldau_quorum.metadata.image import MetadataImage


class ElectionTimes:
    """The elections of one active controller; those under way are at most as many as its commands in the log."""

    def __init__(self, clock: Clock) -> None:
        """Nothing is under way."""
        self.times = Histogram()
        """Milliseconds, one observation for each partition that got another leader."""
        self._clock = clock
        self._under_way: deque[tuple[int, float, int]] = deque()

    def proposed(self, offset: int, begun_ms: float, count: int) -> None:
        """Notes that the command at ``offset`` elects ``count`` leaders."""
        if count:
            self._under_way.append((offset, begun_ms, count))

    def committed(self, image: MetadataImage) -> None:
        """Counts the elections that the committed image contains."""
        while self._under_way and self._under_way[0][0] <= image.offset:
            _, begun_ms, count = self._under_way.popleft()
            took_ms = self._clock.monotonic_ms() - begun_ms
            for _ in range(count):
                self.times.observe(took_ms)

    def forget(self) -> None:
        """Drops what is under way: the controller epoch is over, and others may be committed in its place."""
        self._under_way.clear()
