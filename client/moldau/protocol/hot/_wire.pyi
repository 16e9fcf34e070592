"""Short cuts of ``hot.produce`` and ``hot.fetch``: what clients usually send, read and written in typed Cython.

Each returns exactly what the general function returns, or None to leave the work to it. None raises ``DecodeError``.
"""

from collections.abc import Sequence

from moldau.protocol.hot.fetch import (
    FetchAnswerView,
    FetchedPartition,
    FetchPartitionResult,
    FetchPartitionView,
    FetchRequestView,
    P,
)
from moldau.protocol.hot.produce import ProducePartitionResult, ProduceRequestView

def read_produce(
    frame: memoryview, position: int, topic_ids: bool, entries_max: int, make: type[ProduceRequestView], /
) -> ProduceRequestView | None:
    """Reads a body of a flexible version; ``make`` is the class of the result."""

def read_one_produce(
    frame: memoryview, topic_ids: bool, /
) -> tuple[int, int, int, tuple[bytes, int], memoryview] | None:
    """Reads a whole frame of a flexible version that names one partition of one topic.

    Returns correlation id, acks, timeout, the raw topic with the index, and the records. None also for a transactional
    id, and for records that are compressed, transactional, or no batch.
    """

def read_fetch(
    frame: memoryview,
    position: int,
    version: int,
    entries_max: int,
    make: type[FetchRequestView],
    make_partition: type[FetchPartitionView],
    no_directory: bytes,
    no_watermark: int,
    /,
) -> FetchRequestView | None:
    """Reads a body of a flexible version; the last two are what a partition has without tagged fields."""

def read_fetch_answer(
    frame: memoryview, position: int, make: type[FetchAnswerView], make_partition: type[FetchedPartition], /
) -> FetchAnswerView | None:
    """Reads the body of a response that names topics by id."""

def write_produce(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[bytes, Sequence[ProducePartitionResult]]],
    throttle_time_ms: int,
    /,
) -> bytes | None:
    """Writes a response of a flexible version, without endpoints."""

def write_fetch(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[bytes, Sequence[FetchPartitionResult[P]]]],
    throttle_time_ms: int,
    error_code: int,
    session_id: int,
    /,
) -> list[bytes | P] | None:
    """Writes a response of a flexible version, without endpoints."""
