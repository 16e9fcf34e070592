"""Goal: ListOffsets knows all records of a tiered log, and says what is remote (KIP-405, KIP-1005, KIP-1023).

Method: a broker in virtual time whose older records are in the store only; each special timestamp, and each time.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from moldau_broker.log.values import TimestampOffset
from moldau_broker.server.remote_reading.offsets import RemoteQuestion, search
from support.cluster.broker_cluster import batch, run_cluster
from support.objects.tiered import TIERED, created, delete_records, log_of, objects, store_away

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from support.cluster.broker_cluster import Client, Cluster

RECORDS = 12
EARLIEST, LATEST, MAX, EARLIEST_LOCAL, LATEST_TIERED, PENDING = -2, -1, -3, -4, -5, -6
STEP_MS = 10


def run(
    test: Callable[[Cluster, Client, int], Awaitable[None]],
    order: tuple[int, ...] = tuple(range(RECORDS)),
    segment_bytes: str = "1024",
) -> None:
    """Runs a test on a tiered topic whose records have times in the given order, ``STEP_MS`` apart."""

    async def scenario(cluster: Cluster) -> None:
        leader = await created(cluster, "t", local_retention_bytes="2000", segment_bytes=segment_bytes)
        client = cluster.client(leader)
        first_ms = cluster.client_environment.clock.wall_ms()
        for number in order:
            records = batch(b"v" * 700, timestamp=first_ms + STEP_MS * number)
            assert (await client.produce("t", records)).error_code == ErrorCode.NONE
        await cluster.until(lambda: log_of(cluster, leader, "t").local_log_start_offset >= RECORDS - 4)
        await test(cluster, client, first_ms)

    run_cluster(scenario, **TIERED)


async def found(client: Client, timestamp: int, version: int = 11, **fields: Any) -> tuple[int, int, int]:
    """Returns offset, timestamp and leader epoch; fails with the error code."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[partition])], **fields)
    part = (await client.request(request, version)).topics[0].partitions[0]
    assert part.error_code == ErrorCode.NONE, ErrorCode.of(part.error_code)
    return part.offset, part.timestamp, part.leader_epoch


def test_each_time_finds_its_record_wherever_it_is() -> None:
    async def test(cluster: Cluster, client: Client, first_ms: int) -> None:
        for number in range(RECORDS):
            for earlier in (0, STEP_MS - 1):
                wanted = first_ms + STEP_MS * number - earlier
                assert (await found(client, wanted))[:2] == (number, first_ms + STEP_MS * number)
        assert (await found(client, 0))[0] == 0
        assert (await found(client, first_ms + STEP_MS * RECORDS)) == (-1, -1, -1)

    run(test)


def test_the_special_timestamps() -> None:
    async def test(cluster: Cluster, client: Client, first_ms: int) -> None:
        log = log_of(cluster, 1, "t")
        local, epoch = log.local_log_start_offset, log.latest_epoch
        assert await found(client, EARLIEST) == (0, -1, epoch)
        assert await found(client, LATEST) == (RECORDS, -1, epoch)
        assert await found(client, EARLIEST_LOCAL) == (local, -1, epoch)
        assert await found(client, LATEST_TIERED) == (RECORDS - 2, -1, epoch)
        assert await found(client, PENDING) == (RECORDS - 1, -1, epoch)
        assert await found(client, MAX) == (RECORDS - 1, first_ms + STEP_MS * (RECORDS - 1), epoch)

    run(test)


@pytest.mark.parametrize("largest_at", [2, RECORDS - 1])
def test_the_largest_timestamp_may_be_remote(largest_at: int) -> None:
    order = [number for number in range(RECORDS) if number != largest_at]
    order.insert(largest_at, RECORDS)

    async def test(cluster: Cluster, client: Client, first_ms: int) -> None:
        assert (await found(client, MAX))[:2] == (largest_at, first_ms + STEP_MS * RECORDS)

    run(test, tuple(order))


@pytest.mark.parametrize("largest_left", [1, 6])
def test_a_deleted_record_is_not_the_largest(largest_left: int) -> None:
    """DeleteRecords has removed one with a time in the future, but not its remote segment, which has others."""
    order = list(range(RECORDS))
    order[0], order[largest_left] = 2 * RECORDS, RECORDS

    async def test(cluster: Cluster, client: Client, first_ms: int) -> None:
        await delete_records(client, "t", 1)
        assert (await found(client, MAX))[:2] == (largest_left, first_ms + STEP_MS * RECORDS)

    run(test, tuple(order), segment_bytes="2000")


def test_a_topic_without_tiered_storage_answers_as_before() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        await cluster.leader("t")
        assert (await client.produce("t", batch(b"v"))).error_code == ErrorCode.NONE
        probes = objects(cluster).counts["list"]
        assert (await found(client, EARLIEST_LOCAL))[0] == 0
        assert await found(client, LATEST_TIERED) == (-1, -1, -1)
        assert await found(client, PENDING) == (-1, -1, -1)
        assert objects(cluster).counts["list"] == probes

    run_cluster(scenario, **TIERED)


def test_nothing_is_tiered_yet() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t"))
        assert (await client.produce("t", batch(b"v"))).error_code == ErrorCode.NONE
        assert await found(client, LATEST_TIERED) == (-1, -1, -1)
        assert (await found(client, PENDING))[0] == 0

    run_cluster(scenario, **TIERED)


def test_a_store_that_is_away_is_an_error_for_remote_times_only() -> None:
    async def test(cluster: Cluster, client: Client, first_ms: int) -> None:
        begin = trio.current_time()
        with store_away(cluster):
            codes = set()
            for _ in range(6):
                partition = ListOffsetsPartition(partition_index=0, timestamp=first_ms + 1)
                request = ListOffsetsRequest(
                    replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[partition])], timeout_ms=5_000
                )
                answer = await client.request(request, 11)
                codes.add(ErrorCode.of(answer.topics[0].partitions[0].error_code))
            assert codes <= {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT}
            assert trio.current_time() - begin < 6 * 5.5
            for timestamp in (EARLIEST, LATEST, EARLIEST_LOCAL):
                await found(client, timestamp)
        await trio.sleep(15)
        assert (await found(client, first_ms + 1))[0] == 1

    run(test)


def test_deleted_records_are_not_found() -> None:
    async def test(cluster: Cluster, client: Client, first_ms: int) -> None:
        log_of(cluster, 1, "t").increment_log_start_offset(3)
        assert (await found(client, first_ms))[0] == 3
        assert (await found(client, EARLIEST))[0] == 3

    run(test)


@pytest.mark.parametrize("local_start", [0, 10])
def test_a_search_passes_over_no_segment_that_leaves_the_disk(local_start: int) -> None:
    log = SimpleNamespace(log_start_offset=0, local_log_start_offset=local_start)

    def search_local(timestamp_ms: int) -> Generator[None, None, TimestampOffset]:
        yield
        return at(log.local_log_start_offset)

    partition: Any = SimpleNamespace(log=log, search_timestamp=search_local)
    steps = search(partition, 5)
    first = next(steps)
    log.local_log_start_offset = 20
    if local_start:
        assert isinstance(first, RemoteQuestion)
        assert steps.send(None) is None
    assert isinstance(next(steps), RemoteQuestion)
    with pytest.raises(StopIteration) as end:
        steps.send(at(15))
    assert end.value.value == at(15)


def at(offset: int) -> TimestampOffset:
    return TimestampOffset(timestamp_ms=5, offset=offset, leader_epoch=0)
