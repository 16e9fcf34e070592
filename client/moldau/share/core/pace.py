"""How many records the application works on while their locks last. Pure.

A fetch that acquires more than that is of no use: the locks of the others expire in the buffer, and each time counts as
a delivery, until the group gives them up. The time of a record is that between two polls, by the records of the first
one. A slower record counts at once, faster ones by and by.
"""

from __future__ import annotations

from typing import Final

LOCK_PART: Final = 0.5
"""Part of a lock's time for which records are fetched: the rest is for records that take longer."""
_NEWS: Final = 0.25
"""Weight of a record that was faster than those before."""


class Pace:
    """The pace of one application; ``record_ms`` is 0 until it is known."""

    __slots__ = ("_given", "_since_ms", "record_ms")

    def __init__(self) -> None:
        self.record_ms = 0.0
        self._given = 0  # records of the last poll, and its end
        self._since_ms = 0.0

    def polled(self, records: int, now_ms: float) -> None:
        """Notes that a poll has returned records."""
        self._given, self._since_ms = records, now_ms

    def polls(self, now_ms: float) -> None:
        """Notes that the application polls, and so has worked on the records of the poll before."""
        if self._given:
            latest_ms = (now_ms - self._since_ms) / self._given
            self.record_ms = max(latest_ms, self.record_ms + _NEWS * (latest_ms - self.record_ms))
            self._given = 0

    def records_max(self, lock_timeout_ms: float | None, most: int) -> int:
        """Returns how many records to fetch, at least 1 and at most ``most``."""
        if not lock_timeout_ms or self.record_ms * most <= lock_timeout_ms * LOCK_PART:
            return most
        return max(1, int(lock_timeout_ms * LOCK_PART / self.record_ms))
