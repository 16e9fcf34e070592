"""Goal: librdkafka with ``client.rack`` reads from the follower of its rack (KIP-392), from the leader when that dies.

Method: three real brokers in three racks and an unmodified confluent-kafka consumer, whose own statistics name the
broker of each fetch and the bytes that each broker sent. A paused third replica holds the high watermark back, so that
the follower has a record that no consumer may see yet.
"""

import json
import time
from pathlib import Path

import pytest

from moldau_jepsen.testing import cluster
from support.interop.clients import WAIT_S, create_topic, wait_for, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.processes]

TOPIC = "near"
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
VALUE_BYTES = 1000
RECORDS = 3000
HIDDEN = b"not yet committed"


@pytest.fixture
def racks():
    """Three brokers, each in the rack ``r<its id>``."""
    settings = {
        "replica.selector.class": SELECTOR,
        "broker.session.timeout.ms": "9000",
        "offsets.topic.num.partitions": "1",
    }
    with cluster(brokers=3, controllers=1, settings=settings, links=False) as running:
        for node in running.brokers:
            with Path(node.config).open("a") as config:
                config.write(f"broker.rack=r{node.node_id}\n")
            running.restart(node.node_id)
        create_topic(running.bootstrap, TOPIC, 1, 3)
        yield running


class NearConsumer:
    """A confluent-kafka consumer in a rack; keeps the records that it read and its last statistics."""

    def __init__(self, bootstrap, rack):
        from confluent_kafka import Consumer, TopicPartition

        self.values = []
        self.statistics = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.rack": rack,
                "group.id": "unused",
                "enable.auto.commit": False,
                "statistics.interval.ms": 100,
                "stats_cb": self._reported,
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])

    def _reported(self, text):
        self.statistics = json.loads(text)

    def poll(self, timeout_s=0.1):
        """Takes one record, if there is one; its offset must be the next."""
        message = self._consumer.poll(timeout_s)
        if message is None or message.error() is not None:
            assert message is None or message.error().retriable() or message.error().code() < 0, message.error()
            return
        assert message.offset() == len(self.values), "nothing is left out and nothing comes twice"
        self.values.append(message.value())

    def read_until(self, count):
        deadline = time.monotonic() + WAIT_S
        while len(self.values) < count:
            assert time.monotonic() < deadline, f"{len(self.values)} of {count} records within {WAIT_S:g} s"
            self.poll()

    def source(self):
        """The broker that it fetches the partition from; None before the first statistics."""
        partitions = self.statistics.get("topics", {}).get(TOPIC, {}).get("partitions", {})
        return partitions["0"]["broker"] if "0" in partitions else None

    def received_bytes(self, broker_id):
        """From a broker, as of the last statistics."""
        return sum(broker["rxbytes"] for broker in self.statistics["brokers"].values() if broker["nodeid"] == broker_id)

    def close(self):
        self._consumer.close()


def send(bootstrap, values, *, acks="all"):
    from confluent_kafka import Producer

    failures = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": acks, "enable.idempotence": acks == "all"})
    for value in values:
        producer.produce(TOPIC, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(WAIT_S) == 0
    assert failures == []


def in_sync(bootstrap):
    from confluent_kafka.admin import AdminClient

    return (
        AdminClient({"bootstrap.servers": bootstrap})
        .list_topics(TOPIC, timeout=WAIT_S)
        .topics[TOPIC]
        .partitions[0]
        .isrs
    )


@pytest.mark.proof
def test_a_consumer_reads_from_the_follower_of_its_rack(racks):
    """A consumer reads from the follower of its rack, and goes on when the follower dies."""
    leader = wait_for(lambda: racks.partition_leader(TOPIC, 0), "the topic has a leader")
    near, third = (node.node_id for node in racks.brokers if node.node_id != leader)
    values = [b"%09d" % number + bytes(VALUE_BYTES - 9) for number in range(RECORDS)]
    send(racks.bootstrap, values[:1])
    consumer = NearConsumer(racks.bootstrap, f"r{near}")
    try:
        # The leader sends the consumer to the follower of its rack, which then serves all the rest.
        consumer.read_until(1)
        wait_until(lambda: (consumer.poll(), consumer.source() == near)[1], "it reads from the follower of its rack")
        from_leader, from_near = consumer.received_bytes(leader), consumer.received_bytes(near)
        send(racks.bootstrap, values[1:])
        consumer.read_until(RECORDS)
        sent_bytes = VALUE_BYTES * (RECORDS - 1)
        wait_until(
            lambda: (consumer.poll(), consumer.received_bytes(near) - from_near >= sent_bytes)[1],
            "the follower has sent them",
        )
        assert consumer.received_bytes(leader) - from_leader < sent_bytes / 10
        assert consumer.source() == near

        # What a replica has that is not acknowledged by all is not to be seen, at the follower as at the leader.
        racks.pause(third)
        send(racks.bootstrap, [HIDDEN], acks="1")
        logs = Path(racks.node(near).directory) / f"{TOPIC}-0"
        wait_until(lambda: any(HIDDEN in path.read_bytes() for path in logs.glob("*.log")), "the follower has it")
        end = time.monotonic() + 1
        while time.monotonic() < end:
            consumer.poll()
        seen = len(consumer.values) > RECORDS
        assert not (seen and third in in_sync(racks.bootstrap)), "a replica that is in sync has not got it"
        racks.resume(third)
        consumer.read_until(RECORDS + 1)

        # The follower dies: the consumer goes back to the leader, where it was.
        racks.kill(near)
        more = [b"after-%d" % number for number in range(100)]
        send(racks.bootstrap, more)
        consumer.read_until(RECORDS + 1 + len(more))
        wait_until(lambda: (consumer.poll(), consumer.source() == leader)[1], "it reads from the leader")

        # And when it is back and in sync, the consumer is sent to it again.
        racks.start_node(near)
        wait_until(lambda: near in in_sync(racks.bootstrap), "the follower is in sync again")
        wait_until(lambda: (consumer.poll(), consumer.source() == near)[1], "it reads from the follower again")
        send(racks.bootstrap, [b"last"])
        consumer.read_until(RECORDS + 1 + len(more) + 1)
        assert consumer.values == [*values, HIDDEN, *more, b"last"]
    finally:
        consumer.close()
