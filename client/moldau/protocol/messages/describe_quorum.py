"""DescribeQuorum: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class DescribeQuorumRequestPartitionData(Struct):
    """An element of ``partitions`` in ``DescribeQuorumRequestTopicData``."""

    partition_index: int = field.int32("0+")


class DescribeQuorumRequestTopicData(Struct):
    """An element of ``topics`` in ``DescribeQuorumRequest``."""

    topic_name: str = field.string("0+")
    partitions: Sequence[DescribeQuorumRequestPartitionData] = field.array(DescribeQuorumRequestPartitionData, "0+")


class DescribeQuorumRequest(Request, api_key=55, versions="0-2", flexible="0+"):
    """Describe the voters and observers of the metadata quorum (KIP-595, KIP-836)."""

    topics: Sequence[DescribeQuorumRequestTopicData] = field.array(DescribeQuorumRequestTopicData, "0+")


class ReplicaState(Struct):
    """An element of ``current_voters`` in ``DescribeQuorumResponsePartitionData``."""

    replica_id: int = field.int32("0+")
    replica_directory_id: UUID = field.uuid("2+")
    log_end_offset: int = field.int64("0+")
    last_fetch_timestamp: int = field.int64("1+", default=-1)
    last_caught_up_timestamp: int = field.int64("1+", default=-1)


class DescribeQuorumResponsePartitionData(Struct):
    """An element of ``partitions`` in ``DescribeQuorumResponseTopicData``."""

    partition_index: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("2+", nullable="2+")
    leader_id: int = field.int32("0+")
    leader_epoch: int = field.int32("0+")
    high_watermark: int = field.int64("0+")
    current_voters: Sequence[ReplicaState] = field.array(ReplicaState, "0+")
    observers: Sequence[ReplicaState] = field.array(ReplicaState, "0+")


class DescribeQuorumResponseTopicData(Struct):
    """An element of ``topics`` in ``DescribeQuorumResponse``."""

    topic_name: str = field.string("0+")
    partitions: Sequence[DescribeQuorumResponsePartitionData] = field.array(DescribeQuorumResponsePartitionData, "0+")


class Listener(Struct):
    """An element of ``listeners`` in ``Node``."""

    name: str = field.string("2+")
    host: str = field.string("2+")
    port: int = field.uint16("2+")


class Node(Struct):
    """An element of ``nodes`` in ``DescribeQuorumResponse``."""

    node_id: int = field.int32("2+")
    listeners: Sequence[Listener] = field.array(Listener, "2+")


class DescribeQuorumResponse(Response, api_key=55, versions="0-2", flexible="0+"):
    """Leader, epoch, high watermark and the progress of each replica."""

    error_code: int = field.int16("0+")
    error_message: str | None = field.string("2+", nullable="2+")
    topics: Sequence[DescribeQuorumResponseTopicData] = field.array(DescribeQuorumResponseTopicData, "0+")
    nodes: Sequence[Node] = field.array(Node, "2+")
