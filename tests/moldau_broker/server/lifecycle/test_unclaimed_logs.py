"""Goal: no record is dropped from a log before its replica has claimed the log, however long the start takes.

The settings of its own topic decide about a record. Method: brokers on virtual time, restarted while their controller
is down, for longer than Kafka's delay before the first retention.
"""

from __future__ import annotations

import uuid

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.records import encode_batch
from moldau.runtime.config import BROKER_CONFIG
from moldau_broker.server.lifecycle.log_tasks import known_log_configs
from moldau_quorum.metadata.image import RESOURCE_BROKER, RESOURCE_TOPIC, MetadataImage, TopicImage
from moldau_quorum.metadata.persistent_map import PersistentMap
from support.cluster.broker_cluster import Cluster, batch, run_cluster
from support.cluster.directory_stories import read_all

OFFLINE_SECONDS = 300.0


async def restart_slowly(cluster: Cluster) -> None:
    """Restarts the broker, which finds its logs, but for minutes no controller to register with."""
    disk = cluster.world.node("b1").disk
    await cluster.stop(1)
    usual, disk.profile.offload_delay_min = disk.profile.offload_delay_min, 20.0
    cluster.start_broker(1)
    await trio.sleep(10)  # it has the metadata, and recovers its logs
    disk.profile.offload_delay_min = usual
    cluster.world.node("c101").kill()
    await trio.sleep(OFFLINE_SECONDS)
    assert 1 not in cluster.running, "it should wait for the controllers"
    cluster.start_controller(101)
    await cluster.until(lambda: 1 in cluster.running, timeout_ms=60_000)
    assert await cluster.leader("t") == 1


async def write_long_ago(cluster: Cluster, topic: str, **configs: str) -> list[bytes]:
    """Creates a topic with some closed segments of old records with one key."""
    client = cluster.client(1)
    await client.create_topic(topic, segment_bytes="1024", **configs)
    values = [b"%d" % number + bytes(300) for number in range(20)]
    for value in values:
        answer = await client.produce(topic, encode_batch([(1_000, b"key", value, ())]))
        assert answer.error_code == ErrorCode.NONE
    client.close()
    assert cluster.replica(1, topic).log.storage.segments.count > 3
    return values


SETTINGS = {
    "initial_broker_registration_timeout_ms": "600000",
    "log_segment_delete_delay_ms": "1000",
    "log_retention_check_interval_ms": "1000",
    "log_cleaner_backoff_ms": "1000",
    "log_cleaner_min_cleanable_ratio": "0",
    "log_dir_sync_timeout_ms": "0",  # disks that take many seconds are a means here, not the subject
}


@pytest.mark.parametrize("configs", [{"cleanup_policy": "compact"}, {"retention_ms": "-1"}])
def test_old_records_that_their_topic_keeps_outlive_a_slow_start(configs: dict[str, str]) -> None:
    """Old records outlive a slow start if their topic keeps them.

    The broker's default retention dropped them before the topic's configuration was known.
    """

    async def scenario(cluster: Cluster) -> None:
        values = await write_long_ago(cluster, "t", min_cleanable_dirty_ratio="1", **configs)
        await restart_slowly(cluster)
        await trio.sleep(60)
        log = cluster.replica(1, "t").log
        assert (log.log_start_offset, log.log_end_offset) == (0, len(values))
        assert list(await read_all(cluster, "t", 0)) == values

    run_cluster(scenario, **SETTINGS)


def test_the_brokers_default_compacts_no_topic_that_only_deletes() -> None:
    """A topic whose policy is only "delete" is not compacted by the default of the broker."""

    async def scenario(cluster: Cluster) -> None:
        values = await write_long_ago(cluster, "t", cleanup_policy="delete", retention_ms="-1")
        await restart_slowly(cluster)
        await trio.sleep(60)
        assert list(await read_all(cluster, "t", 0)) == values
        assert cluster.running[1].context.logs.cleaner.statistics().cleanings == 0

    run_cluster(scenario, log_cleanup_policy="compact", **SETTINGS)


def test_retention_and_cleaner_run_once_the_logs_are_claimed() -> None:
    """Retention and the cleaner run once the logs are claimed."""

    async def scenario(cluster: Cluster) -> None:
        await write_long_ago(cluster, "t")
        await write_long_ago(cluster, "compacted", cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        full_bytes = cluster.replica(1, "compacted").log.size_bytes
        await restart_slowly(cluster)
        assert cluster.replica(1, "compacted").log.size_bytes == full_bytes
        await trio.sleep(60)
        assert cluster.replica(1, "t").log.log_start_offset > 0
        assert cluster.replica(1, "compacted").log.size_bytes < full_bytes / 2
        assert cluster.running[1].context.logs.cleaner.statistics().cleanings > 0

    run_cluster(scenario, **SETTINGS)


@pytest.mark.parametrize("slow_registration", [True, False])
def test_unsynced_records_of_a_killed_process_are_not_settled(
    slow_registration: bool,
) -> None:
    """Records that a killed process left unsynced do not count as settled if their topic has a flush policy.

    The log was loaded with the broker's default, which counts all of it as settled.
    """

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", flush_messages="1")
        profile = cluster.world.node("b1").disk.profile
        profile.offload_delay_min = 30.0
        connection = await client.connection()
        await client.produce("t", batch(b"a"), timeout_ms=100)
        assert cluster.replica(1, "t").log.log_end_offset == 1
        assert connection.is_open
        cluster.kill(1)
        profile.offload_delay_min = 1.0
        cluster.start_broker(1)
        await trio.sleep(0.5)
        if slow_registration:
            cluster.world.node("c101").kill()
            await trio.sleep(0.9)
            cluster.start_controller(101)
        profile.offload_delay_min = 20.0
        await cluster.until(lambda: 1 in cluster.running, timeout_ms=60_000)
        log = cluster.replica(1, "t").log
        assert (log.recovery_point, log.settled_end_offset, log.log_end_offset) == (0, 0, 1)
        assert (await cluster.client(1).fetch("t")).high_watermark == 0
        await cluster.until(lambda: log.settled_end_offset == 1, timeout_ms=60_000)
        assert log.recovery_point == 1

    run_cluster(scenario, **SETTINGS)


def persistent(values):
    editor = PersistentMap().edit()
    for key, value in values.items():
        editor.set(key, value)
    return editor.finish()


def test_only_the_unusable_value_is_left_out_at_loading() -> None:
    """When logs are loaded, only the unusable value of a topic is left out."""
    given = {
        "process.roles": "broker",
        "node.id": "1",
        "listeners": "PLAINTEXT://b1:9092",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": "101@c101:9093",
        "log.dirs": "/data",
        "log.retention.ms": "5",
    }
    broker = {"log.flush.interval.messages": "7", "log.segment.bytes": "few"}
    topic = {"cleanup.policy": "compact", "retention.ms": "long"}
    topics = {name: TopicImage(name=name, topic_id=uuid.UUID(int=1), partitions=persistent({})) for name in ("t", "u")}
    configs = {(RESOURCE_BROKER, ""): broker, (RESOURCE_TOPIC, "t"): topic}
    image = MetadataImage(topics_by_name=persistent(topics), configs=persistent(configs))
    default, by_topic = known_log_configs(BROKER_CONFIG.parse(given), image, 1)
    assert (default.flush_messages, default.retention_ms, default.compact) == (7, 5, False)
    assert list(by_topic) == ["t"]
    assert (by_topic["t"].flush_messages, by_topic["t"].retention_ms, by_topic["t"].compact) == (7, 5, True)
