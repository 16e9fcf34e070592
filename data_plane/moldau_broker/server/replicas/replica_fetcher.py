"""Replica fetchers: one task for each broker that leads partitions which this broker follows.

The task gets the next request from its core (``replication.follower``), sends it, and performs the steps of the answer
on the logs without a checkpoint in between: it appends, then fetches again at once. Records go unchanged from the
receive buffer to the log. An idle follower's request waits at the leader. When a broker leads none of the followed
partitions any more, its task ends and its connection is closed.

A fetch offset acknowledges all records below it to the leader. Partitions with a flush policy (``flush.messages``)
have a task of their own for each source, which fetches again only when all fetched records are settled
(``PartitionLog``). So slow syncs delay only partitions with a flush policy, and the records that the leader collects
meanwhile are fetched and synced together.

A log that begins behind remote segments is restored by a task of its own (``remote_start``): the object store may be
slow, and other partitions go on meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio

from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.hot import FetchPartitionView, FetchRequestView, read_fetch_answer, write_follower_fetch
from moldau.runtime.net.peer_refusals import PeerRefusals
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger
from moldau.values import Offset
from moldau_broker.log.errors import DescriptorsShortError, LogError, LogStorageError
from moldau_broker.log.values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from moldau_broker.replication.follower import (
    Followed,
    FollowerFetcher,
    FollowState,
    Step,
    StepKind,
)
from moldau_broker.replication.follower_progress import UNKNOWN_OFFSET
from moldau_broker.server.replicas.leader_offsets import leader_offsets
from moldau_broker.server.replicas.remote_start import lacks_producers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.protocol.hot import FetchAnswerView
    from moldau.runtime.ports.environment import Environment
    from moldau.values import BrokerId
    from moldau_broker.log.values import TopicPartition
    from moldau_broker.replication.follower import FollowRequest
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.remote_start import RemoteStarts
    from moldau_broker.server.replicas.replica_manager import ReplicaManager

FETCH_VERSION = 17
CONNECT_TIMEOUT_MS = 5_000.0
SUSPICION_MS = 2_000.0
"""How long a broker that dropped our connection is suspected; by then the controller has decided."""
EXTENSION_MS = 1_000.0
"""How much longer than its time a fetch may take, so that the deadline does not move with each fetch."""
THROTTLE_RECHECK_MS = 500.0
"""Longest pause of a throttled partition: after it a raised or lifted throttle holds."""
ROOM_RECHECK_MS = 1_000.0
"""Pause of a partition whose log directory is nearly full; housekeeping frees space once a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherSettings:
    """Configuration of the fetchers; names are Kafka's without ``replica.`` and with ``_`` for ``.``."""

    broker_id: BrokerId
    fetch_wait_max_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 1 << 20  # of one partition
    fetch_response_max_bytes: int = 10 << 20
    fetch_backoff_ms: float = 1000.0  # the longest back-off; the first is far shorter
    socket_timeout_ms: float = 30_000.0


class SourceKey(NamedTuple):
    """Key of one task: the source broker, and whether its partitions have a flush policy."""

    broker_id: BrokerId
    settles: bool


class ReplicaFetchers:
    """Starts and ends the fetching tasks when leadership moves."""

    def __init__(
        self,
        environment: Environment,
        settings: FetcherSettings,
        replicas: ReplicaManager,
        endpoint: Callable[[BrokerId], tuple[str, int] | None],
        broker_epoch: Callable[[], int],
        connect: Callable[[str, int], Awaitable[RpcConnection]] | None = None,
    ) -> None:
        """``endpoint`` returns host and port of a broker's inter-broker listener; None while it is not registered."""
        self._environment = environment
        self._settings = settings
        self._replicas = replicas
        self._endpoint = endpoint
        self._connect = connect
        self.remote_starts: RemoteStarts | None = None
        """Starts logs behind remote segments; None without tiered storage."""
        self._nursery: trio.Nursery | None = None
        self._sources: dict[SourceKey, _Source] = {}
        self._source_of: dict[TopicPartition, SourceKey] = {}
        self._broker_epoch = broker_epoch
        self._suspects: dict[int, float] = {}
        self._logger = EventLogger("moldau.broker.fetcher", node=settings.broker_id)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Holds the tasks until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    # --- sources ---------------------------------------------------------------------------------------------------

    def follow(self, partition: Partition) -> None:
        """Fetches ``partition`` from its present leader, if it has one."""
        self.unfollow(partition.key)
        state = partition.replica.state
        if state.leader < 0 or state.leader == self._settings.broker_id:
            return
        log = partition.log
        source_key = SourceKey(state.leader, log.config.bounds_unsynced)
        source = self._source(source_key)
        self._source_of[partition.key] = source_key
        followed = Followed(
            partition.key,
            partition.topic_id,
            leader_epoch=state.leader_epoch,
            fetch_offset=log.log_end_offset,
            last_fetched_epoch=log.latest_epoch,
            log_start_offset=log.log_start_offset,
        )
        source.core.add(followed)
        source.go_on(partition, followed)
        source.work.notify()

    def unfollow(self, key: TopicPartition) -> None:
        """Stops fetching a partition; the task of a source without partitions ends."""
        source_key = self._source_of.pop(key, None)
        if source_key is None:
            return
        source = self._sources[source_key]
        source.core.remove(key)
        if source.unsettled.pop(key, None) is not None:
            self._replicas.settled.notify()
        if not len(source.core):
            source.scope.cancel()
            del self._sources[source_key]

    def policy_changed(self, partition: Partition) -> None:
        """Moves a followed partition to the task that its flush policy demands."""
        source_key = self._source_of.get(partition.key)
        if source_key is not None and source_key.settles != partition.log.config.bounds_unsynced:
            self.follow(partition)

    def broker_changed(self, broker_id: BrokerId) -> None:
        """Retries a broker that registered again at once, at its new address."""
        for settles in (False, True):
            source = self._sources.get(SourceKey(broker_id, settles))
            if source is not None:
                source.core.reset_backoff()
                source.work.notify()

    def is_suspect(self, broker_id: BrokerId) -> bool:
        """Returns whether a broker seems to have crashed a moment ago, so that new leaders will be elected.

        True for ``SUSPICION_MS`` after it dropped or refused our connection, which a running broker does not do.
        """
        until_ms = self._suspects.get(broker_id)
        return until_ms is not None and self._environment.clock.monotonic_ms() < until_ms

    def suspect(self, broker_id: BrokerId) -> None:
        """Suspects a broker that dropped our connection; only the first drop in a row counts."""
        if broker_id not in self._suspects:
            self._suspects[broker_id] = self._environment.clock.monotonic_ms() + SUSPICION_MS

    def trust(self, broker_id: BrokerId) -> None:
        """Ends the suspicion of a broker that has answered."""
        self._suspects.pop(broker_id, None)

    def _restore(self, source: _Source, partition: Partition, step: Step) -> None:
        """Begins to restore a log from remote storage, if there is any."""
        starts = self.remote_starts
        if starts is None:
            self._logger.warning("remote-storage-disabled", partition=partition.key)
            source.core.delay(step.followed, self._environment.clock.monotonic_ms())
            return
        assert self._nursery is not None, "fetchers are not running"
        self._nursery.start_soon(source.restore, starts, partition, step)

    def _begin_rebuild(self, source: _Source, partition: Partition, followed: Followed) -> bool:
        """Begins to restore the producers of a log that lacks them; returns whether it must not be fetched before.

        A member of the ISR keeps its log as it is: the log may not become shorter.
        """
        starts = self.remote_starts
        if starts is None or self._settings.broker_id in partition.replica.state.isr or not lacks_producers(partition):
            return False
        assert self._nursery is not None, "fetchers are not running"
        source.core.restoring(followed)
        self._nursery.start_soon(source.rebuild, starts, partition, followed)
        return True

    def _source(self, key: SourceKey) -> _Source:
        source = self._sources.get(key)
        if source is None:
            assert self._nursery is not None, "fetchers are not running"
            source = _Source(self, key.broker_id)
            self._sources[key] = source
            self._nursery.start_soon(source.run)
        return source


class _Source:
    """The task of one source broker.

    Invariant: ``unsettled`` holds each partition whose fetch offset may be above its log's settled end offset.
    """

    def __init__(self, fetchers: ReplicaFetchers, broker_id: BrokerId) -> None:
        settings = fetchers._settings
        self._fetchers = fetchers
        self._settings = settings
        self._environment = fetchers._environment
        self._replicas = fetchers._replicas
        self._broker_id = broker_id
        self._logger = EventLogger("moldau.broker.fetcher", node=settings.broker_id, source=broker_id)
        self._refusals = PeerRefusals(self._environment.clock, self._logger, broker_id)
        self._client_id = f"broker-{settings.broker_id}-fetcher"
        self._connection: RpcConnection | None = None
        self.core = FollowerFetcher(
            backoff_ms=min(50.0, settings.fetch_backoff_ms), backoff_max_ms=settings.fetch_backoff_ms
        )
        self._throttled: dict[TopicPartition, tuple[Followed, Partition]] = {}
        self.work = Signal()
        self.scope = trio.CancelScope()
        self.unsettled: dict[TopicPartition, Partition] = {}
        self._extended_ms = 0.0

    def claims(self, partition: Partition) -> None:
        """Delays the next request, which acknowledges the whole log of ``partition``, until that is settled."""
        if not partition.log.is_settled:
            self.unsettled[partition.key] = partition

    def go_on(self, partition: Partition, followed: Followed) -> None:
        """Fetches from the log's end, as soon as the producers of the records below are known."""
        self.claims(partition)
        if not self._fetchers._begin_rebuild(self, partition, followed):
            log = partition.log
            self.core.truncated(followed, log.log_end_offset, log.latest_epoch, log.log_start_offset)

    def _all_settled(self) -> bool:
        for key in [key for key, partition in self.unsettled.items() if partition.log.is_settled]:
            del self.unsettled[key]
        return not self.unsettled

    async def run(self) -> None:
        with self.scope:
            try:
                while True:
                    # One scope serves many fetches, because entering one costs about as much as appending a batch.
                    with trio.CancelScope() as patience:
                        await self._fetch_until_failure(patience)
                    if patience.cancelled_caught:
                        self._failed("no answer in time")
            finally:
                self._disconnect()

    async def _fetch_until_failure(self, patience: trio.CancelScope) -> None:
        """Fetches again and again; ``patience`` has a deadline while a request is in flight."""
        clock = self._environment.clock
        while True:
            if not self._all_settled():
                # No deadline: replicas on a disk that does not answer leave the ISR, as they should.
                patience.deadline = math.inf
                await self._replicas.settled.wait_until(self._all_settled)
            now_ms = clock.monotonic_ms()
            if self._throttled:
                self._recheck_throttled(now_ms)
            request = self.core.next_request(now_ms)
            if request is None:
                patience.deadline = math.inf
                await self._wait_for_work()
                continue
            try:
                connection = self._connection
                if connection is None or not connection.is_open:
                    patience.deadline = math.inf
                    connection = await self._connected()
                self._extend(patience, now_ms)
                resets = await self._fetch(connection, request)
                if resets:
                    patience.deadline = math.inf
                    await self._reset(connection, resets)
            except (OSError, EOFError, trio.TooSlowError, KafkaError, DecodeError) as error:
                is_refused = self._refusals.failed(error, self._fetchers._endpoint(self._broker_id) or ("", -1))
                if isinstance(error, ConnectionError) and not is_refused:
                    self._fetchers.suspect(self._broker_id)
                self._failed(error)
                return

    def _extend(self, patience: trio.CancelScope, now_ms: float) -> None:
        """Gives the next request its time, and up to ``EXTENSION_MS`` more, so that few requests move the deadline."""
        if patience.deadline == math.inf or now_ms >= self._extended_ms + EXTENSION_MS:
            settings = self._settings
            self._extended_ms = now_ms
            allowed_ms = settings.fetch_wait_max_ms + settings.socket_timeout_ms + EXTENSION_MS
            patience.deadline = trio.current_time() + allowed_ms / 1000

    def _failed(self, error: object) -> None:
        self._logger.info("fetch-failed", error=error)
        self._disconnect()
        self.core.request_failed(self._environment.clock.monotonic_ms())

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def _wait_for_work(self) -> None:
        deadline_ms = self.core.next_deadline_ms()
        delay_ms = float("inf")
        if deadline_ms is not None:
            delay_ms = max(1.0, deadline_ms - self._environment.clock.monotonic_ms())
        with trio.move_on_after(delay_ms / 1000):
            await self.work.wait()

    async def _connected(self) -> RpcConnection:
        address = self._fetchers._endpoint(self._broker_id)
        if address is None:
            raise ConnectionError(f"broker {self._broker_id} is not registered")
        with trio.fail_after(CONNECT_TIMEOUT_MS / 1000):
            if self._fetchers._connect is not None:
                connection = await self._fetchers._connect(*address)
            else:
                connection = await RpcConnection.open(self._environment, *address, self._client_id, negotiate=False)
        self._connection = connection
        self._refusals.connected()
        return connection

    # --- one round -------------------------------------------------------------------------------------------------

    async def _fetch(self, connection: RpcConnection, request: FollowRequest) -> list[Step]:
        """Sends a request and performs the steps of its answer; returns the resets, which need more requests."""
        answer = await connection.submit_frame(partial(self._frame, request), _decode).wait_without_deadline()
        self._fetchers.trust(self._broker_id)
        now_ms = self._environment.clock.monotonic_ms()
        if answer.error_code:
            self._logger.info("fetch-refused", error=ErrorCode.of(answer.error_code).name)
        steps = self.core.answered(answer.error_code, answer.session_id, answer.partitions, request, now_ms)
        return [step for step in steps if not self._perform(step, now_ms)]

    def _frame(self, request: FollowRequest, correlation_id: int) -> bytes:
        settings = self._settings
        topics: dict[bytes, list[FetchPartitionView]] = {}
        for followed in request.partitions:
            topic_id, number = followed.wire_key
            topics.setdefault(topic_id, []).append(
                FetchPartitionView(
                    number,
                    followed.leader_epoch,
                    followed.fetch_offset,
                    followed.last_fetched_epoch,
                    followed.log_start_offset,
                    settings.fetch_max_bytes,
                )
            )
        forgotten: dict[bytes, list[int]] = {}
        for followed in request.forgotten:
            topic_id, number = followed.wire_key
            forgotten.setdefault(topic_id, []).append(number)
        view = FetchRequestView(
            settings.broker_id,
            self._fetchers._broker_epoch(),
            0 if request.has_more else settings.fetch_wait_max_ms,
            settings.fetch_min_bytes,
            settings.fetch_response_max_bytes,
            0,
            request.session_id,
            request.session_epoch,
            list(topics.items()),
            [(topic_id, tuple(numbers)) for topic_id, numbers in forgotten.items()],
            "",
            None,
        )
        return write_follower_fetch(view, FETCH_VERSION, correlation_id, self._client_id.encode())

    def _perform(self, step: Step, now_ms: float) -> bool:
        """Performs one step; returns False for a reset, which needs a request to the leader."""
        followed = step.followed
        partition = self._replicas.partitions.get(followed.key)
        if partition is None or partition.replica.is_leader or not self.core.is_current(followed):
            return True
        try:
            if step.kind is StepKind.ADVANCE:
                self._advance(partition, step)
            elif step.kind is StepKind.TRUNCATE:
                self._truncate(partition, step)
            elif step.kind is StepKind.REFUSED:
                error = ErrorCode.of(step.answer.error_code).name
                self._logger.info("partition-refused", partition=followed.key, error=error)
            elif step.kind is StepKind.RESTORE:
                self._fetchers._restore(self, partition, step)
            else:
                return False
        except DescriptorsShortError as error:
            self._replicas.directory_failed(error)
            self.core.delay(followed, now_ms)
        except LogStorageError as error:
            self._replicas.directory_failed(error)
        except LogError as error:
            self._logger.warning("append-refused", partition=followed.key, error=error)
            self.core.delay(followed, now_ms)
        return True

    def _advance(self, partition: Partition, step: Step) -> None:
        answer = step.answer
        log = partition.log
        is_short = len(answer.records) > 0 and self._replicas.is_short_of_room(partition, len(answer.records))
        if len(answer.records) and not is_short:
            info = log.append_as_follower(
                answer.records,
                now_ms=self._environment.clock.wall_ms(),
                leader_epoch=step.followed.leader_epoch,
            )
            partition.traffic.replication_bytes_in += info.size_bytes
        self._replicas.follower_advanced(partition, Offset(answer.high_watermark), Offset(answer.log_start_offset))
        self.core.appended(step.followed, log.log_end_offset, log.latest_epoch, log.log_start_offset)
        self.claims(partition)
        if is_short:  # the leader's log start, which the log has taken over, may free the disk meanwhile
            self.core.delay(step.followed, self._environment.clock.monotonic_ms(), ROOM_RECHECK_MS)
        elif partition.follower_throttled and len(answer.records):
            self._throttle(partition, step.followed, len(answer.records))

    def _throttle(self, partition: Partition, followed: Followed, count: int) -> None:
        """Delays a partition when the throttle's rate is used up; members of the ISR are never delayed."""
        if self._settings.broker_id in partition.replica.state.isr:
            return
        throttle = self._replicas.follower_throttle
        now_ms = self._environment.clock.monotonic_ms()
        throttle.spend(count, now_ms)
        wait_ms = throttle.wait_ms(now_ms)
        if wait_ms > 0:
            self.core.delay(followed, now_ms, min(wait_ms, THROTTLE_RECHECK_MS))
            self._throttled[followed.key] = (followed, partition)

    def _recheck_throttled(self, now_ms: float) -> None:
        """Delays throttled partitions further, unless their throttle was raised or lifted meanwhile."""
        for key, (followed, partition) in list(self._throttled.items()):
            if followed.state is FollowState.DELAYED and followed.delayed_until_ms > now_ms:
                continue
            wait_ms = self._replicas.follower_throttle.wait_ms(now_ms)
            if followed.state is FollowState.DELAYED and partition.follower_throttled and wait_ms > 0:
                self.core.delay(followed, now_ms, min(wait_ms, THROTTLE_RECHECK_MS))
            else:
                del self._throttled[key]

    def _truncate(self, partition: Partition, step: Step) -> None:
        """Truncates the log to the end of the last epoch that it may share with the leader (KIP-595)."""
        log = partition.log
        answer = step.answer
        local = log.end_offset_for_epoch(answer.diverging_epoch)
        target: int = answer.diverging_end_offset
        if local.end_offset >= 0:
            target = min(target, local.end_offset)
        target = min(target, log.log_end_offset)
        self._logger.info(
            "truncate", partition=partition.key, log_end=log.log_end_offset, to=target, epoch=answer.diverging_epoch
        )
        self._replicas.follower_truncated(partition, Offset(target))
        self.go_on(partition, step.followed)

    # --- resets ----------------------------------------------------------------------------------------------------

    async def _reset(self, connection: RpcConnection, steps: list[Step]) -> None:
        """Restarts logs at the leader's log start, or truncates them to its end: the leader lacks their offsets."""
        asked = partial(
            leader_offsets,
            connection,
            self._settings.broker_id,
            [step.followed for step in steps],
            timeout_ms=self._settings.socket_timeout_ms,
        )
        earliest, latest = await asked(timestamp=EARLIEST_TIMESTAMP), await asked(timestamp=LATEST_TIMESTAMP)
        now_ms = self._environment.clock.monotonic_ms()
        for step in steps:
            followed = step.followed
            partition = self._replicas.partitions.get(followed.key)
            if partition is None or partition.replica.is_leader or not self.core.is_current(followed):
                continue
            start = earliest.get(followed.key, UNKNOWN_OFFSET)
            end = latest.get(followed.key, UNKNOWN_OFFSET)
            if start < 0 or end < 0:
                self.core.delay(followed, now_ms)
                continue
            log = partition.log
            self._logger.warning(
                "reset", partition=followed.key, log_end=log.log_end_offset, leader_start=start, leader_end=end
            )
            before = log.log_start_offset, log.log_end_offset
            try:
                if end < log.log_start_offset:  # the leader has lost records: fetch all that it has
                    self._replicas.follower_restarted(partition, start)
                elif end < log.log_end_offset:
                    self._replicas.follower_truncated(partition, end)
                if start > log.log_end_offset:
                    self._replicas.follower_restarted(partition, start)
            except LogStorageError as error:
                self._replicas.directory_failed(error)
                if isinstance(error, DescriptorsShortError):
                    self.core.delay(followed, now_ms)
                continue
            self.go_on(partition, followed)
            if before == (log.log_start_offset, log.log_end_offset) and followed.state is FollowState.FETCHING:
                self.core.delay(followed, now_ms)  # an immediate retry would find the same offsets

    async def restore(self, starts: RemoteStarts, partition: Partition, step: Step) -> None:
        """Starts a log behind the remote segments that the leader's local log follows, or tries again later."""
        followed = step.followed

        def is_wanted() -> bool:
            """Returns whether the log still follows this leader; without it no checkpoint may pass before a change."""
            return self.core.is_current(followed) and not partition.replica.is_leader

        has_moved = False
        partition.traffic.remote_start_requests += 1
        try:
            connection = self._connection
            if connection is not None and connection.is_open:
                has_moved = await starts.start(connection, partition, step, is_wanted)
        except LogStorageError as error:
            self._replicas.directory_failed(error)
        except (OSError, EOFError, trio.TooSlowError, KafkaError, DecodeError) as error:
            partition.traffic.remote_start_errors += 1
            self._logger.warning("restore-failed", partition=followed.key, error=error)
        if not is_wanted():
            return
        if has_moved:
            self.go_on(partition, followed)
        else:
            self.core.delay(followed, self._environment.clock.monotonic_ms())
        self.work.notify()

    async def rebuild(self, starts: RemoteStarts, partition: Partition, followed: Followed) -> None:
        """Restores the producers of a log that was cut below its records on this disk; tries until it succeeds."""

        def is_wanted() -> bool:
            return self.core.is_current(followed) and not partition.replica.is_leader

        while is_wanted():
            partition.traffic.remote_start_requests += 1
            try:
                await starts.restore_producers(partition, is_wanted)
                break
            except LogStorageError as error:
                self._replicas.directory_failed(error)
            except (OSError, KafkaError) as error:
                partition.traffic.remote_start_errors += 1
                self._logger.warning("restore-failed", partition=followed.key, error=error)
            await trio.sleep(self._settings.fetch_backoff_ms / 1000)
        if is_wanted():
            self.go_on(partition, followed)
            self.work.notify()


def _decode(frame: memoryview) -> FetchAnswerView:
    return read_fetch_answer(frame, FETCH_VERSION)
