"""Records a simulated run as a running hash over every event and a bounded readable tail.

Two runs are the same run if and only if their hashes are equal: the hash covers every message, disk write, sync and
fault with its virtual time. Faults and notes are kept in full, other events only among the last ``TAIL_EVENTS``.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TAIL_EVENTS = 5_000
BATCH_EVENTS = 1_000
NOTES_MAX = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """One event of a run."""

    seconds: float  # virtual time
    kind: str
    text: str

    def __str__(self) -> str:
        """Returns the event as one line of a timeline."""
        return f"{self.seconds:12.6f}  {self.kind:<12} {self.text}"


class Trace:
    """Collects the events of one run."""

    __slots__ = ("_batch", "_hash", "_hashed", "_kinds", "_notes", "_now", "_tail")

    def __init__(self, now: Callable[[], float]) -> None:
        """``now`` returns the virtual time in seconds."""
        self._now = now
        self._hash = hashlib.blake2b(digest_size=16)
        self._batch: list[tuple[float, str, tuple[object, ...]]] = []  # events that are not in the hash yet
        self._hashed = 0
        self._kinds: Counter[str] = Counter()
        self._tail: deque[tuple[float, str, tuple[object, ...]]] = deque(maxlen=TAIL_EVENTS)
        self._notes: deque[tuple[float, str, tuple[object, ...]]] = deque(maxlen=NOTES_MAX)

    def event(self, kind: str, *fields: object) -> None:
        """Adds an event; the ``repr`` of each field must be equal in all runs of a seed and must not change later."""
        event = (self._now(), kind, fields)
        self._tail.append(event)
        batch = self._batch
        batch.append(event)
        if len(batch) >= BATCH_EVENTS:
            self._hash_batch()

    def _hash_batch(self) -> None:
        # Hashes many events at once, because hashing each event alone would cost more than most events do.
        batch = self._batch
        if batch:
            self._hash.update(("\n".join(map(repr, batch)) + "\n").encode())
            self._kinds.update(map(itemgetter(1), batch))
            self._hashed += len(batch)
            batch.clear()

    def note(self, kind: str, *fields: object) -> None:
        """Adds an event that also appears in the readable timeline: a fault, an election, a violation."""
        self.event(kind, *fields)
        self._notes.append(self._tail[-1])

    @property
    def digest(self) -> str:
        """Returns the hash of all events so far, in hexadecimal."""
        self._hash_batch()
        return self._hash.hexdigest()

    @property
    def count(self) -> int:
        """Returns the number of events so far."""
        return self._hashed + len(self._batch)

    def notes(self) -> list[TraceEvent]:
        """Returns the timeline."""
        return [_readable(event) for event in self._notes]

    def tail(self, count: int = 200) -> list[TraceEvent]:
        """Returns the last events of all kinds."""
        return [_readable(event) for event in list(self._tail)[-count:]]


def _readable(event: tuple[float, str, tuple[object, ...]]) -> TraceEvent:
    return TraceEvent(seconds=event[0], kind=event[1], text=" ".join(map(str, event[2])))
