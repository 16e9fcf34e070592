"""Whole clusters in simulation: a scripted leader crash, and seeds that stay the same run and stay clean."""

import os
import subprocess
import sys
from functools import partial

import pytest
import trio

from moldau.consumer import Consumer
from moldau.producer import Producer
from moldau_jepsen.cluster.simulated import ClusterShape, SimulatedCluster
from moldau_jepsen.simulation import run_seed
from moldau_jepsen.simulation.judge.invariants import ClusterInvariants
from moldau_jepsen.simulation.judge.observer import ClusterObserver
from moldau_jepsen.world.world import run_world
from support.kit.small_run import SMALL_RUN
from support.proof import proof_beyond

RECORDS = 90


async def leader_crash(world):
    """Produces while the leader of a partition is killed and comes back; reads everything; returns what happened."""
    cluster = SimulatedCluster(world, ClusterShape(controllers=1))
    judge = ClusterInvariants(trio.current_time)
    observer = ClusterObserver(cluster, judge)
    world.agenda.watchers.append(observer.turn_ended)
    environment = world.node("client").environment
    cluster.start_all()
    await cluster.wait_healthy(30)
    await cluster.create_topic(environment, "flights", 2, {})
    acknowledged = {}
    settings = {"bootstrap.servers": cluster.bootstrap}

    async with Producer(settings, environment=environment) as producer:

        async def wait_acknowledged(delivery, value):
            metadata = await delivery
            acknowledged[value] = (metadata.partition, metadata.offset)

        async with trio.open_nursery() as nursery:
            for number in range(RECORDS):
                delivery = await producer.send("flights", b"%d" % number, partition=number % 2)
                nursery.start_soon(wait_acknowledged, delivery, number)
                await trio.sleep(0.01)
                if number == RECORDS // 3:
                    image = cluster.brokers[1].metadata.image
                    leader = image.topics_by_name["flights"].partitions[0].leader
                    killed_at = trio.current_time()
                    cluster.kill(leader)
                    world.agenda.call_after(2.0, partial(cluster.start, leader))
    await cluster.wait_healthy(30)
    healthy_after = trio.current_time() - killed_at

    read = {}
    async with Consumer({**settings, "auto.offset.reset": "earliest"}, environment=environment) as consumer:
        consumer.assign([("flights", 0), ("flights", 1)])
        with trio.fail_after(30):
            while len(read) < RECORDS:
                for batch in await consumer.poll(500):
                    for record in batch.records:
                        assert int(record.value) not in read, "delivered twice"
                        read[int(record.value)] = (batch.partition, record.offset)
    world.agenda.watchers.remove(observer.turn_ended)
    assert judge.violations == []
    assert world.failures == []
    return acknowledged, read, healthy_after, world.trace.digest


def test_a_leader_crash_loses_nothing_and_is_the_same_run_again():
    first, again = run_world(leader_crash, 11), run_world(leader_crash, 11)
    acknowledged, read, healthy_after, _ = first
    assert len(acknowledged) == RECORDS
    assert acknowledged == read
    assert [
        value for value, (partition, _) in sorted(read.items(), key=lambda item: item[1]) if partition == 0
    ] == list(range(0, RECORDS, 2))
    assert healthy_after < 15
    assert again == first


def test_the_same_seed_is_the_same_run_in_a_fresh_interpreter():
    """Nor does it matter what this process has done before, and how it hashes strings."""
    script = (
        "from moldau_jepsen.simulation import run_seed; from support.kit.small_run import SMALL_RUN; "
        "print(run_seed(7, SMALL_RUN).trace_hash)"
    )
    fresh = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {script}"],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert fresh.stdout.strip() == run_seed(7, SMALL_RUN).trace_hash


async def full_disk(world):
    """Fills the disk of a partition's leader while records are produced; returns how its process ended."""
    cluster = SimulatedCluster(world, ClusterShape(controllers=1))
    environment = world.node("client").environment
    cluster.start_all()
    await cluster.wait_healthy(30)
    await cluster.create_topic(environment, "flights", 1, {})
    leader = cluster.brokers[1].metadata.image.topics_by_name["flights"].partitions[0].leader
    machine = cluster.machines[leader]
    machine.disk.profile.capacity_bytes = machine.disk.used_bytes() + 1_000
    async with Producer({"bootstrap.servers": cluster.bootstrap}, environment=environment) as producer:
        deliveries = [await producer.send("flights", b"x" * 500) for _ in range(20)]
        with trio.fail_after(30):
            for delivery in deliveries:
                await delivery
    assert not machine.is_running
    failure = machine.failure
    machine.disk.profile.capacity_bytes = 1 << 30
    await cluster.wait_healthy(30)
    return failure


def test_a_broker_whose_disk_is_full_ends_and_others_lead():
    """Found by the simulation's first seeds: such a broker lived on, and led partitions without a log."""
    failure = run_world(full_disk, 3)
    assert isinstance(failure, BaseExceptionGroup)
    assert failure.subgroup(OSError) is not None


@pytest.mark.parametrize("seed", proof_beyond(1, [100, 1, 16]))
def test_seeds_are_clean(seed):
    result = run_seed(seed)
    assert result.violations == (), "\n".join([result.replay_command, *result.violations, *result.timeline[-300:]])
    assert result.acknowledged > 0
    assert result.polled >= result.acknowledged
