"""InitializeShareGroupState: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class PartitionData(Struct):
    """An element of ``partitions`` in ``InitializeStateData``."""

    partition: int = field.int32("0+")
    state_epoch: int = field.int32("0+")
    start_offset: int = field.int64("0+")


class InitializeStateData(Struct):
    """An element of ``topics`` in ``InitializeShareGroupStateRequest``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[PartitionData] = field.array(PartitionData, "0+")


class InitializeShareGroupStateRequest(Request, api_key=83, versions="0", flexible="0+"):
    """Begin the durable state of share-partitions (KIP-932); sent by group coordinators."""

    group_id: str = field.string("0+")
    topics: Sequence[InitializeStateData] = field.array(InitializeStateData, "0+")


class PartitionResult(Struct):
    """An element of ``partitions`` in ``InitializeStateResult``."""

    partition: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)


class InitializeStateResult(Struct):
    """An element of ``results`` in ``InitializeShareGroupStateResponse``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[PartitionResult] = field.array(PartitionResult, "0+")


class InitializeShareGroupStateResponse(Response, api_key=83, versions="0", flexible="0+"):
    """One error code for each share-partition."""

    results: Sequence[InitializeStateResult] = field.array(InitializeStateResult, "0+")
