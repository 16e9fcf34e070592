"""Goal: followers of idle partitions cost a leader little, and miss nothing.

Method: two brokers on virtual time. Work is counted, not timed: calls of ``Replica.followed``, and keys of waiting
fetches. The fetches wait long, so that a missed wake shows in virtual time.
"""

import random
from typing import Any

import pytest
import trio

from moldau.values import Offset
from moldau_broker.log.values import AppendOrigin
from moldau_broker.replication import follower
from moldau_broker.replication.fetch_session import FetchSession
from moldau_broker.replication.replica import Replica
from moldau_broker.server.coordination.internal_log import InternalTopicLog
from support.cluster.broker_cluster import Cluster, batch, run_cluster

WAIT_MS = "5000"
ON_TIME_S = 0.5
LAG_S = 30
"""``replica.lag.time.max.ms``."""


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


def sessions(cluster: Cluster) -> list[FetchSession]:
    """Returns the fetch sessions of all brokers."""
    return [session for broker in cluster.running.values() for session in broker.context.sessions._sessions.values()]


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
        before = [session.confirmed_ms for session in sessions(cluster)]
        await trio.sleep(30)
        assert all(session.confirmed_ms > at for session, at in zip(sessions(cluster), before, strict=True))
        assert counter.confirmed == counter.followed == 0
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


def test_log_start_of_an_internal_topic_reaches_followers() -> None:
    """A coordinator that deleted records woke no session: followers at rest took over the log start seconds later."""

    async def scenario(cluster: Cluster) -> None:
        await settled(cluster, 1)
        await trio.sleep(10)  # the first run of retention is over
        leader = await cluster.leader("t", 0)
        context, partition = cluster.running[leader].context, cluster.replica(leader, "t", 0)
        (follower,) = (each for each in partition.replica.state.isr if each != leader)
        answer = await cluster.client(leader).produce("t", batch(b"x"), acks=-1)
        assert answer.error_code == 0
        await trio.sleep(3)
        copy = cluster.replica(follower, "t", 0).log
        assert (copy.log_start_offset, copy.log_end_offset) == (0, 1)
        log = InternalTopicLog("t", context.replicas, context.metadata)
        log.delete_records(0, partition.replica.state.leader_epoch, Offset(1))
        await cluster.until(lambda: copy.log_start_offset == 1, timeout_ms=1_000)

    run_cluster(scenario, brokers=2)


def test_partitions_with_lagging_followers_are_known() -> None:
    """The check of in-sync replicas looks at a few partitions only; no other has a follower that lacks records."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=6, replicas=3)
        drawn = random.Random(1)
        looks = 0

        async def check() -> None:
            nonlocal looks
            while True:
                for broker in cluster.running.values():
                    replicas = broker.context.replicas
                    lagging = [each for each in replicas.partitions.values() if each.replica.may_lag]
                    assert [each.key for each in lagging if each not in replicas.may_lag] == []
                    looks += len(lagging)
                await trio.sleep(0.05)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(check)
            for step in range(30):
                number = drawn.randrange(6)
                leader = await cluster.leader("t", number)
                client = cluster.client(leader)
                await client.produce("t", batch(b"x"), partition=number)
                client.close()
                if step == 10:
                    cluster.kill(3)
                if step == 20:
                    cluster.start_broker(3)
                await trio.sleep(3)
            nursery.cancel_scope.cancel()
        assert looks > 20

    run_cluster(scenario, brokers=3)


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
    async def scenario(cluster: Cluster) -> None:
        await settled(cluster, 2)
        leader = await cluster.leader("t", 0)
        partition = cluster.replica(leader, "t", 0)
        (follower,) = (each for each in partition.replica.state.isr if each != leader)
        cluster.kill(follower)
        await cluster.until(lambda: partition.replica.state.isr == (leader,))

    run_cluster(scenario, brokers=2, replica_fetch_wait_max_ms=WAIT_MS)


def test_fetches_at_rest_count_as_caught_up() -> None:
    """The lag of a follower counts from its last fetch, although no fetch looked at the partition for a long time."""

    async def scenario(cluster: Cluster) -> None:
        await settled(cluster, 2)
        leader = await cluster.leader("t", 0)
        partition = cluster.replica(leader, "t", 0)
        replicas = cluster.running[leader].context.replicas
        (follower,) = (each for each in partition.replica.state.isr if each != leader)
        progress = partition.replica._followers[follower]
        await trio.sleep(3 * LAG_S)
        began_ms = trio.current_time() * 1000
        assert progress.last_caught_up_ms < began_ms - 2_000 * LAG_S, "the partition is at rest"
        replicas.append_now(partition, bytearray(batch(b"x")), acks=1, origin=AppendOrigin.CLIENT)
        assert began_ms - float(WAIT_MS) - 1_000 * ON_TIME_S <= progress.last_caught_up_ms <= began_ms
        assert partition in replicas.may_lag
        replicas.tick_isr()
        assert partition.replica.proposal is None, "the follower fetched a moment ago"
        await trio.sleep(LAG_S)
        assert set(partition.replica.state.isr) == {1, 2}
        assert replicas.may_lag == {}

    run_cluster(scenario, brokers=2, replica_fetch_wait_max_ms=WAIT_MS)


def test_no_fetch_waits_before_the_session_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that returns adds its partitions to the session a part at a time, with one fetch after the other."""
    monkeypatch.setattr(follower, "PARTITIONS_MAX", 1)

    async def scenario(cluster: Cluster) -> None:
        await settled(cluster, 12)
        await cluster.stop(2)
        cluster.start_broker(2)
        await cluster.until(lambda: 2 in cluster.running)
        await trio.sleep(ON_TIME_S)
        assert sum(len(session.partitions) for session in sessions(cluster)) >= 12, "broker 1 leads all of them"

    run_cluster(scenario, brokers=2, replica_fetch_wait_max_ms=WAIT_MS)
