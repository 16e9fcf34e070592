"""Lets readers pause partitions for some polls, so that fetch sessions drop partitions and take them up again."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.consumer import Consumer

POLLS = (1, 8)
"""Fewest and most polls that a partition is paused for."""


class Pauser:
    """The pauses of one reader."""

    def __init__(self, process: int, share: float) -> None:
        """``share`` of the polls are followed by a pause of one partition, if none is paused."""
        self._share = share
        self._draw = random.Random(process)  # of its own: whether readers pause shifts no draw of their clients
        self._polls_left = 0
        self.count = 0

    def polled(self, consumer: Consumer) -> None:
        """Takes note of a poll, and pauses or resumes."""
        if not self._share:
            return
        if consumer.paused:
            self._polls_left -= 1
            if self._polls_left <= 0:
                consumer.resume(*consumer.paused)
        elif consumer.assignment and self._draw.random() < self._share:
            consumer.pause(self._draw.choice(consumer.assignment))
            self._polls_left = self._draw.randint(*POLLS)
            self.count += 1
