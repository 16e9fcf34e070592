"""AlterShareGroupOffsets: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class AlterShareGroupOffsetsRequestPartition(Struct):
    """An element of ``partitions`` in ``AlterShareGroupOffsetsRequestTopic``."""

    partition_index: int = field.int32("0+")
    start_offset: int = field.int64("0+")


class AlterShareGroupOffsetsRequestTopic(Struct):
    """An element of ``topics`` in ``AlterShareGroupOffsetsRequest``."""

    topic_name: str = field.string("0+")
    partitions: Sequence[AlterShareGroupOffsetsRequestPartition] = field.array(
        AlterShareGroupOffsetsRequestPartition, "0+"
    )


class AlterShareGroupOffsetsRequest(Request, api_key=91, versions="0", flexible="0+"):
    """Set the start offsets of an empty share group (KIP-932)."""

    group_id: str = field.string("0+")
    topics: Sequence[AlterShareGroupOffsetsRequestTopic] = field.array(AlterShareGroupOffsetsRequestTopic, "0+")


class AlterShareGroupOffsetsResponsePartition(Struct):
    """An element of ``partitions`` in ``AlterShareGroupOffsetsResponseTopic``."""

    partition_index: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)


class AlterShareGroupOffsetsResponseTopic(Struct):
    """An element of ``responses`` in ``AlterShareGroupOffsetsResponse``."""

    topic_name: str = field.string("0+")
    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[AlterShareGroupOffsetsResponsePartition] = field.array(
        AlterShareGroupOffsetsResponsePartition, "0+"
    )


class AlterShareGroupOffsetsResponse(Response, api_key=91, versions="0", flexible="0+"):
    """One error code for each share-partition, or one for the request."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)
    responses: Sequence[AlterShareGroupOffsetsResponseTopic] = field.array(AlterShareGroupOffsetsResponseTopic, "0+")
