"""Goal: dead letters of share groups are those that Apache Kafka 4.4 writes.

Method: the same members at a broker of each kind reject, release and accept the same records; the queues are compared.
"""

from __future__ import annotations

import pytest

from moldau import AcknowledgeType
from moldau.admin import ConfigAlteration, ConfigResource, NewTopic, ResourceType
from moldau.blocking import Admin, Consumer, Producer, ShareConsumer
from support.answers.nodes import kafka_broker, moldau_broker

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
ALLOWED = {"errors.deadletterqueue.group.enable": "true"}
QUEUE, COPY = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.copy.record.enable"
CREATES = "errors.deadletterqueue.auto.create.topics.enable=true\n"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    homes = [tmp_path_factory.mktemp(name) for name in ("kafka", "moldau")]
    with kafka_broker(homes[0], CREATES) as theirs, moldau_broker(homes[1], CREATES) as ours:
        yield theirs, ours


def letters_of(broker, name, *, creates_queue=True, **settings):
    """Lets a group reject records 0 and 3, accept record 1, and release the others until they are given up.

    Returns key, value and headers of each dead letter, by the offset that it names.
    """
    server, topic, queue = {"bootstrap.servers": broker.address}, f"jobs-{name}", f"dlq.{name}"
    given = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": "2", QUEUE: queue, **settings}
    with Admin(server) as admin:
        assert {each.name: each.level for each in admin.describe_features()}["share.version"] == 2
        admin.create_topics([NewTopic(name=topic, partitions=2)])
        if creates_queue:
            admin.create_topics([NewTopic(name=queue, partitions=1, configs=ALLOWED)])
        changes = [ConfigAlteration(name=key, value=value) for key, value in given.items()]
        admin.alter_configs({ConfigResource(ResourceType.GROUP, name): changes})
    with Producer(server) as producer:
        for number in range(6):
            producer.send(topic, b"v%d" % number, key=b"k%d" % number, partition=1).result(10_000)
    kinds = {0: AcknowledgeType.REJECT, 1: AcknowledgeType.ACCEPT, 3: AcknowledgeType.REJECT}
    member = {"group.id": name, "share.acknowledgement.mode": "explicit", "share.acquire.mode": "record_limit"}
    with ShareConsumer(server | member) as consumer, Consumer(server | {"auto.offset.reset": "earliest"}) as reader:
        consumer.subscribe([topic])
        found = {}
        while len(found) < 5:
            for record in consumer.poll(500):
                consumer.acknowledge(record, kinds.get(record.offset, AcknowledgeType.RELEASE))
            consumer.commit()
            with Admin(server) as admin:
                if queue not in {each.name for each in admin.list_topics()}:
                    continue
            if not reader.assignment:
                reader.assign([(queue, 0)])
            for batch in reader.poll(200):
                for letter in batch.records:
                    facts = dict(letter.headers)
                    found[int(facts["__dlq.errors.offset"])] = (letter.key, letter.value, letter.headers)
    return found


@pytest.mark.parametrize("copies", ["false", "true"])
def test_the_letters_are_those_of_kafka(brokers, copies):
    """With the same headers in the same order; the reason of each is that of Kafka."""
    theirs, ours = (letters_of(broker, f"g{copies}", **{COPY: copies}) for broker in brokers)
    assert ours == theirs
    assert sorted(ours) == [0, 2, 3, 4, 5]


def test_brokers_of_both_create_the_queue(brokers):
    """Its configuration is that of Kafka."""
    found = []
    for broker in brokers:
        letters = letters_of(broker, "made", creates_queue=False)
        with Admin({"bootstrap.servers": broker.address}) as admin:
            topic = ConfigResource(ResourceType.TOPIC, "dlq.made")
            configs = admin.describe_configs([topic])[topic]
            own = {name: each.value for name, each in configs.items() if not each.is_default}
        found.append((letters, own))
    assert found[0] == found[1]
