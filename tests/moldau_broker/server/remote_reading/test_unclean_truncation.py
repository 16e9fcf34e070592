"""Goal: a follower whose log is cut below its local log start offset knows the producers of the records that are left.

Method: whole brokers in virtual time. The follower's records above the cut are lost by an unclean election, and those
below it are in the store only. Then it leads, and producers send what they have sent before.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.replication.follower import FollowState
from moldau_broker.server.replicas.leader_producers import RESTORE_MS_MAX
from support.cluster.broker_cluster import batch, run_cluster
from support.objects.tiered import TIERED, created, fill, log_of, store_away

if TYPE_CHECKING:
    from support.cluster.broker_cluster import Client, Cluster

PRODUCER = 60
COMMON = 5
"""Records that both replicas have."""


def sent(cluster: Cluster, sequence: int, *, is_transactional: bool = False) -> bytes:
    now_ms = cluster.client_environment.clock.wall_ms()
    fields: dict[str, Any] = {"is_transactional": True} if is_transactional else {}
    return batch(b"p" * 700, timestamp=now_ms, producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence, **fields)


def failed_twice(traffic: Any) -> bool:
    return bool(traffic.remote_start_errors >= 2)


async def until_in_sync(cluster: Cluster) -> None:
    await cluster.until(lambda: set(cluster.partition_image("t").isr) == {1, 2}, timeout_ms=120_000)


async def split(cluster: Cluster, segment_bytes: str) -> tuple[int, int]:
    """Lets the leader lose all that the other replica lacks; returns it, and the new leader. The former one is down."""
    leader = await created(
        cluster,
        "t",
        replicas=2,
        min_insync_replicas="1",
        unclean_leader_election_enable="true",
        local_retention_bytes="2000",
        segment_bytes=segment_bytes,
    )
    other = 3 - leader
    client = cluster.client(leader)
    for number in range(3):
        assert (await client.produce("t", sent(cluster, number))).error_code == ErrorCode.NONE
    await fill(cluster, client, "t", COMMON - 3)
    await cluster.until(lambda: log_of(cluster, other, "t").high_watermark == COMMON)
    cluster.kill(other)
    for _ in range(10):
        await fill(cluster, client, "t", 2)
    await cluster.until(lambda: log_of(cluster, leader, "t").local_log_start_offset > COMMON)
    cluster.kill(leader)
    cluster.start_broker(other)
    assert await cluster.leader("t", other_than=leader) == other
    return leader, other


async def elected_again(cluster: Cluster, leader: int, other: int) -> Client:
    """Lets a follower that has been cut, and waits for the store, lead after a second unclean election."""
    cluster.start_broker(leader)
    await cluster.until(lambda: leader in cluster.running)
    await cluster.until(lambda: cluster.replica(leader, "t") is not None)
    await cluster.until(lambda: log_of(cluster, leader, "t").log_end_offset <= COMMON)
    cluster.kill(other)
    assert await cluster.leader("t", other_than=other) == leader
    log = log_of(cluster, leader, "t")
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, COMMON, COMMON)
    return cluster.client(leader)


async def lead(cluster: Cluster, leader: int) -> Client:
    await until_in_sync(cluster)
    log = log_of(cluster, leader, "t")
    assert (log.log_start_offset, log.log_end_offset) == (0, COMMON)
    cluster.kill(3 - leader)
    assert await cluster.leader("t", other_than=3 - leader) == leader
    return cluster.client(leader)


async def check_producer(cluster: Cluster, client: Client) -> None:
    again = await client.produce("t", sent(cluster, 2))
    assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 2), "a duplicate"
    gap = await client.produce("t", sent(cluster, 7))
    assert ErrorCode.of(gap.error_code) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    following = await client.produce("t", sent(cluster, 3))
    assert (following.error_code, following.base_offset) == (ErrorCode.NONE, COMMON)


@pytest.mark.parametrize("segment_bytes", ["1024", "2000", "8000"])
def test_a_cut_below_the_disk_keeps_the_producers(segment_bytes: str) -> None:
    """The cut is at the end of a remote segment, inside one, and inside the first.

    A batch whose answer was lost is sent again to the follower, when that leads.
    """

    async def scenario(cluster: Cluster) -> None:
        leader, _ = await split(cluster, segment_bytes)
        cluster.start_broker(leader)
        await check_producer(cluster, await lead(cluster, leader))

    run_cluster(scenario, brokers=2, **TIERED)


def test_a_cut_log_waits_for_the_store() -> None:
    """It does not follow before it knows its producers, also if its broker starts again meanwhile."""

    async def scenario(cluster: Cluster) -> None:
        leader, other = await split(cluster, "2000")

        def is_restoring() -> bool:
            replica = cluster.replica(leader, "t")
            if replica is None or replica.log.log_end_offset > COMMON:
                return False
            fetchers = cluster.running[leader].context.replicas._following
            source = fetchers._sources.get(fetchers._source_of.get(replica.key))
            return source is not None and source.core.partition(replica.key).state is FollowState.RESTORING

        with store_away(cluster, f"b{leader}"):
            for _ in range(2):
                cluster.start_broker(leader)
                await cluster.until(lambda: leader in cluster.running)
                await cluster.until(is_restoring)
                traffic = cluster.replica(leader, "t").traffic
                await cluster.until(partial(failed_twice, traffic), timeout_ms=90_000)
                assert is_restoring()
                assert traffic.remote_start_requests >= traffic.remote_start_errors
                assert cluster.partition_image("t").isr == (other,)
                cluster.kill(leader)
        cluster.start_broker(leader)
        await check_producer(cluster, await lead(cluster, leader))

    run_cluster(scenario, brokers=2, **TIERED)


@pytest.mark.parametrize("segment_bytes", ["1024", "2000", "8000"])
def test_a_leader_without_producers_takes_no_records(segment_bytes: str) -> None:
    """An unclean election elects a follower before the store has given it the producers of its remote records.

    It keeps its log as it is, so that no record goes that another replica still has.
    """

    async def scenario(cluster: Cluster) -> None:
        leader, other = await split(cluster, segment_bytes)
        with store_away(cluster, f"b{leader}"):
            client = await elected_again(cluster, leader, other)
            for sequence in (2, 3):
                refused = await client.produce("t", sent(cluster, sequence))
                assert ErrorCode.of(refused.error_code) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await cluster.until(lambda: not cluster.replica(leader, "t").replica.lacks_producers, timeout_ms=20_000)
        await check_producer(cluster, client)
        log = log_of(cluster, leader, "t")
        assert (log.log_start_offset, log.local_log_start_offset) == (0, COMMON)

    run_cluster(scenario, brokers=2, **TIERED)


def test_a_leader_waits_for_its_producers_no_longer_than_a_bound() -> None:
    """The operator prefers a leader that may lack what others had; the store may be away for days."""

    async def scenario(cluster: Cluster) -> None:
        leader, other = await split(cluster, "2000")
        with store_away(cluster, f"b{leader}"):
            client = await elected_again(cluster, leader, other)
            replica = cluster.replica(leader, "t").replica
            await cluster.until(lambda: not replica.lacks_producers, timeout_ms=RESTORE_MS_MAX + 1_000)
            taken = await client.produce("t", sent(cluster, 2))
            assert (taken.error_code, taken.base_offset) == (ErrorCode.NONE, COMMON)

    run_cluster(scenario, brokers=2, **TIERED)
