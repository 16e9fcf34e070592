"""ListPartitionReassignments: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class ListPartitionReassignmentsTopics(Struct):
    """An element of ``topics`` in ``ListPartitionReassignmentsRequest``."""

    name: str = field.string("0+")
    partition_indexes: Sequence[int] = field.int32_array("0+")


class ListPartitionReassignmentsRequest(Request, api_key=46, versions="0", flexible="0+"):
    """List the moves of replicas in progress (KIP-455)."""

    timeout_ms: int = field.int32("0+", default=60000)
    topics: Sequence[ListPartitionReassignmentsTopics] | None = field.array(
        ListPartitionReassignmentsTopics, "0+", nullable="0+", default=None
    )


class OngoingPartitionReassignment(Struct):
    """An element of ``partitions`` in ``OngoingTopicReassignment``."""

    partition_index: int = field.int32("0+")
    replicas: Sequence[int] = field.int32_array("0+")
    adding_replicas: Sequence[int] = field.int32_array("0+")
    removing_replicas: Sequence[int] = field.int32_array("0+")


class OngoingTopicReassignment(Struct):
    """An element of ``topics`` in ``ListPartitionReassignmentsResponse``."""

    name: str = field.string("0+")
    partitions: Sequence[OngoingPartitionReassignment] = field.array(OngoingPartitionReassignment, "0+")


class ListPartitionReassignmentsResponse(Response, api_key=46, versions="0", flexible="0+"):
    """Replicas, added and removed, of each partition that moves."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")
    topics: Sequence[OngoingTopicReassignment] = field.array(OngoingTopicReassignment, "0+")
