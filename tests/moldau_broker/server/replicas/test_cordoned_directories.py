"""Cordoned log directories (KIP-1066): whole brokers on virtual disks.

Goal: a cordoned directory takes no new replica and no move, its replicas stay in service, and every node knows it.
Method: brokers with two directories each, changed as an operator would change them; some stories under load.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import alter_configs as full
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.runtime.config import CORDONED_LOG_DIRS
from moldau_quorum.controller.cluster.features import SUPPORTED_FEATURES
from moldau_quorum.controller.entities.configs import APPEND, DELETE, SET, SUBTRACT
from moldau_quorum.metadata.image import RESOURCE_BROKER, RESOURCE_BROKER_LOGGER
from moldau_quorum.metadata.records import METADATA_LEVEL_CORDONS, METADATA_VERSION
from support.cluster.broker_cluster import run_cluster
from support.cluster.directory_stories import TWO, directory_id, log_dirs_of, move, place, prepared

if TYPE_CHECKING:
    from support.cluster.broker_cluster import Cluster

LOGGER = logging.getLogger("moldau.test.cordons")
"""Of this file alone: its level stays changed."""
STATIC = {**TWO, "cordoned_log_dirs": "*"}


async def cordon(
    cluster: Cluster, value: str | None, operation: int = SET, *, broker: int = 1, via: int | None = None
) -> tuple[int, str | None]:
    """Changes the cordoned directories of a broker, by a request to broker ``via``; returns code and message."""
    client = cluster.client(broker if via is None else via)
    change = AlterableConfig(name=CORDONED_LOG_DIRS, config_operation=operation, value=value)
    resource = AlterConfigsResource(resource_type=RESOURCE_BROKER, resource_name=str(broker), configs=[change])
    (answer,) = (await client.request(IncrementalAlterConfigsRequest(resources=[resource]))).responses
    client.close()
    return answer.error_code, answer.error_message


async def recorded(cluster: Cluster, broker_id: int, *paths: str) -> None:
    """Waits until the metadata name exactly these directories of a broker as cordoned."""
    wanted = {directory_id(cluster, broker_id, path) for path in paths}
    await cluster.until(lambda: set(cluster.image().brokers[broker_id].cordoned_log_dirs) == wanted)


async def create(cluster: Cluster, name: str, *, partitions: int = 4, replicas: int = 3) -> None:
    client = cluster.client(2)
    await client.create_topic(name, partitions=partitions, replicas=replicas)
    client.close()
    for index in range(partitions):
        await cluster.leader(name, index)


async def change_level(cluster: Cluster, level: int) -> int:
    client = cluster.client(1)
    update = FeatureUpdateKey(feature=METADATA_VERSION, max_version_level=level, upgrade_type=1)
    answer = await client.request(UpdateFeaturesRequest(feature_updates=[update], timeout_ms=20_000))
    client.close()
    return int(answer.error_code)


def test_a_cordoned_directory_is_emptied_under_load() -> None:
    """The recipe for a disk that leaves: cordon its directory, move its replicas away; nothing new arrives."""

    async def scenario(cluster) -> None:
        load = await prepared(cluster)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            assert await cordon(cluster, "/d1") == (0, None)
            named = cluster.image().brokers[1].cordoned_log_dirs
            assert named == (directory_id(cluster, 1, "/d1"),), "the answer waits until the controller knows it"
            described = await log_dirs_of(cluster, 1)
            assert {path: each.is_cordoned for path, each in described.items()} == {"/d1": True, "/d2": False}
            assert not any(each.is_cordoned for each in (await log_dirs_of(cluster, 2)).values())
            held = [index for index in range(6) if place(cluster, 1, "t", index) == "/d1"]
            assert held, "the replicas in the directory stay there"
            await create(cluster, "new")
            assert [place(cluster, 1, "new", index) for index in range(4)] == ["/d2"] * 4
            assert "/d1" in [place(cluster, 2, "new", index) for index in range(4)], "the other brokers go on"
            assert await move(cluster, 1, "new", 0, "/d1") == ErrorCode.INVALID_REPLICA_ASSIGNMENT
            for index in held:
                assert await move(cluster, 1, "t", index, "/d2") == ErrorCode.NONE
            await cluster.until(lambda: all(place(cluster, 1, "t", index) == "/d2" for index in range(6)))
            assert not (await log_dirs_of(cluster, 1))["/d1"].topics
            assert await cordon(cluster, "") == (0, None)
            await recorded(cluster, 1)
            assert await move(cluster, 1, "new", 0, "/d1") == ErrorCode.NONE
            await cluster.until(lambda: place(cluster, 1, "new", 0) == "/d1")
            load.stopped = True
        await load.check()

    run_cluster(scenario, brokers=3, **TWO)


def test_a_cordoned_broker_gets_no_replicas() -> None:
    async def scenario(cluster) -> None:
        assert await cordon(cluster, "*") == (0, None)
        await recorded(cluster, 1, "/d1", "/d2")
        await create(cluster, "new", replicas=2)
        assert all(1 not in cluster.partition_image("new", index).replicas for index in range(4))
        assert await cordon(cluster, "/d2") == (0, None)
        await recorded(cluster, 1, "/d2")
        await create(cluster, "newer")
        assert [place(cluster, 1, "newer", index) for index in range(4)] == ["/d1"] * 4

    run_cluster(scenario, brokers=3, **TWO)


def test_only_the_broker_itself_checks_its_directories() -> None:
    """Wrong paths, and requests at another broker, are refused; what stands beside them in a request is done."""

    async def scenario(cluster) -> None:
        why = f"{CORDONED_LOG_DIRS}: /d3 is not one of log.dirs: /d1, /d2"
        assert await cordon(cluster, "/d1,/d3") == (ErrorCode.INVALID_CONFIG, why)
        assert await cordon(cluster, "/d3", APPEND) == (ErrorCode.INVALID_CONFIG, why)
        assert (await cordon(cluster, "*,/d1"))[0] == ErrorCode.INVALID_CONFIG
        assert (await cordon(cluster, "/d1", via=2))[0] == ErrorCode.INVALID_REQUEST
        client = cluster.client(1)

        def changes(kind: int, name: str, key: str, text: str) -> AlterConfigsResource:
            change = AlterableConfig(name=key, config_operation=SET, value=text)
            return AlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])

        request = IncrementalAlterConfigsRequest(
            resources=[
                changes(RESOURCE_BROKER, "2", CORDONED_LOG_DIRS, "/d1"),
                changes(RESOURCE_BROKER, "1", CORDONED_LOG_DIRS, "/d2"),
                changes(RESOURCE_BROKER_LOGGER, "1", LOGGER.name, "INFO"),
            ]
        )
        answer = await client.request(request)
        codes = {(each.resource_type, each.resource_name): each.error_code for each in answer.responses}
        assert codes == {(4, "1"): 0, (4, "2"): ErrorCode.INVALID_REQUEST, (8, "1"): 0}
        await recorded(cluster, 1, "/d2")
        for path, code in (("/d3", ErrorCode.INVALID_CONFIG), ("/d1", ErrorCode.NONE)):
            whole = full.AlterConfigsResource(
                resource_type=RESOURCE_BROKER,
                resource_name="1",
                configs=[full.AlterableConfig(name=CORDONED_LOG_DIRS, value=path)],
            )
            (answer,) = (await client.request(full.AlterConfigsRequest(resources=[whole]))).responses
            assert answer.error_code == code
        await recorded(cluster, 1, "/d1")
        client.close()
        assert (await cordon(cluster, "/d1", SUBTRACT, via=2))[0] == 0, "taking a cordon away needs no paths"
        await recorded(cluster, 1)

    run_cluster(scenario, brokers=2, **TWO)


def test_a_restarted_broker_is_cordoned_before_it_serves() -> None:
    """Neither a dynamic cordon nor a directory that has left ``log.dirs`` troubles a restart."""

    async def scenario(cluster) -> None:
        await create(cluster, "t", replicas=3)
        assert await cordon(cluster, "/d1") == (0, None)
        await recorded(cluster, 1, "/d1")
        await cluster.stop(1)
        assert cluster.image().brokers[1].fenced
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running)
        assert cluster.image().brokers[1].cordoned_log_dirs == (directory_id(cluster, 1, "/d1"),)
        await create(cluster, "new")
        assert {place(cluster, 1, "new", index) for index in range(4)} == {"/d2"}
        held = [index for index in range(4) if place(cluster, 1, "t", index) == "/d1"]
        for index in held:
            await move(cluster, 1, "t", index, "/d2")
        await cluster.until(lambda: all(place(cluster, 1, "t", index) == "/d2" for index in held))
        await cluster.stop(1)
        cluster.start_broker(1, log_dirs="/d2,/d3")
        await cluster.until(lambda: 1 in cluster.running)
        await recorded(cluster, 1)
        assert set(await log_dirs_of(cluster, 1)) == {"/d2", "/d3"}

    run_cluster(scenario, brokers=3, **TWO)


def test_a_cordon_of_the_file_holds_until_it_is_overridden() -> None:
    async def scenario(cluster) -> None:
        await cluster.stop(1)
        cluster.start_broker(1, **STATIC)
        await cluster.until(lambda: 1 in cluster.running)
        await recorded(cluster, 1, "/d1", "/d2")
        assert all(each.is_cordoned for each in (await log_dirs_of(cluster, 1)).values())
        await create(cluster, "new", replicas=2)
        assert all(1 not in cluster.partition_image("new", index).replicas for index in range(4))
        assert await cordon(cluster, "") == (0, None)
        await recorded(cluster, 1)
        assert await cordon(cluster, None, DELETE) == (0, None)
        await recorded(cluster, 1, "/d1", "/d2")

    run_cluster(scenario, brokers=3, **TWO)


def test_cordons_have_no_effect_below_their_level() -> None:
    """Nodes of the version before support level 3: the file's cordon takes effect when the level is raised."""

    async def scenario(cluster) -> None:
        old = {**SUPPORTED_FEATURES, METADATA_VERSION: (1, METADATA_LEVEL_CORDONS - 1)}
        assert await change_level(cluster, METADATA_LEVEL_CORDONS) == 0, "it is there already"
        client = cluster.client(1)
        update = FeatureUpdateKey(feature=METADATA_VERSION, max_version_level=3, upgrade_type=2)
        answer = await client.request(UpdateFeaturesRequest(feature_updates=[update], timeout_ms=20_000))
        client.close()
        assert answer.error_code == 0
        cluster.features[2] = old
        for broker_id, settings in ((1, STATIC), (2, {})):
            await cluster.stop(broker_id)
            cluster.start_broker(broker_id, **settings)
            await cluster.until(lambda broker_id=broker_id: broker_id in cluster.running)
        await create(cluster, "t", replicas=2)
        assert {place(cluster, 1, "t", index) for index in range(4)} == {"/d1", "/d2"}
        assert not any(each.is_cordoned for each in (await log_dirs_of(cluster, 1)).values())
        code, message = await cordon(cluster, "/d1")
        assert code == ErrorCode.INVALID_CONFIG
        assert message is not None
        assert "needs metadata.version 4; the cluster is at 3" in message
        assert await change_level(cluster, METADATA_LEVEL_CORDONS) == ErrorCode.INVALID_UPDATE_VERSION
        del cluster.features[2]
        await cluster.stop(2)
        cluster.start_broker(2)
        await cluster.until(lambda: 2 in cluster.running)
        assert await change_level(cluster, METADATA_LEVEL_CORDONS) == 0
        await recorded(cluster, 1, "/d1", "/d2")
        assert all(each.is_cordoned for each in (await log_dirs_of(cluster, 1)).values())

    run_cluster(scenario, brokers=2, **TWO)
