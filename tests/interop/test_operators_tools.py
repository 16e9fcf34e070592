"""Goal: tools that operators run beside Kafka work unmodified: kcl, kaf, topicctl, kafka_exporter and Burrow.

Method: the programs themselves, which stand on three clients in Go (franz-go, sarama, kafka-go), and what they print of
a topic with records and of a group that lags.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from moldau_jepsen.launcher.ports import take_free_ports
from support.interop.clients import WAIT_S, ConfluentClient, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.interop
SENT, READ = 30, 20
BURROW = """
[general]
pidfile = "{directory}/burrow.pid"
[logging]
filename = "{directory}/burrow.log"
[client-profile.usual]
client-id = "burrow"
kafka-version = "3.6.0"
[cluster.moldau]
class-name = "kafka"
servers = ["{bootstrap}"]
client-profile = "usual"
topic-refresh = 1
offset-refresh = 1
[consumer.moldau]
class-name = "kafka"
cluster = "moldau"
servers = ["{bootstrap}"]
client-profile = "usual"
[httpserver.default]
address = "127.0.0.1:{port}"
"""
TOPIC_OF_TOPICCTL = """
meta: {{name: {name}, cluster: moldau, environment: test, region: here}}
spec: {{partitions: {partitions}, replicationFactor: 3, retentionMinutes: {minutes}, placement: {{strategy: any}}}}
"""
CLUSTER_OF_TOPICCTL = """
meta: {{name: moldau, environment: test, region: here}}
spec: {{bootstrapAddrs: ["{address}"]}}
"""


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not on the path")


def run(*words: str, given: str = "") -> str:
    done = subprocess.run(words, input=given, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def served(words: Sequence[str], output: Path) -> Iterator[None]:
    with output.open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
        try:
            yield
        finally:
            process.kill()


def fetched(url: str) -> str:
    """Returns the answer, or an empty text while nothing serves or the tool does not know yet."""
    try:
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            return answer.read().decode()
    except OSError:
        return ""


@contextmanager
def committer(bootstrap: str, group: str) -> Iterator[Callable[[TopicPartition], object]]:
    """Gives a call that commits an offset without a membership."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        yield lambda place: consumer.commit(offsets=[place], asynchronous=False)
    finally:
        consumer.close()


@pytest.fixture
def group(bootstrap: str, topic: str) -> str:
    """A group that has read ``READ`` of the ``SENT`` records of ``topic``, which are all in one partition."""
    placed = ConfluentClient(bootstrap).produce(topic, [(b"one key", b"%d" % number, []) for number in range(SENT)])
    group = f"group-of-{topic}"
    with committer(bootstrap, group) as commit:
        commit(TopicPartition(topic, placed[0][0], READ))
    return group


@pytest.fixture
def kcl(bootstrap: str) -> Any:
    def call(*words: str, given: str = "") -> str:
        return run("kcl", "--no-config-file", "-B", bootstrap, *words, given=given)

    return call


@needs("kcl")
def test_kcl_shows_lag_writes_and_reads(kcl, topic, group):
    (found,) = json.loads(kcl("--format", "json", "group", "describe", group))["groups"]
    assert found["state"] == "Empty"
    assert found["total_lag"] == SENT - READ
    kcl("produce", topic, "-f", "%k %v\\n", given="a 1\nb 2\n")
    lines = kcl("consume", topic, "-n", str(SENT + 2), "-f", "%k=%v\n").splitlines()
    assert {"a=1", "b=2", "one key=29"} <= set(lines)


@needs("kcl")
def test_kcl_changes_settings_replicas_and_quotas(kcl, topic):
    kcl("config", "alter", topic, "-tt", "--set", "retention.ms=100000", "--append", "cleanup.policy=compact")
    shown = kcl("config", "describe", topic, "-tt").splitlines()
    assert [line.split()[1] for line in shown if line.startswith(("cleanup.policy ", "retention.ms "))] == [
        *("delete,compact", "100000")
    ]
    kcl("reassign", "alter", f"{topic}: 0->2,1,3")
    (found,) = json.loads(kcl("--format", "json", "topic", "describe", topic))["topics"]
    assert found["partitions"][0]["replicas"] == [2, 1, 3]
    kcl("quota", "alter", "--add", "producer_byte_rate=1000000", "--name", f"client-id={topic}")
    assert f"{{client-id={topic}}}" in kcl("quota", "describe")
    assert "leader" in kcl("cluster", "describe-quorum")


@needs("kaf")
def test_kaf_describes_a_topic_and_a_group(bootstrap, topic, group):
    assert "Summed HighWatermark:  30" in run("kaf", "-b", bootstrap, "topic", "describe", topic)
    assert group in run("kaf", "-b", bootstrap, "groups")
    assert "Empty" in run("kaf", "-b", bootstrap, "group", "describe", group)


@needs("topicctl")
def test_topicctl_applies_a_topic_and_its_growth(bootstrap, tmp_path, topic):
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER_OF_TOPICCTL.format(address=bootstrap.split(",")[0]))
    for partitions, minutes in ((2, 100), (3, 200)):
        asked = tmp_path / f"{partitions}.yaml"
        asked.write_text(TOPIC_OF_TOPICCTL.format(name=f"of-{topic}", partitions=partitions, minutes=minutes))
        run("topicctl", "apply", "--skip-confirm", "--cluster-config", str(cluster), str(asked))
    done = subprocess.run(
        ["topicctl", "get", "config", f"of-{topic}", "--cluster-config", str(cluster)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert "12000000" in done.stdout + done.stderr


@needs("kafka_exporter")
def test_kafka_exporter_counts_what_groups_lag(bootstrap, tmp_path, topic, group):
    (port,) = take_free_ports(1)
    words = [f"--kafka.server={bootstrap.split(',')[0]}", f"--web.listen-address=127.0.0.1:{port}"]
    wanted = f'kafka_consumergroup_lag_sum{{consumergroup="{group}",topic="{topic}"}} {SENT - READ}'
    with served(["kafka_exporter", *words], tmp_path / "log"):
        wait_until(lambda: wanted in fetched(f"http://127.0.0.1:{port}/metrics"), wanted)


@needs("burrow")
def test_burrow_reads_commits_from_the_offsets_topic(bootstrap, tmp_path, topic, group):
    """It joins no group: it decodes the records of ``__consumer_offsets``."""
    (port,) = take_free_ports(1)
    settings = BURROW.format(directory=tmp_path, bootstrap=bootstrap.split(",")[0], port=port)
    (tmp_path / "burrow.toml").write_text(settings)

    def lag_is_seen() -> bool:
        commit(TopicPartition(topic, 0, 0))  # Burrow begins at the end of __consumer_offsets: it sees later commits.
        answer = fetched(f"http://127.0.0.1:{port}/v3/kafka/moldau/consumer/{group}/lag")
        return bool(answer) and json.loads(answer)["status"]["totallag"] == SENT - READ

    with committer(bootstrap, group) as commit, served(["burrow", "--config-dir", str(tmp_path)], tmp_path / "log"):
        wait_until(lag_is_seen, "Burrow counts what the group lags")
