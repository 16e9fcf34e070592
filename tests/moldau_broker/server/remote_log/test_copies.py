"""Goal: a leader copies closed segments, and local segments go only when the store has them.

Method: whole brokers on virtual disks and in virtual time, with the store of the simulated world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from moldau_broker.log.files.names import LOG_SUFFIX
from moldau_broker.log.remote.segment_check import SegmentCheck
from support.cluster.broker_cluster import run_cluster
from support.objects.tiered import (
    TIERED,
    TOPIC,
    copied,
    created,
    delete_records,
    fill,
    listing,
    lives,
    log_of,
    objects,
    patiently,
    store_away,
)

if TYPE_CHECKING:
    from moldau_broker.log.remote.segments_to_copy import SegmentToCopy
    from support.cluster.broker_cluster import Cluster


def test_closed_segments_are_copied_in_order() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", **TOPIC)
        await fill(cluster, client, "t", 5)
        await cluster.until(lambda: copied(cluster, "t") == [0, 1, 2, 3])
        found = listing(cluster, "t")
        assert found.unfinished == []
        for segment, local in zip(found.segments, log_of(cluster, 1, "t").segments, strict=False):
            (name,) = [name for name in objects(cluster).names() if name.endswith(f"{segment.name}.log")]
            assert objects(cluster).content(name) == local.file.read(0, local.size)
        puts = [life.name.rpartition("_")[2] for life in lives(cluster)]
        assert [name[-4:] for name in puts] == [".aux", ".log"] * 4
        await cluster.until(lambda: log_of(cluster, 1, "t").copied_end_offset == 4)  # the answer comes after the effect

    run_cluster(scenario, **TIERED)


def test_local_segments_go_on_leader_and_follower() -> None:
    """The log start offset stays, and the follower learns from a listing what the store has."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t", replicas=2, local_retention_bytes="2000"))
        await fill(cluster, client, "t", 10)
        logs = [log_of(cluster, broker_id, "t") for broker_id in cluster.broker_ids]
        await cluster.until(lambda: all(log.local_log_start_offset >= 7 for log in logs))
        assert copied(cluster, "t") == list(range(9))
        assert [log.log_start_offset for log in logs] == [0, 0]

    run_cluster(scenario, brokers=2, **TIERED)


def test_no_local_segment_goes_while_the_store_is_away() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t", replicas=2, local_retention_bytes="2000"))
        with store_away(cluster):
            await fill(cluster, client, "t", 10)
            await trio.sleep(15)
            logs = [log_of(cluster, broker_id, "t") for broker_id in cluster.broker_ids]
            assert all(len(log.segments) == 10 for log in logs)
        await patiently(cluster, lambda: all(log.local_log_start_offset >= 7 for log in logs), timeout_ms=60_000)
        assert copied(cluster, "t") == list(range(9))

    run_cluster(scenario, brokers=2, **TIERED)


def test_the_configured_rate_holds_back_the_next_copy() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", **TOPIC)
        await fill(cluster, client, "t", 7)
        await trio.sleep(5)
        early = len(copied(cluster, "t"))
        await patiently(cluster, lambda: len(copied(cluster, "t")) == 6, timeout_ms=120_000)
        logs = [life for life in lives(cluster) if life.name.endswith(".log")]
        seconds = logs[-1].put_seconds - logs[0].put_seconds
        assert early < 4
        assert sum(life.size_bytes for life in logs[1:-1]) / seconds < 110

    run_cluster(scenario, remote_log_manager_copy_max_bytes_per_second="100", **TIERED)


@pytest.mark.parametrize("position", [0, 12, 500])
def test_a_damaged_segment_is_not_copied(position: int) -> None:
    """The base offset, the leader epoch or a record is damaged; an older sound segment is copied, no later one is."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t", local_retention_bytes="1"))
        with store_away(cluster):
            await fill(cluster, client, "t", 6)
            log = log_of(cluster, 1, "t")
            cluster.world.node("b1").disk.flip_bit(log.segments[2].path(LOG_SUFFIX), position, 3)
            await trio.sleep(5)
        await patiently(cluster, lambda: copied(cluster, "t") == [0, 1], timeout_ms=60_000)
        await trio.sleep(30)
        assert copied(cluster, "t") == [0, 1]
        assert [segment.base_offset for segment in log.segments] == [2, 3, 4, 5]
        manager = cluster.running[1].context.remote_log
        state = manager.statistics()["t"]
        assert (state.damaged, state.copy_lag_segments) == (1, 3)
        assert cluster.replica(1, "t").traffic.remote_copy_errors > 5
        await delete_records(client, "t", 3)
        await patiently(cluster, lambda: copied(cluster, "t")[-2:] == [3, 4], timeout_ms=60_000)
        assert manager.statistics()["t"].damaged == 0

    run_cluster(scenario, **TIERED)


def test_another_leader_copies_what_is_damaged_here() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await created(cluster, "t", replicas=2)
        with store_away(cluster):
            await fill(cluster, cluster.client(leader), "t", 5)
            path = log_of(cluster, leader, "t").segments[1].path(LOG_SUFFIX)
            cluster.world.node(f"b{leader}").disk.flip_bit(path, 300, 0)
            await trio.sleep(5)
        await patiently(cluster, lambda: copied(cluster, "t") == [0], timeout_ms=60_000)
        await trio.sleep(10)
        assert copied(cluster, "t") == [0]
        await cluster.stop(leader)
        await patiently(cluster, lambda: copied(cluster, "t") == [0, 1, 2, 3], timeout_ms=60_000)

    run_cluster(scenario, brokers=2, **TIERED)


def test_a_segment_is_checked_once_while_the_store_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t"))
        with store_away(cluster):
            await fill(cluster, client, "t", 2)
            await trio.sleep(60)
            assert cluster.replica(1, "t").traffic.remote_copy_errors > 5
            assert steps == [0]
        await patiently(cluster, lambda: copied(cluster, "t") == [0], timeout_ms=60_000)
        assert steps == [0]

    steps: list[int] = []
    step = SegmentCheck.step

    def counted(check: SegmentCheck, found: SegmentToCopy) -> None:
        steps.append(check.position)
        step(check, found)

    monkeypatch.setattr(SegmentCheck, "step", counted)
    run_cluster(scenario, **TIERED)


def test_a_listing_begins_after_the_call_that_asks_for_it() -> None:
    """One in progress may have passed the place of an object that was copied or deleted meanwhile."""

    async def scenario(cluster: Cluster) -> None:
        leader = await created(cluster, "t", local_retention_bytes="700")
        await fill(cluster, cluster.client(leader), "t", 4)
        await cluster.until(lambda: len(copied(cluster, "t")) == 3)
        manager, partition = cluster.running[leader].context.remote_log, cluster.replica(leader, "t")
        assert manager is not None
        await manager.refresh(partition)
        objects(cluster).profile.delay_min = 1.0
        before = manager.listings
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(manager.refresh, partition)
                await trio.sleep(0.1)
        assert manager.listings == before + 2, "those that came during the first one share the second one"

    run_cluster(scenario, **TIERED)
