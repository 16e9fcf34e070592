"""The state of one key's sessions, as a pure core: events in, closed sessions out.

Events of a key belong to one session while no gap between neighbours is as long as ``gap_ms``. A session is closed once
the watermark has passed its last event by the gap, because no event in time can extend it any more. An event older than
the watermark is late, and left out, as Spark's own operators leave it out. So sessions do not depend on how Spark cuts
the log into micro-batches, unless events are late.

Invariant: sessions are disjoint, more than the gap apart, and sorted; the events of each are sorted by time, and events
of the same time by their place in the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Event = tuple[int, tuple[str, int, int], tuple[Any, ...]]
"""Event time in ms, the record's topic, partition and offset, and its values."""


class SessionTooLargeError(ValueError):
    """A key has more open events than its state may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The result of one step: the closed sessions, the open ones, and how many events were late."""

    closed: list[list[Event]]
    open: list[list[Event]]
    late: int


def advance(
    sessions: list[list[Event]], events: list[Event], *, watermark_ms: int, gap_ms: int, events_max: int
) -> Step:
    """Adds events to the open sessions, and closes those that the watermark has passed.

    Raises:
        SessionTooLargeError: More than ``events_max`` events stay open.
    """
    in_time = [event for event in events if event[0] >= watermark_ms]
    merged = sorted([*(event for session in sessions for event in session), *in_time], key=lambda event: event[:2])
    found: list[list[Event]] = []
    for event in merged:
        if found and event[0] - found[-1][-1][0] < gap_ms:
            found[-1].append(event)
        else:
            found.append([event])
    closed = [session for session in found if session[-1][0] + gap_ms <= watermark_ms]
    kept = found[len(closed) :]
    if (count := sum(map(len, kept))) > events_max:
        raise SessionTooLargeError(f"{count} events are open, and events_max is {events_max}")
    return Step(closed=closed, open=kept, late=len(events) - len(in_time))


def deadline_ms(sessions: list[list[Event]], gap_ms: int) -> int | None:
    """Returns the watermark that closes the first open session; None if there is none."""
    return sessions[0][-1][0] + gap_ms if sessions else None
