"""Goal: a leader sends consumers to the follower that is near them, which says what is not committed there (KIP-392).

Method: the reader of one partition alone, over values in place of a log.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.replication.fetch_session import FetchPartition
from moldau_broker.replication.replica import Role
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


def test_only_the_leader_sends_consumers_of_a_rack_elsewhere() -> None:
    """A follower serves them itself, and followers read from the leader alone; a second hint might send them round."""
    near = 7
    hints: Any = SimpleNamespace(preferred_read_replica=lambda *_: near)
    for role, rack, replica_id in product((Role.LEADER, Role.FOLLOWER), ("", "r"), (-1, 0, 2)):
        replica = SimpleNamespace(
            role=role,
            is_leader=role is Role.LEADER,
            high_watermark=HIGH_WATERMARK,
            state=SimpleNamespace(leader_epoch=3),
        )
        log = SimpleNamespace(
            log_start_offset=0,
            log_end_offset=HIGH_WATERMARK,
            last_stable_offset=HIGH_WATERMARK,
            storage=SimpleNamespace(log_start_offset=0),
        )
        partition = SimpleNamespace(
            log=log, replica=replica, error=ErrorCode.NONE, check_access=lambda *_, **__: ErrorCode.NONE
        )
        replicas: Any = SimpleNamespace(by_raw_name={(b"t", 0): partition}, holds_back=lambda *_: False)
        clock: Any = SimpleNamespace(monotonic_ms=lambda: 0)
        parts: Any = SimpleNamespace()
        query: Any = SimpleNamespace(version=12, replica_id=replica_id, isolation_level=0, rack_id=rack)
        wanted = FetchPartition(b"t", 0, HIGH_WATERMARK, 1 << 20)
        result = PartitionReader(clock, replicas, hints, parts).read(query, wanted, 1 << 20, first=True)
        expected = near if role is Role.LEADER and rack and replica_id < 0 else -1
        assert (result.error_code, result.preferred_read_replica) == (0, expected), (role, rack, replica_id)
