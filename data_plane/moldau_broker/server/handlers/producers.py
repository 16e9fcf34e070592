"""InitProducerId and DescribeProducers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.protocol.refusals import refusal_of
from moldau_broker.log.values import NO_EPOCH, NO_PRODUCER_ID
from moldau_broker.server.handlers.metadata import valid_topic_name

if TYPE_CHECKING:
    from moldau_broker.server.coordination.producer_ids import ProducerIds
    from moldau_broker.server.handlers.context import Call
    from moldau_broker.server.replicas.partition import Partition


class ProducersContext(Protocol):
    """The parts of a broker needed for the requests about producers."""

    def replica(self, topic: str, partition: int) -> Partition: ...
    @property
    def producer_ids(self) -> ProducerIds: ...


async def handle_init_producer_id(
    context: ProducersContext, request: InitProducerIdRequest, call: Call
) -> InitProducerIdResponse:
    """Returns a new producer id with epoch 0 for an idempotent producer.

    A producer that has an id already names it with its epoch, or names neither.
    """
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        return refusal_of(InitProducerIdResponse, request, ErrorCode.INVALID_REQUEST, version=call.version)
    try:
        return InitProducerIdResponse(producer_id=await context.producer_ids.take(), producer_epoch=0)
    except KafkaError as error:
        return refusal_of(InitProducerIdResponse, request, error.code, version=call.version)


def handle_describe_producers(
    context: ProducersContext, request: DescribeProducersRequest, call: Call
) -> DescribeProducersResponse:
    """Returns the active producers of partitions, as this broker's replicas know them (KIP-664).

    Followers answer too: an operator who looks for hanging transactions of one broker asks it about all its replicas.
    A partition that is named twice is answered once: its answer is far larger than its name.
    """
    topics: list[TopicResponse] = []
    named: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        named.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    for name, indexes in named.items():
        partitions: list[PartitionResponse] = []
        for index in indexes:
            try:
                if not valid_topic_name(name):
                    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
                partition = context.replica(name, index)
            except KafkaError as error:
                partitions.append(
                    PartitionResponse(partition_index=index, error_code=error.code, error_message=error.message)
                )
                continue
            partitions.append(
                PartitionResponse(
                    partition_index=index,
                    active_producers=[
                        ProducerState(
                            producer_id=producer.producer_id,
                            producer_epoch=producer.producer_epoch,
                            last_sequence=producer.last_sequence,
                            last_timestamp=producer.last_timestamp_ms,
                            coordinator_epoch=producer.coordinator_epoch,
                            current_txn_start_offset=producer.current_transaction_start_offset,
                        )
                        for producer in partition.log.producer_state.describe()
                    ],
                )
            )
        topics.append(TopicResponse(name=name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)
