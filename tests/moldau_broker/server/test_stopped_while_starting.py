"""Goal: a broker that is stopped in order before it could register is as clean as it was before it began.

Found by a seed: such a life had taken the marker of the clean stop before it and left none. The next one registered as
if it had been killed, left the eligible leader replicas, and the last known leader led without what had been committed.
Method: a cluster in a simulated world, whose controller is away while the broker starts.
"""

from __future__ import annotations

import trio

from broker_cluster import run_cluster
from moldau_broker.log.checkpoint import decode_clean_shutdown
from moldau_broker.log.names import CLEAN_SHUTDOWN
from moldau_broker.server import run_broker

MARKER = f"/data/{CLEAN_SHUTDOWN}"


def test_the_clean_stop_before_a_start_that_is_given_up_still_counts() -> None:
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
