"""Controllers and bare brokers (sessions and followers without logs) in a simulated world."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING
from uuid import UUID

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from moldau.runtime.config import BROKER_CONFIG
from moldau.runtime.ports.environment import OpenMode
from moldau_quorum.broker_side.controller_client import ControllerClient
from moldau_quorum.broker_side.metadata_follower import MetadataFollower
from moldau_quorum.broker_side.session import BrokerRegistration, BrokerSession
from moldau_quorum.metadata.records import Endpoint
from moldau_quorum.node.server import run_controller

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Environment, Listener
    from moldau_jepsen.world.world import World
    from moldau_quorum.log.port import MetadataLogFactory
    from moldau_quorum.metadata.image import MetadataDelta
    from moldau_quorum.node.server import ControllerNode

PORT = 9093
BROKER_PORT = 9092


async def eventually(condition: Callable[[], bool], *, timeout_ms: float = 10_000) -> None:
    """Waits in steps of virtual time until a condition of the world holds."""
    with trio.fail_after(timeout_ms / 1000):
        while not condition():  # noqa: ASYNC110 - a node sends no notification of inner changes
            await trio.sleep(0.01)


def topic(name: str, partitions: int = 3, factor: int = 3) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)], timeout_ms=5000
    )


async def create(client: ControllerClient, request: CreateTopicsRequest) -> CreateTopicsResponse:
    response = await client.request(request, CreateTopicsResponse, timeout_ms=10_000, repeatable=True)
    assert [entry.error_code for entry in response.topics] == [ErrorCode.NONE] * len(request.topics), response
    return response


class TestController:
    """A controller in a world; ``node`` is its machine, ``running`` what the process exposes."""

    __test__ = False

    def __init__(self, cluster: TestCluster, node_id: int) -> None:
        self.node_id = node_id
        self.node = cluster.world.node(f"c{node_id}")
        self._cluster = cluster
        self.running: ControllerNode | None = None
        self.shutdown = trio.Event()

    def start(self) -> None:
        self.running = None
        self.node.start(self._main)

    async def _main(self, environment: Environment) -> None:
        self.shutdown = trio.Event()
        async with trio.open_nursery() as nursery:
            run = functools.partial(run_controller, make_log=self._cluster.make_log, shutdown=self.shutdown)
            self.running = await nursery.start(run, environment, self._cluster.config(self.node_id))

    def kill(self) -> None:
        self.running = None
        self.node.kill()

    def directory_id(self) -> UUID:
        """As the node's ``meta.properties`` says."""
        file = self.node.environment.disk.open("/data/__cluster_metadata/meta.properties", OpenMode.READ)
        values = dict(line.split("=", 1) for line in file.read(0, 4096).decode().splitlines())
        file.close()
        return UUID(values["directory.id"])


class TestBroker:
    """A broker that registers and follows the metadata, and does nothing else."""

    __test__ = False

    def __init__(self, cluster: TestCluster, broker_id: int, rack: str | None = None) -> None:
        self.broker_id = broker_id
        self.rack = rack
        self.node = cluster.world.node(f"b{broker_id}")
        self._cluster = cluster
        self.session: BrokerSession | None = None
        self.follower: MetadataFollower | None = None
        self.client: ControllerClient | None = None
        self.deltas: list[MetadataDelta] = []
        self.started = trio.Event()

    def start(self, *, previous_epoch: int = -1) -> None:
        self.started = trio.Event()
        self.deltas = []
        self.node.start(functools.partial(self._main, previous_epoch=previous_epoch))

    async def _main(self, environment: Environment, previous_epoch: int) -> None:
        voters = self._cluster.voters
        follower = self.follower = MetadataFollower(
            environment, voters, node_id=self.broker_id, on_delta=self.deltas.append, on_voters=self._update_voters
        )
        registration = BrokerRegistration(
            broker_id=self.broker_id,
            incarnation_id=UUID(int=environment.random.getrandbits(128), version=4),
            endpoints=(Endpoint(name="PLAINTEXT", host=self.node.name, port=BROKER_PORT),),
            rack=self.rack,
            previous_broker_epoch=previous_epoch,
        )
        session = self.session = BrokerSession(
            environment,
            voters,
            registration,
            metadata_offset=lambda: follower.image.offset,
            heartbeat_interval_ms=1000,
            session_timeout_ms=5000,
        )
        self.client = ControllerClient(environment, voters, client_id=f"test-{self.broker_id}")
        listener = await environment.network.listen(self.node.name, BROKER_PORT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._accept, listener)
            await nursery.start(follower.run)
            await nursery.start(session.run)
            await session.wait_unfenced()
            self.started.set()
            await trio.sleep_forever()

    async def _accept(self, listener: Listener) -> None:
        """Accepts and closes connections: an open listener shows that the broker is alive."""
        while True:
            (await listener.accept()).close()

    def _update_voters(self, voters: Mapping[int, tuple[str, int]]) -> None:
        for listener in (self.session, self.client):
            if listener is not None:
                listener.update_voters(voters)


class TestCluster:
    """Some controllers and brokers."""

    __test__ = False

    def __init__(
        self, world: World, *, controllers: int = 3, make_log: MetadataLogFactory | None = None, **settings: str
    ) -> None:
        self.world = world
        self.make_log = make_log
        self.voters = {101 + n: (f"c{101 + n}", PORT) for n in range(controllers)}
        self._settings = settings
        self.controllers = {node_id: TestController(self, node_id) for node_id in self.voters}
        self.brokers: dict[int, TestBroker] = {}

    def config(self, node_id: int) -> Config:
        given = {
            "process.roles": "controller",
            "node.id": str(node_id),
            "listeners": f"CONTROLLER://c{node_id}:{PORT}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": ",".join(f"{n}@{h}:{p}" for n, (h, p) in self.voters.items()),
            "log.dirs": "/data",
            "broker.session.timeout.ms": "5000",
            "broker.heartbeat.interval.ms": "1000",
        }
        if node_id not in self.voters:
            del given["controller.quorum.voters"]
            given["controller.quorum.bootstrap.servers"] = ",".join(f"{h}:{p}" for h, p in self.voters.values())
        given.update({name.replace("_", "."): value for name, value in self._settings.items()})
        return BROKER_CONFIG.parse(given)

    def join(self, node_id: int) -> TestController:
        """A controller that is no voter yet."""
        controller = self.controllers[node_id] = TestController(self, node_id)
        return controller

    def start_controllers(self) -> None:
        for controller in self.controllers.values():
            controller.start()

    def broker(self, broker_id: int, rack: str | None = None) -> TestBroker:
        found = self.brokers.get(broker_id)
        if found is None:
            found = self.brokers[broker_id] = TestBroker(self, broker_id, rack)
        return found

    async def start_brokers(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.broker(broker_id).start()
        with trio.fail_after(30):
            for broker_id in broker_ids:
                await self.broker(broker_id).started.wait()

    def active(self) -> TestController | None:
        leading = [c for c in self.controllers.values() if c.running is not None and c.running.active.is_active]
        return max(leading, key=lambda c: -1 if c.running is None else c.running.log.leadership.epoch, default=None)

    async def wait_active(self, *, other_than: int = -1) -> TestController:
        def found() -> bool:
            active = self.active()
            return active is not None and active.node_id != other_than

        await eventually(found, timeout_ms=30_000)
        active = self.active()
        assert active is not None
        return active

    def client(self, name: str = "admin") -> ControllerClient:
        return ControllerClient(self.world.node(name).environment, self.voters, client_id=name)
