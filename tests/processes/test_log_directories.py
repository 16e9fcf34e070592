"""Goal: a process with two log directories lives on when one of them is gone, and has everything when it is back.

Method: one real node of both roles. A replica moves from one directory to the other and back. Then the directory is
renamed away under it, as a volume that is unmounted, so that its next segment cannot be begun; later it is renamed
back, and the node restarted. With both gone, it ends with one line.
"""

import signal

import pytest

from moldau import KafkaError
from moldau.admin import ConfigResource, NewTopic, ResourceType
from moldau.blocking import Admin, Producer
from moldau.protocol.errors import ErrorCode
from moldau_jepsen.launcher.ports import take_free_ports
from moldau_jepsen.launcher.probe import fetch_metadata
from support.commands import run_command
from support.interop.clients import WAIT_S, wait_until
from support.started import STDOUT, Command

pytestmark = pytest.mark.processes

BROKER = ConfigResource(type=ResourceType.BROKER, name="1")
CONFIG = """
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
metadata.log.dir={home}/metadata
log.dirs={home}/d1,{home}/d2
offsets.topic.replication.factor=1
log.segment.bytes=1024
"""


class Node:
    def __init__(self, home):
        self.home = home
        self.port, controller = take_free_ports(2)
        self.config = home / "server.properties"
        self.config.write_text(CONFIG.format(home=home, broker=self.port, controller=controller))
        self.log = home / "log"
        self.process = None

    def start(self):
        with self.log.open("ab") as log:
            self.process = Command("server", str(self.config), stdout=log, stderr=STDOUT)
        wait_until(self._serves, "the node serves")

    def _serves(self):
        assert self.process.poll() is None, self.log.read_text()
        found = fetch_metadata(self.port, [], 1000)
        return found is not None and [broker.node_id for broker in found.brokers] == [1]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(WAIT_S) == 0, self.log.read_text()

    def admin(self):
        return Admin({"bootstrap.servers": f"127.0.0.1:{self.port}"})

    def directories(self):
        with self.admin() as admin:
            return {described.path.rpartition("/")[2]: described for described in admin.describe_log_dirs([1])[1]}


@pytest.fixture
def node(tmp_path):
    running = Node(tmp_path)
    running.start()
    yield running
    running.process.kill()
    running.process.wait()


HASTY = {"delivery.timeout.ms": 2000, "request.timeout.ms": 1000, "max.block.ms": 2000}
"""For records that cannot be written."""


def produce(node, partition, values, settings=None):
    """Those that were acknowledged, in order, up to the first that was not."""
    done = []
    with Producer({"bootstrap.servers": f"127.0.0.1:{node.port}", **(settings or {})}) as producer:
        for value in values:
            try:
                producer.send("t", value, partition=partition).result()
            except (KafkaError, TimeoutError):
                break
            done.append(value)
    return done


def _fails_after(node, directory, partition, values):
    return not produce(node, partition, values, HASTY) and node.directories()[directory].error != ErrorCode.NONE


def _ended_when_asked(node, partitions, values):
    for partition in partitions:
        if node.process.poll() is None:
            produce(node, partition, values, HASTY)
    return node.process.poll() is not None


def consume(node, partition):
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{node.port}", "group.id": "g", "enable.partition.eof": True})
    consumer.assign([TopicPartition("t", partition, 0)])
    values = []
    while True:
        message = consumer.poll(WAIT_S)
        assert message is not None, "the partition is not served"
        if message.error():
            consumer.close()
            return values
        values.append(message.value())


def test_a_lost_directory_takes_only_its_own_partitions(node, tmp_path):
    """A directory that is gone takes its partitions along and nothing else."""
    with node.admin() as admin:
        admin.create_topics([NewTopic(name="t", partitions=4, replication_factor=1)])
    where = {
        entry.topic_partition.partition: name
        for name, described in node.directories().items()
        for entry in described.partitions
        if entry.topic_partition.topic == "t"
    }
    assert sorted(where.values()) == ["d1", "d1", "d2", "d2"]
    lost = next(index for index, name in where.items() if name == "d2")
    kept = next(index for index, name in where.items() if name == "d1")
    values = [b"%d" % number * 50 for number in range(100, 130)]
    acknowledged = {index: produce(node, index, values) for index in (lost, kept)}
    assert acknowledged == {lost: values, kept: values}

    moving = ("logdirs", "move", "t", "--broker", "1", "--partition", str(lost), "-b", f"127.0.0.1:{node.port}")
    assert run_command(*moving, "--to", str(tmp_path / "d1"), "--throttle", "1000000").returncode == 0
    assert [entry.topic_partition.partition for entry in node.directories()["d1"].partitions].count(lost) == 1
    assert run_command(*moving, "--to", str(tmp_path / "d2")).returncode == 0
    with node.admin() as admin:
        limit = admin.describe_configs([BROKER])[BROKER]["replica.alter.log.dirs.io.max.bytes.per.second"]
    assert limit.is_default, "the throttle is lifted"

    (tmp_path / "d2").rename(tmp_path / "away")
    again = produce(node, lost, values, HASTY)
    acknowledged[lost] += again
    assert len(again) < len(values), "what cannot be written is not acknowledged"
    wait_until(lambda: _fails_after(node, "d2", lost, values), "the directory has failed")
    acknowledged[kept] += produce(node, kept, values)
    assert acknowledged[kept] == values + values
    described = node.directories()
    assert (described["d1"].error, described["d2"].error) == (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR)
    assert not described["d2"].partitions
    assert node.process.poll() is None

    node.stop()
    (tmp_path / "away").rename(tmp_path / "d2")
    node.start()
    for index in (lost, kept):
        found = consume(node, index)
        assert [value for value in acknowledged[index] if value not in found] == []
    assert node.directories()["d2"].error == ErrorCode.NONE

    (tmp_path / "d1").rename(tmp_path / "gone-1")
    (tmp_path / "d2").rename(tmp_path / "gone-2")
    wait_until(lambda: _ended_when_asked(node, (lost, kept), values), "the node ends")
    assert node.process.wait(WAIT_S) != 0
    last = [line for line in node.log.read_text().splitlines() if "all log directories have failed" in line]
    assert len(last) == 1, last
    assert f"{tmp_path}/d1: " in last[0]
    assert f"{tmp_path}/d2: " in last[0]
