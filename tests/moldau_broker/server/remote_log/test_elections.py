"""Goal: a copy that a change of leadership or a crash interrupts leaves no hole, no duplicate and nothing unfinished.

Method: whole brokers on virtual disks and in virtual time; the leader is killed or loses leadership during a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from support.cluster.broker_cluster import run_cluster
from support.objects.tiered import DELAY_MS, TIERED, TOPIC, copied, created, fill, listing, objects, patiently

if TYPE_CHECKING:
    from support.cluster.broker_cluster import Cluster


def slow(cluster: Cluster) -> None:
    """Lets each request to the store take about a second."""
    objects(cluster).profile.delay_min = 1.0


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_another_leader_goes_on(end: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await created(cluster, "t", replicas=2)
        client = cluster.client(leader)
        slow(cluster)
        await fill(cluster, client, "t", 6)
        await cluster.until(lambda: len(copied(cluster, "t")) >= 2 and listing(cluster, "t").unfinished)
        client.close()
        if end == "killed":
            cluster.kill(leader)
        else:
            await cluster.stop(leader)
        await cluster.leader("t", other_than=leader)
        await patiently(cluster, lambda: copied(cluster, "t") == [0, 1, 2, 3, 4], timeout_ms=60_000)
        await trio.sleep(3 * DELAY_MS / 1000)
        found = listing(cluster, "t")
        assert [segment.base_offset for segment in found.segments] == [0, 1, 2, 3, 4]
        assert found.unfinished == []

    run_cluster(scenario, brokers=2, **TIERED)


def test_a_broker_killed_during_a_copy_copies_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t"))
        slow(cluster)
        await fill(cluster, client, "t", 3)
        await cluster.until(lambda: listing(cluster, "t").unfinished)
        client.close()
        cluster.kill(1)
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running)
        await patiently(cluster, lambda: set(copied(cluster, "t")) == {0, 1}, timeout_ms=60_000)
        await trio.sleep(3 * DELAY_MS / 1000)
        found = listing(cluster, "t")
        assert [segment.base_offset for segment in found.segments] == [0, 1]
        assert found.unfinished == []

    run_cluster(scenario, **TIERED)


@pytest.mark.parametrize(("size", "lists"), [("1", 2), ("10", 6)])
def test_the_configuration_bounds_listings_at_the_same_time(size: str, lists: int) -> None:
    """Each listing takes a second. A leader of six partitions has listed them after six seconds, or after one."""

    async def scenario(cluster: Cluster) -> None:
        await trio.sleep(5)  # the probe of the start is over
        slow(cluster)
        objects(cluster).profile.delay_jitter = 0.0
        before = objects(cluster).counts["list"]
        await cluster.client(1).create_topic("t", partitions=6, **TOPIC)
        await cluster.until(lambda: objects(cluster).counts["list"] > before)
        await trio.sleep(1.5)
        found = objects(cluster).counts["list"] - before
        assert found <= lists if size == "1" else found >= lists

    run_cluster(scenario, remote_log_manager_expiration_thread_pool_size=size, **TIERED)


def test_a_slow_copy_counts_only_if_the_store_shows_it() -> None:
    """Another leader may have taken its first object for a leftover."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t", local_retention_bytes="700"))
        objects(cluster).profile.delay_min = DELAY_MS / 1000 / 4
        await fill(cluster, client, "t", 2)
        await cluster.until(lambda: listing(cluster, "t").unfinished)
        (first,) = listing(cluster, "t").unfinished
        objects(cluster).delete("test", first.name)
        await patiently(cluster, lambda: copied(cluster, "t") == [0], timeout_ms=60_000)
        assert first.name[:-4] != names_of(cluster)[0][:-4]
        objects(cluster).profile.delay_min = 0.0
        await patiently(cluster, lambda: len(names_of(cluster)) == 2, timeout_ms=4 * DELAY_MS)

    run_cluster(scenario, **TIERED)


def names_of(cluster: Cluster) -> list[str]:
    """Returns the names of all objects, those of whole segments first."""
    found = objects(cluster).names()
    return sorted(found, key=lambda name: (sum(other[:-4] == name[:-4] for other in found) < 2, name))
