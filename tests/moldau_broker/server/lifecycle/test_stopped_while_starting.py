"""Goal: an orderly stop before the registration leaves a broker as clean as it was before its start.

A seed found that such a start removed the marker of the earlier clean stop and left none. The next start registered as
if the broker had been killed and left the eligible leader replicas, and the last known leader led without committed
records. Method: a cluster in a simulated world, whose controller is down while the broker starts.
"""

from __future__ import annotations

import trio

from moldau_broker.log.files.checkpoint import decode_clean_shutdown
from moldau_broker.log.files.names import CLEAN_SHUTDOWN
from moldau_broker.server import run_broker
from support.cluster.broker_cluster import run_cluster

MARKER = f"/data/{CLEAN_SHUTDOWN}"


def test_a_clean_stop_counts_after_an_abandoned_start() -> None:
    """The clean stop before an abandoned start still counts."""

    async def scenario(cluster):
        node = cluster.world.node("b1")

        def remembered():
            return decode_clean_shutdown(MARKER, bytes(node.disk.lookup(MARKER).content))

        epoch = cluster.running[1].broker_epoch
        await cluster.stop(1)
        before = remembered()
        for controller in cluster.controller_ids:
            cluster.world.node(f"c{controller}").kill()
        stop = trio.Event()
        node.start(lambda environment: run_broker(environment, cluster.broker_config(1), shutdown=stop))
        await trio.sleep(5)
        assert MARKER not in node.disk.files("/data"), "the directory is in use"
        stop.set()
        await node.wait_ended()
        after = remembered()
        for controller in cluster.controller_ids:
            cluster.start_controller(controller)
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running and cluster.running[1].is_serving)
        return epoch, before, after

    (epoch, before, after), _ = run_cluster(scenario, brokers=1)
    assert epoch >= 0
    assert before == after == epoch
