"""Goal: a client's metadata follow the newest leader epoch of each partition, whichever broker answers.

Method: the pure metadata alone, and one call that depends on them. A broker that is behind names former leaders
(KIP-320). One epoch has one leader, but a broker may not know its address yet, and the in-sync replicas change within
an epoch.
"""

from types import SimpleNamespace
from uuid import UUID

import pytest
import trio

from moldau import Producer, TopicPartition
from moldau.cluster.metadata import ABSENT_MAX, NO_EPOCH, NO_LEADER, BrokerNode, ClusterMetadata
from moldau.cluster.offsets import list_offsets
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.list_offsets import ListOffsetsPartitionResponse, ListOffsetsTopicResponse
from moldau.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster

T0 = TopicPartition("t", 0)
FIRST, SECOND = UUID(int=1), UUID(int=2)
BROKERS = [MetadataResponseBroker(node_id=node_id, host=f"b{node_id}", port=9092) for node_id in (1, 2, 3)]


def answer(leader, epoch, *, code=ErrorCode.NONE, topic_id=FIRST, isr=(1, 2)):
    partition = MetadataResponsePartition(
        error_code=code, partition_index=0, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2], isr_nodes=isr
    )
    return MetadataResponse(
        brokers=BROKERS, topics=[MetadataResponseTopic(name="t", topic_id=topic_id, partitions=[partition])]
    )


def after(*answers):
    metadata = ClusterMetadata()
    for each in answers:
        metadata.update(each)
    return metadata


@pytest.mark.parametrize(
    ("second", "leader"),
    [
        (answer(2, 4), (1, 5)),  # of a broker that is behind
        (answer(2, 6), (2, 6)),
        (answer(2, NO_EPOCH), (2, NO_EPOCH)),  # of a broker that names no epochs
        (answer(2, 0, topic_id=SECOND), (2, 0)),  # the topic was deleted and created again
        (answer(NO_LEADER, 6, code=ErrorCode.LEADER_NOT_AVAILABLE), None),
        (answer(NO_LEADER, 4, code=ErrorCode.LEADER_NOT_AVAILABLE), (1, 5)),
    ],
)
def test_the_newest_leader_epoch_counts(second, leader):
    assert after(answer(1, 5), second).leader(T0) == leader


def test_a_leader_whose_address_comes_later_is_found():
    """The first broker did not know the leader's listener yet; the epoch stays the same."""
    metadata = after(answer(2, 5, code=ErrorCode.LEADER_NOT_AVAILABLE))
    assert metadata.leader(T0) is None
    metadata.update(answer(2, 5))
    assert metadata.leader(T0) == (2, 5)


def test_in_sync_replicas_change_within_an_epoch():
    assert after(answer(1, 5), answer(1, 5, isr=(1,))).partition_info(T0).isr == (1,)
    assert after(answer(1, 5), answer(1, 4, isr=(1,))).partition_info(T0).isr == (1, 2)


def test_answers_of_leaders_raise_the_epoch_only():
    """Produce and Fetch name a new leader before the metadata do (KIP-951)."""
    metadata = after(answer(1, 5))
    assert not metadata.set_leader(T0, 2, 5, FIRST)
    assert not metadata.set_leader(T0, NO_LEADER, 7, FIRST)
    assert not metadata.set_leader(T0, 2, 7, SECOND)
    assert metadata.leader(T0) == (1, 5)
    assert metadata.set_leader(T0, 3, 6, FIRST)
    metadata.update(answer(1, 5))
    assert metadata.leader(T0) == (3, 6)


def test_a_leader_of_a_named_topic_counts_for_a_while():
    """Without an id the answer may be about a former topic, whose epochs are above those of the present one."""
    metadata = after(answer(1, 5))
    assert not metadata.set_leader(T0, 2, 5, FIRST, by_name=True)
    assert metadata.set_leader(T0, 2, 9, FIRST, by_name=True)
    assert metadata.leader(T0) == (2, 5)
    named = metadata.partition_info(T0)
    assert named is not None
    assert not named.is_epoch_of_leader
    metadata.update(answer(3, 6))
    assert metadata.leader(T0) == (3, 6)
    known = metadata.partition_info(T0)
    assert known is not None
    assert known.is_epoch_of_leader


def test_offsets_are_asked_of_the_next_leader():
    """The former leader refuses; without news it would be asked again until the time is over."""
    asked, client = [], SimpleNamespace(now_ms=0.0, request_timeout_ms=1_000, bootstrap_error=None, clusters_left=0)
    client.cluster_metadata, client.add_topic = after(answer(1, 5)), lambda name, **_: None
    client.request_update = lambda: client.cluster_metadata.update(answer(2, 6))

    async def backoff(attempts):
        await trio.lowlevel.checkpoint()
        assert attempts < 10

    async def request(node_id, response_class, message, *, needed):
        await trio.lowlevel.checkpoint()
        asked.append(node_id)
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER if node_id == 1 else ErrorCode.NONE
        part = ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=7, timestamp=-1)
        return response_class(topics=[ListOffsetsTopicResponse(name="t", partitions=[part])])

    client.backoff, client.request = backoff, request
    found = trio.run(list_offsets, client, {T0: -1}, 60_000)
    assert (found, asked) == ({T0: (7, -1)}, [1, 2])


def test_an_answer_without_racks_changes_no_broker():
    """FindCoordinator names no rack: the answer took the broker's away, and counted as news of the cluster."""
    racked = MetadataResponse(brokers=[MetadataResponseBroker(node_id=1, host="b1", port=9092, rack="r")])
    metadata = after(racked)
    version = metadata.version
    metadata.add_broker(BrokerNode(node_id=1, host="b1", port=9092))
    assert (metadata.brokers[1].rack, metadata.version) == ("r", version)
    metadata.add_broker(BrokerNode(node_id=1, host="elsewhere", port=9092))
    assert (metadata.brokers[1].rack, metadata.version) == (None, version + 1)


def answer_for(*numbers):
    partitions = [
        MetadataResponsePartition(partition_index=number, leader_id=1 + number % 3, leader_epoch=number)
        for number in numbers
    ]
    return MetadataResponse(
        brokers=BROKERS, topics=[MetadataResponseTopic(name="t", topic_id=FIRST, partitions=partitions)]
    )


@pytest.mark.parametrize("numbers", [(0, 2), (2, 0), (0, 0, 2, 2), (-1, 0, 2)])
def test_an_answer_may_leave_a_partition_out(numbers):
    """The partitions behind it moved up: records for one of them went into the next one."""
    metadata = after(answer_for(*numbers))
    assert [each.partition for each in metadata.topics["t"].partitions] == [0, 1, 2]
    assert [metadata.leader(TopicPartition("t", number)) for number in range(3)] == [(1, 0), None, (3, 2)]
    assert metadata.is_passing(["t"]), "it is asked for again"
    metadata.update(answer_for(0, 1, 2))
    metadata.update(answer_for(*numbers))
    assert metadata.leader(TopicPartition("t", 1)) == (2, 1)


def test_an_answer_with_an_absurd_partition_costs_no_memory():
    assert len(after(answer_for(0, 2**31 - 1)).topics["t"].partitions) <= 2 + ABSENT_MAX


def test_a_record_goes_to_its_partition_or_waits():
    def leave_out(broker, request):
        found = cluster.on_metadata(broker, request)
        if len(cluster.requests) < 4:
            for topic in found.topics:
                topic.partitions = [each for each in topic.partitions if each.partition_index != 1]
        return found

    async def main(world):
        nonlocal cluster
        cluster = FakeCluster(world, 1)
        parts = cluster.add_topic("t", 3)
        cluster.handlers[ApiKey.METADATA] = leave_out
        cluster.start()
        environment = world.node("client").environment
        async with Producer({"bootstrap.servers": cluster.bootstrap}, environment=environment) as producer:
            assert (await (await producer.send("t", b"x", partition=1))).partition == 1
        assert [each.values() for each in parts] == [[], [b"x"], []]

    cluster = None
    run_world(main, 1)
