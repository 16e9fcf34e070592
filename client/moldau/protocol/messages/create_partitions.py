"""CreatePartitions: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class CreatePartitionsAssignment(Struct):
    """An element of ``assignments`` in ``CreatePartitionsTopic``."""

    broker_ids: Sequence[int] = field.int32_array("0+")


class CreatePartitionsTopic(Struct):
    """An element of ``topics`` in ``CreatePartitionsRequest``."""

    name: str = field.string("0+")
    count: int = field.int32("0+")
    assignments: Sequence[CreatePartitionsAssignment] | None = field.array(
        CreatePartitionsAssignment, "0+", nullable="0+"
    )


class CreatePartitionsRequest(Request, api_key=37, versions="0-3", flexible="2+"):
    """Add partitions to topics (KIP-195)."""

    topics: Sequence[CreatePartitionsTopic] = field.array(CreatePartitionsTopic, "0+")
    timeout_ms: int = field.int32("0+")
    validate_only: bool = field.boolean("0+")


class CreatePartitionsTopicResult(Struct):
    """An element of ``results`` in ``CreatePartitionsResponse``."""

    name: str = field.string("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)


class CreatePartitionsResponse(Response, api_key=37, versions="0-3", flexible="2+"):
    """One outcome for each topic."""

    throttle_time_ms: int = field.int32("0+")
    results: Sequence[CreatePartitionsTopicResult] = field.array(CreatePartitionsTopicResult, "0+")
