"""Transactions and producers (KIP-664, KIP-1152)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.admin.failures import error_of, first_retriable, raise_error
from moldau.admin.requester import Located, by_partition
from moldau.cluster import arguments
from moldau.cluster.metadata import TopicPartition
from moldau.protocol.answers import judge_one
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from moldau.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from moldau.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from moldau.runtime.net.served_versions import NeededVersion

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moldau.admin.calls.topics import Topics
    from moldau.admin.requester import Requester
    from moldau.producer import PreparedTransaction

_TERMINATION_TIMEOUT_MS = 60_000
END_WITH_EPOCH_VERSION = 4
"""Later versions of EndTxn belong to a protocol in which each transaction has an epoch of its own (KIP-890)."""
_DURATION_VERSION = NeededVersion(1, "a list of transactions by their duration (KIP-994, Kafka 3.8)")
_PATTERN_VERSION = NeededVersion(2, "lists of transactions by a pattern (KIP-1152, Kafka 4.1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """A transactional id in a list."""

    transactional_id: str
    producer_id: int
    state: str
    """Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, ..."""
    coordinator: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A transactional id and its transaction.

    Times are in milliseconds; ``start_ms`` (Unix) is -1 without a transaction.
    """

    transactional_id: str
    state: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerDescription:
    """A producer's state in a partition. ``transaction_start_offset`` is -1 if no transaction is open."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FencedProducer:
    """The producer id and epoch that now fence the earlier producers of a transactional id."""

    producer_id: int
    producer_epoch: int


class Transactions:
    """Sends the requests about transactions and the producers that partitions remember."""

    def __init__(self, requester: Requester, topics: Topics) -> None:
        self._requester = requester
        self._topics = topics

    async def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        min_duration_ms: int = -1,
        id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Implements ``Admin.list_transactions``."""
        request = ListTransactionsRequest(
            state_filters=arguments.texts("list_transactions", "states", states),
            producer_id_filters=arguments.integers(
                "list_transactions", "producer_ids", producer_ids, bits=arguments.INT64_BITS
            ),
            duration_filter=arguments.integer(
                "list_transactions", "min_duration_ms", min_duration_ms, bits=arguments.INT64_BITS
            ),
            transactional_id_pattern=None
            if id_pattern is None
            else arguments.text("list_transactions", "id_pattern", id_pattern),
        )

        def read(node_id: int, response: ListTransactionsResponse) -> dict[str, TransactionListing]:
            raise_error(response.error_code)
            if response.unknown_state_filters:
                names = ", ".join(response.unknown_state_filters)
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no transaction state {names}")
            return {
                each.transactional_id: TransactionListing(
                    transactional_id=each.transactional_id,
                    producer_id=each.producer_id,
                    state=each.transaction_state,
                    coordinator=node_id,
                )
                for each in response.transaction_states
            }

        return await self._requester.ask_each(
            ListTransactionsResponse,
            request,
            read,
            code_of=lambda each: ErrorCode.of(each.error_code),
            needed=_PATTERN_VERSION if id_pattern is not None else _DURATION_VERSION if min_duration_ms >= 0 else None,
        )

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Implements ``Admin.describe_transactions``."""
        names = arguments.texts("describe_transactions", "transactional_ids", transactional_ids)
        return await self._requester.each(names, self._describe)

    @staticmethod
    async def _describe(requester: Requester, name: str) -> TransactionDescription:
        at = requester.transaction_coordinator(name)
        response = await requester.ask(
            DescribeTransactionsResponse,
            DescribeTransactionsRequest(transactional_ids=[name]),
            at=at,
            code_of=lambda each: next((ErrorCode.of(state.error_code) for state in each.transaction_states), None),
        )
        state = judge_one(
            "transactional id",
            name,
            ((each.transactional_id, error_of(each.error_code), each) for each in response.transaction_states),
        )
        return TransactionDescription(
            transactional_id=state.transactional_id,
            state=state.transaction_state,
            coordinator=at.node_id,
            producer_id=state.producer_id,
            producer_epoch=state.producer_epoch,
            timeout_ms=state.transaction_timeout_ms,
            start_ms=state.transaction_start_time_ms,
            partitions=tuple(
                TopicPartition(topic.topic, partition) for topic in state.topics for partition in topic.partitions
            ),
        )

    async def describe_producers(self, partition: tuple[str, int]) -> list[ProducerDescription]:
        """Implements ``Admin.describe_producers``."""
        wanted = arguments.partition("describe_producers", partition)
        response = await self._requester.ask(
            DescribeProducersResponse,
            DescribeProducersRequest(topics=[TopicRequest(name=wanted.topic, partition_indexes=[wanted.partition])]),
            at=self._at_leader(wanted),
            code_of=lambda each: first_retriable(part.error_code for topic in each.topics for part in topic.partitions),
        )
        answers = by_partition((topic.name, topic.partitions) for topic in response.topics)
        found = [
            ProducerDescription(
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                last_sequence=each.last_sequence,
                last_timestamp_ms=each.last_timestamp,
                coordinator_epoch=each.coordinator_epoch,
                transaction_start_offset=each.current_txn_start_offset,
            )
            for each in judge_one("partition", wanted, answers).active_producers
        ]
        return sorted(found, key=lambda each: each.producer_id)

    def _at_leader(self, partition: TopicPartition) -> Located:
        async def find(_: float) -> int:
            return await self._leader(partition)

        return Located(find)

    async def _leader(self, partition: TopicPartition) -> int:
        described = (await self._topics.describe_topics([partition.topic]))[partition.topic]
        for part in described.partitions:
            if part.partition == partition.partition:
                if part.leader < 0:
                    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader at the moment")
                await self._requester.ensure_broker_known(part.leader)
                return part.leader
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"{partition.topic} has partitions 0 to {len(described.partitions) - 1}, not {partition.partition}",
        )

    async def abort_transaction(
        self, partition: tuple[str, int], *, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Implements ``Admin.abort_transaction``."""
        call = "abort_transaction"
        wanted = arguments.partition(call, partition)
        arguments.integer(call, "producer_id", producer_id, bits=arguments.INT64_BITS)
        arguments.integer(call, "producer_epoch", producer_epoch, bits=arguments.INT16_BITS)
        arguments.integer(call, "coordinator_epoch", coordinator_epoch)
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=wanted.topic, partition_indexes=[wanted.partition])],
            coordinator_epoch=coordinator_epoch,
        )
        response = await self._requester.ask(
            WriteTxnMarkersResponse,
            WriteTxnMarkersRequest(markers=[marker]),
            at=self._at_leader(wanted),
            code_of=lambda each: first_retriable(
                part.error_code for result in each.markers for topic in result.topics for part in topic.partitions
            ),
        )
        answers = (
            (
                TopicPartition(topic.name, part.partition_index),
                error_of(part.error_code, f"{wanted}: {ErrorCode.of(part.error_code).message}"),
                None,
            )
            for result in response.markers
            for topic in result.topics
            for part in topic.partitions
        )
        judge_one("partition", wanted, answers)

    async def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, FencedProducer]:
        """Implements ``Admin.fence_producers``."""
        names = arguments.texts("fence_producers", "transactional_ids", transactional_ids)
        return await self._requester.each(names, self._fence)

    async def terminate_transaction(self, transactional_id: str) -> None:
        """Implements ``Admin.terminate_transaction``."""
        name = arguments.text("terminate_transaction", "transactional_id", transactional_id)
        await self._fence(self._requester, name)

    @staticmethod
    async def _fence(requester: Requester, transactional_id: str) -> FencedProducer:
        """Takes the transactional id over, which fences its producer and aborts its open transaction."""
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=_TERMINATION_TIMEOUT_MS
        )
        response = await requester.ask(
            InitProducerIdResponse,
            request,
            at=requester.transaction_coordinator(transactional_id),
            code_of=lambda each: ErrorCode.of(each.error_code),
        )
        _raise_transactional_error(response.error_code, transactional_id)
        return FencedProducer(producer_id=response.producer_id, producer_epoch=response.producer_epoch)

    async def end_transaction(self, prepared: PreparedTransaction, *, commit: bool) -> None:
        """Implements ``Admin.end_transaction``."""
        if not prepared.is_open:
            return
        name = prepared.transactional_id
        request = EndTxnRequest(
            transactional_id=name,
            producer_id=prepared.producer_id,
            producer_epoch=prepared.producer_epoch,
            committed=commit,
        )
        # An attempt without an answer may have been carried out: ending a transaction twice in the same way is allowed.
        response = await self._requester.ask(
            EndTxnResponse,
            request,
            at=self._requester.transaction_coordinator(name),
            code_of=lambda each: ErrorCode.of(each.error_code),
            version_max=END_WITH_EPOCH_VERSION,
        )
        _raise_transactional_error(response.error_code, name)


def _raise_transactional_error(code: int, transactional_id: str) -> None:
    found = ErrorCode.of(code)
    if found is not ErrorCode.NONE:
        raise KafkaError(found, f"transactional id {transactional_id}: {found.message}")
