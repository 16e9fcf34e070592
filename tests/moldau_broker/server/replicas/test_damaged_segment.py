"""Goal: a broker whose closed segment has lost its end never skips the lost records, and serves all others.

Method: a whole broker in virtual time; while it is down, one of its closed files is truncated inside a batch or between
two.
"""

from __future__ import annotations

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from support.cluster.broker_cluster import batch, run_cluster, values_of

RECORDS = 60


async def fetched(client, *places: tuple[int, int]):
    """Returns the answers of one request for some partitions and offsets."""
    partitions = [
        FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        for partition, offset in places
    ]
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[FetchTopic(topic="t", partitions=partitions)]
    )
    answer = await client.request(request, 12)
    return list(answer.responses[0].partitions)


@pytest.mark.parametrize("bytes_beyond", [0, 10])
def test_lost_records_of_a_closed_segment_are_never_skipped(bytes_beyond: int) -> None:
    """A fetch of records that a closed segment has lost is refused, and never answered with later records."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=2, segment_bytes="2000")
        await cluster.leader("t", 1)
        client = cluster.client(1)
        for number in range(RECORDS):
            for partition in (0, 1):
                await client.produce("t", batch(b"%d" % number + bytes(50)), partition=partition)
        log = cluster.replica(1, "t", 0).log
        assert log.storage.segments.count > 3
        segment = log.segments[1]
        first, following = segment.base_offset, log.segments[2].base_offset
        position, header = segment.find(first + 3)
        path = segment.path(".log")
        await cluster.stop(1)
        cluster.world.node("b1").disk.cut_short(path, position + bytes_beyond)
        cluster.start_broker(1)
        await cluster.leader("t", 0)
        client = cluster.client(1)
        for lost in (*range(header.base_offset, following), header.base_offset):
            damaged, whole = await fetched(client, (0, lost), (1, lost))
            assert damaged.error_code == ErrorCode.CORRUPT_MESSAGE
            assert not damaged.records
            assert whole.error_code == ErrorCode.NONE
            assert values_of(whole.records)[0].startswith(b"%d" % lost)
        before, after = await fetched(client, (0, first)), await fetched(client, (0, following))
        assert [value.rstrip(b"\0") for value in values_of(before[0].records)] == [
            b"%d" % number for number in range(first, header.base_offset)
        ]
        assert values_of(after[0].records)[0].startswith(b"%d" % following)

    run_cluster(scenario)
