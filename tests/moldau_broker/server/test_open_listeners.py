"""Goal: even without authentication, a client cannot speak as a node at any listener of a broker; administrators can.

Method: open clusters on virtual time whose brokers have one listener for all, or one for clients and one for brokers.
A plain client sends to each kind of listener every request that the tables reserve to nodes, with the epoch of a live
broker where one belongs, and an administrator's UnregisterBroker. The last test states what an open cluster does not
prevent at a controller's listener (docs/guides/threat-model.md).
"""

from __future__ import annotations

from typing import Any

import pytest

from moldau.protocol.access import AclOperation, Listeners
from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_partition import AlterPartitionRequest
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest
from moldau.runtime.net.rpc import RpcConnection
from moldau_broker.server.handlers.apis import BASE_APIS
from moldau_quorum.node.serving.apis import CONTROLLER_APIS
from support.cluster.broker_cluster import BROKER_PORT, CONTROLLER_PORT, frame, read_frame, run_cluster

CLIENTS_PORT = 9192
SEPARATE: dict[str, Any] = {
    "own_listeners": {
        broker_id: f"INSIDE://b{broker_id}:{BROKER_PORT},OUT://b{broker_id}:{CLIENTS_PORT}" for broker_id in (1, 2)
    },
    "listener_security_protocol_map": "INSIDE:PLAINTEXT,OUT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter_broker_listener_name": "INSIDE",
}
KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "shared": (BROKER_PORT, {}),
    "inter-broker": (BROKER_PORT, SEPARATE),
    "client": (CLIENTS_PORT, SEPARATE),
}
"""Port and settings of each kind of listener of a broker."""

TO_CONTROLLERS = [
    api.key
    for api in CONTROLLER_APIS
    if api.rules.listeners is Listeners.CONTROLLER
    and any(need.operation is AclOperation.CLUSTER_ACTION for need in api.rules.needs)
]
"""Requests that only nodes send, and only to controllers."""
TO_BROKERS = [api.key for api in BASE_APIS if Listeners.CLIENT not in api.rules.listeners]
"""Requests that only brokers send, and only to brokers."""


def forged(key: ApiKey, epoch: int) -> bytes:
    """The request of a node that fences, or changes, most; otherwise an empty one."""
    request: Any = APIS[key].request()
    if key is ApiKey.BROKER_HEARTBEAT:
        request = BrokerHeartbeatRequest(broker_id=2, broker_epoch=epoch, want_fence=True, want_shut_down=True)
    elif key is ApiKey.ALTER_PARTITION:
        request = AlterPartitionRequest(broker_id=2, broker_epoch=epoch)
    return frame(request, APIS[key].versions.last)


async def answer_at(cluster: Any, port: int, request: bytes) -> memoryview | None:
    """The answer of broker 1 at a port, None if it closed the connection instead."""
    client = await cluster.client_environment.network.connect("b1", port)
    await client.send_all([request])
    answer = await read_frame(client)
    client.close()
    return answer


async def connect(cluster: Any, host: str, port: int) -> RpcConnection:
    return await RpcConnection.open(cluster.client_environment, host, port, "test")


@pytest.mark.parametrize("kind", KINDS)
def test_no_broker_listener_serves_what_nodes_tell_controllers(kind: str) -> None:
    port, settings = KINDS[kind]
    assert {ApiKey.BROKER_HEARTBEAT, ApiKey.BROKER_REGISTRATION, ApiKey.ALTER_PARTITION} <= set(TO_CONTROLLERS)

    async def scenario(cluster) -> None:
        before = cluster.image().brokers[2]
        for key in TO_CONTROLLERS:
            connection = await connect(cluster, "b1", port)
            assert not connection.serves(key), key
            connection.close()
            assert await answer_at(cluster, port, forged(key, before.broker_epoch)) is None, key
        await cluster.client(1).create_topic("later")
        assert cluster.image().brokers[2] == before

    run_cluster(scenario, brokers=2, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_listener_of_brokers_serves_their_requests(kind: str) -> None:
    port, settings = KINDS[kind]
    assert ApiKey.WRITE_SHARE_GROUP_STATE in TO_BROKERS

    async def scenario(cluster) -> None:
        for key in TO_BROKERS:
            answer = await answer_at(cluster, port, forged(key, 0))
            assert (answer is None) == (kind == "client"), key

    run_cluster(scenario, brokers=2, **settings)


@pytest.mark.parametrize("kind", [*KINDS, "controller"])
def test_an_administrator_unregisters_a_broker(kind: str) -> None:
    """UnregisterBroker is a client's call in Kafka; ACLs restrict it where an authorizer is configured."""
    port, settings = KINDS.get(kind, (CONTROLLER_PORT, {}))

    async def scenario(cluster) -> None:
        cluster.kill(2)
        connection = await connect(cluster, "c101" if kind == "controller" else "b1", port)
        for expected in (ErrorCode.NONE, ErrorCode.BROKER_ID_NOT_REGISTERED):
            answer = await connection.request(UnregisterBrokerRequest(broker_id=2), timeout_ms=30_000)
            assert answer.error_code == expected
        await cluster.until(lambda: 2 not in cluster.image().brokers)
        connection.close()

    run_cluster(scenario, brokers=2, **settings)


def test_an_open_controller_believes_the_present_epoch() -> None:
    """Only the epoch is checked there; the broker is back with its next heartbeat."""

    async def scenario(cluster) -> None:
        epoch = cluster.image().brokers[2].broker_epoch
        connection = await connect(cluster, "c101", CONTROLLER_PORT)
        for guess, expected in ((epoch - 1, ErrorCode.STALE_BROKER_EPOCH), (epoch, ErrorCode.NONE)):
            request = BrokerHeartbeatRequest(
                broker_id=2, broker_epoch=guess, current_metadata_offset=cluster.image().offset, want_fence=True
            )
            answer = await connection.request(request, timeout_ms=30_000)
            assert answer.error_code == expected
        assert answer.is_fenced
        await cluster.until(lambda: cluster.image().brokers[2].fenced)
        await cluster.until(lambda: not cluster.image().brokers[2].fenced)
        connection.close()

    run_cluster(scenario, brokers=2)
