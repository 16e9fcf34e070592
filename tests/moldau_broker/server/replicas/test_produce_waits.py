"""Goal: each result of a waiting produce has the outcome of its own partition.

Method: operations alone, whose partitions are committed, refused or too late in any order.
"""

from __future__ import annotations

from typing import Any

from moldau.protocol.errors import ErrorCode
from moldau.values import LeaderEpoch, Offset
from moldau_broker.server.replicas.delayed import ProduceOperation, ProduceWait

TWICE: Any = "a partition that the request names twice, with another one between"
ONCE: Any = "the other partition"


def waiting() -> ProduceOperation:
    twice = ProduceWait(LeaderEpoch(1), Offset(5), 0)
    twice.indexes.append(2)
    return ProduceOperation({TWICE: twice, ONCE: ProduceWait(LeaderEpoch(1), Offset(9), 1)}, lambda _: ())


def test_a_refusal_counts_for_all_results_of_its_partition() -> None:
    """A request may name a partition twice; a batch whose leader was deposed must not look like a committed one."""
    operation = waiting()
    operation.resolve(TWICE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert set(operation.waiting) == {ONCE}
    operation.resolve(ONCE, ErrorCode.NONE)
    assert operation.errors == dict.fromkeys((0, 2), ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_a_timeout_counts_for_all_that_still_waits() -> None:
    operation = waiting()
    operation.resolve(ONCE, ErrorCode.NONE)
    operation.expired()
    assert operation.errors == dict.fromkeys((0, 2), ErrorCode.REQUEST_TIMED_OUT)
    assert not operation.waiting
