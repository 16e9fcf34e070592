"""A bare transactional producer for a cluster of ``broker_cluster``, one request at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from support.cluster.broker_cluster import batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.protocol.schema import Request
    from support.cluster.broker_cluster import Client, Cluster

_AGAIN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
)


class TransactionalProducer:
    """Sends requests to the coordinator of its id and to the leaders of its partitions."""

    def __init__(self, cluster: Cluster, transactional_id: str, *, timeout_ms: int = 5000) -> None:
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.producer_id = self.epoch = -1
        self.sequences: dict[int, int] = {}

    async def coordinator(self, key: str, key_type: int = 1) -> Client:
        for _ in range(100):
            any_broker = min(self.cluster.running)
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            answer = await self.cluster.client(any_broker).request(request, 4)
            found = answer.coordinators[0]
            if found.error_code == ErrorCode.NONE and found.node_id in self.cluster.running:
                return self.cluster.client(found.node_id)
            await trio.sleep(0.05)
        raise AssertionError("no coordinator")

    async def ask(
        self, message: Request, version: int, *, code: Callable[[Any], int] = lambda answer: answer.error_code
    ) -> Any:
        for _ in range(200):
            client = await self.coordinator(self.transactional_id)
            answer = await client.request(message, version)
            if code(answer) not in _AGAIN:
                return answer
            await trio.sleep(0.05)
        raise AssertionError(f"{type(message).__name__} is never answered")

    async def begin(self) -> None:
        answer = await self.ask(
            InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms), 4
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
        answers: list[Any] = [await waiting.wait(20_000) for waiting in pending]
        codes = [answer.responses[0].partition_responses[0].error_code for answer in answers]
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
