"""ReadShareGroupStateSummary: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class PartitionData(Struct):
    """An element of ``partitions`` in ``ReadStateSummaryData``."""

    partition: int = field.int32("0+")
    leader_epoch: int = field.int32("0+")


class ReadStateSummaryData(Struct):
    """An element of ``topics`` in ``ReadShareGroupStateSummaryRequest``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[PartitionData] = field.array(PartitionData, "0+")


class ReadShareGroupStateSummaryRequest(Request, api_key=87, versions="0-1", flexible="0+"):
    """Read the start offsets of share-partitions (KIP-932); sent by group coordinators."""

    group_id: str = field.string("0+")
    topics: Sequence[ReadStateSummaryData] = field.array(ReadStateSummaryData, "0+")


class PartitionResult(Struct):
    """An element of ``partitions`` in ``ReadStateSummaryResult``."""

    partition: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)
    state_epoch: int = field.int32("0+")
    leader_epoch: int = field.int32("0+")
    start_offset: int = field.int64("0+")
    delivery_complete_count: int = field.int32("1+", default=-1)


class ReadStateSummaryResult(Struct):
    """An element of ``results`` in ``ReadShareGroupStateSummaryResponse``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[PartitionResult] = field.array(PartitionResult, "0+")


class ReadShareGroupStateSummaryResponse(Response, api_key=87, versions="0-1", flexible="0+"):
    """The start offset and epochs of each share-partition."""

    results: Sequence[ReadStateSummaryResult] = field.array(ReadStateSummaryResult, "0+")
