"""Goal: a consumer that reads from a follower learns that its offset is not committed there yet (KIP-392).

Method: the reader of one partition alone, over values in place of a log.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.replication.fetch_session import FetchPartition
from moldau_broker.server.data_path.partition_reader import PartitionReader

LAST_STABLE, HIGH_WATERMARK, LOG_END = 3, 5, 8


def code(offset: int, *, is_leader: bool, isolation_level: int = 0) -> ErrorCode:
    """Returns the error of a consumer's fetch behind what it may read."""
    parts: Any = SimpleNamespace()
    log = SimpleNamespace(log_start_offset=0, log_end_offset=LOG_END, storage=SimpleNamespace(log_start_offset=0))
    replica = SimpleNamespace(high_watermark=HIGH_WATERMARK, is_leader=is_leader)
    partition: Any = SimpleNamespace(log=log, replica=replica)
    query: Any = SimpleNamespace(replica_id=-1, isolation_level=isolation_level)
    reader = PartitionReader(parts, parts, parts, parts)
    wanted = FetchPartition(b"t", 0, offset, 1 << 20)
    upper = LAST_STABLE if isolation_level else HIGH_WATERMARK
    result = reader._read_log(query, wanted, partition, upper, LAST_STABLE, 1 << 20, first=True)
    return ErrorCode(result.error_code)


@pytest.mark.parametrize("offset", range(HIGH_WATERMARK, LOG_END + 1))
def test_an_offset_that_a_follower_does_not_know_committed(offset: int) -> None:
    """The consumer asks the leader then, instead of waiting for a follower that may be far behind."""
    expected = ErrorCode.NONE if offset == HIGH_WATERMARK else ErrorCode.OFFSET_NOT_AVAILABLE
    assert code(offset, is_leader=False) is expected
    assert code(offset, is_leader=True) is ErrorCode.NONE


@pytest.mark.parametrize("offset", range(LAST_STABLE, LOG_END + 1))
def test_an_open_transaction_does_not_send_a_consumer_away(offset: int) -> None:
    """The leader cannot serve it either, and would send it back at once, again and again."""
    expected = ErrorCode.NONE if offset <= HIGH_WATERMARK else ErrorCode.OFFSET_NOT_AVAILABLE
    assert code(offset, is_leader=False, isolation_level=1) is expected
