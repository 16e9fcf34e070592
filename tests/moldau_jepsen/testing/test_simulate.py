"""Goal: a user's scenario runs against a simulated cluster in this process, repeatably, and a broken promise surfaces.

Method: a producer and a consumer of the client library through the loss of power of a broker, twice with one seed.
"""

import logging

import pytest
import trio

from moldau import Consumer, Producer
from moldau.protocol.errors import KafkaError
from moldau_broker.server.replicas.replica_manager import ReplicaManager
from moldau_jepsen.cluster.simulated import SimulatedCluster
from moldau_jepsen.simulation.judge import watch
from moldau_jepsen.simulation.judge.invariants import ClusterInvariants, PartitionKey
from moldau_jepsen.simulation.mutants.mutants import planted
from moldau_jepsen.simulation.mutants.planted.registry import MUTANTS
from moldau_jepsen.testing import new_history, simulate
from moldau_jepsen.testing.scenario import Cluster, SimulatedProcesses, run_simulated
from moldau_jepsen.testing.simulated import SimulationError, _Watched

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


def first_read_seconds(settings: dict[str, object]) -> float:
    """How long a new group of one member takes from its subscription to its first record, in virtual time."""

    async def reads(sim: SimulatedCluster) -> float:
        await sim.wait_healthy(60)
        environment = sim.world.node("app").environment
        await sim.create_topic(environment, "orders", 1, {})
        async with Producer({"bootstrap.servers": sim.bootstrap}, environment=environment) as producer:
            await (await producer.send("orders", b"1"))
        config = {"bootstrap.servers": sim.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        async with Consumer(config, environment=environment) as consumer:
            began = trio.current_time()
            consumer.subscribe(["orders"])
            while not await consumer.poll(100):
                pass
            return trio.current_time() - began

    return simulate(reads, seed=3, settings=settings)


def test_the_first_read_of_a_group_does_not_wait() -> None:
    prompt = first_read_seconds({})
    assert prompt < 2
    assert first_read_seconds({"group.initial.rebalance.delay.ms": 3000}) > prompt + 2.5


def test_an_error_of_the_scenario_is_raised() -> None:
    async def failing(sim: SimulatedCluster) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        simulate(failing, seed=1, brokers=1, controllers=1)


@pytest.mark.parametrize("error", [LookupError("mine"), pytest.fail.Exception("mine")], ids=["exception", "outcome"])
def test_violations_are_reported_beside_the_scenario_error(error: BaseException) -> None:
    """Violations in the cluster are reported beside the exception of the scenario."""

    async def failing(sim: SimulatedCluster) -> None:
        async def dies(_: object) -> None:
            raise OSError("planted")

        sim.world.node("broker-9").start(dies)
        await sim.world.node("broker-9").wait_ended()
        raise error

    with pytest.raises(SimulationError, match="seed 1: broker-9 ended with OSError: planted at") as caught:
        simulate(failing, seed=1, brokers=1, controllers=1)
    assert caught.value.__cause__ is error
    assert not logging.getLogger("moldau").handlers


def test_tasks_that_never_rest_end_the_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "TURNS_AT_ONE_INSTANT_MAX", 2_000)

    async def spins(sim: SimulatedCluster) -> None:
        await sim.wait_healthy(60)
        while True:
            await trio.lowlevel.checkpoint()

    with pytest.raises(SimulationError, match=r"busy loop at .*spins"):
        simulate(spins, seed=1, brokers=1, controllers=1)


def test_a_request_that_fails_in_a_broker_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise LookupError("no such batch")

    async def sends(sim: SimulatedCluster) -> None:
        await sim.wait_healthy(60)
        environment = sim.world.node("app").environment
        await sim.create_topic(environment, "orders", 1, {})
        monkeypatch.setattr(ReplicaManager, "stage", broken)
        config = {"bootstrap.servers": sim.bootstrap, "delivery.timeout.ms": 3_000, "request.timeout.ms": 1_000}
        async with Producer(config, environment=environment) as producer:
            await (await producer.send("orders", b"1"))

    with pytest.raises(SimulationError, match=r"failed request: .*LookupError: no such batch at ") as caught:
        simulate(sends, seed=1, brokers=1, controllers=1)
    assert isinstance(caught.value.__cause__, KafkaError)


async def sent_while_followers_are_away(cluster: Cluster, acks: str) -> None:
    """A record is acknowledged, and recorded in the history, when only its leader can have it."""
    await cluster.create_topic("orders", replicas=2)
    config = {"bootstrap.servers": cluster.bootstrap, "acks": acks, "enable.idempotence": False}
    async with Producer(config, environment=cluster.environment) as producer:
        await (await producer.send("orders", b"first"))
        await cluster.cut(1, 2)
        for number in range(3):
            sent = await (await producer.send("orders", b"more"))
            cluster.history.sent("orders", sent.partition, sent.offset, number, acks=acks)


def run_sent(acks: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await sent_while_followers_are_away(cluster, acks)

    run_simulated(scenario, seed=1, brokers=2, controllers=1, settings={})


def test_the_judge_checks_acknowledged_records() -> None:
    run_sent("all")
    run_sent("1")  # promises less, and keeps it
    with planted(MUTANTS["acknowledged-at-once"]), pytest.raises(SimulationError, match="acked-is-committed: orders"):
        run_sent("all")


@pytest.mark.parametrize("ends", [(3, 7), (7, 3)])
def test_the_longest_log_of_a_name_judges_an_acknowledgement(ends: tuple[int, int]) -> None:
    """A topic was deleted and made again: the test names no id, so the judge gives it the benefit of the doubt."""
    watched = object.__new__(_Watched)
    watched._judge = ClusterInvariants(lambda: 0.0)
    for number, end in enumerate(ends):
        watched._judge.committed_to(PartitionKey("orders", 0, f"id {number}"), 1, end)
    watched.acknowledged("orders", 0, 6)
    assert watched._judge.violations == []
    watched.acknowledged("orders", 0, 7)
    assert [one.invariant for one in watched._judge.violations] == ["acked-is-committed"]


def test_waiting_for_health_starts_controllers_too() -> None:
    """A majority of them makes the cluster healthy; a test goes on with all of them, as on processes."""

    async def scenario(cluster: SimulatedProcesses) -> None:
        idle = next(one for one in (101, 102, 103) if one != cluster.simulated.active_controller())
        await cluster.kill(idle)
        await cluster.wait_healthy()
        await cluster.kill(idle)  # a node that does not run cannot be killed

    run_simulated(scenario, seed=1, brokers=1, controllers=3, settings={})  # type: ignore[arg-type]
