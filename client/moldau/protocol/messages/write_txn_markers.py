"""WriteTxnMarkers: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class WritableTxnMarkerTopic(Struct):
    """An element of ``topics`` in ``WritableTxnMarker``."""

    name: str = field.string("0+")
    partition_indexes: Sequence[int] = field.int32_array("0+")


class WritableTxnMarker(Struct):
    """An element of ``markers`` in ``WriteTxnMarkersRequest``."""

    producer_id: int = field.int64("0+")
    producer_epoch: int = field.int16("0+")
    transaction_result: bool = field.boolean("0+")
    topics: Sequence[WritableTxnMarkerTopic] = field.array(WritableTxnMarkerTopic, "0+")
    coordinator_epoch: int = field.int32("0+")
    transaction_version: int = field.int8("2+")


class WriteTxnMarkersRequest(Request, api_key=27, versions="1-2", flexible="1+"):
    """Write the control records that end transactions; sent by the coordinator (KIP-98)."""

    markers: Sequence[WritableTxnMarker] = field.array(WritableTxnMarker, "0+")


class WritableTxnMarkerPartitionResult(Struct):
    """An element of ``partitions`` in ``WritableTxnMarkerTopicResult``."""

    partition_index: int = field.int32("0+")
    error_code: int = field.int16("0+")


class WritableTxnMarkerTopicResult(Struct):
    """An element of ``topics`` in ``WritableTxnMarkerResult``."""

    name: str = field.string("0+")
    partitions: Sequence[WritableTxnMarkerPartitionResult] = field.array(WritableTxnMarkerPartitionResult, "0+")


class WritableTxnMarkerResult(Struct):
    """An element of ``markers`` in ``WriteTxnMarkersResponse``."""

    producer_id: int = field.int64("0+")
    topics: Sequence[WritableTxnMarkerTopicResult] = field.array(WritableTxnMarkerTopicResult, "0+")


class WriteTxnMarkersResponse(Response, api_key=27, versions="1-2", flexible="1+"):
    """One error code for each partition."""

    markers: Sequence[WritableTxnMarkerResult] = field.array(WritableTxnMarkerResult, "0+")
