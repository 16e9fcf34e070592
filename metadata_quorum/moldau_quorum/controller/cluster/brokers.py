"""Decisions about brokers: registration, heartbeats, fencing, controlled shutdown (KIP-631, KIP-841, KIP-966)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from moldau.values import ZERO_UUID, BrokerId
from moldau_quorum.controller.cluster.directories import cordons_changed, directories_failed, newly_offline
from moldau_quorum.controller.cluster.features import unsupported_feature
from moldau_quorum.controller.context import PRODUCER_ID_BLOCK, Context, DecisionView, Result
from moldau_quorum.controller.walks import broker_unfenced, brokers_gone, leads_any
from moldau_quorum.metadata.directory_ids import is_reserved
from moldau_quorum.metadata.records import (
    BrokerRegistrationChangeRecord,
    Endpoint,
    MetadataRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau_quorum.controller.cluster.sessions import BrokerSessions, Session
    from moldau_quorum.metadata.image import BrokerImage, MetadataImage

PRODUCER_ID_MAX: Final = 2**63 - 1
ENDPOINTS_MAX: Final = 64


def register_broker(
    request: BrokerRegistrationRequest,
    image: MetadataImage,
    context: Context,
    sessions: BrokerSessions,
) -> Result[BrokerRegistrationResponse]:
    """Registers a broker's new incarnation, or answers the retry of a registration.

    The broker epoch is larger than all earlier ones. It is the offset of the record, so that a broker has caught up
    with its own registration when its metadata offset has reached its epoch; only where the quorum wrote an entry of
    its own just before, it is a little lower.
    """
    refusal = _registration_refusal(request, image, context, sessions)
    if refusal is not None:
        return Result(response=BrokerRegistrationResponse(error_code=refusal))
    existing = image.brokers.get(request.broker_id)
    if existing is not None and existing.incarnation_id == request.incarnation_id and _same(existing, request):
        # The broker did not get the response to its first attempt.
        return Result(response=BrokerRegistrationResponse(broker_epoch=existing.broker_epoch))
    clean = existing is not None and request.previous_broker_epoch == existing.broker_epoch
    response = BrokerRegistrationResponse()

    def steps(view: DecisionView) -> Iterator[list[MetadataRecord]]:
        records: list[MetadataRecord] = []
        if existing is not None:
            records = yield from brokers_gone(view, {existing.broker_id: None}, lost_state=not clean)
        epochs = [broker.broker_epoch for broker in view.image.brokers.values()]
        registration = _registration(request, existing, max([view.image.offset, *epochs]) + 1)
        response.broker_epoch = registration.broker_epoch
        yield [*records, registration]

    return Result(response=response, steps=steps)


def _registration(
    request: BrokerRegistrationRequest, existing: BrokerImage | None, broker_epoch: int
) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=BrokerId(request.broker_id),
        incarnation_id=request.incarnation_id,
        broker_epoch=broker_epoch,
        endpoints=_endpoints(request),
        features=_features(request),
        rack=request.rack,
        fenced=True,
        in_controlled_shutdown=False,
        log_dirs=tuple(request.log_dirs),
        # The broker reports them with the heartbeat that unfences it; until then those of its last life hold.
        cordoned_log_dirs=() if existing is None else existing.cordoned_log_dirs,
    )


def _endpoints(request: BrokerRegistrationRequest) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
        for e in request.listeners
    )


def _features(request: BrokerRegistrationRequest) -> tuple[tuple[str, int, int], ...]:
    return tuple(
        (feature.name, feature.min_supported_version, feature.max_supported_version) for feature in request.features
    )


def _same(existing: BrokerImage, request: BrokerRegistrationRequest) -> bool:
    return (
        existing.endpoints == _endpoints(request)
        and existing.rack == request.rack
        and existing.features == _features(request)
        and existing.log_dirs == tuple(request.log_dirs)
    )


def _registration_refusal(
    request: BrokerRegistrationRequest,
    image: MetadataImage,
    context: Context,
    sessions: BrokerSessions,
) -> ErrorCode | None:
    if request.cluster_id and image.cluster_id and request.cluster_id != image.cluster_id:
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    names = [listener.name for listener in request.listeners]
    if (
        request.broker_id < 0
        or not 1 <= len(names) <= ENDPOINTS_MAX
        or len(set(names)) != len(names)
        or any(not listener.host or not 0 < listener.port < 65536 for listener in request.listeners)
        or request.incarnation_id == ZERO_UUID
        or len(set(request.log_dirs)) != len(request.log_dirs)
        or any(is_reserved(directory) for directory in request.log_dirs)
    ):
        return ErrorCode.INVALID_REGISTRATION
    for broker_id, other in sorted(image.brokers.items()):
        # With two brokers on one directory, or on a copy of it, the directory's contents would be unknown.
        if broker_id != request.broker_id and any(directory in other.log_dirs for directory in request.log_dirs):
            return ErrorCode.INVALID_REGISTRATION
    existing = image.brokers.get(request.broker_id)
    if (
        existing is not None
        and existing.incarnation_id != request.incarnation_id
        and sessions.alive(BrokerId(request.broker_id), context.now_ms)
    ):
        return ErrorCode.DUPLICATE_BROKER_REGISTRATION
    if unsupported_feature(_features(request), image) is not None:
        return ErrorCode.UNSUPPORTED_VERSION
    return None


def heartbeat(
    request: BrokerHeartbeatRequest, image: MetadataImage, context: Context, sessions: BrokerSessions
) -> Result[BrokerHeartbeatResponse]:
    """Moves a broker between fenced, unfenced and controlled shutdown, and handles its log directories.

    The function only reads ``sessions``; the shell updates them before it asks for the decision. The response calls a
    broker caught up that had all metadata of this controller: it deletes remote records on the word of its metadata
    only after that. To be unfenced, it needs those up to its registration.
    """
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        return Result(response=BrokerHeartbeatResponse(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED))
    if broker.broker_epoch != request.broker_epoch:
        return Result(response=BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    is_caught_up = request.current_metadata_offset >= image.offset
    failed = newly_offline(broker, request.offline_log_dirs) if image.records_directories else ()
    if failed:  # the next heartbeat does the rest, because it sees the changes of this one
        return Result(
            steps=lambda view: directories_failed(view, broker, failed),
            response=BrokerHeartbeatResponse(is_caught_up=is_caught_up, is_fenced=broker.fenced),
        )
    steps: Callable[[DecisionView], Iterator[list[MetadataRecord]]] | None = None
    fenced, should_shut_down = broker.fenced, False
    if broker.fenced:
        if request.want_shut_down:
            should_shut_down = True
        elif not request.want_fence and request.current_metadata_offset >= broker.broker_epoch:
            fenced = False
            steps = partial(unfence, broker=broker)
    elif request.want_fence:
        fenced = True
        should_shut_down = request.want_shut_down
        steps = partial(fence, broker_ids={broker.broker_id: None})
    elif request.want_shut_down and not broker.in_controlled_shutdown:
        steps = partial(_begin_shutdown, broker=broker)
    elif broker.in_controlled_shutdown:
        session = sessions.get(broker.broker_id)
        should_shut_down = _may_stop(broker.broker_id, image, context, sessions, session)
        if should_shut_down:  # fence it, so that its next incarnation need not wait until this session ends
            fenced = True
            steps = partial(fence, broker_ids={broker.broker_id: None})
    return Result(
        records=cordons_changed(broker, request.cordoned_log_dirs) if image.records_cordons else (),
        steps=steps,
        response=BrokerHeartbeatResponse(
            is_caught_up=is_caught_up, is_fenced=fenced, should_shut_down=should_shut_down
        ),
    )


def _begin_shutdown(view: DecisionView, broker: BrokerImage) -> Iterator[list[MetadataRecord]]:
    records = yield from brokers_gone(view, {broker.broker_id: None})
    records.append(
        BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, in_controlled_shutdown=True
        )
    )
    yield records


def _may_stop(
    broker_id: BrokerId, image: MetadataImage, context: Context, sessions: BrokerSessions, session: Session | None
) -> bool:
    """Returns whether the broker leads no partition and the other brokers have seen that."""
    if session is not None and session.shutdown_offset >= 0:
        lowest = sessions.lowest_offset(broker_id, context.now_ms)
        if lowest is not None and lowest < session.shutdown_offset:
            return False
    return not leads_any(image, broker_id)


def unfence(view: DecisionView, broker: BrokerImage) -> Iterator[list[MetadataRecord]]:
    """Unfences a broker, then elects leaders for the leaderless partitions that it has replicas of."""
    record = BrokerRegistrationChangeRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, fenced=False)
    yield (yield from broker_unfenced(view, broker.broker_id, [record]))


def fence(view: DecisionView, broker_ids: dict[BrokerId, None]) -> Iterator[list[MetadataRecord]]:
    """Moves all leaderships of brokers and removes them from all ISRs, then fences them.

    The order keeps the rule that a fenced broker leads no partition and is in no ISR (KIP-841). The brokers get no new
    leadership meanwhile, because the controller decides nothing else between the slices.
    """
    unfenced = {
        broker_id: None
        for broker_id in broker_ids
        if broker_id in view.image.brokers and not view.image.brokers[broker_id].fenced
    }
    if not unfenced:
        return
    records = yield from brokers_gone(view, unfenced)
    records.extend(
        BrokerRegistrationChangeRecord(
            broker_id=broker_id, broker_epoch=view.image.brokers[broker_id].broker_epoch, fenced=True
        )
        for broker_id in unfenced
    )
    yield records


def unregister_broker(
    request: UnregisterBrokerRequest, image: MetadataImage, context: Context
) -> Result[UnregisterBrokerResponse]:
    """Removes a broker's registration; a broker that still runs registers again by itself.

    The removal also deletes the broker epoch that distinguishes an unclean restart from a clean one. So the broker
    cannot stay an eligible leader (KIP-966).
    """
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        return Result(
            response=UnregisterBrokerResponse(
                error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
                error_message=f"broker {request.broker_id} is not registered",
            )
        )
    removal = UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)

    def steps(view: DecisionView) -> Iterator[list[MetadataRecord]]:
        records = yield from brokers_gone(view, {broker.broker_id: None}, lost_state=True)
        yield [*records, removal]

    return Result(response=UnregisterBrokerResponse(), steps=steps)


def allocate_producer_ids(
    request: AllocateProducerIdsRequest, image: MetadataImage, context: Context
) -> Result[AllocateProducerIdsResponse]:
    """Allocates a block of producer ids to a broker; no other broker ever gets these ids (KIP-730)."""
    broker = image.brokers.get(request.broker_id)
    if broker is None or broker.broker_epoch != request.broker_epoch:
        return Result(response=AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    first = image.next_producer_id
    if first > PRODUCER_ID_MAX - PRODUCER_ID_BLOCK:
        return Result(response=AllocateProducerIdsResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
    record = ProducerIdsRecord(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, next_producer_id=first + PRODUCER_ID_BLOCK
    )
    response = AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=PRODUCER_ID_BLOCK)
    return Result(records=(record,), response=response)
