"""TxnOffsetCommit: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class TxnOffsetCommitRequestPartition(Struct):
    """An element of ``partitions`` in ``TxnOffsetCommitRequestTopic``."""

    partition_index: int = field.int32("0+")
    committed_offset: int = field.int64("0+")
    committed_leader_epoch: int = field.int32("2+", default=-1)
    committed_metadata: str | None = field.string("0+", nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    """An element of ``topics`` in ``TxnOffsetCommitRequest``."""

    name: str = field.string("0-5")
    topic_id: UUID = field.uuid("6+")
    partitions: Sequence[TxnOffsetCommitRequestPartition] = field.array(TxnOffsetCommitRequestPartition, "0+")


class TxnOffsetCommitRequest(Request, api_key=28, versions="0-6", flexible="3+"):
    """Commit offsets as a part of a transaction (KIP-98, KIP-447)."""

    transactional_id: str = field.string("0+")
    group_id: str = field.string("0+")
    producer_id: int = field.int64("0+")
    producer_epoch: int = field.int16("0+")
    generation_id: int = field.int32("3+", default=-1)
    member_id: str = field.string("3+")
    group_instance_id: str | None = field.string("3+", nullable="3+", default=None)
    topics: Sequence[TxnOffsetCommitRequestTopic] = field.array(TxnOffsetCommitRequestTopic, "0+")


class TxnOffsetCommitResponsePartition(Struct):
    """An element of ``partitions`` in ``TxnOffsetCommitResponseTopic``."""

    partition_index: int = field.int32("0+")
    error_code: int = field.int16("0+")


class TxnOffsetCommitResponseTopic(Struct):
    """An element of ``topics`` in ``TxnOffsetCommitResponse``."""

    name: str = field.string("0-5")
    topic_id: UUID = field.uuid("6+")
    partitions: Sequence[TxnOffsetCommitResponsePartition] = field.array(TxnOffsetCommitResponsePartition, "0+")


class TxnOffsetCommitResponse(Response, api_key=28, versions="0-6", flexible="3+"):
    """One error code for each partition."""

    throttle_time_ms: int = field.int32("0+")
    topics: Sequence[TxnOffsetCommitResponseTopic] = field.array(TxnOffsetCommitResponseTopic, "0+")
