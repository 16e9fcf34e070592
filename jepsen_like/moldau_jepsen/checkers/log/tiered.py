"""Checks reads of tiered partitions: each pass from a log's beginning has each record once, in order, unchanged.

A pass reads a partition from its log start offset, or from the offset that a search by time gave, up to an end behind
all that was known when it began. Known to be there is a write that was acknowledged, and committed if it belongs to a
transaction, and what passes returned that had ended before. A reader of committed data must return each of these from
its start on; one of uncommitted data must return acknowledged records of aborted transactions too. It does not matter
which of them were on a broker's disk, and which in the object store.

The log start offset is judged as well: a segment that is lost in the store would be passed over by a log that begins
behind it. It may move only where something deletes records: retention, or DeleteRecords up to the largest offset that
was asked for.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from moldau_jepsen.checkers.log.compacted import NEVER, Fate
from moldau_jepsen.checkers.log.reach import Reaches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Place = tuple[str, int]
"""Topic and partition."""
SHOWN_MAX = 5
"""Missing records that one finding names."""


@dataclass(slots=True, kw_only=True)
class TieredWrite:
    """One record that a producer sent; its number is its place in the list of writes."""

    place: Place
    producer: int
    """The life of a producer: it sends its records to a partition in the order of their numbers."""
    value: bytes
    """Unlike that of any other write."""
    timestamp_ms: int
    fate: Fate = Fate.UNKNOWN
    offset: int = NEVER
    """Of an acknowledged record, whatever became of its transaction."""
    acknowledged_at: int = NEVER
    """The tick at which its client learned the offset."""
    committed_at: int = NEVER
    """The tick at which its client learned that it is committed."""


class TieredRecord(NamedTuple):
    """A record that a reader returned."""

    offset: int
    value: bytes
    timestamp_ms: int


class TieredRead(NamedTuple):
    """A pass over a partition."""

    place: Place
    is_committed: bool
    """Whether it read committed data only."""
    begun: int
    """A tick."""
    ended: int
    """A tick."""
    start: int
    """The offset from which on it must have all records: it began there or below, or with a later log start offset."""
    log_start: int
    """The largest log start offset that was reported at its begin and at its end."""
    records: tuple[TieredRecord, ...]
    end: int
    """The offset at which it ended (exclusive)."""


class TieredSearch(NamedTuple):
    """The answer to a search for the first record at or after a time."""

    place: Place
    begun: int
    """A tick."""
    asked_ms: int
    offset: int
    """-1: there is none."""
    log_start: int
    """The largest log start offset that was reported at its begin and at its end."""
    end: int
    """The end offset that was reported to its reader before it. A transaction that is open hides all records from its
    first one on from a reader of committed data, committed ones as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredStory:
    """All that clients of tiered topics saw."""

    writes: Sequence[TieredWrite]
    reads: Sequence[TieredRead]
    searches: Sequence[TieredSearch] = ()
    trims: Mapping[Place, int | None]
    """By partition: the largest offset up to which DeleteRecords was asked to delete, 0 for none; None where retention
    deletes. Partitions that are left out keep everything."""


def check_tiered(story: TieredStory) -> list[str]:
    """Returns the anomalies, one sentence each."""
    numbers = {(write.place, write.value): number for number, write in enumerate(story.writes)}
    story, found = _without_impossible(story, numbers)
    known = _Known(story.writes, numbers)
    for read in sorted(story.reads, key=lambda read: read.ended):
        found += _check_records(story, read, numbers)
        found += _check_log_start(story, read.place, read.log_start)
        found += _check_complete(read, known)
        known.add(read)
    for search in story.searches:
        found += _check_log_start(story, search.place, search.log_start)
        found += _check_search(search, known)
    return [*found, *_check_places(story, numbers), *_check_order(story, numbers)]


def _without_impossible(
    story: TieredStory, numbers: Mapping[tuple[Place, bytes], int]
) -> tuple[TieredStory, list[str]]:
    """Returns the story without offsets that no log has, and a finding for each of them.

    Such a write counts as one whose client did not learn the offset; a pass that returned such a record proves nothing
    about others, for its reader was sent back.
    """
    found: dict[str, None] = {}
    reaches: Reaches[Place] = Reaches()

    def is_possible(place: Place, offset: int, text: str) -> bool:
        if why := reaches.refusal(place, offset):
            found[f"{_name(place)}: {text} at offset {offset}, {why}"] = None
        return not why

    writes = [
        write
        if write.offset == NEVER or is_possible(write.place, write.offset, f"write {number} was acknowledged")
        else replace(write, offset=NEVER)
        for number, write in enumerate(story.writes)
    ]
    reads = []
    for read in story.reads:
        kept = []
        for record in read.records:
            number = numbers.get((read.place, record.value))
            name = f"write {number}" if number is not None else repr(record.value)
            if is_possible(read.place, record.offset, f"a pass with {_level(read)} returned {name}"):
                kept.append(record)
        is_whole = len(kept) == len(read.records)
        reads.append(read if is_whole else read._replace(records=tuple(kept), end=read.start))
    searches = [
        search
        for search in story.searches
        if search.offset < 0 or is_possible(search.place, search.offset, f"a search for {search.asked_ms} ended")
    ]
    return replace(story, writes=writes, reads=reads, searches=searches), list(found)


class _Known:
    """Records that are known to be in a partition, with the ticks since when."""

    def __init__(self, writes: Sequence[TieredWrite], numbers: Mapping[tuple[Place, bytes], int]) -> None:
        self._writes = writes
        self._numbers = numbers
        self.committed: dict[Place, dict[int, tuple[int, int, str]]] = {}
        """By partition and offset: the tick since when it is known, its timestamp, and its description."""
        self.present: dict[Place, dict[int, tuple[int, int, str]]] = {}
        """The same of records that may be aborted."""
        for number, write in enumerate(writes):
            if write.offset == NEVER:
                continue
            name = f"write {number} at offset {write.offset}"
            if write.acknowledged_at != NEVER:
                self._note(self.present, write.place, write.offset, (write.acknowledged_at, write.timestamp_ms, name))
            if write.fate is Fate.COMMITTED and write.committed_at != NEVER:
                self._note(self.committed, write.place, write.offset, (write.committed_at, write.timestamp_ms, name))

    @staticmethod
    def _note(
        kept: dict[Place, dict[int, tuple[int, int, str]]], place: Place, offset: int, fact: tuple[int, int, str]
    ) -> None:
        at_place = kept.setdefault(place, {})
        at_place[offset] = min(at_place.get(offset, fact), fact)

    def add(self, read: TieredRead) -> None:
        """Takes in what a pass returned: it is known from its end on."""
        for record in read.records:
            fact = (read.ended, record.timestamp_ms, f"the record at offset {record.offset}, which was read before")
            self._note(self.present, read.place, record.offset, fact)
            if read.is_committed:
                self._note(self.committed, read.place, record.offset, fact)

    def of(self, read: TieredRead) -> Mapping[int, tuple[int, int, str]]:
        """Returns the records that a pass must return if they lie in its range."""
        return (self.committed if read.is_committed else self.present).get(read.place, {})


def _name(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def _level(read: TieredRead) -> str:
    return "read_committed" if read.is_committed else "read_uncommitted"


def _check_records(story: TieredStory, read: TieredRead, numbers: Mapping[tuple[Place, bytes], int]) -> Iterable[str]:
    """Judges each record of a pass by its write."""
    offsets = [record.offset for record in read.records]
    for before, after in itertools.pairwise(offsets):
        if after <= before:
            yield f"{_name(read.place)}: a pass with {_level(read)} returned offset {after} after {before}"
            break
    for record in read.records:
        number = numbers.get((read.place, record.value))
        if number is None:
            yield f"{_name(read.place)}: offset {record.offset} has {record.value!r}, which was not written there"
            continue
        write = story.writes[number]
        if write.timestamp_ms != record.timestamp_ms:
            yield (
                f"{_name(read.place)}: write {number} at offset {record.offset} has timestamp {record.timestamp_ms}, "
                f"it was written with {write.timestamp_ms}"
            )
        if read.is_committed and write.fate is Fate.ABORTED:
            yield f"{_name(read.place)}: write {number} at offset {record.offset} was read, and it was aborted"


def _check_log_start(story: TieredStory, place: Place, log_start: int) -> Iterable[str]:
    """Judges whether the log may begin where it was seen to begin."""
    allowed = story.trims.get(place, 0)
    if allowed is not None and log_start > allowed:
        yield f"{_name(place)}: the log begins at {log_start}, and nothing above {allowed} was to be deleted"


def _check_complete(read: TieredRead, known: _Known) -> Iterable[str]:
    """Judges that a pass has all that was known when it began."""
    first = max(read.start, read.log_start)
    seen = {record.offset for record in read.records}
    missing = [
        name
        for offset, (since, _, name) in sorted(known.of(read).items())
        if first <= offset < read.end and since < read.begun and offset not in seen
    ]
    if missing:
        shown = ", ".join(missing[:SHOWN_MAX]) + (f" and {len(missing) - SHOWN_MAX} more" * (len(missing) > SHOWN_MAX))
        yield (
            f"{_name(read.place)}: a pass with {_level(read)} from {first} to {read.end}, which returned "
            f"{len(read.records)} records, lacks {shown}"
        )


def _check_search(search: TieredSearch, known: _Known) -> Iterable[str]:
    """Judges a search by time."""
    for offset, (since, timestamp_ms, name) in sorted(known.committed.get(search.place, {}).items()):
        if offset == search.offset and timestamp_ms < search.asked_ms:
            yield (
                f"{_name(search.place)}: a search for {search.asked_ms} gave offset {offset}, {name} has timestamp "
                f"{timestamp_ms}"
            )
        is_before = search.offset < 0 or offset < search.offset
        is_visible = search.log_start <= offset < search.end and since < search.begun
        if is_before and is_visible and timestamp_ms >= search.asked_ms:
            yield (
                f"{_name(search.place)}: a search for {search.asked_ms} gave offset {search.offset}, {name} has "
                f"timestamp {timestamp_ms}"
            )
            return


def _check_places(story: TieredStory, numbers: Mapping[tuple[Place, bytes], int]) -> Iterable[str]:
    """Checks that an offset holds one record, and a record has one offset."""
    at: dict[tuple[Place, int], int] = {}
    offset_of: dict[int, int] = {}
    places = [(write.place, write.offset, number) for number, write in enumerate(story.writes) if write.offset != NEVER]
    places += [
        (read.place, record.offset, numbers[read.place, record.value])
        for read in story.reads
        for record in read.records
        if (read.place, record.value) in numbers
    ]
    for place, offset, number in places:
        other = at.setdefault((place, offset), number)
        if other != number:
            yield f"{_name(place)}: offset {offset} held write {other} and write {number}"
        former = offset_of.setdefault(number, offset)
        if former != offset:
            yield f"{_name(place)}: write {number} has the offsets {former} and {offset}"


def _check_order(story: TieredStory, numbers: Mapping[tuple[Place, bytes], int]) -> Iterable[str]:
    """Checks that the records of a producer lie in the order in which it sent them."""
    offset_of = {number: write.offset for number, write in enumerate(story.writes) if write.offset != NEVER}
    for read in story.reads:
        for record in read.records:
            number = numbers.get((read.place, record.value))
            if number is not None:
                offset_of.setdefault(number, record.offset)
    last: dict[tuple[Place, int], tuple[int, int]] = {}
    for number, offset in sorted(offset_of.items()):
        write = story.writes[number]
        before = last.get((write.place, write.producer))
        if before is not None and offset < before[1]:
            yield (
                f"{_name(write.place)}: producer {write.producer} sent write {before[0]} before write {number}, and "
                f"they have the offsets {before[1]} and {offset}"
            )
        last[write.place, write.producer] = (number, offset)
