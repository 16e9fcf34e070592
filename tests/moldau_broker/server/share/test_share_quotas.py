"""Goal: a member of a share group reads at the rate of its quota, as a consumer does.

Method: one simulated broker, and a member that fetches as fast as it is answered.
"""

from __future__ import annotations

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from support.cluster.broker_cluster import batch, run_cluster
from support.share.member import Member, acquired
from support.share.memory_persister import MemoryPersister

QUOTA = 10_000.0
"""Bytes per second."""
WARM_SECONDS, MEASURED_SECONDS = 15, 60
"""The allowance of an idle client is used up first."""


async def limit(cluster) -> None:
    """Sets the quota of all clients without one of their own."""
    every = AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name=None)
    operation = OpData(key="consumer_byte_rate", value=QUOTA, remove=False)
    entries = [AlterClientQuotasRequestEntryData(entity=[every], ops=[operation])]
    client = cluster.client(1)
    answer = await client.request(AlterClientQuotasRequest(entries=entries))
    client.close()
    assert answer.entries[0].error_code == ErrorCode.NONE
    await cluster.until(lambda: cluster.image().quota((("client-id", None),)))


def test_a_share_group_is_read_at_the_rate_of_a_quota() -> None:
    async def scenario(cluster) -> None:
        cluster.running[1].context.share_partitions.persister = MemoryPersister()
        producer = cluster.client(1)
        await producer.create_topic("t", retention_ms="-1")
        await limit(cluster)
        member = Member(cluster, 1, "m")
        await member.fetch(0)  # the group begins at the end of the log
        for _ in range(120):
            await producer.produce("t", batch(*[bytes(1_000)] * 10))
        begun, taken, held, pauses = trio.current_time(), 0, None, []
        while (now := trio.current_time() - begun) < WARM_SECONDS + MEASURED_SECONDS:
            answer = await member.fetch(acks=held, max_wait_ms=100, max_records=10)
            held = {0: [(first, last, (1,)) for first, last, _ in acquired(answer).get(0, [])]}
            if now >= WARM_SECONDS:
                taken += sum(len(part.records or b"") for topic in answer.responses for part in topic.partitions)
            pauses.append(answer.throttle_time_ms)
        assert max(pauses) > 0
        assert 0.85 * QUOTA <= taken / MEASURED_SECONDS <= 1.15 * QUOTA

    run_cluster(scenario)
