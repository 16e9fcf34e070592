"""Goal: a client with made-up transaction markers blocks no producer and no coordinator, and costs little.

Method: whole brokers on virtual time; any client sends WriteTxnMarkers between the steps of a producer.
"""

from __future__ import annotations

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from moldau.records import iterate_batches
from moldau_broker.coordinator.runtime.partitioning import partition_for
from moldau_broker.server.handlers.transactions import MARKERS_FREE
from support.cluster.broker_cluster import BROKER_PORT, batch, run_cluster, values_of
from support.cluster.transactional_client import TransactionalProducer

EPOCH_MAX = 0x7FFF
COORDINATOR_EPOCH_MAX = 0x7FFFFFFF
NONE = ErrorCode.NONE


def marker(
    producer_id: int, producer_epoch: int, coordinator_epoch: int, *, commit: bool = True, topic: str = "t", index=0
) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=commit,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
        coordinator_epoch=coordinator_epoch,
    )


async def send_markers(client, *markers: WritableTxnMarker) -> list[ErrorCode]:
    """Sends one request; returns the code of each marker."""
    answer = await client.request(WriteTxnMarkersRequest(markers=list(markers)), 1)
    return [ErrorCode(part.error_code) for each in answer.markers for topic in each.topics for part in topic.partitions]


async def transaction(producer: TransactionalProducer, *values: bytes) -> None:
    assert await producer.add(0) is NONE
    for value in values:
        assert await producer.produce(0, value) is NONE
    assert await producer.end(commit=True) is NONE


async def see(cluster, *values: bytes) -> None:
    """Waits until no transaction is open, and checks that readers of committed data see exactly these values."""
    leader = await cluster.leader("t")
    log = cluster.replica(leader, "t").log
    await cluster.until(lambda: log.last_stable_offset == log.log_end_offset)
    found: list[bytes] = []
    offset = 0
    while offset < log.log_end_offset:  # a fetch ends with its segment
        part = await cluster.client(leader).fetch("t", offset, isolation_level=1)
        assert not part.aborted_transactions
        found += values_of(part.records)
        offset = max(header.next_offset for _, header in iterate_batches(memoryview(part.records)))
    assert found == list(values)


async def led_elsewhere(cluster, broker_id: int) -> int:
    """Returns a partition of ``t`` that another broker leads."""
    leaders = [await cluster.leader("t", index) for index in range(3)]
    return next(index for index, leader in enumerate(leaders) if leader != broker_id)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("brokers", [1, 3])
def test_a_made_up_coordinator_epoch_fences_no_coordinator(brokers: int, commit: bool) -> None:
    """The epoch is the greatest possible, or one above that of the coordinator's partition."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=brokers)
        producer = TransactionalProducer(cluster, "tx")
        await producer.begin()
        assert await producer.add(0) is NONE
        assert await producer.produce(0, b"a") is NONE
        leader = cluster.client(await cluster.leader("t"))
        index = partition_for("tx", 2)
        for epoch in (COORDINATOR_EPOCH_MAX, cluster.partition_image("__transaction_state", index).leader_epoch + 1):
            forged = marker(producer.producer_id, producer.epoch, epoch, commit=commit)
            assert await send_markers(leader, forged) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert await producer.end(commit=True) is NONE
        await see(cluster, b"a")
        await transaction(producer, b"b")
        await see(cluster, b"a", b"b")
        other = TransactionalProducer(cluster, "tx")
        await other.begin()
        await transaction(other, b"c")
        await see(cluster, b"a", b"b", b"c")

    run_cluster(scenario, brokers=brokers)


def test_a_made_up_end_of_offsets_fences_no_coordinator() -> None:
    """A partition of ``__consumer_offsets`` handles markers differently, but checks them by the same rules."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t")
        producer = TransactionalProducer(cluster, "tx")
        await producer.coordinator("g", 0)
        await producer.begin()
        await cluster.leader("__consumer_offsets")
        topic = "__consumer_offsets"
        forged = marker(producer.producer_id, EPOCH_MAX, COORDINATOR_EPOCH_MAX, topic=topic)
        (code,) = await send_markers(cluster.client(1), forged)
        assert code is ErrorCode.INVALID_TXN_STATE
        assert cluster.replica(1, topic).log.log_end_offset == 0

    run_cluster(scenario)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_made_up_producer_epoch_fences_no_producer(is_open: bool) -> None:
    """Its coordinator ends no transaction with that epoch, whether one is open or not."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t")
        producer = TransactionalProducer(cluster, "tx")
        await producer.begin()
        await transaction(producer, b"a")
        await see(cluster, b"a")
        if is_open:
            assert await producer.add(0) is NONE
            assert await producer.produce(0, b"b") is NONE
        forged = marker(producer.producer_id, EPOCH_MAX, 0)
        assert await send_markers(cluster.client(1), forged) == [ErrorCode.INVALID_TXN_STATE]
        if is_open:
            assert await producer.end(commit=True) is NONE
        else:
            await transaction(producer, b"b")
        await see(cluster, b"a", b"b")

    run_cluster(scenario)


@pytest.mark.parametrize("ahead", [0, 1_000_000])
def test_a_producer_id_that_is_not_given_out_yet_is_not_fenced(ahead: int) -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        before = TransactionalProducer(cluster, "before")
        await before.begin()
        next_id = before.producer_id + 1 + ahead
        (code,) = await send_markers(client, marker(next_id, EPOCH_MAX, COORDINATOR_EPOCH_MAX))
        expected = ErrorCode.COORDINATOR_NOT_AVAILABLE if ahead else ErrorCode.INVALID_TXN_STATE
        assert code is expected, "an id that no broker has yet, or one of the block that a broker has"
        assert cluster.replica(1, "t").log.log_end_offset == 0
        if not ahead:
            records = batch(b"a", producer_id=next_id, producer_epoch=0, base_sequence=0)
            assert (await client.produce("t", records)).error_code == NONE

    run_cluster(scenario)


def questions_of(cluster) -> list[tuple[int, object]]:
    """Collects what leaders ask coordinators about markers."""
    asked: list[tuple[int, object]] = []
    for broker_id, broker in cluster.running.items():
        verifier = broker.context.verifier
        confirm = verifier.confirm_marker

        async def counted(marker, keys, *, confirm=confirm, broker_id=broker_id):
            asked.append((broker_id, marker))
            return await confirm(marker, keys)

        verifier.confirm_marker = counted
    return asked


def test_an_ordinary_end_needs_no_question() -> None:
    """The leader of the partition and the coordinator are different brokers, so that the marker is sent."""

    async def scenario(cluster) -> None:
        producer = TransactionalProducer(cluster, "tx")
        await producer.begin()
        coordinator = (await producer.coordinator("tx")).broker_id
        await cluster.client(1).create_topic("t", partitions=3)
        away = await led_elsewhere(cluster, coordinator)
        asked = questions_of(cluster)
        for _ in range(3):
            assert await producer.add(away) is NONE
            assert await producer.produce(away, b"a") is NONE
            assert await producer.end(commit=True) is NONE
        assert await producer.add(away) is NONE
        assert asked == []

    run_cluster(scenario, brokers=3)


def test_an_end_where_nothing_was_written_is_confirmed() -> None:
    """A partition without a record of the producer has no state of it; the coordinator confirms the end."""

    async def scenario(cluster) -> None:
        producer = TransactionalProducer(cluster, "tx")
        await producer.begin()
        coordinator = (await producer.coordinator("tx")).broker_id
        await cluster.client(1).create_topic("t", partitions=3)
        away = await led_elsewhere(cluster, coordinator)
        asked = questions_of(cluster)
        assert await producer.add(away) is NONE
        assert await producer.end(commit=True) is NONE
        assert await producer.add(away) is NONE, "the first one is complete"
        assert [broker_id for broker_id, _ in asked] == [await cluster.leader("t", away)]
        assert cluster.replica(await cluster.leader("t", away), "t", away).log.log_end_offset == 1

    run_cluster(scenario, brokers=3)


def test_clients_of_other_listeners_abort_only_open_transactions() -> None:
    """Brokers have a listener of their own here; a client can still abort a hanging transaction (KIP-664)."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        producer = TransactionalProducer(cluster, "tx")
        await producer.begin()
        assert await producer.add(0) is NONE
        assert await producer.produce(0, b"a") is NONE
        identity = producer.producer_id, producer.epoch
        for forged in (
            marker(*identity, 0, commit=True),
            marker(*identity, 1, commit=False),
            marker(identity[0], identity[1] + 1, 0, commit=False),
            marker(identity[0] + 1, 0, 0, commit=False),
        ):
            assert await send_markers(client, forged) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
        assert cluster.replica(1, "t").log.log_end_offset == 1
        assert await send_markers(client, marker(*identity, 0, commit=False)) == [NONE]
        log = cluster.replica(1, "t").log
        await cluster.until(lambda: log.last_stable_offset == 2)

    listeners = f"PLAINTEXT://b1:{BROKER_PORT},BROKERS://b1:9094"
    run_cluster(
        scenario,
        own_listeners={1: listeners},
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,BROKERS:PLAINTEXT,CONTROLLER:PLAINTEXT",
        inter_broker_listener_name="BROKERS",
    )


def test_one_request_of_many_markers_takes_little_time() -> None:
    """130 KB of markers waited for their commits one after the other: 71 s on real disks."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", replicas=3)
        producer = TransactionalProducer(cluster, "tx")
        await producer.begin()
        leader = cluster.client(await cluster.leader("t"))
        log = cluster.replica(leader.broker_id, "t").log
        many = [marker(number, 0, 0) for number in range(MARKERS_FREE)]
        began = trio.current_time()
        codes = await send_markers(leader, *many)
        assert set(codes) <= {ErrorCode.INVALID_TXN_STATE, ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert trio.current_time() - began < 1
        too_many = many * 5
        assert set(await send_markers(leader, *too_many)) == {ErrorCode.INVALID_REQUEST}
        assert log.log_end_offset == 0
        await transaction(producer, b"a")
        await see(cluster, b"a")

    run_cluster(scenario, brokers=3, request_max_entries="1000000")
