"""Goal: a transaction marker reaches followers and consumers as soon as records do.

Method: one and three brokers in virtual time, and records and markers in any order, while a consumer waits.
"""

from __future__ import annotations

from itertools import product

import pytest
import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from support.cluster.broker_cluster import batch, run_cluster

SOON_S = 0.2
"""Far less than followers and consumers wait while nothing is appended."""
WAIT_MS = 10_000


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_marker_is_committed_as_soon_as_records_are(brokers: int) -> None:
    """A transaction coordinator answers its client when the markers are committed."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=brokers)
        leader = await cluster.leader("t")
        replicas, partition = cluster.running[leader].context.replicas, cluster.replica(leader, "t")
        epoch = partition.replica.state.leader_epoch
        producer, consumer = cluster.client(leader), cluster.client(leader)
        answered: list[int] = []

        async def read(offset: int) -> None:
            part = await consumer.fetch("t", offset, max_wait_ms=WAIT_MS)
            answered.append(part.high_watermark)

        await cluster.until(lambda: len(cluster.partition_image("t").isr) == brokers)
        for kinds in product(("record", "marker"), repeat=3):
            for kind in kinds:
                before = partition.log.log_end_offset
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(read, before)
                    await trio.sleep(SOON_S)
                    with trio.fail_after(SOON_S):
                        if kind == "record":
                            assert (await producer.produce("t", batch(b"x"))).error_code == ErrorCode.NONE
                        else:
                            end = replicas.append_marker(
                                partition, producer_id=7, producer_epoch=0, coordinator_epoch=0, commit=True
                            )
                            assert end == partition.log.log_end_offset == partition.replica.log_end_offset
                            await replicas.waits.wait_committed(partition, epoch, end)
                        await cluster.until(lambda: answered)
                assert answered == [before + 1], (kinds, kind)
                answered.clear()

    run_cluster(scenario, brokers=brokers)


def test_only_the_leader_appends_a_marker() -> None:
    """A follower that did would differ from its leader from that offset on."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=2)
        leader = await cluster.leader("t")
        follower = next(each for each in cluster.broker_ids if each != leader)
        replicas, partition = cluster.running[follower].context.replicas, cluster.replica(follower, "t")
        with pytest.raises(KafkaError) as refused:
            replicas.append_marker(partition, producer_id=7, producer_epoch=0, coordinator_epoch=0, commit=True)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert partition.log.log_end_offset == 0

    run_cluster(scenario, brokers=2)
