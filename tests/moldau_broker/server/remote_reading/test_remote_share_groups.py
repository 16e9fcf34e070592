"""Goal: a share group gets each record of a tiered log, also those that are in the object store only.

Method: a broker in virtual time, and one bare member of the group that begins with the first record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from support.cluster.broker_cluster import run_cluster
from support.objects.tiered import TIERED, created, fill, log_of, objects, store_away
from support.share.member import Member, acquired, values
from support.share.memory_persister import MemoryPersister

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.cluster.broker_cluster import Cluster

RECORDS = 12
ACCEPT = (1,)


def run(test: Callable[[Cluster, Member, list[bytes]], Awaitable[None]], reset: str = "earliest") -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await created(cluster, "t", local_retention_bytes="2000")
        client = cluster.client(leader)
        setting = AlterableConfig(name="share.auto.offset.reset", config_operation=0, value=reset)
        resource = AlterConfigsResource(resource_type=32, resource_name="g", configs=[setting])
        answer = await client.request(IncrementalAlterConfigsRequest(resources=[resource]))
        assert answer.responses[0].error_code == ErrorCode.NONE
        broker = cluster.running[leader]
        await cluster.until(lambda: broker.metadata.image.config(32, "g"))
        broker.context.share_partitions.persister = MemoryPersister()
        stored = await fill(cluster, client, "t", RECORDS)
        await cluster.until(lambda: log_of(cluster, leader, "t").local_log_start_offset >= RECORDS - 4)
        await test(cluster, Member(cluster, leader, "a"), stored)

    run_cluster(scenario, **TIERED)


async def take_all(member: Member, count: int, **fields: Any) -> list[bytes]:
    """Fetches and accepts records until there are so many."""
    found: list[bytes] = []
    ranges: list[tuple[int, int, int]] = []
    for number in range(4 * count):
        acks = {0: [(first, last, ACCEPT) for first, last, _ in ranges]} if ranges else None
        answer = await member.fetch(*((0,) if number == 0 else ()), acks=acks, max_wait_ms=1000, **fields)
        ranges = acquired(answer).get(0, [])
        found += values(answer)
        if len(found) >= count:
            break
    return found


def test_a_member_gets_all_records_from_the_first_on() -> None:
    async def test(cluster: Cluster, member: Member, stored: list[bytes]) -> None:
        reads = objects(cluster).counts["read"]
        assert await take_all(member, RECORDS, max_records=3) == stored
        assert objects(cluster).counts["read"] > reads

    run(test)


def test_a_group_that_begins_at_a_time_begins_in_the_remote_part() -> None:
    async def test(cluster: Cluster, member: Member, stored: list[bytes]) -> None:
        assert (await take_all(member, RECORDS))[:1] == stored[:1]

    run(test, "by_duration:PT1H")


def test_a_store_that_is_slow_or_away_delays_the_records_only() -> None:
    async def test(cluster: Cluster, member: Member, stored: list[bytes]) -> None:
        objects(cluster).profile.delay_min = 0.8
        begin = trio.current_time()
        answer = await member.fetch(0, max_wait_ms=5_000)
        assert values(answer) == []
        assert trio.current_time() - begin < 0.7, "remote.fetch.max.wait.ms is the shorter one"
        with store_away(cluster):
            await trio.sleep(5)
        await trio.sleep(15)
        objects(cluster).profile.delay_min = 0.005
        found: list[bytes] = []
        for _ in range(10):
            answer = await member.fetch(max_wait_ms=1000)
            found += values(answer)
            if found:
                break
        assert found[0] == stored[0]

    run(test)
