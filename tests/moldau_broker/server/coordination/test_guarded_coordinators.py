"""Goal: no client can write the coordinators' state, crowd out their waits, or see the log end move backwards.

Method: whole brokers on virtual time and a bare client.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from moldau_broker.coordinator.runtime.partitioning import partition_for
from support.cluster.broker_cluster import batch, run_cluster
from support.cluster.transactional_client import TransactionalProducer
from support.coordinator.group_world import code_of, commit_request, join_request

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOPICS = ("__consumer_offsets", "__transaction_state")
"""By their key types."""


@contextmanager
def _paused(cluster, broker_id: int) -> Iterator[None]:
    """Pauses a broker, and resumes it in any case: a paused one does not end."""
    node = cluster.world.node(f"b{broker_id}")
    node.pause()
    try:
        yield
    finally:
        node.resume()


async def _coordinator_of(cluster, key: str, topic: str) -> tuple[int, int]:
    """Returns the broker and the partition that hold the state of a group or of a transactional id."""
    request = FindCoordinatorRequest(key_type=_TOPICS.index(topic), coordinator_keys=[key])
    answer = await cluster.client(min(cluster.running)).request(request, 4)
    found = answer.coordinators[0]
    assert found.error_code == ErrorCode.NONE
    partition = partition_for(key, len(cluster.image().topics_by_name.get(topic).partitions))
    await cluster.until(lambda: cluster.replica(found.node_id, topic, partition) is not None)
    return found.node_id, partition


@pytest.mark.parametrize("topic", _TOPICS)
def test_clients_do_not_write_the_state_of_coordinators(topic: str) -> None:
    async def scenario(cluster) -> None:
        coordinator, partition = await _coordinator_of(cluster, "x", topic)
        client = cluster.client(coordinator)
        await client.create_topic("t")
        fields = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
        for records in (batch(b"x"), batch(b"x", **fields), batch(b"x", **fields, is_transactional=True)):
            request = ProduceRequest(
                transactional_id="x",
                acks=-1,
                timeout_ms=5000,
                topic_data=[
                    TopicProduceData(name=name, partition_data=[PartitionProduceData(index=index, records=batch_of_it)])
                    for name, index, batch_of_it in ((topic, partition, records), ("t", 0, batch(b"t")))
                ],
            )
            refused, taken = (await client.request(request, 12)).responses
            assert refused.partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert taken.partition_responses[0].error_code == ErrorCode.NONE
        assert (await client.offset(topic, partition=partition)).offset == 0
        assert (await client.offset("t")).offset == 3

    run_cluster(scenario)


def test_a_join_with_member_id_and_instance_id_is_refused() -> None:
    async def scenario(cluster) -> None:
        coordinator, _ = await _coordinator_of(cluster, "g", _TOPICS[0])
        client = cluster.client(coordinator)
        static = await client.request(join_request(instance="i"), 7)
        assert code_of(static) is ErrorCode.NONE
        given = await client.request(join_request(), 7)
        assert code_of(given) is ErrorCode.MEMBER_ID_REQUIRED
        refused = await client.request(join_request(given.member_id, instance="i"), 7)
        assert code_of(refused) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert coordinator in cluster.running

    run_cluster(scenario)


def test_coordinators_and_markers_wait_however_many_produces_do() -> None:
    async def scenario(cluster) -> None:
        leader, _ = await _coordinator_of(cluster, "g", _TOPICS[0])
        client = cluster.client(leader)
        await client.create_topic("t", partitions=4, replicas=2)
        led = next(p for p in range(4) if cluster.partition_image("t", p).leader == leader)
        await cluster.until(lambda: cluster.replica(leader, "t", led).is_leader)
        await client.produce("t", batch(b"first"), partition=led)
        assert code_of(await client.request(commit_request(1), 9)) is ErrorCode.NONE
        producer = TransactionalProducer(cluster, "tx", timeout_ms=60_000)
        await producer.begin()
        assert await producer.add(led) is ErrorCode.NONE
        assert await producer.produce(led, b"open") is ErrorCode.NONE
        cluster.running[leader].context.replicas.waits.produces.purgatory._operations_max = 2
        with _paused(cluster, 3 - leader):
            connection = await client.connection()
            waiting = [
                connection.submit(_produce(led, timeout_ms=60_000), 12),
                connection.submit(_produce(led, timeout_ms=60_000), 12),
            ]
            full = await cluster.client(leader).produce("t", batch(b"x"), partition=led, timeout_ms=60_000)
            assert full.error_code == ErrorCode.REQUEST_TIMED_OUT
            marker = WritableTxnMarker(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                transaction_result=False,
                topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[led])],
                coordinator_epoch=0,
            )
            marked = (await cluster.client(leader).connection()).submit(WriteTxnMarkersRequest(markers=[marker]), 1)
            committed = (await cluster.client(leader).connection()).submit(commit_request(2), 9)
            assert code_of(await committed.wait(60_000)) in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            answer = await marked.wait(60_000)
            assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE
            for pending in waiting:
                answer = await pending.wait(60_000)
                assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
            assert code_of(await client.request(commit_request(3), 9)) is ErrorCode.NONE
            assert leader in cluster.running

    run_cluster(scenario, brokers=2)


def _produce(partition: int, *, timeout_ms: int) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=batch(b"x"))
    return ProduceRequest(
        acks=-1, timeout_ms=timeout_ms, topic_data=[TopicProduceData(name="t", partition_data=[data])]
    )


def test_a_new_leader_hides_no_visible_record() -> None:
    """A new leader never reports that records which its predecessor has shown do not exist (KIP-207).

    Until the high watermark has reached its epoch, it does not answer that a time has no records.
    """

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3)
        await cluster.leader("t")
        old, new, silent = cluster.partition_image("t").replicas
        assert await cluster.leader("t") == old
        await cluster.client(old).produce("t", batch(b"a", timestamp=1_000))
        await cluster.until(lambda: cluster.replica(new, "t").replica.high_watermark == 1)
        with _paused(cluster, silent):
            await cluster.client(old).produce("t", batch(b"b", timestamp=2_000), acks=1)
            await cluster.until(lambda: cluster.replica(new, "t").log.log_end_offset == 2)
            cluster.kill(old)
            await cluster.until(lambda: cluster.replica(new, "t").is_leader)
            client = cluster.client(new)

            async def look_up(timestamp: int, version: int, replica_id: int = -1) -> tuple[ErrorCode, int]:
                partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
                topic = ListOffsetsTopic(name="t", partitions=[partition])
                answer = await client.request(ListOffsetsRequest(replica_id=replica_id, topics=[topic]), version)
                found = answer.topics[0].partitions[0]
                return ErrorCode(found.error_code), found.offset

            for timestamp in (-1, -3, 1_500, 2_500):
                assert await look_up(timestamp, 7) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1), timestamp
                if timestamp != -3:  # version 4 does not know it
                    assert await look_up(timestamp, 4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1), timestamp
            assert await look_up(500, 7) == (ErrorCode.NONE, 0)
            assert await look_up(-2, 7) == (ErrorCode.NONE, 0)
            assert await look_up(1_500, 7, replica_id=silent) == (ErrorCode.NONE, 1)
            assert await look_up(2_500, 7, replica_id=silent) == (ErrorCode.NONE, -1)
        await cluster.until(lambda: cluster.replica(new, "t").replica.high_watermark == 2)
        assert await look_up(1_500, 7) == (ErrorCode.NONE, 1)
        assert await look_up(2_500, 7) == (ErrorCode.NONE, -1)

    run_cluster(scenario, brokers=3)
