"""Does each topic hold what was written to it, and nothing else, however often its name was deleted and made again?

A topic is its id. While nobody has begun to delete it, a read from its beginning holds every acknowledged record at the
offset that was told, and no record that was written to another topic of the name, or never, or twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

UNKNOWN = -1
"""Offset of a record whose outcome nobody knows: it may be in the log or not."""


class TopicWrite(NamedTuple):
    """One record, sent once."""

    topic_id: str
    partition: int
    value: str
    """Unlike that of any other record."""
    offset: int
    """Where it lies, if that was acknowledged; ``UNKNOWN`` otherwise."""


class TopicRead(NamedTuple):
    """All records of a partition, read after the writes that are judged by it were answered."""

    topic_id: str
    partition: int
    records: tuple[tuple[int, str], ...]
    """Offsets and values, in the order in which they came."""
    end: int
    """Offset that was reached."""
    writes: int
    """How many writes had been begun, of all topics, when the read began."""


class TopicsMade(NamedTuple):
    """All that a client saw which deletes topics and makes them again."""

    writes: tuple[TopicWrite, ...] = ()
    reads: tuple[TopicRead, ...] = ()


def check_topics(writes: Sequence[TopicWrite], reads: Iterable[TopicRead]) -> list[str]:
    """Returns what is wrong, a sentence each. ``writes`` are in the order in which they were begun."""
    found: list[str] = []
    written: dict[tuple[str, int], list[tuple[int, TopicWrite]]] = {}
    for number, write in enumerate(writes):
        written.setdefault((write.topic_id, write.partition), []).append((number, write))
    for read in reads:
        name = f"partition {read.partition} of topic {read.topic_id}"
        of_partition = written.get((read.topic_id, read.partition), [])
        sent = {write.value for _, write in of_partition}
        at = dict(read.records)
        offsets = [offset for offset, _ in read.records]
        if offsets != sorted(set(offsets)):
            found.append(f"{name} was read with offsets {offsets}, which do not rise")
        values = [value for _, value in read.records]
        found += [f"{name} holds {value!r} more than once" for value in sorted(set(values)) if values.count(value) > 1]
        found += [f"{name} holds {value!r}, which was not written to it" for value in values if value not in sent]
        for number, write in of_partition:
            if number < read.writes and write.offset != UNKNOWN and at.get(write.offset) != write.value:
                there = f"{at[write.offset]!r} is there" if write.offset in at else f"{read.end} was reached without it"
                found.append(f"{name} lost {write.value!r}, acknowledged at offset {write.offset}: {there}")
    return found
