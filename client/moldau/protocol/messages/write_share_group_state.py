"""WriteShareGroupState: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class StateBatch(Struct):
    """An element of ``state_batches`` in ``PartitionData``."""

    first_offset: int = field.int64("0+")
    last_offset: int = field.int64("0+")
    delivery_state: int = field.int8("0+")
    delivery_count: int = field.int16("0+")


class PartitionData(Struct):
    """An element of ``partitions`` in ``WriteStateData``."""

    partition: int = field.int32("0+")
    state_epoch: int = field.int32("0+")
    leader_epoch: int = field.int32("0+")
    start_offset: int = field.int64("0+")
    delivery_complete_count: int = field.int32("1+", default=-1)
    state_batches: Sequence[StateBatch] = field.array(StateBatch, "0+")


class WriteStateData(Struct):
    """An element of ``topics`` in ``WriteShareGroupStateRequest``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[PartitionData] = field.array(PartitionData, "0+")


class WriteShareGroupStateRequest(Request, api_key=85, versions="0-1", flexible="0+"):
    """Write changes of the durable state of share-partitions (KIP-932); sent by their leaders."""

    group_id: str = field.string("0+")
    topics: Sequence[WriteStateData] = field.array(WriteStateData, "0+")


class PartitionResult(Struct):
    """An element of ``partitions`` in ``WriteStateResult``."""

    partition: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)


class WriteStateResult(Struct):
    """An element of ``results`` in ``WriteShareGroupStateResponse``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[PartitionResult] = field.array(PartitionResult, "0+")


class WriteShareGroupStateResponse(Response, api_key=85, versions="0-1", flexible="0+"):
    """One error code for each share-partition."""

    results: Sequence[WriteStateResult] = field.array(WriteStateResult, "0+")
