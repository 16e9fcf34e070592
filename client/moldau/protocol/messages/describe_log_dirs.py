"""DescribeLogDirs: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class DescribableLogDirTopic(Struct):
    """An element of ``topics`` in ``DescribeLogDirsRequest``."""

    topic: str = field.string("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class DescribeLogDirsRequest(Request, api_key=35, versions="1-5", flexible="2+"):
    """Ask for the content of a broker's log directories (KIP-113, KIP-827 volume sizes)."""

    topics: Sequence[DescribableLogDirTopic] | None = field.array(DescribableLogDirTopic, "0+", nullable="0+")


class DescribeLogDirsPartition(Struct):
    """An element of ``partitions`` in ``DescribeLogDirsTopic``."""

    partition_index: int = field.int32("0+")
    partition_size: int = field.int64("0+")
    offset_lag: int = field.int64("0+")
    is_future_key: bool = field.boolean("0+")


class DescribeLogDirsTopic(Struct):
    """An element of ``topics`` in ``DescribeLogDirsResult``."""

    name: str = field.string("0+")
    partitions: Sequence[DescribeLogDirsPartition] = field.array(DescribeLogDirsPartition, "0+")


class DescribeLogDirsResult(Struct):
    """An element of ``results`` in ``DescribeLogDirsResponse``."""

    error_code: int = field.int16("0+")
    log_dir: str = field.string("0+")
    topics: Sequence[DescribeLogDirsTopic] = field.array(DescribeLogDirsTopic, "0+")
    total_bytes: int = field.int64("4+", default=-1)
    usable_bytes: int = field.int64("4+", default=-1)
    is_cordoned: bool = field.boolean("5+")


class DescribeLogDirsResponse(Response, api_key=35, versions="1-5", flexible="2+"):
    """Directories with the sizes of their partitions."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("3+")
    results: Sequence[DescribeLogDirsResult] = field.array(DescribeLogDirsResult, "0+")
