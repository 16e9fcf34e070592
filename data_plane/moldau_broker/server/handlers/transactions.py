"""Requests to the transaction coordinator, and the markers that coordinators elsewhere send here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from moldau_broker.coordinator.effects import Marker, TransactionalProducer
from moldau_broker.server.handlers.producers import handle_init_producer_id
from moldau_broker.server.transactions import finish

if TYPE_CHECKING:
    from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
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
