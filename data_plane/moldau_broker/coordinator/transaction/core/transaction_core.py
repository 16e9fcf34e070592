"""The replicated core of the transaction coordinator of one partition of ``__transaction_state``. Pure.

Each request is checked against committed state and starts a transition of `lifecycle`, which describes the theory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from moldau.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.list_transactions import ListTransactionsRequest
from moldau_broker.coordinator.transaction.core.answers import (
    BATCHED_FROM,
    fenced,
    init_error,
    partition_codes,
    transaction_refusal,
)
from moldau_broker.coordinator.transaction.core.lifecycle import TransactionLifecycle
from moldau_broker.coordinator.transaction.core.rules import (
    described,
    end_reply,
    init_reply,
    is_repeated_end,
    is_timed_out,
    listed,
    may_init,
    prepared_end,
)
from moldau_broker.coordinator.transaction.core.state import (
    EPOCH_PER_TRANSACTION,
    NO_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
    TransactionStatus,
    is_epoch_exhausted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.protocol.schema import Request, Response
    from moldau.values import Buffer
    from moldau_broker.coordinator.runtime.effects import Effect, Moment, SendMarkers
    from moldau_broker.coordinator.transaction.core.config import TransactionConfig
    from moldau_broker.coordinator.transaction.core.state import TopicPartition

_WRITING = (InitProducerIdRequest, AddPartitionsToTxnRequest, AddOffsetsToTxnRequest, EndTxnRequest)
_EPOCH_BUMP_FROM = 5
"""The first version of EndTxn that raises the epoch (KIP-890)."""
_ABORTABLE_FROM = 5
"""The first version of AddPartitionsToTxn whose senders know TRANSACTION_ABORTABLE."""


class TransactionCore:
    """The coordinator of one partition's transactions: their `lifecycle`, and the requests that move it.

    Events return effects, in the order in which to perform them.
    """

    def __init__(
        self,
        config: TransactionConfig,
        coordinator_epoch: int,
        offsets_partition: Callable[[str], TopicPartition | None],
        level: Callable[[], int],
    ) -> None:
        """Starts with nothing loaded.

        Args:
            config: limits.
            coordinator_epoch: the leader epoch of the partition; markers carry it.
            offsets_partition: returns the partition that stores the offsets of a group; None while that topic does
                not exist.
            level: returns the cluster's level of ``transaction.version``.
        """
        self.lifecycle = TransactionLifecycle(config, coordinator_epoch, level)
        self._config = config
        self._offsets_partition = offsets_partition

    @property
    def transactions(self) -> Mapping[str, Transaction]:
        """The committed state of each transactional id."""
        return self.lifecycle.transactions

    @property
    def unreadable_records(self) -> int:
        """Records of the log that could not be parsed."""
        return self.lifecycle.unreadable_records

    # The log and time

    def replay(self, key: Buffer | None, value: Buffer | None, producer_id: int | None = None) -> None:
        """Applies one committed record."""
        del producer_id  # no transactional batch is written to this topic
        self.lifecycle.replay(key, value)

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        """Does nothing: the topic holds no markers."""

    def start(self, moment: Moment) -> list[Effect]:
        """Begins to serve after the log is loaded."""
        return self.lifecycle.start(moment)

    def committed(self, append_id: int, moment: Moment) -> list[Effect]:
        """Applies a write that is committed, and all writes before it."""
        return self.lifecycle.committed(append_id, moment)

    def failed(self, append_id: int, code: ErrorCode, moment: Moment) -> list[Effect]:
        """Drops a write that the log refused."""
        return self.lifecycle.failed(append_id, code, moment)

    def markers_written(
        self, sent: SendMarkers, partitions: tuple[TopicPartition, ...], moment: Moment
    ) -> list[Effect]:
        """Records that the markers of a transaction are written in these partitions."""
        return self.lifecycle.markers_written(sent, partitions, moment)

    def resign(self, code: ErrorCode, moment: Moment) -> list[Effect]:
        """Answers all open requests after leadership is lost. The core must not be used afterwards."""
        del moment
        return self.lifecycle.resign(code)

    def next_deadline_ms(self) -> int | None:
        """Returns when `on_timer` has to be called next."""
        return self.lifecycle.next_deadline_ms()

    def on_timer(self, moment: Moment) -> list[Effect]:
        """Performs what is due."""
        return self.lifecycle.on_timer(moment)

    # Requests

    def needs_producer_id(self, request: Request, version: int) -> bool:
        """Returns whether `handle` may need a fresh producer id to serve the request."""
        if isinstance(request, InitProducerIdRequest):
            transaction = self.lifecycle.transactions.get(request.transactional_id or "")
            return transaction is None or is_epoch_exhausted(transaction.producer_epoch)
        if isinstance(request, EndTxnRequest) and version >= _EPOCH_BUMP_FROM:
            transaction = self.lifecycle.transactions.get(request.transactional_id)
            return transaction is not None and is_epoch_exhausted(transaction.producer_epoch)
        return False

    def handle(
        self, request_id: int, request: Request, version: int, fresh_producer_id: int | None, moment: Moment
    ) -> list[Effect]:
        """Handles a request about transactional ids of this partition.

        Its answer is among these effects or later ones. AddPartitionsToTxn has exactly one transaction, in the form of
        version 4; DescribeTransactions names ids of this partition only. ``fresh_producer_id`` is set if
        `needs_producer_id` returned True.
        """
        code = ErrorCode.NONE
        if isinstance(request, _WRITING) and len(self.lifecycle.pending) >= self._config.appends_pending_max:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif isinstance(request, InitProducerIdRequest):
            code = self._init(request_id, request, version, fresh_producer_id, moment)
        elif isinstance(request, AddPartitionsToTxnRequest):
            code = self._add_partitions(request_id, request, version, moment)
        elif isinstance(request, AddOffsetsToTxnRequest):
            code = self._add_offsets(request_id, request, version, moment)
        elif isinstance(request, EndTxnRequest):
            code = self._end(request_id, request, version, fresh_producer_id, moment)
        elif isinstance(request, DescribeTransactionsRequest):
            states = [described(name, self.lifecycle.transactions.get(name)) for name in request.transactional_ids]
            self.lifecycle.answer(request_id, DescribeTransactionsResponse(transaction_states=states))
        elif isinstance(request, ListTransactionsRequest):
            self.lifecycle.answer(request_id, listed(request, self.lifecycle.transactions, moment))
        else:
            raise TypeError(f"{type(request).__name__} is not a request to a transaction coordinator")
        if code is not ErrorCode.NONE:
            self.lifecycle.answer(request_id, transaction_refusal(request, code))
        return self.lifecycle.take()

    def _init(
        self,
        request_id: int,
        request: InitProducerIdRequest,
        version: int,
        fresh_producer_id: int | None,
        moment: Moment,
    ) -> ErrorCode:
        name = request.transactional_id
        if not name:
            return ErrorCode.INVALID_REQUEST
        if not 0 < request.transaction_timeout_ms <= self._config.timeout_max_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
            return ErrorCode.INVALID_REQUEST
        if name in self.lifecycle.busy:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        transaction = self.lifecycle.transactions.get(name)
        if transaction is None:
            # A producer that names an id had one that expired; a fresh id is safe for it (KIP-360).
            if fresh_producer_id is None:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            created = Transaction(
                transactional_id=name,
                producer_id=fresh_producer_id,
                producer_epoch=0,
                timeout_ms=request.transaction_timeout_ms,
                last_update_ms=moment.wall_ms,
            )
            self.lifecycle.write(name, created, moment, request_id, init_reply(created))
            return ErrorCode.NONE
        if not may_init(transaction, request):
            return fenced(request, version)
        if transaction.status is TransactionStatus.ONGOING:

            def aborted(code: ErrorCode) -> Response:
                return init_error(ErrorCode.CONCURRENT_TRANSACTIONS if code is ErrorCode.NONE else code)

            is_own = (request.producer_id, request.producer_epoch) == (
                transaction.producer_id,
                transaction.producer_epoch,
            )
            self.lifecycle.abort_fencing(transaction, moment, request_id, aborted, is_own=is_own)
            return ErrorCode.NONE
        if not transaction.status.is_settled:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        after = self._next_producer(transaction, request, fresh_producer_id, moment)
        if after is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self.lifecycle.write(name, after, moment, request_id, init_reply(after))
        return ErrorCode.NONE

    def _next_producer(
        self, transaction: Transaction, request: InitProducerIdRequest, fresh_producer_id: int | None, moment: Moment
    ) -> Transaction | None:
        """Returns the state for a new or recovering producer; None if that needs a fresh producer id and has none."""
        epoch = transaction.producer_epoch
        clean = transaction.moved(
            TransactionStatus.EMPTY,
            moment.wall_ms,
            timeout_ms=request.transaction_timeout_ms,
            partitions=(),
            start_ms=-1,
        )
        known = request.producer_id != NO_PRODUCER_ID
        if known and (request.producer_id, request.producer_epoch) != (transaction.producer_id, epoch):
            return clean  # a retry of a bump that was already made
        if not is_epoch_exhausted(epoch):
            return replace(
                clean,
                producer_epoch=epoch + 1,
                last_epoch=epoch if known else NO_EPOCH,
                previous_producer_id=NO_PRODUCER_ID,
            )
        if fresh_producer_id is None:
            return None
        return replace(
            clean,
            producer_id=fresh_producer_id,
            producer_epoch=0,
            previous_producer_id=transaction.producer_id if known else NO_PRODUCER_ID,
            last_epoch=epoch if known else NO_EPOCH,
        )

    def _find(
        self, request: Request, name: str, producer_id: int, epoch: int, version: int
    ) -> tuple[ErrorCode, Transaction | None]:
        """Returns the transaction of a producer, or the error code if the producer does not own it."""
        if not name:
            return ErrorCode.INVALID_REQUEST, None
        transaction = self.lifecycle.transactions.get(name)
        if transaction is not None and transaction.belongs_to_next(producer_id, epoch):
            return ErrorCode.CONCURRENT_TRANSACTIONS, None  # it waits until the markers of the last one are written
        if transaction is None or transaction.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, None
        if transaction.producer_epoch != epoch:
            return fenced(request, version), None
        return ErrorCode.NONE, transaction

    def _add_partitions(
        self, request_id: int, request: AddPartitionsToTxnRequest, version: int, moment: Moment
    ) -> ErrorCode:
        (asked,) = request.transactions
        code, transaction = self._find(
            request, asked.transactional_id, asked.producer_id, asked.producer_epoch, version
        )
        if transaction is None:
            return code
        wanted = tuple((topic.name, partition) for topic in asked.topics for partition in topic.partitions)
        if asked.verify_only:
            # A partition leader asks whether a batch belongs to an open transaction (KIP-890).
            if transaction.status.is_preparing:
                return ErrorCode.CONCURRENT_TRANSACTIONS
            missing = ErrorCode.TRANSACTION_ABORTABLE if version >= _ABORTABLE_FROM else ErrorCode.INVALID_TXN_STATE
            ongoing = transaction.status is TransactionStatus.ONGOING
            inside = set(transaction.partitions) if ongoing else set()
            answer = partition_codes(
                asked, lambda topic, index: ErrorCode.NONE if (topic, index) in inside else missing
            )
            self.lifecycle.answer(request_id, answer)
            return ErrorCode.NONE
        return self._add(
            transaction,
            wanted,
            # Only brokers send many transactions at once: they add for clients with an epoch per transaction.
            EPOCH_PER_TRANSACTION if version >= BATCHED_FROM else 0,
            moment,
            request_id,
            lambda outcome: partition_codes(asked, lambda _topic, _partition: outcome),
        )

    def _add_offsets(self, request_id: int, request: AddOffsetsToTxnRequest, version: int, moment: Moment) -> ErrorCode:
        code, transaction = self._find(
            request, request.transactional_id, request.producer_id, request.producer_epoch, version
        )
        if transaction is None:
            return code
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        partition = self._offsets_partition(request.group_id)
        if partition is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self._add(
            transaction,
            (partition,),
            0,
            moment,
            request_id,
            lambda outcome: AddOffsetsToTxnResponse(error_code=outcome),
        )

    def _add(
        self,
        transaction: Transaction,
        wanted: tuple[TopicPartition, ...],
        client_version: int,
        moment: Moment,
        request_id: int,
        respond: Callable[[ErrorCode], Response],
    ) -> ErrorCode:
        """Adds partitions to the transaction; begins it if it is not open."""
        if transaction.transactional_id in self.lifecycle.busy or transaction.status.is_preparing:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        ongoing = transaction.status is TransactionStatus.ONGOING
        partitions = dict.fromkeys(transaction.partitions) if ongoing else {}
        before = len(partitions)
        partitions.update(dict.fromkeys(wanted))
        if ongoing and len(partitions) == before:
            self.lifecycle.answer(request_id, respond(ErrorCode.NONE))
            return ErrorCode.NONE
        after = transaction.moved(
            TransactionStatus.ONGOING,
            moment.wall_ms,
            partitions=tuple(partitions),
            start_ms=transaction.start_ms if ongoing else moment.wall_ms,
            client_version=client_version,
            last_epoch=transaction.last_epoch if ongoing else NO_EPOCH,
            previous_producer_id=NO_PRODUCER_ID,  # the producer knows its present id
        )
        self.lifecycle.write(transaction.transactional_id, after, moment, request_id, respond)
        return ErrorCode.NONE

    def _end(
        self, request_id: int, request: EndTxnRequest, version: int, fresh_producer_id: int | None, moment: Moment
    ) -> ErrorCode:
        name, epoch = request.transactional_id, request.producer_epoch
        bumps = version >= _EPOCH_BUMP_FROM
        transaction = self.lifecycle.transactions.get(name)
        repeated = bumps and transaction is not None and is_repeated_end(transaction, request)
        if not repeated:
            code, transaction = self._find(request, name, request.producer_id, epoch, version)
            if transaction is None:
                return code
        assert transaction is not None
        if name in self.lifecycle.busy:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        status = transaction.status
        if repeated and request.committed and is_timed_out(transaction, epoch):
            return fenced(request, version)
        decided = (
            (TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT)
            if request.committed
            else (TransactionStatus.PREPARE_ABORT, TransactionStatus.COMPLETE_ABORT)
        )
        if status.is_preparing:
            return ErrorCode.CONCURRENT_TRANSACTIONS if status in decided else ErrorCode.INVALID_TXN_STATE
        if status is not TransactionStatus.ONGOING:
            if status in decided and (repeated or not bumps):
                self.lifecycle.answer(request_id, end_reply(transaction, bumps)(ErrorCode.NONE))
                return ErrorCode.NONE
            # With one epoch per transaction, a client may abort before it has added any partition.
            if repeated or not bumps or request.committed:
                return ErrorCode.INVALID_TXN_STATE
        prepared = TransactionStatus.PREPARE_COMMIT if request.committed else TransactionStatus.PREPARE_ABORT
        after = prepared_end(transaction, prepared, bumps, fresh_producer_id, moment)
        if after is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self.lifecycle.write(name, after, moment, request_id, end_reply(after, bumps))
        return ErrorCode.NONE
