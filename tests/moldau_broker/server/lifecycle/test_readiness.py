"""Goal: a broker leads again only when its replicas are there.

Method: a simulated broker that restarts, and takes long to apply the metadata that it finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau_broker.server.cluster_metadata.applier import MetadataApplier
from support.cluster.broker_cluster import run_cluster

if TYPE_CHECKING:
    import pytest

SLOW_SECONDS = 20.0


def test_a_broker_is_unfenced_when_its_replicas_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that find it in the metadata would wait at listeners that do not serve yet."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=2)
        client.close()
        await cluster.stop(1)
        await cluster.until(lambda: cluster.image().brokers[1].fenced)
        apply_newest = MetadataApplier._apply_newest

        async def slowly(applier: MetadataApplier) -> None:
            await trio.sleep(SLOW_SECONDS)
            await apply_newest(applier)

        monkeypatch.setattr(MetadataApplier, "_apply_newest", slowly)
        begun = trio.current_time()
        cluster.start_broker(1)
        await cluster.until(lambda: not cluster.image().brokers[1].fenced, timeout_ms=60_000)
        assert trio.current_time() - begun >= SLOW_SECONDS
        await cluster.until(lambda: 1 in cluster.running)
        assert trio.current_time() - begun < SLOW_SECONDS + 5

    run_cluster(scenario, brokers=2)
