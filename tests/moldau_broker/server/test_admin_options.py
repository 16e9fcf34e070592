"""Goal: options of Kafka's admin calls do here what they do there. Method: our admin client against whole brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest
import trio

from moldau import Admin, Consumer, Producer, ShareConsumer
from moldau.admin import AdminError, ConfigAlteration, ConfigResource, NewTopic, ResourceType
from moldau.cluster.committed import CommittedOffset
from moldau.protocol.errors import ErrorCode
from support.cluster.broker_cluster import run_cluster
from support.coordinator.streams_member import Member
from support.coordinator.streams_world import GROUP as STREAMS_GROUP

if TYPE_CHECKING:
    from support.cluster.broker_cluster import Cluster

BOOTSTRAP = {"bootstrap.servers": "b1:9092"}
TOPIC = ("READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
GROUP = ("READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")


def test_options_of_topics() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with Admin(BOOTSTRAP, environment=cluster.client_environment) as admin:
            first, second = await admin.create_topics([NewTopic("a", 1, 1), NewTopic("b", 1, 1)])
            by_id = await admin.describe_topics([first.topic_id, "b"], include_authorized_operations=True)
            assert {name: topic.authorized_operations for name, topic in by_id.items()} == {"a": TOPIC, "b": TOPIC}
            assert (await admin.describe_topics(["a"]))["a"].authorized_operations is None
            assert list(await admin.describe_topics([first.topic_id, "a"])) == ["a"], "one topic by both"
            cluster_now = await admin.describe_cluster(include_authorized_operations=True)
            assert "CLUSTER_ACTION" in (cluster_now.authorized_operations or ())
            assert (await admin.describe_cluster()).authorized_operations is None

            await admin.create_partitions({"a": 3}, validate_only=True)
            with pytest.raises(AdminError):
                await admin.create_partitions({"a": 1}, validate_only=True)
            assert len((await admin.describe_topics(["a"]))["a"].partitions) == 1

            with pytest.raises(AdminError) as refused:
                await admin.alter_partition_reassignments({("a", 0): [1, 2]}, allow_replication_factor_change=False)
            assert refused.value.failures["a-0"].code is ErrorCode.INVALID_REPLICATION_FACTOR
            await admin.alter_partition_reassignments({("a", 0): [1, 2]})

            unknown = UUID(int=12345)
            with pytest.raises(AdminError) as partly:
                await admin.delete_topics([second.topic_id, unknown])
            assert partly.value.failures[str(unknown)].code is ErrorCode.UNKNOWN_TOPIC_ID
            with pytest.raises(AdminError) as missing:
                await admin.describe_topics([unknown])
            assert missing.value.failures[str(unknown)].code is ErrorCode.UNKNOWN_TOPIC_ID
            assert [topic.name for topic in await admin.list_topics()] == ["a"]
            with pytest.raises(TypeError, match="list of str"):
                await admin.delete_topics("a")

    run_cluster(scenario, brokers=2)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_options_of_groups(protocol: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        environment = cluster.client_environment
        async with Admin(BOOTSTRAP, environment=environment) as admin:
            await admin.create_topics([NewTopic("a", 1, 1)])
            async with Producer(BOOTSTRAP, environment=environment) as producer:
                await producer.send("a", b"value")
            given = {**BOOTSTRAP, "group.id": "g", "group.protocol": protocol, "auto.offset.reset": "earliest"}
            async with Consumer(given, environment=environment) as consumer:
                consumer.subscribe(["a"])
                while not await consumer.poll(1_000):
                    pass
                found = await admin.describe_groups(["g"], include_authorized_operations=True)
                assert (found["g"].type, found["g"].authorized_operations) == (protocol, GROUP)
                assert (await admin.describe_groups(["g"]))["g"].authorized_operations is None
            stored = CommittedOffset(offset=0, leader_epoch=0, metadata="by hand")
            await admin.alter_group_offsets("g", {("a", 0): stored})
            assert await admin.list_group_offsets("g") == {("a", 0): stored}

    run_cluster(scenario)


def test_offsets_with_their_own_retention_outlast_others() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with Admin(BOOTSTRAP, environment=cluster.client_environment) as admin:
            await admin.create_topics([NewTopic("a", 1, 1)])
            await admin.alter_group_offsets("usual", {("a", 0): 1})
            await admin.alter_group_offsets("kept", {("a", 0): 2}, retention_ms=600_000)
            await trio.sleep(90)
            assert await admin.list_group_offsets("usual") == {}
            assert {at.offset for at in (await admin.list_group_offsets("kept")).values()} == {2}

    run_cluster(scenario, **{"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "5000"})


def test_operations_on_share_and_streams_groups() -> None:
    """Their descriptions name what the client may do with them, if it asks."""

    async def scenario(cluster: Cluster) -> None:
        environment = cluster.client_environment
        async with Admin(BOOTSTRAP, environment=environment) as admin:
            await admin.create_topics([NewTopic("t", 1, 1)])
            async with ShareConsumer({**BOOTSTRAP, "group.id": "shared"}, environment=environment) as consumer:
                consumer.subscribe(["t"])
                await consumer.poll(500)
                asked = await admin.describe_share_groups(["shared"], include_authorized_operations=True)
                assert asked["shared"].authorized_operations == GROUP
                assert (await admin.describe_share_groups(["shared"]))["shared"].authorized_operations is None
            member = Member(cluster, "m")
            await member.beat()
            streams = await admin.describe_streams_groups([STREAMS_GROUP], include_authorized_operations=True)
            assert streams[STREAMS_GROUP].authorized_operations == GROUP
            unasked = await admin.describe_streams_groups([STREAMS_GROUP])
            assert unasked[STREAMS_GROUP].authorized_operations is None

    run_cluster(scenario)


def test_the_configuration_of_a_broker_goes_to_that_broker() -> None:
    """Only the broker itself can check a value against its file: Kafka's refuse those of others, and so does this key.

    Another broker forwards the other values of a broker that is down.
    """

    async def scenario(cluster: Cluster) -> None:
        async with Admin(BOOTSTRAP, environment=cluster.client_environment) as admin:

            async def alter(key: str, value: str) -> None:
                change = ConfigAlteration(name=key, value=value)
                await admin.alter_configs({ConfigResource(type=ResourceType.BROKER, name="2"): [change]})

            await alter("cordoned.log.dirs", "/data")
            await cluster.until(lambda: not cluster.image().brokers[2].takes_replicas)
            await cluster.stop(2)
            await cluster.until(lambda: cluster.image().brokers[2].fenced)
            await alter("max.connections.per.ip", "50")
            with pytest.raises(AdminError) as refused:
                await alter("cordoned.log.dirs", "/data")
            assert "ask broker 2 to cordon its log directories" in str(refused.value.failures["2"])
            await alter("cordoned.log.dirs", "")
            assert dict(cluster.image().config(4, "2")) == {"cordoned.log.dirs": "", "max.connections.per.ip": "50"}

    run_cluster(scenario, brokers=2)
