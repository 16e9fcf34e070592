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


def test_one_id_makes_metadata_a_question_by_ids() -> None:
    """As by Kafka: a name beside an id, or an entry without one, does not count, and old versions know no ids."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        for name in ("a", "b"):
            await client.create_topic(name)
        ids = {name: cluster.image().topics_by_name[name].topic_id for name in ("a", "b")}
        beside = [MetadataRequestTopic(name="b", topic_id=ids["a"])]
        apart = [MetadataRequestTopic(name=None, topic_id=ids["a"]), MetadataRequestTopic(name="b")]
        for topics in (beside, apart):
            for version, found in ((10, None), (11, None), (12, "a"), (13, "a")):
                answer = await client.request(MetadataRequest(topics=topics), version)
                if found is None:
                    assert {topic.error_code for topic in answer.topics} == {ErrorCode.INVALID_REQUEST}
                else:
                    assert [(topic.name, topic.topic_id) for topic in answer.topics] == [(found, ids[found])]

    run_cluster(scenario)


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
