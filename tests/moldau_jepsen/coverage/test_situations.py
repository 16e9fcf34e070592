"""Goal: rare situations are counted, and watching leaves no trace behind.

Method: the parts that show them, under watch.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau_broker.coordinator.transaction.core.state import TransactionStatus
from moldau_broker.coordinator.transaction.core.transaction_core import TransactionCore
from moldau_broker.log.partition.segmented_log import SegmentedLog
from moldau_broker.replication.fetch_session import FetchPartition, FetchSessionCache
from moldau_broker.replication.replica import Replica
from moldau_broker.server.cluster_metadata.cache import ListenerHints
from moldau_jepsen.coverage.coverage import Coverage, count_situations, reachable_transitions
from moldau_jepsen.coverage.situations import Situation, situations_watched


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
