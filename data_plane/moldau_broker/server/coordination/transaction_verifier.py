"""Questions of partition leaders to transaction coordinators.

Before a leader appends the first batch of a transaction to a partition, it asks the coordinator whether the transaction
includes the partition (KIP-890): a batch that arrives after the end of its transaction would otherwise open one that no
marker ends. For clients of ``transaction.version`` 2 the leader adds the partition to the transaction instead, which
the coordinator refuses once the transaction has ended, because its epoch is over. A leader writes an unusual marker
(``marker_checks``) only if the coordinator confirms it. Markers contain no transactional id, so the verifier remembers
the confirmed ids by producer id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from moldau.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from moldau_broker.coordinator.runtime.partitioning import partition_for
from moldau_broker.coordinator.transaction.core.state import TransactionStatus
from moldau_broker.server.coordination.partition_questions import PartitionQuestions
from moldau_broker.server.coordination.transactions import REQUEST_TIMEOUT_MS
from moldau_quorum.metadata.internal_topics import TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from moldau.protocol.schema import Request, Response
    from moldau.runtime.ports.environment import Clock
    from moldau.values import BrokerId
    from moldau_broker.coordinator.runtime.effects import Marker
    from moldau_broker.coordinator.transaction.coordinator import TransactionCoordinator
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.coordination.transactions import Peers, TopicPartitionName
    from moldau_quorum.metadata.image import PartitionImage

ADD_PARTITIONS_VERSION = 5
DESCRIBE_VERSION = 0
LIST_VERSION = 1
REMEMBERED_MAX = 10_000
"""Bound of the remembered producer ids; the oldest are forgotten first, and searched again when needed."""
REMEMBERED_CHARACTERS_MAX = 1_000


class TransactionVerifier:
    """Asks the coordinator of a transactional id about its transaction.

    Invariant: ``_known`` has only confirmed ids; a producer id never changes its transactional id.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        metadata: MetadataCache,
        peers: Peers,
        clock: Clock,
        *,
        retry_ms: int,
        retry_max_ms: int,
    ) -> None:
        """``retry_ms`` and ``retry_max_ms`` bound how long ``add`` waits for the end of the preceding transaction."""
        self._broker_id = broker_id
        self._metadata = metadata
        self._peers = peers
        self._clock = clock
        self._retry_ms = retry_ms
        self._retry_max_ms = retry_max_ms
        self._questions = PartitionQuestions(
            lambda broker_id, request: self._ask_broker(broker_id, request, ADD_PARTITIONS_VERSION)
        )
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
            NONE for each included partition; NETWORK_EXCEPTION if no coordinator answered.
        """
        asked = _transaction(transactional_id, producer_id, producer_epoch, partitions, verify_only=True)
        return await self._ask_about(asked, partitions)

    async def add(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartitionName]
    ) -> dict[TopicPartitionName, ErrorCode]:
        """Adds ``partitions`` to a transaction, for a client with an epoch per transaction.

        While the markers of the preceding transaction are being written, it tries again for a short time.

        Returns:
            NONE for each added partition; NETWORK_EXCEPTION if no coordinator answered.
        """
        asked = _transaction(transactional_id, producer_id, producer_epoch, partitions, verify_only=False)
        until_ms = self._clock.monotonic_ms() + self._retry_max_ms
        while True:
            codes = await self._ask_about(asked, partitions)
            is_early = ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()
            if not is_early or self._clock.monotonic_ms() + self._retry_ms > until_ms:
                return codes
            await trio.sleep(self._retry_ms / 1000)

    async def _ask_about(
        self, asked: AddPartitionsToTxnTransaction, partitions: Sequence[TopicPartitionName]
    ) -> dict[TopicPartitionName, ErrorCode]:
        coordinated = self._partition_of(asked.transactional_id)
        if coordinated is None:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        answers = await self._questions.ask(coordinated.leader, asked)
        # Only the coordinator fences a producer; an append reports an old epoch (KIP-588).
        codes: dict[TopicPartitionName, ErrorCode] = {
            key: ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code
            for key, code in answers.items()
        }
        if ErrorCode.NONE in codes.values():
            self._remember(asked.producer_id, asked.transactional_id)
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


def _transaction(
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Sequence[TopicPartitionName],
    *,
    verify_only: bool,
) -> AddPartitionsToTxnTransaction:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        verify_only=verify_only,
        topics=[AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()],
    )


UNANSWERED: frozenset[ErrorCode] = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)
"""Codes after which the same question may get another answer; clients of Produce do not know all of them."""
