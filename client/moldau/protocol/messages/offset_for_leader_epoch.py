"""OffsetForLeaderEpoch: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class OffsetForLeaderPartition(Struct):
    """An element of ``partitions`` in ``OffsetForLeaderTopic``."""

    partition: int = field.int32("0+")
    current_leader_epoch: int = field.int32("2+", default=-1)
    leader_epoch: int = field.int32("0+")


class OffsetForLeaderTopic(Struct):
    """An element of ``topics`` in ``OffsetForLeaderEpochRequest``."""

    topic: str = field.string("0+")
    partitions: Sequence[OffsetForLeaderPartition] = field.array(OffsetForLeaderPartition, "0+")


class OffsetForLeaderEpochRequest(Request, api_key=23, versions="2-4", flexible="4+"):
    """Ask for the end offset of a leader epoch (KIP-101, KIP-320)."""

    replica_id: int = field.int32("3+", default=-2)
    topics: Sequence[OffsetForLeaderTopic] = field.array(OffsetForLeaderTopic, "0+")


class EpochEndOffset(Struct):
    """An element of ``partitions`` in ``OffsetForLeaderTopicResult``."""

    error_code: int = field.int16("0+")
    partition: int = field.int32("0+")
    leader_epoch: int = field.int32("1+", default=-1)
    end_offset: int = field.int64("0+", default=-1)


class OffsetForLeaderTopicResult(Struct):
    """An element of ``topics`` in ``OffsetForLeaderEpochResponse``."""

    topic: str = field.string("0+")
    partitions: Sequence[EpochEndOffset] = field.array(EpochEndOffset, "0+")


class OffsetForLeaderEpochResponse(Response, api_key=23, versions="2-4", flexible="4+"):
    """The largest epoch not above the one asked for, with its end offset."""

    throttle_time_ms: int = field.int32("2+")
    topics: Sequence[OffsetForLeaderTopicResult] = field.array(OffsetForLeaderTopicResult, "0+")
