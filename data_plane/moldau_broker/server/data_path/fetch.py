"""Fetch: serves reads of consumers and followers, at once or after a wait.

A request becomes a ``FetchQuery`` (how to read) and a ``FetchContext`` (which partitions, by the rules of fetch
sessions). Reading plans byte ranges of log segments; nothing is copied here, and the connection sends the ranges. A
request that finds less than ``min_bytes`` and no error waits in the purgatory as a ``FetchOperation``, and is planned
again when it is woken.

A follower's fetch also reports its position: the leader notes it before it reads (unless the follower's log diverges),
which may move the high watermark and complete produces. In a session most partitions are at rest: only those that are
due are looked at (``FetchSession``), and the wait has one key. A fetch that repeats the last one of a follower with all
records only confirms it (``Replica.confirmed``).
"""

from __future__ import annotations

import errno
import posixpath
from typing import TYPE_CHECKING, NamedTuple, Protocol

from moldau.protocol.errors import ErrorCode
from moldau.protocol.hot import FetchPartitionResult, write_fetch_response
from moldau.runtime.net.serving.answers import FileRange, ResponsePart, WaitingAnswer
from moldau.runtime.telemetry.log import EventLogger
from moldau.values import BrokerId, Offset
from moldau_broker.log.errors import LogError, LogStorageError, OffsetOutOfRangeError, storage_failure
from moldau_broker.replication.fetch_session import FetchContext
from moldau_broker.replication.purgatory import PurgatoryFullError
from moldau_broker.replication.replica import Role
from moldau_broker.server.replicas.delayed import WaitingFetch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.protocol.hot import NodeEndpointResult
    from moldau.runtime.net.serving.answers import Answer
    from moldau.runtime.ports.environment import Clock
    from moldau_broker.replication.fetch_session import FetchPartition, FetchSession
    from moldau_broker.replication.purgatory import Delayed
    from moldau_broker.server.quotas.toll import Toll
    from moldau_broker.server.replicas.partition import Partition, WatchKey
    from moldau_broker.server.replicas.replica_manager import ReplicaManager
    from moldau_broker.server.replicas.replica_waits import SessionKey

_logger = EventLogger("moldau.broker.fetch")

_TOPIC_IDS = 13
_FOLLOWER_READS = 11
_LEADER_HINTS = 12
_ENDPOINT_HINTS = 16
READ_COMMITTED = 1
CONFIRMATIONS = 8
"""How often within ``replica.lag.time.max.ms`` a leader looks at all partitions of a follower that has no news."""
WAIT_MS_MAX = 300_000.0
"""Bound of a fetch's wait, even if it asks for more: the maximum that librdkafka lets its users set."""
PARTITION_BYTES = 256
"""Approximate memory of one partition of a waiting request, and again of each partition that it watches."""
ENTRY_BYTES = 8
"""Memory of one partition of a waiting request in a session, which holds the partition in any case."""


class FetchQuery(NamedTuple):
    """How one request reads."""

    version: int
    correlation_id: int
    replica_id: int  # of the follower; below 0 for a consumer
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    rack_id: str


class Hints(Protocol):
    """Answers questions about metadata that redirect a client (``cluster_metadata.cache.ListenerHints``)."""

    def leader_hint(self, topic: bytes, partition: int, *, by_id: bool) -> tuple[int, int] | None:
        """Returns leader id (-1: none) and leader epoch; None if the partition does not exist."""
        ...

    def endpoint_hint(self, broker_id: BrokerId) -> NodeEndpointResult | None:
        """Returns the endpoint on which a broker serves clients (KIP-951)."""
        ...

    def topic_exists(self, topic: bytes, *, by_id: bool) -> bool:
        """Whether the topic exists."""
        ...

    def preferred_read_replica(self, partition: Partition, rack_id: str, fetch_offset: int) -> int:
        """Returns the replica that a consumer of that rack should read from (KIP-392); -1 for this one."""
        ...


Result = FetchPartitionResult[ResponsePart]


class FetchPlan:
    """The answer that the logs allow at one moment."""

    __slots__ = ("results", "size_bytes", "urgent")

    def __init__(self) -> None:
        self.results: list[tuple[FetchPartition, Result]] = []
        self.size_bytes = 0
        self.urgent = False  # an error or other change must be answered without waiting


class FetchService:
    """Serves Fetch for one broker."""

    __slots__ = ("_clock", "_close_session", "_hints", "_max_bytes", "_replicas", "early_watermarks")

    def __init__(
        self,
        clock: Clock,
        replicas: ReplicaManager,
        hints: Hints,
        *,
        max_bytes: int,
        early_watermarks: bool,
        close_session: Callable[[int], None],
    ) -> None:
        """``early_watermarks``: followers get a new high watermark at once, not with the next records (KIP-392).

        ``close_session`` ends the fetch session of that id.
        """
        self._clock = clock
        self._close_session = close_session
        self._replicas = replicas
        self._hints = hints
        self._max_bytes = max_bytes
        self.early_watermarks = early_watermarks

    def start(
        self,
        query: FetchQuery,
        context: FetchContext,
        now_ms: float,
        denied: dict[int, ErrorCode] | None = None,
        toll: Toll | None = None,
    ) -> tuple[Answer, FetchOperation | None]:
        """Answers at once, or returns a waiting operation, which then is the answer.

        ``denied`` holds the errors of partitions that a consumer may not read, by number in the context. ``toll`` is
        what the request costs its client, if quotas limit it.
        """
        replicas = self._replicas
        partitions = context.partitions
        session = context.session
        errors = denied or {}
        has_all = False
        if query.replica_id >= 0:
            if context.incremental:
                assert session is not None
                partitions = self._unconfirmed(query, session, partitions, now_ms)
            errors, has_all = self._note_follower(query, partitions, now_ms)
        # A follower that has all records waits for more, as a rule, and then its answer is planned once.
        if not (has_all and context.incremental and self._must_wait(query)):
            plan = self.plan(query, partitions, errors, session if context.incremental else None)
            names_none = session is None and not context.partitions
            if plan.urgent or plan.size_bytes >= query.min_bytes or query.max_wait_ms <= 0 or names_none:
                return self.encode(query, context, plan, toll), None
            if query.replica_id >= 0 and self.early_watermarks and self._watermark_news(plan):
                return self.encode(query, context, plan), None
        operation = FetchOperation(self, query, context, toll)
        operation.held_bytes = len(context.partitions) * (ENTRY_BYTES if context.incremental else PARTITION_BYTES)
        keys = self._watch_keys(query, context, operation)
        try:
            wait_ms = min(query.max_wait_ms, WAIT_MS_MAX)
            operation.delayed = replicas.waits.fetches.watch(operation, keys, now_ms + wait_ms)
        except PurgatoryFullError:
            return operation.answer_now(), None
        operation.held_bytes += len(keys) * PARTITION_BYTES
        return operation, operation

    def _watch_keys(
        self, query: FetchQuery, context: FetchContext, operation: FetchOperation
    ) -> Sequence[WatchKey | SessionKey]:
        """Returns the keys on which an operation waits; fills in its partitions if it has no session."""
        session = context.session
        if session is not None:
            if query.replica_id < 0:
                return ((session, True),)
            return ((session, False), (session, True)) if self.early_watermarks else ((session, False),)
        keys: list[WatchKey | SessionKey] = []
        for wanted in context.partitions:
            partition = self.lookup(query, wanted)
            if partition is not None:
                operation.wanted[partition] = wanted
                if query.replica_id >= 0:
                    keys.append(partition.end)
                if query.replica_id < 0 or self.early_watermarks:
                    keys.append(partition.committed)
        return keys

    def stop_waiting(self, operation: FetchOperation) -> None:
        """Takes a fetch out of the purgatory, to be answered with the records that exist."""
        if operation.delayed is not None:
            self._replicas.waits.fetches.complete(operation.delayed)

    def holds_back(self, partition: Partition, query: FetchQuery) -> bool:
        """Whether a follower is throttled now."""
        return self._replicas.holds_back(partition, query.replica_id, self._clock.monotonic_ms())

    def lookup(self, query: FetchQuery, wanted: FetchPartition) -> Partition | None:
        """Returns the requested local replica; None if there is none."""
        replicas = self._replicas
        local = replicas.by_raw_id if query.version >= _TOPIC_IDS else replicas.by_raw_name
        return local.get((wanted.topic, wanted.partition))

    # --- followers -------------------------------------------------------------------------------------------------

    def _unconfirmed(
        self, query: FetchQuery, session: FetchSession, due: Sequence[FetchPartition], now_ms: float
    ) -> Sequence[FetchPartition]:
        """Returns the partitions of a session to look at; the follower and this leader agree on all others.

        Only those that are ``due`` can be among them. Often enough for ``replica.lag.time.max.ms``, all partitions are
        looked at all the same, which also notes that the follower is caught up with each.
        """
        if (
            now_ms - session.confirmed_ms >= self._replicas.lag_time_max_ms / CONFIRMATIONS
            or session.replica_epoch != query.replica_epoch
        ):
            session.confirmed_ms = now_ms
            session.replica_epoch = query.replica_epoch
            session.look_at_all()
            due = session.due_partitions()
        elif not due:
            return ()
        local = self._replicas.by_raw_id if query.version >= _TOPIC_IDS else self._replicas.by_raw_name
        follower, follower_epoch = BrokerId(query.replica_id), query.replica_epoch
        unconfirmed = []
        for wanted in due:
            partition = local.get((wanted.topic, wanted.partition))
            # This loop is all that an idle partition costs, so it makes few calls for each.
            if (
                partition is None
                or partition.error is not ErrorCode.NONE
                or wanted.sent_high_watermark
                != wanted.fetch_offset  # ``confirmed`` compares it with the high watermark
                or wanted.sent_log_start_offset != partition.log.storage.log_start_offset
                or wanted.agreed_epoch != wanted.current_leader_epoch
                or not partition.replica.confirmed(
                    follower,
                    follower_epoch,
                    wanted.fetch_offset,
                    wanted.log_start_offset,
                    wanted.current_leader_epoch,
                    now_ms,
                )
            ):
                unconfirmed.append(wanted)
            else:
                session.at_rest(wanted)
        return unconfirmed

    def changed(self, query: FetchQuery, session: FetchSession) -> list[FetchPartition]:
        """Returns the partitions for which a follower's session may get an answer."""
        local = self._replicas.by_raw_id if query.version >= _TOPIC_IDS else self._replicas.by_raw_name
        return [
            wanted
            for wanted in session.due_partitions()
            if (partition := local.get((wanted.topic, wanted.partition))) is None
            or wanted.agreed_epoch != wanted.current_leader_epoch
            or not _unchanged(partition, wanted)
        ]

    def _note_follower(
        self, query: FetchQuery, wanted_partitions: Sequence[FetchPartition], now_ms: float
    ) -> tuple[dict[int, ErrorCode], bool]:
        """Notes the follower's fetch offsets.

        Returns the errors by index in the request, and whether the follower has all records of all these partitions.
        """
        replicas = self._replicas
        errors: dict[int, ErrorCode] = {}
        has_all = True
        for index, wanted in enumerate(wanted_partitions):
            partition = self.lookup(query, wanted)
            if (
                partition is None
                or partition.check_access(wanted.current_leader_epoch, leader_only=True) is not ErrorCode.NONE
                or wanted.fetch_offset < partition.log.storage.log_start_offset
                or not self._agrees(partition, wanted)
            ):
                has_all = False
                continue  # ``plan`` reports it
            effects = partition.replica.followed(
                BrokerId(query.replica_id),
                query.replica_epoch,
                Offset(wanted.fetch_offset),
                Offset(wanted.log_start_offset),
                now_ms,
                replicas.eligible,
            )
            if effects.error is not ErrorCode.NONE:
                errors[index] = effects.error
                has_all = False
            else:
                wanted.agreed_epoch = partition.replica.state.leader_epoch
                has_all = has_all and wanted.fetch_offset == partition.replica.log_end_offset
                replicas.perform(partition, effects)
        replicas.waits.follower_noted()
        return errors, has_all

    def _must_wait(self, query: FetchQuery) -> bool:
        """Whether a follower is answered only with new records, or when its wait is over."""
        return query.min_bytes > 0 and query.max_wait_ms > 0 and not self.early_watermarks

    def _agrees(self, partition: Partition, wanted: FetchPartition) -> bool:
        """Whether the follower's log is a prefix of ours; only then its fetch offset counts as replicated."""
        try:
            return self.diverging(partition, wanted) is None
        except OffsetOutOfRangeError:
            return False

    def diverging(self, partition: Partition, wanted: FetchPartition) -> tuple[int, int] | None:
        """Returns epoch and end offset up to which two logs may agree, if they differ below the fetch offset (KIP-595).

        Raises:
            OffsetOutOfRangeError: this leader does not know the epoch.
        """
        last_epoch = wanted.last_fetched_epoch
        log = partition.log
        if last_epoch < 0:
            return None
        if last_epoch == log.epochs.latest_epoch and wanted.fetch_offset <= log.storage.log_end_offset:
            return None
        end = log.end_offset_for_epoch(last_epoch)
        if end.end_offset < 0 or end.leader_epoch < 0:
            raise OffsetOutOfRangeError(wanted.fetch_offset, log.log_start_offset, log.log_end_offset)
        if end.leader_epoch < last_epoch or end.end_offset < wanted.fetch_offset:
            return end.leader_epoch, end.end_offset
        return None

    def _watermark_news(self, plan: FetchPlan) -> bool:
        return any(wanted.sent_high_watermark < result.high_watermark for wanted, result in plan.results)

    # --- reading ---------------------------------------------------------------------------------------------------

    def plan(
        self,
        query: FetchQuery,
        wanted_partitions: Sequence[FetchPartition],
        errors: dict[int, ErrorCode],
        session: FetchSession | None,
    ) -> FetchPlan:
        """Finds the byte ranges of all partitions, within the limits of the request and of the broker (KIP-74).

        ``session`` is that of an incremental fetch: the answer leaves out partitions at rest, and they are skipped.
        """
        plan = FetchPlan()
        remaining = min(query.max_bytes, self._max_bytes)
        from_follower = query.replica_id >= 0
        resting = None if from_follower or query.rack_id else session
        skips = session is not None and from_follower
        local = self._replicas.by_raw_id if query.version >= _TOPIC_IDS else self._replicas.by_raw_name
        for index, wanted in enumerate(wanted_partitions):
            error = errors.get(index)
            if error is None:
                if (
                    resting is not None
                    and (partition := local.get((wanted.topic, wanted.partition))) is not None
                    and partition.error is ErrorCode.NONE
                    and (replica := partition.replica).role is Role.LEADER
                    and wanted.fetch_offset == wanted.sent_high_watermark == replica.high_watermark
                    and wanted.sent_log_start_offset == partition.log.storage.log_start_offset
                    and wanted.current_leader_epoch in (-1, replica.state.leader_epoch)
                    and wanted.last_fetched_epoch < 0
                ):
                    resting.at_rest(wanted)
                    continue
                if skips and self._nothing_new(query, wanted):
                    continue
                result = self._read(query, wanted, remaining, first=plan.size_bytes == 0)
            else:
                result = FetchPartitionResult(partition=wanted.partition, error_code=error)
            if result.error_code or result.diverging_epoch is not None or result.preferred_read_replica >= 0:
                plan.urgent = True
            plan.size_bytes += result.records_size
            if from_follower and result.records_size:
                self._count_throttled(query, wanted, result.records_size)
            remaining = max(0, remaining - result.records_size)
            plan.results.append((wanted, result))
        return plan

    def _count_sent(self, query: FetchQuery, wanted: FetchPartition, count: int) -> None:
        partition = self.lookup(query, wanted)
        if partition is None:
            return
        if query.replica_id >= 0:
            partition.traffic.replication_bytes_out += count
        else:
            partition.traffic.bytes_out += count

    def _nothing_new(self, query: FetchQuery, wanted: FetchPartition) -> bool:
        """Whether a follower has all records, the high watermark and the log start offset of a partition."""
        partition = self.lookup(query, wanted)
        return (
            partition is not None
            and _unchanged(partition, wanted)
            # If an idle partition's leader epoch has no record, the follower's last fetched epoch stays lower.
            and (wanted.last_fetched_epoch == partition.log.epochs.latest_epoch or self._agrees(partition, wanted))
        )

    def _count_throttled(self, query: FetchQuery, wanted: FetchPartition, count: int) -> None:
        partition = self.lookup(query, wanted)
        if partition is None or not partition.leader_throttled or query.replica_id in partition.replica.maximal_isr:
            return
        self._replicas.leader_throttle.spend(count, self._clock.monotonic_ms())

    def _read(self, query: FetchQuery, wanted: FetchPartition, remaining: int, *, first: bool) -> Result:
        partition = self.lookup(query, wanted)
        if partition is None:
            return self._absent(query, wanted)
        from_follower = query.replica_id >= 0
        replica = partition.replica
        if (
            replica.role is not Role.LEADER
            or partition.error is not ErrorCode.NONE
            or wanted.current_leader_epoch not in (-1, replica.state.leader_epoch)
        ):
            leader_only = from_follower or query.version < _FOLLOWER_READS
            error = partition.check_access(wanted.current_leader_epoch, leader_only=leader_only)
            if error is not ErrorCode.NONE:
                return self._refused(query, wanted, error)
        diverging = None
        if wanted.last_fetched_epoch >= 0:
            try:
                diverging = self.diverging(partition, wanted)
            except OffsetOutOfRangeError:
                return self._out_of_range(wanted, partition)
        log = partition.log
        high_watermark = replica.high_watermark
        stable = log.last_stable_offset
        if diverging is not None:
            return FetchPartitionResult(
                wanted.partition, 0, high_watermark, stable, log.log_start_offset, diverging_epoch=diverging
            )
        if query.rack_id and not from_follower and replica.role is Role.LEADER:
            preferred = self._hints.preferred_read_replica(partition, query.rack_id, wanted.fetch_offset)
            if preferred >= 0:
                return FetchPartitionResult(
                    wanted.partition,
                    0,
                    high_watermark,
                    stable,
                    log.log_start_offset,
                    preferred_read_replica=preferred,
                )
        if from_follower:
            upper = log.log_end_offset
            if self._replicas.holds_back(partition, query.replica_id, self._clock.monotonic_ms()):
                upper = min(upper, Offset(wanted.fetch_offset))
        elif query.isolation_level == READ_COMMITTED:
            upper = stable
        else:
            upper = high_watermark
        return self._read_log(query, wanted, partition, upper, stable, remaining, first=first)

    def _read_log(
        self,
        query: FetchQuery,
        wanted: FetchPartition,
        partition: Partition,
        upper: int,
        stable: int,
        remaining: int,
        *,
        first: bool,
    ) -> Result:
        log = partition.log
        high_watermark = partition.replica.high_watermark
        offset = wanted.fetch_offset
        if upper < offset <= log.log_end_offset and query.replica_id < 0 and not partition.replica.is_leader:
            return FetchPartitionResult(wanted.partition, ErrorCode.OFFSET_NOT_AVAILABLE)
        if offset == upper or (upper < offset <= log.log_end_offset) or (remaining <= 0 and not first):
            if offset < log.log_start_offset:
                return self._out_of_range(wanted, partition)
            aborted: list[tuple[int, int]] | None = [] if query.isolation_level == READ_COMMITTED else None
            return FetchPartitionResult(
                wanted.partition,
                0,
                high_watermark,
                stable,
                log.storage.log_start_offset,
                aborted_transactions=aborted,
            )
        try:
            read = log.storage.read(
                offset,
                max_bytes=min(wanted.max_bytes, remaining),
                upper_bound_offset=upper,
                min_one_batch=first,
            )
            aborted = None
            if query.isolation_level == READ_COMMITTED and query.replica_id < 0:
                aborted = [(entry.producer_id, entry.first_offset) for entry in log.aborted_transactions(read, upper)]
        except OffsetOutOfRangeError:
            return self._out_of_range(wanted, partition)
        except (LogStorageError, OSError) as error:
            if isinstance(error, OSError):
                error = storage_failure(log.parent_directory, f"reading {partition.key}", error)
            self._replicas.directory_failed(error)
            return FetchPartitionResult(wanted.partition, ErrorCode.KAFKA_STORAGE_ERROR)
        except LogError as error:  # damaged records; other partitions of the request are unaffected
            _logger.warning("log-unreadable", partition=partition.key, offset=offset, error=error)
            return FetchPartitionResult(wanted.partition, error.code)
        return FetchPartitionResult(
            wanted.partition,
            0,
            high_watermark,
            stable,
            log.storage.log_start_offset,
            read.size_bytes,
            tuple(FileRange(part.file, part.position, part.count, self._sending_failed) for part in read.ranges),
            aborted,
        )

    def _sending_failed(self, path: str, error: OSError) -> None:
        """Takes a log directory offline when a segment could not be read while it was sent."""
        if error.errno == errno.EBADF:
            return  # the log was closed meanwhile, with its directory or with the broker
        directory = posixpath.dirname(posixpath.dirname(path))
        self._replicas.directory_failed(storage_failure(directory, f"reading {path}", error))

    def _out_of_range(self, wanted: FetchPartition, partition: Partition) -> Result:
        return FetchPartitionResult(
            wanted.partition,
            ErrorCode.OFFSET_OUT_OF_RANGE,
            partition.replica.high_watermark,
            partition.log.last_stable_offset,
            partition.log.storage.log_start_offset,
        )

    def _absent(self, query: FetchQuery, wanted: FetchPartition) -> Result:
        by_id = query.version >= _TOPIC_IDS
        if self._replicas.is_offline(wanted.topic, wanted.partition, by_id=by_id):
            return FetchPartitionResult(wanted.partition, ErrorCode.KAFKA_STORAGE_ERROR)
        if self._hints.topic_exists(wanted.topic, by_id=by_id):
            if self._hints.leader_hint(wanted.topic, wanted.partition, by_id=by_id) is None:
                return FetchPartitionResult(wanted.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return self._refused(query, wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        error = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return FetchPartitionResult(wanted.partition, error)

    def _refused(self, query: FetchQuery, wanted: FetchPartition, error: ErrorCode) -> Result:
        hint = None
        if (
            error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
            and query.version >= _LEADER_HINTS
        ):
            by_id = query.version >= _TOPIC_IDS
            hint = self._hints.leader_hint(wanted.topic, wanted.partition, by_id=by_id)
        return FetchPartitionResult(wanted.partition, error, current_leader=hint)

    # --- answers ---------------------------------------------------------------------------------------------------

    def encode(
        self, query: FetchQuery, context: FetchContext, plan: FetchPlan, toll: Toll | None = None
    ) -> list[ResponsePart]:
        """Encodes the answer to a plan; an incremental session answer names only changed partitions.

        If the client has used up its quota, the answer is empty, and names the pause.
        """
        throttle_time_ms = 0 if toll is None else toll.due_for_fetch(plan.size_bytes)
        if throttle_time_ms:
            return self._throttled(query, context, throttle_time_ms)
        session = context.session
        topics: dict[bytes, list[Result]] = {}
        answered: list[tuple[bytes, int]] = []
        leaders: dict[BrokerId, None] = {}
        for wanted, result in plan.results:
            if session is not None:
                news = bool(
                    result.records_size
                    or result.error_code
                    or result.diverging_epoch is not None
                    or result.preferred_read_replica >= 0
                )
                worth = wanted.has_changes(result.high_watermark, result.log_start_offset, has_news=news)
                if context.incremental and not worth:
                    continue
                if result.records_size:
                    answered.append((wanted.topic, wanted.partition))
            if result.records_size:
                self._count_sent(query, wanted, result.records_size)
            if result.current_leader is not None:
                leaders[BrokerId(result.current_leader[0])] = None
            topics.setdefault(wanted.topic, []).append(result)
        if session is not None:
            session.rotate(answered)
        endpoints: tuple[NodeEndpointResult, ...] = ()
        if leaders and query.version >= _ENDPOINT_HINTS:
            endpoints = tuple(
                hint for hint in (self._hints.endpoint_hint(leader) for leader in leaders) if hint is not None
            )
        return list(
            write_fetch_response(
                query.version,
                query.correlation_id,
                list(topics.items()),
                session_id=context.session_id,
                node_endpoints=endpoints,
            )
        )

    def _throttled(self, query: FetchQuery, context: FetchContext, throttle_time_ms: int) -> list[ResponsePart]:
        """Encodes an answer without records; ends a session that would begin with it, because it names no partition."""
        session_id = context.session_id
        if session_id and not context.incremental:
            self._close_session(session_id)
            session_id = 0
        return list(
            write_fetch_response(
                query.version,
                query.correlation_id,
                [],
                throttle_time_ms=throttle_time_ms,
                session_id=session_id,
            )
        )

    def encode_error(self, version: int, correlation_id: int, error: ErrorCode) -> list[ResponsePart]:
        """Encodes the refusal of a whole request; versions before 7 have no field for the error."""
        return list(write_fetch_response(version, correlation_id, [], error_code=error))


def _unchanged(partition: Partition, wanted: FetchPartition) -> bool:
    """Whether a follower has all records, the high watermark and the log start offset of a partition that is led here.

    Its log may differ from this one below its fetch offset.
    """
    replica, log = partition.replica, partition.log
    return (
        wanted.fetch_offset == replica.log_end_offset
        and wanted.sent_high_watermark == replica.high_watermark
        and wanted.sent_log_start_offset == log.log_start_offset
        and wanted.current_leader_epoch == replica.state.leader_epoch
        and replica.role is Role.LEADER
        and partition.error is ErrorCode.NONE
    )


_NOTHING = FetchContext()


class FetchOperation(WaitingFetch, WaitingAnswer):
    """A fetch that waits for ``min_bytes``, for its deadline, or for a change of leadership."""

    __slots__ = ("_context", "_query", "_service", "_toll", "delayed", "held_bytes", "wanted")

    def __init__(self, service: FetchService, query: FetchQuery, context: FetchContext, toll: Toll | None) -> None:
        """The partitions of a fetch without a session are put into ``wanted``."""
        super().__init__()
        self._toll = toll
        self._service = service
        self._query = query
        self._context = context
        self.wanted: dict[Partition, FetchPartition] = {}
        self.delayed: Delayed[WatchKey | SessionKey, WaitingFetch] | None = None
        self.held_bytes = 0

    def ready(self, partition: Partition) -> bool:
        """Whether the change of ``partition`` ends the wait."""
        query = self._query
        wanted = self._wanted(partition)
        if wanted is None:
            return False  # another session of the same follower has it
        if query.replica_id >= 0:
            if self._service.holds_back(partition, query):
                return False  # its deadline ends the wait
            upper = partition.log.log_end_offset
            if self._service.early_watermarks and wanted.sent_high_watermark < partition.replica.high_watermark:
                return True
        elif query.isolation_level == READ_COMMITTED:
            upper = partition.log.last_stable_offset
        else:
            upper = partition.replica.high_watermark
        if upper <= wanted.fetch_offset:
            return False
        if query.min_bytes <= 1:
            return True
        plan = self._plan()
        return plan.urgent or plan.size_bytes >= query.min_bytes

    def _wanted(self, partition: Partition) -> FetchPartition | None:
        session = self._context.session
        if session is None:
            return self.wanted.get(partition)
        return session.partitions.get(partition.wire_key if session.uses_topic_ids else partition.name_key)

    def _plan(self) -> FetchPlan:
        context, query, service = self._context, self._query, self._service
        if not context.incremental:
            return service.plan(query, context.partitions, {}, None)
        session = context.session
        assert session is not None
        if query.replica_id >= 0:
            return service.plan(query, service.changed(query, session), {}, None)  # it has left out the idle ones
        return service.plan(query, session.due_partitions(), {}, session)

    def answer_early(self) -> list[ResponsePart] | None:
        """See ``EarlyAnswer``: ends the wait of a fetch, except in a session, which holds the memory in any case."""
        if self._context.incremental:
            return None
        self._service.stop_waiting(self)
        return self.answer_now()

    def end_wait(self) -> None:
        """See ``EarlyAnswer``."""
        self._service.stop_waiting(self)

    def answer_now(self) -> list[ResponsePart]:
        """Returns the answer that the logs allow now, once."""
        answer = self._service.encode(self._query, self._context, self._plan(), self._toll)
        # Frees the memory: the connection may keep the operation.
        self._context, self.wanted = _NOTHING, {}
        return answer
