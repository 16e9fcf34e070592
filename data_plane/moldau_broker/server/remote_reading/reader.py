"""Reads remote segments: records for fetches, offsets by time, and what a follower starts from.

Generators decide what to read (``remote_log.core.reading``), and ask for pieces of a segment. The pieces come from two
caches, of chunks and of auxiliary parts, or from the store. Tasks that need the same piece at the same time share one
request to the store.

A listing may be older than the store: the leader copies and deletes meanwhile. If a segment or one of its objects is
not found, the partition is listed again, once. Only then it is missing. Clients repeat such a read many times a second,
and a large folder costs many requests, so that the next listing for a miss in that partition has to wait a while.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import trio

from moldau.protocol.errors import ErrorCode
from moldau.records import CorruptRecordError
from moldau.runtime.ports.objects import ObjectNotFoundError, ObjectStoreError
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.log.errors import CorruptLogFileError, LogError, OffsetOutOfRangeError, storage_failure
from moldau_broker.log.partition.lookups import local_aborted
from moldau_broker.remote_log.core import reading
from moldau_broker.remote_log.core.auxiliary import decode_auxiliary, decode_for_reading
from moldau_broker.remote_log.core.chunk_cache import ByteBoundedCache, chunks_of, range_of, size_of
from moldau_broker.remote_log.core.errors import CorruptRemoteSegmentError
from moldau_broker.remote_log.core.names import AUXILIARY, LOG, partition_folder
from moldau_broker.remote_log.core.requests import ReadParts, ReadRange
from moldau_broker.server.remote_reading.values import (
    RemoteRecords,
    RemoteSegmentMissingError,
    RemoteStorageError,
)

if TYPE_CHECKING:
    import uuid
    from collections.abc import Awaitable, Callable, Iterable

    from moldau.runtime.ports.environment import Clock, Disk
    from moldau.runtime.ports.objects import ObjectStore
    from moldau.values import Buffer
    from moldau_broker.log.values import SegmentParts, TimestampOffset
    from moldau_broker.remote_log.core.chunk_cache import CacheStatistics, Chunk, ChunkKey
    from moldau_broker.remote_log.core.names import RemoteSegment
    from moldau_broker.remote_log.core.reading import RemoteRead
    from moldau_broker.remote_log.core.remote_log import RemoteLog
    from moldau_broker.remote_log.core.requests import Reader
    from moldau_broker.server.remote_reading.values import RemoteRange
    from moldau_broker.server.replicas.partition import Partition

_Result = TypeVar("_Result")

AUXILIARY_STEP_BYTES: Final = 4 << 20
"""Bytes of an ``.aux`` that are read at a time: its size is not known before."""
PIECE_BYTES: Final = 1 << 20
"""Bytes of a segment that ``read_segment`` returns at a time; a larger batch is returned whole."""
RELIST_MS: Final = 2_000.0
"""Pause of a partition in which a new listing did not help: until then misses are errors at once."""
AUXILIARY_BYTES_MAX: Final = 64 << 20
"""Bound of an ``.aux``; the indexes of a segment of 2 GiB have 10 MiB."""


class RemoteLogs(Protocol):
    """The remote segments of this broker's replicas, as far as it has listed them (``manager.RemoteLogManager``)."""

    def remote_log(self, partition: Partition) -> RemoteLog | None:
        """Returns what is known of a partition's remote segments; None before the first listing."""
        ...

    async def refresh(self, partition: Partition) -> RemoteLog:
        """Lists the folder of a partition, after the call.

        Raises:
            ObjectStoreError: the store did not answer, or refused.
            KafkaError: this broker has no such replica any more.
        """
        ...


class _Shared:
    """A request to the store that tasks share. If the task that sends it is cancelled, another sends it again."""

    __slots__ = ("ended", "error")

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.error: Exception | None = None


class RemoteReader:
    """Reads the remote segments of any replica of this broker, leader or follower (KIP-405, KIP-392)."""

    def __init__(
        self,
        clock: Clock,
        disk: Disk,
        store: ObjectStore,
        logs: RemoteLogs,
        cluster_id: str,
        *,
        chunks_bytes_max: int,
        parts_bytes_max: Callable[[], int],
    ) -> None:
        """``cluster_id`` begins the names of all objects; the bounds are those of the two caches.

        ``parts_bytes_max`` may change; its cache follows when it gets something.
        """
        self._clock = clock
        self._disk = disk
        self._store = store
        self._logs = logs
        self._cluster_id = cluster_id
        self._chunks: ByteBoundedCache[ChunkKey, bytes] = ByteBoundedCache(chunks_bytes_max)
        self._parts: ByteBoundedCache[uuid.UUID, SegmentParts] = ByteBoundedCache(parts_bytes_max())
        self._parts_bytes_max = parts_bytes_max
        self._shared: dict[ChunkKey | uuid.UUID, _Shared] = {}
        self._missed: dict[Partition, float] = {}
        """When a listing of a partition did not help, on the monotonic clock; only pauses that last."""
        self._long_steps = trio.CapacityLimiter(1)
        self._logger = EventLogger("moldau.broker.remote-reader")

    # --- what users ask for ----------------------------------------------------------------------------------------

    async def read(self, partition: Partition, wanted: RemoteRange) -> RemoteRecords:
        """Reads whole batches from an offset on, at least one, from one remote segment.

        Raises:
            OffsetOutOfRangeError: the offset is below the log start offset.
            RemoteSegmentMissingError: no segment of the store holds the offset.
            RemoteStorageError: the store did not answer.
            LogError: CORRUPT_MESSAGE, the segment is damaged.
        """
        return await self._attempt(partition, partial(self._read, partition, wanted))

    async def search_timestamp(self, partition: Partition, timestamp_ms: int) -> TimestampOffset | None:
        """Finds the first record at or after a time between log start offset and local log start offset.

        It may lie a little behind the local log start offset, in a segment that reaches there. None if there is none.

        Raises:
            RemoteSegmentMissingError: the store lacks a segment of the range.
            RemoteStorageError: the store did not answer.
            LogError: CORRUPT_MESSAGE, a segment is damaged.
        """
        return await self._attempt(partition, partial(self._search, partition, timestamp_ms))

    async def known_or_listed(self, partition: Partition) -> RemoteLog:
        """Returns the remote segments of a partition as far as they are known; lists them if they are not.

        Raises:
            RemoteStorageError: the store did not answer.
        """
        known = self._logs.remote_log(partition)
        return known if known is not None else await self.listed(partition)

    async def listed(self, partition: Partition) -> RemoteLog:
        """Lists the remote segments of a partition.

        Raises:
            RemoteStorageError: the store did not answer.
        """
        try:
            return await self._logs.refresh(partition)
        except ObjectStoreError as error:
            raise RemoteStorageError(str(error)) from error

    async def segments_holding(self, partition: Partition, offset: int) -> list[RemoteSegment]:
        """Lists the segments that hold an offset, the one that reaches furthest first, also those of other lineages.

        Raises:
            RemoteStorageError: the store did not answer.
        """
        remote = await self.listed(partition)
        found = [
            segment
            for segments in (remote.segments, remote.contained, remote.foreign)
            for segment in segments
            if segment.base_offset <= offset <= segment.last_offset
        ]
        return sorted(found, key=lambda segment: (-segment.last_offset, segment.name))

    async def parts(self, partition: Partition, segment: RemoteSegment) -> SegmentParts:
        """Reads the auxiliary parts of a segment, all of them undamaged.

        Raises:
            RemoteSegmentMissingError: there is no such object any more.
            RemoteStorageError: the store did not answer.
            CorruptRemoteSegmentError: a part is damaged.
        """
        try:
            data = await self._read_auxiliary(partition, segment)
        except ObjectNotFoundError as error:
            raise RemoteSegmentMissingError(str(error)) from error
        except ObjectStoreError as error:
            raise RemoteStorageError(str(error)) from error
        return decode_auxiliary(data, segment.name + AUXILIARY)

    async def read_segment(
        self, partition: Partition, segment: RemoteSegment, offset: int, upper_bound_offset: int
    ) -> RemoteRead:
        """Reads whole batches of one segment, of whatever lineage, from an offset that it holds up to a bound.

        Raises:
            RemoteSegmentMissingError: there is no such object any more.
            RemoteStorageError: the store did not answer.
            LogError: CORRUPT_MESSAGE, the segment is damaged.
        """
        try:
            parts = await self._parts_of(partition, segment)
            read = partial(reading.read, max_bytes=PIECE_BYTES, min_one_batch=True)
            return await self._drive(partition, read(segment, parts, offset, upper_bound_offset=upper_bound_offset))
        except ObjectNotFoundError as error:
            raise RemoteSegmentMissingError(str(error)) from error
        except ObjectStoreError as error:
            raise RemoteStorageError(str(error)) from error
        except CorruptRecordError as error:
            raise LogError(ErrorCode.CORRUPT_MESSAGE, f"{partition.key}: {error}") from error

    def missing(self, partition: Partition, offset: int) -> RemoteSegmentMissingError:
        """Returns the error for an offset that no segment holds."""
        return RemoteSegmentMissingError(f"the object store has no segment of {partition.key} with offset {offset}")

    def statistics(self) -> tuple[CacheStatistics, CacheStatistics]:
        """Returns the counts of the caches of chunks and of auxiliary parts."""
        return self._chunks.statistics(), self._parts.statistics()

    async def largest_timestamp(self, partition: Partition, above_ms: int) -> TimestampOffset | None:
        """Finds the first remote record with the largest timestamp, if that is at or above ``above_ms``.

        Raises:
            Exception: as ``search_timestamp``.
        """
        return await self._attempt(partition, partial(self._search_largest, partition, above_ms))

    # --- attempts --------------------------------------------------------------------------------------------------

    async def _attempt(self, partition: Partition, attempt: Callable[[RemoteLog], Awaitable[_Result]]) -> _Result:
        """Runs ``attempt`` on the known segments, and on newly listed ones if it misses something."""
        try:
            known = self._logs.remote_log(partition)
            if known is not None:
                try:
                    return await attempt(known)
                except (ObjectNotFoundError, RemoteSegmentMissingError) as error:
                    if self._has_listed(partition):
                        raise RemoteSegmentMissingError(str(error)) from error
            try:
                return await attempt(await self._logs.refresh(partition))
            except (ObjectNotFoundError, RemoteSegmentMissingError) as error:
                self._missed[partition] = self._clock.monotonic_ms()
                self._logger.warning("remote-segment-missing", partition=partition.key, error=error)
                raise RemoteSegmentMissingError(str(error)) from error
        except ObjectStoreError as error:
            raise RemoteStorageError(str(error)) from error
        except CorruptRecordError as error:
            raise LogError(ErrorCode.CORRUPT_MESSAGE, f"{partition.key}: {error}") from error

    def _has_listed(self, partition: Partition) -> bool:
        """Returns whether a listing a moment ago did not help."""
        since_ms = self._clock.monotonic_ms() - RELIST_MS
        self._missed = {each: missed_ms for each, missed_ms in self._missed.items() if missed_ms > since_ms}
        return partition in self._missed

    async def _read(self, partition: Partition, wanted: RemoteRange, remote: RemoteLog) -> RemoteRecords:
        log, offset = partition.log, wanted.offset
        if offset < log.log_start_offset:
            raise OffsetOutOfRangeError(offset, log.log_start_offset, log.log_end_offset)
        while True:
            segment = remote.segment_at(offset)
            if segment is None:
                if wanted.offset < offset >= log.local_log_start_offset:
                    return RemoteRecords(b"", (), gap_end=offset)
                raise self.missing(partition, offset)
            parts = await self._parts_of(partition, segment)
            found = await self._drive(
                partition,
                reading.read(
                    segment,
                    parts,
                    offset,
                    max_bytes=wanted.max_bytes,
                    upper_bound_offset=wanted.upper_bound_offset,
                    min_one_batch=True,
                ),
            )
            if found.data or found.end_offset <= offset:
                break
            offset = found.end_offset  # a hole that compaction left before the topic was tiered
        aborted: list[tuple[int, int]] = []
        if wanted.reads_committed and found.data:
            aborted = await self._aborted(partition, remote, wanted.offset, found.end_offset)
        return RemoteRecords(found.data, aborted)

    async def _aborted(
        self, partition: Partition, remote: RemoteLog, offset: int, end_offset: int
    ) -> list[tuple[int, int]]:
        """Returns the aborted transactions of a range; their markers may lie far behind it, in the local log too."""
        segments = remote.segments_from(offset)
        search = await self._drive(partition, reading.aborted_transactions(segments, offset, end_offset))
        found = list(search.transactions)
        log, markers_to = partition.log, search.markers_to
        if not remote.covers(offset, markers_to) or (
            not search.is_complete and markers_to < log.local_log_start_offset
        ):
            raise self.missing(partition, remote.copied_end(offset))  # it may hold the marker of an aborted transaction
        if not search.is_complete:
            try:
                found += local_aborted(log.storage, markers_to, end_offset)
            except CorruptLogFileError as error:
                raise LogError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
            except OSError as error:
                raise storage_failure(log.parent_directory, f"reading {partition.key}", error) from error
        return [(each.producer_id, each.first_offset) for each in found]

    async def _search(self, partition: Partition, timestamp_ms: int, remote: RemoteLog) -> TimestampOffset | None:
        log = partition.log
        start, segments = self._searched(partition, remote)
        return await self._drive(partition, reading.search_timestamp(segments, timestamp_ms, start, log.config))

    async def _search_largest(self, partition: Partition, above_ms: int, remote: RemoteLog) -> TimestampOffset | None:
        log = partition.log
        segments = remote.segments_from(log.log_start_offset)
        end = log.local_log_start_offset
        if not any(each.max_timestamp_ms >= max(above_ms, 0) for each in segments if each.base_offset < end):
            return None
        start, segments = self._searched(partition, remote)
        return await self._drive(partition, reading.search_largest(segments, above_ms, start, log.config))

    def _searched(self, partition: Partition, remote: RemoteLog) -> tuple[int, list[RemoteSegment]]:
        """Returns the log start offset, and the segments from there to the local log start offset.

        Raises:
            RemoteSegmentMissingError: the store lacks one of them.
        """
        log = partition.log
        start, end = log.log_start_offset, log.local_log_start_offset
        if not remote.covers(start, end):
            raise self.missing(partition, remote.copied_end(start))
        return start, [segment for segment in remote.segments_from(start) if segment.base_offset < end]

    # --- pieces of segments ----------------------------------------------------------------------------------------

    async def _drive(self, partition: Partition, reader: Reader[_Result]) -> _Result:
        """Runs a reader of the core: gives it what it asks for until it returns."""
        answer: Buffer | SegmentParts | None = None
        try:
            while True:
                request = reader.send(answer)
                answer = None
                if request is None:
                    await trio.lowlevel.checkpoint()
                elif isinstance(request, ReadRange):
                    answer = await self._range(partition, request)
                elif isinstance(request, ReadParts):
                    answer = await self._parts_of(partition, request.segment)
                else:
                    async with self._long_steps:
                        await self._disk.offload(request.run)
        except StopIteration as end:
            result: _Result = end.value
            return result
        finally:
            reader.close()

    def _name(self, partition: Partition, segment: RemoteSegment, suffix: str) -> str:
        folder = partition_folder(self._cluster_id, partition.topic_id, partition.key.partition)
        return f"{folder}{segment.name}{suffix}"

    async def _parts_of(self, partition: Partition, segment: RemoteSegment) -> SegmentParts:
        """Returns the parts of a segment, a damaged index of which is empty."""
        key = segment.segment_id
        while (found := self._parts.get(key)) is None:
            if not await self._joined(key):
                found = await self._owned((key,), self._load_parts(partition, segment))
                break
        return found

    async def _load_parts(self, partition: Partition, segment: RemoteSegment) -> SegmentParts:
        data = await self._read_auxiliary(partition, segment)
        parts, damage = decode_for_reading(data, segment.name + AUXILIARY)
        for error in damage:
            self._logger.warning("remote-index-damaged", partition=partition.key, error=error)
        self._parts.resize(self._parts_bytes_max())
        self._parts.put(segment.segment_id, parts, size_of(parts))
        return parts

    async def _read_auxiliary(self, partition: Partition, segment: RemoteSegment) -> bytes:
        name = self._name(partition, segment, AUXILIARY)
        pieces: list[bytes] = []
        size = 0
        while size < AUXILIARY_BYTES_MAX:
            piece = await self._store.read(name, size, AUXILIARY_STEP_BYTES)
            pieces.append(piece)
            size += len(piece)
            if len(piece) < AUXILIARY_STEP_BYTES:
                return b"".join(pieces)
        raise CorruptRemoteSegmentError(name, size, "the object is too large")

    async def _range(self, partition: Partition, wanted: ReadRange) -> Buffer:
        """Returns bytes of a ``.log``, through the cache."""
        segment = wanted.segment
        chunks = chunks_of(segment.segment_id, segment.size_bytes, wanted.position, wanted.size_bytes)
        contents: dict[ChunkKey, bytes] = {}
        while missing := [chunk for chunk in chunks if chunk.key not in contents]:
            cached = [(chunk.key, found) for chunk in missing if (found := self._chunks.get(chunk.key)) is not None]
            contents.update(cached)
            if cached:
                continue
            first = missing[0]
            if await self._joined(first.key):
                continue
            run = [first]
            for chunk in missing[1:]:
                if chunk.key in self._shared or chunk.key.number != run[-1].key.number + 1:
                    break
                run.append(chunk)
            contents.update(
                await self._owned(tuple(chunk.key for chunk in run), self._load_chunks(partition, segment, run))
            )
        return range_of([contents[chunk.key] for chunk in chunks], wanted.position, wanted.size_bytes)

    async def _load_chunks(
        self, partition: Partition, segment: RemoteSegment, run: list[Chunk]
    ) -> dict[ChunkKey, bytes]:
        """Reads consecutive chunks with one request."""
        name = self._name(partition, segment, LOG)
        position, count = run[0].position, sum(chunk.size_bytes for chunk in run)
        data = await self._store.read(name, position, count)
        if len(data) != count:
            raise CorruptRemoteSegmentError(name, position, f"the object holds {len(data)} of {count} bytes")
        loaded: dict[ChunkKey, bytes] = {}
        at = 0
        for chunk in run:
            loaded[chunk.key] = data[at : at + chunk.size_bytes] if len(run) > 1 else data
            self._chunks.put(chunk.key, loaded[chunk.key], chunk.size_bytes)
            at += chunk.size_bytes
        return loaded

    # --- shared requests -------------------------------------------------------------------------------------------

    async def _joined(self, key: ChunkKey | uuid.UUID) -> bool:
        """Waits for the request of another task for this piece, if there is one, and raises its error.

        The piece may be too large for the cache, or the task may have been cancelled: then the caller asks itself.
        """
        shared = self._shared.get(key)
        if shared is None:
            return False
        await shared.ended.wait()
        if shared.error is not None:
            raise shared.error
        return True

    async def _owned(self, keys: Iterable[ChunkKey | uuid.UUID], work: Awaitable[_Result]) -> _Result:
        """Loads pieces for this task and for those that join it."""
        shared = _Shared()
        keys = tuple(keys)
        for key in keys:
            self._shared[key] = shared
        try:
            return await work
        except Exception as error:
            shared.error = error
            raise
        finally:
            for key in keys:
                del self._shared[key]
            shared.ended.set()
