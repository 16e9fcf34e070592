"""DeleteShareGroupState: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class PartitionData(Struct):
    """An element of ``partitions`` in ``DeleteStateData``."""

    partition: int = field.int32("0+")


class DeleteStateData(Struct):
    """An element of ``topics`` in ``DeleteShareGroupStateRequest``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[PartitionData] = field.array(PartitionData, "0+")


class DeleteShareGroupStateRequest(Request, api_key=86, versions="0", flexible="0+"):
    """Delete the durable state of share-partitions (KIP-932); sent by group coordinators."""

    group_id: str = field.string("0+")
    topics: Sequence[DeleteStateData] = field.array(DeleteStateData, "0+")


class PartitionResult(Struct):
    """An element of ``partitions`` in ``DeleteStateResult``."""

    partition: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)


class DeleteStateResult(Struct):
    """An element of ``results`` in ``DeleteShareGroupStateResponse``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[PartitionResult] = field.array(PartitionResult, "0+")


class DeleteShareGroupStateResponse(Response, api_key=86, versions="0", flexible="0+"):
    """One error code for each share-partition."""

    results: Sequence[DeleteStateResult] = field.array(DeleteStateResult, "0+")
