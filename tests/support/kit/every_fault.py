"""A user's test through every fault, run by ``test_plugin`` against processes and in the simulation.

Each fault is observed from outside, as clients see it: the brokers that answer, and those that broker 1 reports. A
record is sent under each, and at the end everything is read back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from moldau import Consumer, Producer
from moldau.admin import Admin
from moldau.cluster.metadata import TopicPartition
from moldau.protocol.errors import KafkaError
from moldau.protocol.messages.metadata import MetadataRequest, MetadataResponse
from moldau.runtime.net.rpc import RpcConnection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau_jepsen.testing.scenario import Cluster

    Address = tuple[str, int]

ANSWER_MS = 1_000
WAIT_S = 120
LOOK_S = 0.2
TOPIC = "orders"
SYNCED = {"log.flush.interval.messages": "1"}  # so that what was acknowledged survives a loss of power


async def ask(cluster: Cluster, address: Address) -> list[int] | None:
    """Returns the ids of the brokers that a node names as alive; None while it does not answer."""
    host, port = address
    try:
        connection = await RpcConnection.open(cluster.environment, host, port, "test", timeout_ms=ANSWER_MS)
        try:
            request = MetadataRequest(topics=[])
            answer = await connection.request_as(MetadataResponse, request, timeout_ms=ANSWER_MS)
        finally:
            connection.close()
    except (OSError, KafkaError, trio.TooSlowError):
        return None
    return sorted(broker.node_id for broker in answer.brokers)


async def reaches(cluster: Cluster, address: Address) -> bool:
    """Whether a controller takes connections and says which requests it knows."""
    host, port = address
    try:
        (await RpcConnection.open(cluster.environment, host, port, "test", timeout_ms=ANSWER_MS)).close()
    except (OSError, KafkaError, trio.TooSlowError):
        return False
    return True


async def wait_until(look: Callable[..., Awaitable[object]], *arguments: object, expected: object) -> None:
    """Looks until it sees what is expected."""
    seen: object = None
    with trio.move_on_after(WAIT_S):
        while (seen := await look(*arguments)) != expected:  # noqa: ASYNC110 - the cluster notifies no task
            await trio.sleep(LOOK_S)
    assert seen == expected


async def read_back(cluster: Cluster, count: int) -> None:
    """Reads so many records from the beginning, and no more than there are."""
    settings = {"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest"}
    place = TopicPartition(TOPIC, 0)
    async with Consumer(settings, environment=cluster.environment) as consumer:
        consumer.assign([place])
        assert (await consumer.end_offsets([place]))[place] == count
        with trio.fail_after(WAIT_S):
            while await consumer.position(place) < count:
                for batch in await consumer.poll(1000):
                    for record in batch.records:
                        assert record.value is not None
                        token = bytes(record.value).decode()
                        cluster.history.read("reader", TOPIC, 0, record.offset, token)
                        cluster.history.took_effect(token)


@pytest.mark.moldau(hostile=True, settings=SYNCED)
async def test_every_fault(moldau_cluster: Cluster) -> None:
    cluster, all_brokers = moldau_cluster, [1, 2, 3]
    brokers = [(host, int(port)) for host, port in (one.split(":") for one in cluster.bootstrap.split(","))]
    await cluster.create_topic(TOPIC)
    settings = {"bootstrap.servers": cluster.bootstrap, "request.timeout.ms": 5_000}
    async with (
        Producer(settings, environment=cluster.environment) as producer,
        Admin(settings, environment=cluster.environment) as admin,
    ):
        sent: list[str] = []

        async def send(token: str) -> None:
            with trio.fail_after(WAIT_S):
                metadata = await (await producer.send(TOPIC, token.encode()))
            cluster.history.sent(TOPIC, metadata.partition, metadata.offset, token)
            sent.append(token)

        await send("in peace")

        await cluster.pause(1)
        assert await ask(cluster, brokers[0]) is None, "a paused node does not answer"
        await wait_until(ask, cluster, brokers[1], expected=[2, 3])
        await send("one is paused")
        await cluster.resume(1)
        await wait_until(ask, cluster, brokers[0], expected=all_brokers)

        await cluster.cut(2)
        await wait_until(ask, cluster, brokers[0], expected=[1, 3])
        assert await ask(cluster, brokers[1]) is not None, "clients still reach a node that was cut from the others"
        await send("one is cut off")
        await cluster.heal()
        await wait_until(ask, cluster, brokers[0], expected=all_brokers)

        quorum = await admin.describe_quorum()
        await cluster.cut(3, quorum.leader_id)
        await wait_until(ask, cluster, brokers[0], expected=[1, 2])
        await send("one does not see the active controller")
        await cluster.heal()
        await wait_until(ask, cluster, brokers[0], expected=all_brokers)

        controllers = {node_id: (host, port) for node_id, host, port in quorum.endpoints}
        assert await reaches(cluster, controllers[101])
        await cluster.kill(101)
        assert not await reaches(cluster, controllers[101])
        await cluster.kill(3)
        assert await ask(cluster, brokers[2]) is None
        await wait_until(ask, cluster, brokers[0], expected=[1, 2])
        await send("two are dead")
        await cluster.start(101)
        await wait_until(reaches, cluster, controllers[101], expected=True)
        await cluster.start(3)
        await wait_until(ask, cluster, brokers[0], expected=all_brokers)

        await cluster.power_loss()
        assert [await ask(cluster, address) for address in brokers] == [None] * 3
        assert not any([await reaches(cluster, address) for address in controllers.values()])
        await cluster.wait_healthy()
        await send("the power is back")

    await read_back(cluster, len(sent))
    cluster.check()


async def test_a_broken_promise_names_its_seed(moldau_cluster: Cluster) -> None:
    moldau_cluster.history.sent(TOPIC, 0, 0, "never read")
    moldau_cluster.check()
