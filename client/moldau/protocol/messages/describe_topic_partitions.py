"""DescribeTopicPartitions: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class TopicRequest(Struct):
    """An element of ``topics`` in ``DescribeTopicPartitionsRequest``."""

    name: str = field.string("0+")


class DescribeTopicPartitionsRequestCursor(Struct):
    """The value of ``cursor`` in ``DescribeTopicPartitionsRequest``."""

    topic_name: str = field.string("0+")
    partition_index: int = field.int32("0+")


class DescribeTopicPartitionsRequest(Request, api_key=75, versions="0", flexible="0+"):
    """Describe partitions page by page, with eligible leader replicas (KIP-966)."""

    topics: Sequence[TopicRequest] = field.array(TopicRequest, "0+")
    response_partition_limit: int = field.int32("0+", default=2000)
    cursor: DescribeTopicPartitionsRequestCursor | None = field.struct(
        DescribeTopicPartitionsRequestCursor, "0+", nullable="0+"
    )


class DescribeTopicPartitionsResponsePartition(Struct):
    """An element of ``partitions`` in ``DescribeTopicPartitionsResponseTopic``."""

    error_code: int = field.int16("0+")
    partition_index: int = field.int32("0+")
    leader_id: int = field.int32("0+")
    leader_epoch: int = field.int32("0+", default=-1)
    replica_nodes: Sequence[int] = field.int32_array("0+")
    isr_nodes: Sequence[int] = field.int32_array("0+")
    eligible_leader_replicas: Sequence[int] | None = field.int32_array("0+", nullable="0+", default=None)
    last_known_elr: Sequence[int] | None = field.int32_array("0+", nullable="0+", default=None)
    offline_replicas: Sequence[int] = field.int32_array("0+")


class DescribeTopicPartitionsResponseTopic(Struct):
    """An element of ``topics`` in ``DescribeTopicPartitionsResponse``."""

    error_code: int = field.int16("0+")
    name: str | None = field.string("0+", nullable="0+")
    topic_id: UUID = field.uuid("0+")
    is_internal: bool = field.boolean("0+")
    partitions: Sequence[DescribeTopicPartitionsResponsePartition] = field.array(
        DescribeTopicPartitionsResponsePartition, "0+"
    )
    topic_authorized_operations: int = field.int32("0+", default=-2147483648)


class DescribeTopicPartitionsResponseCursor(Struct):
    """The value of ``next_cursor`` in ``DescribeTopicPartitionsResponse``."""

    topic_name: str = field.string("0+")
    partition_index: int = field.int32("0+")


class DescribeTopicPartitionsResponse(Response, api_key=75, versions="0", flexible="0+"):
    """Topics, partitions and the cursor of the next page."""

    throttle_time_ms: int = field.int32("0+")
    topics: Sequence[DescribeTopicPartitionsResponseTopic] = field.array(DescribeTopicPartitionsResponseTopic, "0+")
    next_cursor: DescribeTopicPartitionsResponseCursor | None = field.struct(
        DescribeTopicPartitionsResponseCursor, "0+", nullable="0+"
    )
