"""Goal: rare situations are counted, and watching leaves no trace behind.

Method: the parts that show them, under watch.
"""

from __future__ import annotations

from collections import Counter

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


def test_situations_are_a_machine_of_the_report() -> None:
    coverage = Coverage()
    count_situations({Situation.SEQUENCES_WRAPPED: 2}, coverage)
    ((transition, count),) = coverage.transitions.items()
    assert count == 2
    assert transition.machine == "rare situations"
    possible = {each.after for each in reachable_transitions() if each.machine == transition.machine}
    assert possible == {each.value for each in Situation}
