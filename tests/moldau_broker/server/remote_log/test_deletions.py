"""Goal: the store keeps what the topic's configuration demands, and nothing else stays behind.

Method: whole brokers on virtual disks and in virtual time, with the store of the simulated world, which is away for a
while or answers late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau_broker.log.files.checkpoint import EpochEntry
from moldau_quorum.metadata.image import RESOURCE_TOPIC
from support.cluster.broker_cluster import run_cluster
from support.objects.tiered import (
    DELAY_MS,
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
    from support.cluster.broker_cluster import Client, Cluster


async def delete_topic(client: Client, topic: str) -> None:
    answer = await client.request(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=5000))
    assert answer.responses[0].error_code == ErrorCode.NONE


async def configure(client: Client, topic: str, **configs: str) -> None:
    changes = [
        AlterableConfig(name=name.replace("_", "."), config_operation=0, value=value) for name, value in configs.items()
    ]
    resource = AlterConfigsResource(resource_type=RESOURCE_TOPIC, resource_name=topic, configs=changes)
    answer = await client.request(IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code == ErrorCode.NONE, answer


@pytest.mark.parametrize("retention", [{"retention_bytes": "3000"}, {"retention_ms": "30000"}])
def test_retention_moves_the_log_start_and_deletes(retention: dict[str, str]) -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await created(cluster, "t", local_retention_bytes="700", replicas=2, **retention)
        client = cluster.client(leader)
        await fill(cluster, client, "t", 10)
        await cluster.until(lambda: copied(cluster, "t"))
        logs = [log_of(cluster, broker_id, "t") for broker_id in cluster.broker_ids]
        await trio.sleep(40)
        left = copied(cluster, "t")
        starts = {log.log_start_offset for log in logs}
        assert starts == {10 if "retention_ms" in retention else 5}, "time closes the last segment, too"
        assert left == list(range(min(starts), 9))
        assert listing(cluster, "t").unfinished == []

    run_cluster(scenario, brokers=2, **TIERED)


def test_a_deletion_is_proved_before_its_first_object_goes() -> None:
    """A leader that dies in between must not look like a store that has lost its records."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t", local_retention_bytes="700"))
        await fill(cluster, client, "t", 10)
        await cluster.until(lambda: log_of(cluster, 1, "t").local_log_start_offset == 9)
        objects(cluster).profile.delay_min = 2.0
        await delete_records(client, "t", 5)
        seen: list[bool] = []

        def has_gone() -> bool:
            found = listing(cluster, "t")
            seen.append(bool(found.proofs))
            return len(found.segments) < 9

        await cluster.until(has_gone, timeout_ms=60_000)
        assert seen[-1], "a segment goes, and nothing says that it goes on purpose"
        assert seen.count(False) > 0

    run_cluster(scenario, **TIERED)


def test_deleted_records_leave_the_store() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t", local_retention_bytes="700"))
        await fill(cluster, client, "t", 10)
        await cluster.until(lambda: log_of(cluster, 1, "t").local_log_start_offset == 9)
        await delete_records(client, "t", 5)
        await cluster.until(lambda: copied(cluster, "t") == [5, 6, 7, 8])
        assert log_of(cluster, 1, "t").log_start_offset == 5

    run_cluster(scenario, **TIERED)


def test_the_folder_goes_with_its_topic() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t", replicas=2))
        await fill(cluster, client, "t", 5)
        await cluster.until(lambda: len(copied(cluster, "t")) == 4)
        await delete_topic(client, "t")
        await patiently(cluster, lambda: not objects(cluster).names(), timeout_ms=5_000)

    run_cluster(scenario, brokers=2, **TIERED)


def test_a_sweep_gets_what_a_deletion_has_left() -> None:
    """The store is away while the topic is deleted; a second topic keeps its objects."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t"))
        await created(cluster, "kept")
        await fill(cluster, client, "t", 5)
        await fill(cluster, client, "kept", 3)
        await cluster.until(lambda: len(copied(cluster, "t")) == 4 and len(copied(cluster, "kept")) == 2)
        with store_away(cluster):
            await delete_topic(client, "t")
            await trio.sleep(60)
            assert len(objects(cluster).names()) > 4
        await patiently(cluster, lambda: len(objects(cluster).names()) == 4, timeout_ms=2 * DELAY_MS)
        assert copied(cluster, "kept") == [0, 1]

    run_cluster(scenario, **TIERED)


def test_brokers_sweep_for_one_without_tiered_storage() -> None:
    """The broker with the lowest id has it no more; what is left of a deleted topic goes nevertheless."""

    async def scenario(cluster: Cluster) -> None:
        leader = await created(cluster, "t", replicas=2)
        await fill(cluster, cluster.client(leader), "t", 3)
        await cluster.until(lambda: len(copied(cluster, "t")) == 2)
        with store_away(cluster):
            await delete_topic(cluster.client(leader), "t")
            await trio.sleep(60)
        assert len(objects(cluster).names()) >= 4
        await cluster.stop(1)
        cluster.start_broker(1, **{"remote.log.storage.system.enable": "false"})
        await patiently(cluster, lambda: not objects(cluster).names(), timeout_ms=4 * DELAY_MS)
        assert cluster.running[1].context.remote_log is None

    run_cluster(scenario, brokers=2, **TIERED)


def test_a_broker_with_old_metadata_sweeps_nothing() -> None:
    """Cut off from the controller, it believes that it is active, and does not know the new topic."""

    async def scenario(cluster: Cluster) -> None:
        for one, other in (("b1", "c101"), ("c101", "b1")):
            cluster.world.network.cut(one, other)
        known = cluster.running[2].metadata
        await cluster.until(lambda: not known.image.brokers[1].active)
        client = cluster.client(2)
        await client.create_topic("t", **TOPIC)
        await cluster.until(lambda: cluster.replica(2, "t") is not None)
        await fill(cluster, client, "t", 4)
        await cluster.until(lambda: copied(cluster, "t") == [0, 1, 2])
        await trio.sleep(3 * DELAY_MS / 1000)
        assert 1 in cluster.running
        assert "t" not in cluster.running[1].metadata.image.topics_by_name
        assert len(lives(cluster)) == 6
        assert all(life.deleted_seconds is None for life in lives(cluster))

    run_cluster(scenario, brokers=2, **TIERED)


def test_a_topic_that_is_not_tiered_any_more_leaves_the_store() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await created(cluster, "t", local_retention_bytes="700", replicas=2)
        client = cluster.client(leader)
        await fill(cluster, client, "t", 10)
        logs = [log_of(cluster, broker_id, "t") for broker_id in cluster.broker_ids]
        await cluster.until(lambda: all(log.local_log_start_offset == 9 for log in logs))
        await configure(client, "t", remote_storage_enable="false", remote_log_delete_on_disable="true")
        await cluster.until(lambda: not objects(cluster).names())
        assert [log.log_start_offset for log in logs] == [9, 9]
        await fill(cluster, client, "t", 3)
        await trio.sleep(5)
        assert not objects(cluster).names()
        await configure(client, "t", remote_storage_enable="true")
        await patiently(cluster, lambda: copied(cluster, "t") == [9, 10, 11], timeout_ms=200_000)

    run_cluster(scenario, brokers=2, **TIERED)


def test_a_former_leader_deletes_nothing_of_its_successor() -> None:
    """Cut off from the controller, it knows neither its successor nor the new configuration."""

    async def scenario(cluster: Cluster) -> None:
        leader = await created(cluster, "t", local_retention_bytes="700", replicas=2)
        client, other = cluster.client(leader), 3 - leader
        await fill(cluster, client, "t", 4)
        await cluster.until(lambda: copied(cluster, "t") == [0, 1, 2])
        await configure(client, "t", remote_storage_enable="false", remote_log_delete_on_disable="true")
        await cluster.until(lambda: not objects(cluster).names())
        for one, two in ((f"b{leader}", "c101"), (f"b{leader}", f"b{other}")):
            cluster.world.network.cut(one, two)
            cluster.world.network.cut(two, one)
        client = cluster.client(other)
        await configure(client, "t", remote_storage_enable="true")
        assert await cluster.leader("t", other_than=leader) == other
        await fill(cluster, client, "t", 3)
        await cluster.until(lambda: copied(cluster, "t")[-1:] == [5], timeout_ms=300_000)
        await trio.sleep(3 * DELAY_MS / 1000)
        former = cluster.replica(leader, "t")
        assert former.is_leader
        assert not former.log.is_remote
        assert copied(cluster, "t")[-1:] == [5]
        deleted_by = [life.deleted_by for life in lives(cluster) if life.put_by == f"b{other}"]
        assert len(deleted_by) >= 2
        assert f"b{leader}" not in deleted_by

    run_cluster(scenario, brokers=2, **TIERED)


def test_a_leader_without_remote_epochs_deletes_none() -> None:
    """It cannot tell which segments are its own, and would take the others for lost ones of another lineage."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t", local_retention_bytes="700"))
        await fill(cluster, client, "t", 6)
        log = log_of(cluster, 1, "t")
        await cluster.until(lambda: log.local_log_start_offset == 5)
        log.epochs.replace([EpochEntry(leader_epoch=log.latest_epoch, start_offset=5)])
        await fill(cluster, client, "t", 4)
        await cluster.until(lambda: len(copied(cluster, "t")) == 9)
        await trio.sleep(3 * DELAY_MS / 1000)
        assert (log.log_start_offset, log.local_log_start_offset) == (0, 9)
        assert copied(cluster, "t") == list(range(9))

    run_cluster(scenario, **TIERED)


def test_no_replica_tiered_again_trusts_the_store_at_once() -> None:
    """The former leader may still delete a segment that a follower then takes for copied."""

    async def scenario(cluster: Cluster) -> None:
        leader = await created(cluster, "t", replicas=2)
        client = cluster.client(leader)
        await fill(cluster, client, "t", 6)
        await cluster.until(lambda: copied(cluster, "t") == [0, 1, 2, 3, 4])
        logs = [log_of(cluster, broker_id, "t") for broker_id in cluster.broker_ids]
        with store_away(cluster, f"b{leader}"):
            await configure(client, "t", remote_storage_enable="false", remote_log_delete_on_disable="true")
            await cluster.until(lambda: not any(log.is_remote for log in logs))
            await configure(client, "t", remote_storage_enable="true", local_retention_bytes="700")
        await trio.sleep(60)
        assert [log.local_log_start_offset for log in logs] == [0, 0]
        await cluster.until(lambda: all(log.local_log_start_offset == 5 for log in logs), timeout_ms=300_000)

    run_cluster(scenario, brokers=2, **TIERED)
