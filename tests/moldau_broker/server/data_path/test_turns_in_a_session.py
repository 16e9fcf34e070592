"""Goal: in a fetch session no partition starves behind others that always have records.

Method: one broker on virtual time, and answers that hold the records of one partition of two.
"""

from __future__ import annotations

from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from support.cluster.broker_cluster import Cluster, batch, run_cluster

RECORD = b"x" * 1_000


def test_the_partitions_of_a_session_take_turns() -> None:
    """A partition whose records were sent goes behind the others (KIP-227), though it is never read to its end."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=2)
        for partition in range(2):
            await client.produce("t", batch(RECORD), partition=partition)
        wanted = [FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=100) for number in range(2)]
        topics = [FetchTopic(topic="t", partitions=wanted)]
        session_id, answered = 0, list[list[int]]()
        for epoch in range(4):
            request = FetchRequest(
                max_wait_ms=0, max_bytes=100, session_id=session_id, session_epoch=epoch, topics=topics
            )
            answer = await client.request(request, 12)
            session_id, topics = answer.session_id, []
            parts = [part for topic in answer.responses for part in topic.partitions]
            answered.append([part.partition_index for part in parts if part.records])
        assert answered == [[0], [1], [0], [1]]

    run_cluster(scenario)
