"""Fetch: serves reads of consumers and followers, at once or after a wait.

A request becomes a ``FetchQuery`` (how to read) and a ``FetchContext`` (which partitions, by the rules of fetch
sessions). ``PartitionReader`` plans what each partition gives, and ``FetchService`` puts the plan and the answer
together. A request that finds less than ``min_bytes`` and no error waits in the purgatory as a ``FetchOperation``, and
is planned again when it is woken.

A follower's fetch also reports its position: the leader notes it before it reads (``FollowerPositions``), which may
move the high watermark and complete produces. In a session most partitions are at rest: only those that are due are
looked at (``FetchSession``), and the wait has one key.

Records that are in the object store only are read beside the plan, which leaves their partition empty
(``RemoteReads``). The request then waits until these reads have ended, and is planned again. It does not wait if the
other partitions have enough for an answer, nor longer than ``remote.fetch.max.wait.ms``: the next request finds what
was read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.hot import FetchPartitionResult, write_fetch_response
from moldau.runtime.net.serving.answers import WaitingAnswer
from moldau.values import BrokerId
from moldau_broker.replication.fetch_session import FetchContext
from moldau_broker.replication.purgatory import PurgatoryFullError
from moldau_broker.replication.replica import Role
from moldau_broker.server.data_path.fetch_query import READ_COMMITTED, TOPIC_IDS, local_replica
from moldau_broker.server.data_path.follower_positions import FollowerPositions
from moldau_broker.server.data_path.partition_reader import PartitionReader
from moldau_broker.server.replicas.delayed import WaitingFetch

if TYPE_CHECKING:
    from moldau.protocol.hot import NodeEndpointResult
    from moldau.runtime.net.serving.answers import Answer, ResponsePart
    from moldau.runtime.ports.environment import Clock
    from moldau_broker.replication.fetch_session import FetchPartition, FetchSession
    from moldau_broker.server.data_path.fetch_query import FetchQuery
    from moldau_broker.server.data_path.hints import Hints
    from moldau_broker.server.data_path.partition_reader import Result
    from moldau_broker.server.quotas.toll import Toll
    from moldau_broker.server.remote_reading.reads import RemoteRead, RemoteReads
    from moldau_broker.server.replicas.partition import Partition, WatchKey
    from moldau_broker.server.replicas.replica_manager import ReplicaManager
    from moldau_broker.server.replicas.replica_waits import SessionKey

_ENDPOINT_HINTS = 16
_STORAGE_ERRORS = 6
"""The first version whose clients know KAFKA_STORAGE_ERROR."""
WAIT_MS_MAX = 300_000.0
"""Bound of a fetch's wait, even if it asks for more: the maximum that librdkafka lets its users set."""
PARTITION_BYTES = 256
"""Approximate memory of one partition of a waiting request, and again of each partition that it watches."""
ENTRY_BYTES = 8
"""Memory of one partition of a waiting request in a session, which holds the partition in any case."""


Refusals = Callable[[Sequence["FetchPartition"]], dict[int, ErrorCode]]
"""Returns the errors of those partitions that a client may not read now, by their numbers."""


_NO_ERROR, _LEADER = ErrorCode.NONE, Role.LEADER  # members of enumerations cost ten times a global name


class FetchPlan:
    """The answer that the logs allow at one moment."""

    __slots__ = ("reads", "results", "size_bytes", "urgent")

    def __init__(self) -> None:
        self.results: list[tuple[FetchPartition, Result]] = []
        self.size_bytes = 0
        self.urgent = False  # an error or other change must be answered without waiting
        self.reads: Sequence[RemoteRead] = ()  # reads of remote records: in progress, or ended and part of the answer

    def unread(self) -> list[RemoteRead]:
        """Returns the reads of remote records that the plan lacks."""
        return [read for read in self.reads if not read.has_ended]


class FetchService:
    """Serves Fetch for one broker."""

    __slots__ = (
        "_clock",
        "_close_session",
        "_hints",
        "_reader",
        "_remote",
        "_replicas",
        "early_watermarks",
        "followers",
        "max_bytes",
    )

    def __init__(
        self,
        clock: Clock,
        replicas: ReplicaManager,
        hints: Hints,
        *,
        max_bytes: int,
        early_watermarks: bool,
        close_session: Callable[[int], None],
        remote: RemoteReads | None = None,
    ) -> None:
        """``early_watermarks``: followers get a new high watermark at once, not with the next records (KIP-392).

        ``close_session`` ends the fetch session of that id. ``remote`` reads from the object store; None without
        tiered storage.
        """
        self._clock = clock
        self._close_session = close_session
        self._replicas = replicas
        self._hints = hints
        self.followers = FollowerPositions(replicas)
        self._remote = remote
        self._reader = PartitionReader(clock, replicas, hints, self.followers, remote)
        self.max_bytes = max_bytes
        """``fetch.max.bytes``, the bound of each answer."""
        self.early_watermarks = early_watermarks

    def start(
        self,
        query: FetchQuery,
        context: FetchContext,
        now_ms: float,
        refusals: Refusals | None = None,
        toll: Toll | None = None,
    ) -> tuple[Answer, FetchOperation | None]:
        """Answers at once, or returns a waiting operation, which then is the answer.

        ``refusals`` returns what a consumer may not read now; None if it may read everything. ``toll`` is what the
        request costs its client, if quotas limit it.
        """
        replicas = self._replicas
        partitions = context.partitions
        session = context.session
        errors = {} if refusals is None else refusals(partitions)
        has_all = False
        if query.replica_id >= 0:
            if context.incremental:
                assert session is not None
                partitions = self.followers.unconfirmed(query, session, partitions, now_ms)
            errors, has_all = self.followers.note(query, partitions, now_ms)
        unread: Sequence[RemoteRead] = ()
        # A follower that has all records waits for more, as a rule, and then its answer is planned once.
        if not (has_all and context.incremental and self._must_wait(query)):
            plan = self.plan(query, partitions, errors, session if context.incremental else None)
            names_none = session is None and not context.partitions
            if plan.urgent or plan.size_bytes >= query.min_bytes or query.max_wait_ms <= 0 or names_none:
                return self.encode(query, context, plan, toll), None
            if query.replica_id >= 0 and self.early_watermarks and self._watermark_news(plan):
                return self.encode(query, context, plan), None
            if plan.reads:
                unread = plan.unread()
        operation = FetchOperation(self, query, context, refusals, toll)
        operation.held_bytes = len(context.partitions) * (ENTRY_BYTES if context.incremental else PARTITION_BYTES)
        keys = self._watch_keys(query, context, operation)
        try:
            wait_ms = min(query.max_wait_ms, WAIT_MS_MAX)
            if unread:
                assert self._remote is not None
                wait_ms = min(wait_ms, self._remote.max_wait_ms())
                operation.wait_for(unread)
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
            partition = local_replica(self._replicas, query, wanted)
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
        """Returns whether a follower is throttled now."""
        return self._replicas.holds_back(partition, query.replica_id, self._clock.monotonic_ms())

    def _must_wait(self, query: FetchQuery) -> bool:
        """Returns whether a follower is answered only with new records, or when its wait is over."""
        return query.min_bytes > 0 and query.max_wait_ms > 0 and not self.early_watermarks

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
        """Finds the byte ranges of all partitions, within the limits of the query (KIP-74).

        ``session`` is that of an incremental fetch: the answer leaves out partitions at rest, and they are skipped.
        """
        plan = FetchPlan()
        remaining = query.max_bytes
        from_follower = query.replica_id >= 0
        resting = None if from_follower or query.rack_id else session
        skips = session is not None and from_follower
        local = self._replicas.by_raw_id if query.version >= TOPIC_IDS else self._replicas.by_raw_name
        for index, wanted in enumerate(wanted_partitions):
            error = errors.get(index)
            if error is None:
                if (
                    resting is not None
                    and (partition := local.get((wanted.topic, wanted.partition))) is not None
                    and partition.error is _NO_ERROR
                    and (replica := partition.replica).role is _LEADER
                    and wanted.fetch_offset == wanted.sent_high_watermark == replica.high_watermark
                    and wanted.sent_log_start_offset == partition.log.storage.log_start_offset
                    and wanted.current_leader_epoch in (-1, replica.state.leader_epoch)
                    and wanted.last_fetched_epoch < 0
                ):
                    resting.at_rest(wanted)
                    continue
                if skips and self.followers.has_nothing_new(query, wanted):
                    continue
                result = self._reader.read(query, wanted, remaining, first=plan.size_bytes == 0)
            else:
                result = FetchPartitionResult(partition=wanted.partition, error_code=error)
            if result.error_code or result.diverging_epoch is not None or result.preferred_read_replica >= 0:
                plan.urgent = True
                if result.error_code == ErrorCode.KAFKA_STORAGE_ERROR and query.version < _STORAGE_ERRORS:
                    result = result._replace(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
            plan.size_bytes += result.records_size
            remaining = max(0, remaining - result.records_size)
            plan.results.append((wanted, result))
        if self._remote is not None:
            plan.reads, self._reader.reads = self._reader.reads, []
        return plan

    def _count_sent(self, query: FetchQuery, wanted: FetchPartition, count: int) -> None:
        partition = local_replica(self._replicas, query, wanted)
        if partition is None:
            return
        if query.replica_id >= 0:
            partition.traffic.replication_bytes_out += count
            if partition.leader_throttled and query.replica_id not in partition.replica.maximal_isr:
                self._replicas.leader_throttle.spend(count, self._clock.monotonic_ms())
        else:
            partition.traffic.bytes_out += count

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
        if plan.reads:
            assert self._remote is not None
            self._remote.release(plan.reads)
        session = context.session
        topics: dict[bytes, list[Result]] = {}
        answered: list[tuple[bytes, int]] = []
        leaders: dict[BrokerId, None] = {}
        for wanted, result in plan.results:
            if session is not None:
                refused = bool(result.error_code) or result.diverging_epoch is not None
                worth = wanted.has_changes(
                    result.high_watermark,
                    result.log_start_offset,
                    has_news=refused or result.records_size > 0 or result.preferred_read_replica >= 0,
                    is_refused=refused,
                )
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


_NOTHING = FetchContext()


class FetchOperation(WaitingFetch, WaitingAnswer):
    """A fetch that waits for ``min_bytes``, for its deadline, or for a change of leadership.

    One that lacks remote records waits for the end of their reads too.

    It asks for the client's rights again when it ends: they may have changed, and a later request of the session may
    have named partitions that the client may not read.
    """

    __slots__ = ("_context", "_query", "_refusals", "_service", "_toll", "_unread", "held_bytes", "wanted")

    def __init__(
        self,
        service: FetchService,
        query: FetchQuery,
        context: FetchContext,
        refusals: Refusals | None,
        toll: Toll | None,
    ) -> None:
        """Collects the partitions of a fetch without a session in ``wanted``."""
        super().__init__()
        self._refusals = refusals
        self._toll = toll
        self._service = service
        self._query = query
        self._context = context
        self.wanted: dict[Partition, FetchPartition] = {}
        self.held_bytes = 0
        self._unread: dict[RemoteRead, None] = {}

    def wait_for(self, reads: Sequence[RemoteRead]) -> None:
        """Waits until all these reads have ended, or until the deadline."""
        self._unread = dict.fromkeys(reads)
        for read in reads:
            read.add_waiter(self)

    def read_ended(self, read: RemoteRead) -> None:
        """See ``WaitsForReads``. Reads that found nothing below the bound of the client do not end the wait."""
        self._unread.pop(read, None)
        if self._unread or self.delayed is None:
            return
        plan = self._plan()
        if plan.size_bytes or plan.urgent:
            self._service.stop_waiting(self)

    def ready(self, partition: Partition) -> bool:
        """Returns whether the change of ``partition`` ends the wait."""
        query = self._query
        wanted = self._wanted(partition)
        if wanted is None:
            return False  # another session of the same follower has it
        if self._unread and wanted.fetch_offset < partition.log.local_log_start_offset:
            return False  # the end of its read ends the wait
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
            return service.plan(query, context.partitions, self._refused(context.partitions), None)
        session = context.session
        assert session is not None
        if query.replica_id >= 0:
            return service.plan(
                query, service.followers.changed(query, session), {}, None
            )  # it has left out the idle ones
        due = session.due_partitions()
        return service.plan(query, due, self._refused(due), session)

    def _refused(self, partitions: Sequence[FetchPartition]) -> dict[int, ErrorCode]:
        return {} if self._refusals is None else self._refusals(partitions)

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
        if self._unread:
            self.abandoned()
        # Frees the memory: the connection may keep the operation.
        self._context, self.wanted, self._refusals = _NOTHING, {}, None
        return answer

    def abandoned(self) -> None:
        """Leaves the reads in progress, which would keep the operation until the store answers."""
        for read in self._unread:
            read.remove_waiter(self)
        self._unread = {}
