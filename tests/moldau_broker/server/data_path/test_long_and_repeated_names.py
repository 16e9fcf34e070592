"""Goal: names in a request cannot end other clients' connections, and repeated names are answered once.

Method: whole brokers on virtual time; names as long as the protocol allows, of characters that error texts show by four
each, sent over one connection that must still serve afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau_broker.server.cluster_metadata.topic_creation import CREATIONS_MAX
from support.cluster.broker_cluster import run_cluster

if TYPE_CHECKING:
    from support.cluster.broker_cluster import Cluster

TOPIC, BROKER = 2, 4
LONG_NAME = "\x01" * 32_767


def alteration(name: str, key: str) -> IncrementalAlterConfigsRequest:
    config = AlterableConfig(name=key, config_operation=0, value="1")
    resource = AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[config])
    return IncrementalAlterConfigsRequest(resources=[resource])


@pytest.mark.parametrize(
    ("request_", "part"),
    [
        (
            CreateTopicsRequest(topics=[CreatableTopic(name=LONG_NAME, num_partitions=1, replication_factor=1)]),
            "topics",
        ),
        (alteration(LONG_NAME, "retention.ms"), "responses"),
        (alteration("t", LONG_NAME), "responses"),
        (
            DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=TOPIC, resource_name=LONG_NAME)]),
            "results",
        ),
        (
            DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=BROKER, resource_name=LONG_NAME)]),
            "results",
        ),
        (DescribeGroupsRequest(groups=[LONG_NAME]), "groups"),
    ],
    ids=["create", "alter-resource", "alter-key", "describe-topic", "describe-broker", "describe-group"],
)
def test_a_long_name_is_refused_over_a_connection_that_lives_on(request_, part: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        controller = cluster.running[1].context.controller
        shared = await controller._connected()
        connection = await client.connection()
        (entry,) = getattr(await client.request(request_), part)
        assert entry.error_code != ErrorCode.NONE or part == "groups", "a group that does not exist is dead"
        assert connection.is_open
        assert shared.is_open, "the connection that all forwarded requests share"

    run_cluster(scenario)


def test_a_topic_named_twice_is_created_and_answered_once() -> None:
    """A creation that was named twice failed inside and stayed in progress for ever."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        for number in range(3):
            names = [f"t{number}", "same", f"t{number}", "same"]
            request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
            answer = await client.request(request)
            assert [topic.name for topic in answer.topics] == [f"t{number}", "same"]
            assert {topic.error_code for topic in answer.topics} <= {ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE}
        creation = cluster.running[1].context.topic_creation
        assert creation.under_way == 0
        found = await creation.ensure(["u", "u"], partitions=1, replication_factor=1, configs={})
        assert found == {}
        many = [f"x{n // 2}" for n in range(2 * CREATIONS_MAX)]
        assert await creation.ensure(many, partitions=1, replication_factor=1, configs={}) == {}
        assert creation.under_way == 0

    run_cluster(scenario, auto_create_topics_enable="true")


def test_a_repeated_resource_is_described_once() -> None:
    """One broker named a thousand times in 16 KB made an answer of 57 MB."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t")
        resources = [
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name, keys in ((BROKER, "1", None), (TOPIC, "t", None), (TOPIC, "t", ["retention.ms"]))
            for _ in range(500)
        ]
        answer = await cluster.client(1).request(DescribeConfigsRequest(resources=resources))
        assert [(entry.resource_type, entry.resource_name) for entry in answer.results] == [(BROKER, "1"), (TOPIC, "t")]
        assert len(answer.results[1].configs) > 20

    run_cluster(scenario)
