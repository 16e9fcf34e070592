"""AssignReplicasToDirs: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class PartitionData(Struct):
    """An element of ``partitions`` in ``TopicData``."""

    partition_index: int = field.int32("0+")


class TopicData(Struct):
    """An element of ``topics`` in ``DirectoryData``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[PartitionData] = field.array(PartitionData, "0+")


class DirectoryData(Struct):
    """An element of ``directories`` in ``AssignReplicasToDirsRequest``."""

    id: UUID = field.uuid("0+")
    topics: Sequence[TopicData] = field.array(TopicData, "0+")


class AssignReplicasToDirsRequest(Request, api_key=73, versions="0", flexible="0+"):
    """A broker reports to the controller which log directories hold its replicas (KIP-858)."""

    broker_id: int = field.int32("0+")
    broker_epoch: int = field.int64("0+", default=-1)
    directories: Sequence[DirectoryData] = field.array(DirectoryData, "0+")


class PartitionResult(Struct):
    """An element of ``partitions`` in ``TopicResult``."""

    partition_index: int = field.int32("0+")
    error_code: int = field.int16("0+")


class TopicResult(Struct):
    """An element of ``topics`` in ``DirectoryResult``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[PartitionResult] = field.array(PartitionResult, "0+")


class DirectoryResult(Struct):
    """An element of ``directories`` in ``AssignReplicasToDirsResponse``."""

    id: UUID = field.uuid("0+")
    topics: Sequence[TopicResult] = field.array(TopicResult, "0+")


class AssignReplicasToDirsResponse(Response, api_key=73, versions="0", flexible="0+"):
    """One outcome for each partition."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    directories: Sequence[DirectoryResult] = field.array(DirectoryResult, "0+")
