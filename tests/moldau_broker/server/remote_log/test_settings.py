"""Goal: a broker with tiered storage starts with every sound configuration, and no other.

Method: configuration files; a broker in virtual time whose store is away while it starts; a full set of copies at once.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.runtime.config import BROKER_CONFIG, ConfigError
from moldau.values import BrokerId
from moldau_broker.server.remote_log.building import DisabledWarning
from support.cluster.broker_cluster import run_cluster
from support.objects.tiered import TIERED, TOPIC, copied, created, fill, listing, objects, patiently, store_away

if TYPE_CHECKING:
    from support.cluster.broker_cluster import Cluster

SYSTEM = {"remote.log.storage.system.enable": "true", "controller.quorum.voters": "9@c:9093"}


def test_a_broker_needs_a_store_and_a_controller_does_not() -> None:
    controller = {"process.roles": "controller", "node.id": "9", "listeners": "CONTROLLER://c:9093"}
    BROKER_CONFIG.parse({**SYSTEM, **controller, "controller.listener.names": "CONTROLLER"})
    broker = {**SYSTEM, "process.roles": "broker", "node.id": "1", "controller.listener.names": "CONTROLLER"}
    BROKER_CONFIG.parse({**broker, "remote.log.storage.url": "file:///store"})
    with pytest.raises(ConfigError, match=r"a broker needs remote\.log\.storage\.url"):
        BROKER_CONFIG.parse(broker)


def test_a_broker_starts_and_stops_while_the_store_is_away() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t"))
        await fill(cluster, client, "t", 3)
        client.close()
        with store_away(cluster):
            cluster.kill(1)
            cluster.start_broker(1)
            await cluster.until(lambda: 1 in cluster.running)
            await trio.sleep(30)
            await cluster.stop(1)
            cluster.start_broker(1)
            await cluster.until(lambda: 1 in cluster.running)
        await patiently(cluster, lambda: copied(cluster, "t") == [0, 1], timeout_ms=60_000)

    run_cluster(scenario, **TIERED)


def test_no_more_copies_than_configured_are_in_progress() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=6, **TOPIC)
        await cluster.until(lambda: all(cluster.replica(1, "t", index) is not None for index in range(6)))
        objects(cluster).profile.delay_min = 0.5
        for index in range(6):
            await fill(cluster, client, "t", 3, partition=index)
        most = 0
        while sum(len(copied(cluster, "t", index)) for index in range(6)) < 12:
            most = max(most, sum(len(listing(cluster, "t", index).unfinished) for index in range(6)))
            await trio.sleep(0.1)
        assert most == 2

    run_cluster(scenario, remote_log_manager_copier_thread_pool_size="2", **TIERED)


def test_a_broker_without_a_store_warns_once_of_each_topic(caplog: pytest.LogCaptureFixture) -> None:
    """Its disk would fill without a word, because nothing leaves a disk that is not in the store."""
    warn = DisabledWarning(BrokerId(7))
    for topic, is_remote, error in (
        ("plain", False, ErrorCode.NONE),
        ("tiered", True, ErrorCode.NONE),
        ("tiered", True, ErrorCode.NONE),
        ("gone", True, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        partition: Any = SimpleNamespace(
            key=SimpleNamespace(topic=topic), log=SimpleNamespace(is_remote=is_remote), error=error
        )
        warn(partition, leads=True)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "tiered-storage-disabled" in message
    assert "topic=tiered" in message
