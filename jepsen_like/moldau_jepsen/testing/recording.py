"""Records all events of a simulated run as text, and finds the first event in which two runs differ.

The trace of a world is a hash and the last events. To say where two runs part, all events are needed, of which a test
may have a million; so their lines are compressed as the run goes on.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau_jepsen.world.trace import Trace

CHUNK_EVENTS: Final = 2_000
"""Number of events after which their lines are compressed; the trace keeps more than twice as many for it."""
FASTEST: Final = 1


class Recording:
    """The events of one run, a line each."""

    def __init__(self) -> None:
        """Makes an empty recording; ``begin`` names the trace that it takes its events from."""
        self.chunks: list[bytes] = []
        self.events = 0
        """Number of events recorded so far."""
        self._trace: Trace | None = None

    def begin(self, trace: Trace) -> None:
        """Takes its events from ``trace`` from now on."""
        self._trace = trace

    def turn_ended(self) -> None:
        """Takes over the events since the last call, once there are many; a watcher of the world's agenda."""
        if self._trace is not None and self._trace.count - self.events >= CHUNK_EVENTS:
            self.take()

    def take(self) -> None:
        """Takes over all events that the trace has by now."""
        if self._trace is None or not (new := self._trace.count - self.events):
            return
        self.events += new
        text = "\n".join(map(str, self._trace.tail(new)))
        self.chunks.append(zlib.compress(text.encode(errors="backslashreplace"), FASTEST))

    def lines(self, first_chunk: int) -> Iterator[str]:
        """Yields the lines from a chunk on."""
        for chunk in self.chunks[first_chunk:]:
            yield from zlib.decompress(chunk).decode().split("\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first event in which two runs differ."""

    before: str | None
    """The last event that both runs have; None if they differ from the beginning."""
    first: str | None
    """The event of the first run; None if that has ended."""
    second: str | None
    """The event of the second run; None if that has ended."""

    @property
    def seconds(self) -> float:
        """Returns the virtual time of the later one of both events: what makes the runs differ was called before."""
        return max(float(line.split(maxsplit=1)[0]) for line in (self.first, self.second) if line is not None)


def first_difference(first: Recording, second: Recording) -> Difference | None:
    """Returns where two runs part, None if all their events are the same."""
    if first.chunks == second.chunks:
        return None
    pairs = enumerate(zip_longest(first.chunks, second.chunks))
    differing = next(number for number, (one, other) in pairs if one != other)
    begin = max(0, differing - 1)  # a chunk before, for the last event that both have
    before: str | None = None
    for one, other in zip_longest(first.lines(begin), second.lines(begin)):
        if one != other:
            return Difference(before=before, first=one, second=other)
        before = one
    return None  # the same events, divided into other chunks
