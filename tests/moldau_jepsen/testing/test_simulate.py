"""Goal: a user's scenario runs against a simulated cluster in this process, repeatably, and a broken promise surfaces.

Method: a producer and a consumer of the client library through the loss of power of a broker, twice with one seed.
"""

import pytest

from moldau import Consumer, Producer
from moldau_jepsen.simulation.cluster import SimulatedCluster
from moldau_jepsen.testing import new_history, simulate

COUNT = 20


async def scenario(sim: SimulatedCluster) -> tuple[list[int], str]:
    """Records are sent while a broker loses power; a consumer reads all of them."""
    history = new_history()
    await sim.wait_healthy(60)
    environment = sim.world.node("app").environment
    await sim.create_topic(environment, "orders", 1, {})
    offsets = []
    async with Producer({"bootstrap.servers": sim.bootstrap}, environment=environment) as producer:
        for number in range(COUNT):
            if number == COUNT // 2:
                sim.lose_power(1)
            metadata = await (await producer.send("orders", str(number).encode()))
            history.sent("orders", metadata.partition, metadata.offset, str(number))
            offsets.append(metadata.offset)
    config = {"bootstrap.servers": sim.bootstrap, "auto.offset.reset": "earliest"}
    async with Consumer(config, environment=environment) as consumer:
        consumer.assign([("orders", 0)])
        read = 0
        while read < COUNT:
            for batch in await consumer.poll(1000):
                for record in batch.records:
                    token = bytes(record.value or b"").decode()
                    history.read("app", "orders", 0, record.offset, token)
                    history.took_effect(token)
                    read += 1
    history.check().raise_if_wrong()
    return offsets, sim.world.trace.digest


def test_one_seed_is_one_run() -> None:
    first = simulate(scenario, seed=5)
    assert first[0] == list(range(COUNT))
    assert simulate(scenario, seed=5) == first


def test_what_the_scenario_raises_is_raised() -> None:
    async def failing(sim: SimulatedCluster) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        simulate(failing, seed=1, brokers=1, controllers=1)
