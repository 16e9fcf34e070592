"""Goal: a test can fill the disk of a node, alike in the simulation and on processes, and nothing acknowledged is lost.

Method: the disk of the leader is full while records are sent; the same story runs in both worlds.
"""

import errno
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
import trio

from moldau import Consumer, Producer
from moldau_broker.log.errors import LogStorageError
from moldau_jepsen.launcher import LauncherUsageError
from moldau_jepsen.testing import cluster
from moldau_jepsen.testing.scenario import Cluster, SimulatedProcesses, run_on_processes, run_simulated
from moldau_jepsen.testing.simulated import SimulationError
from moldau_jepsen.world.disk.disk_profile import Trouble

RECORDS = 40


async def a_full_disk(cluster: Cluster) -> None:
    await cluster.create_topic("orders", 1, {"min.insync.replicas": "2"}, replicas=3)
    server = {"bootstrap.servers": cluster.bootstrap}
    async with Producer(server, environment=cluster.environment) as producer:
        for number in range(RECORDS):
            if number == RECORDS // 2:
                leader = (await producer.partitions_for("orders"))[0].leader
                await cluster.fill_disk(leader)
            sent = await (await producer.send("orders", b"%d" % number))
            cluster.history.sent("orders", sent.partition, sent.offset, str(number))
        (moved,) = await producer.partitions_for("orders")
    assert moved.leader != leader
    await cluster.free_disk(leader)
    await cluster.wait_healthy()  # starts the broker that ended
    read = 0
    settings = server | {"auto.offset.reset": "earliest"}
    async with Consumer(settings, environment=cluster.environment) as consumer:
        consumer.assign([("orders", 0)])
        with trio.fail_after(60):
            while read < RECORDS:
                for batch in await consumer.poll(500):
                    for record in batch.records:
                        cluster.history.took_effect(bytes(record.value or b"").decode())
                        read += 1
    cluster.check()


def test_a_full_disk_loses_nothing_in_the_simulation() -> None:
    run_simulated(a_full_disk, seed=1, brokers=3, controllers=1, settings={})


@pytest.mark.processes
@pytest.mark.proof
def test_a_full_disk_loses_nothing_on_processes(tmp_path: Path) -> None:
    with cluster(brokers=3, controllers=1, hostile=True, directory=tmp_path) as local:
        run_on_processes(a_full_disk, local)


async def end_of_the_broker(cluster: SimulatedProcesses) -> None:
    """Sends until the only broker has ended."""
    machine = cluster.simulated.machines[1]
    server = {"bootstrap.servers": cluster.bootstrap}
    async with Producer(server, environment=cluster.environment) as producer:
        await producer.send("orders", b"written late")
        with trio.fail_after(30):
            await machine.wait_ended()
        await cluster.free_disk(1)
        await cluster.wait_healthy()


def test_a_full_disk_excuses_no_later_end() -> None:
    """The broker ended as its disk was full, was started with room, and ended again; the run passed."""

    async def scenario(cluster: Cluster) -> None:
        assert isinstance(cluster, SimulatedProcesses)
        await cluster.create_topic("orders", 1, replicas=1)
        await cluster.fill_disk(1)
        await end_of_the_broker(cluster)
        if is_broken:
            trouble = Trouble(on_effect=lambda: None, write_error_probability=1.0)
            cluster.simulated.machines[1].disk.profile.begin(trouble)
            await end_of_the_broker(cluster)

    for is_broken in (False, True):
        with pytest.raises(SimulationError, match="broker-1 ended with") if is_broken else nullcontext():
            run_simulated(scenario, seed=1, brokers=1, controllers=1, settings={})


def test_a_full_disk_excuses_no_other_error_beside_it() -> None:
    """A node ends with the errors of all its tasks, in groups: each of them must be that of a disk."""
    full, failed, other = OSError(errno.ENOSPC, "full"), LogStorageError("/d", "failed"), AssertionError("a defect")
    excused = [full, failed, ExceptionGroup("both", [failed, ExceptionGroup("inner", [full])])]
    convicted = [
        other,
        ExceptionGroup("after", [full, other]),
        ExceptionGroup("before", [other, full]),
        ExceptionGroup("inner", [full, ExceptionGroup("deep", [failed, other])]),
    ]

    def run(ends: Sequence[Exception]) -> None:
        async def scenario(cluster: Cluster) -> None:
            assert isinstance(cluster, SimulatedProcesses)
            await cluster.fill_disk(1)
            simulated = cluster.simulated
            simulated.world.failures.extend((simulated.host(1), error) for error in ends)

        run_simulated(scenario, seed=1, brokers=1, controllers=1, settings={})

    run(excused)
    for error in convicted:
        with pytest.raises(SimulationError, match="broker-1 ended with"):
            run([error])


async def a_wrong_node(cluster: Cluster) -> None:
    for action in (cluster.fill_disk, cluster.free_disk):
        with pytest.raises(LauncherUsageError, match="no node 9"):
            await action(9)


def test_the_disk_of_an_unknown_node_is_refused() -> None:
    run_simulated(a_wrong_node, seed=1, brokers=1, controllers=1, settings={})
