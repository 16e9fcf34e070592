"""Does each topic hold what was written to it, and nothing else, however often its name was deleted and made again?

A topic is its id. While nobody has begun to delete it, a read from its beginning holds every acknowledged record at the
offset that was told, every record that an earlier read has returned, at the same offset (it was committed, whatever its
sender was told), and no record that was written to another topic of the name, or never, or twice.
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
    """Returns what is wrong, a sentence each.

    ``writes`` are in the order in which they were begun, ``reads`` in that in which they ended. A read of a partition
    waits for what earlier ones have read; one that knew of fewer writes than one before it had begun sooner.
    """
    found: list[str] = []
    written: dict[tuple[str, int], list[tuple[int, TopicWrite]]] = {}
    returned: dict[tuple[str, int], dict[int, tuple[str, int]]] = {}  # by offset, with the writes of the first read
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
        before = returned.setdefault((read.topic_id, read.partition), {})
        acknowledged = [
            (write.offset, write.value)
            for number, write in of_partition
            if number < read.writes and write.offset != UNKNOWN
        ]
        told = {(offset, value): "read before" for offset, (value, writes_) in before.items() if writes_ <= read.writes}
        told |= dict.fromkeys(acknowledged, "acknowledged")
        for (offset, value), how in told.items():
            if at.get(offset) != value:
                there = f"{at[offset]!r} is there" if offset in at else f"{read.end} was reached without it"
                found.append(f"{name} lost {value!r}, {how} at offset {offset}: {there}")
        for offset, value in read.records:
            before.setdefault(offset, (value, read.writes))
    return found
