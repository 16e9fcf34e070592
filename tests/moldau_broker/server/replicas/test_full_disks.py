"""Goal: deleted records free the full disk of a follower, without a restart.

Method: brokers on virtual disks, one of which shrinks below what its leader has.
"""

from __future__ import annotations

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from support.cluster.broker_cluster import batch, run_cluster
from support.cluster.directory_stories import profile


def test_deleted_records_free_the_disk_of_a_follower() -> None:
    async def scenario(cluster) -> None:
        leading = await cluster.leader("t")
        victim = next(one for one in cluster.broker_ids if one != leading)
        leader = cluster.client(leading)

        async def write(count: int) -> None:
            for _ in range(count):
                answer = await leader.produce("t", batch(b"v" * 900), acks=-1)
                assert answer.error_code == ErrorCode.NONE

        await write(60)
        disk = cluster.world.node(f"b{victim}").disk
        profile(cluster, victim).capacity_bytes = disk.used_bytes() + 1_500
        logs = cluster.running[victim].context.logs
        await cluster.until(lambda: logs.room.low)
        await write(30)
        await cluster.until(lambda: victim not in cluster.partition_image("t").isr)
        assert logs.online_directories == ["/data"], "the follower waits, and its directory goes on"
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=50)])],
            timeout_ms=30_000,
        )
        await leader.request(request)
        await cluster.until(lambda: victim in cluster.partition_image("t").isr)
        await cluster.until(lambda: not logs.room.low)
        assert logs.logs["t", 0].log_end_offset == 90
        leader.close()

    async def prepared(cluster) -> None:
        client = cluster.client(1)
        configs = {"segment.bytes": "5000", "min.insync.replicas": "1", "retention.ms": "-1"}
        await client.create_topic("t", replicas=3, **configs)
        client.close()
        await scenario(cluster)

    run_cluster(prepared, brokers=3, replica_lag_time_max_ms="2000")
