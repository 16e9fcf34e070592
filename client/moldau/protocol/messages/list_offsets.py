"""ListOffsets: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class ListOffsetsPartition(Struct):
    """An element of ``partitions`` in ``ListOffsetsTopic``."""

    partition_index: int = field.int32("0+")
    current_leader_epoch: int = field.int32("4+", default=-1)
    timestamp: int = field.int64("0+")


class ListOffsetsTopic(Struct):
    """An element of ``topics`` in ``ListOffsetsRequest``."""

    name: str = field.string("0+")
    partitions: Sequence[ListOffsetsPartition] = field.array(ListOffsetsPartition, "0+")


class ListOffsetsRequest(Request, api_key=2, versions="1-11", flexible="6+"):
    """Look up the offset of a timestamp, or of the start, end or largest timestamp (KIP-79, KIP-734)."""

    replica_id: int = field.int32("0+")
    isolation_level: int = field.int8("2+")
    topics: Sequence[ListOffsetsTopic] = field.array(ListOffsetsTopic, "0+")
    timeout_ms: int = field.int32("10+")


class ListOffsetsPartitionResponse(Struct):
    """An element of ``partitions`` in ``ListOffsetsTopicResponse``."""

    partition_index: int = field.int32("0+")
    error_code: int = field.int16("0+")
    timestamp: int = field.int64("1+", default=-1)
    offset: int = field.int64("1+", default=-1)
    leader_epoch: int = field.int32("4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    """An element of ``topics`` in ``ListOffsetsResponse``."""

    name: str = field.string("0+")
    partitions: Sequence[ListOffsetsPartitionResponse] = field.array(ListOffsetsPartitionResponse, "0+")


class ListOffsetsResponse(Response, api_key=2, versions="1-11", flexible="6+"):
    """The offset found for each partition, with its timestamp and leader epoch."""

    throttle_time_ms: int = field.int32("2+")
    topics: Sequence[ListOffsetsTopicResponse] = field.array(ListOffsetsTopicResponse, "0+")
