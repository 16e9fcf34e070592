"""One share-partition on the leader of its partition: the core, the log, and the operations that wait for a write."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode
from moldau.records import iterate_batches
from moldau.runtime.net.buffers import byte_count
from moldau.runtime.net.serving.answers import FileRange, FileRecords
from moldau_broker.log.errors import LogError
from moldau_broker.server.remote_reading.values import RemoteRecords, first_batches
from moldau_broker.server.replicas.partition import WatchKey
from moldau_broker.server.share.core.checks import aborted_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.records import BatchHeader
    from moldau.runtime.net.serving.answers import ResponsePart
    from moldau_broker.log.values import ReadResult
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.share.core.share_partition import SharePartition
    from moldau_broker.server.share.core.values import AcquiredRange, AcquireMode, DeadLetters
    from moldau_broker.server.share.persister import ShareKey
    from moldau_broker.server.share.settings import ShareGroupSettings

READ_BYTES_MAX = 1 << 20
"""Bytes of one read, as ``max.partition.fetch.bytes`` of a consumer; the first batch is read whole in any case."""


class Pending:
    """An acknowledgement or a release that waits for its write; ends in bounded time, as the write does."""

    __slots__ = ("_event", "error")

    def __init__(self) -> None:
        self._event = trio.Event()
        self.error = ErrorCode.NONE

    def settle(self, error: ErrorCode) -> None:
        """Ends the wait."""
        self.error = error
        self._event.set()

    async def wait(self) -> ErrorCode:
        """Waits for the outcome; the writes of ``SharePartitionManager`` end in bounded time."""
        await self._event.wait()
        return self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The request of one member to a share-partition."""

    member: str
    records_max: int
    bytes_max: int
    batch_size: int
    mode: AcquireMode
    first: bool
    """Whether the answer holds no record yet, so that the first batch may exceed ``bytes_max`` (KIP-74)."""


@dataclass(frozen=True, slots=True)
class Acquisition:
    """The record batches that hold acquired records, and their offsets.

    The batches stay in their files until the answer is sent: a client that reads slowly costs no memory. Those that
    came from the object store are in memory.
    """

    records: FileRecords
    ranges: tuple[AcquiredRange, ...]
    """Empty if the group wants none of the records that were read, such as aborted ones: others may follow them."""
    count: int
    read_bytes: int
    """Bytes that were read to find them."""


@dataclass(slots=True, eq=False)
class LedPartition:
    """A share-partition whose state is being read (no core, no failure), is served (core), or was not read (failure).

    Invariant: ``pending`` has the operations whose tokens the core has not settled.
    """

    key: ShareKey
    partition: Partition
    leader_epoch: int
    core: SharePartition | None = None
    failure: ErrorCode = ErrorCode.NONE
    deadline_ms: float | None = None
    touched_ms: float = 0.0
    was_left: bool = False
    """Whether the group has had no members since the state was read, so that its offsets may have been altered."""
    pending: dict[int, Pending] = field(default_factory=dict)
    dead_letters: deque[tuple[DeadLetters, float]] = field(default_factory=deque)
    """Those that a task writes, in order, and since when they wait; the first of them is under way."""
    watch: WatchKey = field(init=False)
    """Fetches that find nothing wait for this: records released, or the state read."""

    def __post_init__(self) -> None:
        self.watch = WatchKey(self.partition)

    @property
    def error(self) -> ErrorCode:
        """Why the share-partition cannot be read; NONE while its state is being read."""
        if self.failure is not ErrorCode.NONE:
            return self.failure
        if self.core is not None and self.core.closed:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is left to do until a member comes: all is stored, and no dead letter is under way."""
        return self.core is not None and self.core.is_stored and not self.dead_letters

    def upper_offset(self, settings: ShareGroupSettings) -> int:
        """Returns the offset (exclusive) up to which the group may read."""
        if settings.reads_committed:
            return self.partition.log.last_stable_offset
        return self.partition.replica.high_watermark

    def is_acquirable(self, settings: ShareGroupSettings) -> bool:
        """Returns whether a fetch would find records, or an error."""
        if self.error is not ErrorCode.NONE:
            return True
        core = self.core
        return core is not None and core.can_acquire and core.next_fetch_offset < self.upper_offset(settings)

    @property
    def remote_offset(self) -> int | None:
        """The offset to read next if it is below the local log; None if a fetch reads the local log."""
        core, log = self.core, self.partition.log
        if core is None or self.error is not ErrorCode.NONE or not core.can_acquire:
            return None
        offset = core.next_fetch_offset
        return offset if log.log_start_offset <= offset < log.local_log_start_offset else None

    def available_bytes(self, settings: ShareGroupSettings, bytes_max: int) -> int:
        """Returns about how many bytes a fetch would find, at most ``bytes_max``."""
        if not self.is_acquirable(settings) or self.core is None or self.error is not ErrorCode.NONE:
            return 0
        offset = max(self.core.next_fetch_offset, self.partition.log.log_start_offset)
        try:
            read = self.partition.log.read(offset, max_bytes=bytes_max, upper_bound_offset=self.upper_offset(settings))
        except (LogError, OSError):
            return bytes_max  # the fetch itself finds the error, and answers it
        return read.size_bytes

    def acquire(
        self,
        settings: ShareGroupSettings,
        wanted: Wanted,
        now_ms: float,
        on_unreadable: Callable[[str, OSError], None] | None = None,
        remote: RemoteRecords | None = None,
    ) -> Acquisition | None:
        """Acquires records for a member with one read of the log; None if there are none.

        The caller has taken over the log start offset (``SharePartition.move_log_start``). ``on_unreadable`` takes
        path and error if the records cannot be read when the answer is sent. ``remote`` are the records at
        ``remote_offset``, which stand in the place of the read.

        Raises:
            LogError: the log is damaged, or its directory failed.
            OffsetOutOfRangeError: the log ends before the records that were delivered.
            CorruptRecordError: a batch is damaged.
            OSError: a file could not be read.
        """
        core = self.core
        assert core is not None
        offset = core.next_fetch_offset
        upper = self.upper_offset(settings)
        if not core.can_acquire or offset >= upper:
            return None
        read: ReadResult | RemoteRecords
        files: list[ResponsePart]
        if remote is not None and remote.gap_end is None:
            read, data = (
                remote,
                first_batches(remote.records, min(wanted.bytes_max, READ_BYTES_MAX), min_one_batch=wanted.first),
            )
            files = [data]
        else:
            log = self.partition.log
            read = log.read(
                offset if remote is None or remote.gap_end is None else remote.gap_end,
                max_bytes=min(wanted.bytes_max, READ_BYTES_MAX),
                upper_bound_offset=upper,
                min_one_batch=wanted.first,
            )
            data = b"".join(part.file.read(part.position, part.count) for part in read.ranges)
            files = [FileRange(part.file, part.position, part.count, on_unreadable) for part in read.ranges]
        batches = [(position, header) for position, header in iterate_batches(data) if header.base_offset < upper]
        if not batches:
            return None
        ranges = core.acquire(
            wanted.member,
            [(header.base_offset, header.next_offset) for _, header in batches],
            fetch_offset=offset,
            records_max=wanted.records_max,
            batch_size=wanted.batch_size,
            mode=wanted.mode,
            now_ms=now_ms,
            aborted=self._aborted(read, upper, batches) if settings.reads_committed else (),
        )
        if not ranges:
            return Acquisition(FileRecords(()), (), 0, len(data))
        count = sum(each.last - each.first + 1 for each in ranges)
        first, end = _extent(batches, ranges[0].first, ranges[-1].last)
        return Acquisition(FileRecords(_cut(files, first, end)), ranges, count, len(data))

    def _aborted(
        self, read: ReadResult | RemoteRecords, upper: int, batches: Sequence[tuple[int, BatchHeader]]
    ) -> Sequence[tuple[int, int]]:
        aborted = (
            read.aborted
            if isinstance(read, RemoteRecords)
            else [
                (each.producer_id, each.first_offset) for each in self.partition.log.aborted_transactions(read, upper)
            ]
        )
        if not aborted:
            return ()
        return aborted_ranges(
            (
                (each.base_offset, each.next_offset, each.producer_id, each.is_transactional, each.is_control)
                for _, each in batches
            ),
            aborted,
        )


def _extent(batches: Sequence[tuple[int, BatchHeader]], first: int, last: int) -> tuple[int, int]:
    """Returns where the batches that overlap the offsets ``first`` to ``last`` begin and end in what was read."""
    needed = [
        (position, position + header.size_bytes)
        for position, header in batches
        if header.next_offset > first and header.base_offset <= last
    ]
    return needed[0][0], needed[-1][1]


def _cut(files: Sequence[ResponsePart], first: int, end: int) -> list[ResponsePart]:
    """Returns the bytes from ``first`` to ``end`` of consecutive ranges."""
    kept: list[ResponsePart] = []
    at = 0
    for part in files:
        size = part.count if isinstance(part, FileRange) else byte_count(part)
        skipped, stop = max(0, first - at), min(size, end - at)
        if skipped < stop:
            if isinstance(part, FileRange):
                kept.append(FileRange(part.file, part.position + skipped, stop - skipped, part.on_error))
            else:
                kept.append(memoryview(part)[skipped:stop])
        at += size
    return kept
