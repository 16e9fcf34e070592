"""Goal: a follower outside the ISR copies no faster than its own rate, and a raised rate holds soon (KIP-73).

Method: one partition gets a second replica in virtual time, while only the follower's side is throttled. The rate is so
low that the pause after each batch is longer than the period in which the follower looks at the rate again.
"""

from __future__ import annotations

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau_broker.server.replicas.replica_fetcher import THROTTLE_RECHECK_MS
from support.cluster.broker_cluster import batch, run_cluster

RATE_KEY = "follower.replication.throttled.rate"
BROKER, SET = 4, 0
BATCHES, PIECE_BYTES = 20, 5_200
"""Each fetch gives one batch of a little less than so many bytes."""


async def raise_rate(cluster, broker_id: int, rate: int) -> None:
    client = cluster.client(broker_id)
    change = AlterableConfig(name=RATE_KEY, config_operation=SET, value=str(rate))
    resource = AlterConfigsResource(resource_type=BROKER, resource_name=str(broker_id), configs=[change])
    answer = await client.request(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
    assert answer.responses[0].error_code == ErrorCode.NONE
    client.close()


@pytest.mark.parametrize("rate", [1_000, 4_000])
def test_a_copy_keeps_to_the_followers_rate_until_it_is_raised(rate: int) -> None:
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=1, follower_replication_throttled_replicas="*")
        leader = await cluster.leader("t")
        other = next(b for b in cluster.broker_ids if b != leader)
        for number in range(BATCHES):
            await cluster.client(leader).produce("t", batch(b"%05d" % number * 1000))
        partition = ReassignablePartition(partition_index=0, replicas=[leader, other])
        request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[partition])])
        assert (await cluster.client(1).request(request)).error_code == ErrorCode.NONE
        begun_s = trio.current_time()
        await cluster.until(lambda: cluster.replica(other, "t") is not None)
        for _ in range(100):
            await trio.sleep(0.1)
            copied = cluster.replica(other, "t").log.size_bytes
            elapsed_s = trio.current_time() - begun_s
            assert copied <= rate * (elapsed_s + 1) + PIECE_BYTES, "a second's worth is saved up, and overdrawn once"
        assert copied >= rate * 5, "the copy goes on"
        assert len(cluster.partition_image("t").isr) == 1, "the story needs a copy that is not over"
        await raise_rate(cluster, other, 10_000_000)
        raised_s = trio.current_time()
        await cluster.until(lambda: len(cluster.partition_image("t").isr) == 2)
        assert trio.current_time() - raised_s < THROTTLE_RECHECK_MS / 1000 + 0.5

    run_cluster(
        scenario, brokers=2, follower_replication_throttled_rate=str(rate), replica_fetch_max_bytes=str(PIECE_BYTES)
    )
