"""Reads of remote segments give what reads of the same local log give.

Goal: every offset, limit and bound, timestamps and aborted transactions. Method: random logs are cut into segments, the
closed ones are read as remote segments, and the untiered log is the oracle. Indexes are damaged, and batches.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from moldau.records import BATCH_HEADER_BYTES, decode_records, iterate_batches
from moldau.values import LeaderEpoch
from moldau_broker.log.files.transaction_index import AbortedEntry, decode_entries, encode_aborted
from moldau_broker.log.partition import lookups
from moldau_broker.log.values import SegmentParts
from moldau_broker.remote_log.core.errors import CorruptRemoteSegmentError
from moldau_broker.remote_log.core.names import Listing, RemoteSegment
from moldau_broker.remote_log.core.reading import aborted_transactions, read, search_largest, search_timestamp
from moldau_broker.remote_log.core.remote_log import RemoteLog
from moldau_broker.remote_log.core.requests import ReadParts
from support.log.model import START_MS, make_batch
from support.remote_log.segments import Machine, Store, Writer, replicate

if TYPE_CHECKING:
    from moldau.records import Record
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.values import ReadResult

LIMITS = (1, 200, 900, 1 << 20)


class Tiered:
    """A log, and its closed segments in a store."""

    def __init__(self, seed: int, batches: int = 90, segment_bytes: int = 1800) -> None:
        self.machine = Machine()
        self.log = self.machine.log("leader", segment_bytes=segment_bytes)
        Writer(self.log, seed).write(batches)
        self.store = Store()
        self.segments = [self.store.add(self.log, index, 1000 + index) for index in range(len(self.log.segments) - 1)]
        self.end = self.segments[-1].end_offset

    def remote(self, extra: list[RemoteSegment] | None = None) -> RemoteLog:
        return RemoteLog(Listing([*self.segments, *(extra or [])], []), self.log.epochs.epoch_for_offset, 0)

    def records(self, segment: RemoteSegment) -> list[Record]:
        data = self.store.logs[segment.segment_id]
        return [each for position, header in iterate_batches(data) for each in decode_records(data, position, header)]

    def read(self, segment: RemoteSegment, offset: int, max_bytes: int, upper: int, min_one_batch: bool = True):
        parts = self.store.parts[segment.segment_id]
        return self.store.run(
            read(segment, parts, offset, max_bytes=max_bytes, upper_bound_offset=upper, min_one_batch=min_one_batch)
        )


def data_of(result: ReadResult) -> bytes:
    return b"".join(piece.file.read(piece.position, piece.count) for piece in result.ranges)


def whole(data: bytes) -> tuple[bytes, int | None]:
    """Returns the whole batches of local bytes, and the offset after them."""
    end, following = 0, None
    for position, header in iterate_batches(data):
        end, following = position + header.size_bytes, header.next_offset
    return data[:end], following


def aborted_of(log: PartitionLog, offset: int, end: int) -> list[tuple[int, int]]:
    return [(item.producer_id, item.first_offset) for item in lookups.local_aborted(log.storage, offset, end)]


@pytest.mark.parametrize("seed", range(6))
def test_every_offset_gives_the_bytes_of_the_log(seed: int) -> None:
    tiered = Tiered(seed)
    draw = random.Random(seed)
    remote = tiered.remote()
    compared = 0
    for offset in range(tiered.end):
        segment = remote.segment_at(offset)
        assert segment is not None
        bounds = {offset, offset + 1, segment.end_offset, segment.last_offset, tiered.end, tiered.log.log_end_offset}
        bounds.add(draw.randint(offset, tiered.end))
        for upper in sorted(bounds):
            max_bytes, min_one_batch = draw.choice(LIMITS), draw.random() < 0.8
            local = tiered.log.read(offset, max_bytes=max_bytes, upper_bound_offset=upper, min_one_batch=min_one_batch)
            expected, following = whole(data_of(local))
            found = tiered.read(segment, offset, max_bytes, upper, min_one_batch)
            assert found.data == expected
            assert found.end_offset == (offset if following is None else following)
            assert found.first_batch_incomplete == local.first_batch_incomplete
            compared += len(expected)
    assert compared > 10_000


def test_every_read_has_the_aborted_transactions() -> None:
    incomplete = listed = 0
    for seed in range(6):
        tiered = Tiered(seed)
        remote, log = tiered.remote(), tiered.log
        for offset in range(tiered.end):
            found = tiered.read(remote.segment_at(offset), offset, 600, log.last_stable_offset)
            search = tiered.store.run(aborted_transactions(remote.segments_from(offset), offset, found.end_offset))
            pairs = [(item.producer_id, item.first_offset) for item in search.transactions]
            if not search.is_complete:
                incomplete += 1
                assert search.markers_to == tiered.end
                pairs += aborted_of(log, search.markers_to, found.end_offset)
            looked_at = [each for each in remote.segments_from(offset) if each.end_offset <= search.markers_to]
            assert [each.segment for each in tiered.store.asked] == [each for each in looked_at if each.has_aborted]
            entries = [
                entry
                for each in looked_at[:-1]
                for entry in decode_entries("", tiered.store.parts[each.segment_id].transaction_index, each.base_offset)
            ]
            assert all(entry.last_stable_offset < found.end_offset for entry in entries), "one was the last"
            assert pairs == aborted_of(log, offset, found.end_offset)
            local = log.read(offset, max_bytes=600, upper_bound_offset=log.last_stable_offset, min_one_batch=True)
            assert pairs == [
                (item.producer_id, item.first_offset) for item in log.aborted_transactions(local, found.end_offset)
            ]
            listed += len(pairs)
    assert listed > 500
    assert incomplete > 100


def test_a_marker_in_two_segments_counts_once() -> None:
    """Another transaction is open at the marker, so that the search goes on with the next segment."""
    store, entries = Store(), (AbortedEntry(7, 2, 15, 3), AbortedEntry(8, 3, 25, 26))
    segments = []
    for base, end, listed in ((0, 20, entries[:1]), (10, 30, entries)):
        segments.append(RemoteSegment(base, end - 1, 1, 5, True, UUID(int=base), 1000))
        index = b"".join(map(encode_aborted, listed))
        store.parts[UUID(int=base)] = SegmentParts(b"", b"", index, b"", b"")
    search = store.run(aborted_transactions(segments, 0, 5))
    assert [(item.producer_id, item.first_offset) for item in search.transactions] == [(7, 2), (8, 3)]


@pytest.mark.parametrize("seed", range(3))
def test_segments_of_two_brokers_overlap(seed: int) -> None:
    """The second broker cuts elsewhere; each range is read once, and each marker is counted once."""
    tiered = Tiered(seed)
    other = tiered.machine.log("follower", segment_bytes=1100)
    replicate(tiered.log, other)
    extra = [tiered.store.add(other, index, 2000 + index) for index in range(len(other.segments) - 1)]
    draw = random.Random(seed)
    remote = tiered.remote(extra)
    tiered.segments, extra = draw.sample(tiered.segments, len(tiered.segments) // 2), extra
    mixed = tiered.remote(extra)
    for known in (remote, mixed):
        end = known.copied_end(0)
        assert end >= extra[-1].end_offset
        offset, data = 0, b""
        while offset < end:
            found = tiered.read(known.segment_at(offset), offset, 500, end)
            search = tiered.store.run(aborted_transactions(known.segments_from(offset), offset, found.end_offset))
            pairs = [(item.producer_id, item.first_offset) for item in search.transactions]
            if not search.is_complete:
                pairs += aborted_of(tiered.log, search.markers_to, found.end_offset)
            assert pairs == aborted_of(tiered.log, offset, found.end_offset)
            data += found.data
            assert found.end_offset > offset
            offset = found.end_offset
        assert data == b"".join(segment.file.read(0, segment.size) for segment in tiered.log.segments)[: len(data)]
        assert [header.next_offset for _, header in iterate_batches(data)][-1] == end


@pytest.mark.parametrize("seed", range(4))
def test_every_time_gives_the_record_of_the_log(seed: int) -> None:
    tiered = Tiered(seed)
    log, remote = tiered.log, tiered.remote()
    times = sorted({segment.max_timestamp_ms for segment in tiered.segments})
    draw = random.Random(seed)
    times += [START_MS + draw.randrange(1 << 40) for _ in range(30)] + [0]
    for start in sorted(draw.sample(range(tiered.end), 6)):
        log.increment_log_start_offset(start)
        for time in [each + delta for each in times for delta in (-1, 0, 1)]:
            time = max(0, time)
            local = log.offset_for_timestamp(time)
            segments = remote.segments_from(start)
            found = tiered.store.run(search_timestamp(segments, time, start, log.config))
            assert found == (local if local is not None and local.offset < tiered.end else None)
            asked = [each.segment for each in tiered.store.asked if isinstance(each, ReadParts)]
            before = [each for each in segments if found is None or each.base_offset <= found.offset]
            assert asked == [each for each in before if each.max_timestamp_ms >= time]


@pytest.mark.parametrize("seed", range(4))
def test_deleted_records_are_not_the_largest(seed: int) -> None:
    """The largest timestamp is that of a record that is left, though a segment's name tells only that of all."""
    tiered = Tiered(seed)
    records = [record for segment in tiered.segments for record in tiered.records(segment)]
    draw = random.Random(seed)
    for start in [0, *sorted(draw.sample(range(tiered.end), 40))]:
        segments = tiered.remote().segments_from(start)
        left = [record for record in records if record.offset >= start]
        largest = max(record.timestamp for record in left)
        first = next(record.offset for record in left if record.timestamp == largest)
        for above_ms in (-1, largest, largest + 1):
            found = tiered.store.run(search_largest(segments, above_ms, start, tiered.log.config))
            expected = None if above_ms > largest else (largest, first)
            assert expected == (None if found is None else (found.timestamp_ms, found.offset)), (start, above_ms)


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_index_costs_only_time(seed: int) -> None:
    tiered = Tiered(seed)
    draw = random.Random(seed)

    def damaged(index: bytes) -> bytes:
        if draw.random() < 0.3:
            return draw.randbytes(draw.randint(0, 2 * len(index) + 5))
        changed = bytearray(index[: draw.randint(0, len(index))] if draw.random() < 0.2 else index)
        for _ in range(draw.randint(1, 6) if changed else 0):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        return bytes(changed)

    for segment in tiered.segments:
        for _ in range(4):
            sound = tiered.store.parts[segment.segment_id]
            tiered.store.parts[segment.segment_id] = sound._replace(
                offset_index=damaged(sound.offset_index), time_index=damaged(sound.time_index)
            )
            for offset in range(segment.base_offset, segment.end_offset):
                local = tiered.log.read(offset, max_bytes=700, upper_bound_offset=tiered.end, min_one_batch=True)
                found = tiered.read(segment, offset, 700, tiered.end)
                assert found.data == whole(data_of(local))[0]
            for _ in range(10):
                time = max(0, segment.max_timestamp_ms - draw.choice([0, draw.randrange(1 << 39)]))
                found = tiered.store.run(search_timestamp([segment], time, segment.base_offset, tiered.log.config))
                tiered.store.parts[segment.segment_id], kept = sound, tiered.store.parts[segment.segment_id]
                expected = tiered.store.run(search_timestamp([segment], time, segment.base_offset, tiered.log.config))
                tiered.store.parts[segment.segment_id] = kept
                assert found == expected
            tiered.store.parts[segment.segment_id] = sound


def large(batches: int = 800, value_bytes: int = 400) -> Tiered:
    """One closed segment of many batches."""
    tiered = Tiered.__new__(Tiered)
    tiered.machine, tiered.store = Machine(), Store(chunk_bytes=1 << 16, cache_bytes=1 << 20)
    tiered.log = tiered.machine.log("leader", segment_bytes=1 << 30)
    for number in range(batches):
        data = make_batch([(START_MS + number, b"k", bytes(value_bytes))] * 2)
        tiered.log.append_as_leader(memoryview(data), leader_epoch=LeaderEpoch(1), now_ms=START_MS)
    tiered.log.storage.roll(tiered.log.log_end_offset, START_MS)
    tiered.log.update_high_watermark(tiered.log.log_end_offset)
    tiered.segments = [tiered.store.add(tiered.log, 0, 1000)]
    tiered.end = tiered.log.log_end_offset
    return tiered


def test_a_read_asks_for_little_more_than_it_returns() -> None:
    tiered = large()
    for offset in (0, 777, 1201):
        found = tiered.read(tiered.segments[0], offset, 50_000, tiered.end)
        assert 48_000 < len(found.data) <= 50_000
        assert tiered.store.bytes_asked < 50_000 + 40_000
    tiered.store.run(search_timestamp(tiered.segments, START_MS + 500, 0, tiered.log.config))
    assert tiered.store.bytes_asked < 60_000


def test_a_read_without_an_index_asks_for_each_byte_once() -> None:
    tiered = large(batches=200)
    (segment,) = tiered.segments
    tiered.store.parts[segment.segment_id] = tiered.store.parts[segment.segment_id]._replace(offset_index=b"")
    assert tiered.read(segment, 0, 2000, tiered.end).data
    assert len(tiered.store.asked) == 1, "the window holds the batches"
    assert tiered.read(segment, tiered.end - 1, 2000, tiered.end).data
    assert tiered.store.bytes_asked < 1.1 * segment.size_bytes


def test_one_damaged_entry_does_not_cost_a_walk_from_the_start() -> None:
    tiered = large()
    (segment,) = tiered.segments
    parts = tiered.store.parts[segment.segment_id]
    index = bytearray(parts.offset_index)
    for at in range(4, len(index), 16):  # the position of every second entry
        index[at : at + 4] = b"\x7f\xff\xff\xff"
    tiered.store.parts[segment.segment_id] = parts._replace(offset_index=bytes(index))
    for offset in (1201, 1202, 1203, 1204, 1599):
        assert tiered.read(segment, offset, 5000, tiered.end).data
        assert tiered.store.bytes_asked < 60_000


def test_a_large_batch_is_returned_whole_if_asked() -> None:
    tiered = large(batches=3, value_bytes=200_000)
    (segment,) = tiered.segments
    assert tiered.read(segment, 2, 1000, tiered.end, min_one_batch=False) == (b"", 2, True)
    found = tiered.read(segment, 2, 1000, tiered.end)
    assert len(found.data) > 400_000
    assert found.end_offset == 4
    assert tiered.store.bytes_asked < len(found.data) + 40_000


def test_records_missing_at_the_end_lead_to_the_next_segment() -> None:
    """A topic that was compacted once may be tiered: its segments may end in offsets without records."""
    tiered = large(batches=3)
    (segment,) = tiered.segments
    longer = segment._replace(last_offset=20)
    assert tiered.read(longer, 9, 1000, 30) == (b"", 21, False)
    assert tiered.read(longer, 9, 1000, 9) == (b"", 9, False)
    assert tiered.store.asked == [], "nothing lies below the bound"
    assert tiered.store.run(search_timestamp([longer], START_MS, 9, tiered.log.config)) is None


class TestDamagedBatches:
    """Damage of the ``.log`` gives a clear error, and batches before it are still read."""

    @pytest.fixture
    def tiered(self) -> Tiered:
        return large(batches=40)

    def damage(self, tiered: Tiered, position: int, data: bytes) -> None:
        content = bytearray(tiered.store.logs[tiered.segments[0].segment_id])
        content[position : position + len(data)] = data
        tiered.store.logs[tiered.segments[0].segment_id] = bytes(content)

    @pytest.mark.parametrize(
        ("at", "data"),
        [
            (0, b"\xff"),  # base offset
            (0, (1 << 40).to_bytes(8, "big")),
            (8, b"\x7f"),  # length
            (8, b"\x00\x00\x00\x10"),
            (16, b"\x01"),  # magic
            (23, b"\x7f"),  # last offset delta
        ],
    )
    def test_the_first_bytes(self, tiered: Tiered, at: int, data: bytes) -> None:
        self.damage(tiered, at, data)
        with pytest.raises(CorruptRemoteSegmentError, match=r"_.{32}\.log: byte 0: no batch header"):
            tiered.read(tiered.segments[0], 0, 1000, tiered.end)

    def test_a_later_batch(self, tiered: Tiered) -> None:
        (segment,) = tiered.segments
        size = segment.size_bytes // 40
        self.damage(tiered, 7 * size + 16, b"\x05")
        found = tiered.read(segment, 8, 1 << 20, tiered.end)
        assert found.end_offset == 14
        with pytest.raises(CorruptRemoteSegmentError, match="no batch header"):
            tiered.read(segment, 14, 1 << 20, tiered.end)
        assert tiered.read(segment, 30, 1 << 20, tiered.end).end_offset == tiered.end  # the index leads past it

    def test_an_offset_that_went_back(self, tiered: Tiered) -> None:
        (segment,) = tiered.segments
        size = segment.size_bytes // 40
        self.damage(tiered, 7 * size, (3).to_bytes(8, "big"))
        tiered.store.parts[segment.segment_id] = tiered.store.parts[segment.segment_id]._replace(offset_index=b"")
        assert tiered.read(segment, 0, 1 << 20, tiered.end).end_offset == 14
        with pytest.raises(CorruptRemoteSegmentError, match="offset 3"):
            tiered.read(segment, 20, 1 << 20, tiered.end)

    def test_an_object_that_is_shorter_than_listed(self, tiered: Tiered) -> None:
        (segment,) = tiered.segments
        content = tiered.store.logs[segment.segment_id]
        tiered.store.logs[segment.segment_id] = content[: BATCH_HEADER_BYTES + 5]
        with pytest.raises(CorruptRemoteSegmentError, match="the object holds 66 of"):
            tiered.read(segment, 0, 1000, tiered.end)

    def test_the_index_of_aborted_transactions(self, tiered: Tiered) -> None:
        segment = tiered.segments[0]._replace(has_aborted=True)
        tiered.store.parts[segment.segment_id] = tiered.store.parts[segment.segment_id]._replace(
            transaction_index=bytes(33)
        )
        with pytest.raises(CorruptRemoteSegmentError, match=r"\.aux: byte 0: the last entry is cut"):
            tiered.store.run(aborted_transactions([segment], 0, 5))
