"""Goal: on real processes, what was acknowledged outlives the loss of power of every broker at once when records are
synced before they are acknowledged, and the loss is real: without that policy unsynced records are gone.

Method: a cluster on machines that the harness rules; records are sent and awaited, every broker loses power, the same
disks start again, and everything is read.
"""

from pathlib import Path

import pytest
import trio

from moldau.consumer import Consumer
from moldau.producer import Producer
from moldau.runtime.ports.real import real_environment
from moldau_jepsen.launcher import ClusterSpec, LauncherUsageError, LocalCluster, start_cluster
from moldau_jepsen.workloads.operations import ClusterOperations

pytestmark = pytest.mark.processes

RECORDS = 100
WAIT_S = 240.0


async def send(bootstrap: str) -> None:
    environment = real_environment(1)
    operations = ClusterOperations(environment, bootstrap, "kept")
    async with trio.open_nursery() as nursery:
        await nursery.start(operations.run)
        await operations.create_topic(1, 3, {}, timeout_s=WAIT_S)
        nursery.cancel_scope.cancel()
    async with Producer({"bootstrap.servers": bootstrap, "linger.ms": 0}, environment=environment) as producer:
        for number in range(RECORDS):
            metadata = await (await producer.send("kept", b"%d" % number, partition=0))
            assert metadata.offset == number


async def read(bootstrap: str) -> list[int]:
    found: list[int] = []
    config = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"}
    async with Consumer(config, environment=real_environment(2)) as consumer:
        consumer.assign([("kept", 0)])
        ends = await consumer.end_offsets([("kept", 0)])
        while len(found) < ends["kept", 0]:
            for batch in await consumer.poll(500.0):
                found += [int(record.value or b"") for record in batch.records]
    return found


def bounded(work, *arguments):
    async def main():
        with trio.fail_after(WAIT_S):
            return await work(*arguments)

    return trio.run(main)


def lose_everything(cluster: LocalCluster, seed: int) -> int:
    """Cuts the power of all brokers together; returns the pages that did not arrive whole."""
    for node in cluster.brokers:
        cluster.kill(node.node_id)
    lost = sum(cluster.lose_power(node.node_id, seed + node.node_id).pages for node in cluster.brokers)
    for node in cluster.brokers:
        cluster.launch(node.node_id)
    cluster.wait_ready(cluster.nodes, timeout_ms=WAIT_S * 1000)
    return lost


@pytest.mark.parametrize("synced", [True, pytest.param(False, marks=pytest.mark.proof)])
def test_synced_records_survive_a_power_loss_of_all_nodes(tmp_path: Path, synced: bool) -> None:
    """Acknowledged records that are synced survive a power loss of the whole cluster."""
    settings = {"log.flush.interval.messages": "1"} if synced else {}
    spec = ClusterSpec(brokers=3, controllers=1, hostile=True, settings=settings)
    cluster = start_cluster(tmp_path / "cluster", spec)
    try:
        bounded(send, cluster.bootstrap)
        lost = lose_everything(cluster, 7)
        found = bounded(read, cluster.bootstrap)
    finally:
        cluster.shut_down()
    if synced:
        assert found == list(range(RECORDS))
    else:
        assert lost > 0, "the loss takes what was not synced"
        assert found == list(range(len(found))), "what is left is a prefix: damaged ends are cut off, not served"


def test_power_is_only_lost_on_machines_that_the_harness_rules(tmp_path: Path) -> None:
    cluster = start_cluster(tmp_path / "cluster", ClusterSpec(brokers=1, controllers=1))
    try:
        with pytest.raises(LauncherUsageError, match="start it hostile"):
            cluster.lose_power(1, 1)
        with pytest.raises(LauncherUsageError, match="start it hostile"):
            cluster.control(1, lambda control: control)
    finally:
        cluster.shut_down()
