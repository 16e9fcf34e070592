"""Goal: a replica that starts while its leader's log start lies inside a batch joins the ISR, and serves the rest.

Method: two brokers in virtual time; the follower has no records when it restarts, and becomes leader in the end.
"""

from __future__ import annotations

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from support.cluster.broker_cluster import batch, run_cluster, values_of

EARLIEST = -2


@pytest.mark.parametrize("flush_messages", ["1", "1000"])
@pytest.mark.parametrize("start", [5, 15])
def test_a_replica_of_a_log_starting_inside_a_batch_joins(start: int, flush_messages: str) -> None:
    """A replica whose leader's log starts inside a batch joins the ISR.

    It refused the batch that holds the log start again and again, and could not become a replica.
    """
    values = [b"%d" % number for number in range(30)]

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", replicas=2, min_insync_replicas="1", flush_messages=flush_messages)
        leader = await cluster.leader("t")
        follower = 3 - leader
        await cluster.stop(follower)
        await cluster.until(lambda: cluster.partition_image("t").isr == (leader,))
        writing = cluster.client(leader)
        for first in (0, 10, 20):
            answer = await writing.produce("t", batch(*values[first : first + 10]))
            assert answer.error_code == ErrorCode.NONE
        partitions = [DeleteRecordsPartition(partition_index=0, offset=start)]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=partitions)], timeout_ms=5_000)
        assert (await writing.request(request)).topics[0].partitions[0].error_code == ErrorCode.NONE
        cluster.start_broker(follower)
        await cluster.until(lambda: len(cluster.partition_image("t").isr) == 2)
        log = cluster.replica(follower, "t").log
        assert (log.log_start_offset, log.log_end_offset) == (start, 30)
        await cluster.stop(leader)
        assert await cluster.leader("t", other_than=leader) == follower
        reading = cluster.client(follower)
        assert (await reading.offset("t", EARLIEST)).offset == start
        assert (await reading.fetch("t", start - 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        served = values_of((await reading.fetch("t", start)).records)
        assert served == values[start // 10 * 10 :], "whole batches; clients leave out what lies below"
        for each in (client, writing, reading):
            each.close()

    run_cluster(scenario, brokers=2)
