"""Frozen values that pass between the log and its callers."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Sequence

    from moldau.protocol.errors import ErrorCode
    from moldau.runtime.ports.environment import File

NO_EPOCH = -1
"""Leader epoch of a log that has none yet."""

NO_TIMESTAMP = -1
"""Timestamp of a batch or log without one."""

NO_PRODUCER_ID = -1
NO_SEQUENCE = -1

EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6
"""The special timestamps of ListOffsets."""


class TopicPartition(NamedTuple):
    """Name of a topic and number of a partition of it; the key of all maps of logs."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class AppendOrigin(enum.Enum):
    """The origin of a leader's batch, which decides what is checked (Kafka's ``AppendOrigin``)."""

    CLIENT = "client"  # everything is checked, control batches are refused
    COORDINATOR = "coordinator"  # group and transaction coordinator: control batches allowed, sequences not checked


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Bytes ``position .. position + count - 1`` of an open file.

    The file stays readable as long as the slice is held, also after its segment was deleted or replaced: a deleted
    segment's descriptor closes when the last holder lets go of it.
    """

    file: File
    position: int
    count: int


class StagedBatch(NamedTuple):
    """The fields of an appended batch that the indexes need."""

    base_offset: int
    last_offset: int
    size: int
    max_timestamp: int


class PendingDeletion(NamedTuple):
    """Files that were renamed to ``.deleted`` and are removed after ``file.delete.delay.ms``."""

    paths: tuple[str, ...]


class SegmentParts(NamedTuple):
    """The contents of the files beside a closed segment's ``.log``, in the formats of the files.

    With them a broker that has no file of the segment can read it, and can begin a log at its end.
    """

    offset_index: bytes
    """``.index``: ``files.index.OffsetIndex``."""
    time_index: bytes
    """``.timeindex``: ``files.index.TimeIndex``."""
    transaction_index: bytes
    """``.txnindex``: ``files.transaction_index``; empty if no abort marker lies in the segment."""
    producer_snapshot: bytes
    """``.snapshot``: the state of the producers at the segment's end offset."""
    leader_epochs: bytes
    """``leader-epoch-checkpoint``: the leader epochs of the log up to the segment's last offset."""


class AppendInfo(NamedTuple):
    """The outcome of one append.

    ``first_offset`` and ``last_offset`` are inclusive; of a duplicate they are those of the original batch, and
    nothing was written. ``first_offset`` is -1 where nothing was appended by a follower (all batches were known).
    """

    first_offset: int
    last_offset: int
    last_leader_epoch: int = NO_EPOCH
    log_append_time_ms: int = NO_TIMESTAMP  # -1 unless message.timestamp.type is LogAppendTime
    log_start_offset: int = 0
    max_timestamp_ms: int = NO_TIMESTAMP
    size_bytes: int = 0  # bytes written to the log, now or by flush_staged
    record_count: int = 0
    duplicate: bool = False
    rolled: bool = False  # whether a new segment was begun for it

    @property
    def next_offset(self) -> int:
        """Offset after the last appended record: the high watermark that a produce with acks=all waits for."""
        return self.last_offset + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordError:
    """One refused record of a batch (KIP-467): its index in the batch and the reason."""

    batch_index: int
    message: str


class ReadResult(NamedTuple):
    """Bytes to send for one fetch of one partition.

    ``ranges`` holds whole bytes of consecutive batches; the last batch may be cut (KIP-74), the first is whole where
    ``min_one_batch`` asked for it. The first batch holds the fetch offset or follows it (compaction leaves holes).
    """

    fetch_offset: int
    ranges: tuple[FileSlice, ...]
    size_bytes: int
    segment_base_offset: int  # of the segment that was read; -1 if nothing was
    segment_position: int  # where in that segment; -1 if nothing was read
    first_batch_incomplete: bool = False  # the limit was smaller than the first batch and min_one_batch was false


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """An entry of Fetch's ``aborted_transactions``."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampOffset:
    """Answer of a lookup by time; offset, timestamp and epoch are -1 where nothing was found."""

    timestamp_ms: int
    offset: int
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndOffset:
    """Largest epoch not above the requested one, and its (exclusive) end offset; both -1 if unknown (KIP-101)."""

    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerDescription:
    """One row of DescribeProducers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_transaction_start_offset: int  # -1 outside a transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDirectoryInfo:
    """One partition of a log directory in DescribeLogDirs."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int  # future replica: behind the current one; current: log end behind its high watermark, 0 always
    is_future: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectoryInfo:
    """One log directory in DescribeLogDirs; an offline one has an error and no replicas."""

    path: str
    error: ErrorCode
    directory_id: uuid.UUID
    total_bytes: int  # -1 if unknown
    usable_bytes: int  # -1 if unknown
    replicas: Sequence[ReplicaDirectoryInfo]
    is_cordoned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Blocking work that shares no mutable state with the event loop, and the handlers of its outcome.

    The shell runs ``await disk.offload(work.run)`` and then, in the loop and without a checkpoint between, either
    ``work.complete()`` or, if ``run`` raised, ``work.failed(error)``. Tests call ``run_work(work)``.
    """

    name: str
    run: Callable[[], None]
    complete: Callable[[], None]
    failed: Callable[[BaseException], None]
    directory: str = ""  # the log directory it works on; the number of concurrent works is limited per directory
    is_flush: bool = False  # whether it does nothing but make records durable: shells measure these


def run_work(work: Work) -> None:
    """Runs the work in the calling thread; reports an error of ``run`` and raises it again."""
    try:
        work.run()
    except BaseException as error:
        work.failed(error)
        raise
    work.complete()
