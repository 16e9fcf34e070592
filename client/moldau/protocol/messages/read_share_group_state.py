"""ReadShareGroupState: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class PartitionData(Struct):
    """An element of ``partitions`` in ``ReadStateData``."""

    partition: int = field.int32("0+")
    leader_epoch: int = field.int32("0+")


class ReadStateData(Struct):
    """An element of ``topics`` in ``ReadShareGroupStateRequest``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[PartitionData] = field.array(PartitionData, "0+")


class ReadShareGroupStateRequest(Request, api_key=84, versions="0", flexible="0+"):
    """Read the durable state of share-partitions (KIP-932); sent by their leaders."""

    group_id: str = field.string("0+")
    topics: Sequence[ReadStateData] = field.array(ReadStateData, "0+")


class StateBatch(Struct):
    """An element of ``state_batches`` in ``PartitionResult``."""

    first_offset: int = field.int64("0+")
    last_offset: int = field.int64("0+")
    delivery_state: int = field.int8("0+")
    delivery_count: int = field.int16("0+")


class PartitionResult(Struct):
    """An element of ``partitions`` in ``ReadStateResult``."""

    partition: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)
    state_epoch: int = field.int32("0+")
    start_offset: int = field.int64("0+")
    state_batches: Sequence[StateBatch] = field.array(StateBatch, "0+")


class ReadStateResult(Struct):
    """An element of ``results`` in ``ReadShareGroupStateResponse``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[PartitionResult] = field.array(PartitionResult, "0+")


class ReadShareGroupStateResponse(Response, api_key=84, versions="0", flexible="0+"):
    """The state of each share-partition."""

    results: Sequence[ReadStateResult] = field.array(ReadStateResult, "0+")
