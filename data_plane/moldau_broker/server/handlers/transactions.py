"""Requests to the transaction coordinator, and the markers that coordinators elsewhere send here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from moldau_broker.coordinator.effects import Marker, TransactionalProducer
from moldau_broker.coordinator.responses import refusal
from moldau_broker.server.handlers.metadata import ensure_offsets_topic
from moldau_broker.server.handlers.producers import handle_init_producer_id
from moldau_broker.server.topic_creation import OFFSETS_TOPIC
from moldau_broker.server.transactions import finish

if TYPE_CHECKING:
    from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
    from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
    from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
    from moldau.protocol.schema import Request, Response
    from moldau_broker.coordinator.completion import Completion
    from moldau_broker.server.context import BrokerContext, Call


def handle_transaction_request(context: BrokerContext, request: Request, call: Call) -> Completion:
    """Hands the request to the coordinator at once; its answer may come later."""
    return context.transactions.submit(request, version=call.version)


async def handle_init(context: BrokerContext, request: InitProducerIdRequest, call: Call) -> Response:
    """InitProducerId: of an idempotent producer here, of a transactional one by its coordinator."""
    if request.transactional_id is None:
        return await handle_init_producer_id(context, request, call)
    return await context.transactions.handle(request, version=call.version)


async def handle_add_offsets(context: BrokerContext, request: AddOffsetsToTxnRequest, call: Call) -> Response:
    """AddOffsetsToTxn. The group may never have had a coordinator: its topic is created on first use."""
    if OFFSETS_TOPIC not in context.metadata.image.topics_by_name:
        await ensure_offsets_topic(context)
    return await context.transactions.handle(request, version=call.version)


async def handle_txn_offset_commit(context: BrokerContext, request: TxnOffsetCommitRequest, call: Call) -> Response:
    """TxnOffsetCommit: taken in once the transaction's coordinator says that it includes the group (KIP-890)."""
    code = await _offsets_refusal(context, request)
    if code is not ErrorCode.NONE:
        return refusal(request, code, call.version)
    return await context.groups.handle(
        request, version=call.version, client_id=call.client_id, client_host=call.client_host
    )


async def _offsets_refusal(context: BrokerContext, request: TxnOffsetCommitRequest) -> ErrorCode:
    """Why offsets may not be written for this producer; an offset that comes late would open a transaction that nobody
    ends."""
    if not context.config.get_bool("transaction.partition.verification.enable"):
        return ErrorCode.NONE
    index = context.groups.partition_of(request.group_id)
    partition = None if index is None else context.replicas.partitions.get((OFFSETS_TOPIC, index))
    if partition is None or not partition.is_leader:
        return ErrorCode.NONE  # the group coordinator says where to look
    if partition.log.has_ongoing_transaction(request.producer_id, request.producer_epoch):
        return ErrorCode.NONE
    ends_seen, key = partition.ends_seen, (partition.key.topic, partition.key.partition)
    codes = await context.verifier.verify(request.transactional_id, request.producer_id, request.producer_epoch, [key])
    code = codes[key]
    if code is ErrorCode.NOT_ENOUGH_REPLICAS or (code is ErrorCode.NONE and partition.ends_seen != ends_seen):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE  # nobody could say, or a transaction ended meanwhile: ask again
    return code


async def handle_write_txn_markers(
    context: BrokerContext, request: WriteTxnMarkersRequest, call: Call
) -> WriteTxnMarkersResponse:
    """Appends markers to partitions that are led here, and answers when they are committed."""
    results: list[WritableTxnMarkerResult] = []
    for wanted in request.markers:
        marker = Marker(
            producer=TransactionalProducer(producer_id=wanted.producer_id, producer_epoch=wanted.producer_epoch),
            coordinator_epoch=wanted.coordinator_epoch,
            commit=wanted.transaction_result,
        )
        pending = {
            (topic.name, index): context.markers.begin(marker, (topic.name, index))
            for topic in wanted.topics
            for index in topic.partition_indexes
        }
        codes = await finish(pending)
        results.append(
            WritableTxnMarkerResult(
                producer_id=wanted.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=codes[topic.name, index])
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in wanted.topics
                ],
            )
        )
    return WriteTxnMarkersResponse(markers=results)
