"""Goal: unmodified librdkafka consumers work with ``group.protocol=consumer`` (KIP-848).

Method: confluent-kafka against three brokers, in one thread that polls all members: rebalances, static members, regular
expressions, commits, and the end of members.
"""

import contextlib
import time

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient

from support.interop.clients import ConfluentClient, committed_offsets, create_topic

pytestmark = pytest.mark.interop

PARTITIONS = 3
WAIT_S = 90.0


class Members:
    """Members of one group, polled in turn; ``read`` collects what they read."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.bootstrap = bootstrap
        self.group = group
        self.all: list[Consumer] = []
        self.read: list[tuple[int, int]] = []
        self.failures: list[str] = []

    def add(self, topics: list[str], **settings: object) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **settings,
            }
        )
        consumer.subscribe(topics)
        self.all.append(consumer)
        return consumer

    def end(self, consumer: Consumer) -> None:
        self.all.remove(consumer)
        consumer.close()

    def poll_until(self, condition, what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {[owned(each) for each in self.all]} {self.failures[-3:]}"
            for consumer in self.all:
                message = consumer.poll(0.05)
                if message is None:
                    continue
                if message.error() is not None:
                    self.failures.append(str(message.error()))
                else:
                    self.read.append((message.partition(), message.offset()))

    def shared(self, partitions: int = PARTITIONS) -> bool:
        """Returns whether the members own all partitions, each once, and evenly."""
        everything = sorted(each for consumer in self.all for each in owned(consumer))
        sizes = [len(owned(consumer)) for consumer in self.all]
        return len(everything) == partitions == len(set(everything)) and max(sizes) - min(sizes) <= 1


def owned(consumer: Consumer) -> list[tuple[str, int]]:
    return [(each.topic, each.partition) for each in consumer.assignment()]


@pytest.fixture
def members(bootstrap, topic):
    group = Members(bootstrap, f"consumers-of-{topic}")
    yield group
    for consumer in list(group.all):
        with contextlib.suppress(RuntimeError):
            group.end(consumer)


def test_three_members_share_and_take_over(members, bootstrap, topic):
    """Members come and go; every record is read, and offsets continue where they were committed."""
    placed = ConfluentClient(bootstrap).produce(topic, [(b"%d" % n, b"%d" % n, []) for n in range(60)])
    first = members.add([topic])
    members.poll_until(lambda: len(members.read) == 60, "all records are read")
    assert sorted(members.read) == sorted((partition, offset) for partition, offset, _ in placed)
    first.commit(asynchronous=False)
    ends = [sum(1 for partition, _, _ in placed if partition == number) for number in range(PARTITIONS)]
    assert committed_offsets(bootstrap, members.group, topic, PARTITIONS) == ends
    for count in (2, 3):
        members.add([topic])
        members.poll_until(members.shared, f"{count} members share {topic}")
    while len(members.all) > 1:
        members.end(members.all[0])
        members.poll_until(members.shared, "the others take over")
    ConfluentClient(bootstrap).produce(topic, [(b"x", b"later", [])])
    members.poll_until(lambda: len(members.read) > 60, "the last member goes on")
    assert len(members.read) == 61, "a committed record is read again"
    assert not members.failures


def test_a_static_member_comes_back_to_its_partitions(members, topic):
    for name in ("one", "two"):
        members.add([topic], **{"group.instance.id": name})
    members.poll_until(members.shared, "two static members share")
    first, second = members.all
    kept, others = owned(first), owned(second)
    members.end(first)
    again = members.add([topic], **{"group.instance.id": "one"})
    members.poll_until(lambda: owned(again) == kept, "the static member has its partitions again")
    assert owned(second) == others


def test_a_regular_expression_follows_new_topics(members, bootstrap, topic):
    members.add([f"^{topic}.*"])
    members.poll_until(members.shared, "the expression matches one topic")
    create_topic(bootstrap, f"{topic}-later", 2, 3)
    members.poll_until(lambda: members.shared(PARTITIONS + 2), "the expression matches the new topic")


def test_the_range_assignor_of_the_coordinator(members, topic):
    for _ in range(2):
        members.add([topic], **{"group.remote.assignor": "range"})
    members.poll_until(members.shared, "two members share")
    assert sorted(sorted(number for _, number in owned(each)) for each in members.all) == [[0, 1], [2]]


def test_admin_clients_see_the_type_of_the_group(members, bootstrap, topic):
    members.add([topic])
    members.poll_until(members.shared, "one member owns all")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}, request_timeout=30).result()
    states = {each.group_id: each.state for each in found.valid if each.type is ConsumerGroupType.CONSUMER}
    assert states[members.group] is ConsumerGroupState.STABLE
