"""Goal: a broker says when a bound of connections shuts other brokers out. Method: the rule alone; whole brokers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.runtime.config import BROKER_CONFIG
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.server.lifecycle.connection_room import ConnectionRoom
from support.cluster.broker_cluster import run_cluster

if TYPE_CHECKING:
    from support.cluster.broker_cluster import Cluster

BROKER = 4
FILE = {
    "process.roles": "broker",
    "node.id": "1",
    "listeners": "PLAINTEXT://:9092",
    "controller.quorum.voters": "101@c:9093",
    "controller.listener.names": "CONTROLLER",
}
OWN_LISTENER = {
    "listeners": "PUBLIC://:9092,INSIDE://:9093",
    "inter.broker.listener.name": "INSIDE",
    "listener.security.protocol.map": "PUBLIC:PLAINTEXT,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
}
OF_THE_LISTENER = "listener.name.inside.max.connections"


@pytest.mark.parametrize(
    ("values", "brokers", "warned"),
    [
        ({}, 100, []),
        ({"max.connections": "7"}, 3, []),
        ({"max.connections": "6"}, 3, ["key=max.connections value=6 needed=7 brokers=3"]),
        ({"max.connections": "1"}, 1, []),
        ({"max.connections": "0"}, 1, ["key=max.connections value=0 needed=1 brokers=1"]),
        (OWN_LISTENER | {"max.connections": "0"}, 3, []),  # brokers are admitted beyond it, as in Kafka
        (OWN_LISTENER | {OF_THE_LISTENER: "6"}, 3, []),
        (OWN_LISTENER | {OF_THE_LISTENER: "5"}, 3, [f"key={OF_THE_LISTENER} value=5 needed=6 brokers=3"]),
    ],
    ids=range(8),
)
def test_bounds_are_compared_with_the_brokers(
    values: dict[str, str], brokers: int, warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    config = BROKER_CONFIG.parse(FILE | values)
    room = ConnectionRoom(values.get("inter.broker.listener.name", "PLAINTEXT"), EventLogger("test"))
    for _ in range(2):
        room.follow(config, brokers)
    found = [record.getMessage() for record in caplog.records]
    assert len(found) == len(warned)
    assert all(text in line for text, line in zip(warned, found, strict=True)), found


def test_each_bound_that_is_too_low_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    room = ConnectionRoom("PLAINTEXT", EventLogger("test"))
    seen = []
    for bound, brokers in (("3", 2), ("3", 3), ("2", 3), ("100", 3), ("2", 3)):
        room.follow(BROKER_CONFIG.parse(FILE | {"max.connections": bound}), brokers)
        seen.append(len(caplog.records))
    assert seen == [1, 1, 2, 2, 3]


def test_a_broker_warns_at_the_change_and_at_its_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    def lines() -> list[str]:
        return [text for record in caplog.records if "connections-bound-low" in (text := record.getMessage())]

    async def scenario(cluster: Cluster) -> None:
        lowered = AlterableConfig(name="max.connections", config_operation=0, value="3")
        resource = AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=[lowered])
        assert lines() == []
        response = await cluster.client(1).request(IncrementalAlterConfigsRequest(resources=[resource]))
        assert response.responses[0].error_code == ErrorCode.NONE
        await cluster.until(lambda: len(lines()) == 1)
        await cluster.stop(1)
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running)
        assert len(lines()) == 2

    run_cluster(scenario, brokers=2)
    assert all("key=max.connections value=3 needed=4 brokers=2" in line for line in lines())
