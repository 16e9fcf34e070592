"""Goal: deleted records free the full disk of a replica that is out of sync, and acks=all never waits for a full disk.

Method: brokers on virtual disks, one of which shrinks.
"""

from __future__ import annotations

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from support.cluster.broker_cluster import batch, run_cluster
from support.cluster.directory_stories import TWO, all_assigned, move, place, profile

SIZE = 900


async def write(client, count):
    for _ in range(count):
        answer = await client.produce("t", batch(b"v" * SIZE), acks=-1)
        assert answer.error_code == ErrorCode.NONE


async def created(cluster):
    """Creates the topic; returns its leader, a client of it, and a follower."""
    client = cluster.client(1)
    configs = {"segment.bytes": "5000", "min.insync.replicas": "2", "retention.ms": "-1"}
    await client.create_topic("t", replicas=3, **configs)
    client.close()
    leading = await cluster.leader("t")
    return cluster.client(leading), next(one for one in cluster.broker_ids if one != leading)


def shrink(cluster, broker_id, free):
    profile(cluster, broker_id).capacity_bytes = cluster.world.node(f"b{broker_id}").disk.used_bytes() + free


def test_deleted_records_free_the_disk_of_a_late_replica() -> None:
    """It waits with a working directory, also after a restart, and takes over the leader's log start."""

    async def scenario(cluster) -> None:
        leader, victim = await created(cluster)
        await write(leader, 60)
        await cluster.stop(victim)
        await write(leader, 30)
        shrink(cluster, victim, 1_500)
        cluster.start_broker(victim)
        await cluster.until(lambda: victim in cluster.running)
        logs = cluster.running[victim].context.logs
        await trio.sleep(20)
        assert logs.online_directories == ["/data"], "the follower waits, and its directory goes on"
        assert logs.logs["t", 0].log_end_offset == 60
        assert victim not in cluster.partition_image("t").isr
        partition = DeleteRecordsPartition(partition_index=0, offset=50)
        await leader.request(
            DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[partition])], timeout_ms=30_000)
        )
        await cluster.until(lambda: victim in cluster.partition_image("t").isr)
        await cluster.until(lambda: not logs.room.low)
        assert logs.logs["t", 0].log_end_offset == 90
        leader.close()

    run_cluster(scenario, brokers=3)


def test_a_move_waits_for_room_in_its_target() -> None:
    """The copy used the disk up: the target failed, with all the replicas in it. Another move goes on meanwhile."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=2, replicas=1, retention_ms="-1")
        await cluster.until(lambda: all_assigned(cluster, "t", 2))
        for index, values in enumerate(([b"v" * 20_000] * 30, [b"v"])):
            for value in values:
                assert (await client.produce("t", batch(value), partition=index)).error_code == ErrorCode.NONE
        logs = cluster.running[1].context.logs
        sources = [place(cluster, 1, "t", index) for index in range(2)]
        shrink(cluster, 1, 20_000)
        await cluster.until(lambda: logs.room.low)
        for index in range(2):
            target = "/d2" if sources[index] == "/d1" else "/d1"
            assert await move(cluster, 1, "t", index, target) == ErrorCode.NONE
        await cluster.until(lambda: place(cluster, 1, "t", 1) != sources[1])
        await trio.sleep(20)
        assert logs.online_directories == ["/d1", "/d2"]
        shrink(cluster, 1, 500_000)
        await trio.sleep(5)
        assert logs.online_directories == ["/d1", "/d2"], "there is room, but not enough for the next piece"
        assert logs.future_logs["t", 0].size_bytes < logs.logs["t", 0].size_bytes
        for index in range(2):
            assert (await client.produce("t", batch(b"w"), partition=index)).error_code == ErrorCode.NONE
        shrink(cluster, 1, 800_000)
        await cluster.until(lambda: place(cluster, 1, "t", 0) != sources[0])
        client.close()

    run_cluster(scenario, brokers=1, **TWO)


def test_writes_do_not_wait_for_a_full_disk_in_the_isr() -> None:
    """Its directory fails, and the ISR goes on without it long before ``replica.lag.time.max.ms``."""

    async def scenario(cluster) -> None:
        leader, victim = await created(cluster)
        await write(leader, 60)
        path = place(cluster, victim, "t", 0)
        logs = cluster.running[victim].context.logs
        shrink(cluster, victim, 2_500)
        await cluster.until(lambda: logs.room.low)
        began = trio.current_time()
        await write(leader, 1)
        assert victim in cluster.partition_image("t").isr
        profile(cluster, victim).full_paths = (path,)
        await write(leader, 5)
        assert trio.current_time() - began < 3
        assert path not in logs.online_directories
        assert victim not in cluster.partition_image("t").isr
        leader.close()

    run_cluster(scenario, brokers=3, **TWO)
