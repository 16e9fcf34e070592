"""Goal: a reader of remote segments returns the records of the log, over all borders, or a clear error.

Method: a log on a virtual disk, copied into a store in memory, and a second log that begins behind the copies. The
records of the reader, and of the second log, are compared with those of the first log.
"""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from moldau.protocol.errors import ErrorCode
from moldau.records import decode_records, iterate_batches
from moldau.runtime.ports.objects import ObjectStoreError
from moldau.values import LeaderEpoch
from moldau_broker.log.errors import LogError, OffsetOutOfRangeError
from moldau_broker.log.files.batches import scan_headers
from moldau_broker.log.files.checkpoint import encode_epochs
from moldau_broker.log.values import TopicPartition
from moldau_broker.remote_log.core.chunk_cache import CHUNK_BYTES
from moldau_broker.remote_log.core.names import AUXILIARY, LOG
from moldau_broker.remote_log.core.requests import ReadRange
from moldau_broker.server.remote_reading.reader import RELIST_MS, RemoteReader
from moldau_broker.server.remote_reading.values import RemoteRange, RemoteSegmentMissingError, RemoteStorageError
from support.cluster.tiering import CLUSTER, MemoryStore, TieredPartition, copy_segments
from support.log.lab import open_manager
from support.log.model import START_MS, VirtualMachine, make_batch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau_broker.log.partition.partition_log import PartitionLog

BATCH_RECORDS = 2
BATCHES = 40
CACHES = pytest.mark.parametrize("cached_bytes", [0, 1 << 20])


class Lab:
    """The whole log, the tiered one, the store and the reader."""

    def __init__(self, cached_bytes: int = 1 << 20, *, segments_local: int = 2) -> None:
        machine = VirtualMachine(1)
        self.manager = open_manager(machine, ("/d",), index_interval_bytes=200, remote_storage_enable=True)
        self.whole = self._log("whole")
        self.store = MemoryStore()
        self._aborted = 0
        self.write(BATCHES)
        self.whole.flush()  # only durable segments are copied
        self.partition: Any = TieredPartition(self._log("tiered"), self.store)
        self.copied = copy_segments(self.store.objects.__setitem__, self.partition.folder, self.whole)
        self.begin_behind(-segments_local)
        clock: Any = SimpleNamespace(monotonic_ms=lambda: trio.current_time() * 1000)
        self.parts_bytes_max = cached_bytes
        self.reader = RemoteReader(
            clock,
            machine.disk,
            self.store,
            self.partition,
            CLUSTER,
            chunks_bytes_max=cached_bytes,
            parts_bytes_max=lambda: self.parts_bytes_max,
        )

    @property
    def log(self) -> PartitionLog:
        return self.partition.log

    def _log(self, name: str) -> PartitionLog:
        key = TopicPartition(name, 0)
        return self.manager.get_or_create(key, topic_id=uuid.uuid5(uuid.NAMESPACE_DNS, name), now_ms=START_MS)

    def write(self, batches: int) -> None:
        """Appends batches; each tenth is of a transaction that is aborted five batches later."""
        for number in range(batches):
            is_transaction = number % 10 == 0
            producer = (7, 0, 2 * (number // 10)) if is_transaction else (-1, -1, -1)
            offset = self.whole.log_end_offset
            rows = [(START_MS + offset + each, b"k", b"v" * 40) for each in range(BATCH_RECORDS)]
            data = make_batch(rows, producer=producer, transactional=is_transaction)
            epoch = LeaderEpoch(1 + number // 15)
            self.whole.append_as_leader(memoryview(data), leader_epoch=epoch, now_ms=START_MS)
            if number % 10 == 5:
                self.whole.append_end_transaction_marker(
                    producer_id=7,
                    producer_epoch=0,
                    coordinator_epoch=0,
                    commit=False,
                    leader_epoch=epoch,
                    now_ms=START_MS,
                )
            self.whole.update_high_watermark(self.whole.log_end_offset)

    def begin_behind(self, index: int) -> None:
        """Lets the tiered log begin behind a copied segment; it gets the rest from the whole log."""
        end = self.copied[index].end_offset
        epochs = [entry for entry in self.whole.epochs.entries if entry.start_offset < end]
        self.log.restart_behind(
            end,
            log_start_offset=self.whole.log_start_offset,
            leader_epochs=encode_epochs(epochs),
            producer_snapshot=next(
                each.parts().producer_snapshot for each in self.whole.closed_segments(0) if each.end_offset == end
            ),
            now_ms=START_MS,
        )
        for segment in self.whole.segments:
            for position, header in scan_headers(segment.file, 0, segment.size):
                if header.base_offset >= end:
                    data = segment.file.read(position, header.size_bytes)
                    self.log.append_as_follower(memoryview(data), now_ms=START_MS)
        self.log.update_high_watermark(self.log.log_end_offset)

    def range(self, offset: int, max_bytes: int = 1 << 20, *, committed: bool = False) -> RemoteRange:
        return RemoteRange(offset, max_bytes, self.log.high_watermark, committed)

    async def read(self, offset: int, max_bytes: int = 1 << 20, *, committed: bool = False) -> Any:
        return await self.reader.read(self.partition, self.range(offset, max_bytes, committed=committed))


def run(test: Callable[[], Awaitable[None]]) -> None:
    trio.run(test, clock=MockClock(autojump_threshold=0))


def offsets_of(records: bytes) -> list[int]:
    return [
        record.offset
        for position, header in iterate_batches(records)
        for record in decode_records(records, position, header)
    ]


@CACHES
@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
def test_all_records_below_the_local_log_are_read_once(cached_bytes: int, max_bytes: int) -> None:
    async def test() -> None:
        lab = Lab(cached_bytes)
        offset, found = lab.log.log_start_offset, []
        while offset < lab.log.local_log_start_offset:
            records = (await lab.read(offset, max_bytes)).records
            found += offsets_of(records)
            offset = found[-1] + 1
        assert lab.log.local_log_start_offset > 40
        assert found == list(range(lab.log.local_log_start_offset))
        assert lab.store.calls["list"] == 1

    run(test)


@CACHES
def test_any_offset_gives_what_the_whole_log_gives(cached_bytes: int) -> None:
    """An abort marker may lie in a later remote segment, or in the local log."""

    async def test() -> None:
        lab = Lab(cached_bytes)
        ends = set()
        for offset in range(lab.log.local_log_start_offset):
            found = await lab.read(offset, 300, committed=True)
            expected = lab.whole.read(offset, max_bytes=300, upper_bound_offset=1 << 40, min_one_batch=True)
            data = b"".join(part.file.read(part.position, part.count) for part in expected.ranges)
            assert data.startswith(found.records)
            assert found.records, offset
            end = offsets_of(found.records)[-1] + 1
            wanted = [
                (entry.producer_id, entry.first_offset)
                for segment in lab.whole.segments
                for entry in segment.aborted_entries()
                if entry.last_offset >= offset and entry.first_offset < end
            ]
            assert list(found.aborted) == wanted, offset
            ends |= {entry.last_offset for each in lab.whole.segments for entry in each.aborted_entries()}
        assert min(ends) < lab.log.local_log_start_offset < max(ends)

    run(test)


def test_a_marker_on_disk_and_in_the_store_counts_once() -> None:
    """A consumer that is given a transaction twice drops the next, committed one of the same producer."""

    class LongTransaction(Lab):
        """Another transaction is open from the eighteenth batch to the end, so that searches for markers go on."""

        def write(self, batches: int) -> None:
            super().write(18)
            data = make_batch([(START_MS, b"k", b"v")], producer=(8, 0, 0), transactional=True)
            self.whole.append_as_leader(memoryview(data), leader_epoch=LeaderEpoch(3), now_ms=START_MS)
            for number in range(batches - 18):
                producer = (9, 0, 0) if number == 0 else (-1, -1, -1)
                data = make_batch([(START_MS, b"k", b"v" * 80)], producer=producer, transactional=number == 0)
                self.whole.append_as_leader(memoryview(data), leader_epoch=LeaderEpoch(3), now_ms=START_MS)
            for producer_id in (9, 8):
                self.whole.append_end_transaction_marker(
                    producer_id=producer_id,
                    producer_epoch=0,
                    coordinator_epoch=0,
                    commit=producer_id == 8,
                    leader_epoch=LeaderEpoch(3),
                    now_ms=START_MS,
                )
            for _ in range(9):
                data = make_batch([(START_MS, b"k", b"v" * 80)])
                self.whole.append_as_leader(memoryview(data), leader_epoch=LeaderEpoch(3), now_ms=START_MS)
            self.whole.update_high_watermark(self.whole.log_end_offset)

    async def test() -> None:
        lab = LongTransaction(0, segments_local=5)
        marker = next(e for each in lab.whole.segments for e in each.aborted_entries() if e.producer_id == 9)
        assert marker.first_offset < lab.log.local_log_start_offset <= marker.last_offset < lab.copied[-1].end_offset
        found = await lab.read(marker.first_offset, 1, committed=True)
        assert list(found.aborted) == [(9, marker.first_offset)]

    run(test)


@pytest.mark.parametrize("has_next", [True, False])
def test_a_hole_leads_to_the_next_segment_or_to_the_local_log(has_next: bool) -> None:
    """Compaction can have left one before the topic was tiered; a reader that waited there would wait for ever."""

    async def test() -> None:
        lab = Lab(0)
        last, behind = lab.copied[-2:]
        assert behind.base_offset == lab.log.local_log_start_offset
        for name in list(lab.store.objects):
            if last.name in name and name.endswith(LOG):
                data = lab.store.objects[name]
                lab.store.objects[name] = data[: max(position for position, _ in iterate_batches(data))]
            elif behind.name in name and not has_next:
                del lab.store.objects[name]
        found = await lab.read(last.last_offset)
        assert found.gap_end == (None if has_next else behind.base_offset)
        assert offsets_of(found.records)[:1] == ([behind.base_offset] if has_next else [])

    run(test)


def test_no_byte_above_the_bound_is_returned() -> None:
    async def test() -> None:
        lab = Lab()
        for bound in range(4, 12):
            read = await lab.reader.read(lab.partition, lab.range(4)._replace(upper_bound_offset=bound))
            assert all(offset < bound for offset in offsets_of(read.records))

    run(test)


def test_offsets_below_the_log_start_are_out_of_range() -> None:
    async def test() -> None:
        lab = Lab()
        lab.log.increment_log_start_offset(7)
        with pytest.raises(OffsetOutOfRangeError):
            await lab.read(6)
        assert offsets_of((await lab.read(7)).records)[-1] >= 7
        assert lab.store.calls["list"] == 1, "nothing was asked for the first one"

    run(test)


def test_a_segment_that_was_copied_after_the_listing_is_found() -> None:
    async def test() -> None:
        lab = Lab()
        late = {name: data for name, data in lab.store.objects.items() if lab.copied[1].name in name}
        for name in late:
            del lab.store.objects[name]
        await lab.read(0)
        lab.store.objects.update(late)
        assert offsets_of((await lab.read(lab.copied[1].base_offset)).records)
        assert lab.store.calls["list"] == 2

    run(test)


@pytest.mark.parametrize("whole", [False, True])
def test_a_segment_that_is_gone_is_an_error_after_one_listing(whole: bool) -> None:
    """Its reader must not go on behind it: the records in between would be lost without notice."""

    async def test() -> None:
        lab = Lab(0)
        await lab.read(0)
        gone = lab.copied[1]
        for name in [name for name in lab.store.objects if gone.name in name and (whole or name.endswith(LOG))]:
            del lab.store.objects[name]
        for _ in range(2):
            lists = lab.store.calls["list"]
            with pytest.raises(RemoteSegmentMissingError) as caught:
                await lab.read(gone.base_offset)
            assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert lab.store.calls["list"] == lists + 1
            with pytest.raises(RemoteSegmentMissingError):
                await lab.read(gone.base_offset)
            assert lab.store.calls["list"] == lists + 1, "clients that try again cost no listing"
            await trio.sleep(RELIST_MS / 1000)
        assert offsets_of((await lab.read(gone.end_offset)).records)[0] == gone.end_offset

    run(test)


@pytest.mark.parametrize("is_all_behind_it_missing", [False, True])
def test_missing_markers_are_an_error(is_all_behind_it_missing: bool) -> None:
    """Without the segment that holds an abort marker the consumer would take aborted records for committed ones."""

    async def test() -> None:
        lab = Lab(0)
        marker = next(e for each in lab.whole.segments for e in each.aborted_entries() if e.first_offset > 15)
        holder = next(each for each in lab.copied if each.base_offset <= marker.last_offset <= each.last_offset)
        assert holder.base_offset > marker.first_offset, "the marker lies in a later segment"
        missing = [each for each in lab.copied if each.base_offset >= holder.base_offset]
        for segment in missing if is_all_behind_it_missing else [holder]:
            for name in [name for name in lab.store.objects if segment.name in name]:
                del lab.store.objects[name]
        with pytest.raises(RemoteSegmentMissingError):
            await lab.read(marker.first_offset, 1, committed=True)
        assert (await lab.read(marker.first_offset, 1)).records

    run(test)


def test_a_store_that_is_away_is_an_error_that_is_not_kept() -> None:
    async def test() -> None:
        lab = Lab()
        lab.store.is_away = True
        for _ in range(2):
            with pytest.raises(RemoteStorageError) as caught:
                await lab.read(0)
            assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        lab.store.is_away = False
        assert (await lab.read(0)).records

    run(test)


def test_a_damaged_segment_is_an_error_of_its_own() -> None:
    async def test() -> None:
        lab = Lab(0)
        name = next(name for name in lab.store.objects if lab.copied[0].name in name and name.endswith(LOG))
        lab.store.objects[name] = b"\xff" * len(lab.store.objects[name])
        with pytest.raises(LogError) as caught:
            await lab.read(0)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        assert (await lab.read(lab.copied[1].base_offset)).records

    run(test)


def test_readers_of_one_place_share_the_requests() -> None:
    async def test() -> None:
        lab = Lab()
        await lab.partition.refresh(lab.partition)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(lab.read, 0)
        assert (lab.store.calls["read.log"], lab.store.calls["read.aux"]) == (1, 1)

    run(test)


def test_a_cancelled_reader_does_not_stop_the_others() -> None:
    async def test() -> None:
        lab = Lab()
        await lab.partition.refresh(lab.partition)
        lab.store.seconds = 1.0
        found: list[Any] = []

        async def other() -> None:
            found.append(await lab.read(0))

        async with trio.open_nursery() as nursery:
            with trio.move_on_after(0.5):
                nursery.start_soon(other)
                await lab.read(0)
        assert offsets_of(found[0].records)

    run(test)


@pytest.mark.parametrize("suffix", [LOG, AUXILIARY])
def test_readers_that_share_a_request_share_its_error(suffix: str) -> None:
    """Those that joined it would else wait for an end that never comes; the next readers ask again."""

    async def test() -> None:
        lab = Lab()
        await lab.partition.refresh(lab.partition)
        failed: list[Exception] = []
        read, asked = lab.store.read, 0

        async def failing(name: str, position: int, size: int) -> bytes:
            nonlocal asked
            if not name.endswith(suffix):
                return await read(name, position, size)
            asked += 1
            await trio.sleep(1)
            raise ObjectStoreError("away")

        async def reader() -> None:
            with pytest.raises(RemoteStorageError) as caught:
                await lab.read(0)
            failed.append(caught.value)

        lab.store.read = failing  # type: ignore[method-assign]
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(reader)
        assert (asked, len(failed)) == (1, 3)
        lab.store.read = read  # type: ignore[method-assign]
        assert offsets_of((await lab.read(0)).records)

    run(test)


def test_a_chunk_that_is_being_read_is_not_asked_for_again() -> None:
    """The requests of the second reader leave it out, and both get their bytes."""
    count = 3
    segment: Any = SimpleNamespace(segment_id=uuid.UUID(int=1), size_bytes=count * CHUNK_BYTES, name="s")
    content = b"".join(bytes([number]) * CHUNK_BYTES for number in range(count))
    partition: Any = SimpleNamespace(topic_id=uuid.UUID(int=2), key=TopicPartition("t", 0))
    unused: Any = None

    async def test() -> None:
        for first in ((1, 2), (0, 2)):
            asked: list[int] = []

            async def slow(_: str, position: int, size: int, asked: list[int] = asked) -> bytes:
                asked.extend(range(position // CHUNK_BYTES, (position + size) // CHUNK_BYTES))
                await trio.sleep(1)
                return content[position : position + size]

            store: Any = SimpleNamespace(read=slow)
            bounds = {"chunks_bytes_max": 2 * len(content), "parts_bytes_max": lambda: 0}
            reader = RemoteReader(unused, unused, store, unused, CLUSTER, **bounds)

            async def read(begin: int, end: int, reader: RemoteReader = reader) -> None:
                wanted = ReadRange(segment, begin * CHUNK_BYTES, (end - begin) * CHUNK_BYTES)
                found = await reader._range(partition, wanted)
                assert found == content[begin * CHUNK_BYTES : end * CHUNK_BYTES]

            with trio.fail_after(10):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(read, *first)
                    await trio.sleep(0.5)
                    nursery.start_soon(read, 0, count)
            assert sorted(asked) == list(range(count))

    run(test)


def test_the_cache_saves_requests_and_keeps_its_bound() -> None:
    async def test() -> None:
        lab = Lab()
        for _ in range(2):
            for segment in lab.copied[:-2]:
                await lab.read(segment.base_offset)
        assert lab.store.calls["read.log"] == len(lab.copied) - 2
        chunks, parts = lab.reader.statistics()
        assert 0 < chunks.size_bytes < 1 << 20
        assert parts.entries == len(lab.copied) - 2

    run(test)


def test_the_memory_for_indexes_follows_its_setting() -> None:
    """It is dynamic in Kafka: a broker that has too little memory gives it back without a restart."""

    async def test() -> None:
        lab = Lab()
        segments = lab.copied[:-2]
        for segment in segments:
            await lab.read(segment.base_offset)
        _, parts = lab.reader.statistics()
        assert parts.entries == len(segments)
        lab.parts_bytes_max = parts.size_bytes // 2
        await lab.read(lab.copied[-2].base_offset)
        _, left = lab.reader.statistics()
        assert 0 < left.size_bytes <= lab.parts_bytes_max

    run(test)


def test_records_are_found_by_time_in_the_remote_part() -> None:
    async def test() -> None:
        lab = Lab()
        for offset in range(lab.log.local_log_start_offset):
            expected = lab.whole.offset_for_timestamp(START_MS + offset)
            assert await lab.reader.search_timestamp(lab.partition, START_MS + offset) == expected
        lab.log.increment_log_start_offset(20)
        found = await lab.reader.search_timestamp(lab.partition, START_MS)
        assert found is not None
        assert found.offset == 20
        assert await lab.reader.search_timestamp(lab.partition, START_MS + (1 << 40)) is None
        segment = lab.copied[-4]
        for name in [name for name in lab.store.objects if segment.name in name]:
            del lab.store.objects[name]
        await lab.partition.refresh(lab.partition)
        with pytest.raises(RemoteSegmentMissingError):
            await lab.reader.search_timestamp(lab.partition, START_MS)

    run(test)


def test_a_follower_finds_what_it_starts_from() -> None:
    """Its own log is empty and knows no leader epoch, so that no segment seems to be its own."""

    async def test() -> None:
        lab = Lab()
        lab.log.truncate_fully_and_start_at(0, START_MS)
        wanted = lab.copied[3]
        found = await lab.reader.segments_holding(lab.partition, wanted.base_offset)
        assert found == [wanted]
        parts = await lab.reader.parts(lab.partition, wanted)
        assert b"\n" in parts.leader_epochs
        for name in [name for name in lab.store.objects if wanted.name in name]:
            del lab.store.objects[name]
        assert await lab.reader.segments_holding(lab.partition, wanted.base_offset) == []
        with pytest.raises(RemoteSegmentMissingError):
            await lab.reader.parts(lab.partition, wanted)
        lab.store.is_away = True
        with pytest.raises(RemoteStorageError):
            await lab.reader.segments_holding(lab.partition, 0)

    run(test)
