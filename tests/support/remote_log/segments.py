"""A real local log with transactions and leader epochs, its closed segments as remote ones, and their answers.

The same batches may be cut into segments at other offsets, as the log of another broker cuts them.
"""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING, Any

from moldau.records import Compression
from moldau.records.decompression import LongStep
from moldau.values import LeaderEpoch
from moldau_broker.log.files.batches import scan_headers
from moldau_broker.log.files.checkpoint import encode_epochs, read_file
from moldau_broker.log.files.names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX
from moldau_broker.log.values import SegmentParts, TopicPartition
from moldau_broker.remote_log.core.chunk_cache import ByteBoundedCache, ChunkKey, chunks_of, range_of
from moldau_broker.remote_log.core.names import RemoteSegment
from moldau_broker.remote_log.core.requests import ReadParts, ReadRange
from support.log.lab import open_manager
from support.log.model import START_MS, VirtualMachine, make_batch

if TYPE_CHECKING:
    from moldau_broker.log.directories.manager import LogManager
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.remote_log.core.requests import Reader

CODECS = (Compression.NONE, Compression.NONE, Compression.GZIP, Compression.LZ4)
LEADER = TopicPartition("t", 0)


class Machine:
    """Logs on one virtual disk."""

    def __init__(self) -> None:
        self.disk_owner = VirtualMachine(1)
        self.manager: LogManager = open_manager(
            self.disk_owner, ("/d",), index_interval_bytes=250, retention_ms=-1, message_timestamp_after_max_ms=1 << 60
        )

    def log(self, name: str, **config: Any) -> PartitionLog:
        log = self.manager.get_or_create(
            TopicPartition(name, 0), topic_id=uuid.uuid5(uuid.NAMESPACE_DNS, name), now_ms=0
        )
        log.update_config(
            type(log.config)(
                index_interval_bytes=250, retention_ms=-1, message_timestamp_after_max_ms=1 << 60, **config
            )
        )
        return log


class Writer:
    """Appends random batches, transactions of three producers and new leader epochs to a log."""

    def __init__(self, log: PartitionLog, seed: int) -> None:
        self.log = log
        self.random = random.Random(seed)
        self.epoch = 1
        self.sequences: dict[int, int] = {}
        self.open: set[int] = set()

    def write(self, batches: int) -> None:
        for _ in range(batches):
            self._step()
        for producer in sorted(self.open):
            self._end(producer)

    def _step(self) -> None:
        draw = self.random.random()
        if draw < 0.05:
            self.epoch += self.random.randint(1, 3)
            self.log.begin_leader_epoch(LeaderEpoch(self.epoch))
        elif draw < 0.35:
            self._transact(self.random.choice([11, 12, 13]))
        elif draw < 0.55 and self.open:
            self._end(self.random.choice(sorted(self.open)))
        else:
            self._append()

    def _append(self, **batch: Any) -> int:
        count = self.random.randint(1, 6)
        rows = [
            (START_MS + self.random.randrange(1 << 40), b"k", self.random.randbytes(self.random.randint(0, 120)))
            for _ in range(count)
        ]
        data = make_batch(rows, codec=self.random.choice(CODECS), **batch)
        self.log.append_as_leader(memoryview(data), leader_epoch=LeaderEpoch(self.epoch), now_ms=START_MS)
        self.log.update_high_watermark(self.log.log_end_offset)
        return count

    def _transact(self, producer: int) -> None:
        sequence = self.sequences.get(producer, 0)
        self.open.add(producer)
        self.sequences[producer] = sequence + self._append(producer=(producer, 0, sequence), transactional=True)

    def _end(self, producer: int) -> None:
        self.log.append_end_transaction_marker(
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            commit=self.random.random() < 0.4,
            leader_epoch=LeaderEpoch(self.epoch),
            now_ms=START_MS,
        )
        self.log.update_high_watermark(self.log.log_end_offset)
        self.open.discard(producer)


def replicate(source: PartitionLog, target: PartitionLog) -> None:
    """Appends all batches of a log to another one, which cuts segments by its own settings."""
    for segment in source.segments:
        for position, header in scan_headers(segment.file, 0, segment.size):
            target.append_as_follower(memoryview(segment.file.read(position, header.size_bytes)), now_ms=START_MS)
    target.update_high_watermark(target.log_end_offset)


class Store:
    """The objects of remote segments in memory, and a caller of readers that answers their requests.

    A range is answered out of chunks of a small cache, and its buffer is overwritten when the reader asks for the next
    one: readers borrow it only until then.
    """

    def __init__(self, chunk_bytes: int = 300, cache_bytes: int = 1000) -> None:
        self.logs: dict[uuid.UUID, bytes] = {}
        self.parts: dict[uuid.UUID, SegmentParts] = {}
        self.chunk_bytes = chunk_bytes
        self.cache: ByteBoundedCache[ChunkKey, bytes] = ByteBoundedCache(cache_bytes)
        self.asked: list[ReadRange | ReadParts] = []

    def add(self, log: PartitionLog, index: int, segment_id: int) -> RemoteSegment:
        """Copies a closed segment of a log."""
        local, end = log.segments[index], log.segments[index + 1].base_offset
        disk = log.storage.disk

        def content(suffix: str) -> bytes:
            path = local.path(suffix)
            return read_file(disk, path) if disk.exists(path) else b""

        epochs = [entry for entry in log.epochs.entries if entry.start_offset < end]
        parts = SegmentParts(
            content(INDEX_SUFFIX),
            content(TIME_INDEX_SUFFIX),
            content(TRANSACTION_INDEX_SUFFIX),
            b"",
            encode_epochs(epochs),
        )
        segment = RemoteSegment(
            base_offset=local.base_offset,
            last_offset=end - 1,
            last_epoch=log.epochs.epoch_for_offset(end - 1),
            max_timestamp_ms=local.max_entry().timestamp_ms,
            has_aborted=bool(parts.transaction_index),
            segment_id=uuid.UUID(int=segment_id),
            size_bytes=local.size,
        )
        self.logs[segment.segment_id] = content(LOG_SUFFIX)
        self.parts[segment.segment_id] = parts
        return segment

    def run(self, reader: Reader[Any]) -> Any:
        """Answers all requests of a reader; returns its result."""
        self.asked = []
        answer: Any = None
        lent = bytearray()
        while True:
            try:
                request = reader.send(answer)
            except StopIteration as end:
                return end.value
            answer = None
            if isinstance(request, ReadRange):
                lent[:] = b"\xff" * len(lent)
                self.asked.append(request)
                lent = bytearray(self._range(request))
                answer = memoryview(lent)
            elif isinstance(request, ReadParts):
                self.asked.append(request)
                answer = self.parts[request.segment.segment_id]
            elif isinstance(request, LongStep):
                request.run()

    def _range(self, request: ReadRange) -> bytes | memoryview:
        segment, position, count = request
        found = []
        for chunk in chunks_of(segment.segment_id, segment.size_bytes, position, count, self.chunk_bytes):
            data = self.cache.get(chunk.key)
            if data is None:
                data = self.logs[segment.segment_id][chunk.position : chunk.position + chunk.size_bytes]
                self.cache.put(chunk.key, data, len(data))
            found.append(data)
        return range_of(found, position, count, self.chunk_bytes)

    @property
    def bytes_asked(self) -> int:
        """Bytes of the ranges that the last reader asked for."""
        return sum(request.size_bytes for request in self.asked if isinstance(request, ReadRange))
