"""Goal: a disk that answers no sync delays clients for less than four seconds, and loses nothing; a slow one stays.

Method: whole brokers on virtual disks and virtual time, under load, with a topic whose appends wait for syncs.
"""

from __future__ import annotations

from contextlib import asynccontextmanager

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from support.cluster.broker_cluster import run_cluster
from support.cluster.directory_stories import TWO, ended, place, prepared, profile

DURABLE = {"flush_messages": "1"}
LIMIT_S = 4.0
COUNT = 3


@asynccontextmanager
async def under_load(cluster, partitions=COUNT):
    """Writes to a topic whose appends wait for syncs while the block runs; then no acknowledged record may be lost."""
    load = await prepared(cluster, partitions=partitions, **DURABLE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run)
        await trio.sleep(1)
        yield load
        load.stopped = True
    await load.check()


def in_directory(cluster, broker, path):
    """Returns the partitions that the broker leads in a directory."""
    led = [
        index
        for index in cluster.image().topics_by_name["t"].partitions
        if cluster.partition_image("t", index).leader == broker
    ]
    return [index for index in led if place(cluster, broker, "t", index) == path]


def test_the_leaders_of_a_hanging_directory_move() -> None:
    """The other directory's leaders stay, and the broker goes on."""

    async def scenario(cluster) -> None:
        victim = 2
        async with under_load(cluster, partitions=6) as load:
            hanging, other = in_directory(cluster, victim, "/d1"), in_directory(cluster, victim, "/d2")
            assert hanging
            assert other
            begun = trio.current_time()
            profile(cluster, victim).hanging_paths = ("/d1",)
            await cluster.until(
                lambda: all(cluster.partition_image("t", index).leader not in (victim, -1) for index in hanging)
            )
            await trio.sleep(5 - (trio.current_time() - begun))
            assert cluster.running[victim].context.logs.offline_directories == ["/d1"]
            for index in range(6):
                assert load.gap(index, begun, begun + 5) < LIMIT_S
            assert all(cluster.partition_image("t", index).leader == victim for index in other)
            profile(cluster, victim).hanging_paths = ()

    run_cluster(scenario, brokers=3, **TWO)


def test_a_broker_whose_only_disk_hangs_ends() -> None:
    """Its connections break, and it works again after a restart, with every acknowledged record."""

    async def scenario(cluster) -> None:
        victim = 2
        async with under_load(cluster) as load:
            begun = trio.current_time()
            profile(cluster, victim).hanging_paths = ("/",)
            reason = await ended(cluster, victim)
            assert "no sync has returned for log.dir.sync.timeout.ms = 3000" in reason
            await trio.sleep(5 - (trio.current_time() - begun))
            for index in range(COUNT):
                assert load.gap(index, begun, begun + 5) < LIMIT_S
            profile(cluster, victim).hanging_paths = ()
            cluster.start_broker(victim)
            await cluster.until(
                lambda: all(victim in cluster.partition_image("t", index).isr for index in range(COUNT)),
                timeout_ms=60_000,
            )

    run_cluster(scenario, brokers=3)


def test_slow_work_on_a_disk_that_answers_changes_nothing() -> None:
    """The syncs of one log take five seconds, as those of much data do; others return."""

    async def scenario(cluster) -> None:
        victim = 2
        async with under_load(cluster):
            (slow, *_) = in_directory(cluster, victim, "/data")
            profile(cluster, victim).hanging_paths = (f"/data/t-{slow}",)
            await trio.sleep(5)
            profile(cluster, victim).hanging_paths = ()
            await trio.sleep(1)
            assert cluster.running[victim].context.logs.online_directories == ["/data"]

    run_cluster(scenario, brokers=3)


def test_metadata_change_while_the_controllers_disk_hangs() -> None:
    """The controller hands the leadership of the quorum over."""

    async def scenario(cluster) -> None:
        active = cluster.running[1]._session._client.active_controller_id
        cluster.world.node(f"c{active}").disk.profile.hanging_paths = ("/",)
        begun = trio.current_time()
        request = CreateTopicsRequest(topics=[CreatableTopic(name="t0", num_partitions=1, replication_factor=3)])
        answer = await cluster.client(1).request(request)  # it was under way at the change of leaders
        assert answer.topics[0].error_code in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT)
        await cluster.client(1).create_topic("t1", partitions=3, replicas=3)
        await cluster.leader("t1")
        assert cluster.running[1]._session._client.active_controller_id != active
        assert trio.current_time() - begun < LIMIT_S
        cluster.world.node(f"c{active}").disk.profile.hanging_paths = ()

    run_cluster(scenario, brokers=3, controllers=3)


def test_without_the_limit_appends_stand_still() -> None:
    """The negative control: the same disk, and no guard."""

    async def scenario(cluster) -> None:
        victim = 2
        async with under_load(cluster) as load:
            led = in_directory(cluster, victim, "/data")
            assert led
            begun = trio.current_time()
            profile(cluster, victim).hanging_paths = ("/data",)
            await trio.sleep(8)
            assert all(load.gap(index, begun, begun + 8) > LIMIT_S for index in led)
            profile(cluster, victim).hanging_paths = ()
            await trio.sleep(1)

    run_cluster(scenario, brokers=3, log_dir_sync_timeout_ms="0")
