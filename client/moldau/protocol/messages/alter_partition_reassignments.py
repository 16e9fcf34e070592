"""AlterPartitionReassignments: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class ReassignablePartition(Struct):
    """An element of ``partitions`` in ``ReassignableTopic``."""

    partition_index: int = field.int32("0+")
    replicas: Sequence[int] | None = field.int32_array("0+", nullable="0+", default=None)


class ReassignableTopic(Struct):
    """An element of ``topics`` in ``AlterPartitionReassignmentsRequest``."""

    name: str = field.string("0+")
    partitions: Sequence[ReassignablePartition] = field.array(ReassignablePartition, "0+")


class AlterPartitionReassignmentsRequest(Request, api_key=45, versions="0-1", flexible="0+"):
    """Start, change or cancel moves of replicas (KIP-455)."""

    timeout_ms: int = field.int32("0+", default=60000)
    allow_replication_factor_change: bool = field.boolean("1+", default=True)
    topics: Sequence[ReassignableTopic] = field.array(ReassignableTopic, "0+")


class ReassignablePartitionResponse(Struct):
    """An element of ``partitions`` in ``ReassignableTopicResponse``."""

    partition_index: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")


class ReassignableTopicResponse(Struct):
    """An element of ``responses`` in ``AlterPartitionReassignmentsResponse``."""

    name: str = field.string("0+")
    partitions: Sequence[ReassignablePartitionResponse] = field.array(ReassignablePartitionResponse, "0+")


class AlterPartitionReassignmentsResponse(Response, api_key=45, versions="0-1", flexible="0+"):
    """One outcome for each partition."""

    throttle_time_ms: int = field.int32("0+")
    allow_replication_factor_change: bool = field.boolean("1+", default=True)
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")
    responses: Sequence[ReassignableTopicResponse] = field.array(ReassignableTopicResponse, "0+")
