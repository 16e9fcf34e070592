"""Produce: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct
from moldau.values import Buffer


class PartitionProduceData(Struct):
    """An element of ``partition_data`` in ``TopicProduceData``."""

    index: int = field.int32("0+")
    records: Buffer | None = field.records("0+", nullable="0+")


class TopicProduceData(Struct):
    """An element of ``topic_data`` in ``ProduceRequest``."""

    name: str = field.string("0-12")
    topic_id: UUID = field.uuid("13+")
    partition_data: Sequence[PartitionProduceData] = field.array(PartitionProduceData, "0+")


class ProduceRequest(Request, api_key=0, versions="3-13", flexible="9+"):
    """Append record batches to partitions.

    Transactions are KIP-98's, flexible versions KIP-480's, topic ids KIP-516's (from version 13 on).
    """

    transactional_id: str | None = field.string("3+", nullable="3+", default=None)
    acks: int = field.int16("0+")
    timeout_ms: int = field.int32("0+")
    topic_data: Sequence[TopicProduceData] = field.array(TopicProduceData, "0+")


class BatchIndexAndErrorMessage(Struct):
    """An element of ``record_errors`` in ``PartitionProduceResponse``."""

    batch_index: int = field.int32("8+")
    batch_index_error_message: str | None = field.string("8+", nullable="8+", default=None)


class LeaderIdAndEpoch(Struct):
    """The value of ``current_leader`` in ``PartitionProduceResponse``."""

    leader_id: int = field.int32("10+", default=-1)
    leader_epoch: int = field.int32("10+", default=-1)


class PartitionProduceResponse(Struct):
    """An element of ``partition_responses`` in ``TopicProduceResponse``."""

    index: int = field.int32("0+")
    error_code: int = field.int16("0+")
    base_offset: int = field.int64("0+")
    log_append_time_ms: int = field.int64("2+", default=-1)
    log_start_offset: int = field.int64("5+", default=-1)
    record_errors: Sequence[BatchIndexAndErrorMessage] = field.array(BatchIndexAndErrorMessage, "8+")
    error_message: str | None = field.string("8+", nullable="8+", default=None)
    current_leader: LeaderIdAndEpoch = field.struct(LeaderIdAndEpoch, "10+", tag=0)


class TopicProduceResponse(Struct):
    """An element of ``responses`` in ``ProduceResponse``."""

    name: str = field.string("0-12")
    topic_id: UUID = field.uuid("13+")
    partition_responses: Sequence[PartitionProduceResponse] = field.array(PartitionProduceResponse, "0+")


class NodeEndpoint(Struct):
    """An element of ``node_endpoints`` in ``ProduceResponse``."""

    node_id: int = field.int32("10+")
    host: str = field.string("10+")
    port: int = field.int32("10+")
    rack: str | None = field.string("10+", nullable="10+", default=None)


class ProduceResponse(Response, api_key=0, versions="3-13", flexible="9+"):
    """Where each batch was appended, or why not (KIP-467 record errors, KIP-951 new leaders)."""

    responses: Sequence[TopicProduceResponse] = field.array(TopicProduceResponse, "0+")
    throttle_time_ms: int = field.int32("1+")
    node_endpoints: Sequence[NodeEndpoint] = field.array(NodeEndpoint, "10+", tag=0)
