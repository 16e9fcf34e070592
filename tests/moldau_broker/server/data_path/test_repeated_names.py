"""Goal: a request that names one topic many times costs no more than one that names it once.

Method: one request names the same topic 10,000 times to a broker on virtual time; the answer is counted.
"""

from __future__ import annotations

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.cluster.broker_cluster import run_cluster

REPEATS = 10_000


def test_metadata_answers_a_topic_once() -> None:
    """A request of 60 KB that named one topic 10,000 times got 50 MB, and blocked the event loop for 49 s."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=50)
        await cluster.leader("t", 49)
        topic_id = cluster.image().topics_by_name["t"].topic_id
        names = [MetadataRequestTopic(name=name) for name in ["t", "nowhere", "bad name"] * REPEATS]
        for version in (4, 9, 12):
            answer = await client.request(MetadataRequest(topics=names, allow_auto_topic_creation=False), version)
            assert [(topic.name, topic.error_code) for topic in answer.topics] == [
                ("t", ErrorCode.NONE),
                ("nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ]
            assert len(answer.topics[0].partitions) == 50
        ids = [MetadataRequestTopic(name=None, topic_id=topic_id)] * REPEATS
        answer = await client.request(MetadataRequest(topics=ids, allow_auto_topic_creation=False), 12)
        assert [topic.name for topic in answer.topics] == ["t"]
        created = await client.request(MetadataRequest(topics=[MetadataRequestTopic(name="new")] * 3), 12)
        assert [topic.name for topic in created.topics] == ["new"], "one that is created by being asked for, too"

    run_cluster(
        scenario,
        auto_create_topics_enable="true",
        default_replication_factor="1",
        num_partitions="1",
        request_max_entries="1000000",
    )


def test_a_configuration_is_described_once() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        resources = [DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None)] * REPEATS
        answer = await client.request(DescribeConfigsRequest(resources=resources))
        (result,) = answer.results
        assert result.error_code == ErrorCode.NONE
        assert len(result.configs) > 10

    run_cluster(scenario, request_max_entries="1000000")
