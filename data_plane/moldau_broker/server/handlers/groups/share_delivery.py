"""ShareFetch and ShareAcknowledge: delivery of records to members of share groups (KIP-932)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

import trio

from moldau.protocol.access import AclOperation, AclResource
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import share_acknowledge as acknowledging
from moldau.protocol.messages import share_fetch as fetching
from moldau.protocol.refusals import refusal_of
from moldau.values import BrokerId, LeaderEpoch
from moldau_broker.coordinator.share.core.state import GROUP_ID_BYTES_MAX, MEMBER_ID_CHARACTERS_MAX
from moldau_broker.server.cluster_metadata.cache import ListenerHints
from moldau_broker.server.share.core.checks import acknowledgement_problem
from moldau_broker.server.share.core.sessions import FINAL_EPOCH, ShareSessionError
from moldau_broker.server.share.core.values import AcknowledgementBatch, AcknowledgeType, AcquireMode
from moldau_broker.server.share.fetching import WAIT_MS_MAX, Fetched, ShareFetcher, ShareQuery
from moldau_broker.server.share.led_partition import Pending

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence
    from uuid import UUID

    from moldau.protocol.hot import NodeEndpointResult
    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Environment
    from moldau.values import Buffer
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.handlers.context import Call
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_manager import ReplicaManager
    from moldau_broker.server.share.core.sessions import PartitionKey, SessionKey
    from moldau_broker.server.share.share_partition_manager import SharePartitionManager
    from moldau_quorum.authorization.authorizer import Authorizer

Outcome = tuple[ErrorCode, str | None]
_OK: Outcome = (ErrorCode.NONE, None)
Request = fetching.ShareFetchRequest | acknowledging.ShareAcknowledgeRequest
Named = fetching.FetchPartition | acknowledging.AcknowledgePartition


class ShareDeliveryContext(Protocol):
    """The parts of a broker needed for the delivery to share groups."""

    @property
    def authorizer(self) -> Authorizer | None: ...
    @property
    def broker_id(self) -> BrokerId: ...
    @property
    def config(self) -> Config: ...
    @property
    def environment(self) -> Environment: ...
    @property
    def metadata(self) -> MetadataCache: ...
    @property
    def replicas(self) -> ReplicaManager: ...
    @property
    def share_partitions(self) -> SharePartitionManager: ...


def session_owner(listener_name: str, client_host: str, client_port: int) -> Hashable:
    """Returns what identifies a connection; its share sessions end with it."""
    return listener_name, client_host, client_port


async def handle_share_fetch(
    context: ShareDeliveryContext, request: fetching.ShareFetchRequest, call: Call
) -> fetching.ShareFetchResponse:
    """Takes acknowledgements, acquires records for the member, and waits while there are none."""
    problem = _problem(context, request)
    if problem is None and request.is_renew_ack:
        problem = _renewal_problem(request)
    if problem is not None:
        return refusal_of(fetching.ShareFetchResponse, request, *problem, version=call.version)
    shares = context.share_partitions
    work = _Work(context, call, request)
    named = {(topic.topic_id, part.partition_index): part for topic in request.topics for part in topic.partitions}
    try:
        if request.share_session_epoch == FINAL_EPOCH:
            session = shares.sessions.get(work.key)
            if session is None:
                shares.sessions.finish(work.key)  # raises
            work.acknowledge(named)
            await work.end_session()
            return work.fetch_response(Fetched())
        session = shares.sessions.fetch(
            work.key,
            request.share_session_epoch,
            named,
            ((topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions),
            acknowledges=any(part.acknowledgement_batches for part in named.values()),
            owner=session_owner(call.listener_name, call.client_host, call.client_port),
        )
    except ShareSessionError as error:
        if error.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED:  # the client would ask again at once
            await trio.sleep(max(0, min(request.max_wait_ms, WAIT_MS_MAX)) / 1000)
        return refusal_of(fetching.ShareFetchResponse, request, error.code, str(error), version=call.version)
    work.acknowledge(named)
    fetched = Fetched()
    if request.max_records > 0 and not request.is_renew_ack:
        fetcher = ShareFetcher(context.environment.clock, shares, context.replicas.waits, shares.remote_reads)
        most = context.config.get_int("fetch.max.bytes")
        most = most if call.fetch_bytes_max is None else min(most, call.fetch_bytes_max)
        fetched = await fetcher.fetch(
            _query(work, request),
            session.partitions,
            work.lookup,
            most,
            lambda: shares.sessions.get(work.key) is session,
        )
        session.rotate(fetched.acquired)
    await work.settle()
    return work.fetch_response(fetched)


async def handle_share_acknowledge(
    context: ShareDeliveryContext, request: acknowledging.ShareAcknowledgeRequest, call: Call
) -> acknowledging.ShareAcknowledgeResponse:
    """Takes acknowledgements, and answers when they are stored."""
    problem = _problem(context, request)
    if problem is not None:
        return refusal_of(acknowledging.ShareAcknowledgeResponse, request, *problem, version=call.version)
    work = _Work(context, call, request)
    named = {(topic.topic_id, part.partition_index): part for topic in request.topics for part in topic.partitions}
    sessions = context.share_partitions.sessions
    is_final = request.share_session_epoch == FINAL_EPOCH
    try:
        if not is_final:
            sessions.acknowledge(work.key, request.share_session_epoch)
        elif sessions.get(work.key) is None:
            sessions.finish(work.key)  # raises
    except ShareSessionError as error:
        return refusal_of(acknowledging.ShareAcknowledgeResponse, request, error.code, str(error), version=call.version)
    work.acknowledge(named)
    if is_final:
        await work.end_session()
    else:
        await work.settle()
    return work.acknowledge_response()


def _problem(context: ShareDeliveryContext, request: Request) -> Outcome | None:
    if not context.share_partitions.is_enabled():
        return ErrorCode.UNSUPPORTED_VERSION, "The cluster's features do not allow share groups (share.version)."
    if not request.group_id:
        return ErrorCode.INVALID_REQUEST, "The request has no group id."
    if len(request.group_id.encode()) > GROUP_ID_BYTES_MAX:
        return ErrorCode.INVALID_REQUEST, f"The id of a share group has at most {GROUP_ID_BYTES_MAX} bytes."
    if not request.member_id or len(request.member_id) > MEMBER_ID_CHARACTERS_MAX:
        return ErrorCode.INVALID_REQUEST, f"A member id has 1 to {MEMBER_ID_CHARACTERS_MAX} characters."
    if isinstance(request, fetching.ShareFetchRequest) and request.share_acquire_mode not in tuple(AcquireMode):
        return ErrorCode.INVALID_REQUEST, f"Acquire mode {request.share_acquire_mode} is unknown."
    return None


def _renewal_problem(request: fetching.ShareFetchRequest) -> Outcome | None:
    if request.max_wait_ms or request.min_bytes or request.max_bytes or request.max_records:
        return ErrorCode.INVALID_REQUEST, "A request with renewals fetches nothing: its limits must be 0."
    return None


def _query(work: _Work, request: fetching.ShareFetchRequest) -> ShareQuery:
    return ShareQuery(
        group_id=work.key[0],
        member=work.key[1],
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        max_records=request.max_records,
        batch_size=request.batch_size,
        mode=AcquireMode(request.share_acquire_mode),
    )


@dataclass(slots=True)
class _Work:
    """One request while it is served: its acknowledgements and their outcomes."""

    context: ShareDeliveryContext
    call: Call
    request: Request
    key: SessionKey = field(init=False)
    outcomes: dict[PartitionKey, Outcome | Pending] = field(default_factory=dict)
    allowed: dict[UUID, bool] = field(default_factory=dict)
    """Whether the client may read a topic, by the ACLs of ``judged_by``."""
    judged_by: object = None

    def __post_init__(self) -> None:
        assert self.request.group_id is not None
        assert self.request.member_id is not None
        self.key = (self.request.group_id, self.request.member_id)

    # --- partitions ------------------------------------------------------------------------------------------------

    def lookup(self, key: PartitionKey) -> Partition | ErrorCode:
        """Returns a partition that this broker leads and the client may read, or the error."""
        topic_id, index = key
        context = self.context
        topic = context.metadata.image.topics_by_id.get(topic_id)
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if not self._may_read(topic_id, topic.name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        partition = context.replicas.by_raw_id.get((topic_id.bytes, index))
        if partition is None:
            if context.replicas.is_offline(topic_id.bytes, index, by_id=True):
                return ErrorCode.KAFKA_STORAGE_ERROR
            known = index in topic.partitions
            return ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        error = partition.check_access(LeaderEpoch(-1), leader_only=True)
        return partition if error is ErrorCode.NONE else error

    def _may_read(self, topic_id: UUID, name: str) -> bool:
        authorizer = self.context.authorizer
        if authorizer is None:
            return True
        acls = self.context.metadata.image.acls
        if self.judged_by is not acls:  # the request may have waited for minutes
            self.judged_by, self.allowed = acls, {}
        allowed = self.allowed.get(topic_id)
        if allowed is None:
            decision = authorizer.decide(self.call.identity, AclOperation.READ, AclResource.TOPIC, name)
            allowed = self.allowed[topic_id] = decision.is_allowed
        return allowed

    # --- acknowledgements ------------------------------------------------------------------------------------------

    def acknowledge(self, named: Mapping[PartitionKey, Named]) -> None:
        """Takes the acknowledgements of the request; ``settle`` waits for their writes."""
        shares = self.context.share_partitions
        renews = self.request.is_renew_ack
        may_renew = shares.settings(self.key[0]).renew_allowed
        for key, part in named.items():
            if not part.acknowledgement_batches:
                continue
            batches = [
                AcknowledgementBatch(each.first_offset, each.last_offset, each.acknowledge_types)
                for each in part.acknowledgement_batches
            ]
            problem = acknowledgement_problem(batches, renew_allowed=renews)
            if problem is not None:
                self.outcomes[key] = (ErrorCode.INVALID_REQUEST, problem)
                continue
            partition = self.lookup(key)
            if isinstance(partition, ErrorCode):
                self.outcomes[key] = (partition, None)
                continue
            if not may_renew and any(AcknowledgeType.RENEW in each.types for each in batches):
                self.outcomes[key] = (ErrorCode.INVALID_RECORD_STATE, "The group does not allow to renew locks.")
                continue
            led = shares.open(self.key[0], partition)
            self.outcomes[key] = shares.acknowledge(led, self.key[1], batches)

    async def settle(self) -> None:
        """Waits until the acknowledgements are stored or refused."""
        for key, outcome in self.outcomes.items():
            if isinstance(outcome, Pending):
                self.outcomes[key] = (await outcome.wait(), None)

    async def end_session(self) -> None:
        """Ends the member's session, and waits until its acknowledgements and releases are stored."""
        shares = self.context.share_partitions
        shares.sessions.remove(self.key)
        released = shares.release(self.key)
        await self.settle()
        for each in released:
            await each.wait()

    # --- answers ---------------------------------------------------------------------------------------------------

    def fetch_response(self, fetched: Fetched) -> fetching.ShareFetchResponse:
        """Returns the answer: partitions with records, errors or acknowledgements."""
        topics: dict[UUID, list[fetching.PartitionData]] = {}
        leaders: dict[int, None] = {}
        hints = self._hints()
        for key in dict.fromkeys((*fetched.acquired, *fetched.errors, *self.outcomes)):
            error = fetched.errors.get(key, ErrorCode.NONE)
            acknowledged, message = self._outcome(key)
            data = fetching.PartitionData(
                partition_index=key[1],
                error_code=error,
                acknowledge_error_code=acknowledged,
                acknowledge_error_message=message,
            )
            leader = _leader(hints, key, (error, acknowledged))
            if leader is not None:
                leaders[leader[0]] = None
                data.current_leader = fetching.LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
            acquisition = fetched.acquired.get(key)
            if acquisition is not None:
                data.records = cast("Buffer", acquisition.records)  # the encoder takes its length alone
                data.acquired_records = [
                    fetching.AcquiredRecords(
                        first_offset=each.first, last_offset=each.last, delivery_count=each.delivery_count
                    )
                    for each in acquisition.ranges
                ]
            topics.setdefault(key[0], []).append(data)
        return fetching.ShareFetchResponse(
            acquisition_lock_timeout_ms=self._lock_duration_ms(),
            responses=[
                fetching.ShareFetchableTopicResponse(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
            node_endpoints=[
                fetching.NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
                for node_id, host, port, rack in _endpoints(hints, leaders)
            ],
        )

    def acknowledge_response(self) -> acknowledging.ShareAcknowledgeResponse:
        """Returns the outcome for each partition."""
        topics: dict[UUID, list[acknowledging.PartitionData]] = {}
        leaders: dict[int, None] = {}
        hints = self._hints()
        for key in self.outcomes:
            error, message = self._outcome(key)
            data = acknowledging.PartitionData(partition_index=key[1], error_code=error, error_message=message)
            leader = _leader(hints, key, (error,))
            if leader is not None:
                leaders[leader[0]] = None
                data.current_leader = acknowledging.LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
            topics.setdefault(key[0], []).append(data)
        return acknowledging.ShareAcknowledgeResponse(
            acquisition_lock_timeout_ms=self._lock_duration_ms(),
            responses=[
                acknowledging.ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
            node_endpoints=[
                acknowledging.NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
                for node_id, host, port, rack in _endpoints(hints, leaders)
            ],
        )

    def _outcome(self, key: PartitionKey) -> Outcome:
        outcome = self.outcomes.get(key, _OK)
        assert not isinstance(outcome, Pending)
        return outcome

    def _lock_duration_ms(self) -> int:
        return self.context.share_partitions.settings(self.key[0]).limits.lock_duration_ms

    def _hints(self) -> ListenerHints:
        return ListenerHints(self.context.metadata, self.context.broker_id, self.call.listener_name)


def _leader(hints: ListenerHints, key: PartitionKey, errors: Sequence[ErrorCode]) -> tuple[int, int] | None:
    """Returns leader and leader epoch for a client that asked the wrong broker."""
    if not any(error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH) for error in errors):
        return None
    return hints.leader_hint(key[0].bytes, key[1], by_id=True)


def _endpoints(hints: ListenerHints, leaders: Iterable[int]) -> list[NodeEndpointResult]:
    found = (hints.endpoint_hint(BrokerId(leader)) for leader in leaders)
    return [each for each in found if each is not None]
