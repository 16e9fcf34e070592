"""Goal: a consumer reads a tiered log as any other log: each record once, in order, wherever it is.

Method: whole brokers in virtual time, with the store of the simulated world, whose calls take some 25 ms and fail when
the test says so. Requests go to single brokers, so that a test sees each answer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.records import iterate_batches
from moldau_broker.log.values import AppendOrigin
from moldau_broker.server.remote_reading.reads import SHARED_MS
from support.cluster.broker_cluster import batch, run_cluster, values_of
from support.metrics_samples import scrape
from support.objects.tiered import TIERED, created, fill, log_of, objects, store_away

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.cluster.broker_cluster import Client, Cluster

RECORDS = 12
LOCAL = {"local_retention_bytes": "2000"}
RACKS: dict[str, Any] = {
    "racks": {1: "r1", 2: "r2"},
    "replica_selector_class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


def on_brokers(test: Callable[[Cluster], Awaitable[None]], brokers: int = 1, **settings: Any) -> None:
    run_cluster(test, brokers=brokers, **TIERED, **settings)


async def tiered(cluster: Cluster, topic: str = "t", *, replicas: int = 1) -> tuple[int, list[bytes]]:
    """Makes a topic whose older records are in the store only, on all replicas; returns leader and values."""
    leader = await created(cluster, topic, replicas=replicas, **LOCAL)
    values = await fill(cluster, cluster.client(leader), topic, RECORDS)
    await until_tiered(cluster, topic)
    return leader, values


async def until_tiered(cluster: Cluster, topic: str, start: int = RECORDS - 4) -> None:
    replicas = cluster.partition_image(topic).replicas
    await cluster.until(lambda: all(log_of(cluster, each, topic).local_log_start_offset >= start for each in replicas))


async def read_all(client: Client, topic: str, offset: int = 0, *, end: int = RECORDS, **fields: Any) -> list[bytes]:
    """Reads up to an offset, as a consumer does; fails if an answer is an error, or there are too many without records.

    Only the position shows progress: what it skips is not in the result.
    """
    found: list[bytes] = []
    idle = 0
    while offset < end:
        part = await client.fetch(topic, offset, max_wait_ms=500, **fields)
        assert part.error_code == ErrorCode.NONE, ErrorCode.of(part.error_code)
        values = values_of(part.records)
        found += values
        offset += len(values)
        idle = 0 if values else idle + 1
        assert idle < 4, f"no records at {offset}"
    return found


@pytest.mark.parametrize("partition_max_bytes", [1, 1 << 20])
def test_a_consumer_reads_each_record_once_across_the_border(partition_max_bytes: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        leader, values = await tiered(cluster)
        client = cluster.client(leader)
        assert log_of(cluster, leader, "t").local_log_start_offset > 4
        reads = objects(cluster).counts["read"]
        assert await read_all(client, "t", partition_max_bytes=partition_max_bytes) == values
        assert objects(cluster).counts["read"] > reads
        for offset in range(RECORDS):
            assert (await read_all(client, "t", offset, end=offset + 1))[0] == values[offset]

    on_brokers(scenario)


def test_records_that_were_read_come_without_another_request() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader, values = await tiered(cluster)
        assert await read_all(cluster.client(leader), "t") == values
        reads = objects(cluster).counts["read"]
        assert await read_all(cluster.client(leader), "t") == values
        assert objects(cluster).counts["read"] == reads

    on_brokers(scenario)


def test_a_slow_store_delays_no_answer_beyond_its_time() -> None:
    """The answer is empty then and no error; the read goes on, and a later fetch finds what it has read."""

    async def scenario(cluster: Cluster) -> None:
        leader, values = await tiered(cluster)
        client = cluster.client(leader)
        objects(cluster).profile.delay_min = 0.7  # for the listing, the auxiliary parts and the records
        waits = []
        found: list[bytes] = []
        while not found:
            begin = trio.current_time()
            part = await client.fetch("t", 0, max_wait_ms=400)
            waits.append(trio.current_time() - begin)
            assert part.error_code == ErrorCode.NONE
            assert part.high_watermark == RECORDS
            found = values_of(part.records)
        assert found == values[: len(found)]
        assert 3 <= len(waits) <= 6
        assert all(wait < 0.5 for wait in waits)
        begin = trio.current_time()
        part = await client.fetch("t", 4, max_wait_ms=60_000)
        assert 0.2 <= trio.current_time() - begin < 0.4, "remote.fetch.max.wait.ms is the shorter one"

    on_brokers(scenario, remote_fetch_max_wait_ms="250")


def test_a_client_that_does_not_wait_gets_on_too() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader, values = await tiered(cluster)
        client = cluster.client(leader)
        found: list[bytes] = []
        for _ in range(200):
            part = await client.fetch("t", len(found), max_wait_ms=0)
            assert part.error_code == ErrorCode.NONE
            found += values_of(part.records)
            await trio.sleep(0.02)
        assert found == values

    on_brokers(scenario)


def test_a_store_that_is_away_is_an_error_and_no_wrong_offset() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader, values = await tiered(cluster)
        client = cluster.client(leader)
        codes = set()
        with store_away(cluster):
            for _ in range(40):
                part = await client.fetch("t", 0, max_wait_ms=500)
                assert not values_of(part.records)
                codes.add(ErrorCode.of(part.error_code))
            assert await read_all(client, "t", RECORDS - 1) == values[-1:], "local records need no store"
        assert codes == {ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR}
        await trio.sleep(15)
        assert await read_all(client, "t") == values

    on_brokers(scenario)


def test_an_answer_with_local_records_waits_for_no_store() -> None:
    """Two partitions of one fetch: the local one is answered at once, the remote one with a later answer."""

    async def scenario(cluster: Cluster) -> None:
        leader, values = await tiered(cluster)
        client = cluster.client(leader)
        await client.create_topic("u")
        await cluster.leader("u")
        assert (await client.produce("u", batch(b"local"))).error_code == ErrorCode.NONE
        objects(cluster).profile.delay_min = 0.2
        for local_offset in (0, 1):  # with a local record, and without one
            begin = trio.current_time()
            topics = await fetch_two(client, local_offset)
            spent = trio.current_time() - begin
            assert topics["u"] == [b"local"][local_offset:]
            if local_offset == 0:
                assert spent < 0.1
                assert topics["t"] == []
            else:
                assert topics["t"] == values[: len(topics["t"])] != []

    on_brokers(scenario, remote_fetch_max_wait_ms="5000")


def test_a_local_record_ends_the_wait_for_the_store() -> None:
    """The record of the other partition would be as late as the store is slow; the read goes on."""

    async def scenario(cluster: Cluster) -> None:
        leader, values = await tiered(cluster)
        client = cluster.client(leader)
        await client.create_topic("u")
        await cluster.leader("u")
        objects(cluster).profile.delay_min = 1.0
        answers: list[dict[str, list[bytes]]] = []

        async def ask() -> None:
            answers.append(await fetch_two(client, 0))

        begin = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.3)
            assert (await cluster.client(leader).produce("u", batch(b"local"))).error_code == ErrorCode.NONE
        assert trio.current_time() - begin < 0.5
        assert answers == [{"t": [], "u": [b"local"]}]
        await trio.sleep(5)
        begin = trio.current_time()
        assert (await fetch_two(client, 1))["t"] == values[:1]
        assert trio.current_time() - begin < 0.1, "it has been read meanwhile"

    on_brokers(scenario, remote_fetch_max_wait_ms="5000")


def test_consumers_that_read_side_by_side_share_each_read() -> None:
    """Else the first one would take the records, and each of the others would ask and wait once more."""

    async def scenario(cluster: Cluster) -> None:
        leader, values = await tiered(cluster)
        for offset in range(3):
            answers: list[Any] = []

            async def ask(client: Client, offset: int, answers: list[Any]) -> None:
                answers.append((await client.fetch("t", offset, max_wait_ms=5000)).records)

            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(ask, cluster.client(leader), offset, answers)
            assert [values_of(each)[:1] for each in answers] == [values[offset : offset + 1]] * 5

    on_brokers(scenario, remote_fetch_max_wait_ms="5000")


def test_a_read_keeps_no_request_of_a_client_that_has_gone() -> None:
    """Else each connection that comes and goes would hold its request until the store answers."""

    async def scenario(cluster: Cluster) -> None:
        leader, _ = await tiered(cluster)
        objects(cluster).profile.delay_min = 10.0

        async def ask(client: Client) -> None:
            with pytest.raises((OSError, EOFError, KafkaError)):
                await client.fetch("t", 0, max_wait_ms=60_000)

        for _ in range(3):
            client = cluster.client(leader)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, client)
                await trio.sleep(0.5)
                (read,) = cluster.running[leader].context.remote_reading.reads._reads.values()
                assert len(read._waiters) == 1
                client.close()
                await trio.sleep(0.5)
                assert not read._waiters

    on_brokers(scenario, remote_fetch_max_wait_ms="60000")


async def fetch_two(client: Client, local_offset: int, session: tuple[int, int] = (0, -1)) -> dict[str, list[bytes]]:
    request = FetchRequest(
        max_wait_ms=5000,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            FetchTopic(
                topic=topic, partitions=[FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)]
            )
            for topic, offset in (("t", 0), ("u", local_offset))
        ],
    )
    answer = await client.request(request, 12)
    return {topic.topic: values_of(topic.partitions[0].records) for topic in answer.responses}


def test_a_session_of_fetches_reads_remote_records() -> None:
    """An incremental fetch names no partition that goes on from where it is; an empty answer leaves it due."""

    async def scenario(cluster: Cluster) -> None:
        leader, values = await tiered(cluster)
        client = cluster.client(leader)
        objects(cluster).profile.delay_min = 0.3
        found: list[bytes] = []
        session_id, epoch, empty = 0, 0, 0
        changed = True
        while len(found) < RECORDS:
            part = FetchPartition(partition=0, fetch_offset=len(found), partition_max_bytes=1100)
            request = FetchRequest(
                max_wait_ms=200,
                min_bytes=1,
                max_bytes=1 << 20,
                session_id=session_id,
                session_epoch=epoch,
                topics=[FetchTopic(topic="t", partitions=[part])] if changed else [],
            )
            answer = await client.request(request, 12)
            assert answer.error_code == ErrorCode.NONE
            session_id, epoch = answer.session_id, epoch + 1
            new = [value for topic in answer.responses for value in values_of(topic.partitions[0].records)]
            changed = bool(new)
            empty += not new
            found += new
        assert session_id
        assert empty > 0
        assert found == values

    on_brokers(scenario)


def test_aborted_transactions_are_left_out_as_in_a_local_log() -> None:
    """A remote answer names the transactions whose markers lie in its segment, in later ones, and in the local log."""

    async def scenario(cluster: Cluster) -> None:
        leader = await created(cluster, "t", **LOCAL)
        client = cluster.client(leader)
        replica = cluster.replica(leader, "t")
        manager = cluster.running[leader].context.replicas
        now_ms = cluster.client_environment.clock.wall_ms()
        expected: list[bytes] = []
        for number in range(24):
            value = b"%06d" % number * 60
            aborts = number % 3 == 0
            records = batch(
                value, timestamp=now_ms, producer_id=50, producer_epoch=0, base_sequence=number, is_transactional=True
            )
            answer = manager.append_now(replica, records, acks=-1, origin=AppendOrigin.CLIENT)
            assert answer.last_offset >= 0
            other = b"other %06d" % number * 20
            assert (await client.produce("t", batch(other, timestamp=now_ms))).error_code == ErrorCode.NONE
            manager.append_marker(replica, producer_id=50, producer_epoch=0, coordinator_epoch=0, commit=not aborts)
            expected += [other] if aborts else [value, other]
        end = replica.log.log_end_offset
        await until_tiered(cluster, "t", end // 2)
        assert await committed(client, "t", end) == expected

    on_brokers(scenario)


class Batch(NamedTuple):
    last_offset: int
    next_offset: int
    producer_id: int
    is_control: bool
    is_transactional: bool
    values: list[bytes]


def batches_of(records: Any) -> list[Batch]:
    data = memoryview(records or b"")
    return [
        Batch(
            header.last_offset,
            header.next_offset,
            header.producer_id,
            header.is_control,
            header.is_transactional,
            [] if header.is_control else values_of(data[position : position + header.size_bytes]),
        )
        for position, header in iterate_batches(data)
    ]


async def committed(client: Client, topic: str, end: int) -> list[bytes]:
    """Reads as a ``read_committed`` consumer does."""
    found: list[bytes] = []
    offset = 0
    while offset < end:
        part = await client.fetch(topic, offset, max_wait_ms=500, isolation_level=1, partition_max_bytes=1500)
        assert part.error_code == ErrorCode.NONE
        aborted = sorted((each.first_offset, each.producer_id) for each in part.aborted_transactions or ())
        active: set[int] = set()
        for each in batches_of(part.records):
            while aborted and aborted[0][0] <= each.last_offset:
                active.add(aborted.pop(0)[1])
            if each.is_control:
                active.discard(each.producer_id)
            elif not (each.is_transactional and each.producer_id in active):
                found += each.values
            offset = each.next_offset
    return found


def test_a_follower_in_sync_serves_remote_records() -> None:
    """A consumer in its rack reads there, wherever the records are (KIP-392)."""

    async def scenario(cluster: Cluster) -> None:
        leader, values = await tiered(cluster, replicas=2)
        follower = 3 - leader
        client = cluster.client(follower)
        assert log_of(cluster, follower, "t").local_log_start_offset > 4
        assert await read_all(client, "t", rack_id=f"r{follower}") == values
        assert cluster.running[follower].context.remote_reading.reads.statistics().bytes_read > 0

    on_brokers(scenario, 2, **RACKS)


def test_a_consumer_goes_on_at_a_new_leader() -> None:
    """The new leader has not listed the partition before, and its log begins elsewhere."""

    async def scenario(cluster: Cluster) -> None:
        leader, values = await tiered(cluster, replicas=3)
        found = await read_all(cluster.client(leader), "t", end=3, partition_max_bytes=1)
        assert found == values[:3]
        objects(cluster).profile.delay_min = 1.0
        answers: list[Any] = []

        async def ask() -> None:
            try:
                answers.append(await cluster.client(leader).fetch("t", 3, max_wait_ms=400))
            except ConnectionError as error:
                answers.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.1)
            cluster.kill(leader)
        successor = await cluster.leader("t", other_than=leader)
        objects(cluster).profile.delay_min = 0.005
        assert await read_all(cluster.client(successor), "t", 3) == values[3:]

    on_brokers(scenario, 3)


def test_a_change_of_leadership_ends_the_wait_for_the_store() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader, _ = await tiered(cluster, replicas=2)
        epoch = cluster.partition_image("t").leader_epoch
        objects(cluster).profile.delay_min = 30.0
        waited: list[float] = []

        async def ask() -> None:
            part = await cluster.client(leader).fetch("t", 0, max_wait_ms=60_000, current_leader_epoch=epoch)
            waited.append(trio.current_time())
            assert ErrorCode.of(part.error_code) is ErrorCode.FENCED_LEADER_EPOCH

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.5)
            begin = trio.current_time()
            await cluster.stop(leader)
        assert waited[0] - begin < 5

    on_brokers(scenario, 2, remote_fetch_max_wait_ms="60000")


def test_deleted_records_in_the_remote_range_are_out_of_range() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader, values = await tiered(cluster, replicas=2)
        client = cluster.client(leader)
        assert await read_all(client, "t") == values  # they are in the cache
        partitions = [DeleteRecordsPartition(partition_index=0, offset=3)]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=partitions)], timeout_ms=5_000)
        (deleted,) = (await client.request(request)).topics[0].partitions
        assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.NONE, 3)
        part = await client.fetch("t", 2, max_wait_ms=500)
        assert ErrorCode.of(part.error_code) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert part.log_start_offset == 3
        assert await read_all(client, "t", 3) == values[3:]
        assert (await client.offset("t", -2)).offset == 3

    on_brokers(scenario, 2)


def test_reads_are_counted_under_names_of_kafka() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader, values = await tiered(cluster)
        client = cluster.client(leader)
        assert await read_all(client, "t") == values
        await trio.sleep(2 * SHARED_MS / 1000)
        with store_away(cluster):
            assert (await client.fetch("t", 1, max_wait_ms=0)).error_code == ErrorCode.NONE
            await trio.sleep(15)
        found = scrape(cluster.running[leader])
        for topic in ("", "t"):
            prefix, suffix = "kafka_server_brokertopicmetrics_remotefetch", f'_total{{topic="{topic}"}}'
            assert found[f"{prefix}bytes{suffix}"] > 4 * 700
            assert found[f"{prefix}requests{suffix}"] > 4
            assert found[f"{prefix}errors{suffix}"] == 0, "the records were in memory"
        assert found["moldau_remote_reads"] == 0
        assert found["moldau_remote_reads_refused_total"] == 0
        for part in ("records", "indexes"):
            assert 0 < found[f'moldau_remote_cache_bytes{{part="{part}"}}'] < 1 << 20
            assert found[f'moldau_remote_cache_misses_total{{part="{part}"}}'] > 0
        assert found['moldau_remote_cache_hits_total{part="records"}'] > 0

    on_brokers(scenario)


def test_the_configuration_bounds_the_reads_in_progress() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader, values = await tiered(cluster)
        reads = cluster.running[leader].context.remote_reading.reads
        objects(cluster).profile.delay_min = 2.0
        async with trio.open_nursery() as nursery:
            for offset in range(3):
                nursery.start_soon(partial(cluster.client(leader).fetch, "t", offset, max_wait_ms=400))
            await trio.sleep(0.3)
            assert reads.statistics().in_progress == 2
            assert reads.statistics().refused > 0
        objects(cluster).profile.delay_min = 0.0
        assert await read_all(cluster.client(leader), "t") == values

    on_brokers(scenario, remote_log_reader_threads="2")


def test_the_wait_for_a_full_table_of_reads_is_bounded() -> None:
    """A request that finds no room for its read is answered without records after its wait, and asks again."""

    async def scenario(cluster: Cluster) -> None:
        leader, values = await tiered(cluster)
        client = cluster.client(leader)
        reads = cluster.running[leader].context.remote_reading.reads
        reads._reads_max = lambda: 0
        begin = trio.current_time()
        part = await client.fetch("t", 0, max_wait_ms=300)
        assert (part.error_code, values_of(part.records)) == (ErrorCode.NONE, [])
        assert 0.3 <= trio.current_time() - begin < 0.4
        assert reads.statistics().refused > 0
        reads._reads_max = lambda: 1
        assert await read_all(client, "t") == values

    on_brokers(scenario)
