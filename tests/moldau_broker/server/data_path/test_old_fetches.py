"""Goal: a consumer of an old version of Fetch gets only error codes that it knows.

Method: the plan of one fetch, with a partition whose log directory has failed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.hot import FetchPartitionResult
from moldau_broker.replication.fetch_session import FetchPartition
from moldau_broker.server.data_path.fetch import FetchService
from moldau_broker.server.data_path.fetch_query import FetchQuery

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
