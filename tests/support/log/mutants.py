"""Planted bugs of one log: its model (``tests/moldau_broker/log/partition/test_log_model.py``) must find every one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xxhash import xxh3_128_digest

from moldau.records.pure import cleaning as pure_cleaning
from moldau_broker.log.cleaner import manager
from moldau_broker.log.cleaner.cleaned_transactions import AbortedTransaction, CleanedTransactions
from moldau_broker.log.cleaner.cleaner import CleaningPlan, plan_cleaning
from moldau_broker.log.cleaner.offset_map import OffsetMap, Selection
from moldau_broker.log.directories.directory import LogDirectory
from moldau_broker.log.files import segment
from moldau_broker.log.files.index import OffsetIndex, TimeIndex
from moldau_broker.log.files.segment import LogSegment
from moldau_broker.log.files.transaction_index import TransactionIndex
from moldau_broker.log.partition import loader, retention
from moldau_broker.log.partition.partition_log import PartitionLog
from moldau_broker.log.partition.segment_list import SegmentList
from moldau_broker.log.producers.producer_state import ProducerEntry
from moldau_jepsen.planted_bug import Patch, PlantedBug

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.records import BatchHeader
    from moldau.values import Buffer
    from moldau_broker.log.files.index import OffsetPosition
    from moldau_broker.log.values import Work


def index_names_the_next_batch() -> list[Patch]:
    """The offset index names the batch after the one it points at."""
    good = OffsetIndex.append
    return [(OffsetIndex, "append", lambda self, offset, position: good(self, offset - 1, position))]


def lookup_takes_the_entry_above() -> list[Patch]:
    """The last batch of an interval is skipped."""
    good = OffsetIndex.lookup

    def lookup(self: OffsetIndex, offset: int) -> OffsetPosition:
        found = self.first_at_or_after_position(good(self, offset).position + 1)
        return found if found is not None and found.offset - 1 <= offset else good(self, offset)

    return [(OffsetIndex, "lookup", lookup)]


def swap_without_rename_order() -> list[Patch]:
    """The new segment takes its name before the old ones have lost theirs, and says too early that it is complete."""

    def replace(self: SegmentList, old: Sequence[LogSegment], new: LogSegment) -> bool:
        first = self.all.index(old[0])
        new.files.change_suffix("")
        self.generation += 1
        self.all[first : first + len(old)] = [new]
        self._bases[first : first + len(old)] = [new.base_offset]
        for former in old:
            if former.base_offset != new.base_offset:
                self._delete_files(former)
        return True

    return [(SegmentList, "replace", replace)]


def map_overflow_ignored() -> list[Patch]:
    """A key that found no room counts as mapped: the end of what was covered moves on."""
    good_add, good_select = OffsetMap.add, OffsetMap.select

    def add(self: OffsetMap, data: Buffer, start: int, end: int, header: BatchHeader, first_offset: int) -> bool:
        good_add(self, data, start, end, header, first_offset)
        return True

    def select(
        self: OffsetMap, data: Buffer, start: int, end: int, header: BatchHeader, *, keeps_tombstones: bool
    ) -> Selection:
        found = good_select(self, data, start, end, header, keeps_tombstones=keeps_tombstones)
        view, keep = memoryview(data), bytearray(found.keep)
        parsed = pure_cleaning._records(view, start, end, len(keep), header.base_offset, header.last_offset_delta)
        for number, (_, delta, key_at, key_size, *_) in enumerate(parsed):
            digest = xxh3_128_digest(view[key_at : key_at + max(0, key_size)])
            if header.base_offset + delta <= self.latest_offset and not pure_cleaning._find(self._buffer, digest)[1]:
                keep[number] = 0
        return Selection(bytes(keep), sum(keep), found.has_tombstone)

    return [(OffsetMap, "add", add), (OffsetMap, "select", select)]


def tombstone_dropped_early() -> list[Patch]:
    """A tombstone goes with the first cleaning."""
    good = OffsetMap.select
    return [(OffsetMap, "select", lambda self, *args, keeps_tombstones: good(self, *args, keeps_tombstones=False))]


def last_value_dropped() -> list[Patch]:
    """Treats the record at the key's last offset as older than it."""
    good = OffsetMap.select

    def select(
        self: OffsetMap, data: Buffer, start: int, end: int, header: BatchHeader, *, keeps_tombstones: bool
    ) -> Selection:
        earlier = header._replace(base_offset=header.base_offset - 1)
        return good(self, data, start, end, earlier, keeps_tombstones=keeps_tombstones)

    return [(OffsetMap, "select", select)]


def active_segment_cleaned() -> list[Patch]:
    """The segment that is appended to is cleaned like any other."""

    def plan(log: PartitionLog, checkpoint: int | None, durable_end: int, now_ms: int) -> CleaningPlan:
        good = plan_cleaning(log, checkpoint, durable_end, now_ms)
        return CleaningPlan(good.first_dirty_offset, log.log_end_offset, good.clean_bytes, log.size_bytes, True)

    good_replace = SegmentList.replace

    def replace(self: SegmentList, old: Sequence[LogSegment], new: LogSegment) -> bool:
        if old[-1] is self.active:
            self.active = new
            self.all[-1:] = [old[-1]]
            first = self.all.index(old[0])
            self.all[first:] = [new]
            self._bases[first:] = [new.base_offset]
            for former in old:
                self._delete_files(former)
            new.files.change_suffix("")
            return True
        return good_replace(self, old, new)

    return [(manager, "plan_cleaning", plan), (SegmentList, "replace", replace)]


def recovery_point_ahead_of_data() -> list[Patch]:
    """The recovery point moves without a sync."""
    good = PartitionLog.flush_work

    def flush_work(self: PartitionLog, **options: bool) -> Work | None:
        work = good(self, **options)
        if work is not None:
            object.__setattr__(work, "run", lambda: None)
        return work

    return [(PartitionLog, "flush_work", flush_work)]


def recovery_point_not_lowered() -> list[Patch]:
    """Truncation leaves the checkpointed recovery point above what is verified."""
    return [(LogDirectory, "lower_to", lambda self, log, offset: None), (LogSegment, "cut", _truncate_without_sync)]


def _truncate_without_sync(
    self: LogSegment, offset: int, position: int, good: Callable[[LogSegment, int, int], None] = LogSegment.cut
) -> None:
    file = self.file

    class Unsynced:
        def __getattr__(self, name: str) -> object:
            return (lambda: None) if name == "sync" else getattr(file, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogSegment, "file", property(lambda _: Unsynced()))
        good(self, offset, position)


def time_index_not_monotone() -> list[Patch]:
    """Each interval writes the timestamp of its own batch, not the largest so far."""

    def maybe_append(self: TimeIndex, timestamp_ms: int, offset: int) -> None:
        self._entries.append(timestamp_ms - (self.count % 2) * 700, offset - self._base)

    return [(TimeIndex, "maybe_append", maybe_append)]


def lost_tail_between_segments() -> list[Patch]:
    """Recovery does not see that a segment lost whole batches at its end."""
    return [(loader._Loader, "_is_hole", lambda self, position, end: False)]


def crc_not_checked() -> list[Patch]:
    """Recovery believes any batch that has a plausible header."""
    return [(segment, "batch_problem", lambda header, data: None)]


def retention_above_the_watermark() -> list[Patch]:
    """Retention forgets what is not replicated yet."""
    return [(retention, "expired_count", lambda log, high_watermark, now_ms, *, has_staged: log.segments.count - 1)]


def duplicate_not_recognised() -> list[Patch]:
    """The producer's batches are not remembered."""
    return [(ProducerEntry, "find_duplicate", lambda *arguments: None)]


def aborted_not_indexed() -> list[Patch]:
    """An abort marker leaves no entry."""
    return [(TransactionIndex, "append", lambda self, entry: None)]


def cleaned_aborts_stay_open() -> list[Patch]:
    """A transaction whose abort marker is not read goes on: the next one of its producer is judged aborted."""

    def aborted_at(self: CleanedTransactions, header: BatchHeader) -> AbortedTransaction | None:
        while self._waiting and self._waiting[-1].first_offset <= header.last_offset:
            entry = self._waiting.pop()
            self._aborted[entry.producer_id] = AbortedTransaction(entry)
        return self._aborted.get(header.producer_id)

    return [(CleanedTransactions, "_aborted_at", aborted_at)]


def _bug(patches: Callable[[], list[Patch]], kind: str) -> PlantedBug:
    """Makes the value of a bug from the function that replaces code and the kind of histories that show it."""
    assert patches.__doc__ is not None
    text = patches.__doc__.strip().rstrip(".")
    return PlantedBug(
        name=patches.__name__.replace("_", "-"),
        area="log",
        text=text[0].lower() + text[1:],
        patches=patches,
        judges=(f"log model, {kind}",),
    )


HISTORIES = (
    (index_names_the_next_batch, "plain"),
    (lookup_takes_the_entry_above, "plain"),
    (map_overflow_ignored, "compacted"),
    (tombstone_dropped_early, "compacted"),
    (last_value_dropped, "compacted"),
    (active_segment_cleaned, "compacted"),
    (recovery_point_ahead_of_data, "plain"),
    (recovery_point_not_lowered, "plain"),
    (time_index_not_monotone, "plain"),
    (lost_tail_between_segments, "plain"),
    (crc_not_checked, "plain"),
    (retention_above_the_watermark, "plain"),
    (duplicate_not_recognised, "plain"),
    (aborted_not_indexed, "plain"),
    (cleaned_aborts_stay_open, "transactions"),
)
"""The bugs that random histories find, with the kind of histories that shows each."""

BUGS = (
    *(_bug(patches, kind) for patches, kind in HISTORIES),
    _bug(swap_without_rename_order, "crashes at each write of a swap"),
)
"""All planted bugs of the log."""

BY_NAME = {bug.name: bug for bug in BUGS}
KIND_OF = {bug.name: kind for bug, (_, kind) in zip(BUGS, HISTORIES, strict=False)}
