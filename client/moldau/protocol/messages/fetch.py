"""Fetch: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct
from moldau.values import Buffer


class ReplicaState(Struct):
    """The value of ``replica_state`` in ``FetchRequest``."""

    replica_id: int = field.int32("15+", default=-1)
    replica_epoch: int = field.int64("15+", default=-1)


class FetchPartition(Struct):
    """An element of ``partitions`` in ``FetchTopic``."""

    partition: int = field.int32("0+")
    current_leader_epoch: int = field.int32("9+", default=-1)
    fetch_offset: int = field.int64("0+")
    last_fetched_epoch: int = field.int32("12+", default=-1)
    log_start_offset: int = field.int64("5+", default=-1)
    partition_max_bytes: int = field.int32("0+")
    replica_directory_id: UUID = field.uuid("17+", tag=0)
    high_watermark: int = field.int64("18+", default=9223372036854775807, tag=1)


class FetchTopic(Struct):
    """An element of ``topics`` in ``FetchRequest``."""

    topic: str = field.string("0-12")
    topic_id: UUID = field.uuid("13+")
    partitions: Sequence[FetchPartition] = field.array(FetchPartition, "0+")


class ForgottenTopic(Struct):
    """An element of ``forgotten_topics_data`` in ``FetchRequest``."""

    topic: str = field.string("7-12")
    topic_id: UUID = field.uuid("13+")
    partitions: Sequence[int] = field.int32_array("7+")


class FetchRequest(Request, api_key=1, versions="4-18", flexible="12+"):
    """Read record batches from partitions, as a consumer or as a follower.

    Limits are KIP-74's, sessions KIP-227's, epochs KIP-320's, topic ids KIP-516's.
    """

    cluster_id: str | None = field.string("12+", nullable="12+", default=None, tag=0)
    replica_id: int = field.int32("0-14", default=-1)
    replica_state: ReplicaState = field.struct(ReplicaState, "15+", tag=1)
    max_wait_ms: int = field.int32("0+")
    min_bytes: int = field.int32("0+")
    max_bytes: int = field.int32("3+", default=2147483647)
    isolation_level: int = field.int8("4+")
    session_id: int = field.int32("7+")
    session_epoch: int = field.int32("7+", default=-1)
    topics: Sequence[FetchTopic] = field.array(FetchTopic, "0+")
    forgotten_topics_data: Sequence[ForgottenTopic] = field.array(ForgottenTopic, "7+")
    rack_id: str = field.string("11+")


class EpochEndOffset(Struct):
    """The value of ``diverging_epoch`` in ``PartitionData``."""

    epoch: int = field.int32("12+", default=-1)
    end_offset: int = field.int64("12+", default=-1)


class LeaderIdAndEpoch(Struct):
    """The value of ``current_leader`` in ``PartitionData``."""

    leader_id: int = field.int32("12+", default=-1)
    leader_epoch: int = field.int32("12+", default=-1)


class SnapshotId(Struct):
    """The value of ``snapshot_id`` in ``PartitionData``."""

    end_offset: int = field.int64("0+", default=-1)
    epoch: int = field.int32("0+", default=-1)


class AbortedTransaction(Struct):
    """An element of ``aborted_transactions`` in ``PartitionData``."""

    producer_id: int = field.int64("4+")
    first_offset: int = field.int64("4+")


class PartitionData(Struct):
    """An element of ``partitions`` in ``FetchableTopicResponse``."""

    partition_index: int = field.int32("0+")
    error_code: int = field.int16("0+")
    high_watermark: int = field.int64("0+")
    last_stable_offset: int = field.int64("4+", default=-1)
    log_start_offset: int = field.int64("5+", default=-1)
    diverging_epoch: EpochEndOffset = field.struct(EpochEndOffset, "12+", tag=0)
    current_leader: LeaderIdAndEpoch = field.struct(LeaderIdAndEpoch, "12+", tag=1)
    snapshot_id: SnapshotId = field.struct(SnapshotId, "12+", tag=2)
    aborted_transactions: Sequence[AbortedTransaction] | None = field.array(AbortedTransaction, "4+", nullable="4+")
    preferred_read_replica: int = field.int32("11+", default=-1)
    records: Buffer | None = field.records("0+", nullable="0+")


class FetchableTopicResponse(Struct):
    """An element of ``responses`` in ``FetchResponse``."""

    topic: str = field.string("0-12")
    topic_id: UUID = field.uuid("13+")
    partitions: Sequence[PartitionData] = field.array(PartitionData, "0+")


class NodeEndpoint(Struct):
    """An element of ``node_endpoints`` in ``FetchResponse``."""

    node_id: int = field.int32("16+")
    host: str = field.string("16+")
    port: int = field.int32("16+")
    rack: str | None = field.string("16+", nullable="16+", default=None)


class FetchResponse(Response, api_key=1, versions="4-18", flexible="12+"):
    """Record batches, high watermarks, last stable offsets and diverging epochs (KIP-595)."""

    throttle_time_ms: int = field.int32("1+")
    error_code: int = field.int16("7+")
    session_id: int = field.int32("7+")
    responses: Sequence[FetchableTopicResponse] = field.array(FetchableTopicResponse, "0+")
    node_endpoints: Sequence[NodeEndpoint] = field.array(NodeEndpoint, "16+", tag=0)
