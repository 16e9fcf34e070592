"""``moldau mirror`` between real clusters, with kill -9 of the mirror and of a node on either side.

Goal: exactly once holds for real processes, and the commands report the mirror's position. Method: three nodes, each a
cluster of its own, and the example file of ``deploy/mirror``; numbered records are produced all the while.
"""

import json
import os
import signal
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from moldau import TopicPartition
from moldau.blocking import Admin, Consumer, Producer
from moldau_jepsen.launcher.ports import take_free_ports
from support.commands import run_command
from support.interop.clients import WAIT_S, create_topic, wait_for, wait_until
from support.started import STDOUT, Command

pytestmark = pytest.mark.processes

EXAMPLE = Path(__file__).parents[2] / "deploy" / "mirror" / "hub.toml"
PARTITIONS = 2


class Program:
    """A process that can be killed and started again."""

    def __init__(self, log, *words, **environment):
        self._log = log
        self._words = words
        self._environment = {**os.environ, **environment}
        self.process = None

    def start(self):
        with self._log.open("ab") as log:
            self.process = Command(*self._words, stdout=log, stderr=STDOUT, env=self._environment)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def text(self):
        return self._log.read_text() if self._log.exists() else ""


class Clusters:
    """Three clusters of one node each, and the addresses that the example file asks for."""

    def __init__(self, home):
        self.nodes = {}
        self.environment = {"METRICS": f"127.0.0.1:{take_free_ports(1)[0]}"}
        for alias in ("east", "west", "hub"):
            broker, controller = take_free_ports(2)
            config = home / f"{alias}.properties"
            config.write_text(
                f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
log.dirs={home}/{alias}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
"""
            )
            self.environment[alias.upper()] = f"127.0.0.1:{broker}"
            self.nodes[alias] = Program(home / f"{alias}.log", "server", str(config))
        self.mirror = Program(home / "mirror.log", "mirror", str(EXAMPLE), **self.environment)

    def bootstrap(self, alias):
        return self.environment[alias.upper()]

    def values(self, alias, topic, partition):
        """Returns the committed values of a partition."""
        wanted = TopicPartition(topic, partition)
        config = {"bootstrap.servers": self.bootstrap(alias), "isolation.level": "read_committed"}
        found = []
        with Consumer(config) as consumer:
            consumer.assign([wanted])
            consumer.seek_to_beginning()
            end = consumer.end_offsets([wanted])[wanted]
            while consumer.position(wanted) < end:
                for batch in consumer.poll(500):
                    found += [record.value for record in batch.records]
        return found

    def close(self):
        for program in (self.mirror, *self.nodes.values()):
            program.kill()


def is_up(bootstrap):
    try:
        with Admin({"bootstrap.servers": bootstrap, "default.api.timeout.ms": 2000}) as admin:
            return bool(admin.describe_cluster().brokers)
    except Exception:  # noqa: BLE001 - the node is still starting
        return False


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    running = Clusters(tmp_path_factory.mktemp("mirror"))
    try:
        for node in running.nodes.values():
            node.start()
        for alias in running.nodes:
            wait_until(lambda alias=alias: is_up(running.bootstrap(alias)), f"{alias} is up")
        for alias in ("east", "west"):
            create_topic(running.bootstrap(alias), "orders", PARTITIONS, 1)
        yield running
    finally:
        running.close()


def numbered(first, last):
    return [b"%06d" % number for number in range(first, last)]


def test_kill_9_repeats_and_loses_nothing(clusters):
    """The mirror dies twice, the target's node and a source's node once each, while records are produced."""
    clusters.mirror.start()
    sent = {partition: [] for partition in range(PARTITIONS)}
    with Producer({"bootstrap.servers": clusters.bootstrap("east"), "linger.ms": 2}) as producer:
        for step, victim in enumerate(["mirror", "hub", "east", "mirror"]):
            for number in range(step * 400, step * 400 + 400):
                partition = number % PARTITIONS
                producer.send("orders", b"%06d" % number, partition=partition)
                sent[partition].append(b"%06d" % number)
            producer.flush()
            copied = sent[0][: len(sent[0]) - 150]
            if copied:
                wait_until(lambda some=copied: has(clusters, some), "the mirror is at work")
            program = clusters.mirror if victim == "mirror" else clusters.nodes[victim]
            program.kill()
            program.start()
            if victim != "mirror":
                wait_until(lambda alias=victim: is_up(clusters.bootstrap(alias)), f"{victim} is up again")
    for partition, values in sent.items():
        found = wait_for(lambda p=partition, v=values: whole(clusters, p, v), "every record is there")
        assert found == values, Counter(found) - Counter(values)


def has(clusters, values):
    with Admin({"bootstrap.servers": clusters.bootstrap("hub")}) as admin:
        known = {topic.name for topic in admin.list_topics()}
    return "east.orders" in known and set(values) <= set(clusters.values("hub", "east.orders", 0))


def whole(clusters, partition, values):
    found = clusters.values("hub", "east.orders", partition)
    return found if set(found) >= set(values) else None


def command(clusters, *words, code=0):
    done = run_command("mirror", *words, environment=clusters.environment)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


def test_commands_report_the_position_of_the_mirror(clusters):
    if clusters.mirror.process is None:
        clusters.mirror.start()
    with Producer({"bootstrap.servers": clusters.bootstrap("east")}) as producer:
        end = producer.send("orders", b"last", partition=1).result().offset + 1
    with Admin({"bootstrap.servers": clusters.bootstrap("east")}) as admin:
        admin.alter_group_offsets("readers", {("orders", 1): end})

    def caught_up():
        document = json.loads(command(clusters, "status", str(EXAMPLE), "--source", "east", "--json").stdout)
        return document if document["sources"][0]["lag"] == 0 else None

    document = wait_for(caught_up, "the lag is zero")
    (part,) = [each for each in document["partitions"] if each["partition"] == 1]
    assert part == part | {"topic": "orders", "remote_topic": "east.orders", "position": end, "end_offset": end}
    assert document["sources"][0]["heartbeat_age_ms"] < 600_000
    assert "east: lag 0, last heartbeat" in command(clusters, "status", str(EXAMPLE)).stdout

    def translated():
        done = run_command(
            "mirror", "offsets", str(EXAMPLE), "--group", "readers", "--json", environment=clusters.environment
        )
        return json.loads(done.stdout)["offsets"] if done.returncode == 0 else None

    (row,) = wait_for(translated, "the group has a checkpoint")
    assert row == row | {"topic": "east.orders", "partition": 1, "source_offset": end}
    assert clusters.values("hub", "east.orders", 1)[-1] == b"last"

    def synced():
        """Returns the offset that the group has in the hub once it is that of its checkpoint.

        The first checkpoint may lie before the position: the next one follows when the mirror knows a later pair of
        offsets.
        """
        with Admin({"bootstrap.servers": clusters.bootstrap("hub")}) as admin:
            committed = {each: found.offset for each, found in admin.list_group_offsets("readers").items()}
        (latest,) = translated() or [None]
        return committed if latest and committed == {TopicPartition("east.orders", 1): latest["offset"]} else None

    assert wait_for(synced, "the offset of the checkpoint is committed")


def test_metrics_are_served(clusters):
    if clusters.mirror.process is None:
        clusters.mirror.start()

    def scraped(path):
        try:
            with urllib.request.urlopen(f"http://{clusters.environment['METRICS']}{path}", timeout=WAIT_S) as answer:
                return answer.read().decode()
        except (urllib.error.URLError, ConnectionError):
            return None

    assert wait_for(lambda: scraped("/health/ready"), "both sources are mirrored") == "east: mirrored\nwest: mirrored\n"
    text = scraped("/metrics")
    assert 'moldau_mirror_running{source="east"} 1' in text
    assert 'moldau_mirror_lag_records{source="west",topic="orders",partition="0"} 0' in text


def test_sigterm_ends_the_mirror_in_order(clusters):
    if clusters.mirror.process is None:
        clusters.mirror.start()
    wait_until(lambda: clusters.mirror.text.count("source-mirrored source=west") >= 1, "the mirror runs")
    clusters.mirror.process.send_signal(signal.SIGTERM)
    assert clusters.mirror.process.wait(WAIT_S) == 0
    assert clusters.mirror.text.endswith("mirror stopped in order\n")
    assert "Traceback" not in clusters.mirror.text


def test_mistakes_are_one_line(clusters, tmp_path):
    assert "exactly once" in command(clusters, "check", str(EXAMPLE)).stdout
    assert (
        "the file has no source north" in command(clusters, "status", str(EXAMPLE), "--source", "north", code=2).stderr
    )
    none = command(clusters, "offsets", str(EXAMPLE), "--group", "unknown", code=2)
    assert "group unknown has no checkpoint in the target" in none.stderr
    assert "cannot read" in command(clusters, "run", str(tmp_path / "absent.toml"), code=2).stderr
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(EXAMPLE.read_text().replace("topics.exclude", "topics.exlude"))
    done = command(clusters, "run", str(wrong), code=2)
    assert "topics.exlude: unknown mirror configuration key; did you mean topics.exclude?" in done.stderr
    assert done.stderr.count("\n") == 1
    same = tmp_path / "same.toml"
    same.write_text(EXAMPLE.read_text().replace("${env:EAST}", "${env:HUB}").replace("[sources.west]", ""))
    assert "are the same cluster" in command(clusters, "run", str(same), code=2).stderr
