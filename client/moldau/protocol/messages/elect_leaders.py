"""ElectLeaders: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class TopicPartitions(Struct):
    """An element of ``topic_partitions`` in ``ElectLeadersRequest``."""

    topic: str = field.string("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class ElectLeadersRequest(Request, api_key=43, versions="0-2", flexible="2+"):
    """Elect the preferred leader, or any live replica, of partitions (KIP-183, KIP-460)."""

    election_type: int = field.int8("1+")
    topic_partitions: Sequence[TopicPartitions] | None = field.array(TopicPartitions, "0+", nullable="0+")
    timeout_ms: int = field.int32("0+", default=60000)


class PartitionResult(Struct):
    """An element of ``partition_result`` in ``ReplicaElectionResult``."""

    partition_id: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")


class ReplicaElectionResult(Struct):
    """An element of ``replica_election_results`` in ``ElectLeadersResponse``."""

    topic: str = field.string("0+")
    partition_result: Sequence[PartitionResult] = field.array(PartitionResult, "0+")


class ElectLeadersResponse(Response, api_key=43, versions="0-2", flexible="2+"):
    """One outcome for each partition."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("1+")
    replica_election_results: Sequence[ReplicaElectionResult] = field.array(ReplicaElectionResult, "0+")
