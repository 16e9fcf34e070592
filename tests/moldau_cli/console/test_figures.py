"""Goal: the figures of brokers, controllers and topics are those of their replicas, however few are known.

Method: small clusters in every state, counted once more in the plainest way.
"""

from __future__ import annotations

from itertools import permutations, product
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from moldau.admin import (
    LogDirDescription,
    LogDirPartition,
    PartitionDescription,
    QuorumDescription,
    QuorumReplica,
    TopicDescription,
)
from moldau.cluster.metadata import TopicPartition
from moldau.protocol.errors import ErrorCode
from moldau_cli.console.core.rates import FRESH_MS, RateHistory, Sample
from moldau_cli.console.data import cluster
from moldau_cli.console.data.asking import leader_sizes, led_partitions
from moldau_cli.console.data.groups import _lag
from moldau_cli.console.data.topics import _row
from moldau_cli.health import VOTER_SILENCE_MS_MAX

NODES = (0, 1, 2)
PLACEMENTS = [chosen for count in (1, 2, 3) for chosen in permutations(NODES, count)]


@st.composite
def partitions(draw: st.DrawFn) -> tuple[PartitionDescription, ...]:
    """Draws up to three partitions; leaders are of the replicas in sync, or absent."""
    made = []
    for number in range(draw(st.integers(0, 3))):
        replicas = draw(st.sampled_from(PLACEMENTS))
        isr = tuple(one for one in replicas if draw(st.booleans()))
        leader = draw(st.sampled_from((*isr, -1)))
        made.append(PartitionDescription(partition=number, leader=leader, leader_epoch=1, replicas=replicas, isr=isr))
    return tuple(made)


def topic(name: str, parts: tuple[PartitionDescription, ...]) -> TopicDescription:
    return TopicDescription(name=name, topic_id=UUID(int=1), is_internal=name.startswith("_"), partitions=parts)


@given(parts=partitions())
def test_each_broker_has_the_replicas_that_it_holds(parts: tuple[PartitionDescription, ...]) -> None:
    held = cluster._held(parts)
    for node in NODES:
        own = [part for part in parts if node in part.replicas]
        found = held.get(node) or cluster._Held()
        assert (found.replicas, found.leads, found.preferred, found.out_of_sync) == (
            len(own),
            len([part for part in own if part.leader == node]),
            len([part for part in own if part.replicas[0] == node]),
            len([part for part in own if node not in part.isr]),
        )
    assert set(held) == {node for part in parts for node in part.replicas}


SIZES = st.dictionaries(st.tuples(st.sampled_from(NODES), st.integers(0, 2)), st.integers(0, 1000))


@given(parts=partitions(), sizes=SIZES, moving=SIZES, offsets=st.lists(st.integers(0, 9), min_size=6, max_size=6))
def test_a_topic_has_a_figure_only_if_all_its_partitions_have(
    parts: tuple[PartitionDescription, ...],
    sizes: dict[tuple[int, int], int],
    moving: dict[tuple[int, int], int],
    offsets: list[int],
) -> None:
    """The bytes are those of the leaders' replicas; a copy that moves to another directory is not one yet."""

    def directory(node: int, held: dict[tuple[int, int], int], is_future: bool) -> LogDirDescription:
        found = [
            LogDirPartition(
                topic_partition=TopicPartition("t", number), size_bytes=size, offset_lag=0, is_future=is_future
            )
            for (owner, number), size in held.items()
            if owner == node
        ]
        return LogDirDescription(
            path=f"/{is_future}", error=ErrorCode.NONE, total_bytes=-1, usable_bytes=-1, partitions=tuple(found)
        )

    topics = {"t": topic("t", parts)}
    directories = {node: [directory(node, moving, True), directory(node, sizes, False)] for node in NODES}
    by_leader = leader_sizes(topics, directories)
    assert by_leader == {
        ("t", part.partition): sizes[part.leader, part.partition]
        for part in parts
        if (part.leader, part.partition) in sizes
    }
    led = led_partitions(topics)
    assert led == {
        node: own for node in NODES if (own := [("t", part.partition) for part in parts if part.leader == node])
    }
    places = [place for own in led.values() for place in own]
    begins = {place: offsets[place[1]] for place in places}
    ends = {place: offsets[place[1]] + offsets[place[1] + 3] for place in places}

    async def row() -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return _row(topics["t"], begins, ends, by_leader, RateHistory())

    found = trio.run(row)
    is_known = all(part.leader >= 0 for part in parts)
    assert found["records"] == (sum(offsets[part.partition + 3] for part in parts) if is_known else None)
    has_sizes = all((part.leader, part.partition) in sizes for part in parts)
    assert found["bytes"] == (sum(by_leader.values()) if has_sizes else None)
    assert (found["partitions"], found["offline"]) == (len(parts), sum(part.leader == -1 for part in parts))
    assert found["under_replicated"] == len([part for part in parts if set(part.isr) != set(part.replicas)])
    assert found["replication"] == max([len(part.replicas) for part in parts] or [0])
    assert (found["records_per_s"], found["bytes_per_s"], found["internal"]) == (None, None, False)


@given(
    committed=st.dictionaries(st.tuples(st.just("t"), st.integers(0, 3)), st.integers(0, 20)),
    ends=st.dictionaries(st.tuples(st.just("t"), st.integers(0, 3)), st.integers(0, 20)),
)
def test_the_lag_is_known_if_all_ends_are(
    committed: dict[tuple[str, int], int], ends: dict[tuple[str, int], int]
) -> None:
    """A commit past the end, as after a loss of records, is no negative lag that hides another partition's."""
    known = set(committed) <= set(ends)
    assert _lag(committed, ends) == (sum(max(ends[one] - committed[one], 0) for one in committed) if known else None)


def replica(node: int, end: int, heard_ms: int, caught_up_ms: int = -1) -> QuorumReplica:
    return QuorumReplica(replica_id=node, log_end_offset=end, last_fetch_ms=heard_ms, last_caught_up_ms=caught_up_ms)


@pytest.mark.parametrize("leader", [-1, 101, 103])
@pytest.mark.parametrize("ends", list(product((-1, 0, 70, 90), repeat=2)))
def test_each_controller_lags_behind_the_furthest_voter(
    leader: int, ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An observer in front of it lags by nothing; a voter of unknown end by all; times that are not known are none."""
    now_ms = 1_000_000
    quiet = now_ms - VOTER_SILENCE_MS_MAX
    voters = (replica(101, 80, now_ms, 5), replica(102, ends[0], quiet - 1), replica(103, 79, now_ms, 0))
    observers = (replica(1, ends[1], quiet),)
    quorum = QuorumDescription(
        leader_id=leader,
        leader_epoch=4,
        high_watermark=60,
        voters=voters,
        observers=observers,
        endpoints=((102, "c", 9093), (103, "::1", 9094)),
    )

    async def ask_quorum(_: object) -> QuorumDescription:
        await trio.lowlevel.checkpoint()
        return quorum

    monkeypatch.setattr(cluster, "ask_quorum", ask_quorum)
    found: Any = trio.run(cluster.controllers, None)
    assert (found["leader"], found["epoch"], found["high_watermark"], found["total"]) == (leader, 4, 60, 4)
    furthest = max(80, ends[0])
    rows = {row["node"]: row for row in found["rows"]}
    assert list(rows) == [101, 102, 103, 1]
    roles = {101: "voter", 102: "voter", 103: "voter", 1: "observer"} | ({leader: "leader"} if leader > 0 else {})
    assert {node: row["role"] for node, row in rows.items()} == roles
    wanted = {101: furthest - 80, 102: furthest - max(0, ends[0]), 103: furthest - 79, 1: furthest - max(0, ends[1])}
    assert {node: row["lag"] for node, row in rows.items()} == {node: max(0, lag) for node, lag in wanted.items()}
    assert {node for node, row in rows.items() if row["is_silent"]} == ({102} if leader > 0 else set())
    assert [rows[node]["last_caught_up_ms"] for node in (101, 102, 103)] == [5, None, 0]
    assert [rows[node]["address"] for node in (101, 102)] == [None, "c:9093"]


def test_the_busiest_topics_come_first_and_no_silent_one() -> None:
    history = RateHistory()
    ends = {name: 10 * number for number, name in enumerate("fedcba")} | {"same": 50}
    for now_ms, grown in ((0, 0), (1000, 1)):
        placed = {(name, 0): grown * end for name, end in ends.items()}
        history.observe(Sample(now_ms=now_ms, ends=placed, sizes={place: 2 * end for place, end in placed.items()}))

    async def busiest(names: list[str], at_s: float) -> Any:
        await trio.sleep_until(at_s)
        return [(row["topic"], row["records"], row["bytes"]) for row in cluster._busiest(history, names)]  # type: ignore[index, call-overload]

    def asked(names: str, at_s: float = 1.0) -> Any:
        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(busiest, [*names, "same"], at_s, clock=clock)

    assert asked("abcdef") == [("a", 50, 100), ("same", 50, 100), ("b", 40, 80), ("c", 30, 60), ("d", 20, 40)]
    assert asked("ef") == [("same", 50, 100), ("e", 10, 20)], "a topic that is not written to is not busy"
    assert asked("ab", 1 + FRESH_MS / 1000) != []
    assert asked("ab", 1.001 + FRESH_MS / 1000) == [], "a rate of the past is none of the present"
