"""Goal: the commands that Kafka comes with work against a cluster of Moldau, and say what they say about Kafka.

Method: one Java process runs the classes behind ``kafka-topics.sh`` and the others, in order, against three brokers,
and those that know ``--bootstrap-controller`` (KIP-919) against a controller.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from moldau_jepsen.testing import cluster
from support.interop import clients
from support.interop.kafka_node import NEWEST
from support.interop.maven import kafka_jars_of
from support.interop.mirrormaker import java

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
PROGRAM = Path(clients.__file__).with_name("KafkaTools.java")
GROUPS = "consumer.group.ConsumerGroupCommand"
SHARES = "consumer.group.ShareGroupCommand"
TOPIC = "kafka-tools"
COMMANDS: tuple[tuple[str, str, int, str], ...] = (
    # the class with its arguments, its input, its exit code, and what it says
    (f"TopicCommand --create --topic {TOPIC} --partitions 1 --replication-factor 3", "", 0, "Created topic"),
    (f"TopicCommand --describe --topic {TOPIC}", "", 0, r"PartitionCount: 1\s+ReplicationFactor: 3"),
    ("TopicCommand --describe --topic no-such-topic", "", 1, "does not exist"),
    (f"ConsoleProducer --topic {TOPIC}", "a\\nb\\nc\\nd\\n", 0, ""),
    (f"GetOffsetShell --topic {TOPIC} --time latest", "", 0, f"{TOPIC}:0:4"),
    (f"consumer.ConsoleConsumer --topic {TOPIC} --from-beginning --max-messages 3 --group kt-c", "", 0, r"a\s+b\s+c\s"),
    (
        f"consumer.ConsoleConsumer --topic {TOPIC} --from-beginning --max-messages 2 --group kt-n "
        "--command-property group.protocol=consumer",
        "",
        0,
        r"a\s+b\s",
    ),
    (f"{GROUPS} --list --type", "", 0, r"(?s)(?=.*kt-c\s+Classic).*kt-n\s+Consumer"),
    (f"{GROUPS} --describe --group kt-c", "", 0, rf"kt-c\s+{TOPIC}\s+0\s+3\s+4\s+1\s"),
    (f"{GROUPS} --reset-offsets --group kt-c --all-topics --to-earliest --execute", "", 0, rf"{TOPIC}\s+0\s+0\s"),
    (f"{GROUPS} --delete-offsets --group kt-c --topic {TOPIC}", "", 0, r"0\s+Successful"),
    (f"{GROUPS} --delete --group kt-c", "", 0, "was successful"),
    (
        "ConfigCommand --alter --entity-type groups --entity-name kt-s --add-config share.auto.offset.reset=earliest",
        "",
        0,
        "Completed updating",
    ),
    (f"consumer.ConsoleShareConsumer --topic {TOPIC} --group kt-s --max-messages 2", "", 0, r"a\s+b\s"),
    (f"{SHARES} --describe --group kt-s --verbose", "", 0, rf"kt-s\s+{TOPIC}\s+0\s+\d+\s+2\s+2\s"),
    (f"{SHARES} --reset-offsets --group kt-s --topic {TOPIC} --to-latest --execute", "", 0, rf"{TOPIC}\s+0\s+4"),
    (f"{SHARES} --delete-offsets --group kt-s --topic {TOPIC}", "", 0, "Successful"),
    (f"{SHARES} --delete --group kt-s", "", 0, "was successful"),
    ("GroupsCommand --list", "", 0, r"kt-n\s+Consumer\s+consumer"),
    (f"TransactionsCommand describe-producers --topic {TOPIC} --partition 0", "", 0, r"\d+\s+0\s+-1\s+3\s"),
    ("TransactionsCommand find-hanging --broker-id 1", "", 0, r"ProducerId\s+ProducerEpoch"),
    ("TransactionsCommand find-hanging --broker-id 2", "", 0, r"ProducerId\s+ProducerEpoch"),
    (f"LeaderElectionCommand --election-type preferred --topic {TOPIC} --partition 0", "", 0, "already elected"),
    ("LogDirsCommand --describe", "", 0, f'"partition":"{TOPIC}-0","size":[1-9]'),
    ("MetadataQuorumCommand describe --replication", "", 0, r"(?s)Leader.*\s1\s.*Observer.*\s2\s.*Observer"),
    ("MetadataQuorumCommand describe --status", "", 0, r'CurrentObservers:\s+\[{"id": 1}, {"id": 2}, {"id": 3}\]'),
    ("FeatureCommand describe", "", 0, r"share.version\s+SupportedMinVersion: 0"),
    ("ClusterTool cluster-id", "", 0, r"Cluster ID: \S{22}"),
    ("ClusterTool list-endpoints", "", 0, r"(?s)unfenced.*unfenced.*unfenced"),
    ("ClusterTool unregister --id 99", "", 1, "BrokerIdNotRegistered"),
    ("BrokerApiVersionsCommand", "", 0, r"ShareFetch\(78\): 1"),
    (f"ProducerPerformance --topic {TOPIC} --num-records 50 --record-size 10 --throughput -1", "", 0, "50 records"),
    (f"ConsumerPerformance --topic {TOPIC} --num-records 50", "", 0, r"\s5\d, "),
    ("AclCommand --list", "", 1, "SecurityDisabledException"),
    (f"TopicCommand --delete --topic {TOPIC}", "", 0, ""),
)


OF_CONTROLLERS: tuple[tuple[str, str, int, str], ...] = (
    ("ConfigCommand --describe --entity-type brokers --entity-default", "", 0, "Default configs for brokers"),
    (
        "ConfigCommand --alter --entity-type brokers --entity-default --add-config log.retention.ms=7200000",
        "",
        0,
        "Completed updating",
    ),
    ("ConfigCommand --describe --entity-type brokers --entity-default", "", 0, "log.retention.ms=7200000"),
    ("ConfigCommand --describe --entity-type brokers --entity-name 101", "", 0, "Dynamic configs for broker 101"),
    ("MetadataQuorumCommand describe --status", "", 0, r"(?s)LeaderId:\s+101\s.*CurrentObservers:\s+\[{\"id\": 1}\]"),
    ("MetadataQuorumCommand describe --replication", "", 0, r"(?s)101\s.*Leader.*\s1\s.*Observer"),
    ("FeatureCommand describe", "", 0, r"share.version\s+SupportedMinVersion: 0"),
    ("ClusterTool cluster-id", "", 0, r"Cluster ID: \S{22}"),
    ("ClusterTool list-endpoints", "", 0, r"101\s+127.0.0.1\s+\d+\s+null\s+controller"),
    ("ClusterTool unregister --id 99", "", 1, "BrokerIdNotRegistered"),
    (
        "ConfigCommand --alter --entity-type broker-loggers --entity-name 101 --add-config moldau=DEBUG",
        "",
        0,
        "Completed updating",
    ),
    ("ConfigCommand --describe --entity-type broker-loggers --entity-name 101", "", 0, "moldau=DEBUG"),
    ("AclCommand --list", "", 1, "SecurityDisabledException"),
)


def test_the_commands_of_kafka_work(bootstrap: str, tmp_path: Path) -> None:
    check_commands(COMMANDS, "--bootstrap-server", bootstrap, tmp_path)


def test_the_commands_of_kafka_work_with_a_controller(tmp_path: Path) -> None:
    with cluster(brokers=1, controllers=1, links=False) as running:
        check_commands(OF_CONTROLLERS, "--bootstrap-controller", running.controllers[0].address, tmp_path)


def check_commands(commands: tuple[tuple[str, str, int, str], ...], option: str, address: str, tmp_path: Path) -> None:
    """Runs commands against the node whose address the option names; fails with all that were wrong."""
    jars, reason = kafka_jars_of(NEWEST, ("kafka-tools", "kafka_2.13"), "kafka-tools")
    if jars is None:
        pytest.skip(reason)
    lines = []
    for command, given, _, _ in commands:
        name, *words = command.split()
        at = 1 if name == "ClusterTool" else 0  # it has the address behind its subcommand
        lines.append("\t".join((name, given, *words[:at], option, address, *words[at:])))
    script = tmp_path / "commands"
    script.write_text("\n".join(lines))
    done = subprocess.run(
        java(jars, str(PROGRAM), str(script)), capture_output=True, text=True, check=False, timeout=4 * clients.WAIT_S
    )
    said = re.findall(r"(?s)(.*?)exit code (-?\d+)\n", done.stdout)
    assert len(said) == len(commands), done.stderr + done.stdout
    wrong = [
        f"{command}: exit code {code}\n{output}"
        for (command, _, expected, pattern), (output, code) in zip(commands, said, strict=True)
        if int(code) != expected or not re.search(pattern, output)
    ]
    assert not wrong, "\n\n".join(wrong)
