"""The fetch of one member of a share group: acquires records at once, or waits until there are some.

Records that are in the object store only are read as those of other fetches (``RemoteReads``). A fetch that has found
nothing else waits for them, and goes on when the first of its reads has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode
from moldau_broker.replication.purgatory import PurgatoryFullError
from moldau_broker.server.remote_reading.values import RemoteRange
from moldau_broker.server.replicas.delayed import WaitingFetch
from moldau_broker.server.share.led_partition import READ_BYTES_MAX, Acquisition, LedPartition, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from moldau.runtime.ports.environment import Clock
    from moldau_broker.server.remote_reading.reads import RemoteRead, RemoteReads
    from moldau_broker.server.replicas.partition import Partition, WatchKey
    from moldau_broker.server.replicas.replica_waits import ReplicaWaits
    from moldau_broker.server.share.core.sessions import PartitionKey
    from moldau_broker.server.share.core.values import AcquireMode
    from moldau_broker.server.share.settings import ShareGroupSettings
    from moldau_broker.server.share.share_partition_manager import SharePartitionManager

WAIT_MS_MAX = 300_000.0
"""Bound of a fetch's wait, even if it asks for more."""
ANSWER_BYTES_MAX = 16 << 20
"""Bytes of records in one answer, even if the request asks for more: all of them are read to find their batches."""
TURN_BYTES = 256 << 10
"""Bytes that are read before other tasks have their turn; one read takes ``READ_BYTES_MAX`` at most."""
READS_MAX = 16
"""Reads of one partition at a time: each passes a megabyte of records that are not wanted, such as aborted ones."""
WATCHED_MAX = 10_000
"""Bound of the partitions for whose records one fetch waits; those behind are found by the next fetch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareQuery:
    """The content of one ShareFetch."""

    group_id: str
    member: str
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    mode: AcquireMode


@dataclass(slots=True)
class Fetched:
    """The records that a fetch has found, by partition."""

    acquired: dict[PartitionKey, Acquisition] = field(default_factory=dict)
    errors: dict[PartitionKey, ErrorCode] = field(default_factory=dict)
    waiting: list[LedPartition] = field(default_factory=list)
    reads: list[RemoteRead] = field(default_factory=list)
    """Reads of remote records in progress."""
    has_more: bool = False
    """Whether all that was read of a partition is not wanted, and more follows."""

    @property
    def is_final(self) -> bool:
        """Whether the fetch need not wait."""
        return bool(self.acquired or self.errors) or not self.waiting


class ShareFetchWait(WaitingFetch):
    """A fetch that waits for records of any of its share-partitions."""

    __slots__ = ("_enough",)

    def __init__(self, enough: Callable[[Partition], bool]) -> None:
        super().__init__()
        self._enough = enough

    def ready(self, partition: Partition) -> bool:
        """Returns whether the change of ``partition`` ends the wait."""
        return self._enough(partition)


class _FirstRead:
    """Waits for the first of some reads to end."""

    __slots__ = ("_event", "_reads")

    def __init__(self, reads: Sequence[RemoteRead]) -> None:
        self._event = trio.Event()
        self._reads = reads

    def read_ended(self, read: RemoteRead) -> None:
        """See ``WaitsForReads``."""
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Returns whether one has ended in time."""
        if any(read.has_ended for read in self._reads):
            return True
        for read in self._reads:
            read.add_waiter(self)
        try:
            with trio.move_on_after(seconds):
                await self._event.wait()
        finally:
            for read in self._reads:
                read.remove_waiter(self)
        return self._event.is_set()


class ShareFetcher:
    """Fetches for members of share groups."""

    __slots__ = ("_clock", "_partitions", "_remote", "_waits")

    def __init__(
        self,
        clock: Clock,
        partitions: SharePartitionManager,
        waits: ReplicaWaits,
        remote: RemoteReads | None = None,
    ) -> None:
        """``remote`` reads from the object store; None without tiered storage."""
        self._clock = clock
        self._partitions = partitions
        self._waits = waits
        self._remote = remote

    async def fetch(
        self,
        query: ShareQuery,
        keys: Iterable[PartitionKey],
        lookup: Callable[[PartitionKey], Partition | ErrorCode],
        bytes_max: int,
        is_open: Callable[[], bool],
    ) -> Fetched:
        """Acquires records of the partitions, in order; waits for ``max_wait_ms`` while there are none.

        ``lookup`` returns a partition that this broker leads, or why it may not be read here. ``bytes_max`` bounds the
        limits of the request. ``is_open`` returns whether the session goes on: the end of a session releases what its
        member holds, and nothing may be acquired for it afterwards.
        """
        keys = tuple(keys)
        most = min(query.max_bytes, bytes_max, ANSWER_BYTES_MAX)
        query = replace(query, max_bytes=most, min_bytes=min(query.min_bytes, most))  # more would wait in vain
        settings = self._partitions.settings(query.group_id)
        until_ms = self._clock.monotonic_ms() + min(query.max_wait_ms, WAIT_MS_MAX)
        while True:
            is_last = self._clock.monotonic_ms() >= until_ms
            found = await self._collect(query, settings, keys, lookup, is_open, is_last=is_last)
            if found.has_more and not (found.acquired or found.errors or is_last):
                await trio.lowlevel.checkpoint()
                continue  # nothing wakes a fetch for records that are there already
            if found.reads and not (found.acquired or found.errors or is_last):
                if not await self._wait_for_reads(found.reads, until_ms):
                    return found  # the reads go on, and the next fetch finds what they have read
                continue
            if found.is_final or is_last or not await self._wait(query, settings, found.waiting, until_ms):
                return found
            unreadable = [led for led in found.waiting if led.failure is not ErrorCode.NONE]
            if unreadable:
                errors = {(led.key.topic_id, led.key.partition): led.failure for led in unreadable}
                return Fetched(errors=errors)

    async def _collect(
        self,
        query: ShareQuery,
        settings: ShareGroupSettings,
        keys: tuple[PartitionKey, ...],
        lookup: Callable[[PartitionKey], Partition | ErrorCode],
        is_open: Callable[[], bool],
        *,
        is_last: bool,
    ) -> Fetched:
        found = Fetched()
        if not is_open():
            return found
        opened: list[tuple[PartitionKey, LedPartition]] = []
        for key in keys:
            partition = lookup(key)
            if isinstance(partition, ErrorCode):
                found.errors[key] = partition
            else:
                opened.append((key, self._partitions.open(query.group_id, partition)))
        found.waiting = [led for _, led in opened]
        if not found.errors and not is_last and not self._has_enough(query, settings, found.waiting):
            return found
        records, size, turn_bytes = query.max_records, query.max_bytes, 0
        for key, led in opened:
            if records <= 0 or (size <= 0 and found.acquired):
                break
            for _ in range(READS_MAX):
                if turn_bytes >= TURN_BYTES:
                    turn_bytes = 0
                    await trio.lowlevel.checkpoint()
                    if not is_open():
                        return Fetched()
                wanted = _wanted(query, records, size, first=not found.acquired)
                offset = None if self._remote is None else led.remote_offset
                if offset is not None:
                    acquisition = self._acquire_remote(led, settings, wanted, offset, found)
                else:
                    acquisition = self._partitions.acquire(led, wanted)
                if isinstance(acquisition, Acquisition):
                    turn_bytes += acquisition.read_bytes
                    if not acquisition.ranges:
                        continue
                    found.acquired[key] = acquisition
                    records -= acquisition.count
                    size -= len(acquisition.records)
                elif acquisition is not None:
                    found.errors[key] = acquisition
                break
            else:
                found.has_more = True
        return found

    def _acquire_remote(
        self, led: LedPartition, settings: ShareGroupSettings, wanted: Wanted, offset: int, found: Fetched
    ) -> Acquisition | ErrorCode | None:
        """Acquires remote records that have been read; begins the read if they have not, and returns None."""
        assert self._remote is not None
        asked = RemoteRange(offset, READ_BYTES_MAX, led.upper_offset(settings), settings.reads_committed)
        read = self._remote.ask(led.partition, asked)
        if read is None:
            return None
        if not read.has_ended:
            found.reads.append(read)
            return None
        self._remote.release((read,))
        if read.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return None  # the log start offset has moved, which the next fetch takes over
        return self._partitions.acquire(led, wanted, read.records) if read.error is None else read.error

    async def _wait_for_reads(self, reads: Sequence[RemoteRead], until_ms: float) -> bool:
        """Waits for the first of some reads; returns whether it has ended in time."""
        assert self._remote is not None
        left_ms = min(until_ms - self._clock.monotonic_ms(), self._remote.max_wait_ms())
        return await _FirstRead(reads).wait(max(0.0, left_ms) / 1000)

    def _has_enough(self, query: ShareQuery, settings: ShareGroupSettings, leds: list[LedPartition]) -> bool:
        """Returns whether a fetch would find ``min_bytes``, or an error."""
        if query.min_bytes <= 1:
            return any(led.is_acquirable(settings) for led in leds)
        if any(led.error is not ErrorCode.NONE for led in leds):
            return True
        size = 0
        for led in leds:
            size += led.available_bytes(settings, query.min_bytes)
            if size >= query.min_bytes:
                return True
        return False

    async def _wait(
        self, query: ShareQuery, settings: ShareGroupSettings, leds: list[LedPartition], until_ms: float
    ) -> bool:
        """Waits for records or the deadline; returns False if the broker has no room for another waiting fetch."""
        leds = leds[:WATCHED_MAX]
        by_partition: dict[Partition, LedPartition] = {led.partition: led for led in leds}

        def enough(partition: Partition) -> bool:
            led = by_partition[partition]
            if not led.is_acquirable(settings):
                return False
            return query.min_bytes <= 1 or self._has_enough(query, settings, leds)

        operation = ShareFetchWait(enough)
        keys: list[WatchKey] = [key for led in leds for key in (led.watch, led.partition.committed)]
        try:
            delayed = self._waits.fetches.watch(operation, keys, until_ms)
        except PurgatoryFullError:
            return False
        try:
            await operation.wait_finished()
        finally:
            self._waits.fetches.abandon(delayed)
        return True


def _wanted(query: ShareQuery, records: int, size: int, *, first: bool) -> Wanted:
    """Returns what the next share-partition is asked for: at most the records and bytes that are left."""
    return Wanted(
        member=query.member,
        records_max=records,
        bytes_max=max(0, size),
        batch_size=query.batch_size,
        mode=query.mode,
        first=first,
    )
