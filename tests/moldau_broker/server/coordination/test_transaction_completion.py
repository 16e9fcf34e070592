"""Goal: only the network delays the end of a decided transaction, so that its producer can soon begin the next one.

Method: whole brokers on virtual time, where every message takes exactly one hop and computing takes no time; the test
counts hops. A timer in between would take a fraction of a hop in one network and many hops in the other.
"""

from __future__ import annotations

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.runtime.partitioning import partition_for
from moldau_jepsen.world.network.network import NetworkProfile
from support.cluster.broker_cluster import run_cluster
from support.cluster.transactional_client import TransactionalProducer

PARTITIONS = 3
WAY_HOPS = 6
"""From the commit of the decision: a marker to its leader, to a follower, the follower's next fetch, the answer; the
record of the end to a follower, and its next fetch."""
ANSWER_HOPS = 1
"""The producer receives the decision one hop later."""
LOOK_HOPS = 0.01


def network_of(hop_ms: float) -> NetworkProfile:
    return NetworkProfile(
        delay_min=hop_ms / 1000, delay_jitter=0, spike_probability=0, fragment_probability=0, window_bytes=1 << 20
    )


async def write(producer: TransactionalProducer) -> None:
    """Writes one record to each partition."""
    assert await producer.add(*range(PARTITIONS)) is ErrorCode.NONE
    for partition in range(PARTITIONS):
        assert await producer.produce(partition, b"a") is ErrorCode.NONE


async def hops_to_the_end(cluster, producer: TransactionalProducer, hop_ms: float) -> float:
    """Commits, and returns the hops from the answer to the recorded end."""
    name = producer.transactional_id
    broker_id = (await producer.coordinator(name)).broker_id
    shard = cluster.running[broker_id].context.transactions._shards[partition_for(name, 2)]
    assert await producer.end(commit=True) is ErrorCode.NONE
    began = trio.current_time()
    assert shard.core.transactions[name].status.is_preparing
    while shard.core.transactions[name].status.is_preparing:  # noqa: ASYNC110 - a core sends no notification of its changes
        await trio.sleep(LOOK_HOPS * hop_ms / 1000)
    return (trio.current_time() - began) * 1000 / hop_ms


@pytest.mark.parametrize("hop_ms", [1, 50])
def test_no_timer_delays_the_end_of_a_transaction(hop_ms: float) -> None:
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=PARTITIONS, replicas=3)
        producer = TransactionalProducer(cluster, "tx", timeout_ms=60_000)
        await producer.begin()
        await write(producer)
        await hops_to_the_end(cluster, producer, hop_ms)  # opens the connections
        for _ in range(3):
            await write(producer)
            hops = await hops_to_the_end(cluster, producer, hop_ms)
            assert hops <= WAY_HOPS - ANSWER_HOPS + 2 * LOOK_HOPS

    # A follower's long poll that ends just then would be on its way when the marker is written.
    run_cluster(scenario, brokers=3, profile=network_of(hop_ms), replica_fetch_wait_max_ms="4000")


def test_ends_do_not_wait_for_each_other() -> None:
    """A leader gets the markers of many transactions over one connection; it handled them one by one."""
    hop_ms, count = 10, 12

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=PARTITIONS, replicas=3)
        producers = [TransactionalProducer(cluster, f"tx{number}", timeout_ms=60_000) for number in range(count)]
        for producer in producers:
            await producer.begin()
        found: list[float] = []

        async def commit(producer: TransactionalProducer) -> None:
            found.append(await hops_to_the_end(cluster, producer, hop_ms))

        for _ in range(2):
            found.clear()
            for act in (write, commit):
                async with trio.open_nursery() as nursery:
                    for producer in producers:
                        nursery.start_soon(act, producer)
        # Each of the two writes may have to wait until the fetch that is under way is back.
        assert max(found) <= WAY_HOPS + 2 * 2

    run_cluster(scenario, brokers=3, profile=network_of(hop_ms))


def test_an_end_after_a_long_silence_is_no_slower() -> None:
    """The leader has closed the idle connection: the coordinator opens a new one without a pause."""
    hop_ms = 1

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=PARTITIONS, replicas=3)
        producer = TransactionalProducer(cluster, "tx", timeout_ms=60_000)
        await producer.begin()
        for silent_seconds in (0, 60):
            await write(producer)
            if silent_seconds:
                await hops_to_the_end(cluster, producer, hop_ms)
                await trio.sleep(silent_seconds)
                await write(producer)
            hops = await hops_to_the_end(cluster, producer, hop_ms)
            if not silent_seconds:
                first = hops
        assert hops <= first + 1

    run_cluster(scenario, brokers=3, profile=network_of(hop_ms), connections_max_idle_ms="20000")
