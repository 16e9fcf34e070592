"""Goal: a follower copies no record that is remote already, and knows epochs and producers all the same (KIP-405).

Method: whole brokers in virtual time. A replica is added, or returns after its leader's local log has gone on; then it
leads, and must serve all records and know which batches of a producer it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau_broker.replication.follower import FollowState
from support.cluster.broker_cluster import batch, run_cluster, values_of
from support.objects.tiered import TIERED, created, fill, log_of, objects, store_away

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.cluster.broker_cluster import Client, Cluster

RECORDS = 12
LOCAL = {"local_retention_bytes": "2000"}


def on_brokers(test: Callable[[Cluster], Awaitable[None]], brokers: int = 2, **settings: Any) -> None:
    run_cluster(test, brokers=brokers, **TIERED, **settings)


async def reassign(cluster: Cluster, topic: str, *replicas: int) -> None:
    wanted = ReassignablePartition(partition_index=0, replicas=list(replicas))
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=[wanted])])
    answer = await cluster.client(1).request(request)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE


async def until_in_sync(cluster: Cluster, topic: str, *replicas: int) -> None:
    await cluster.until(lambda: set(cluster.partition_image(topic).isr) == set(replicas), timeout_ms=120_000)


async def until_tiered(cluster: Cluster, broker_id: int, topic: str = "t", start: int = RECORDS - 4) -> None:
    await cluster.until(lambda: log_of(cluster, broker_id, topic).local_log_start_offset >= start)


async def read_all(client: Client, topic: str, end: int) -> list[bytes]:
    found: list[bytes] = []
    for _ in range(5 * end):
        part = await client.fetch(topic, len(found), max_wait_ms=500)
        assert part.error_code == ErrorCode.NONE, ErrorCode.of(part.error_code)
        found += values_of(part.records)
        if len(found) == end:
            return found
    raise AssertionError(f"only {len(found)} records")


def followed(cluster: Cluster, broker_id: int, topic: str = "t") -> Any:
    """Returns the state in which a broker follows a partition."""
    replica = cluster.replica(broker_id, topic)
    fetchers = cluster.running[broker_id].context.replicas._following
    source = fetchers._sources[fetchers._source_of[replica.key]]
    return source.core.partition(replica.key)


def test_a_new_replica_begins_behind_remote_segments_and_leads() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await created(cluster, "t", **LOCAL)
        other = 3 - leader
        client = cluster.client(leader)
        now_ms = cluster.client_environment.clock.wall_ms()
        for number in range(3):
            records = batch(b"p" * 700, timestamp=now_ms, producer_id=60, producer_epoch=0, base_sequence=number)
            assert (await client.produce("t", records)).error_code == ErrorCode.NONE
        values = [b"p" * 700] * 3 + await fill(cluster, client, "t", RECORDS - 3)
        await until_tiered(cluster, leader)
        theirs = log_of(cluster, leader, "t")
        before = theirs.local_log_start_offset
        await reassign(cluster, "t", leader, other)
        await until_in_sync(cluster, "t", leader, other)
        log = log_of(cluster, other, "t")
        assert log.log_start_offset == theirs.log_start_offset == 0
        assert before <= log.segments[0].base_offset
        assert cluster.replica(other, "t").traffic.replication_bytes_in < 4 * 800
        assert list(log.epochs.entries) == list(theirs.epochs.entries)
        cluster.kill(leader)
        assert await cluster.leader("t", other_than=leader) == other
        client = cluster.client(other)
        assert await read_all(client, "t", RECORDS) == values
        again = await client.produce("t", batch(b"p" * 700, producer_id=60, producer_epoch=0, base_sequence=2))
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 2), "a duplicate"
        gap = await client.produce("t", batch(b"p", producer_id=60, producer_epoch=0, base_sequence=5))
        assert ErrorCode.of(gap.error_code) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    on_brokers(scenario, min_insync_replicas="1")


def test_a_store_that_is_away_delays_one_replica_and_no_other() -> None:
    """The new replica tries again with growing pauses; other partitions of the same leader are copied meanwhile."""

    async def scenario(cluster: Cluster) -> None:
        leader = await created(cluster, "t", **LOCAL)
        other = 3 - leader
        values = await fill(cluster, cluster.client(leader), "t", RECORDS)
        await until_tiered(cluster, leader)
        await cluster.client(1).create_topic("u", replicas=2)
        first = await cluster.leader("u")
        with store_away(cluster, f"b{other}"):
            await reassign(cluster, "t", leader, other)
            await cluster.until(lambda: cluster.replica(other, "t") is not None)
            await cluster.until(lambda: followed(cluster, other).failures > 1, timeout_ms=60_000)
            for _ in range(5):
                assert (await cluster.client(first).produce("u", batch(b"v"))).error_code == ErrorCode.NONE
            assert set(cluster.partition_image("u").isr) == {1, 2}
            assert cluster.partition_image("t").isr == (leader,)
            assert log_of(cluster, other, "t").log_end_offset == 0
            traffic = cluster.replica(other, "t").traffic
            assert traffic.remote_start_requests >= traffic.remote_start_errors >= 2
        await until_in_sync(cluster, "t", leader, other)
        assert await read_all(cluster.client(leader), "t", RECORDS) == values

    on_brokers(scenario)


def test_a_replica_that_was_away_for_long_starts_over() -> None:
    """Its records are remote already; copying them from there would need as long as the leader has written."""

    async def scenario(cluster: Cluster) -> None:
        leader = await created(cluster, "t", replicas=2, min_insync_replicas="1", **LOCAL)
        other = 3 - leader
        client = cluster.client(leader)
        values = await fill(cluster, client, "t", 3)
        await until_in_sync(cluster, "t", 1, 2)
        await cluster.stop(other)
        values += await fill(cluster, client, "t", RECORDS)
        await until_tiered(cluster, leader)
        cluster.start_broker(other)
        await cluster.until(lambda: other in cluster.running)
        await until_in_sync(cluster, "t", leader, other)
        log = log_of(cluster, other, "t")
        assert log.log_start_offset == 0
        assert log.segments[0].base_offset >= RECORDS - 4
        cluster.kill(leader)
        assert await cluster.leader("t", other_than=leader) == other
        assert await read_all(cluster.client(other), "t", RECORDS + 3) == values

    on_brokers(scenario)


def test_a_replica_that_restarts_while_it_begins_tries_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await created(cluster, "t", **LOCAL)
        other = 3 - leader
        await fill(cluster, cluster.client(leader), "t", RECORDS)
        await until_tiered(cluster, leader)
        objects(cluster).profile.delay_min = 2.0
        await reassign(cluster, "t", leader, other)
        await cluster.until(
            lambda: cluster.replica(other, "t") is not None and followed(cluster, other).state is FollowState.RESTORING
        )
        cluster.kill(other)
        await trio.sleep(1)
        cluster.start_broker(other)
        await cluster.until(lambda: other in cluster.running)
        await until_in_sync(cluster, "t", leader, other)
        assert log_of(cluster, other, "t").segments[0].base_offset >= RECORDS - 4

    on_brokers(scenario)


def test_a_leader_that_dies_meanwhile_is_replaced() -> None:
    """The start of the log belongs to a leader epoch that has ended; the next one begins with a new question."""

    async def scenario(cluster: Cluster) -> None:
        leader = await created(cluster, "t", replicas=2, min_insync_replicas="1", **LOCAL)
        (second,) = set(cluster.partition_image("t").replicas) - {leader}
        (third,) = {1, 2, 3} - {leader, second}
        values = await fill(cluster, cluster.client(leader), "t", RECORDS)
        await until_tiered(cluster, leader)
        await until_tiered(cluster, second)
        objects(cluster).profile.delay_min = 3.0
        await reassign(cluster, "t", leader, second, third)
        await cluster.until(
            lambda: cluster.replica(third, "t") is not None and followed(cluster, third).state is FollowState.RESTORING
        )
        cluster.kill(leader)
        await cluster.leader("t", other_than=leader)
        objects(cluster).profile.delay_min = 0.005
        await cluster.until(lambda: third in cluster.partition_image("t").isr, timeout_ms=120_000)
        assert await read_all(cluster.client(second), "t", RECORDS) == values

    on_brokers(scenario, 3)
