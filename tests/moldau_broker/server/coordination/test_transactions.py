"""Goal: readers see a transaction across brokers completely or not at all.

Method: a bare transactional producer on virtual time.
"""

from __future__ import annotations

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from support.cluster.broker_cluster import run_cluster, values_of
from support.cluster.transactional_client import TransactionalProducer


async def _committed(cluster, partition: int) -> list[bytes]:
    """Returns the values that a reader of committed data sees, without aborted ranges, as clients do."""
    leader = await cluster.leader("t", partition)
    part = await cluster.client(leader).fetch("t", partition=partition, isolation_level=1)
    assert part.error_code == ErrorCode.NONE
    return [] if part.aborted_transactions else values_of(part.records)


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_seen_as_a_whole_or_not_at_all(brokers: int, commit: bool) -> None:
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=3, replicas=brokers)
        producer = TransactionalProducer(cluster, "tx")
        await producer.begin()
        assert await producer.add(0, 1, 2) is ErrorCode.NONE
        for partition in range(3):
            assert await producer.produce(partition, b"a", b"b", b"c") is ErrorCode.NONE
            assert await _committed(cluster, partition) == [], "nothing before the end"
            leader = cluster.client(await cluster.leader("t", partition))
            assert values_of((await leader.fetch("t", partition=partition)).records) == [b"a", b"b", b"c"]
            assert (await leader.offset("t", partition=partition, isolation_level=1)).offset == 0
        assert await producer.end(commit=commit) is ErrorCode.NONE
        for partition in range(3):
            leader = cluster.client(await cluster.leader("t", partition))
            await cluster.until(
                lambda: cluster.replica(leader.broker_id, "t", partition).log.last_stable_offset == 4  # noqa: B023
            )
            assert await _committed(cluster, partition) == ([b"a", b"b", b"c"] if commit else [])
        assert await producer.add(0) is ErrorCode.NONE
        assert await producer.produce(0, b"next") is ErrorCode.NONE
        assert await producer.end(commit=True) is ErrorCode.NONE

    run_cluster(scenario, brokers=brokers)


def test_a_partition_outside_the_transaction_is_refused() -> None:
    """A batch for a partition that its transaction does not include is refused."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=2)
        producer = TransactionalProducer(cluster, "tx")
        await producer.begin()
        assert await producer.add(0) is ErrorCode.NONE
        assert await producer.produce(0, b"a") is ErrorCode.NONE
        assert await producer.produce(1, b"b") is not ErrorCode.NONE
        assert await producer.end(commit=True) is ErrorCode.NONE
        assert (await cluster.client(1).offset("t", partition=1)).offset == 0
        late = producer.request(0, producer.batch(0, b"late"))
        answer = await cluster.client(1).request(late, 11)
        assert answer.responses[0].partition_responses[0].error_code != ErrorCode.NONE, "its transaction has ended"

    run_cluster(scenario)


def test_a_newer_producer_fences_the_older_one() -> None:
    """A newer producer fences the older one and aborts its transaction."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t")
        old, new = TransactionalProducer(cluster, "tx"), TransactionalProducer(cluster, "tx")
        await old.begin()
        assert await old.add(0) is ErrorCode.NONE
        assert await old.produce(0, b"old") is ErrorCode.NONE
        await new.begin()
        assert new.epoch > old.epoch
        assert await old.produce(0, b"old") is not ErrorCode.NONE
        assert await old.end(commit=True) is not ErrorCode.NONE
        assert await new.add(0) is ErrorCode.NONE
        assert await new.produce(0, b"new") is ErrorCode.NONE
        assert await new.end(commit=True) is ErrorCode.NONE

    run_cluster(scenario)


def test_offsets_are_committed_with_the_transaction() -> None:
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3)
        producer = TransactionalProducer(cluster, "tx")
        group = await producer.coordinator("g", 0)

        async def offset() -> int:
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
            answer = await group.request(request, 8)
            return sum(p.committed_offset for topic in answer.groups[0].topics for p in topic.partitions)

        await producer.begin()
        for commit, expected in ((True, 7), (False, 7)):
            answer = await producer.ask(
                AddOffsetsToTxnRequest(
                    transactional_id="tx",
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    group_id="g",
                ),
                3,
            )
            assert answer.error_code == ErrorCode.NONE
            request = TxnOffsetCommitRequest(
                transactional_id="tx",
                group_id="g",
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                topics=[
                    TxnOffsetCommitRequestTopic(
                        name="t",
                        partitions=[
                            TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7 if commit else 9)
                        ],
                    )
                ],
            )
            answer = await group.request(request, 3)
            assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
            assert await offset() == (0 if commit else 7), "pending offsets are not seen"
            assert await producer.end(commit=commit) is ErrorCode.NONE
            await trio.sleep(0.5)
            assert await offset() == expected

    run_cluster(scenario, brokers=3)


def test_a_transaction_survives_dead_coordinators_and_leaders() -> None:
    """A transaction survives the death of its coordinator and of a partition leader."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=2, replicas=3, min_insync_replicas="2")
        producer = TransactionalProducer(cluster, "tx")
        await producer.begin()
        assert await producer.add(0, 1) is ErrorCode.NONE
        assert await producer.produce(0, b"a") is ErrorCode.NONE
        victim = (await producer.coordinator("tx")).broker_id
        cluster.kill(victim)
        await cluster.leader("t", 1, other_than=victim)
        await cluster.leader("t", 0, other_than=victim)
        for _ in range(50):
            code = await producer.produce(1, b"b")
            if code is ErrorCode.NONE:
                break
            producer.sequences[1] = 0
            await trio.sleep(0.1)
        assert code is ErrorCode.NONE
        assert await producer.end(commit=True) is ErrorCode.NONE
        for partition in range(2):
            leader = await cluster.leader("t", partition)
            await cluster.until(
                lambda: cluster.replica(leader, "t", partition).log.last_stable_offset == 2  # noqa: B023
            )

    run_cluster(scenario, brokers=3)


async def _lead(cluster, leader: int, topic: str, partition: int) -> None:
    """Makes a broker the preferred leader, elects it, and waits until it leads."""
    others = [broker_id for broker_id in cluster.broker_ids if broker_id != leader]
    move = ReassignablePartition(partition_index=partition, replicas=[leader, *others])
    await cluster.client(1).request(
        AlterPartitionReassignmentsRequest(timeout_ms=10_000, topics=[ReassignableTopic(name=topic, partitions=[move])])
    )
    elect = ElectLeadersRequest(
        election_type=0, topic_partitions=[TopicPartitions(topic=topic, partitions=[partition])], timeout_ms=10_000
    )
    await cluster.client(1).request(elect)
    await cluster.until(
        lambda: [b for b in cluster.broker_ids if cluster.replica(b, topic, partition).is_leader] == [leader]
    )


def _aborted_meanwhile(cluster, producer, leader: int, topic: str, partition: int) -> None:
    """Delays the coordinator's next answer to ``leader`` until another leader has written the marker and gone."""
    verifier = cluster.running[leader].context.verifier
    verify = verifier.verify

    async def slow(*asked):
        verifier.verify = verify
        codes = await verify(*asked)
        assert set(codes.values()) == {ErrorCode.NONE}
        await _lead(cluster, leader % 3 + 1, topic, partition)
        assert await producer.end(commit=False) is ErrorCode.NONE
        log = cluster.replica(leader, topic, partition).log
        await cluster.until(lambda: log.log_end_offset > 0)  # the marker was replicated
        await _lead(cluster, leader, topic, partition)
        return codes

    verifier.verify = slow


def test_no_batch_is_appended_behind_a_marker_of_another_leader() -> None:
    """A verified batch is not appended if another leader has written the marker of its transaction meanwhile."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3)
        leader = await cluster.leader("t")
        producer = TransactionalProducer(cluster, "tx")
        await producer.begin()
        assert await producer.add(0) is ErrorCode.NONE
        _aborted_meanwhile(cluster, producer, leader, "t", 0)
        assert await producer.produce(0, b"late") is ErrorCode.NOT_ENOUGH_REPLICAS
        log = cluster.replica(leader, "t").log
        assert log.log_end_offset == 1, "the marker, and nothing behind it"
        assert await producer.add(0) is ErrorCode.NONE
        producer.sequences.clear()
        assert await producer.produce(0, b"next") is ErrorCode.NONE
        assert await producer.end(commit=True) is ErrorCode.NONE
        await cluster.until(lambda: log.last_stable_offset == 3)
        part = await cluster.client(leader).fetch("t", isolation_level=1)
        assert values_of(part.records) == [b"next"]

    run_cluster(scenario, brokers=3)


def test_no_offsets_are_committed_behind_another_leaders_marker() -> None:
    """Verified offsets are not committed if another leader has written the marker of their transaction meanwhile."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3)
        producer = TransactionalProducer(cluster, "tx")
        leader = (await producer.coordinator("g", 0)).broker_id
        groups = cluster.running[leader].context.groups
        await cluster.until(lambda: groups.partition_of("g") is not None)  # it knows the topic
        index = groups.partition_of("g")
        await cluster.leader("__consumer_offsets", index)
        await producer.begin()
        whose = {"transactional_id": "tx", "producer_id": producer.producer_id, "producer_epoch": producer.epoch}
        answer = await producer.ask(AddOffsetsToTxnRequest(group_id="g", **whose), 3)
        assert answer.error_code == ErrorCode.NONE
        _aborted_meanwhile(cluster, producer, leader, "__consumer_offsets", index)
        offset = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        request = TxnOffsetCommitRequest(
            group_id="g", topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[offset])], **whose
        )
        answer = await cluster.client(leader).request(request, 3)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert cluster.replica(leader, "__consumer_offsets", index).log.log_end_offset == 1, "the marker alone"

    run_cluster(scenario, brokers=3)
