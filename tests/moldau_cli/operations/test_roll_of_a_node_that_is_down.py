"""Goal: a forced roll that starts a node which was down waits until that node is back, with its replicas, by its word.

Method: the roll alone, on virtual time; pictures of the cluster and a restarter of the test.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import trio
import trio.testing

from moldau.admin import PartitionDescription, QuorumDescription, QuorumReplica, TopicDescription
from moldau_cli.operations import rolling
from moldau_cli.operations.rolling import RollOptions, roll
from moldau_cli.plans.roll import Picture, RollNode

NODES = [RollNode(node_id=node, roles=("broker",), host="h", port=1) for node in (1, 2, 3)]
VOTER = QuorumReplica(replica_id=101, log_end_offset=7, last_fetch_ms=0, last_caught_up_ms=-1)
QUORUM = QuorumDescription(leader_id=101, leader_epoch=3, high_watermark=7, voters=(VOTER,), observers=())
START_S = 5.0


def test_the_next_node_waits_for_the_one_that_was_down(monkeypatch: Any) -> None:
    """Broker 1 was down, and holds no replica, so only its absence shows that it is not back."""
    up_at = {1: float("inf"), 2: 0.0, 3: 0.0}
    restarts: list[tuple[int, float]] = []
    asked: list[int] = []

    async def look_at_cluster(admin: object, ask: int | None = None) -> Picture:
        await trio.lowlevel.checkpoint()
        asked.extend([] if ask is None else [ask])
        live = frozenset(node for node, since in up_at.items() if since <= trio.current_time())
        return Picture(quorum=QUORUM, live=live, topics={})

    class Restarter:
        async def restart(self, node: RollNode) -> None:
            await trio.lowlevel.checkpoint()
            restarts.append((node.node_id, trio.current_time()))
            up_at[node.node_id] = trio.current_time() + START_S

    async def main() -> None:
        admin: Any = None
        options = RollOptions(timeout_s=60, force=True, elects=False)
        begun = trio.current_time()
        rolled = await roll(admin, NODES, NODES, Restarter(), options)
        assert rolled.restarted == (1, 2, 3)
        first, second, third = (at - begun for _, at in restarts)
        assert first < 1
        assert second >= first + START_S
        assert third >= second + START_S
        assert list(dict.fromkeys(asked)) == [1, 2, 3], "other brokers may still report the state before a restart"

    monkeypatch.setattr(rolling, "look_at_cluster", look_at_cluster)
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_the_next_node_waits_for_the_replica_that_was_behind(monkeypatch: Any) -> None:
    """Brokers 1 and 3 were down. That the replica of broker 3, which stays down, is behind is accepted."""
    in_sync_at = {1: float("inf"), 2: 0.0, 3: float("inf")}
    restarts: list[tuple[int, float]] = []

    async def look_at_cluster(admin: object, ask: int | None = None) -> Picture:
        await trio.lowlevel.checkpoint()
        isr = tuple(node for node, since in in_sync_at.items() if since <= trio.current_time())
        part = PartitionDescription(partition=0, leader=2, leader_epoch=0, replicas=(1, 2, 3), isr=isr)
        topic = TopicDescription(name="t", topic_id=UUID(int=1), is_internal=False, partitions=(part,))
        live = frozenset({2, *(node for node, _ in restarts)})
        return Picture(quorum=QUORUM, live=live, topics={"t": topic})

    class Restarter:
        async def restart(self, node: RollNode) -> None:
            await trio.lowlevel.checkpoint()
            restarts.append((node.node_id, trio.current_time()))
            in_sync_at[node.node_id] = trio.current_time() + START_S

    async def main() -> None:
        admin: Any = None
        options = RollOptions(timeout_s=60, force=True, elects=False)
        rolled = await roll(admin, NODES, NODES[:2], Restarter(), options)
        assert rolled.restarted == (1, 2)
        (_, first), (_, second) = restarts
        assert second >= first + START_S

    monkeypatch.setattr(rolling, "look_at_cluster", look_at_cluster)
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_the_next_node_waits_for_a_leader_that_was_missing(monkeypatch: Any) -> None:
    """Broker 1 was down, and has the only replica of a partition, which gets its leader later than it is back."""
    restarts: list[tuple[int, float]] = []

    async def look_at_cluster(admin: object, ask: int | None = None) -> Picture:
        await trio.lowlevel.checkpoint()
        has_leader = bool(restarts) and trio.current_time() >= restarts[0][1] + START_S
        leader = 1 if has_leader else -1
        part = PartitionDescription(partition=0, leader=leader, leader_epoch=0, replicas=(1,), isr=(1,))
        topic = TopicDescription(name="t", topic_id=UUID(int=1), is_internal=False, partitions=(part,))
        live = frozenset({2, 3, *(node for node, _ in restarts)})
        return Picture(quorum=QUORUM, live=live, topics={"t": topic})

    class Restarter:
        async def restart(self, node: RollNode) -> None:
            await trio.lowlevel.checkpoint()
            restarts.append((node.node_id, trio.current_time()))

    async def main() -> None:
        admin: Any = None
        options = RollOptions(timeout_s=60, force=True, elects=False)
        rolled = await roll(admin, NODES, NODES[:2], Restarter(), options)
        assert rolled.restarted == (1, 2)
        (_, first), (_, second) = restarts
        assert second >= first + START_S

    monkeypatch.setattr(rolling, "look_at_cluster", look_at_cluster)
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
