"""Goal: no two replicas of a partition are created on one machine, whatever is down at that moment.

Method: a simulated cluster of three machines with two brokers each. A machine is the host that its brokers advertise on
their first listener. The image of the controllers is judged after each creation.
"""

from __future__ import annotations

import pytest
import trio

from moldau.admin import Admin, NewTopic
from support.cluster.broker_cluster import Cluster, run_cluster
from support.proof import proof_beyond

MACHINES = {1: "m1", 2: "m1", 3: "m2", 4: "m2", 5: "m3", 6: "m3"}
LISTENERS = {node: f"MACHINE://b{node}:9099,PLAINTEXT://b{node}:9092" for node in MACHINES}
SETTINGS = {
    "own_listeners": LISTENERS,
    "listener_security_protocol_map": "MACHINE:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter_broker_listener_name": "PLAINTEXT",
}


class MachineCluster(Cluster):
    """Brokers that advertise the host of their machine."""

    def broker_config(self, broker_id, **more):
        advertised = f"MACHINE://{MACHINES[broker_id]}:{9000 + broker_id},PLAINTEXT://b{broker_id}:9092"
        return super().broker_config(broker_id, advertised_listeners=advertised, **more)


def judge(cluster, factor):
    """Returns the number of judged partitions; each is on as many machines as it has replicas."""
    count = 0
    for name, topic in cluster.image().topics_by_name.items():
        for number, part in topic.partitions.items():
            used = {MACHINES[node] for node in part.replicas}
            assert len(used) == min(factor, 3), f"{name}-{number} is on {part.replicas}"
            count += 1
    return count


@pytest.mark.parametrize("seed", proof_beyond(1, [1, 2]))
def test_replicas_stand_on_different_machines(seed, monkeypatch):
    monkeypatch.setattr("support.cluster.broker_cluster.Cluster", MachineCluster)

    async def scenario(cluster):
        servers = ",".join(f"b{node}:9092" for node in MACHINES)
        async with Admin({"bootstrap.servers": servers}, environment=cluster.client_environment) as admin:
            await admin.create_topics([NewTopic("whole", partitions=12, replication_factor=3)])
            for node in (3, 4):
                cluster.kill(node)
            await cluster.until(lambda: {n for n, one in cluster.image().brokers.items() if one.fenced} == {3, 4})
            await admin.create_topics([NewTopic("halved", partitions=12, replication_factor=3)])
            await admin.create_partitions({"whole": 18})
            await cluster.until(lambda: len(cluster.image().topics_by_name.get("whole").partitions) == 18)
            assert judge(cluster, 3) == 30
            for node in (3, 4):
                cluster.start_broker(node)
            await cluster.until(lambda: len(cluster.running) == 6)
            with trio.fail_after(60):
                while any(  # noqa: ASYNC110 - no event reports the end of replication
                    set(part.isr) != set(part.replicas)
                    for topic in cluster.image().topics_by_name.values()
                    for part in topic.partitions.values()
                ):
                    await trio.sleep(0.1)

    run_cluster(scenario, seed=seed, brokers=6, **SETTINGS)
