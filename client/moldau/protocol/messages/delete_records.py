"""DeleteRecords: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class DeleteRecordsPartition(Struct):
    """An element of ``partitions`` in ``DeleteRecordsTopic``."""

    partition_index: int = field.int32("0+")
    offset: int = field.int64("0+")


class DeleteRecordsTopic(Struct):
    """An element of ``topics`` in ``DeleteRecordsRequest``."""

    name: str = field.string("0+")
    partitions: Sequence[DeleteRecordsPartition] = field.array(DeleteRecordsPartition, "0+")


class DeleteRecordsRequest(Request, api_key=21, versions="0-2", flexible="2+"):
    """Raise the log start offset of partitions (KIP-107)."""

    topics: Sequence[DeleteRecordsTopic] = field.array(DeleteRecordsTopic, "0+")
    timeout_ms: int = field.int32("0+")


class DeleteRecordsPartitionResult(Struct):
    """An element of ``partitions`` in ``DeleteRecordsTopicResult``."""

    partition_index: int = field.int32("0+")
    low_watermark: int = field.int64("0+")
    error_code: int = field.int16("0+")


class DeleteRecordsTopicResult(Struct):
    """An element of ``topics`` in ``DeleteRecordsResponse``."""

    name: str = field.string("0+")
    partitions: Sequence[DeleteRecordsPartitionResult] = field.array(DeleteRecordsPartitionResult, "0+")


class DeleteRecordsResponse(Response, api_key=21, versions="0-2", flexible="2+"):
    """The new low watermark of each partition."""

    throttle_time_ms: int = field.int32("0+")
    topics: Sequence[DeleteRecordsTopicResult] = field.array(DeleteRecordsTopicResult, "0+")
