"""Runs a whole cluster in a simulated world: controllers and brokers as machines that run the production code.

No part of Moldau is replaced. A broker process is ``moldau_broker.server.lifecycle.broker.Broker``, a controller
process ``moldau_quorum.node.server.run_controller``, each with the environment of its machine. The cluster keeps a
handle on the running object for observers. A process that ends with an exception is a finding unless a disk fault
explains it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import trio

from moldau.admin import Admin
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.runtime.config import BROKER_CONFIG
from moldau.runtime.net.rpc import RpcConnection
from moldau.values import join_address
from moldau_broker.server.lifecycle.broker import Broker
from moldau_jepsen.cluster.full_disks import FullDisks
from moldau_jepsen.cluster.outside import NONE_OUTSIDE, Outside
from moldau_jepsen.cluster.secured import ADMIN, LoginNodes, anonymous_rights, login, password_of, secured_settings
from moldau_jepsen.launcher.spec import LauncherError
from moldau_quorum.controller.cluster.features import TRANSACTION_VERSION
from moldau_quorum.node.server import run_controller

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from moldau.admin import Acl
    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.world.world import SimulatedNode, World
    from moldau_quorum.metadata.image import MetadataImage
    from moldau_quorum.node.server import ControllerNode

BROKER_PORT = 9092
CONTROLLER_PORT = 9093
CONTROLLER_ID_FIRST = 101
POLL_SECONDS = 0.1


class ClusterNotReadyError(LauncherError):
    """The cluster did not reach the required state within the given virtual time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShape:
    """The shape of a cluster. ``settings`` apply to every node and override the defaults below."""

    controllers: int = 3
    brokers: int = 3
    directories: int = 1
    """Log directories of a broker (``log.dirs``); a controller has one."""
    settings: Mapping[str, str] = field(default_factory=dict)
    racks: bool = False
    """Whether each broker is a rack of its own, so that consumers may read from followers (KIP-392)."""
    secured: bool = False
    """Whether nodes have identities and clients need rights (``cluster.secured``)."""


class SimulatedCluster:
    """The nodes of a cluster. Invariant: a handle is present exactly while its process runs."""

    def __init__(self, world: World, shape: ClusterShape) -> None:
        """Makes the machines; starts no process."""
        self.world = world
        self.shape = shape
        self.broker_ids = list(range(1, shape.brokers + 1))
        self.controller_ids = [CONTROLLER_ID_FIRST + number for number in range(shape.controllers)]
        self.machines: dict[int, SimulatedNode] = {
            node_id: world.node(self.host(node_id)) for node_id in [*self.controller_ids, *self.broker_ids]
        }
        self.brokers: dict[int, Broker] = {}
        self.controllers: dict[int, ControllerNode] = {}
        self.lost_logs: dict[int, None] = {}
        """Voters whose metadata log a fault has lost, until they are replaced."""
        self.full_disks = FullDisks()
        self._stops: dict[int, trio.Event] = {}
        self._kept_down: tuple[int, ...] = ()

    def host(self, node_id: int) -> str:
        """Returns the name of a node's machine."""
        return f"controller-{node_id}" if node_id >= CONTROLLER_ID_FIRST else f"broker-{node_id}"

    def address(self, node_id: int) -> tuple[str, int]:
        """Returns host and port of a node's listener."""
        return self.host(node_id), CONTROLLER_PORT if node_id >= CONTROLLER_ID_FIRST else BROKER_PORT

    @property
    def bootstrap(self) -> str:
        """Returns the value of ``bootstrap.servers`` for clients."""
        return ",".join(f"{self.host(node_id)}:{BROKER_PORT}" for node_id in self.broker_ids)

    def log_directories(self, node_id: int) -> list[str]:
        """Returns the paths of a node's log directories, each on its own device."""
        count = 1 if node_id >= CONTROLLER_ID_FIRST else self.shape.directories
        return ["/data", *(f"/data{number}" for number in range(2, count + 1))]

    def settings(self, node_id: int) -> dict[str, object]:
        """Returns the configuration of a node."""
        is_controller = node_id >= CONTROLLER_ID_FIRST
        replicas = self.replicas
        settings: dict[str, object] = {
            "process.roles": "controller" if is_controller else "broker",
            "node.id": str(node_id),
            "controller.quorum.voters": ",".join(
                f"{voter}@{self.host(voter)}:{CONTROLLER_PORT}" for voter in self.controller_ids
            ),
            "controller.listener.names": "CONTROLLER",
            "listeners": (
                f"CONTROLLER://{self.host(node_id)}:{CONTROLLER_PORT}"
                if is_controller
                else f"PLAINTEXT://{self.host(node_id)}:{BROKER_PORT}"
            ),
            "log.dirs": ",".join(self.log_directories(node_id)),
            "default.replication.factor": str(replicas),
            "min.insync.replicas": str(max(1, replicas - 1)),
            "offsets.topic.replication.factor": str(replicas),
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(max(1, replicas - 1)),
            "share.coordinator.state.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.min.isr": str(max(1, replicas - 1)),
            "share.coordinator.state.topic.num.partitions": "4",
            "num.partitions": "2",
        }
        if self.shape.racks:
            settings |= {"replica.selector.class": "RackAwareReplicaSelector"}
            settings |= {} if is_controller else {"broker.rack": f"rack-{node_id}"}
        if self.shape.secured:
            settings |= secured_settings(self.host(node_id), BROKER_PORT, is_controller=is_controller)
        settings.update(self.shape.settings)
        return settings

    # --- processes

    def start(self, node_id: int) -> None:
        """Starts the process of a node; does nothing if it runs or must stay down."""
        machine = self.machines[node_id]
        if machine.is_running:
            return
        if node_id in self._kept_down:
            self.world.trace.note("kept-down", self.host(node_id))
            return
        self.full_disks.started(node_id, len(self.world.failures))
        stop = self._stops[node_id] = trio.Event()
        main = self._run_controller if node_id >= CONTROLLER_ID_FIRST else self._run_broker
        machine.start(partial(main, node_id, stop))

    def start_all(self, without: Collection[int] = ()) -> None:
        """Starts all nodes that do not run, except those in ``without``."""
        for node_id in self.machines:
            if node_id not in without:
                self.start(node_id)

    def keep_down(self, nodes: Collection[int]) -> None:
        """Kills these nodes and keeps them down until the next call names other nodes, or none.

        The cluster refuses to start them meanwhile, so a restart that was under way cannot bring one of them back.
        """
        self._kept_down = tuple(nodes)
        for node_id in nodes:
            self.kill(node_id)

    def assert_kept_down(self) -> None:
        """Asserts that the nodes that must stay down are down."""
        assert not set(self._kept_down) & set(self.running), f"of {self._kept_down} some are up: {self.running}"

    async def _run_broker(self, node_id: int, stop: trio.Event, environment: Environment) -> None:
        broker = Broker(environment, BROKER_CONFIG.parse(self.settings(node_id)))
        self.brokers[node_id] = broker
        try:
            await broker.run(stop, trio.TASK_STATUS_IGNORED)
        finally:
            if self.brokers.get(node_id) is broker:
                del self.brokers[node_id]

    async def _run_controller(self, node_id: int, stop: trio.Event, environment: Environment) -> None:
        config = BROKER_CONFIG.parse(self.settings(node_id))
        async with trio.open_nursery() as nursery:
            controller: ControllerNode = await nursery.start(partial(run_controller, environment, config))
            self.controllers[node_id] = controller
            try:
                await stop.wait()
            finally:
                if self.controllers.get(node_id) is controller:
                    del self.controllers[node_id]
            nursery.cancel_scope.cancel()

    def kill(self, node_id: int) -> None:
        """Kills the process of a node, as SIGKILL does."""
        self._forget(node_id)
        self.machines[node_id].kill()

    def lose_power(self, node_id: int) -> None:
        """Cuts the power of a node's machine."""
        self._forget(node_id)
        self.machines[node_id].lose_power()

    def _forget(self, node_id: int) -> None:
        self.brokers.pop(node_id, None)
        self.controllers.pop(node_id, None)

    def stop(self, node_id: int) -> None:
        """Asks the process to end in order (SIGTERM)."""
        if self.machines[node_id].is_running:
            self.world.trace.note("stop", self.host(node_id))
            self._stops[node_id].set()

    def is_stopping(self, node_id: int) -> bool:
        """Returns whether the process was asked to end in order and still runs."""
        return self.machines[node_id].is_running and self._stops[node_id].is_set()

    async def restart(self, node_id: int) -> None:
        """Ends the process of a node in order, and starts it again."""
        self.stop(node_id)
        await self.start_once_ended(node_id)

    async def start_once_ended(self, node_id: int) -> None:
        """Waits until the process of a node has ended, and starts it again."""
        await self.machines[node_id].wait_ended()
        self.start(node_id)

    def offline_directories(self, node_id: int) -> list[str]:
        """Returns the paths of log directories that a running broker took offline; a restart checks them again."""
        broker = self.brokers.get(node_id)
        return broker.context.logs.offline_directories if broker is not None and broker.is_built else []

    def _stop_where_directories_failed(self) -> None:
        for node_id in self.broker_ids if self.shape.directories > 1 else ():
            if self.offline_directories(node_id) and not self.is_stopping(node_id):
                self.stop(node_id)

    @property
    def running(self) -> list[int]:
        """Returns the ids of the nodes whose process runs."""
        return [node_id for node_id, machine in self.machines.items() if machine.is_running]

    # --- observation

    def active_controller(self) -> int | None:
        """Returns the id of the active controller with the newest epoch, as the controllers themselves see it."""
        found: tuple[int, int] | None = None
        for node_id, controller in self.controllers.items():
            leadership = controller.log.leadership
            if leadership.active and (found is None or leadership.epoch > found[0]):
                found = (leadership.epoch, node_id)
        return found[1] if found is not None else None

    def newest_image(self) -> MetadataImage | None:
        """Returns the newest committed image that a running node has applied; None without an active controller."""
        if self.active_controller() is None:
            return None
        images = [controller.machine.image for controller in self.controllers.values()]
        images += [broker.metadata.image for broker in self.brokers.values()]
        return max(images, key=lambda image: image.offset)

    def leaders(self) -> list[int]:
        """Returns the ids of the running brokers that lead a partition, ascending."""
        return [
            node_id
            for node_id in sorted(self.brokers)
            if self.brokers[node_id].is_serving and self.brokers[node_id].context.replicas.leading()
        ]

    def is_healthy(self, outside: Outside = NONE_OUTSIDE) -> bool:
        """Returns whether all brokers serve, a controller is active, and all replicas of all partitions are in sync.

        No broker, nor the active controller, may be paused, and no node may be stopping. The nodes outside do not
        count, nor new partitions that they alone hold, and the active controller must not be one of them.
        """
        if any(self.is_stopping(node_id) for node_id in self.machines if node_id not in outside):
            return False
        ids = [node_id for node_id in self.broker_ids if node_id not in outside]
        brokers = [self.brokers[node_id] for node_id in ids if node_id in self.brokers]
        active = self.active_controller()
        if len(brokers) < len(ids) or active is None or active in outside:
            return False
        if any(self.machines[node_id].is_paused for node_id in (*ids, active)):
            return False  # The state of a paused node is that of the moment at which it was paused.
        if not all(broker.is_serving for broker in brokers):
            return False
        newest = max((broker.metadata.image for broker in brokers), key=lambda image: image.offset)
        if any(broker.fenced for broker in newest.brokers.values() if broker.broker_id not in outside):
            return False
        return all(
            partition.leader >= 0
            and partition.leader not in outside
            and all(replica in partition.isr or replica in outside for replica in partition.replicas)
            for topic in newest.topics_by_name.values()
            for partition in topic.partitions.values()
            if not outside.alone_hold(topic, partition)
        )

    @property
    def replicas(self) -> int:
        """Returns the replication factor of topics that brokers create by themselves."""
        return min(3, self.shape.brokers)

    def can_have_topic(self, name: str, outside: Outside) -> bool:
        """Returns whether the nodes that are not outside serve the topic, or suffice to create it.

        They serve a topic that a running broker knows, unless the nodes outside alone hold a partition of it.
        """
        images = (broker.metadata.image for broker in self.brokers.values())
        known = [image for image in images if name in image.topics_by_name]
        if known:
            topic = max(known, key=lambda image: image.offset).topics_by_name[name]
            return not any(outside.alone_hold(topic, partition) for partition in topic.partitions.values())
        return len([broker_id for broker_id in self.broker_ids if broker_id not in outside]) >= self.replicas

    async def wait_healthy(self, seconds: float, outside: Outside = NONE_OUTSIDE) -> None:
        """Waits until ``is_healthy``, and starts ended processes meanwhile, as a service manager does.

        It restarts brokers whose log directories have failed, as an operator would after replacing a device. Nodes
        outside stay as they are.

        Raises:
            ClusterNotReadyError: The cluster is not healthy after ``seconds``.
        """
        with trio.move_on_after(seconds):
            while not self.is_healthy(outside):
                self.start_all(without=outside.nodes)
                self._stop_where_directories_failed()
                await trio.sleep(POLL_SECONDS)
            return
        without = f" without {list(outside.nodes)}" if outside.nodes else ""
        raise ClusterNotReadyError(f"the cluster{without} is not healthy after {seconds} s: {self.describe()}")

    def describe(self) -> str:
        """Returns one line for a report: running nodes, leaders, and replicas that are not in sync."""
        parts = [f"running {self.running}", f"controller {self.active_controller()}"]
        for node_id, broker in sorted(self.brokers.items()):
            image = broker.metadata.image
            short = [
                f"{topic.name}-{number}:leader={partition.leader},isr={list(partition.isr)}"
                for topic in image.topics_by_name.values()
                for number, partition in sorted(topic.partitions.items())
                if len(partition.isr) < len(partition.replicas)
            ]
            parts.append(f"broker {node_id} at {image.offset} serving={broker.is_serving} {' '.join(short)}".rstrip())
        return "; ".join(parts)

    async def open_to_clients(self, environment: Environment, more: Sequence[Acl] = (), seconds: float = 30.0) -> None:
        """Gives clients without a login what the ordinary workloads need, and waits until every broker knows it.

        ``more`` are the rights of clients that log in.

        Raises:
            ClusterNotReadyError: A broker did not know it within ``seconds``.
        """
        nodes = LoginNodes(self)
        bootstrap = ",".join(join_address(host, port) for host, port in map(nodes.address, self.broker_ids))
        rights = [*anonymous_rights(), *more]
        last = "no broker answered"
        with trio.move_on_after(seconds):
            config = login(bootstrap, ADMIN, password_of(ADMIN))
            async with Admin(config, environment=environment) as admin:
                while True:
                    try:
                        await admin.create_acls(rights)
                        break
                    except (KafkaError, OSError, trio.TooSlowError) as error:
                        last = str(error)
                        await trio.sleep(POLL_SECONDS)
            while any(len(broker.metadata.image.acls) < len(rights) for broker in self.brokers.values()):
                last = "a broker has not learned it"
                await trio.sleep(POLL_SECONDS)
            return
        raise ClusterNotReadyError(f"clients without a login got no rights within {seconds} s: {last}")

    async def set_transaction_level(self, environment: Environment, level: int, seconds: float = 30.0) -> None:
        """Sets ``transaction.version`` through any broker, and waits until every running broker knows it.

        Raises:
            ClusterNotReadyError: The level was not set within ``seconds``.
        """
        last = "no broker answered"
        with trio.move_on_after(seconds):
            async with Admin({"bootstrap.servers": self.bootstrap}, environment=environment) as admin:
                while True:
                    try:
                        await admin.update_features({TRANSACTION_VERSION: level}, allow_downgrade=True)
                        break
                    except KafkaError as error:
                        last = str(error)
                        await trio.sleep(POLL_SECONDS)
            while any(
                broker.metadata.image.features.get(TRANSACTION_VERSION) != level for broker in self.brokers.values()
            ):
                last = "a broker has not learned it"
                await trio.sleep(POLL_SECONDS)
            return
        raise ClusterNotReadyError(f"transaction.version was not set to {level} within {seconds} s: {last}")

    async def create_topic(
        self, environment: Environment, name: str, partitions: int, configs: Mapping[str, str], seconds: float = 30.0
    ) -> None:
        """Creates a topic through any broker, as a client would; does nothing if it exists.

        Raises:
            ClusterNotReadyError: The topic was not created within ``seconds``.
        """
        request = CreateTopicsRequest(
            timeout_ms=5_000,
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=min(3, self.shape.brokers),
                    configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
                )
            ],
        )
        last = "no broker answered"
        with trio.move_on_after(seconds):
            while True:
                for node_id in self.broker_ids:
                    try:
                        connection = await RpcConnection.open(
                            environment, self.host(node_id), BROKER_PORT, "test-admin", timeout_ms=2_000
                        )
                    except (OSError, trio.TooSlowError):
                        continue
                    try:
                        response = await connection.request_as(CreateTopicsResponse, request, timeout_ms=6_000)
                    except (OSError, trio.TooSlowError) as error:
                        last = str(error)
                        continue
                    finally:
                        connection.close()
                    code = ErrorCode(response.topics[0].error_code)
                    if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                        return
                    last = f"{code.name}: {response.topics[0].error_message}"
                await trio.sleep(POLL_SECONDS)
        raise ClusterNotReadyError(f"topic {name} was not created within {seconds} s: {last}")
