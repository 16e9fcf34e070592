"""Goal: Moldau's clients work unchanged with brokers of Apache Kafka, and name the features that those lack.

Method: one node of Kafka in KRaft mode, of the newest version, of the first with share groups, and of the last one of
series 3. The suite of the three
faces runs against it as it runs against Moldau; further tests ask for the newer protocols.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from moldau.admin import AdminError, ConfigAlteration, ConfigResource, NewTopic, ResourceType
from moldau.blocking import Admin, Consumer, Producer, ShareConsumer
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.net.peers import ExpectedPeer
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.ports.real import real_environment
from moldau.share import AcknowledgeType
from moldau_jepsen.checkers.group.share import Archived
from moldau_jepsen.history import TopicPartition
from moldau_jepsen.workloads.phases.share_evidence import archived_records, group_times_ms
from support.interop.clients import wait_until
from support.interop.kafka_node import NEW, NEWEST, OLD, kafka

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
SUITE = Path(__file__).parents[1] / "moldau/client/faces/test_three_faces.py"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
OTHERWISE = {
    NEWEST: (),
    NEW: ("admin_serves_share_groups",),
    OLD: ("admin_serves_share_groups", "share_consumers_deliver", "admin_serves_what_kafkas_does"),
}
"""Scenarios that a version of Kafka serves otherwise.

Kafka 4.1 changes no offsets of share groups (``test_share_offsets``). Kafka 3.9 has no share
groups, and lists no resources but those of client metrics.
"""


@pytest.fixture(scope="module", params=[NEWEST, NEW, OLD])
def node(request, tmp_path_factory):
    with kafka(tmp_path_factory.mktemp("kafka"), request.param) as bootstrap:
        yield request.param, bootstrap


def test_the_suite_of_the_three_faces(node):
    version, bootstrap = node
    chosen = " and ".join(["not simulation", *(f"not {name}" for name in OTHERWISE[version])])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(SUITE), "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", chosen],
        env={**os.environ, "THREE_FACES_BOOTSTRAP": bootstrap},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout


def test_listed_resources(node):
    """Kafka 4.1 lists all types; the error of an earlier one names those that it does not list."""
    version, bootstrap = node
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic("resources", 1, 1)])
        assert admin.list_config_resources([ResourceType.CLIENT_METRICS]) == []
        types = [ResourceType.TOPIC, ResourceType.BROKER]
        if version == OLD:
            with pytest.raises(KafkaError, match=r"UNSUPPORTED_VERSION: .*a listing of TOPIC, BROKER \(KIP-1142\)"):
                admin.list_config_resources(types)
            return
        wanted = {ConfigResource(ResourceType.TOPIC, "resources"), ConfigResource(ResourceType.BROKER, "1")}
        wait_until(lambda: wanted <= set(admin.list_config_resources(types)), "the topic is listed")


def test_the_expected_node_is_checked(node):
    """Kafka 4.4 refuses a client that expects another cluster or node (KIP-1242); older brokers do not look."""
    version, bootstrap = node
    host, port = bootstrap.rsplit(":", 1)
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        described = admin.describe_cluster()

    async def outcome(expected):
        try:
            opened = await RpcConnection.open(real_environment(), host, int(port), "test", expected=expected)
        except KafkaError as error:
            return error.code
        opened.close()
        return ErrorCode.NONE

    async def outcomes(*expected):
        return [await outcome(each) for each in expected]

    node_id = described.brokers[0].node_id
    right = ExpectedPeer(described.cluster_id, node_id)
    wrong = [ExpectedPeer(described.cluster_id, node_id + 1), ExpectedPeer("another", node_id)]
    code = ErrorCode.REBOOTSTRAP_REQUIRED if version == NEWEST else ErrorCode.NONE
    assert trio.run(outcomes, None, right, *wrong) == [ErrorCode.NONE, ErrorCode.NONE, code, code]


@pytest.mark.parametrize("codec", CODECS)
def test_records_in_every_codec(node, codec):
    _, bootstrap = node
    topic = f"codec-{codec}"
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic(topic, 2, 1)])
    values = [b"%d" % number * 50 for number in range(500)]
    with Producer({"bootstrap.servers": bootstrap, "compression.type": codec}) as producer:
        for sent in [producer.send(topic, value, b"k", headers=[("h", b"v")]) for value in values]:
            sent.result(60_000)
    with Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        found = []
        for record in consumer:
            assert (record.key, record.headers) == (b"k", (("h", b"v"),))
            found.append(record.value)
            if len(found) == len(values):
                break
    assert found == values


def test_the_consumer_protocol(node):
    """Kafka 4 serves KIP-848; for one that does not, the error names the key to set."""
    version, bootstrap = node
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic("consumers", 1, 1)])
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        producer.send("consumers", b"v").result(60_000)
    config = {"bootstrap.servers": bootstrap, "group.id": "new", "group.protocol": "consumer"}
    with Consumer({**config, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["consumers"])
        if version == OLD:
            with pytest.raises(KafkaError, match=r"group\.protocol"):
                consumer.poll(20_000)
            return
        assert next(iter(consumer)).value == b"v"
        consumer.commit()
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        assert admin.describe_groups(["new"])["new"].type == "consumer"


def test_share_groups(node):
    version, bootstrap = node
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic("shared", 1, 1)])
        if version == OLD:
            with pytest.raises(KafkaError, match=r"share|UNSUPPORTED_VERSION"):
                admin.describe_share_groups(["sharers"])
            return
        if version == NEW:  # later versions begin so
            admin.update_features({"share.version": 1})
        earliest = ConfigAlteration(name="share.auto.offset.reset", value="earliest")
        admin.alter_configs({ConfigResource(ResourceType.GROUP, "sharers"): [earliest]})
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        producer.send("shared", b"v").result(60_000)
    with ShareConsumer({"bootstrap.servers": bootstrap, "group.id": "sharers"}) as consumer:
        consumer.subscribe(["shared"])
        for record in consumer:
            assert record.value == b"v"
            break


def test_share_offsets(node):
    """Kafka 4.1 loses the topics of the request, and the call says so."""
    version, bootstrap = node
    if version == OLD:
        pytest.skip("Kafka 3.9 has no share groups")
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic("reset", 1, 1)])
        if version == NEW:  # later versions begin so
            admin.update_features({"share.version": 1})
        place = ("reset", 0)
        with Producer({"bootstrap.servers": bootstrap}) as producer:
            for delivery in producer.send_many("reset", [b"0", b"1", b"2"]):
                delivery.result(60_000)
        with ShareConsumer({"bootstrap.servers": bootstrap, "group.id": "resetters"}) as consumer:
            consumer.subscribe(["reset"])
            wait_until(lambda: consumer.poll(200) or consumer.assignment, "the member has its partition")
        wait_until(lambda: admin.describe_share_groups(["resetters"])["resetters"].state == "Empty", "the member left")
        if version == NEW:
            with pytest.raises(AdminError, match=r"reset-0: .* Kafka 4\.1 lose the topics of this request"):
                admin.alter_share_group_offsets("resetters", {place: 1})
            return
        admin.alter_share_group_offsets("resetters", {place: 1})
        assert admin.list_share_group_offsets("resetters")[place].start_offset == 1
    with ShareConsumer({"bootstrap.servers": bootstrap, "group.id": "resetters"}) as consumer:
        consumer.subscribe(["reset"])
        found = []
        for record in consumer:
            found.append(record.value)
            if len(found) == 2:
                break
    assert found == [b"1", b"2"]


def test_the_end_of_a_record_at_the_delivery_limit(node):
    """Chaos runs read the group's times, and which records were given up, from brokers of Kafka too."""
    version, bootstrap = node
    if version != NEWEST:
        pytest.skip("a share group has no delivery limit of its own before Kafka 4.4")
    settings = {
        "share.auto.offset.reset": "earliest",
        "share.record.lock.duration.ms": "20000",
        "share.delivery.count.limit": "2",
    }
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic("limited", 1, 1)])
        changes = [ConfigAlteration(name=name, value=value) for name, value in settings.items()]
        admin.alter_configs({ConfigResource(ResourceType.GROUP, "limited"): changes})
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for delivery in producer.send_many("limited", [b"0", b"1"]):
            delivery.result(60_000)
    options = {"bootstrap.servers": bootstrap, "group.id": "limited", "share.acknowledgement.mode": "explicit"}
    with ShareConsumer(options) as consumer:
        consumer.subscribe(["limited"])
        done = 0
        while done < 3:
            for record in consumer.poll(500):
                consumer.acknowledge(record, AcknowledgeType.RELEASE if record.offset else AcknowledgeType.ACCEPT)
                done += 1
            consumer.commit()

    async def asked():
        environment, reach = real_environment(), {"bootstrap.servers": bootstrap}
        times = await group_times_ms(reach, environment, "limited")
        return times, await archived_records(reach, environment, "limited", "limited", times[0])

    times, archived = trio.run(asked)
    assert times == (20_000, 45_000)
    assert archived == [Archived((TopicPartition("limited", 0), 1), 2)]
