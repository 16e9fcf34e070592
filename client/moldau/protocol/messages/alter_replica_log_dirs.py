"""AlterReplicaLogDirs: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class AlterReplicaLogDirTopic(Struct):
    """An element of ``topics`` in ``AlterReplicaLogDir``."""

    name: str = field.string("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class AlterReplicaLogDir(Struct):
    """An element of ``dirs`` in ``AlterReplicaLogDirsRequest``."""

    path: str = field.string("0+")
    topics: Sequence[AlterReplicaLogDirTopic] = field.array(AlterReplicaLogDirTopic, "0+")


class AlterReplicaLogDirsRequest(Request, api_key=34, versions="1-2", flexible="2+"):
    """Move replicas between log directories of a broker (KIP-113)."""

    dirs: Sequence[AlterReplicaLogDir] = field.array(AlterReplicaLogDir, "0+")


class AlterReplicaLogDirPartitionResult(Struct):
    """An element of ``partitions`` in ``AlterReplicaLogDirTopicResult``."""

    partition_index: int = field.int32("0+")
    error_code: int = field.int16("0+")


class AlterReplicaLogDirTopicResult(Struct):
    """An element of ``results`` in ``AlterReplicaLogDirsResponse``."""

    topic_name: str = field.string("0+")
    partitions: Sequence[AlterReplicaLogDirPartitionResult] = field.array(AlterReplicaLogDirPartitionResult, "0+")


class AlterReplicaLogDirsResponse(Response, api_key=34, versions="1-2", flexible="2+"):
    """One error code for each partition."""

    throttle_time_ms: int = field.int32("0+")
    results: Sequence[AlterReplicaLogDirTopicResult] = field.array(AlterReplicaLogDirTopicResult, "0+")
