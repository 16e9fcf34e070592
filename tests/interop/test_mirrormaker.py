"""MirrorMaker 2 and a broker of Apache Kafka, unmodified, beside ``moldau mirror``.

Goal: MirrorMaker mirrors between Moldau clusters; a Moldau mirror takes over from it at its positions; Kafka's
``RemoteClusterUtils`` reads the checkpoints of a Moldau mirror; a Kafka broker is a source and a target. Method: real
processes, with one node for each cluster.
"""

import contextlib
import os
import subprocess
import sys
from collections import Counter

import pytest

from moldau import TopicPartition
from moldau.blocking import Admin, Consumer, Producer
from moldau_jepsen.launcher.ports import take_free_ports
from support.interop.clients import create_topic, wait_for, wait_until
from support.interop.mirrormaker import TRANSLATE, java, kafka_jars

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]

NODE = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
log.dirs={home}/{alias}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
"""
KAFKA = (
    "controller.listener.names=CONTROLLER\nlistener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
)
MIRRORMAKER = """clusters = east, hub
east.bootstrap.servers = {east}
hub.bootstrap.servers = {hub}
east->hub.enabled = true
east->hub.topics = orders
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
offset.storage.partitions = 1
status.storage.partitions = 1
offset.flush.interval.ms = 1000
"""
MIRROR = """target = "hub"
topics = ["orders"]
"exactly.once.source.support" = "enabled"
"emit.checkpoints.interval.seconds" = 1
"refresh.topics.interval.seconds" = 2
[clusters.hub]
"bootstrap.servers" = "{hub}"
[clusters.east]
"bootstrap.servers" = "{east}"
[sources.east]
"""


@pytest.fixture(scope="module")
def jars():
    found, reason = kafka_jars()
    if found is None:
        pytest.skip(reason)
    return found


@contextlib.contextmanager
def program(home, name, command):
    """Runs a process until the end of the block."""
    with (home / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def is_up(bootstrap):
    try:
        with Admin({"bootstrap.servers": bootstrap, "default.api.timeout.ms": 2000}) as admin:
            return bool(admin.describe_cluster().brokers)
    except Exception:  # noqa: BLE001 - the node is still starting
        return False


@contextlib.contextmanager
def cluster(home, alias, jars=None):
    """Runs a node of Moldau, or of Kafka if ``jars`` are given; gives its address."""
    broker, controller = take_free_ports(2)
    config = home / f"{alias}.properties"
    config.write_text(NODE.format(home=home, alias=alias, broker=broker, controller=controller))
    if jars is None:
        command = [sys.executable, "-m", "moldau_cli", "server", str(config)]
    else:
        config.write_text(config.read_text() + KAFKA)
        words = ("format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(config))
        subprocess.run(java(jars, "kafka.tools.StorageTool", *words), capture_output=True, check=True, timeout=120)
        command = java(jars, "kafka.Kafka", str(config), heap="400m")
    with program(home, alias, command):
        wait_until(lambda: is_up(f"127.0.0.1:{broker}"), f"{alias} is up", 120)
        yield f"127.0.0.1:{broker}"


@contextlib.contextmanager
def mirror(home, east, hub):
    (home / "mirror.toml").write_text(MIRROR.format(east=east, hub=hub))
    with program(home, "mirror", [sys.executable, "-m", "moldau_cli", "mirror", str(home / "mirror.toml")]) as process:
        yield process


def produce(bootstrap, first, last):
    values = [b"%06d" % number for number in range(first, last)]
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for value in values:
            producer.send("orders", value, key=b"k", partition=0)
    return values


def values_of(bootstrap, topic):
    wanted = TopicPartition(topic, 0)
    config = {"bootstrap.servers": bootstrap, "isolation.level": "read_committed", "allow.auto.create.topics": "false"}
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        if topic not in {each.name for each in admin.list_topics()}:
            return []
    found = []
    with Consumer(config) as consumer:
        consumer.assign([wanted])
        consumer.seek_to_beginning()
        end = consumer.end_offsets([wanted])[wanted]
        while consumer.position(wanted) < end:
            for batch in consumer.poll(500):
                found += [record.value for record in batch.records]
    return found


def wait_values(bootstrap, values):
    def all_there():
        found = values_of(bootstrap, "east.orders")
        return found if set(values) <= set(found) else None

    return wait_for(all_there, "all records are mirrored", 180)


def translated(jars, home, hub, group):
    """Returns the lines of Kafka's own client: the upstream clusters, and the translated offsets of a group."""
    source = home / "Translate.java"
    source.write_text(TRANSLATE)
    done = subprocess.run(
        java(jars, str(source), hub, "east", group), capture_output=True, text=True, check=True, timeout=180
    )
    return done.stdout.splitlines()


def test_a_mirror_takes_over_from_mirrormaker(jars, tmp_path):
    with cluster(tmp_path, "east") as east, cluster(tmp_path, "hub") as hub:
        create_topic(east, "orders", 1, 1)
        first = produce(east, 0, 300)
        (tmp_path / "mm2.properties").write_text(MIRRORMAKER.format(east=east, hub=hub))
        command = java(
            jars, "org.apache.kafka.connect.mirror.MirrorMaker", str(tmp_path / "mm2.properties"), heap="400m"
        )
        with program(tmp_path, "mm2", command):
            assert wait_values(hub, first) == first

            def stored():
                with Admin({"bootstrap.servers": hub}) as admin:
                    known = {each.name for each in admin.list_topics(include_internal=True)}
                return "mm2-offsets.east.internal" in known and any(
                    value == b'{"offset":299}' for value in values_of(hub, "mm2-offsets.east.internal")
                )

            wait_until(stored, "MirrorMaker has stored its position", 120)
        second = produce(east, 300, 500)
        with Admin({"bootstrap.servers": east}) as admin:
            admin.alter_group_offsets("readers", {("orders", 0): 500})
        with mirror(tmp_path, east, hub):
            found = wait_values(hub, second)
            assert found == first + second, Counter(found) - Counter(first + second)

            def current():
                """Returns the translation once newer offset syncs have made the first, careful one better."""
                lines = translated(jars, tmp_path, hub, "readers")
                return lines if len(lines) > 1 and int(lines[1].split()[1]) >= 500 else None

            clusters, offset = wait_for(current, "Kafka's client translates the offset of the 500 records", 120)
        assert clusters == "[east]"
        assert offset.split()[0] == "east.orders-0"


@pytest.mark.parametrize("kafka", ["east", "hub"])
def test_a_kafka_broker_is_source_or_target(jars, tmp_path, kafka):
    with (
        cluster(tmp_path, "east", jars if kafka == "east" else None) as east,
        cluster(tmp_path, "hub", jars if kafka == "hub" else None) as hub,
    ):
        create_topic(east, "orders", 1, 1)
        with mirror(tmp_path, east, hub):
            first = produce(east, 0, 300)
            wait_values(hub, first)
        with mirror(tmp_path, east, hub):
            second = produce(east, 300, 500)
            assert wait_values(hub, second) == first + second
            with Admin({"bootstrap.servers": east}) as admin:
                admin.alter_group_offsets("readers", {("orders", 0): 500})

            def line():
                lines = translated(jars, tmp_path, hub, "readers")
                return lines if len(lines) > 1 else None

            assert wait_for(line, "the group has a checkpoint", 120)[1].startswith("east.orders-0 ")
