"""Checks that a compacted topic holds what it must of each key, whatever was compacted, aborted, deleted or moved.

The model of a key is the committed write with the greatest offset that a client knew of when a read began: it was
acknowledged before, or returned by a read that had ended before. A read of a partition from its beginning, up to an
offset behind all of these, must return that write or a later one of the key. A key whose last write is a tombstone may
be absent, but no older value of it may be there: it would be back from the dead. A key is also absent if retention or
DeleteRecords has moved the log start offset beyond its last write. A write behind the end of the read, which began
before that, excuses everything: the cleaner may have dropped the values before it while the read went on.

Beside that, an offset always holds the same record, exactly as it was written; offsets rise; and no record of an
aborted transaction is returned.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from moldau_jepsen.checkers.log.reach import Reaches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NEVER = -1
"""The tick of an event that has not happened."""


class Fate(enum.Enum):
    """The outcome of a write, as far as its client knows."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True, kw_only=True)
class KeyWrite:
    """One write to a key; its number is its place in the list of writes."""

    partition: int
    key: str
    value: bytes | None
    """Unlike that of any other write; None for a tombstone."""
    fate: Fate = Fate.UNKNOWN
    offset: int = NEVER
    """Of an acknowledged record whose transaction is committed."""
    begun: int = NEVER
    """The tick at which its client began it."""
    known_at: int = NEVER
    """The tick at which its client learned of the commit."""


class KeyRecord(NamedTuple):
    """A record that a reader of committed data returned."""

    offset: int
    key: str
    number: int
    """The number of its write, from a header of the record."""
    value: bytes | None


class KeyRead(NamedTuple):
    """A read of a partition from its beginning to its end."""

    partition: int
    begun: int
    """A tick."""
    ended: int
    """A tick."""
    log_start: int
    """The largest log start offset that was reported at the begin and at the end of the read."""
    records: tuple[KeyRecord, ...]
    end: int = NEVER
    """The offset at which it ended (exclusive), if it is known."""
    judges_absence: bool = True
    """False if the log start offset may have moved and come back meanwhile."""


def check_compacted(writes: Sequence[KeyWrite], reads: Iterable[KeyRead], *, tombstones_stay: bool) -> list[str]:
    """Returns the anomalies, one sentence each.

    ``tombstones_stay``: ``delete.retention.ms`` is longer than the run, so no tombstone may be missing.
    """
    writes, in_order, misplaced, found = _without_impossible(writes, sorted(reads, key=lambda read: read.ended))
    ended: list[KeyRead] = []
    for read in in_order:
        found += _check_records(writes, read)
        last = _last_known(writes, ended, read)
        for key in misplaced.get(read, ()):
            last.pop(key, None)  # The read returned a record of the key, with a wrong offset.
        found += _check_keys(writes, read, last, tombstones_stay=tombstones_stay)
        ended.append(read)
    return found + _check_offsets(writes, in_order)


def _without_impossible(
    writes: Sequence[KeyWrite], reads: Sequence[KeyRead]
) -> tuple[list[KeyWrite], list[KeyRead], dict[KeyRead, set[str]], list[str]]:
    """Returns writes and reads without offsets that no log has, the keys of the records there, and a finding for each.

    Such a write counts as one whose client did not learn the offset.
    """
    found: dict[str, None] = {}
    reaches: Reaches[int] = Reaches()

    def is_possible(partition: int, offset: int, text: str) -> bool:
        if why := reaches.refusal(partition, offset):
            found[f"partition {partition} {text} at offset {offset}, {why}"] = None
        return not why

    kept_writes = [
        write
        if write.offset == NEVER
        or is_possible(write.partition, write.offset, f"acknowledged write {number} of {write.key}")
        else replace(write, offset=NEVER)
        for number, write in enumerate(writes)
    ]
    kept_reads: list[KeyRead] = []
    keys: dict[KeyRead, set[str]] = {}
    for read in reads:
        kept, others = [], set()
        for record in read.records:
            if is_possible(read.partition, record.offset, f"returned write {record.number} of {record.key}"):
                kept.append(record)
            else:
                others.add(record.key)
        kept_reads.append(read._replace(records=tuple(kept)) if others else read)
        if others:
            keys[kept_reads[-1]] = others
    return kept_writes, kept_reads, keys, list(found)


def _check_records(writes: Sequence[KeyWrite], read: KeyRead) -> list[str]:
    """Judges each record of a read by its write."""
    found = []
    name = f"partition {read.partition}"
    offsets = [record.offset for record in read.records]
    if offsets != sorted(set(offsets)):
        found.append(f"{name} was read with offsets {offsets}, which do not rise")
    for record in read.records:
        write = writes[record.number] if 0 <= record.number < len(writes) else None
        if write is None or (write.partition, write.key, write.value) != (read.partition, record.key, record.value):
            found.append(f"{name} holds {record.value!r} of {record.key} at {record.offset}, which was not written")
        elif write.fate is Fate.ABORTED:
            found.append(f"{name} returned write {record.number} of {record.key} at {record.offset}, which was aborted")
    return found


def _last_known(writes: Sequence[KeyWrite], ended: Iterable[KeyRead], read: KeyRead) -> dict[str, tuple[int, int]]:
    """Returns offset and number of the last write of each key that was known to be committed when a read began."""
    last: dict[str, tuple[int, int]] = {}

    def know(key: str, offset: int, number: int) -> None:
        if offset > last.get(key, (NEVER, NEVER))[0]:
            last[key] = (offset, number)

    for number, write in enumerate(writes):
        if write.partition == read.partition and write.offset != NEVER and NEVER < write.known_at < read.begun:
            know(write.key, write.offset, number)
    for earlier in ended:
        if earlier.partition == read.partition and earlier.ended < read.begun:
            for record in earlier.records:
                know(record.key, record.offset, record.number)
    return last


def _check_keys(
    writes: Sequence[KeyWrite], read: KeyRead, last: dict[str, tuple[int, int]], *, tombstones_stay: bool
) -> list[str]:
    """Compares a read with the model of each key."""
    found = []
    newest = {record.key: record for record in read.records}  # offsets rise
    for key, (offset, number) in last.items():
        record = newest.get(key)
        if record is not None and (record.offset >= offset or offset < read.log_start):
            continue  # a record below the log start may have been deleted while the read went on
        if _may_be_superseded(writes, read, key):
            continue
        what = f"write {number} of {key}, known to be committed at {offset}"
        is_tombstone = 0 <= number < len(writes) and writes[number].value is None
        if record is not None:
            how = "came back from the dead" if is_tombstone else "is the newest"
            found.append(f"partition {read.partition} lost {what}: write {record.number} at {record.offset} {how}")
        elif read.judges_absence and offset >= read.log_start and (tombstones_stay or not is_tombstone):
            found.append(f"partition {read.partition} lost {what}: the key is absent")
    return found


def _may_be_superseded(writes: Sequence[KeyWrite], read: KeyRead, key: str) -> bool:
    """Returns whether the cleaner may have dropped what the read looked for, because of a write behind its end."""
    return read.end != NEVER and any(
        (write.partition, write.key) == (read.partition, key)
        and write.fate is not Fate.ABORTED
        and write.begun < read.ended
        and (write.offset == NEVER or write.offset >= read.end)
        for write in writes
    )


def _check_offsets(writes: Sequence[KeyWrite], reads: Iterable[KeyRead]) -> list[str]:
    """Checks that an offset holds one record, and a record has one offset."""
    found = []
    at: dict[tuple[int, int], int] = {}
    offset_of: dict[int, int] = {}
    places = [(write.partition, write.offset, number) for number, write in enumerate(writes) if write.offset != NEVER]
    places += [(read.partition, record.offset, record.number) for read in reads for record in read.records]
    for partition, offset, number in places:
        other = at.setdefault((partition, offset), number)
        if other != number:
            found.append(f"partition {partition} held write {other} and write {number} at offset {offset}")
        known = offset_of.setdefault(number, offset)
        if known != offset:
            found.append(f"write {number} of partition {partition} had the offsets {known} and {offset}")
    return found
