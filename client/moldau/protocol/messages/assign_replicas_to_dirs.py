"""AssignReplicasToDirs: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class PartitionData(Struct):
    partition_index: int = field.int32("0+")


class TopicData(Struct):
    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[PartitionData] = field.array(PartitionData, "0+")


class DirectoryData(Struct):
    id: UUID = field.uuid("0+")
    topics: Sequence[TopicData] = field.array(TopicData, "0+")


class AssignReplicasToDirsRequest(Request, api_key=73, versions="0", flexible="0+"):
    """A broker tells the controller which log directories hold its replicas (KIP-858)."""

    broker_id: int = field.int32("0+")
    broker_epoch: int = field.int64("0+", default=-1)
    directories: Sequence[DirectoryData] = field.array(DirectoryData, "0+")


class PartitionResult(Struct):
    partition_index: int = field.int32("0+")
    error_code: int = field.int16("0+")


class TopicResult(Struct):
    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[PartitionResult] = field.array(PartitionResult, "0+")


class DirectoryResult(Struct):
    id: UUID = field.uuid("0+")
    topics: Sequence[TopicResult] = field.array(TopicResult, "0+")


class AssignReplicasToDirsResponse(Response, api_key=73, versions="0", flexible="0+"):
    """One outcome for each partition."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    directories: Sequence[DirectoryResult] = field.array(DirectoryResult, "0+")
