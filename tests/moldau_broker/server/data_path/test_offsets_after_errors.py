"""Goal: a reader in a fetch session learns the high watermark that it could not take from an error.

Method: one broker on virtual time and a session of a bare client. Followers use the same code: one that is cut back to
the end of the leader's log reads nothing there, and would not know what is committed until the next append.
"""

from __future__ import annotations

from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from support.cluster.broker_cluster import Cluster, batch, run_cluster

END = 2
BEYOND = END + 3


@pytest.mark.parametrize("last_epoch", [-1, 0], ids=["an error", "a diverging epoch"])
def test_offsets_beside_an_error_are_sent_again(last_epoch: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        for _ in range(END):
            await client.produce("t", batch(b"x"))

        async def fetch(session_id: int, epoch: int, offset: int) -> Any:
            partition = FetchPartition(
                partition=0, fetch_offset=offset, last_fetched_epoch=last_epoch, partition_max_bytes=1 << 20
            )
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                max_bytes=1 << 20,
                session_id=session_id,
                session_epoch=epoch,
                topics=[FetchTopic(topic="t", partitions=[partition])],
            )
            return await client.request(request, 12)

        refused = await fetch(0, 0, BEYOND)
        (part,) = refused.responses[0].partitions
        wanted = ErrorCode.OFFSET_OUT_OF_RANGE if last_epoch < 0 else ErrorCode.NONE
        assert (part.error_code, part.diverging_epoch.end_offset) == (wanted, -1 if last_epoch < 0 else END)
        served = await fetch(refused.session_id, 1, END)
        named = [each.high_watermark for topic in served.responses for each in topic.partitions]
        assert named == [END]
        again = await fetch(refused.session_id, 2, END)
        assert not again.responses, "nothing has changed since"

    run_cluster(scenario)


def test_an_offset_is_checked_after_a_full_answer() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=2)
        await client.produce("t", batch(b"x"))
        wanted = [
            FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20),
            FetchPartition(partition=1, fetch_offset=BEYOND, partition_max_bytes=1 << 20),
        ]
        request = FetchRequest(
            max_wait_ms=0, min_bytes=1, max_bytes=1, topics=[FetchTopic(topic="t", partitions=wanted)]
        )
        full, beyond = (await client.request(request, 12)).responses[0].partitions
        assert full.records
        assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    run_cluster(scenario)
