"""Goal: Kafka Connect runs unmodified on Moldau, in distributed mode with two workers and in standalone mode.

Method: connectors that copy files to topics and topics to files, so that lines count what is lost or copied twice. A
source that runs exactly once loses its broker, its worker stands still until another one has its task, and a worker is
killed.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Self

import pytest
from confluent_kafka import Consumer, TopicPartition

from moldau.admin import Acl, ConfigResource, ResourceType
from moldau.blocking import Admin, Producer
from moldau_jepsen.launcher.ports import take_free_ports
from moldau_jepsen.testing import cluster
from support.interop.clients import create_topic, wait_known, wait_until
from support.interop.connect import NEWEST, VERSION, Worker, connect_jars, sink, source
from support.interop.plain_node import PlainNode
from support.interop.secured_node import MODULE, SecuredNode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from moldau_jepsen.testing.local import TestCluster

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]

SECTION = 200
"""Lines that are copied between two faults."""
PROGRESS_S = 60
PARTITIONS = 3
AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:node",
}
SINGLE = {f"{kind}.storage.replication.factor": 1 for kind in ("config", "offset", "status")}
JSON = {"value.converter": "org.apache.kafka.connect.json.JsonConverter", "value.converter.schemas.enable": "false"}
WRAPPED = {
    "transforms": "wrap,mark",
    "transforms.wrap.type": "org.apache.kafka.connect.transforms.HoistField$Value",
    "transforms.wrap.field": "line",
    "transforms.mark.type": "org.apache.kafka.connect.transforms.InsertField$Value",
    "transforms.mark.static.field": "origin",
    "transforms.mark.static.value": "file",
}
CREATED = {
    "topic.creation.default.partitions": PARTITIONS,
    "topic.creation.default.replication.factor": 3,
    "topic.creation.default.cleanup.policy": "delete",
    "topic.creation.default.remote.storage.enable": "false",
}
DEAD = {
    "errors.tolerance": "all",
    "errors.deadletterqueue.topic.name": "dead",
    "errors.deadletterqueue.topic.replication.factor": 3,
    "errors.deadletterqueue.context.headers.enable": "true",
}


def jars_of(version: str) -> Path:
    jars, reason = connect_jars(version)
    if jars is None:
        pytest.skip(reason)
    return jars


@contextmanager
def connect(version: str, home: Path, **settings: object) -> Iterator[tuple[TestCluster, Worker, Worker]]:
    """Runs a cluster of three brokers, and two workers that started at the same time."""
    jars = jars_of(version)
    with cluster(brokers=3, controllers=1, links=False) as brokers, ExitStack() as stack:
        started = [Worker(jars, home, name, brokers.bootstrap, settings) for name in ("one", "two")]
        for worker in started:
            stack.callback(worker.kill)
        one, two = (stack.enter_context(worker) for worker in started)
        yield brokers, one, two


class Writer(threading.Thread):
    """Appends numbered lines to a file until it is stopped, so that faults happen while lines are copied."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file, self._stopped = file, threading.Event()
        self.lines: list[str] = []

    def run(self) -> None:
        with self._file.open("a", buffering=1) as file:
            while not self._stopped.wait(0.005):
                self.lines.append(f"line {len(self.lines):06d}")
                file.write(self.lines[-1] + "\n")

    def __enter__(self) -> Self:
        self._file.touch()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()


class Reader:
    """Reads the committed lines of a topic of one partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.lines: list[str] = []
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": "read_committed"}
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def poll(self) -> None:
        message = self._consumer.poll(0.1)
        while message is not None:
            if message.error() is None:
                self.lines.append(message.value().decode())
            message = self._consumer.poll(0)

    def read_until(self, count: int, what: str) -> None:
        """Reads until there are so many lines."""

        def is_there() -> bool:
            self.poll()
            return len(self.lines) >= count

        wait_until(is_there, f"{count} lines are committed {what}", PROGRESS_S)

    def close(self) -> None:
        self._consumer.close()


def owner(asked: Worker, connector: str) -> str:
    """Returns the address of the worker that runs the task of a connector; empty during a rebalance."""
    code, status = asked.call("GET", f"/connectors/{connector}/status")
    if code != 200 or not status["tasks"] or status["tasks"][0]["state"] != "RUNNING":
        return ""
    return "http://" + status["tasks"][0]["worker_id"]


def test_lines_are_copied_once_while_processes_fail(tmp_path):
    """Transactions last half a second, so that each fault meets an open one."""
    with connect(VERSION, tmp_path) as (brokers, *workers), Writer(tmp_path / "in.txt") as writer:
        create_topic(brokers.bootstrap, "lines", 1, 3)
        reader = Reader(brokers.bootstrap, "lines")
        boundary = {"transaction.boundary": "interval", "transaction.boundary.interval.ms": 500}
        config = source(tmp_path / "in.txt", "lines", **{"exactly.once.support": "required", **boundary})
        workers[0].ask("PUT", "/connectors/from/config", config)
        reader.read_until(SECTION, "without faults")

        with Admin({"bootstrap.servers": brokers.bootstrap}) as admin:
            topic = admin.describe_topics(["lines"])["lines"]
        brokers.kill(topic.partitions[0].leader)
        reader.read_until(len(writer.lines) + SECTION, "after a broker was killed")
        brokers.start_all()

        first, second = sorted(workers, key=lambda each: each.url != owner(workers[0], "from"))
        first.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: owner(second, "from") == second.url, "the task moves", PROGRESS_S)
        reader.read_until(len(writer.lines) + SECTION, "while a worker stands still")
        first.process.send_signal(signal.SIGCONT)
        wait_until(lambda: owner(first, "from"), "the worker is back", PROGRESS_S)
        reader.read_until(len(writer.lines) + SECTION, "after the worker came back")

        last, killed = sorted(workers, key=lambda each: each.url == owner(workers[0], "from"))
        killed.kill()
        reader.read_until(len(writer.lines) + SECTION, "after a worker was killed")
        assert owner(last, "from") == last.url
        writer.__exit__()
        reader.read_until(len(writer.lines), "at the end")
        reader.poll()
        reader.close()
        assert reader.lines == writer.lines, Counter(reader.lines) - Counter(writer.lines)


@pytest.mark.parametrize(("version", "protocol"), [(VERSION, "classic"), (NEWEST, "consumer")])
def test_connectors_are_administered_by_rest(version, protocol, tmp_path):
    """Pauses, stops, offsets and restarts of connectors, and the internal topics.

    The sink's group uses either protocol.
    """
    (tmp_path / "in.txt").write_text("".join(f"line {number}\n" for number in range(500)))
    wanted = Counter(f"line {number}" for number in range(500))
    copied = tmp_path / "out.txt"
    overridden = {"consumer.override.isolation.level": "read_committed", "consumer.override.group.protocol": protocol}
    with connect(version, tmp_path) as (brokers, one, two):
        create_topic(brokers.bootstrap, "lines", PARTITIONS, 3)
        one.ask("PUT", "/connectors/from/config", source(tmp_path / "in.txt", "lines"))
        two.ask("PUT", "/connectors/to/config", sink(copied, "lines", **overridden))
        one.await_states("from", "RUNNING", "RUNNING")
        await_copies(copied, wanted)

        one.ask("PUT", "/connectors/from/pause")
        two.await_states("from", "PAUSED", "PAUSED")
        with (tmp_path / "in.txt").open("a") as file:
            file.write("a line while the source is paused\n")
        two.ask("PUT", "/connectors/from/resume")
        wanted["a line while the source is paused"] += 1
        await_copies(copied, wanted)

        two.ask("PUT", "/connectors/from/stop")
        one.await_states("from", "STOPPED")
        partition = {"filename": str(tmp_path / "in.txt")}
        (found,) = one.ask("GET", "/connectors/from/offsets")["offsets"]
        assert found == {"partition": partition, "offset": {"position": (tmp_path / "in.txt").stat().st_size}}
        one.ask("PATCH", "/connectors/from/offsets", {"offsets": [{"partition": partition, "offset": {"position": 0}}]})
        two.ask("PUT", "/connectors/from/resume")
        wanted += wanted
        await_copies(copied, wanted)

        one.ask("PUT", "/connectors/to/stop")
        two.await_states("to", "STOPPED")
        positions = one.ask("GET", "/connectors/to/offsets")["offsets"]
        assert sum(each["offset"]["kafka_offset"] for each in positions) >= wanted.total()
        for each in positions:
            each["offset"] = {"kafka_offset": 0}
        two.ask("PATCH", "/connectors/to/offsets", {"offsets": positions})
        one.ask("PUT", "/connectors/to/resume")
        await_copies(copied, wanted + wanted)
        two.ask("PUT", "/connectors/to/stop")
        one.await_states("to", "STOPPED")
        one.ask("DELETE", "/connectors/to/offsets")
        assert one.ask("GET", "/connectors/to/offsets") == {"offsets": []}
        one.ask("PUT", "/connectors/to/resume")
        await_copies(copied, wanted + wanted + wanted)

        two.ask("POST", "/connectors/to/restart?includeTasks=true")
        one.await_states("to", "RUNNING", "RUNNING")
        two.ask("DELETE", "/connectors/from")
        wait_until(lambda: one.ask("GET", "/connectors") == ["to"], "the source is deleted")

        moved = source(tmp_path / "in.txt", "lines")
        two.ask("POST", "/connectors", {"name": "moved", "config": moved, "initial_state": "STOPPED"})
        one.await_states("moved", "STOPPED")
        one.ask("PATCH", "/connectors/moved/offsets", {"offsets": [found]})
        with (tmp_path / "in.txt").open("a") as file:
            file.write("a line for the connector that has moved here\n")
        two.ask("PUT", "/connectors/moved/resume")
        await_copies(copied, wanted + wanted + wanted + Counter(["a line for the connector that has moved here"]))
        check_internal_topics(brokers.bootstrap)


def test_transforms_and_dead_letters(tmp_path):
    """Six connectors on two workers: sources that wrap lines in JSON, and sinks, one of which gets what is no JSON.

    The sources create their topic, with a setting of tiered storage that is Kafka's default.
    """
    with connect(NEWEST, tmp_path) as (brokers, one, two):
        create_topic(brokers.bootstrap, "mixed", PARTITIONS, 3)
        for number in range(3):
            (tmp_path / f"in{number}.txt").write_text("".join(f"{number}-{line}\n" for line in range(100)))
            wrapping = source(tmp_path / f"in{number}.txt", "wrapped", **JSON, **WRAPPED, **CREATED)
            one.ask("PUT", f"/connectors/from{number}/config", wrapping)
        wait_known(brokers.bootstrap, "wrapped", PARTITIONS)
        with Producer({"bootstrap.servers": brokers.bootstrap}) as producer:
            for number in range(100):
                producer.send("mixed", b"broken {" if number % 10 == 0 else b'{"line": %d}' % number)
        for name, topics in (("to0", "wrapped"), ("to1", "wrapped"), ("to2", "mixed")):
            two.ask("PUT", f"/connectors/{name}/config", sink(tmp_path / f"{name}.txt", topics, **JSON, **DEAD))
        wrapped = Counter(f"{{line={number}-{line}, origin=file}}" for number in range(3) for line in range(100))
        await_copies(tmp_path / "to0.txt", wrapped)
        await_copies(tmp_path / "to1.txt", wrapped)
        await_copies(tmp_path / "to2.txt", Counter(f"{{line={number}}}" for number in range(100) if number % 10))
        reader = Reader(brokers.bootstrap, "dead")
        reader.read_until(10, "in the dead letter queue")
        reader.close()
        assert reader.lines == ["broken {"] * 10
        names = [f"{kind}{number}" for kind in ("from", "to") for number in range(3)]
        assert Counter(owner(one, name) for name in names) == {one.url: 3, two.url: 3}
        with Admin({"bootstrap.servers": brokers.bootstrap}) as admin:
            groups = {group.group_id: (group.type, group.protocol_type) for group in admin.list_groups()}
        assert groups["connect"] == ("classic", "connect")


def await_copies(file: Path, wanted: Counter[str]) -> None:
    """Waits until a file has these lines, each as often, and no others."""

    def lines() -> Counter[str]:
        return Counter(file.read_text().splitlines()) if file.exists() else Counter()

    wait_until(lambda: lines().total() >= wanted.total(), f"{file.name} has {wanted.total()} lines", PROGRESS_S)
    assert lines() == wanted, (lines() - wanted, wanted - lines())


def check_internal_topics(bootstrap: str) -> None:
    """Checks that the topics of the workers are compacted and have three replicas."""
    internal = {"connect-configs": 1, "connect-offsets": 3, "connect-status": 2}
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        described = admin.describe_topics(internal)
        configs = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in internal])
    assert {name: len(each.partitions) for name, each in described.items()} == internal
    assert {len(part.replicas) for each in described.values() for part in each.partitions} == {3}
    assert {each["cleanup.policy"].value for each in configs.values()} == {"compact"}


def test_a_secured_worker_needs_no_more_rights_than_with_kafka(tmp_path):
    """A worker logs in over TLS; its user has the rights that Kafka's manual lists for exactly-once sources."""
    jars = jars_of(VERSION)
    node = SecuredNode(tmp_path, **AUTHORIZED)
    try:
        wait_until(node.is_ready, "the node starts")
        grant_rights(node)
        (tmp_path / "in.txt").write_text("".join(f"line {number}\n" for number in range(200)))
        security = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{MODULE}.plain.PlainLoginModule required username="bob" password="bob-s3cret";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": node.trust,
        }
        roles = ("", "producer.", "consumer.", "admin.")
        settings = {role + key: value for role in roles for key, value in security.items()} | SINGLE
        with Worker(jars, tmp_path, "one", node.secured, settings) as worker:
            once = {"exactly.once.support": "required"}
            worker.ask("PUT", "/connectors/from/config", source(tmp_path / "in.txt", "lines", **once))
            worker.await_states("from", "RUNNING", "RUNNING")
            worker.ask("PUT", "/connectors/to/config", sink(tmp_path / "out.txt", "lines"))
            await_copies(tmp_path / "out.txt", Counter(f"line {number}" for number in range(200)))
            worker.ask("PUT", "/connectors/denied/config", sink(tmp_path / "denied.txt", "refused"))
            worker.await_states("denied", "RUNNING", "FAILED")
    finally:
        node.stop()


def grant_rights(node: SecuredNode) -> None:
    """Gives the user of the worker its rights."""
    administrator = {
        "bootstrap.servers": node.plain,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "node",
        "sasl.password": "node-s3cret",
    }
    rights = [
        *[("topic", "connect-", operation, "prefixed") for operation in ("create", "read", "write", "describe")],
        *[("topic", "lines", operation, "literal") for operation in ("create", "read", "write", "describe")],
        ("group", "connect", "read", "prefixed"),
        *[("transactional-id", "connect-", operation, "prefixed") for operation in ("write", "describe")],
    ]
    with Admin(administrator) as admin:
        admin.create_acls(
            [
                Acl(principal="User:bob", operation=operation, resource=resource, name=name, pattern=pattern)
                for resource, name, operation, pattern in rights
            ]
        )


def test_a_standalone_worker_goes_on_where_it_stopped(tmp_path):
    """Its positions are in a file; a worker that ends in order copies no line twice."""
    jars = jars_of(VERSION)
    (tmp_path / "in.txt").write_text("".join(f"line {number}\n" for number in range(200)))
    wanted = Counter(f"line {number}" for number in range(200))
    connectors = {"from": source(tmp_path / "in.txt", "lines"), "to": sink(tmp_path / "out.txt", "lines")}
    with PlainNode(tmp_path, take_free_ports(2)) as node:
        create_topic(node.bootstrap, "lines", 1, 1)
        for run in ("first", "second"):
            with Worker(jars, tmp_path, "worker", node.bootstrap, standalone=connectors) as worker:
                await_copies(tmp_path / "out.txt", wanted)
                with (tmp_path / "in.txt").open("a") as file:
                    file.write(f"a line of the {run} run\n")
                wanted[f"a line of the {run} run"] += 1
                await_copies(tmp_path / "out.txt", wanted)
                worker.stop()
    assert Counter((tmp_path / "out.txt").read_text().splitlines()) == wanted
