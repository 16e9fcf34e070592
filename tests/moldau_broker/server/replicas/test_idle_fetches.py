"""Goal: followers of idle partitions cost a leader little, and miss nothing.

Method: two brokers on virtual time. Work is counted, not timed: calls of ``Replica.followed``, and keys of waiting
fetches. The fetches wait long, so that a missed wake shows in virtual time.
"""

from typing import Any

import pytest
import trio

from moldau_broker.replication.replica import Replica
from support.cluster.broker_cluster import Cluster, batch, run_cluster

WAIT_MS = "5000"
ON_TIME_S = 0.5


class Counter:
    """Counts the fetches that a leader looks at partition by partition."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.followed = self.confirmed = 0
        followed, confirmed = Replica.followed, Replica.confirmed

        def count_followed(replica: Replica, *arguments: Any) -> Any:
            self.followed += 1
            return followed(replica, *arguments)

        def count_confirmed(replica: Replica, *arguments: Any) -> Any:
            self.confirmed += 1
            return confirmed(replica, *arguments)

        monkeypatch.setattr(Replica, "followed", count_followed)
        monkeypatch.setattr(Replica, "confirmed", count_confirmed)


async def settled(cluster: Cluster, partitions: int) -> None:
    """Makes a topic on both brokers, and waits until its followers fetch it in sessions."""
    await cluster.client(1).create_topic("t", partitions=partitions, replicas=2)
    for number in range(partitions):
        await cluster.leader("t", number)
    await trio.sleep(30)


def waiting_keys(cluster: Cluster) -> list[int]:
    """How many keys the fetches of each broker's followers wait on."""
    return [
        sum(len(delayed.keys) for key in purgatory._watchers for delayed in purgatory.watchers(key))
        for purgatory in (broker.context.replicas.waits.fetches.purgatory for broker in cluster.running.values())
    ]


def test_idle_partitions_cost_no_work_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fetch of a session noted, planned and watched every partition again: a tenth of a core for 2,000 of them."""

    async def scenario(cluster: Cluster) -> None:
        await settled(cluster, 40)
        counter = Counter(monkeypatch)
        await trio.sleep(30)
        assert counter.confirmed >= 40, "fetches came"
        assert counter.followed == 0
        assert max(waiting_keys(cluster)) <= 2

    run_cluster(scenario, brokers=2, replica_fetch_wait_max_ms=WAIT_MS)


def test_change_of_one_partition_is_the_only_work(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster) -> None:
        await settled(cluster, 40)
        counter = Counter(monkeypatch)
        for number in range(5):
            leader = await cluster.leader("t", number)
            began = trio.current_time()
            answer = await cluster.client(leader).produce("t", batch(b"x"), partition=number)
            assert answer.error_code == 0
            assert trio.current_time() - began < ON_TIME_S, "the waiting fetch was woken"
        await trio.sleep(30)
        assert 5 <= counter.followed <= 20

    run_cluster(scenario, brokers=2, replica_fetch_wait_max_ms=WAIT_MS)


def test_waiting_fetch_ends_with_the_leadership() -> None:
    """A waiting fetch answers at once if one of its partitions is deleted, so the follower does not fetch it again."""

    async def scenario(cluster: Cluster) -> None:
        await settled(cluster, 4)
        leader = await cluster.leader("t", 0)
        partition = cluster.replica(leader, "t", 0)
        waits = cluster.running[leader].context.replicas.waits
        (delayed,) = {
            each for key in waits.fetches.purgatory._watchers for each in waits.fetches.purgatory.watchers(key)
        }
        assert delayed.operation._wanted(partition) is not None
        waits.end(partition)
        assert delayed.operation.finished

    run_cluster(scenario, brokers=2, replica_fetch_wait_max_ms=WAIT_MS)


def test_follower_that_dies_leaves_the_isr_later() -> None:
    """Confirmed fetches count as caught up: an append long afterwards does not shrink the ISR of a live follower."""

    async def scenario(cluster: Cluster) -> None:
        await settled(cluster, 2)
        leader = await cluster.leader("t", 0)
        partition = cluster.replica(leader, "t", 0)
        (follower,) = (each for each in partition.replica.state.isr if each != leader)
        progress = partition.replica._followers[follower]
        before = progress.last_caught_up_ms
        await trio.sleep(20)
        assert progress.last_caught_up_ms >= before + 10_000
        cluster.kill(follower)
        await cluster.until(lambda: partition.replica.state.isr == (leader,))

    run_cluster(scenario, brokers=2, replica_fetch_wait_max_ms=WAIT_MS)
