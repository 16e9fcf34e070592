"""Goal: only what no broker needs is deleted, also if clocks jump or the store is not the one that it was.

Method: one broker in virtual time; objects of other writers are put into the store by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from moldau_broker.log.files.names import LEADER_EPOCH_CHECKPOINT, LOCAL_START_CHECKPOINT
from moldau_broker.remote_log.core.names import LOG, DeletionProof
from moldau_broker.remote_log.core.plans import PROOFS_KEPT
from support.cluster.broker_cluster import run_cluster
from support.metrics_samples import scrape
from support.objects.tiered import (
    DELAY_MS,
    TIERED,
    copied,
    created,
    delete_records,
    fill,
    listing,
    log_of,
    objects,
    patiently,
    put_segment,
    store_away,
)

if TYPE_CHECKING:
    from support.cluster.broker_cluster import Cluster

HOUR_MS = 3_600_000.0
METRICS = "kafka_server_brokertopicmetrics_remote"


@pytest.mark.parametrize("jump_ms", [0.0, 100 * HOUR_MS, -100 * HOUR_MS])
def test_an_unfinished_object_goes_after_the_delay(jump_ms: float) -> None:
    """A copy may be in progress for the whole delay, however this broker's wall clock is set meanwhile."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t", retention_ms="-1"))
        await fill(cluster, client, "t", 3)
        await cluster.until(lambda: copied(cluster, "t") == [0, 1])
        put_segment(cluster, "t", 1, 1, only=LOG)
        begun = cluster.world.agenda.clock.now
        cluster.world.node("b1").clock.jump_wall(jump_ms)
        await patiently(cluster, lambda: not listing(cluster, "t").unfinished or jump_ms < 0, timeout_ms=3 * DELAY_MS)
        if jump_ms >= 0:
            assert cluster.world.agenda.clock.now - begun >= DELAY_MS / 1000
        assert copied(cluster, "t") == [0, 1]

    run_cluster(scenario, **TIERED)


def test_a_second_copy_of_a_range_goes() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t"))
        await fill(cluster, client, "t", 4)
        await cluster.until(lambda: copied(cluster, "t") == [0, 1, 2])
        put_segment(cluster, "t", 1, 1)
        put_segment(cluster, "t", 0, 2)
        assert copied(cluster, "t") == [0, 0, 1, 1, 2]
        await patiently(cluster, lambda: copied(cluster, "t") == [0], timeout_ms=2 * DELAY_MS)
        assert listing(cluster, "t").segments[0].last_offset == 2

    run_cluster(scenario, **TIERED)


def test_a_store_without_any_segment_moves_no_log_start() -> None:
    """It is more likely the wrong store than one that lost its data, and the right one may come back."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t", local_retention_bytes="700"))
        await fill(cluster, client, "t", 5)
        await cluster.until(lambda: log_of(cluster, 1, "t").local_log_start_offset == 4)
        store = objects(cluster)
        kept = {name: store.content(name) for name in store.names()}
        for name in kept:
            store.delete("test", name)
        cluster.kill(1)
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running)
        await trio.sleep(5)
        assert log_of(cluster, 1, "t").log_start_offset == 0
        assert scrape(cluster.running[1])["moldau_remote_log_damaged_partitions"] == 1
        for name, content in kept.items():
            store.put("test", name, content)
        await trio.sleep(2 * DELAY_MS / 1000)
        assert copied(cluster, "t") == [0, 1, 2, 3]
        assert scrape(cluster.running[1])["moldau_remote_log_damaged_partitions"] == 0

    run_cluster(scenario, **TIERED)


def wrong_store(cluster: Cluster) -> dict[str, bytes]:
    """Takes all objects of a store away, as if it were another one; returns them."""
    store = objects(cluster)
    kept = {name: store.content(name) for name in store.names()}
    for name in kept:
        store.delete("test", name)
    return kept


def test_a_leader_copies_nothing_to_a_wrong_store() -> None:
    """Its copies made that store look like the right one: the log start moved, and the right one lost its segments."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t", local_retention_bytes="700"))
        await fill(cluster, client, "t", 5)
        await cluster.until(lambda: log_of(cluster, 1, "t").local_log_start_offset == 4)
        cluster.kill(1)
        kept = wrong_store(cluster)
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running)
        client = cluster.client(await cluster.leader("t"))
        await fill(cluster, client, "t", 3)
        await trio.sleep(3 * DELAY_MS / 1000)
        assert copied(cluster, "t") == []
        assert log_of(cluster, 1, "t").log_start_offset == 0
        for name, content in kept.items():
            objects(cluster).put("test", name, content)
        await patiently(cluster, lambda: copied(cluster, "t") == list(range(7)), timeout_ms=2 * DELAY_MS)
        assert log_of(cluster, 1, "t").log_start_offset == 0

    run_cluster(scenario, **TIERED)


def test_retention_ends_the_wait_for_lost_records() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t", local_retention_bytes="700", retention_bytes="5000"))
        await fill(cluster, client, "t", 5)
        await cluster.until(lambda: log_of(cluster, 1, "t").local_log_start_offset == 4)
        cluster.kill(1)
        wrong_store(cluster)
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running)
        client = cluster.client(await cluster.leader("t"))
        await fill(cluster, client, "t", 4)
        await trio.sleep(5)
        assert log_of(cluster, 1, "t").log_start_offset == 0
        await fill(cluster, client, "t", 5)
        await patiently(cluster, lambda: log_of(cluster, 1, "t").log_start_offset >= 4, timeout_ms=2 * DELAY_MS)
        await patiently(cluster, lambda: 12 in copied(cluster, "t"), timeout_ms=2 * DELAY_MS)

    run_cluster(scenario, **TIERED)


@pytest.mark.parametrize("is_proved", [True, False])
def test_a_new_leader_begins_behind_deleted_segments(is_proved: bool) -> None:
    """Segments that are gone without a proof are lost, and may come back."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t", local_retention_bytes="700"))
        await fill(cluster, client, "t", 5)
        await cluster.until(lambda: log_of(cluster, 1, "t").local_log_start_offset == 4)
        store, first = objects(cluster), listing(cluster, "t").segments[:2]
        gone = [name for name in store.names() if any(segment.name in name for segment in first)]
        for name in gone:
            store.delete("test", name)
        if is_proved:
            store.put("test", gone[0].rpartition("/")[0] + "/" + DeletionProof(2, 0).name, b"")
        cluster.kill(1)
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running)
        await patiently(cluster, lambda: log_of(cluster, 1, "t").high_watermark == 5, timeout_ms=10_000)
        await trio.sleep(2 * DELAY_MS / 1000)
        assert log_of(cluster, 1, "t").log_start_offset == (2 if is_proved else 0)
        assert scrape(cluster.running[1])["moldau_remote_log_damaged_partitions"] == (0 if is_proved else 1)
        assert copied(cluster, "t") == [2, 3]

    run_cluster(scenario, **TIERED)


def test_a_store_exchanged_under_a_leader_moves_no_log_start() -> None:
    """The leader goes on copying by its last listing, so the next one shows the newest segments alone."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t", local_retention_bytes="700"))
        await fill(cluster, client, "t", 5)
        await cluster.until(lambda: log_of(cluster, 1, "t").local_log_start_offset == 4)
        kept = wrong_store(cluster)
        await fill(cluster, client, "t", 3)
        await trio.sleep(3 * DELAY_MS / 1000)
        assert copied(cluster, "t") == [4, 5, 6]
        assert log_of(cluster, 1, "t").log_start_offset == 0
        for name, content in kept.items():
            objects(cluster).put("test", name, content)
        await trio.sleep(2 * DELAY_MS / 1000)
        assert copied(cluster, "t") == list(range(7))
        assert scrape(cluster.running[1])["moldau_remote_log_damaged_partitions"] == 0

    run_cluster(scenario, **TIERED)


def test_a_deletion_leaves_one_proof_and_later_ones_few() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t", retention_bytes="1500"))
        for _ in range(8):
            await fill(cluster, client, "t", 1)
            await trio.sleep(2)
        await patiently(cluster, lambda: copied(cluster, "t") == [5, 6], timeout_ms=60_000)
        await trio.sleep(1)
        proofs = listing(cluster, "t").proofs
        assert proofs[-1] == DeletionProof(5, 0)
        assert len(proofs) == PROOFS_KEPT

    run_cluster(scenario, **TIERED)


def test_a_superseded_leader_does_nothing() -> None:
    """The store knows a newer leader, which may have put small segments into a larger one, and deleted those."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t", retention_bytes="3000"))
        put_segment(cluster, "t", 0, 1, epoch=7)
        await fill(cluster, client, "t", 9)
        await trio.sleep(5)
        assert copied(cluster, "t") == [0]
        assert log_of(cluster, 1, "t").log_start_offset == 0
        for name in objects(cluster).names():
            objects(cluster).delete("test", name)
        await patiently(cluster, lambda: copied(cluster, "t") == [4, 5, 6, 7], timeout_ms=2 * DELAY_MS)

    run_cluster(scenario, **TIERED)


def test_a_leader_that_lost_its_epochs_deletes_nothing() -> None:
    """It takes its own remote segments for foreign, and must not begin behind them because it has copied others."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t", local_retention_bytes="700"))
        await fill(cluster, client, "t", 5)
        await cluster.until(lambda: log_of(cluster, 1, "t").local_log_start_offset == 4)
        await trio.sleep(5)
        directory = log_of(cluster, 1, "t").directory
        cluster.kill(1)
        for name in (LOCAL_START_CHECKPOINT, LEADER_EPOCH_CHECKPOINT):
            cluster.world.node("b1").disk.flip_bit(f"{directory}/{name}", 0, 3)
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running)
        client = cluster.client(await cluster.leader("t"))
        assert not log_of(cluster, 1, "t").knows_remote_epochs
        await fill(cluster, client, "t", 2)
        await cluster.until(lambda: copied(cluster, "t") == [0, 1, 2, 3, 4, 5])
        await trio.sleep(3 * DELAY_MS / 1000)
        assert log_of(cluster, 1, "t").log_start_offset == 0
        assert copied(cluster, "t") == [0, 1, 2, 3, 4, 5]

    run_cluster(scenario, **TIERED)


def test_metrics_count_copies_deletions_and_what_waits() -> None:
    async def scenario(cluster: Cluster) -> None:
        with store_away(cluster):
            client = cluster.client(await created(cluster, "t", retention_bytes="3000"))
            await trio.sleep(12)
        await fill(cluster, client, "t", 3)
        await cluster.until(lambda: copied(cluster, "t") == [0, 1])
        await trio.sleep(1)
        size = sum(segment.size_bytes for segment in listing(cluster, "t").segments)
        for topic in ("t", ""):
            found = remote_metrics(cluster, topic)
            assert found["copybytes_total"] == found["logsizebytes"] == size
            assert (found["copyrequests_total"], found["copyerrors_total"]) == (2, 0)
            assert found["logmetadatacount"] == 2
            assert found["copylagsegments"] == found["copylagbytes"] == found["deletelagsegments"] == 0
        with store_away(cluster):
            await fill(cluster, client, "t", 6)
            await trio.sleep(12)
            found = remote_metrics(cluster, "t")
            assert found["copyerrors_total"] > 0
            assert (found["copylagsegments"], found["copylagbytes"]) == (6, size * 3)
        await patiently(cluster, lambda: copied(cluster, "t") == [4, 5, 6, 7], timeout_ms=60_000)
        await trio.sleep(1)
        found = remote_metrics(cluster, "t")
        assert found["deleterequests_total"] >= 4
        assert found["deleterequests_total"] == 4 or found["deleteerrors_total"] > 0  # what failed is repeated
        assert (found["logmetadatacount"], found["deletelagsegments"]) == (4, 0)
        assert scrape(cluster.running[1])["moldau_remote_log_listing_errors_total"] > 0

    run_cluster(scenario, **TIERED)


def remote_metrics(cluster: Cluster, topic: str) -> dict[str, float]:
    """Returns the metrics of a topic, or in total, without the common part of their names."""
    found = scrape(cluster.running[1])
    suffix = f'{{topic="{topic}"}}'
    return {
        name.removeprefix(METRICS).removesuffix(suffix): value
        for name, value in found.items()
        if name.startswith(METRICS) and name.endswith(suffix)
    }


def test_a_copy_that_is_not_needed_any_more_leaves_nothing() -> None:
    """Its records were deleted after it had failed; the broker took its first object for that of a copy in progress."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t"))
        objects(cluster).profile.delay_min = 1.0
        await fill(cluster, client, "t", 2)
        await cluster.until(lambda: listing(cluster, "t").unfinished)
        with store_away(cluster):
            await delete_records(client, "t", 2)
            await trio.sleep(12)
        objects(cluster).profile.delay_min = 0.0
        assert listing(cluster, "t").unfinished
        await patiently(cluster, lambda: not objects(cluster).names(), timeout_ms=4 * DELAY_MS)

    run_cluster(scenario, **TIERED)
