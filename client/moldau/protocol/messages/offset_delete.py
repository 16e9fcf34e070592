"""OffsetDelete: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class OffsetDeleteRequestPartition(Struct):
    """An element of ``partitions`` in ``OffsetDeleteRequestTopic``."""

    partition_index: int = field.int32("0+")


class OffsetDeleteRequestTopic(Struct):
    """An element of ``topics`` in ``OffsetDeleteRequest``."""

    name: str = field.string("0+")
    partitions: Sequence[OffsetDeleteRequestPartition] = field.array(OffsetDeleteRequestPartition, "0+")


class OffsetDeleteRequest(Request, api_key=47, versions="0"):
    """Delete committed offsets of a group (KIP-496)."""

    group_id: str = field.string("0+")
    topics: Sequence[OffsetDeleteRequestTopic] = field.array(OffsetDeleteRequestTopic, "0+")


class OffsetDeleteResponsePartition(Struct):
    """An element of ``partitions`` in ``OffsetDeleteResponseTopic``."""

    partition_index: int = field.int32("0+")
    error_code: int = field.int16("0+")


class OffsetDeleteResponseTopic(Struct):
    """An element of ``topics`` in ``OffsetDeleteResponse``."""

    name: str = field.string("0+")
    partitions: Sequence[OffsetDeleteResponsePartition] = field.array(OffsetDeleteResponsePartition, "0+")


class OffsetDeleteResponse(Response, api_key=47, versions="0"):
    """One error code for each partition."""

    error_code: int = field.int16("0+")
    throttle_time_ms: int = field.int32("0+")
    topics: Sequence[OffsetDeleteResponseTopic] = field.array(OffsetDeleteResponseTopic, "0+")
