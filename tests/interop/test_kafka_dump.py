"""Goal: Kafka's own dump tool reads what our coordinators write, in each internal topic, record by record.

Method: one broker of real processes serves groups of all four kinds, transactions and a share group. Then the tool from
Maven's jars decodes the segments. Every record that is no control record must be decoded, and some values are compared
with what the clients did.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer

from moldau.admin import NewTopic
from moldau.blocking import Admin, Consumer, Producer, ShareConsumer
from moldau_jepsen.testing import cluster
from support.coordinator.streams_member import heartbeat
from support.interop.clients import wait_until
from support.interop.mirrormaker import java, kafka_jars

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
TOPIC, RECORDS = "texts", 10


def work(bootstrap: str) -> None:
    """Uses every coordinator."""
    base = {"bootstrap.servers": bootstrap}
    with Admin(base) as admin:
        admin.create_topics([NewTopic(TOPIC, 2, 1)])
    with Producer(base) as producer:
        for number in range(RECORDS):
            producer.send(TOPIC, b"%d" % number, partition=number % 2).result()
    reading = {**base, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    for group, more in (("classic", {}), ("modern", {"group.protocol": "consumer"})):
        with Consumer({**reading, **more, "group.id": group}) as consumer:
            consumer.subscribe([TOPIC])
            found = 0

            def poll(consumer=consumer) -> bool:
                nonlocal found
                found += sum(len(each.records) for each in consumer.poll(1_000))
                return found == RECORDS

            wait_until(poll, f"group {group} has read everything")
            consumer.commit()
    foreign = ConfluentConsumer({**base, "group.id": "foreign", "auto.offset.reset": "earliest"})
    foreign.subscribe([TOPIC])
    wait_until(lambda: foreign.poll(1.0) is not None, "librdkafka reads")
    foreign.commit(asynchronous=False)
    foreign.close()
    for outcome in ("commit", "abort"):
        with Producer({**base, "transactional.id": f"{outcome}s"}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(TOPIC, b"transactional").result()
            getattr(producer, f"{outcome}_transaction")()
    with Admin(base) as admin:
        admin.alter_share_group_offsets("shared", {(TOPIC, 0): 0, (TOPIC, 1): 0})
    with ShareConsumer({**base, "group.id": "shared"}) as share:
        share.subscribe([TOPIC])
        wait_until(lambda: bool(share.poll(1_000)), "the share group reads")
    heartbeat(bootstrap, 0, source=TOPIC)
    heartbeat(bootstrap, -1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The log directory of a broker that has stopped, and the jars."""
    jars, reason = kafka_jars()
    if jars is None:
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("dumped")
    settings = {"offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2}
    with cluster(brokers=1, controllers=1, directory=home, links=False, settings=settings) as running:
        work(running.bootstrap)
        running.stop_node(1)
    return home, jars


def dump(folder: tuple[Path, Path], topic: str, decoder: str) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Runs the tool over all partitions of a topic; returns keys and values, and fails if it could not decode one."""
    home, jars = folder
    segments = [path for path in sorted(home.rglob("*.log")) if path.parent.name.startswith(f"{topic}-")]
    assert segments, topic
    files = ",".join(map(str, segments))
    command = java(jars, "kafka.tools.DumpLogSegments", decoder, "--deep-iteration", "--files", files)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "ould not" not in done.stdout + done.stderr, done.stdout + done.stderr
    found = []
    for text in done.stdout.splitlines():
        if not text.startswith("| offset:") or "endTxnMarker" in text or "isControl: true" in text:
            continue
        matched = re.search(r" key: (.*?) payload: (.*)$", text)
        assert matched, text
        value = matched[2]
        found.append((json.loads(matched[1]), None if value == "<DELETE>" else json.loads(value)))
    return found


def by_type(found, number: int) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Data of the records of one type; None for a tombstone."""
    return [(key["data"], value and value["data"]) for key, value in found if key["type"] == str(number)]


CLASSIC, CONSUMER, SHARE, STREAMS = {1, 2}, {3, 5, 6, 7, 8}, {10, 11, 12, 13, 14, 15}, {17, 19, 20, 21, 22, 23}
"""Kafka's types of records in __consumer_offsets, by the protocol of the group."""


def test_records_of_all_kinds_of_groups_are_decoded(folder):
    found = dump(folder, "__consumer_offsets", "--offsets-decoder")
    types = Counter(int(key["type"]) for key, _ in found)
    assert set(types) == CLASSIC | CONSUMER | SHARE | STREAMS
    commits = {(key["group"], key["partition"]): value["offset"] for key, value in by_type(found, 1) if value}
    assert {key: at for key, at in commits.items() if key[0] != "foreign"} == {
        (group, partition): RECORDS // 2 for group in ("classic", "modern") for partition in (0, 1)
    }
    metadata = [value for key, value in by_type(found, 2) if key["group"] == "classic"]
    assert [(each["generation"], each["protocol"], len(each["members"])) for each in metadata] == [
        (1, "range", 1),
        (2, None, 0),
    ]
    (clients,) = {value["clientId"] for key, value in by_type(found, 5) if value}
    assert clients == "moldau-consumer"
    assignment = [value for key, value in by_type(found, 7) if value]
    assert [part["partitions"] for value in assignment for part in value["topicPartitions"]] == [[0, 1]]


def test_records_of_share_and_streams_groups_are_decoded(folder):
    found = dump(folder, "__consumer_offsets", "--offsets-decoder")
    begun, done = [value for _, value in by_type(found, 15)]
    (topic,) = done["initializedTopics"]
    assert (topic["topicName"], topic["partitions"], begun["initializingTopics"]) == (TOPIC, [0, 1], [topic])
    assert done["initializingTopics"] == done["deletingTopics"] == begun["initializedTopics"] == []
    (topology,) = [value for _, value in by_type(found, 23)]
    assert [part["subtopologyId"] for part in topology["subtopologies"]] == ["0", "1"]
    assert topology["subtopologies"][1]["stateChangelogTopics"][0]["topicConfigs"] == [
        {"key": "cleanup.policy", "value": "compact"}
    ]
    tasks = [value["activeTasks"] for _, value in by_type(found, 21) if value]
    assert tasks == [[{"subtopologyId": number, "partitions": [0, 1]} for number in ("0", "1")]]
    states = dump(folder, "__share_group_state", "--share-group-state-decoder")
    assert {(key["groupId"], key["topicId"], key["partition"]) for key, _ in by_type(states, 0)} == {
        ("shared", topic["topicId"], partition) for partition in (0, 1)
    }
    assert {key["partition"] for key, value in by_type(states, 1) if value["startOffset"] == 0} == {0, 1}
    assert {int(key["type"]) for key, _ in states} == {0, 1}


def test_records_of_transactions_are_decoded(folder):
    found = by_type(dump(folder, "__transaction_state", "--transaction-log-decoder"), 0)
    empty, ongoing, commits, aborts, committed, aborted = range(6)
    for name, course in (("commits", [commits, committed]), ("aborts", [aborts, aborted])):
        states = [value for key, value in found if key["transactionalId"] == name]
        assert [value["transactionStatus"] for value in states] == [empty, ongoing, *course]
        assert [value["producerEpoch"] for value in states] == [0, 0, 1, 1], "transactions of version 2 raise it"
        assert len({value["producerId"] for value in states}) == 1
        (topic,) = states[1]["transactionPartitions"]
        assert topic["topic"] == TOPIC
        assert states[-1]["clientTransactionVersion"] == 2
