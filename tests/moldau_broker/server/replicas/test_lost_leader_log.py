"""Goal: a follower whose log starts above the end of a leader that has lost records gets all of the leader's records.

Method: two brokers in virtual time; the leader's log is destroyed, and the leader is elected again.
"""

from __future__ import annotations

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from moldau_jepsen.world.disk.disk import NodeDisk
from support.cluster.broker_cluster import batch, run_cluster
from support.cluster.directory_stories import read_all


async def write(cluster, *values: bytes) -> None:
    client = cluster.client(await cluster.leader("t"))
    for value in values:
        answer = await client.produce("t", batch(value))
        assert answer.error_code == ErrorCode.NONE
    client.close()


@pytest.mark.parametrize("written_before_it_returns", [0, 2, 7])
def test_a_follower_above_its_leaders_end_starts_over(written_before_it_returns: int) -> None:
    """A follower whose log starts above the end of its leader starts over.

    It was truncated to its own log start, waited there for the leader to reach it, and joined with a hole below.
    """

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", replicas=2, min_insync_replicas="1", unclean_leader_election_enable="true")
        leader = await cluster.leader("t")
        follower = 3 - leader
        await write(cluster, *(b"former %d" % number for number in range(6)))
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=5)])],
            timeout_ms=5_000,
        )
        deleting = cluster.client(leader)
        answer = await deleting.request(request)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        await cluster.until(lambda: cluster.replica(follower, "t").log.log_start_offset == 5)
        await cluster.stop(follower)
        cluster.kill(leader)
        NodeDisk(cluster.world.node(f"b{leader}").disk).remove_tree("/data/t-0")
        cluster.start_broker(leader)
        await cluster.until(lambda: leader in cluster.running and cluster.partition_image("t").leader == leader)
        early = [b"early %d" % number for number in range(written_before_it_returns)]
        await write(cluster, *early)
        cluster.start_broker(follower)
        await cluster.until(lambda: follower in cluster.running)
        await trio.sleep(2)
        late = [b"late %d" % number for number in range(10)]
        await write(cluster, *late)
        await cluster.until(lambda: len(cluster.partition_image("t").isr) == 2)
        await cluster.stop(leader)
        assert await cluster.leader("t", other_than=leader) == follower
        assert cluster.replica(follower, "t").log.log_start_offset == 0
        assert list(await read_all(cluster, "t", 0)) == [*early, *late]
        client.close()
        deleting.close()

    run_cluster(scenario, brokers=2)
