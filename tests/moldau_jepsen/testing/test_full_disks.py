"""Goal: a test can fill the disk of a node, alike in the simulation and on processes, and nothing acknowledged is lost.

Method: the disk of the leader is full while records are sent; the same story runs in both worlds.
"""

from pathlib import Path

import pytest
import trio

from moldau import Consumer, Producer
from moldau_jepsen.launcher import LauncherUsageError
from moldau_jepsen.testing import cluster
from moldau_jepsen.testing.scenario import Cluster, run_on_processes, run_simulated

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


async def a_wrong_node(cluster: Cluster) -> None:
    for action in (cluster.fill_disk, cluster.free_disk):
        with pytest.raises(LauncherUsageError, match="no node 9"):
            await action(9)


def test_the_disk_of_an_unknown_node_is_refused() -> None:
    run_simulated(a_wrong_node, seed=1, brokers=1, controllers=1, settings={})
