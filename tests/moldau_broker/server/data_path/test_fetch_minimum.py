"""Goal: a fetch does not wait for more bytes than its answer may have.

Method: one broker on virtual time, more records than an answer may have, and a client that asks for still more.
"""

from __future__ import annotations

import pytest
import trio

from support.cluster.broker_cluster import Cluster, batch, run_cluster

WAIT_MS = 10_000
LIMIT = 2_000
RECORD = b"x" * 1_000


@pytest.mark.parametrize("of_the_broker", [False, True])
def test_a_full_answer_does_not_wait_for_more(of_the_broker: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        for _ in range(4):
            await client.produce("t", batch(RECORD))
        begun = trio.current_time()
        limit = 1 << 20 if of_the_broker else LIMIT
        part = await client.fetch("t", min_bytes=1 << 19, max_bytes=limit, max_wait_ms=WAIT_MS)
        assert len(part.records) == LIMIT
        assert trio.current_time() - begun < WAIT_MS / 2_000

    run_cluster(scenario, **({"fetch_max_bytes": LIMIT} if of_the_broker else {}))
