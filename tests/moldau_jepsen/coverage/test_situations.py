"""Goal: rare situations are counted, and watching leaves no trace behind.

Method: the parts that show them, under watch.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from moldau.consumer.core.epoch_membership import EpochMembership
from moldau.consumer.core.membership import GroupIdentity
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau_broker.coordinator.transaction.core.state import TransactionStatus
from moldau_broker.coordinator.transaction.core.transaction_core import TransactionCore
from moldau_broker.log.partition.segmented_log import SegmentedLog
from moldau_broker.replication.fetch_session import FetchPartition, FetchSessionCache
from moldau_broker.replication.replica import Replica
from moldau_broker.server.cluster_metadata.cache import ListenerHints
from moldau_broker.server.data_path.transaction_checks import (
    ATTRIBUTES_LOW_BYTE,
    TRANSACTIONAL_FLAG,
    TransactionChecks,
)
from moldau_jepsen.coverage.coverage import Coverage, count_situations, reachable_transitions
from moldau_jepsen.coverage.situations import Situation, situations_watched

ABORTABLE = 11
"""A version of Produce for whose clients the coordinator is asked."""


def partition(number: int) -> FetchPartition:
    return FetchPartition(topic=b"flights", partition=number, fetch_offset=0, max_bytes=1)


def test_sessions_that_shrink_and_grow_are_counted() -> None:
    owners = ((Replica, "_propose"), (SegmentedLog, "_replace_all"), (FetchSessionCache, "open"))
    before = [vars(owner)[name] for owner, name in (*owners, (ListenerHints, "preferred_read_replica"))]
    counts: Counter[Situation] = Counter()
    cache = FetchSessionCache(slots_max=2)

    def fetch(epoch: int, *named: int, forgotten: int | None = None) -> None:
        dropped = [] if forgotten is None else [(b"flights", forgotten)]
        cache.open(
            7 if epoch else 0,
            epoch,
            [partition(number) for number in named],
            dropped,
            privileged=False,
            uses_topic_ids=False,
            now_ms=1.0,
            fresh_id=7,
        )

    with situations_watched(counts):
        fetch(0, 1, 2)
        fetch(1)
        fetch(2, 1)
        assert counts == {}
        fetch(3, forgotten=2)
        fetch(4, 2)
    assert counts == {Situation.SESSION_SHRANK: 1, Situation.SESSION_GREW: 1}
    fetch(5, 3)
    assert counts[Situation.SESSION_GREW] == 1
    assert [vars(owner)[name] for owner, name in (*owners, (ListenerHints, "preferred_read_replica"))] == before


@pytest.mark.parametrize(
    ("status", "producer_id", "epoch", "counted"),
    [
        (TransactionStatus.ONGOING, 9, 4, 1),
        (TransactionStatus.ONGOING, 9, 5, 0),
        (TransactionStatus.ONGOING, 8, 4, 0),
        (TransactionStatus.COMPLETE_COMMIT, 9, 4, 0),
        (None, 9, 4, 0),
    ],
)
def test_ends_of_former_transactions_count(monkeypatch, status, producer_id, epoch, counted) -> None:
    monkeypatch.setattr(TransactionCore, "_end", lambda *arguments: ErrorCode.NONE)
    counts: Counter[Situation] = Counter()
    known = {} if status is None else {"t": SimpleNamespace(status=status, producer_id=9, producer_epoch=5)}
    core = SimpleNamespace(lifecycle=SimpleNamespace(transactions=known))
    request = EndTxnRequest(transactional_id="t", producer_id=producer_id, producer_epoch=epoch, committed=True)
    with situations_watched(counts):
        assert TransactionCore._end(core, 1, request, 5, None, None) is ErrorCode.NONE
    assert counts[Situation.LATE_END] == counted


def test_situations_are_a_machine_of_the_report() -> None:
    coverage = Coverage()
    count_situations({Situation.SEQUENCES_WRAPPED: 2}, coverage)
    ((transition, count),) = coverage.transitions.items()
    assert count == 2
    assert transition.machine == "rare situations"
    possible = {each.after for each in reachable_transitions() if each.machine == transition.machine}
    assert possible == {each.value for each in Situation}


def test_answers_to_heartbeats_of_a_lost_membership_are_counted() -> None:
    identity = GroupIdentity(group_id="g", instance_id=None, session_timeout_ms=6_000, rebalance_timeout_ms=60_000)
    counts: Counter[Situation] = Counter()
    with situations_watched(counts):
        membership = EpochMembership(identity, "member", None)
        membership.want(["t"])
        request, losses = membership.epoch_heartbeat([]), membership.losses
        membership.on_epoch_heartbeat(request, ConsumerGroupHeartbeatResponse(member_epoch=4), losses)
        assert counts == {}
        membership.lose_generation("poll came too late")
        membership.on_epoch_heartbeat(request, ConsumerGroupHeartbeatResponse(member_epoch=5), losses)
    assert counts == {Situation.FORMER_MEMBERSHIP: 1}
    assert not membership.has_generation


@pytest.mark.parametrize("ends", [False, True])
def test_a_transaction_that_ends_during_a_question_is_counted(ends: bool) -> None:
    key = (b"t", 0)
    batch = bytearray(100)
    batch[ATTRIBUTES_LOW_BYTE] = TRANSACTIONAL_FLAG
    state = SimpleNamespace(has_ongoing_transaction=lambda producer_id, epoch: False)
    led = SimpleNamespace(
        is_leader=True,
        is_internal=False,
        key=SimpleNamespace(topic="t", partition=0),
        ends_seen=(3, 7),
        log=SimpleNamespace(producer_state=state),
    )
    counts: Counter[Situation] = Counter()

    async def verify(transactional_id: str, producer_id: int, epoch: int, partitions: list[Any]) -> Any:
        await trio.lowlevel.checkpoint()
        led.ends_seen = (3, 7 + ends)
        return dict.fromkeys(partitions, ErrorCode.NONE)

    replicas: Any = SimpleNamespace(by_raw_id={}, by_raw_name={key: led})
    verifier: Any = SimpleNamespace(verify=verify)
    request: Any = SimpleNamespace(transactional_id="x", topics=[(b"t", [(0, memoryview(batch))])])
    with situations_watched(counts):
        verified = trio.run(TransactionChecks(replicas, verifier, lambda: True).verify, request, ABORTABLE)
    assert verified == {key: (ErrorCode.NONE, (3, 7))}
    assert counts[Situation.ENDED_DURING_QUESTION] == ends
