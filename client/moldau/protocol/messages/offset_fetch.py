"""OffsetFetch: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class OffsetFetchRequestTopic(Struct):
    """An element of ``topics`` in ``OffsetFetchRequest``."""

    name: str = field.string("0-7")
    partition_indexes: Sequence[int] = field.int32_array("0-7")


class OffsetFetchRequestTopics(Struct):
    """An element of ``topics`` in ``OffsetFetchRequestGroup``."""

    name: str = field.string("8-9")
    topic_id: UUID = field.uuid("10+")
    partition_indexes: Sequence[int] = field.int32_array("8+")


class OffsetFetchRequestGroup(Struct):
    """An element of ``groups`` in ``OffsetFetchRequest``."""

    group_id: str = field.string("8+")
    member_id: str | None = field.string("9+", nullable="9+", default=None)
    member_epoch: int = field.int32("9+", default=-1)
    topics: Sequence[OffsetFetchRequestTopics] | None = field.array(OffsetFetchRequestTopics, "8+", nullable="8+")


class OffsetFetchRequest(Request, api_key=9, versions="1-10", flexible="6+"):
    """Read the committed offsets of one group, or of many (KIP-709)."""

    group_id: str = field.string("0-7")
    topics: Sequence[OffsetFetchRequestTopic] | None = field.array(OffsetFetchRequestTopic, "0-7", nullable="2-7")
    groups: Sequence[OffsetFetchRequestGroup] = field.array(OffsetFetchRequestGroup, "8+")
    require_stable: bool = field.boolean("7+")


class OffsetFetchResponsePartition(Struct):
    """An element of ``partitions`` in ``OffsetFetchResponseTopic``."""

    partition_index: int = field.int32("0-7")
    committed_offset: int = field.int64("0-7")
    committed_leader_epoch: int = field.int32("5-7", default=-1)
    metadata: str | None = field.string("0-7", nullable="0-7")
    error_code: int = field.int16("0-7")


class OffsetFetchResponseTopic(Struct):
    """An element of ``topics`` in ``OffsetFetchResponse``."""

    name: str = field.string("0-7")
    partitions: Sequence[OffsetFetchResponsePartition] = field.array(OffsetFetchResponsePartition, "0-7")


class OffsetFetchResponsePartitions(Struct):
    """An element of ``partitions`` in ``OffsetFetchResponseTopics``."""

    partition_index: int = field.int32("8+")
    committed_offset: int = field.int64("8+")
    committed_leader_epoch: int = field.int32("8+", default=-1)
    metadata: str | None = field.string("8+", nullable="8+")
    error_code: int = field.int16("8+")


class OffsetFetchResponseTopics(Struct):
    """An element of ``topics`` in ``OffsetFetchResponseGroup``."""

    name: str = field.string("8-9")
    topic_id: UUID = field.uuid("10+")
    partitions: Sequence[OffsetFetchResponsePartitions] = field.array(OffsetFetchResponsePartitions, "8+")


class OffsetFetchResponseGroup(Struct):
    """An element of ``groups`` in ``OffsetFetchResponse``."""

    group_id: str = field.string("8+")
    topics: Sequence[OffsetFetchResponseTopics] = field.array(OffsetFetchResponseTopics, "8+")
    error_code: int = field.int16("8+")


class OffsetFetchResponse(Response, api_key=9, versions="1-10", flexible="6+"):
    """Committed offsets; -1 where there is none."""

    throttle_time_ms: int = field.int32("3+")
    topics: Sequence[OffsetFetchResponseTopic] = field.array(OffsetFetchResponseTopic, "0-7")
    error_code: int = field.int16("2-7")
    groups: Sequence[OffsetFetchResponseGroup] = field.array(OffsetFetchResponseGroup, "8+")
