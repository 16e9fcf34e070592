"""Questions of partition leaders to transaction coordinators.

Before a leader appends the first batch of a transaction to a partition, it asks the coordinator whether the transaction
includes the partition (KIP-890): a batch that arrives after the end of its transaction would otherwise open one that no
marker ends. A leader writes an unusual marker (``marker_checks``) only if the coordinator confirms it. Markers contain
no transactional id, so the verifier remembers the confirmed ids by producer id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from moldau.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from moldau_broker.coordinator.runtime.partitioning import partition_for
from moldau_broker.coordinator.transaction.core.state import TransactionStatus
from moldau_broker.server.cluster_metadata.topic_creation import TRANSACTIONS_TOPIC
from moldau_broker.server.coordination.transactions import REQUEST_TIMEOUT_MS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from moldau.protocol.schema import Request, Response
    from moldau.values import BrokerId
    from moldau_broker.coordinator.runtime.effects import Marker
    from moldau_broker.coordinator.transaction.coordinator import TransactionCoordinator
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.coordination.transactions import Peers, TopicPartitionName
    from moldau_quorum.metadata.image import PartitionImage

ADD_PARTITIONS_VERSION = 4
DESCRIBE_VERSION = 0
LIST_VERSION = 1
REMEMBERED_MAX = 10_000
"""Bound of the remembered producer ids; the oldest are forgotten first, and searched again when needed."""
REMEMBERED_CHARACTERS_MAX = 1_000


class TransactionVerifier:
    """Asks the coordinator of a transactional id about its transaction.

    Invariant: ``_known`` has only confirmed ids; a producer id never changes its transactional id.
    """

    def __init__(self, broker_id: BrokerId, metadata: MetadataCache, peers: Peers) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._peers = peers
        self._coordinator: TransactionCoordinator | None = None
        self._known: dict[int, str] = {}

    def connect(self, coordinator: TransactionCoordinator) -> None:
        """Sets the transaction coordinator of this broker; called once."""
        self._coordinator = coordinator

    async def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartitionName]
    ) -> dict[TopicPartitionName, ErrorCode]:
        """Asks whether a transaction includes ``partitions``.

        Returns:
            NONE for each included partition; NOT_ENOUGH_REPLICAS (the client retries) if no coordinator answered.
        """
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=transactional_id,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    verify_only=True,
                    topics=[AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()],
                )
            ]
        )
        codes = dict.fromkeys(partitions, ErrorCode.NOT_ENOUGH_REPLICAS)
        try:
            response = await self._ask(transactional_id, request, ADD_PARTITIONS_VERSION)
        except (OSError, trio.TooSlowError, KafkaError, DecodeError):
            return codes
        assert isinstance(response, AddPartitionsToTxnResponse)
        for transaction in response.results_by_transaction:
            for topic_result in transaction.topic_results:
                for partition in topic_result.results_by_partition:
                    code = ErrorCode(partition.partition_error_code)
                    codes[topic_result.name, partition.partition_index] = _ANSWERS.get(code, code)
        if ErrorCode.NONE in codes.values():
            self._remember(producer_id, transactional_id)
        return codes

    def _remember(self, producer_id: int, transactional_id: str) -> None:
        if len(transactional_id) > REMEMBERED_CHARACTERS_MAX:
            return
        self._known[producer_id] = transactional_id
        if len(self._known) > REMEMBERED_MAX:
            del self._known[next(iter(self._known))]

    def coordinator_epoch(self, producer_id: int) -> int | None:
        """Returns the leader epoch of the partition that coordinates a producer, in the newest metadata of this broker.

        None if its transactional id is not known.
        """
        transactional_id = self._known.get(producer_id)
        found = None if transactional_id is None else self._partition_of(transactional_id)
        return None if found is None else found.leader_epoch

    async def confirm_marker(
        self, marker: Marker, partitions: Collection[TopicPartitionName]
    ) -> dict[TopicPartitionName, ErrorCode]:
        """Asks whether the coordinator is ending this transaction, with this outcome, in ``partitions``.

        Returns:
            NONE where it is, INVALID_TXN_STATE where it is not, COORDINATOR_NOT_AVAILABLE where it did not answer.
        """
        try:
            code, included = await self._ending(marker)
        except (OSError, trio.TooSlowError, KafkaError, DecodeError):
            code, included = ErrorCode.COORDINATOR_NOT_AVAILABLE, frozenset()
        if code is not ErrorCode.NONE:
            return dict.fromkeys(partitions, code)
        return {key: ErrorCode.NONE if key in included else ErrorCode.INVALID_TXN_STATE for key in partitions}

    async def _ending(self, marker: Marker) -> tuple[ErrorCode, frozenset[TopicPartitionName]]:
        """Returns NONE and the partitions in which the coordinator writes this marker, or an error."""
        producer = marker.producer
        transactional_id = self._known.get(producer.producer_id)
        if transactional_id is None:
            transactional_id = await self._search(producer.producer_id)
        if transactional_id is None:
            return ErrorCode.INVALID_TXN_STATE, frozenset()
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        response = await self._ask(transactional_id, request, DESCRIBE_VERSION)
        assert isinstance(response, DescribeTransactionsResponse)
        (state,) = response.transaction_states
        if state.error_code != ErrorCode.NONE:
            unknown = state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            return ErrorCode.INVALID_TXN_STATE if unknown else ErrorCode.COORDINATOR_NOT_AVAILABLE, frozenset()
        self._remember(state.producer_id, transactional_id)
        status = TransactionStatus.PREPARE_COMMIT if marker.commit else TransactionStatus.PREPARE_ABORT
        if (state.transaction_state, state.producer_id, state.producer_epoch) != (
            status.label,
            producer.producer_id,
            producer.producer_epoch,
        ):
            return ErrorCode.INVALID_TXN_STATE, frozenset()
        led = self._partition_of(transactional_id)
        if led is None or marker.coordinator_epoch > led.leader_epoch:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, frozenset()  # stale metadata here, or a made-up marker
        included = ((topic.topic, index) for topic in state.topics for index in topic.partitions)
        return ErrorCode.NONE, frozenset(included)

    async def _search(self, producer_id: int) -> str | None:
        """Asks all coordinators for the transactional id of a producer; None if none of them knows one.

        Raises:
            KafkaError: a coordinator answered with an error. Also raises the errors of ``_ask_broker``.
        """
        topic = self._metadata.image.topics_by_name.get(TRANSACTIONS_TOPIC)
        leaders = {} if topic is None else {partition.leader: None for partition in topic.partitions.values()}
        if not leaders or -1 in leaders:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        request = ListTransactionsRequest(producer_id_filters=[producer_id])
        for broker_id in sorted(leaders):
            response = await self._ask_broker(broker_id, request, LIST_VERSION)
            assert isinstance(response, ListTransactionsResponse)
            if response.error_code != ErrorCode.NONE:
                raise KafkaError(ErrorCode.of(response.error_code))
            for state in response.transaction_states:
                return state.transactional_id
        return None

    def _partition_of(self, transactional_id: str) -> PartitionImage | None:
        """Returns the partition of ``__transaction_state`` that coordinates an id; None before the topic exists."""
        topic = self._metadata.image.topics_by_name.get(TRANSACTIONS_TOPIC)
        count = 0 if topic is None else len(topic.partitions)
        if topic is None or not count:
            return None
        return topic.partitions.get(partition_for(transactional_id, count))

    async def _ask(self, transactional_id: str, request: Request, version: int) -> Response:
        """Asks the coordinator of a transactional id; raises the errors of ``_ask_broker``."""
        partition = self._partition_of(transactional_id)
        if partition is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return await self._ask_broker(partition.leader, request, version)

    async def _ask_broker(self, broker_id: BrokerId, request: Request, version: int) -> Response:
        """Asks the coordinator of a broker.

        Raises:
            OSError: no connection, or it broke.
            trio.TooSlowError: no answer in time.
            KafkaError: the coordinator refused the question.
            DecodeError: the answer is malformed.
        """
        if broker_id != self._broker_id:
            return await self._peers.request(broker_id, request, version)
        assert self._coordinator is not None
        with trio.fail_after(REQUEST_TIMEOUT_MS / 1000):
            return await self._coordinator.handle(request, version=version)


_ANSWERS: Mapping[ErrorCode, ErrorCode] = {
    # Errors of the coordinator that a producer does not know: it retries NOT_ENOUGH_REPLICAS.
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.NOT_ENOUGH_REPLICAS,
    # Only the coordinator fences a producer; an append reports an old epoch (KIP-588).
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
}
