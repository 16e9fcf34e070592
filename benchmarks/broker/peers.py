"""The clusters that are measured side by side: Moldau's and, where a Java and Maven are at hand, Apache Kafka's.

Both run as separate processes on this machine's loopback with one dedicated controller, the same number of brokers and
the same topic settings; Apache Kafka gets the heap and the collector that its own start scripts give it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Protocol

from benchmarks.broker.many.cores import pin, starting_on
from benchmarks.maven import bring_jars

from moldau_jepsen.launcher import ClusterSpec, start_cluster
from moldau_jepsen.launcher.ports import take_free_ports

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KAFKA_VERSION = "4.1.0"
READY_TIMEOUT_S = 60.0
CONTROLLER_ID = 101
# What bin/kafka-run-class.sh and bin/kafka-server-start.sh of the distribution pass.
JVM_OPTIONS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
LIBRARIES = tuple(f"org.apache.kafka:{artifact}:{KAFKA_VERSION}" for artifact in ("kafka_2.13", "kafka-tools"))
DEPLOYED = {"node.watchdog.ms": "2000"}
"""The default of a deployed node, which local clusters for tests switch off."""


class PeerError(Exception):
    """A peer cannot be measured here; the text says why in one sentence."""


class Peer(Protocol):
    """A running cluster."""

    name: str
    bootstrap: str
    started_s: float
    """Seconds from the start of the first process until every broker answered and was unfenced."""

    def broker_pids(self) -> dict[int, int]:
        """Process of each broker id."""
        ...

    def kill(self, broker: int) -> None:
        """SIGKILL."""
        ...

    def pause(self, broker: int) -> None:
        """SIGSTOP."""
        ...

    def resume(self, broker: int) -> None:
        """SIGCONT."""
        ...

    def shut_down(self) -> None:
        """Ends all processes."""
        ...


class MoldauPeer:
    """Moldau's processes."""

    name = "Moldau"

    def __init__(
        self, directory: Path, brokers: int, settings: Mapping[str, str], cores: frozenset[int] | None = None
    ) -> None:
        """Starts the cluster; its brokers run on ``cores`` only."""
        begin = time.perf_counter()
        settings = {**DEPLOYED, **settings}
        self.cluster = start_cluster(directory, ClusterSpec(controllers=1, brokers=brokers, settings=settings))
        self.started_s = time.perf_counter() - begin
        self.bootstrap = self.cluster.bootstrap
        for pid in self.broker_pids().values() if cores else ():
            pin(pid, cores or frozenset())

    def broker_pids(self) -> dict[int, int]:
        return {node.node_id: node.pid for node in self.cluster.nodes if node.role == "broker"}

    def kill(self, broker: int) -> None:
        self.cluster.kill(broker)

    def pause(self, broker: int) -> None:
        self.cluster.pause(broker)

    def resume(self, broker: int) -> None:
        self.cluster.resume(broker)

    def shut_down(self) -> None:
        self.cluster.shut_down()


def kafka_libraries(cache: Path) -> Path:
    """The folder with Apache Kafka's jars, fetched by Maven into ``cache`` if they are not there.

    Raises:
        PeerError: there is no Java, or no Maven, or Maven could not fetch them.
    """
    libraries = cache / f"kafka-{KAFKA_VERSION}-with-tools"
    failure = bring_jars(libraries, LIBRARIES)
    if failure:
        raise PeerError(failure)
    return libraries


class KafkaPeer:
    """Apache Kafka in KRaft mode: a controller and brokers, each a JVM."""

    name = "Apache Kafka"

    def __init__(
        self,
        libraries: Path,
        directory: Path,
        brokers: int,
        settings: Mapping[str, str],
        cores: frozenset[int] | None = None,
    ) -> None:
        """Starts the cluster; its brokers run on ``cores`` only."""
        self._java = ["java", *JVM_OPTIONS, "-cp", f"{libraries}/*"]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        controller, *ports = take_free_ports(brokers + 1)
        self._ports = dict(enumerate(ports, start=1))
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        replicas = min(3, brokers)
        common = {
            "controller.quorum.voters": f"{CONTROLLER_ID}@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "offsets.topic.replication.factor": str(replicas),
            "offsets.topic.num.partitions": "8",
            "group.initial.rebalance.delay.ms": "0",
            **settings,
        }
        plans = [(CONTROLLER_ID, "controller", f"CONTROLLER://127.0.0.1:{controller}")]
        plans += [(number, "broker", f"PLAINTEXT://127.0.0.1:{port}") for number, port in self._ports.items()]
        files: dict[int, Path] = {}
        for node_id, role, listener in plans:
            home = directory / f"{role}-{node_id}"
            home.mkdir(parents=True)
            files[node_id] = home / "server.properties"
            values = {
                "process.roles": role,
                "node.id": str(node_id),
                "listeners": listener,
                "log.dirs": str(home / "data"),
                **common,
            }
            files[node_id].write_text("".join(f"{key}={value}\n" for key, value in values.items()), encoding="utf-8")
            tool = [*self._java, "kafka.tools.StorageTool", "format"]
            arguments = ["--cluster-id", cluster_id, "--config", str(files[node_id])]
            subprocess.run([*tool, *arguments], check=True, capture_output=True)
        begin = time.perf_counter()
        try:
            for node_id, file in files.items():
                only = cores if node_id != CONTROLLER_ID else None
                with (file.parent / "server.log").open("wb") as log, starting_on(only):
                    self._processes[node_id] = subprocess.Popen(
                        [*self._java, "kafka.Kafka", str(file)], stdout=log, stderr=subprocess.STDOUT
                    )
            self._wait_ready(brokers)
        except BaseException:
            self.shut_down()
            raise
        self.started_s = time.perf_counter() - begin

    def _wait_ready(self, brokers: int) -> None:
        from moldau_jepsen.launcher import probe

        deadline = time.monotonic() + READY_TIMEOUT_S
        waiting = set(self._ports)
        while waiting:
            for node_id, process in self._processes.items():
                if process.poll() is not None:
                    raise PeerError(
                        f"node {node_id} of Apache Kafka ended with code {process.returncode} while starting"
                    )
            if time.monotonic() > deadline:
                raise PeerError(f"Apache Kafka was not ready within {READY_TIMEOUT_S:g} s")
            for number in sorted(waiting):
                answer = probe.fetch_metadata(self._ports[number], [], 1000) if self._listens(number) else None
                if answer is not None and len(answer.brokers) == brokers:
                    waiting.discard(number)
            time.sleep(0.03)

    def _listens(self, number: int) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self._ports[number])) == 0

    def broker_pids(self) -> dict[int, int]:
        return {number: self._processes[number].pid for number in self._ports}

    def kill(self, broker: int) -> None:
        os.kill(self._processes[broker].pid, signal.SIGKILL)

    def pause(self, broker: int) -> None:
        os.kill(self._processes[broker].pid, signal.SIGSTOP)

    def resume(self, broker: int) -> None:
        os.kill(self._processes[broker].pid, signal.SIGCONT)

    def shut_down(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
