"""Starts two clusters of three brokers from files of settings that both understand."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING, Final

from moldau.blocking import Admin
from moldau.protocol.errors import KafkaError
from moldau_jepsen.launcher.ports import take_free_ports
from support.answers.several.session import Cluster
from support.interop.clients import wait_until
from support.interop.kafka_node import NEWEST, kafka_jars
from support.interop.mirrormaker import java
from support.started import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


NODES: Final = (1, 2, 3)
CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qk"
SETTINGS: Final = """process.roles={roles}
node.id={node}
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners={listeners}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
broker.rack=rack-{node}
log.dirs={home}/first,{home}/second
auto.create.topics.enable=false
auto.leader.rebalance.enable=false
default.replication.factor=3
offsets.topic.replication.factor=3
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
replica.lag.time.max.ms=2000
replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector
broker.session.timeout.ms=10000
node.watchdog.ms=60000
"""
"""Kafka does not know the last key. It would end a broker of Moldau that stands still."""


class _Plan:
    """The addresses and files of a cluster that is not started yet."""

    def __init__(self, home: Path) -> None:
        self.home = home
        *brokers, self.controller = take_free_ports(1 + len(NODES))
        self.addresses = {node: f"127.0.0.1:{port}" for node, port in zip(NODES, brokers, strict=True)}

    def config(self, node: int) -> Path:
        """Writes the settings of a node, the first of which is the controller too."""
        listeners = f"PLAINTEXT://{self.addresses[node]}"
        roles = "broker"
        if node == NODES[0]:
            listeners += f",CONTROLLER://127.0.0.1:{self.controller}"
            roles = "broker,controller"
        home = self.directory(node)
        home.mkdir()
        text = SETTINGS.format(node=node, roles=roles, listeners=listeners, controller=self.controller, home=home)
        path = home / "node.properties"
        path.write_text(text)
        return path

    def directory(self, node: int) -> Path:
        """Returns the folder of a node."""
        return self.home / f"node-{node}"

    def wait(self, processes: Mapping[int, Command | subprocess.Popen[bytes]]) -> None:
        """Waits until all brokers are known."""

        def is_up() -> bool:
            for node, process in processes.items():
                assert process.poll() is None, (self.directory(node) / "log").read_text()[-5000:]
            try:
                with Admin({"bootstrap.servers": self.addresses[1], "default.api.timeout.ms": 2000}) as admin:
                    return len(admin.describe_cluster().brokers) == len(NODES)
            except (KafkaError, OSError, TimeoutError):
                return False

        wait_until(is_up, "three brokers serve", 300)


@contextlib.contextmanager
def _running(plan: _Plan, start: Callable[[int, Path], Command | subprocess.Popen[bytes]]) -> Iterator[Cluster]:
    processes: dict[int, Command | subprocess.Popen[bytes]] = {}
    try:
        for node in NODES:
            processes[node] = start(node, plan.config(node))
        plan.wait(processes)

        def stop(node: int) -> None:
            processes[node].terminate()
            processes[node].wait(60)

        def signal(node: int, number: int) -> None:
            processes[node].send_signal(number)

        yield Cluster(plan.addresses, {node: plan.directory(node) for node in NODES}, stop, signal)
    finally:
        for process in processes.values():
            process.kill()
            process.wait(60)


@contextlib.contextmanager
def kafka_cluster(home: Path) -> Iterator[Cluster]:
    """Runs three brokers of Apache Kafka; skips the test where they cannot be had."""
    jars = kafka_jars(NEWEST)

    def start(node: int, config: Path) -> subprocess.Popen[bytes]:
        words = ("format", "-t", CLUSTER_ID, "-c", str(config))
        subprocess.run(java(jars, "kafka.tools.StorageTool", *words), capture_output=True, check=True, timeout=300)
        with (config.parent / "log").open("wb") as log:
            command = java(jars, "kafka.Kafka", str(config), heap="300m")
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    with _running(_Plan(home), start) as cluster:
        yield cluster


@contextlib.contextmanager
def moldau_cluster(home: Path) -> Iterator[Cluster]:
    """Runs three brokers of Moldau."""

    def start(node: int, config: Path) -> Command:
        with (config.parent / "log").open("wb") as log:
            return Command("server", str(config), "--with-parent", stderr=log)

    with _running(_Plan(home), start) as cluster:
        yield cluster
