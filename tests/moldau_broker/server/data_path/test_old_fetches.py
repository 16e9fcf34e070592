"""Goal: a consumer of an old version of Fetch gets only error codes that it knows, and all records.

Method: the plan of one fetch, with a partition whose log directory has failed; the reader of one partition.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.hot import FetchPartitionResult
from moldau_broker.replication.fetch_session import FetchPartition
from moldau_broker.replication.replica import Role
from moldau_broker.server.data_path.fetch import FetchService
from moldau_broker.server.data_path.fetch_query import FetchQuery
from moldau_broker.server.data_path.partition_reader import PartitionReader

STORAGE_ERRORS = 6
"""The first version whose clients know KAFKA_STORAGE_ERROR."""


@pytest.mark.parametrize("version", range(4, 19))
def test_old_consumers_look_for_another_leader(version: int) -> None:
    """Java clients of Kafka 0.11 end with an exception at a code that they do not know."""
    parts: Any = SimpleNamespace(by_raw_id={}, by_raw_name={})
    service = FetchService(parts, parts, parts, max_bytes=1 << 20, early_watermarks=False, close_session=lambda _: None)
    failed = FetchPartitionResult[Any](0, ErrorCode.KAFKA_STORAGE_ERROR)
    service._reader = SimpleNamespace(read=lambda *_, **__: failed)  # type: ignore[assignment]
    query = FetchQuery(version, 1, -1, -1, 500, 1, 1 << 20, 0, "")
    plan = service.plan(query, [FetchPartition(b"t", 0, 0, 1 << 20)], {}, None)
    assert plan.urgent
    wanted = ErrorCode.NOT_LEADER_OR_FOLLOWER if version < STORAGE_ERRORS else ErrorCode.KAFKA_STORAGE_ERROR
    assert [result.error_code for _, result in plan.results] == [wanted]


@pytest.mark.parametrize("version", range(4, 19))
def test_old_consumers_get_the_records_of_each_codec(version: int) -> None:
    """Clients that decompress zstd may know no version of Fetch above 4, such as kafka-python 2.0."""
    for compression_type in ("producer", "uncompressed", "lz4", "zstd"):
        storage = SimpleNamespace(log_start_offset=0, config=SimpleNamespace(compression_type=compression_type))
        log = SimpleNamespace(log_start_offset=0, log_end_offset=0, last_stable_offset=0, storage=storage)
        state = SimpleNamespace(leader_epoch=0)
        replica = SimpleNamespace(role=Role.LEADER, is_leader=True, high_watermark=0, state=state)
        partition = SimpleNamespace(log=log, replica=replica, error=ErrorCode.NONE)
        parts: Any = SimpleNamespace(by_raw_id={(b"t", 0): partition}, by_raw_name={(b"t", 0): partition})
        query = FetchQuery(version, 1, -1, -1, 500, 1, 1 << 20, 0, "")
        reader = PartitionReader(parts, parts, parts, parts)
        result = reader.read(query, FetchPartition(b"t", 0, 0, 1 << 20), 1 << 20, first=True)
        assert result.error_code == ErrorCode.NONE, compression_type
