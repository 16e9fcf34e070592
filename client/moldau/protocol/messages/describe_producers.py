"""DescribeProducers: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class TopicRequest(Struct):
    """An element of ``topics`` in ``DescribeProducersRequest``."""

    name: str = field.string("0+")
    partition_indexes: Sequence[int] = field.int32_array("0+")


class DescribeProducersRequest(Request, api_key=61, versions="0", flexible="0+"):
    """Ask for the active producers of partitions (KIP-664)."""

    topics: Sequence[TopicRequest] = field.array(TopicRequest, "0+")


class ProducerState(Struct):
    """An element of ``active_producers`` in ``PartitionResponse``."""

    producer_id: int = field.int64("0+")
    producer_epoch: int = field.int32("0+")
    last_sequence: int = field.int32("0+", default=-1)
    last_timestamp: int = field.int64("0+", default=-1)
    coordinator_epoch: int = field.int32("0+")
    current_txn_start_offset: int = field.int64("0+", default=-1)


class PartitionResponse(Struct):
    """An element of ``partitions`` in ``TopicResponse``."""

    partition_index: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)
    active_producers: Sequence[ProducerState] = field.array(ProducerState, "0+")


class TopicResponse(Struct):
    """An element of ``topics`` in ``DescribeProducersResponse``."""

    name: str = field.string("0+")
    partitions: Sequence[PartitionResponse] = field.array(PartitionResponse, "0+")


class DescribeProducersResponse(Response, api_key=61, versions="0", flexible="0+"):
    """Producer ids, epochs, sequences and open transactions."""

    throttle_time_ms: int = field.int32("0+")
    topics: Sequence[TopicResponse] = field.array(TopicResponse, "0+")
