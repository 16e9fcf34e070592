"""Goal: the reader finds each partition's offsets, sizes and leader, however partitions are spread over brokers.

Method: brokers in memory that know only the partitions that they lead, and refuse others as brokers do.
"""

import itertools
import types
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from moldau.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pyspark_moldau.client_options import ClientOptions, OptionError
from pyspark_moldau.source.core.options import EARLIEST, LATEST, Subscription
from pyspark_moldau.source.reader import ClusterReader
from pyspark_moldau.wire import cluster as cluster_module
from pyspark_moldau.wire.cluster import UnknownTopicError, id_text, topic_uuid

NODES = (1, 2, 3)
TOPICS = ("a", "b", "ab")
IDS = {topic: uuid.UUID(int=number + 1) for number, topic in enumerate(TOPICS)}
PARTITIONS = [(topic, number) for topic in TOPICS for number in range(2)]


class Brokers:
    """A cluster: the leader of each partition, its first and last offset, and its bytes."""

    def __init__(self, leaders):
        self.leaders = leaders
        self.logs = {key: (10 * at, 10 * at + 7) for at, key in enumerate(leaders)}
        self.asked = []
        self.internal = set()
        self.errors = {}
        self.isolation = []

    def reader(self, **more):
        found = ClusterReader(ClientOptions(bootstrap=(("first", 0),), retry_backoff_ms=1, **more))
        found._cluster.take_connection = lambda address: Connection(self, address)
        return found


class Connection:
    is_outdated = False

    def __init__(self, brokers, address):
        self.brokers, self.node = brokers, address[1]

    def send(self, request, version):
        self.request = request

    def close(self):
        pass

    def receive(self, response_class, version):
        self.brokers.asked.append((response_class.__name__, self.node))
        return getattr(self, response_class.__name__)()

    def MetadataResponse(self):
        wanted = None if self.request.topics is None else [topic.name for topic in self.request.topics]
        present = sorted({topic for topic, _ in self.brokers.leaders})
        topics = [self._topic(name) for name in (present if wanted is None else wanted)]
        named = [MetadataResponseBroker(node_id=node, host="h", port=node) for node in NODES]
        return MetadataResponse(brokers=named, topics=topics)

    def _topic(self, name):
        parts = [
            MetadataResponsePartition(partition_index=number, leader_id=leader)
            for (topic, number), leader in self.brokers.leaders.items()
            if topic == name
        ]
        if name in self.brokers.errors:
            return MetadataResponseTopic(name=name, error_code=self.brokers.errors[name], partitions=parts)
        if not parts:
            return MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        is_internal = name in self.brokers.internal
        return MetadataResponseTopic(name=name, topic_id=IDS[name], partitions=parts, is_internal=is_internal)

    def _led(self, topic, number):
        return self.brokers.leaders.get((topic, number)) == self.node

    def ListOffsetsResponse(self):
        self.brokers.isolation.append(self.request.isolation_level)
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name, partitions=[self._offset(topic.name, one) for one in topic.partitions]
                )
                for topic in self.request.topics
            ]
        )

    def _offset(self, topic, asked):
        number = asked.partition_index
        if not self._led(topic, number):
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return ListOffsetsPartitionResponse(partition_index=number, error_code=code)
        first, end = self.brokers.logs[topic, number]
        at = {EARLIEST: first, LATEST: end}.get(asked.timestamp, asked.timestamp if asked.timestamp < end else -1)
        return ListOffsetsPartitionResponse(partition_index=number, offset=at, leader_epoch=self.node)

    def DescribeLogDirsResponse(self):
        """Returns both replicas of a log that moves to another directory."""
        found = []
        for is_future, unit in ((False, 1), (True, 1000)):
            entries = [
                DescribeLogDirsTopic(
                    name=topic.topic,
                    partitions=[
                        DescribeLogDirsPartition(
                            partition_index=number,
                            partition_size=unit * self.brokers.logs[topic.topic, number][1],
                            is_future_key=is_future,
                        )
                        for number in topic.partitions
                        if self._led(topic.topic, number)
                    ],
                )
                for topic in self.request.topics
            ]
            found.append(DescribeLogDirsResult(topics=entries))
        return DescribeLogDirsResponse(results=found)


LAYOUTS = st.fixed_dictionaries({key: st.sampled_from(NODES) for key in PARTITIONS})
TIMES = st.dictionaries(st.sampled_from(PARTITIONS), st.sampled_from([EARLIEST, LATEST, 0, 3, 10**6]))


@given(LAYOUTS, TIMES)
def test_offsets_are_those_of_each_leader(leaders, times):
    """Each leader is asked once, for its partitions alone; a time after the last record has no offset."""
    brokers = Brokers(leaders)
    found = brokers.reader().offsets(times)
    for key, time in times.items():
        first, end = brokers.logs[key]
        assert found[key] == {EARLIEST: first, LATEST: end}.get(time, time if time < end else None)
    assert found.keys() == times.keys()
    assert sorted(brokers.asked[1:]) == sorted(
        ("ListOffsetsResponse", node) for node in {leaders[key] for key in times}
    )


@given(LAYOUTS, st.lists(st.sampled_from(PARTITIONS), unique=True))
def test_sizes_are_those_of_each_leader(leaders, partitions):
    """The log that a replica moves to does not count."""
    brokers = Brokers(leaders)
    assert brokers.reader().sizes(partitions) == {key: brokers.logs[key][1] for key in partitions}
    assert len(brokers.asked[1:]) == len({leaders[key] for key in partitions})


@given(LAYOUTS, LAYOUTS)
def test_a_reader_follows_leaders_that_change(before, after):
    """The next look at a partition whose leader is another one asks for the metadata again."""
    brokers = Brokers(before)
    reader = brokers.reader()
    reader.partitions(Subscription(topics=TOPICS))
    brokers.leaders = after
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cluster_module, "time", types.SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: None))
        assert reader.offsets(dict.fromkeys(PARTITIONS, LATEST)) == {key: brokers.logs[key][1] for key in PARTITIONS}


def test_only_an_end_that_was_looked_up_is_a_seen_end():
    """Neither the first offset of a log, nor an end that looks past open transactions."""
    brokers = Brokers(dict.fromkeys(PARTITIONS, 2))
    reader, key = brokers.reader(), ("a", 0)
    for times, uncommitted in (({key: EARLIEST}, False), ({key: 3}, False), ({key: LATEST}, True)):
        reader.offsets(times, uncommitted=uncommitted)
        assert [reader.end_epoch(key, end) for end in range(8)] == [None] * 8
    reader.offsets({key: LATEST})
    assert [reader.end_epoch(key, end) for end in (0, 7, 8)] == [2, 2, None]


SUBSCRIPTIONS = [
    (Subscription(topics=("a",)), ["a"], [("a", 0), ("a", 1)]),
    (Subscription(topics=("b", "a")), ["a", "b"], [("a", 0), ("a", 1), ("b", 0), ("b", 1)]),
    (Subscription(pattern="a"), ["a"], [("a", 0), ("a", 1)]),
    (Subscription(pattern="a.*"), ["a", "ab"], [("a", 0), ("a", 1), ("ab", 0), ("ab", 1)]),
    (Subscription(pattern="x"), [], []),
    (Subscription(assignment={"b": (1,), "a": (1, 0)}), ["a", "b"], [("a", 0), ("a", 1), ("b", 1)]),
]


@pytest.mark.parametrize(
    ("subscription", "topics", "partitions"), SUBSCRIPTIONS, ids=[str(each[0]) for each in SUBSCRIPTIONS]
)
def test_a_subscription_has_the_partitions_that_are_there(subscription, topics, partitions):
    """Those of missing topics are left out, or an error, as the caller wants."""
    for missing in itertools.chain.from_iterable(itertools.combinations(TOPICS, count) for count in range(3)):
        brokers = Brokers({key: 1 for key in PARTITIONS if key[0] not in missing})
        reader = brokers.reader()
        present = [key for key in partitions if key[0] not in missing]
        assert reader.partitions(subscription, missing_ok=True) == present
        if subscription.pattern is None and set(topics) & set(missing):
            name = "subscribe" if subscription.topics else "assign"
            with pytest.raises(UnknownTopicError, match=f"^{name}: topic [ab] does not exist"):
                reader.partitions(subscription)
        else:
            assert reader.partitions(subscription) == present


def test_a_partition_that_is_not_there_is_named():
    brokers = Brokers({key: 1 for key in PARTITIONS if key != ("a", 1)})
    wanted = Subscription(assignment={"a": (0, 1), "b": (1,)})
    assert brokers.reader().partitions(wanted, missing_ok=True) == [("a", 0), ("b", 1)]
    with pytest.raises(OptionError, match=r"^assign: topic a has no partition 1, only 0 to 0$"):
        brokers.reader().partitions(wanted)


@pytest.mark.parametrize(("wanted", "near"), [("flihgts", "flights"), ("zzz", None)])
def test_a_missing_topic_has_the_nearest_name_beside_it(monkeypatch, wanted, near):
    monkeypatch.setitem(IDS, "flights", uuid.UUID(int=9))
    reader = Brokers({("flights", 0): 1, ("other", 0): 1}).reader()
    monkeypatch.setitem(IDS, "other", uuid.UUID(int=10))
    hint = rf"; did you mean {near}\?" if near else ""
    with pytest.raises(UnknownTopicError, match=rf"^subscribe: topic {wanted} does not exist; .*name{hint}$"):
        reader.partitions(Subscription(topics=("other", wanted)))


def test_internal_topics_are_read_by_name_only():
    """A pattern of all topics must not read the offsets of groups."""
    brokers = Brokers(dict.fromkeys(PARTITIONS, 1))
    brokers.internal = {"b"}
    reader = brokers.reader()
    assert reader.partitions(Subscription(pattern=".*")) == PARTITIONS[:2] + PARTITIONS[4:]
    assert reader.partitions(Subscription(topics=("b",))) == [("b", 0), ("b", 1)]


def test_metadata_of_other_topics_are_forgotten():
    """A topic that was deleted meanwhile has no leader any more."""
    brokers = Brokers(dict.fromkeys(PARTITIONS, 1))
    reader = brokers.reader()
    reader.partitions(Subscription(topics=TOPICS))
    brokers.leaders = {("a", 0): 3}
    assert reader.partitions(Subscription(topics=("a", "b")), missing_ok=True) == [("a", 0)]
    assert reader._cluster.leaders == {("a", 0): 3}
    assert reader.topic_ids(["a", "b"]) == {"a": id_text(IDS["a"])}


def test_a_partition_without_a_leader_is_waited_for():
    with pytest.raises(KafkaError, match="a-0 has no leader now"):
        Brokers({("a", 0): -1}).reader()._cluster.leader_address(("a", 0))


@given(st.uuids())
def test_the_text_of_a_topic_id_is_read_back(topic_id):
    text = id_text(topic_id)
    assert (topic_uuid(text), len(text), "=" in text) == (topic_id, 22, False)


@pytest.mark.parametrize("committed", [True, False])
def test_only_a_committed_reader_ends_before_open_transactions(committed):
    """A look past them is for all readers; one that reads what is open must not wait for it."""
    brokers = Brokers(dict.fromkeys(PARTITIONS, 1))
    reader = brokers.reader(read_committed=committed)
    for uncommitted in (False, True):
        reader.offsets({("a", 0): LATEST}, uncommitted=uncommitted)
    assert brokers.isolation == [int(committed), 0]


def test_each_error_of_a_topic_ends_the_look_at_it():
    """Also if a broker names partitions of it: they may be old, or not for this client."""
    brokers = Brokers(dict.fromkeys(PARTITIONS, 1))
    for code in ErrorCode:
        brokers.errors = {"b": code}
        cluster = brokers.reader()._cluster
        if code is ErrorCode.NONE:
            cluster.refresh(["a", "b"])
            continue
        with pytest.raises((KafkaError, UnknownTopicError)) as caught:
            cluster.refresh(["a", "b"])
        assert getattr(caught.value, "code", code) is code
        assert ("b", 0) not in cluster.leaders
        cluster.refresh(["a"])
        assert set(cluster.leaders) == {("a", 0), ("a", 1)}
