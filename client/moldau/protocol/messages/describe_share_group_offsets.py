"""DescribeShareGroupOffsets: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class DescribeShareGroupOffsetsRequestTopic(Struct):
    """An element of ``topics`` in ``DescribeShareGroupOffsetsRequestGroup``."""

    topic_name: str = field.string("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class DescribeShareGroupOffsetsRequestGroup(Struct):
    """An element of ``groups`` in ``DescribeShareGroupOffsetsRequest``; null topics stand for all."""

    group_id: str = field.string("0+")
    topics: Sequence[DescribeShareGroupOffsetsRequestTopic] | None = field.array(
        DescribeShareGroupOffsetsRequestTopic, "0+", nullable="0+"
    )


class DescribeShareGroupOffsetsRequest(Request, api_key=90, versions="0-1", flexible="0+"):
    """Read the start offsets of share groups (KIP-932)."""

    groups: Sequence[DescribeShareGroupOffsetsRequestGroup] = field.array(DescribeShareGroupOffsetsRequestGroup, "0+")


class DescribeShareGroupOffsetsResponsePartition(Struct):
    """An element of ``partitions`` in ``DescribeShareGroupOffsetsResponseTopic``."""

    partition_index: int = field.int32("0+")
    start_offset: int = field.int64("0+")
    leader_epoch: int = field.int32("0+")
    lag: int = field.int64("1+", default=-1)
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)


class DescribeShareGroupOffsetsResponseTopic(Struct):
    """An element of ``topics`` in ``DescribeShareGroupOffsetsResponseGroup``."""

    topic_name: str = field.string("0+")
    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[DescribeShareGroupOffsetsResponsePartition] = field.array(
        DescribeShareGroupOffsetsResponsePartition, "0+"
    )


class DescribeShareGroupOffsetsResponseGroup(Struct):
    """An element of ``groups`` in ``DescribeShareGroupOffsetsResponse``."""

    group_id: str = field.string("0+")
    topics: Sequence[DescribeShareGroupOffsetsResponseTopic] = field.array(DescribeShareGroupOffsetsResponseTopic, "0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)


class DescribeShareGroupOffsetsResponse(Response, api_key=90, versions="0-1", flexible="0+"):
    """The start offset of each share-partition, or an error code for it or for its group."""

    throttle_time_ms: int = field.int32("0+")
    groups: Sequence[DescribeShareGroupOffsetsResponseGroup] = field.array(DescribeShareGroupOffsetsResponseGroup, "0+")
