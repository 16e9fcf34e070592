"""A cluster with tiered storage: its settings, records that fill segments, and views of what the store has."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from moldau_broker.remote_log.core.names import AUXILIARY, LOG, RemoteSegment, partition_folder, segments_of
from moldau_jepsen.world.objects import ObjectTrouble
from support.cluster.broker_cluster import batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau_broker.remote_log.core.names import Listing
    from moldau_jepsen.world.objects import ObjectLife, SimulatedStore
    from support.cluster.broker_cluster import Client, Cluster

DELAY_MS = 20_000
"""``remote.log.unfinished.delete.delay.ms``."""
INTERVAL_MS = 500
TIERED: dict[str, Any] = {
    "remote_log_storage_system_enable": "true",
    "remote_log_storage_url": "s3://bucket/prefix",
    "remote_log_manager_task_interval_ms": str(INTERVAL_MS),
    "remote_log_manager_task_retry_backoff_max_ms": "2000",
    "remote_log_unfinished_delete_delay_ms": str(DELAY_MS),
    "log_retention_check_interval_ms": "500",
    "log_initial_task_delay_ms": "0",
    "log_segment_delete_delay_ms": "0",
}
TOPIC: dict[str, str] = {"remote_storage_enable": "true", "segment_bytes": "1024"}
"""One record of ``fill`` fills a segment."""


async def created(cluster: Cluster, topic: str, *, replicas: int = 1, **configs: str) -> int:
    """Creates a tiered topic with one partition; returns its leader, when all replicas have their logs."""
    settings: dict[str, Any] = {**TOPIC, **configs}
    await cluster.client(cluster.broker_ids[0]).create_topic(topic, replicas=replicas, **settings)
    leader = await cluster.leader(topic)
    holders = cluster.partition_image(topic).replicas
    await cluster.until(lambda: all(cluster.replica(holder, topic) is not None for holder in holders))
    return leader


@contextmanager
def store_away(cluster: Cluster, *machines: str) -> Iterator[None]:
    """The store answers no machine, or none of these, within the block."""
    trouble = ObjectTrouble(on_effect=lambda: None, machines=machines or None, is_away=True)
    objects(cluster).profile.begin(trouble)
    try:
        yield
    finally:
        objects(cluster).profile.end(trouble)


async def fill(cluster: Cluster, client: Client, topic: str, count: int, *, partition: int = 0) -> list[bytes]:
    """Appends records with the present time, each of which fills a segment; returns their values."""
    values = [f"{number:06d}".encode() * 110 for number in range(count)]
    now_ms = cluster.client_environment.clock.wall_ms()
    answer = await client.produce(topic, *(batch(value, timestamp=now_ms) for value in values), partition=partition)
    assert answer.error_code == ErrorCode.NONE
    return values


async def delete_records(client: Client, topic: str, offset: int) -> None:
    """Deletes the records below an offset."""
    wanted = DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
    answer = await client.request(DeleteRecordsRequest(topics=[wanted], timeout_ms=5000))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE


async def patiently(cluster: Cluster, condition: Callable[[], object], *, timeout_ms: float) -> None:
    """Waits for a condition that takes long, and looks at it less often than ``Cluster.until``."""
    with trio.fail_after(timeout_ms / 1000):
        await cluster.world.agenda.wait_until(condition, every_seconds=0.5)


def objects(cluster: Cluster) -> SimulatedStore:
    return cluster.world.objects


def listing(cluster: Cluster, topic: str, partition: int = 0) -> Listing:
    """Returns what the store has of a partition now."""
    topic_id = cluster.image().topics_by_name[topic].topic_id
    prefix = partition_folder(cluster.image().cluster_id, topic_id, partition)
    return segments_of(objects(cluster).list("test", prefix, ""))


def lives(cluster: Cluster) -> list[ObjectLife]:
    """Returns all objects that were ever written, without those by which brokers try the store."""
    return [life for life in objects(cluster).lives if "/probe/" not in life.name]


def copied(cluster: Cluster, topic: str, partition: int = 0) -> list[int]:
    """Returns the base offsets of the segments in the store."""
    return [segment.base_offset for segment in listing(cluster, topic, partition).segments]


def log_of(cluster: Cluster, broker_id: int, topic: str, partition: int = 0) -> Any:
    return cluster.replica(broker_id, topic, partition).log


def put_segment(cluster: Cluster, topic: str, base: int, last: int, *, epoch: int = 0, only: str = "") -> None:
    """Puts a segment into the store, or one of its two objects, as another leader would."""
    topic_id = cluster.image().topics_by_name[topic].topic_id
    folder = partition_folder(cluster.image().cluster_id, topic_id, 0)
    segment = RemoteSegment(base, last, epoch, cluster.client_environment.clock.wall_ms(), False, UUID(int=base + 1), 9)
    for suffix in (only,) if only else (AUXILIARY, LOG):
        objects(cluster).put("test", f"{folder}{segment.name}{suffix}", b"x" * 9)
