"""Configuration that changes while brokers run: which values apply, and that no value stops a broker."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.runtime.config import BROKER_CONFIG
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.server.lifecycle.dynamic_config import DynamicConfig
from moldau_broker.server.lifecycle.log_tasks import known_log_configs
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import ConfigRecord, TopicRecord
from support.cluster.broker_cluster import CONTROLLER_PORT, batch, run_cluster

if TYPE_CHECKING:
    from support.cluster.broker_cluster import Client, Cluster

TOPIC, BROKER = 2, 4
LAG = {"log.cleaner.min.compaction.lag.ms": "60000"}


async def alter(client: Client, kind: int, name: str, **values: str) -> tuple[int, str | None]:
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    AlterableConfig(name=key.replace("_", "."), config_operation=0, value=value)
                    for key, value in values.items()
                ],
            )
        ]
    )
    response = (await client.request(request)).responses[0]
    return response.error_code, response.error_message


async def lift_limit_at_the_controller(cluster: Cluster) -> None:
    """Does what an admin client with ``bootstrap.controllers`` does (KIP-919)."""
    connection = await RpcConnection.open(cluster.client_environment, "c101", CONTROLLER_PORT, "test")
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=BROKER,
                resource_name="",
                configs=[AlterableConfig(name="max.connections", config_operation=1, value=None)],
            )
        ]
    )
    assert (await connection.request(request)).responses[0].error_code == ErrorCode.NONE
    connection.close()


async def described(client: Client, kind: int, name: str, key: str) -> tuple[str | None, int]:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=[key])
    (entry,) = (await client.request(DescribeConfigsRequest(resources=[resource]))).results[0].configs
    return entry.value, entry.config_source


async def works(cluster: Cluster, topic: str) -> None:
    """Checks that all brokers live, and that the topic accepts acks=all."""
    assert cluster.world.failures == []
    client = cluster.client(await cluster.leader(topic))
    answer = await client.produce(topic, batch(b"x"))
    assert answer.error_code == ErrorCode.NONE
    client.close()


def test_no_default_of_all_brokers_stops_them() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", replicas=2, max_compaction_lag_ms="1000")
        await works(cluster, "t")
        code, message = await alter(client, BROKER, "", log_flush_interval_ms="-1")
        assert (code, "log.flush.interval.ms" in str(message)) == (ErrorCode.INVALID_CONFIG, True)
        code, message = await alter(client, BROKER, "", log_cleaner_min_compaction_lag_ms="60000")
        assert (code, "topic 't'" in str(message)) == (ErrorCode.INVALID_CONFIG, True)
        assert (await alter(client, BROKER, "", log_retention_ms="7"))[0] == ErrorCode.NONE
        await works(cluster, "t")
        await cluster.stop(2)
        cluster.start_broker(2)
        await cluster.until(lambda: 2 in cluster.running)
        await works(cluster, "t")

    run_cluster(scenario, brokers=2)


def test_a_value_that_one_brokers_file_refuses_is_left_out_there(caplog: pytest.LogCaptureFixture) -> None:
    """Only the broker whose file does not allow a value leaves it out.

    The controller knows only its own file: this broker's file sets a lag that a topic's override contradicts.
    """
    caplog.set_level(logging.ERROR)

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("u", replicas=2)
        assert (await alter(client, TOPIC, "u", max_compaction_lag_ms="1000", retention_ms="77"))[0] == ErrorCode.NONE
        await client.create_topic("t", replicas=2, max_compaction_lag_ms="1000", min_insync_replicas="2")
        for topic in ("t", "u"):
            await works(cluster, topic)
            for broker_id in (1, 2):
                config = cluster.running[broker_id].context.logs.topic_config(topic)
                assert (config.min_compaction_lag_ms, config.max_compaction_lag_ms) == (60_000, (1 << 63) - 1)
        assert cluster.running[1].context.logs.topic_config("u").retention_ms == 77
        assert cluster.replica(1, "t").replica.effective_min_isr == 2
        text = caplog.text
        assert "topic-config-left-out" in text
        for part in ("topic=t", "topic=u", "key=max.compaction.lag.ms", "60000"):
            assert part in text
        await cluster.stop(2)
        cluster.start_broker(2)
        await cluster.until(lambda: 2 in cluster.running)
        await cluster.until(lambda: len(cluster.partition_image("t").isr) == 2)
        await works(cluster, "t")
        assert await described(cluster.client(2), TOPIC, "u", "max.compaction.lag.ms") == ("1000", 1)

    run_cluster(scenario, brokers=2, **LAG)


def test_limits_of_connections_apply_at_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        client, other = cluster.client(1), cluster.client(1)
        await client.request(MetadataRequest(topics=[]))
        code, _ = await alter(client, BROKER, "", max_connections_per_ip="1")
        assert code == ErrorCode.NONE
        await cluster.until(lambda: cluster.running[1].context.config.get_int("max.connections.per.ip") == 1)
        with pytest.raises((OSError, trio.TooSlowError)):
            await other.request(MetadataRequest(topics=[]), timeout_ms=1_000)
        assert (await alter(client, BROKER, "", max_connections_per_ip="100", max_connections="1"))[0] == 0
        await cluster.until(lambda: cluster.running[1].context.config.get_int("max.connections") == 1)
        other.close()
        with pytest.raises((OSError, trio.TooSlowError)):
            await other.request(MetadataRequest(topics=[]), timeout_ms=1_000)
        assert (await alter(client, BROKER, "", max_connections="100"))[0] == 0
        await cluster.until(lambda: cluster.running[1].context.config.get_int("max.connections") == 100)
        other.close()
        await other.request(MetadataRequest(topics=[]))
        await trio.sleep(1)
        code, _ = await alter(client, BROKER, "", max_connections="1")  # the other has been silent longer
        assert code == ErrorCode.NONE
        await trio.sleep(5)
        assert cluster.running[1].listening.servers()[0][1].statistics().connections == 1
        await client.request(MetadataRequest(topics=[]), timeout_ms=1_000)
        with pytest.raises((OSError, trio.TooSlowError)):
            await other.request(MetadataRequest(topics=[]), timeout_ms=1_000)
        await lift_limit_at_the_controller(cluster)
        await cluster.until(lambda: cluster.running[1].context.config.get_int("max.connections") > 1)
        await other.request(MetadataRequest(topics=[]))

    run_cluster(scenario)


def test_limits_that_were_set_before_a_start_apply_too() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        assert (await alter(client, BROKER, "", max_connections="3"))[0] == ErrorCode.NONE
        await cluster.stop(1)
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running)
        assert [server.limits.connections_max for _, server in cluster.running[1].listening.servers()] == [3]
        client.close()
        assert (await alter(client, BROKER, "1", listener_name_plaintext_max_connections="5"))[0] == ErrorCode.NONE
        ((_, server),) = cluster.running[1].listening.servers()
        await cluster.until(lambda: server.limits.listener_connections_max == 5)
        assert server.limits.connections_max == 3

    run_cluster(scenario)


def test_settings_of_the_log_apply_at_once() -> None:
    """As in Kafka, an operator slows the cleaner down, or keeps idle producers for longer, without a restart."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        logs = cluster.running[1].context.logs
        changed = {"log_cleaner_io_max_bytes_per_second": "5000000", "producer_id_expiration_ms": "3600000"}
        assert (await alter(client, BROKER, "", **changed))[0] == ErrorCode.NONE
        await cluster.until(lambda: logs.cleaner.settings.cleaner_io_max_bytes_per_second == 5_000_000)
        assert logs.settings.producer_id_expiration_ms == 3_600_000
        code, message = await alter(client, BROKER, "", log_cleaner_dedupe_buffer_size="1000")
        assert code == ErrorCode.INVALID_CONFIG
        assert "1048576" in (message or "")

    run_cluster(scenario)


def test_limits_of_replication_may_be_set_for_all_brokers() -> None:
    """As in Kafka; the limit of one broker goes before that of all."""
    keys = tuple(f"{side}.replication.throttled.rate" for side in ("leader", "follower"))
    keys += ("replica.alter.log.dirs.io.max.bytes.per.second",)

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        context = cluster.running[1].context

        def rates() -> list[int]:
            return [context.config.get_int(key) for key in keys]

        assert (await alter(client, BROKER, "", **dict.fromkeys(keys, "5000000")))[0] == ErrorCode.NONE
        await cluster.until(lambda: rates() == [5_000_000] * 3)
        assert (await alter(client, BROKER, "1", **{keys[1]: "7"}))[0] == ErrorCode.NONE
        await cluster.until(lambda: rates() == [5_000_000, 7, 5_000_000])

    run_cluster(scenario)


def test_verification_of_transactions_applies_at_once() -> None:
    """A changed verification of transactions applies at once, also to appends."""
    key = "transaction.partition.verification.enable"

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")

        async def append(sequence: int) -> int:
            records = batch(b"x", producer_id=77, producer_epoch=0, base_sequence=sequence, is_transactional=True)
            data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])
            request = ProduceRequest(transactional_id="tx", acks=-1, timeout_ms=5000, topic_data=[data])
            answer = await client.request(request, 11)
            return answer.responses[0].partition_responses[0].error_code

        assert await append(0) != ErrorCode.NONE, "the coordinator knows of no such transaction"
        for enabled in ("false", "true"):
            resource = {key.replace(".", "_"): enabled}
            assert (await alter(client, BROKER, "", **resource))[0] == ErrorCode.NONE
            wanted = enabled == "true"
            await cluster.until(lambda: cluster.running[1].context.config.get_bool(key) is wanted)  # noqa: B023
            if not wanted:
                assert await append(0) == ErrorCode.NONE
        await client.create_topic("u")
        records = batch(b"x", producer_id=78, producer_epoch=0, base_sequence=0, is_transactional=True)
        assert (await client.produce("u", records)).error_code != ErrorCode.NONE

    run_cluster(scenario)


STATIC = BROKER_CONFIG.parse(
    {
        "process.roles": "broker",
        "node.id": "1",
        "listeners": "PLAINTEXT://b1:9092",
        "controller.quorum.voters": "101@c:9093",
        "log.retention.ms": "5",
    }
)


def image_of(*values: tuple[int, str, str, str]) -> MetadataImage:
    """Returns an image with ``values``: resource type and name, key, value."""
    records = [
        ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value) for kind, name, key, value in values
    ]
    return MetadataImage(offset=0).apply(records, offset=1, epoch=1).image


def test_a_bad_value_is_left_out_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    dynamic = DynamicConfig(STATIC, 1, EventLogger("moldau.broker", node=1))
    bad = {
        "max.connection.creation.rate": "-100",
        "max.connections.per.ip.overrides": "localhost:5",
        "log.segment.bytes": "many",
        "no.such.key": "1",
        "node.id": "7",
        "log.flush.interval.ms": "-1",
    }
    image = image_of(
        *((BROKER, "", key, value) for key, value in bad.items()),
        (BROKER, "", "min.insync.replicas", "2"),
        (BROKER, "", "log.retention.ms", "6"),
        (BROKER, "1", "log.retention.ms", "x"),
        (BROKER, "1", "message.max.bytes", "9"),
        (BROKER, "2", "message.max.bytes", "10"),
    )
    config = dynamic.follow(image)
    assert config is dynamic.config
    assert (config.get_int("min.insync.replicas"), config.get_int("message.max.bytes")) == (2, 9)
    assert config.get_int("log.retention.ms") == 6, "what lies below a bad value applies"
    assert config.get_int("node.id") == 1
    assert set(dynamic.left_out) == {("", key) for key in bad} | {("1", "log.retention.ms")}
    for key in bad:
        assert f"key={key}" in caplog.text
    caplog.clear()
    dynamic.follow(image)
    assert caplog.text == "", "it is said once"
    assert dynamic.follow(image_of()) == STATIC
    assert dynamic.left_out == {}


def test_a_topic_keeps_the_old_value_of_an_unusable_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    dynamic = DynamicConfig(STATIC, 1, EventLogger("moldau.broker", node=1))
    fine = dynamic.topic_settings("t", {"retention.ms": "1000", "flush.ms": "10"})
    assert (fine.log.retention_ms, fine.log.flush_ms) == (1000, 10)
    assert caplog.text == ""
    then = dynamic.topic_settings("t", {"retention.ms": "2000", "flush.ms": "-1", "min.insync.replicas": "2"})
    assert (then.log.retention_ms, then.log.flush_ms, then.min_insync_replicas) == (2000, 10, 2)
    assert "topic=t" in caplog.text
    assert "key=flush.ms" in caplog.text
    fresh = dynamic.topic_settings("u", {"retention.ms": "-7", "cleanup.policy": "compact"})
    assert (fresh.log.retention_ms, fresh.log.compact) == (5, True), "what the file says, where there was nothing"
    lags = {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}
    both = dynamic.topic_settings("u", {**lags, "flush.ms": "-1", "segment.ms": "7"})
    assert both.log.min_compaction_lag_ms <= both.log.max_compaction_lag_ms
    assert both.log.segment_ms == 7
    dynamic.forget(["t"])
    assert dynamic.topic_settings("t", {"flush.ms": "-1"}).log.flush_ms == (1 << 63) - 1


def test_logs_are_loaded_with_the_values_that_can_be_used() -> None:
    image = image_of(
        (BROKER, "", "log.segment.bytes", "5000"),
        (BROKER, "", "max.connection.creation.rate", "100"),
        (TOPIC, "t", "flush.ms", "-1"),
        (TOPIC, "t", "retention.ms", "1000"),
    )
    image = image.apply([TopicRecord(topic_id=UUID(int=7), name="t")], offset=2, epoch=1).image
    default, topics = known_log_configs(STATIC, image, 1)
    assert (default.segment_bytes, default.retention_ms) == (5000, 5)
    assert (topics["t"].segment_bytes, topics["t"].retention_ms) == (5000, 1000)


def test_topics_follow_the_defaults_of_their_broker() -> None:
    """Their settings are kept; a topic without a value of its own has that of the broker, and loses it again."""
    broker = DynamicConfig(STATIC, 1, EventLogger("moldau.broker", node=1))
    image = MetadataImage()
    key = "min.insync.replicas"
    for offset, value in enumerate(("2", "3", None, "2")):
        default = ConfigRecord(resource_type=BROKER, resource_name="", name=key, value=value)
        image = image.apply([default], offset=offset, epoch=0).image
        broker.follow(image)
        for overrides in ({}, {key: "4"}, {"retention.ms": "1000"}, {}):
            for _ in range(2):
                settings = broker.topic_settings("t", overrides)
                assert settings.min_insync_replicas == int(overrides.get(key, value or STATIC.get_int(key)))
                assert (settings.log.retention_ms == 1_000) is ("retention.ms" in overrides)
