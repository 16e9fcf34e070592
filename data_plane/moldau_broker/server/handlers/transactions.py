"""Requests to the transaction coordinator, and transaction markers from coordinators of other brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from moldau.protocol.refusals import refusal
from moldau_broker.coordinator.runtime.completion import Completion
from moldau_broker.coordinator.runtime.effects import Marker, TransactionalProducer
from moldau_broker.server.coordination.transaction_verifier import UNANSWERED
from moldau_broker.server.coordination.transactions import MARKERS_PER_TURN, MARKERS_TIMEOUT_MS, finish
from moldau_broker.server.handlers.metadata import InternalTopicsContext, ensure_offsets_topic
from moldau_broker.server.handlers.producers import ProducersContext, handle_init_producer_id
from moldau_quorum.metadata.internal_topics import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
    from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
    from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
    from moldau.protocol.schema import Request, Response
    from moldau.runtime.ports.environment import Environment
    from moldau_broker.coordinator.group.coordinator import GroupCoordinator
    from moldau_broker.coordinator.transaction.coordinator import TransactionCoordinator
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.coordination.marker_checks import MarkerChecks
    from moldau_broker.server.coordination.transaction_verifier import TransactionVerifier
    from moldau_broker.server.coordination.transactions import Begun, TopicPartitionName, TransactionMarkers
    from moldau_broker.server.handlers.context import Call
    from moldau_broker.server.replicas.replica_manager import ReplicaManager

OFFSETS_ADDED_BY_BROKER = 5
"""The first version of TxnOffsetCommit whose clients send no AddOffsetsToTxn (KIP-890)."""
OFFSETS_ABORTABLE_FROM = 4
"""The first version of TxnOffsetCommit whose clients know TRANSACTION_ABORTABLE."""
MARKERS_FREE = 1_000
"""Markers that one request may contain beyond twice the number of partitions in the cluster."""


class TransactionsContext(InternalTopicsContext, ProducersContext, Protocol):
    """The parts of a broker needed for the requests about transactions."""

    @property
    def environment(self) -> Environment: ...
    @property
    def groups(self) -> GroupCoordinator: ...
    @property
    def marker_checks(self) -> MarkerChecks: ...
    @property
    def markers(self) -> TransactionMarkers: ...
    @property
    def metadata(self) -> MetadataCache: ...
    @property
    def replicas(self) -> ReplicaManager: ...
    @property
    def transactions(self) -> TransactionCoordinator: ...
    @property
    def verifier(self) -> TransactionVerifier: ...


def handle_transaction_request(context: TransactionsContext, request: Request, call: Call) -> Completion:
    """Submits the request to the coordinator at once, which may answer later."""
    return context.transactions.submit(request, version=call.version)


async def handle_init(context: TransactionsContext, request: InitProducerIdRequest, call: Call) -> Response:
    """Initializes an idempotent producer here, and a transactional one at its coordinator."""
    if request.transactional_id is None:
        return await handle_init_producer_id(context, request, call)
    return await context.transactions.handle(request, version=call.version)


async def handle_add_offsets(context: TransactionsContext, request: AddOffsetsToTxnRequest, call: Call) -> Response:
    """Adds a group to a transaction; creates the topic of groups on first use."""
    if OFFSETS_TOPIC not in context.metadata.image.topics_by_name:
        await ensure_offsets_topic(context)
    return await context.transactions.handle(request, version=call.version)


async def handle_txn_offset_commit(
    context: TransactionsContext, request: TxnOffsetCommitRequest, call: Call
) -> Response:
    """Writes offsets of a transaction after its coordinator confirms that it includes the group (KIP-890).

    From version 5 on, this broker adds the group's partition to the transaction first.
    """
    code = await _offsets_refusal(context, request, call.version)
    if code is not ErrorCode.NONE:
        return refusal(request, code, version=call.version)
    return await context.groups.handle(
        request, version=call.version, client_id=call.client_id, client_host=call.client_host
    )


async def _offsets_refusal(context: TransactionsContext, request: TxnOffsetCommitRequest, version: int) -> ErrorCode:
    """Returns NONE if offsets may be written for this producer, else the error.

    Offsets that arrive after the end of their transaction would open one that no marker ends.
    """
    adds = version >= OFFSETS_ADDED_BY_BROKER
    if not adds and not context.config.get_bool("transaction.partition.verification.enable"):
        return ErrorCode.NONE
    index = context.groups.partition_of(request.group_id)
    partition = None if index is None else context.replicas.partitions.get((OFFSETS_TOPIC, index))
    if partition is None or not partition.is_leader:
        return ErrorCode.NONE  # the group coordinator refuses it with the right code
    if partition.log.producer_state.has_ongoing_transaction(request.producer_id, request.producer_epoch):
        return ErrorCode.NONE
    ends_seen, key = partition.ends_seen, (partition.key.topic, partition.key.partition)
    ask = context.verifier.add if adds else context.verifier.verify
    codes = await ask(request.transactional_id, request.producer_id, request.producer_epoch, [key])
    code = codes[key]
    if code is ErrorCode.NONE:
        # Without an epoch per transaction, the marker of this one may have come meanwhile: the client retries.
        return ErrorCode.NONE if adds or partition.ends_seen == ends_seen else ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and adds:
        return code
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < OFFSETS_ABORTABLE_FROM:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if code in UNANSWERED else code


class MarkersWritten(Completion):
    """The answer to WriteTxnMarkers, which waits for the commits of the markers."""

    __slots__ = ("_finish",)

    def __init__(self, finish: Callable[[], Awaitable[Response]]) -> None:
        """``finish`` waits for the commits and returns the response; it runs once, after the earlier answers left."""
        super().__init__()
        self._finish = finish

    async def wait(self) -> Response:
        """Waits for the commits."""
        self.complete(await self._finish())
        return self.response()


def handle_write_txn_markers(context: TransactionsContext, request: WriteTxnMarkersRequest, call: Call) -> Completion:
    """Appends markers to partitions that this broker leads, and answers when they are committed.

    Few ordinary markers are appended before this returns: all requests of a coordinator use one connection, and must
    not wait until earlier markers are committed. All markers of a request are appended before the wait for the first
    one, and one deadline holds for all.
    """
    markers = [
        Marker(
            producer=TransactionalProducer(producer_id=wanted.producer_id, producer_epoch=wanted.producer_epoch),
            coordinator_epoch=wanted.coordinator_epoch,
            commit=wanted.transaction_result,
            transaction_version=wanted.transaction_version,
        )
        for wanted in request.markers
    ]
    named = [
        (marker, (topic.name, index))
        for marker, wanted in zip(markers, request.markers, strict=True)
        for topic in wanted.topics
        for index in topic.partition_indexes
    ]
    if len(named) > MARKERS_FREE + 2 * context.metadata.partition_count():
        return Completion(refusal(request, ErrorCode.INVALID_REQUEST, version=call.version))
    wanted_keys = list(dict.fromkeys(named))
    if len(wanted_keys) > MARKERS_PER_TURN:
        return MarkersWritten(lambda: _write_slowly(context, request, call, markers, wanted_keys))
    verdicts = [context.marker_checks.judge(marker, key, call.listener_name) for marker, key in wanted_keys]
    if None in verdicts:
        return MarkersWritten(lambda: _write_slowly(context, request, call, markers, wanted_keys))
    pending: dict[tuple[Marker, TopicPartitionName], Begun] = {}
    for (marker, key), verdict in zip(wanted_keys, verdicts, strict=True):
        assert verdict is not None
        pending[marker, key] = context.markers.begin(marker, key) if verdict is ErrorCode.NONE else verdict

    async def written() -> Response:
        return _marker_answers(request, markers, await finish(pending))

    return MarkersWritten(written)


async def _write_slowly(
    context: TransactionsContext,
    request: WriteTxnMarkersRequest,
    call: Call,
    markers: Sequence[Marker],
    wanted_keys: Sequence[tuple[Marker, TopicPartitionName]],
) -> Response:
    """Asks coordinators about unusual markers, and lets other tasks run between the appends."""
    listener, checks, clock = call.listener_name, context.marker_checks, context.environment.clock
    unsure: dict[Marker, list[TopicPartitionName]] = {}
    for marker, key in wanted_keys:
        if checks.judge(marker, key, listener) is None:
            unsure.setdefault(marker, []).append(key)
    began_ms = clock.monotonic_ms()
    reported = await checks.ask(unsure) if unsure else {}
    pending: dict[tuple[Marker, TopicPartitionName], Begun] = {}
    for marker, key in wanted_keys:
        if len(pending) % MARKERS_PER_TURN == MARKERS_PER_TURN - 1:
            await trio.lowlevel.checkpoint()
        verdict = checks.judge(marker, key, listener)
        if verdict is None:
            verdict = reported.get((marker, key), ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if verdict is ErrorCode.NONE and clock.monotonic_ms() - began_ms > MARKERS_TIMEOUT_MS:
            verdict = ErrorCode.REQUEST_TIMED_OUT
        pending[marker, key] = context.markers.begin(marker, key) if verdict is ErrorCode.NONE else verdict
    left_ms = max(0.0, began_ms + MARKERS_TIMEOUT_MS - clock.monotonic_ms())
    return _marker_answers(request, markers, await finish(pending, left_ms))


def _marker_answers(
    request: WriteTxnMarkersRequest,
    markers: Sequence[Marker],
    codes: Mapping[tuple[Marker, TopicPartitionName], ErrorCode],
) -> WriteTxnMarkersResponse:
    """Returns the answer in the order of the request."""
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=wanted.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=codes[marker, (topic.name, index)]
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in wanted.topics
                ],
            )
            for marker, wanted in zip(markers, request.markers, strict=True)
        ]
    )
