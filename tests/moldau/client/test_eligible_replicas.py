"""Goal: descriptions of topics have the eligible leader replicas of partitions (KIP-966), page by page.

Method: canned answers of a small cluster on virtual time, whose partitions have lost replicas.
"""

import pytest

from moldau.admin import PartitionDescription
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import describe_topic_partitions as dtp
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.client.admin_stories import simulate
from support.client.fake_cluster import SERVED


class Shrunk:
    """Leaves partition 0 of the topic without a leader, both partitions without a replica, and names those by pages."""

    def __init__(self):
        self.asked = []

    def install(self, cluster):
        self.cluster = cluster
        cluster.handlers |= {ApiKey.METADATA: self.metadata, ApiKey.DESCRIBE_TOPIC_PARTITIONS: self.describe}
        self.topic_id = (
            cluster.on_metadata(1, MetadataRequest(topics=[MetadataRequestTopic(name="t")])).topics[0].topic_id
        )

    def metadata(self, broker, request):
        answer = self.cluster.on_metadata(broker, request)
        for topic in answer.topics:
            for part in topic.partitions:
                part.isr_nodes = [] if part.partition_index == 0 else [1]
                part.leader_id = -1 if part.partition_index == 0 else 1
        return answer

    def describe(self, broker, request):
        number = 0 if request.cursor is None else request.cursor.partition_index
        self.asked.append((broker, number))
        part = dtp.DescribeTopicPartitionsResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE if number == 0 else ErrorCode.NONE,
            partition_index=number,
            leader_id=-1 if number == 0 else 1,
            leader_epoch=5,
            replica_nodes=[1, 2],
            isr_nodes=[] if number == 0 else [1],
            eligible_leader_replicas=[2] if number == 0 else None,
            last_known_elr=None if number == 0 else [2],
        )
        topic = dtp.DescribeTopicPartitionsResponseTopic(name="t", topic_id=self.topic_id, partitions=[part])
        following = dtp.DescribeTopicPartitionsResponseCursor(topic_name="t", partition_index=1)
        return dtp.DescribeTopicPartitionsResponse(topics=[topic], next_cursor=following if number == 0 else None)


@pytest.mark.parametrize("node_id", [None, 2])
def test_a_description_has_the_eligible_replicas(node_id):
    shrunk = Shrunk()

    async def scenario(cluster, admin):
        shrunk.install(cluster)
        return (await admin.describe_topics(["t"], node_id=node_id))["t"].partitions

    shape = {"leader_epoch": 5, "replicas": (1, 2)}
    assert simulate(scenario, {}) == (
        PartitionDescription(partition=0, leader=-1, isr=(), elr=(2,), **shape),
        PartitionDescription(partition=1, leader=1, isr=(1,), last_known_elr=(2,), **shape),
    )
    assert [number for _, number in shrunk.asked] == [0, 1]
    assert node_id is None or {broker for broker, _ in shrunk.asked} == {node_id}


def test_a_topic_in_good_order_costs_one_request():
    async def scenario(cluster, admin):
        await admin.describe_topics(["t"])
        assert ApiKey.DESCRIBE_TOPIC_PARTITIONS not in [key for _, key, _ in cluster.requests]

    simulate(scenario, {})


@pytest.mark.parametrize("node_id", [None, 2])
def test_older_brokers_do_not_say_which_replicas_are_eligible(node_id):
    shrunk = Shrunk()

    async def scenario(cluster, admin):
        cluster.served = dict.fromkeys(cluster.brokers, SERVED)
        shrunk.install(cluster)
        cluster.kill_broker(1)
        first, second = (await admin.describe_topics(["t"], node_id=node_id))["t"].partitions
        assert (first.elr, second.isr, second.elr) == ((), (1,), ())

    simulate(scenario, {})
    assert shrunk.asked == []


def test_pages_that_never_end_are_not_read_without_end():
    shrunk = Shrunk()

    async def scenario(cluster, admin):
        shrunk.install(cluster)

        def again(broker, request):
            answer = shrunk.describe(broker, request)
            answer.next_cursor = dtp.DescribeTopicPartitionsResponseCursor(topic_name="t", partition_index=1)
            return answer

        cluster.handlers[ApiKey.DESCRIBE_TOPIC_PARTITIONS] = again
        assert (await admin.describe_topics(["t"]))["t"].partitions[0].elr == (2,)

    simulate(scenario, {})
    assert len(shrunk.asked) == 2
