"""Checks that each topic holds exactly the records that were written to it, even if its name is used repeatedly.

The topic id identifies a topic. Before the topic's deletion begins, a read from its beginning must return every
acknowledged record at its offset and every record of an earlier read at the same offset (a read record is committed,
even if its send was not acknowledged). It must not return a record of another topic of that name, a record that was
never written, or a record twice. An offset that no log has is a finding, and the record counts as read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moldau_jepsen.checkers.log.reach import Reach

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

UNKNOWN = -1
"""Offset of a record of unknown outcome: it may be in the log or not."""


class TopicWrite(NamedTuple):
    """One record, sent once."""

    topic_id: str
    partition: int
    value: str
    """Unlike that of any other record."""
    offset: int
    """Offset of the record if it was acknowledged, ``UNKNOWN`` otherwise."""


class TopicRead(NamedTuple):
    """All records of a partition, read after the writes that are judged by it were answered."""

    topic_id: str
    partition: int
    records: tuple[tuple[int, str], ...]
    """Offsets and values, in the order of delivery."""
    end: int
    """End offset of the read."""
    writes: int
    """Number of writes to all topics that had begun before the read."""


class TopicsMade(NamedTuple):
    """The observations of a client that deletes topics and creates them again."""

    writes: tuple[TopicWrite, ...] = ()
    reads: tuple[TopicRead, ...] = ()


def check_topics(writes: Sequence[TopicWrite], reads: Iterable[TopicRead]) -> list[str]:
    """Returns the anomalies, one sentence each.

    ``writes`` are in the order of their begins, ``reads`` in the order of their ends. A read of a partition reaches at
    least the ends of earlier reads; a read with fewer writes before it than an earlier one began before that one.
    """
    found: list[str] = []
    written: dict[tuple[str, int], list[tuple[int, TopicWrite]]] = {}
    returned: dict[tuple[str, int], dict[int, tuple[str, int]]] = {}  # by offset, with the writes of the first read
    reaches: dict[tuple[str, int], Reach] = {}
    for number, write in enumerate(writes):
        place = (write.topic_id, write.partition)
        reach = reaches.setdefault(place, Reach())
        if write.offset != UNKNOWN and not reach.admits(write.offset):
            wrong = f"acknowledged {write.value!r} at offset {write.offset}, {reach.refusal(write.offset)}"
            found.append(f"{_name(*place)} {wrong}")
            write = write._replace(offset=UNKNOWN)
        written.setdefault(place, []).append((number, write))
    for read in reads:
        name = _name(read.topic_id, read.partition)
        of_partition = written.get((read.topic_id, read.partition), [])
        sent = {write.value for _, write in of_partition}
        reach = reaches.setdefault((read.topic_id, read.partition), Reach())
        at = {offset: value for offset, value in read.records if reach.admits(offset)}
        misplaced = {value: offset for offset, value in read.records if offset not in reach}
        found += [f"{name} holds {v!r} at offset {offset}, {reach.refusal(offset)}" for v, offset in misplaced.items()]
        offsets = [offset for offset, _ in read.records if offset in reach]
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
        reported = {
            (offset, value): "read before" for offset, (value, writes_) in before.items() if writes_ <= read.writes
        }
        reported |= dict.fromkeys(acknowledged, "acknowledged")
        for (offset, value), how in reported.items():
            if at.get(offset) != value and value not in misplaced:
                there = f"{at[offset]!r} is there" if offset in at else f"{read.end} was reached without it"
                found.append(f"{name} lost {value!r}, {how} at offset {offset}: {there}")
        for offset, value in at.items():
            before.setdefault(offset, (value, read.writes))
    return list(dict.fromkeys(found))


def _name(topic_id: str, partition: int) -> str:
    return f"partition {partition} of topic {topic_id}"
