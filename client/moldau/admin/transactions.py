"""The admin client's calls about transactions and producers (KIP-664, KIP-1152)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.admin.admin import TopicsAdmin, raise_failures
from moldau.cluster.client import TRANSACTION_COORDINATOR, TRANSPORT_ERRORS
from moldau.cluster.metadata import TopicPartition
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from moldau.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_TERMINATION_TIMEOUT_MS = 60_000


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
    """A transactional id and what its transaction includes. Times in milliseconds; ``start_ms`` (Unix) is -1 for
    none.
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
    """What a partition knows of a producer. ``transaction_start_offset`` is -1 where no transaction is open."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int


class TransactionsAdmin(TopicsAdmin):
    """Transactions and producers."""

    async def list_transactions(
        self, *, states: Sequence[str] = (), producer_ids: Sequence[int] = (), min_duration_ms: int = -1
    ) -> list[TransactionListing]:
        """Returns the transactional ids of all coordinators, by id; those that pass every filter that is given.

        Raises ``KafkaError``: a state that does not exist (INVALID_REQUEST), a coordinator that cannot say yet.
        """
        request = ListTransactionsRequest(
            state_filters=list(states), producer_id_filters=list(producer_ids), duration_filter=min_duration_ms
        )
        found: dict[str, TransactionListing] = {}
        for broker in (await self.describe_cluster()).brokers:
            await self._node_known(broker.node_id)
            response = await self._ask(
                ListTransactionsResponse,
                request,
                node_id=broker.node_id,
                code_of=lambda each: ErrorCode.of(each.error_code),
            )
            code = ErrorCode.of(response.error_code)
            if code is not ErrorCode.NONE:
                raise KafkaError(code, f"broker {broker.node_id}: {code.message}")
            if response.unknown_state_filters:
                names = ", ".join(response.unknown_state_filters)
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no transaction state {names}")
            for each in response.transaction_states:
                found[each.transactional_id] = TransactionListing(
                    transactional_id=each.transactional_id,
                    producer_id=each.producer_id,
                    state=each.transaction_state,
                    coordinator=broker.node_id,
                )
        return [found[name] for name in sorted(found)]

    async def _transaction_coordinator(self, transactional_id: str) -> int:
        client = self._opened()
        deadline_ms = client.now_ms + self._timeout_ms
        failures = 0
        while True:
            try:
                return await client.find_coordinator(transactional_id, TRANSACTION_COORDINATOR)
            except TRANSPORT_ERRORS as error:
                last: Exception = error
            except KafkaError as error:
                if not error.retriable:
                    raise
                last = error
            failures += 1
            if client.now_ms >= deadline_ms:
                raise KafkaError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE, f"transactional id {transactional_id}: {last}"
                ) from last
            await client.backoff(failures)

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Returns transactional ids with what their transactions include. Raises ``AdminError``
        (TRANSACTIONAL_ID_NOT_FOUND).
        """
        found: dict[str, TransactionDescription] = {}
        failures: dict[str, KafkaError] = {}
        for name in dict.fromkeys(transactional_ids):
            node_id = await self._transaction_coordinator(name)
            response = await self._ask(
                DescribeTransactionsResponse,
                DescribeTransactionsRequest(transactional_ids=[name]),
                node_id=node_id,
                code_of=lambda each: next((ErrorCode.of(state.error_code) for state in each.transaction_states), None),
            )
            for state in response.transaction_states:
                code = ErrorCode.of(state.error_code)
                if code is not ErrorCode.NONE:
                    failures[name] = KafkaError(code)
                    continue
                found[name] = TransactionDescription(
                    transactional_id=state.transactional_id,
                    state=state.transaction_state,
                    coordinator=node_id,
                    producer_id=state.producer_id,
                    producer_epoch=state.producer_epoch,
                    timeout_ms=state.transaction_timeout_ms,
                    start_ms=state.transaction_start_time_ms,
                    partitions=tuple(
                        TopicPartition(topic.topic, partition)
                        for topic in state.topics
                        for partition in topic.partitions
                    ),
                )
        raise_failures(failures)
        return found

    async def _leader(self, partition: TopicPartition) -> int:
        described = (await self.describe_topics([partition.topic]))[partition.topic]
        for part in described.partitions:
            if part.partition == partition.partition:
                if part.leader < 0:
                    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader at the moment")
                await self._node_known(part.leader)
                return part.leader
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"{partition.topic} has partitions 0 to {len(described.partitions) - 1}, not {partition.partition}",
        )

    async def describe_producers(self, partition: tuple[str, int]) -> list[ProducerDescription]:
        """Returns the producers that the leader of a partition remembers, by producer id. Raises ``KafkaError``."""
        wanted = TopicPartition(*partition)
        response = await self._ask(
            DescribeProducersResponse,
            DescribeProducersRequest(topics=[TopicRequest(name=wanted.topic, partition_indexes=[wanted.partition])]),
            node_id=await self._leader(wanted),
        )
        found: list[ProducerDescription] = []
        for topic in response.topics:
            for part in topic.partitions:
                if part.error_code:
                    raise KafkaError(ErrorCode.of(part.error_code), part.error_message)
                found += [
                    ProducerDescription(
                        producer_id=each.producer_id,
                        producer_epoch=each.producer_epoch,
                        last_sequence=each.last_sequence,
                        last_timestamp_ms=each.last_timestamp,
                        coordinator_epoch=each.coordinator_epoch,
                        transaction_start_offset=each.current_txn_start_offset,
                    )
                    for each in part.active_producers
                ]
        return sorted(found, key=lambda each: each.producer_id)

    async def abort_transaction(
        self, partition: tuple[str, int], *, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Ends a transaction that hangs in one partition, behind its coordinator's back. Raises ``KafkaError``.

        For transactions that no coordinator knows any more; where one does, use ``terminate_transaction``.
        """
        wanted = TopicPartition(*partition)
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=wanted.topic, partition_indexes=[wanted.partition])],
            coordinator_epoch=coordinator_epoch,
        )
        response = await self._ask(
            WriteTxnMarkersResponse, WriteTxnMarkersRequest(markers=[marker]), node_id=await self._leader(wanted)
        )
        for result in response.markers:
            for topic in result.topics:
                for part in topic.partitions:
                    if part.error_code:
                        code = ErrorCode.of(part.error_code)
                        raise KafkaError(code, f"{wanted}: {code.message}")

    async def terminate_transaction(self, transactional_id: str) -> None:
        """Fences the producer of a transactional id and aborts what it left open. Raises ``KafkaError``."""
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=_TERMINATION_TIMEOUT_MS
        )
        response = await self._ask(
            InitProducerIdResponse,
            request,
            node_id=await self._transaction_coordinator(transactional_id),
            code_of=lambda each: ErrorCode.of(each.error_code),
        )
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE:
            raise KafkaError(code, f"transactional id {transactional_id}: {code.message}")
