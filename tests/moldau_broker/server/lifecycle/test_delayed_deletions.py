"""Goal: the files of a deleted topic stay for ``file.delete.delay.ms``, however the wall clock is set meanwhile.

Method: a broker on virtual time, whose wall clock jumps after the deletion.
"""

from __future__ import annotations

import pytest
import trio

from moldau.protocol.messages.delete_topics import DeleteTopicsRequest
from support.cluster.broker_cluster import Cluster, run_cluster

DELAY_MS = 30_000
YEAR_MS = 365 * 24 * 3600 * 1000.0


@pytest.mark.parametrize("jump_ms", [0.0, YEAR_MS, -YEAR_MS])
def test_a_clock_that_jumps_does_not_move_a_deletion(jump_ms: float) -> None:
    """Files stayed for a year after the clock was set back, and went at once when it was set forward."""

    async def scenario(cluster: Cluster) -> None:
        client, node = cluster.client(1), cluster.world.node("b1")
        await client.create_topic("t")
        await client.request(DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000), 5)

        def left() -> list[str]:
            return [path for path in node.disk.files("/data") if "-delete/" in path]

        await cluster.until(left)
        node.clock.jump_wall(jump_ms)
        await trio.sleep(DELAY_MS / 1000 - 5)
        assert left()
        await trio.sleep(10)
        assert not left()

    run_cluster(scenario, log_segment_delete_delay_ms=str(DELAY_MS))
