"""OffsetCommit: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class OffsetCommitRequestPartition(Struct):
    """An element of ``partitions`` in ``OffsetCommitRequestTopic``."""

    partition_index: int = field.int32("0+")
    committed_offset: int = field.int64("0+")
    committed_leader_epoch: int = field.int32("6+", default=-1)
    committed_metadata: str | None = field.string("0+", nullable="0+")


class OffsetCommitRequestTopic(Struct):
    """An element of ``topics`` in ``OffsetCommitRequest``."""

    name: str = field.string("0-9")
    topic_id: UUID = field.uuid("10+")
    partitions: Sequence[OffsetCommitRequestPartition] = field.array(OffsetCommitRequestPartition, "0+")


class OffsetCommitRequest(Request, api_key=8, versions="2-10", flexible="8+"):
    """Store the offsets that a consumer group has processed (KIP-345 static members)."""

    group_id: str = field.string("0+")
    generation_id_or_member_epoch: int = field.int32("1+", default=-1)
    member_id: str = field.string("1+")
    group_instance_id: str | None = field.string("7+", nullable="7+", default=None)
    retention_time_ms: int = field.int64("2-4", default=-1)
    topics: Sequence[OffsetCommitRequestTopic] = field.array(OffsetCommitRequestTopic, "0+")


class OffsetCommitResponsePartition(Struct):
    """An element of ``partitions`` in ``OffsetCommitResponseTopic``."""

    partition_index: int = field.int32("0+")
    error_code: int = field.int16("0+")


class OffsetCommitResponseTopic(Struct):
    """An element of ``topics`` in ``OffsetCommitResponse``."""

    name: str = field.string("0-9")
    topic_id: UUID = field.uuid("10+")
    partitions: Sequence[OffsetCommitResponsePartition] = field.array(OffsetCommitResponsePartition, "0+")


class OffsetCommitResponse(Response, api_key=8, versions="2-10", flexible="8+"):
    """One error code for each partition."""

    throttle_time_ms: int = field.int32("3+")
    topics: Sequence[OffsetCommitResponseTopic] = field.array(OffsetCommitResponseTopic, "0+")
