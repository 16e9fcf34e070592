"""Random faults on a quorum: topic configurations stay linearizable, images agree, nothing acknowledged is lost.

Each seed draws kills, power losses, cuts and resets among three controllers while three clients write and read one
configuration value (unique numbers), without retrying anything whose outcome is unknown. Afterwards everything is
healed, all controllers and brokers must show the same image, and an order must explain what the clients saw.
``MOLDAU_QUORUM_FIRST_SEED`` and ``MOLDAU_QUORUM_SEEDS`` set which seeds are run.
"""

from __future__ import annotations

import contextlib
import os

import pytest
import trio

from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.runtime.net.rpc import RpcConnection
from moldau_jepsen.checkers.register import RegisterOperation, check_register
from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.controller_client import ControllerUnavailableError
from moldau_quorum.metadata.snapshot import snapshot_pieces
from support.proof import proof_beyond
from support.quorum.cluster import TestCluster, eventually

FIRST_SEED = int(os.environ.get("MOLDAU_QUORUM_FIRST_SEED", "0"))
SEEDS = int(os.environ.get("MOLDAU_QUORUM_SEEDS", "12"))
KEY = "retention.ms"
FAULT_MS = 12_000


def write_request(value: int) -> IncrementalAlterConfigsRequest:
    config = AlterableConfig(name=KEY, config_operation=0, value=str(value))
    return IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=2, resource_name="register", configs=[config])]
    )


READ = DescribeConfigsRequest(
    resources=[DescribeConfigsResource(resource_type=2, resource_name="register", configuration_keys=[KEY])]
)


class Worker:
    """One client process: a random operation at a time, to the controller that it takes for active."""

    def __init__(self, cluster: TestCluster, number: int, history: list[RegisterOperation]) -> None:
        self.number = number
        self.history = history
        self.written = 0
        self._cluster = cluster
        self._random = cluster.world.random("worker", number)
        self._environment = cluster.world.node(f"client{number}").environment
        self._target = self._random.choice(sorted(cluster.voters))
        self._connection: RpcConnection | None = None

    async def run(self) -> None:
        while True:
            if self._random.random() < 0.5:
                await self._write()
            else:
                await self._read()
            await trio.sleep(self._random.random() * 0.4)

    async def _ask(self, request):
        """The response, or None when there is none; moves on to another controller then."""
        try:
            if self._connection is None or not self._connection.is_open:
                host, port = self._cluster.voters[self._target]
                self._connection = await RpcConnection.open(
                    self._environment, host, port, f"worker-{self.number}", timeout_ms=1000
                )
            return await self._connection.request(request, timeout_ms=2000)
        except (OSError, trio.TooSlowError, ProtocolError, KafkaError):
            self._move()
            return None

    def _move(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._target = self._random.choice(sorted(self._cluster.voters))

    def _note(self, *, write: bool, value: int | None, begun: float, ended: float) -> None:
        self.history.append(RegisterOperation(write=write, value=value, begun_ms=begun * 1000, ended_ms=ended * 1000))

    async def _write(self) -> None:
        self.written += 1
        value = self.number * 1_000_000 + self.written
        begun = trio.current_time()
        response = await self._ask(write_request(value))
        code = None if response is None else response.responses[0].error_code
        if code == ErrorCode.NONE:
            self._note(write=True, value=value, begun=begun, ended=trio.current_time())
        else:
            # Even NOT_CONTROLLER may come after the change was written by a leader that was then deposed.
            self._note(write=True, value=value, begun=begun, ended=float("inf"))
            self._move()

    async def _read(self) -> None:
        begun = trio.current_time()
        response = await self._ask(READ)
        if response is None or response.results[0].error_code != ErrorCode.NONE:
            self._move()
            return
        (config,) = response.results[0].configs
        value = int(config.value) if config.config_source == 1 else None
        self._note(write=False, value=value, begun=begun, ended=trio.current_time())


def without_silent_writes(history: list[RegisterOperation]) -> list[RegisterOperation]:
    """Drops unread writes of unknown outcome: values are unique, so any order may as well do without them."""
    read = {operation.value for operation in history if not operation.write}
    return [op for op in history if not op.write or op.ended_ms != float("inf") or op.value in read]


async def make_faults(cluster: TestCluster) -> None:
    world = cluster.world
    random = world.random("faults")
    names = [controller.node.name for controller in cluster.controllers.values()]
    while True:
        await trio.sleep(0.3 + random.random() * 1.2)
        victim = random.choice(list(cluster.controllers.values()))
        if random.random() < 0.5:
            victim = cluster.active() or victim
        kind = random.choice(["kill", "power", "cut", "one-way", "reset", "heal", "restart", "restart"])
        others = [name for name in names if name != victim.node.name]
        if kind == "kill":
            victim.kill()
        elif kind == "power":
            victim.running = None
            victim.node.lose_power()
        elif kind == "cut":
            world.network.cut_between([victim.node.name], others)
        elif kind == "one-way":
            world.network.cut(victim.node.name, random.choice(others))
        elif kind == "reset":
            world.network.reset_connections(victim.node.name, random.choice(others))
        elif kind == "heal":
            world.network.heal_all()
        else:
            restart_dead(cluster)


def restart_dead(cluster: TestCluster) -> None:
    for controller in cluster.controllers.values():
        if not controller.node.is_running:
            controller.start()


@pytest.mark.parametrize("seed", proof_beyond(1, range(FIRST_SEED, FIRST_SEED + SEEDS)))
def test_configurations_stay_linearizable_under_faults(seed: int) -> None:
    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2)
        client = cluster.client()
        request = CreateTopicsRequest(topics=[CreatableTopic(name="register", num_partitions=1, replication_factor=2)])
        created = await client.request(request, CreateTopicsResponse, timeout_ms=20_000)
        assert created.topics[0].error_code == 0
        history: list[RegisterOperation] = []
        with trio.move_on_after(FAULT_MS / 1000):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(make_faults, cluster)
                for number in (1, 2, 3):
                    nursery.start_soon(Worker(cluster, number, history).run)
        world.network.heal_all()
        restart_dead(cluster)
        await cluster.wait_active()

        # Liveness: the brokers are taken back, the healed quorum takes a change, and all brokers receive it.
        def brokers_are_back() -> bool:
            active = cluster.active()
            return active is not None and not any(b.fenced for b in active.running.machine.image.brokers.values())

        await eventually(brokers_are_back)
        done = CreateTopicsRequest(topics=[CreatableTopic(name="done", num_partitions=1, replication_factor=1)])
        code = ErrorCode.REQUEST_TIMED_OUT
        with trio.fail_after(90):
            while code == ErrorCode.REQUEST_TIMED_OUT:  # a change is sent once; the next one shows its outcome
                with contextlib.suppress(ControllerUnavailableError):
                    answered = await client.request(done, CreateTopicsResponse, timeout_ms=30_000)
                    code = answered.topics[0].error_code
        assert code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        images = [lambda c=c: c.running and c.running.machine.image for c in cluster.controllers.values()]
        await eventually(lambda: all(image() and "done" in image().topics_by_name for image in images))
        await trio.sleep(15)
        snapshots = {}
        for image in images:
            snapshots.setdefault(image().offset, set()).add(b"".join(snapshot_pieces(image())))
        assert all(len(same) == 1 for same in snapshots.values()), "two controllers disagree at one offset"
        leader = cluster.active().running.machine.image
        assert leader.offset in snapshots
        for broker in cluster.brokers.values():
            assert broker.follower.image.topics_by_name == leader.topics_by_name
            assert not leader.brokers[broker.broker_id].fenced
        assert not world.failures, world.failures
        answered_count = sum(operation.ended_ms != float("inf") for operation in history)
        assert answered_count >= 1
        verdict = check_register(without_silent_writes(history))
        assert verdict.linearizable, verdict.text

    run_world(main, seed)
