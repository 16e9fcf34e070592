"""Goal:

transactions across brokers are seen as a whole or not at all. Method: a bare transactional producer on virtual time.
"""

from __future__ import annotations

import pytest
import trio

from broker_cluster import batch, run_cluster, values_of
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

_AGAIN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
)


class TransactionalProducer:
    """Speaks to the coordinator of its id and to the leaders of its partitions."""

    def __init__(self, cluster, transactional_id: str) -> None:
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.producer_id = self.epoch = -1
        self.sequences: dict[int, int] = {}

    async def coordinator(self, key: str, key_type: int = 1):
        for _ in range(100):
            any_broker = min(self.cluster.running)
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            answer = await self.cluster.client(any_broker).request(request, 4)
            found = answer.coordinators[0]
            if found.error_code == ErrorCode.NONE and found.node_id in self.cluster.running:
                return self.cluster.client(found.node_id)
            await trio.sleep(0.05)
        raise AssertionError("no coordinator")

    async def ask(self, message, version: int, *, code=lambda answer: answer.error_code):
        for _ in range(200):
            client = await self.coordinator(self.transactional_id)
            answer = await client.request(message, version)
            if code(answer) not in _AGAIN:
                return answer
            await trio.sleep(0.05)
        raise AssertionError(f"{type(message).__name__} is never answered")

    async def begin(self) -> None:
        answer = await self.ask(
            InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=5000), 4
        )
        assert answer.error_code == ErrorCode.NONE
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences = {}

    async def add(self, *partitions: int) -> ErrorCode:
        answer = await self.ask(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=list(partitions))],
            ),
            3,
            code=lambda answer: answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
        )
        return ErrorCode(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def batch(self, partition: int, *values: bytes) -> bytes:
        sequence = self.sequences.get(partition, 0)
        self.sequences[partition] = sequence + len(values)
        return batch(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )

    def request(self, partition: int, records: bytes) -> ProduceRequest:
        return ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=5000,
            topic_data=[
                TopicProduceData(name="t", partition_data=[PartitionProduceData(index=partition, records=records)])
            ],
        )

    async def produce(self, partition: int, *values: bytes) -> ErrorCode:
        leader = await self.cluster.leader("t", partition)
        connection = await self.cluster.client(leader).connection()
        pending = [connection.submit(self.request(partition, self.batch(partition, value)), 11) for value in values]
        codes = [(await waiting.wait(20_000)).responses[0].partition_responses[0].error_code for waiting in pending]
        return ErrorCode(max(codes))

    async def end(self, *, commit: bool) -> ErrorCode:
        answer = await self.ask(
            EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                committed=commit,
            ),
            3,
        )
        return ErrorCode(answer.error_code)


async def _committed(cluster, partition: int) -> list[bytes]:
    """What a reader of committed data sees, which leaves out aborted ranges as clients do."""
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


def test_a_partition_that_the_transaction_does_not_include_is_refused() -> None:
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


def test_a_newer_producer_fences_the_older_and_aborts_its_transaction() -> None:
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


def test_a_transaction_survives_the_death_of_its_coordinator_and_of_a_leader() -> None:
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
    """Makes a broker the preferred leader, has it elected, and waits until it has taken over."""
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
    """The coordinator's next answer to ``leader`` comes when another leader has ended the transaction, and gone."""
    verifier = cluster.running[leader].context.verifier
    verify = verifier.verify

    async def slow(*asked):
        verifier.verify = verify
        codes = await verify(*asked)
        assert set(codes.values()) == {ErrorCode.NONE}
        await _lead(cluster, leader % 3 + 1, topic, partition)
        assert await producer.end(commit=False) is ErrorCode.NONE
        log = cluster.replica(leader, topic, partition).log
        await cluster.until(lambda: log.log_end_offset > 0)  # the marker has come by replication
        await _lead(cluster, leader, topic, partition)
        return codes

    verifier.verify = slow


def test_a_batch_is_not_appended_behind_a_marker_that_another_leader_wrote() -> None:
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


def test_offsets_are_not_committed_behind_a_marker_that_another_leader_wrote() -> None:
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3)
        producer = TransactionalProducer(cluster, "tx")
        leader = (await producer.coordinator("g", 0)).broker_id
        groups = cluster.running[leader].context.groups
        await cluster.until(lambda: groups.partition_of("g") is not None)  # it has heard of the topic
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
