"""Reads of remote records for fetches: started by a plan, shared by all requests for the same place, bounded.

A fetch is planned without a checkpoint. If a partition's records are in the object store only, the plan begins a
``RemoteRead`` and leaves the partition empty. The request waits for the end of its reads and is planned again, which
finds the records. A read goes on when the request that began it has been answered, and its result stays for the next
request: so a consumer gets on, however slow the store is.

Bounds: ``reads_max`` reads in progress, and ``held_bytes_max`` bytes, in which a read in progress counts with its
limit. Results that no request has taken make room, oldest first. If there is none, or the reads have used up the rate
of KIP-956, the partition is answered without records, and the client asks again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.tasks.supervision import TaskHost
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.replication.throttle import UNLIMITED, ReplicationThrottle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moldau.runtime.ports.environment import Clock
    from moldau_broker.server.remote_reading.values import RemoteRange, RemoteRecords
    from moldau_broker.server.replicas.partition import Partition

READ_BYTES_MAX: Final = 4 << 20
"""Limit of one read, even if the client asks for more; a batch that is larger is read whole."""
HELD_BYTES_MAX: Final = 64 << 20
"""Bytes of results and of reads in progress."""
KEPT_MS: Final = 10_000.0
"""How long a result waits for a request; the clients that made it necessary ask again within their time limits."""
SHARED_MS: Final = 1_000.0
"""How long records that a request has taken stay for others: consumers of several groups often read side by side."""
READ_TIMEOUT_MS: Final = 120_000.0
"""Bound of a read in all; each of its requests to the store has a bound of its own."""


class RecordsReader(Protocol):
    """Reads remote records (``reader.RemoteReader``)."""

    async def read(self, partition: Partition, wanted: RemoteRange) -> RemoteRecords:
        """See ``RemoteReader.read``."""
        ...


class WaitsForReads(Protocol):
    """A request that waits for its reads."""

    def read_ended(self, read: RemoteRead) -> None:
        """Reports the end of a read; called once for each read that it waits for."""
        ...


class ReadKey(NamedTuple):
    """Requests with the same key share a read.

    Records below a high watermark are the same in each request of one leader epoch.
    """

    partition: Partition
    leader_epoch: int
    offset: int
    reads_committed: bool


class RemoteRead:
    """One read, in progress or ended.

    Invariant: it has ended if and only if one of ``records`` and ``error`` is set.
    """

    __slots__ = ("_waiters", "ended_ms", "error", "held_bytes", "key", "records")

    def __init__(self, key: ReadKey, held_bytes: int) -> None:
        self.key = key
        self.held_bytes = held_bytes
        self.records: RemoteRecords | None = None
        self.error: ErrorCode | None = None
        self.ended_ms = float("inf")
        self._waiters: dict[WaitsForReads, None] = {}

    @property
    def has_ended(self) -> bool:
        """Whether it has records or an error."""
        return self.records is not None or self.error is not None

    def add_waiter(self, waiter: WaitsForReads) -> None:
        """Lets the end of the read wake a request, unless ``remove_waiter`` comes first."""
        assert not self.has_ended
        self._waiters[waiter] = None

    def remove_waiter(self, waiter: WaitsForReads) -> None:
        """Forgets a request, whose wait is over."""
        self._waiters.pop(waiter, None)

    def _end(self, now_ms: float) -> None:
        assert self.has_ended
        self.ended_ms = now_ms
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            waiter.read_ended(self)


class RemoteReadStatistics(NamedTuple):
    """Counts since the start of the broker, and what is held now."""

    begun: int
    failed: int
    refused: int
    """Fetches of a partition that found no room for a read, or came too early for the configured rate."""
    bytes_read: int
    in_progress: int
    held_bytes: int


class RemoteReads:
    """The reads of one broker."""

    def __init__(
        self,
        clock: Clock,
        reader: RecordsReader,
        *,
        reads_max: Callable[[], int],
        held_bytes_max: int = HELD_BYTES_MAX,
        max_wait_ms: Callable[[], float],
        rate: Callable[[], float] = lambda: UNLIMITED,
    ) -> None:
        """``reads_max`` returns how many reads may be in progress (``remote.log.reader.threads``).

        ``max_wait_ms`` returns how long a fetch waits for its reads at most (``remote.fetch.max.wait.ms``).

        ``rate`` returns ``remote.log.manager.fetch.max.bytes.per.second`` (KIP-956).
        """
        self._clock = clock
        self._reader = reader
        self._reads_max = reads_max
        self._held_bytes_max = held_bytes_max
        self.max_wait_ms = max_wait_ms
        self._rate = rate
        self._throttle = ReplicationThrottle(rate(), clock.monotonic_ms())
        self._tasks = TaskHost()
        self._reads: OrderedDict[ReadKey, RemoteRead] = OrderedDict()
        self._in_progress = 0
        self._held_bytes = 0
        self._begun = self._failed = self._refused = self._bytes_read = 0
        self._logger = EventLogger("moldau.broker.remote-reads")

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Holds the tasks of the reads until cancelled."""
        async with self._tasks.running():
            task_status.started()
            await trio.sleep_forever()

    def ask(self, partition: Partition, wanted: RemoteRange) -> RemoteRead | None:
        """Returns the read of a place, in progress or ended, and begins it if there is none; None: there is no room.

        The caller gives back what it has used with ``release``.
        """
        key = ReadKey(partition, partition.replica.state.leader_epoch, wanted.offset, wanted.reads_committed)
        now_ms = self._clock.monotonic_ms()
        found = self._reads.get(key)
        if found is not None and found.ended_ms + KEPT_MS > now_ms:
            return found
        self._drop_old(now_ms)
        wanted = wanted._replace(max_bytes=min(wanted.max_bytes, READ_BYTES_MAX))
        self._throttle.set_rate(self._rate(), now_ms)
        allowed = self._tasks.accepts and self._throttle.allows(now_ms)
        if not allowed or not self._make_room(wanted.max_bytes):
            self._refused += 1
            return None
        read = self._reads[key] = RemoteRead(key, wanted.max_bytes)
        self._held_bytes += read.held_bytes
        self._in_progress += 1
        self._begun += 1
        partition.traffic.remote_fetch_requests += 1
        self._tasks.start(self._run, read, wanted)
        return read

    def release(self, reads: Iterable[RemoteRead]) -> None:
        """Takes note that the outcome of ended reads has gone into an answer.

        Records stay a little longer, and are the first to make room; another outcome is forgotten.
        """
        ended_ms = self._clock.monotonic_ms() - KEPT_MS + SHARED_MS
        for read in reads:
            if read.records is not None and read.records.records:
                if self._reads.get(read.key) is read:
                    read.ended_ms = min(read.ended_ms, ended_ms)
                    self._reads.move_to_end(read.key, last=False)
            elif read.has_ended:
                self._drop(read)

    def statistics(self) -> RemoteReadStatistics:
        """Returns the counts."""
        return RemoteReadStatistics(
            self._begun, self._failed, self._refused, self._bytes_read, self._in_progress, self._held_bytes
        )

    def _make_room(self, size: int) -> bool:
        if self._in_progress >= self._reads_max():
            return False
        if self._held_bytes + size > self._held_bytes_max:
            for read in [read for read in self._reads.values() if read.has_ended]:
                self._drop(read)
                if self._held_bytes + size <= self._held_bytes_max:
                    break
        return self._held_bytes + size <= self._held_bytes_max or not self._in_progress

    def _drop_old(self, now_ms: float) -> None:
        for read in [read for read in self._reads.values() if read.ended_ms + KEPT_MS <= now_ms]:
            self._drop(read)

    def _drop(self, read: RemoteRead) -> None:
        if self._reads.get(read.key) is read:
            del self._reads[read.key]
            self._held_bytes -= read.held_bytes

    async def _run(self, read: RemoteRead, wanted: RemoteRange) -> None:
        """Runs a read to its end; an error of it is an outcome for the client."""
        partition = read.key.partition
        try:
            with trio.fail_after(READ_TIMEOUT_MS / 1000):
                read.records = await self._reader.read(partition, wanted)
            self._bytes_read += len(read.records.records)
            self._throttle.spend(len(read.records.records), self._clock.monotonic_ms())
            partition.traffic.remote_fetch_bytes += len(read.records.records)
        except (KafkaError, trio.TooSlowError) as error:
            self._failed += 1
            partition.traffic.remote_fetch_errors += 1
            read.error = error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
            self._logger.info("remote-read-failed", partition=partition.key, offset=wanted.offset, error=error)
        finally:
            self._in_progress -= 1
        size = 0 if read.records is None else len(read.records.records)
        self._held_bytes += size - read.held_bytes
        read.held_bytes = size
        self._reads.move_to_end(read.key)  # the newest result is the last to make room
        read._end(self._clock.monotonic_ms())
