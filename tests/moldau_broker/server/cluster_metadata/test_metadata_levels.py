"""A rolling upgrade from the version before ``metadata.version`` 2, and back, in mixed clusters under load.

Old nodes support level 1 only: they write its records, and end when the level of the cluster is higher.
"""

from __future__ import annotations

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau_quorum.controller.cluster.features import SUPPORTED_FEATURES
from moldau_quorum.metadata.directory_ids import MIGRATING
from moldau_quorum.metadata.records import METADATA_LEVEL_LATEST, METADATA_VERSION
from support.cluster.broker_cluster import run_cluster
from support.cluster.directory_stories import TWO, Load, all_assigned, directory_id, ended, place, prepared, profile

OLD = {**SUPPORTED_FEATURES, METADATA_VERSION: (1, 1)}
UP, SAFE, UNSAFE = 1, 2, 3
FAILED = ErrorCode.INVALID_UPDATE_VERSION


async def change_level(cluster, level: int, kind: int = UP):
    client = cluster.client(min(cluster.running))
    update = FeatureUpdateKey(feature=METADATA_VERSION, max_version_level=level, upgrade_type=kind)
    answer = await client.request(UpdateFeaturesRequest(feature_updates=[update], timeout_ms=20_000))
    client.close()
    return answer


async def restart_controller(cluster, node_id: int) -> None:
    cluster.world.node(f"c{node_id}").kill()
    await trio.sleep(0.5)
    cluster.start_controller(node_id)
    await trio.sleep(1)


async def restart_broker(cluster, broker_id: int) -> None:
    await cluster.stop(broker_id)
    cluster.start_broker(broker_id)
    await cluster.until(lambda: broker_id in cluster.running)
    await in_sync(cluster)


async def in_sync(cluster) -> None:
    await cluster.until(
        lambda: all(len(cluster.partition_image("t", index).isr) == 3 for index in range(2)), timeout_ms=60_000
    )


async def old_cluster(cluster) -> Load:
    client = cluster.client(1)
    await client.create_topic("t", partitions=2, replicas=3, min_insync_replicas="2")
    client.close()
    assert cluster.image().metadata_level == 1
    assert cluster.partition_image("t").directories == ()
    return Load(cluster, "t", 2)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.proof)])
def test_a_rolling_upgrade_and_a_way_back_under_load(seed: int) -> None:
    async def scenario(cluster) -> None:
        load = await old_cluster(cluster)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            assert (await change_level(cluster, 2)).error_code == FAILED
            for node_id in (101, 102):
                del cluster.features[node_id]
                await restart_controller(cluster, node_id)
                assert (await change_level(cluster, 2)).error_code == FAILED, "not all controllers support it"
            del cluster.features[103]
            await restart_controller(cluster, 103)
            for broker_id in (1, 2, 3):
                answer = await change_level(cluster, 2)
                assert answer.error_code == FAILED
                assert f"broker {broker_id} supports levels 1..1" in answer.error_message
                del cluster.features[broker_id]
                await restart_broker(cluster, broker_id)
            assert cluster.partition_image("t").directory(1) == MIGRATING
            assert (await change_level(cluster, 2)).error_code == ErrorCode.NONE
            await cluster.until(lambda: all_assigned(cluster, "t", 2))

            profile(cluster, 2).failing_paths = ("/d1",)
            failed = directory_id(cluster, 2, "/d1")
            await cluster.until(lambda: failed not in cluster.image().brokers[2].log_dirs)
            await trio.sleep(0.5)
            assert 2 in cluster.running
            assert not cluster.image().brokers[2].fenced
            profile(cluster, 2).failing_paths = ()
            await restart_broker(cluster, 2)

            for node_id in (101, 102, 103):
                await restart_controller(cluster, node_id)
            assert cluster.image().metadata_level == 2
            assert (await change_level(cluster, 1)).error_code == FAILED
            refused = await change_level(cluster, 1, SAFE)
            assert refused.error_code == FAILED
            assert "would forget" in refused.error_message
            assert (await change_level(cluster, 1, UNSAFE)).error_code == ErrorCode.NONE
            await cluster.until(lambda: cluster.image().metadata_level == 1)
            assert cluster.partition_image("t").directories == ()
            await trio.sleep(1)  # each controller takes a snapshot; a controller of the old version reads only that
            for node_id in (101, 102, 103):
                cluster.features[node_id] = OLD
                await restart_controller(cluster, node_id)
            for broker_id in (1, 2, 3):
                cluster.features[broker_id] = OLD
                await restart_broker(cluster, broker_id)
            load.stopped = True
        await load.check()

    nodes = (1, 2, 3, 101, 102, 103)
    run_cluster(scenario, seed=seed, brokers=3, controllers=3, features=dict.fromkeys(nodes, OLD), **TWO)


def test_nodes_of_the_old_version_do_not_run_at_the_new_level() -> None:
    async def scenario(cluster) -> None:
        await prepared(cluster, partitions=2)
        cluster.features[2] = OLD
        await cluster.stop(2)
        cluster.start_broker(2)
        assert "UNSUPPORTED_VERSION" in await ended(cluster, 2)
        cluster.features[103] = OLD
        cluster.world.node("c103").kill()
        cluster.start_controller(103)
        end = await ended(cluster, 103, "c")
        assert f"metadata.version {METADATA_LEVEL_LATEST}, this node supports 1 to 1 only" in end

    run_cluster(scenario, brokers=3, controllers=3, **TWO)


def test_a_silent_controller_prevents_a_higher_level() -> None:
    """The level cannot be raised while a controller does not answer."""

    async def scenario(cluster) -> None:
        assert (await change_level(cluster, 1, SAFE)).error_code == ErrorCode.NONE
        cluster.world.node("c103").kill()
        await trio.sleep(2)
        answer = await change_level(cluster, 2)
        assert answer.error_code == FAILED
        assert "controller 103 did not say" in answer.error_message

    run_cluster(scenario, brokers=1, controllers=3)


def test_at_level_one_a_failed_directory_ends_its_broker() -> None:
    """At level 1 a failed directory ends its broker, and the other brokers continue."""

    async def scenario(cluster) -> None:
        load = await prepared_at_level_one(cluster)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            await trio.sleep(0.5)
            failed = place(cluster, 2, "t", 0)
            profile(cluster, 2).failing_paths = (failed,)
            reason = await ended(cluster, 2)
            assert reason.startswith(f"a log directory has failed: {failed}: ")
            assert "at metadata.version 1" in reason
            cluster.start_broker(2)
            assert "at metadata.version 1" in await ended(cluster, 2), "nor does it start without the directory"
            profile(cluster, 2).failing_paths = ()
            cluster.start_broker(2)
            await cluster.until(lambda: 2 in cluster.running)
            await in_sync(cluster)
            load.stopped = True
        await load.check()

    async def prepared_at_level_one(cluster) -> Load:
        assert (await change_level(cluster, 1, SAFE)).error_code == ErrorCode.NONE
        await cluster.until(lambda: cluster.image().metadata_level == 1)
        return await old_cluster(cluster)

    run_cluster(scenario, brokers=3, **TWO)
