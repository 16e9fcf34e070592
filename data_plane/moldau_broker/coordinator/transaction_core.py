"""The transaction coordinator of one partition of ``__transaction_state``, as a pure replicated core (KIP-98,
KIP-588, KIP-890).

Theory of operation. The state of each transactional id is its last committed record. A request that changes it writes
the next state, and until that write is committed (or refused) every other request for the id is told
CONCURRENT_TRANSACTIONS: there is one transition at a time, and each starts from committed state.

The outcome of a transaction is decided by the commit of PrepareCommit or PrepareAbort; the client is answered then.
`SendMarkers` has the outcome written into every partition, whoever leads it, and when all are done the transaction is
completed by one more record. A coordinator that loads a decided transaction sends its markers again; markers are
idempotent.

Fencing: a new producer gets a higher epoch; so does the abort of an open transaction that was taken from a producer
(by its successor or by the timeout), and its markers carry that epoch into the partitions. From version 5 of EndTxn
on, every transaction ends with a higher epoch, so that no message of it can arrive in the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from moldau.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from moldau.protocol.messages.describe_transactions import TransactionState as DescribedTransaction
from moldau.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from moldau.protocol.messages.list_transactions import TransactionState as ListedTransaction
from moldau_broker.coordinator.effects import Answer, Append, Effect, Marker, SendMarkers, TransactionalProducer
from moldau_broker.coordinator.timers import Deadlines
from moldau_broker.coordinator.transaction_answers import (
    fenced,
    init_error,
    partition_codes,
    transaction_refusal,
)
from moldau_broker.coordinator.transaction_state import (
    EPOCH_MAX,
    NO_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
    TransactionStatus,
    is_epoch_exhausted,
    parse_transaction,
    transaction_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.protocol.field import Buffer
    from moldau.protocol.schema import Request, Response
    from moldau_broker.coordinator.effects import Moment
    from moldau_broker.coordinator.transaction_config import TransactionConfig
    from moldau_broker.coordinator.transaction_state import TopicPartition

_WRITING = (InitProducerIdRequest, AddPartitionsToTxnRequest, AddOffsetsToTxnRequest, EndTxnRequest)
_TIMEOUT = "transaction timeout"
_COMPLETE = "write completion"
_ANSWER = "answer"
_EXPIRY = ("expiry",)
_EPOCH_BUMP_FROM = 5
"""EndTxn raises the epoch from this version on (KIP-890)."""

_FAILURES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


@dataclass(slots=True, kw_only=True)
class _Write:
    """A transition on its way to the log. ``respond`` is None once answered, or where nobody asked."""

    append_id: int
    transactional_id: str
    after: Transaction | None
    request_id: int
    respond: Callable[[ErrorCode], Response] | None


class TransactionCore:
    """One partition's transactions. Methods return effects, in the order in which to perform them.

    Invariants: at most one write is pending per transactional id; every request taken in is answered once; markers
    are outstanding only for transactions that are preparing.
    """

    def __init__(
        self,
        config: TransactionConfig,
        coordinator_epoch: int,
        offsets_partition: Callable[[str], TopicPartition | None],
    ) -> None:
        """Nothing loaded yet.

        Args:
            config: limits.
            coordinator_epoch: the leader epoch of the partition; markers carry it.
            offsets_partition: where the offsets of a group are stored; None while that topic does not exist.
        """
        self.unreadable_records = 0
        self._config = config
        self._coordinator_epoch = coordinator_epoch
        self._offsets_partition = offsets_partition
        self._transactions: dict[str, Transaction] = {}
        self._pending: dict[int, _Write] = {}
        self._busy: dict[str, int] = {}
        self._markers_left: dict[str, dict[TopicPartition, None]] = {}
        self._deadlines: Deadlines[tuple[str, ...]] = Deadlines()
        self._effects: list[Effect] = []
        self._next_append_id = 0

    # The log

    def replay(self, key: Buffer | None, value: Buffer | None, producer_id: int | None = None) -> None:
        """Applies one committed record."""
        del producer_id  # nobody writes transactionally to this topic
        try:
            parsed = parse_transaction(key, value)
        except DecodeError:
            self.unreadable_records += 1
            return
        if parsed is not None:
            self._apply(*parsed)

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        """The topic holds no markers."""

    def _apply(self, transactional_id: str, transaction: Transaction | None) -> None:
        if transaction is None:
            self._transactions.pop(transactional_id, None)
        else:
            self._transactions[transactional_id] = transaction

    def start(self, moment: Moment) -> list[Effect]:
        """The log is loaded: open transactions time out from now on, decided ones are brought to their end."""
        for transaction in list(self._transactions.values()):
            self._follow_up(transaction, moment)
        self._deadlines.set(_EXPIRY, moment.now_ms + self._config.expiration_check_interval_ms)
        return self._take()

    def committed(self, append_id: int, moment: Moment) -> list[Effect]:
        """A write is committed, and with it all before it."""
        assert append_id in self._pending, f"write {append_id} is not pending"
        while self._pending:
            write = next(iter(self._pending.values()))
            if write.append_id > append_id:
                break
            self._forget(write)
            self._apply(write.transactional_id, write.after)
            self._answer_write(write, ErrorCode.NONE)
            if write.after is not None:
                self._follow_up(write.after, moment)
        return self._take()

    def failed(self, append_id: int, code: ErrorCode, moment: Moment) -> list[Effect]:
        """The log refused a write; the state is what it was."""
        write = self._pending[append_id]
        self._forget(write)
        self._answer_write(write, _FAILURES.get(code, code))
        transaction = self._transactions.get(write.transactional_id)
        if transaction is not None:
            again = moment.now_ms + self._config.retry_backoff_ms
            if transaction.status.is_preparing and not self._markers_left.get(write.transactional_id):
                self._deadlines.set((_COMPLETE, write.transactional_id), again)
            elif transaction.status is TransactionStatus.ONGOING and write.request_id < 0:
                self._deadlines.set((_TIMEOUT, write.transactional_id), again)
        return self._take()

    def resign(self, code: ErrorCode, moment: Moment) -> list[Effect]:
        """Leadership is lost: answers everything that waits. The core must not be used afterwards."""
        del moment
        for write in self._pending.values():
            self._answer_write(write, code)
        self._pending.clear()
        return self._take()

    def _forget(self, write: _Write) -> None:
        del self._pending[write.append_id]
        del self._busy[write.transactional_id]
        self._deadlines.cancel((_ANSWER, str(write.append_id)))

    def _follow_up(self, transaction: Transaction, moment: Moment) -> None:
        """What a committed state asks for."""
        name = transaction.transactional_id
        if transaction.status is TransactionStatus.ONGOING:
            left_ms = max(0, transaction.start_ms + transaction.timeout_ms - moment.wall_ms)
            self._deadlines.set((_TIMEOUT, name), moment.now_ms + min(left_ms, transaction.timeout_ms))
            return
        self._deadlines.cancel((_TIMEOUT, name))
        if not transaction.status.is_preparing:
            return
        if not transaction.partitions:
            self._complete(transaction, moment)
            return
        self._markers_left[name] = dict.fromkeys(transaction.partitions)
        producer = TransactionalProducer(producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch)
        marker = Marker(
            producer=producer,
            coordinator_epoch=self._coordinator_epoch,
            commit=transaction.status is TransactionStatus.PREPARE_COMMIT,
        )
        self._effects.append(SendMarkers(transactional_id=name, marker=marker, partitions=transaction.partitions))

    def markers_written(
        self, sent: SendMarkers, partitions: tuple[TopicPartition, ...], moment: Moment
    ) -> list[Effect]:
        """Markers of a transaction are written in these partitions; the last one completes it."""
        name = sent.transactional_id
        transaction = self._transactions.get(name)
        left = self._markers_left.get(name)
        assert transaction is not None, "a decided transaction cannot vanish"
        assert left is not None, "markers were reported twice"
        assert transaction.producer_epoch == sent.marker.producer.producer_epoch
        for partition in partitions:
            left.pop(partition, None)
        if not left:
            del self._markers_left[name]
            self._complete(transaction, moment)
        return self._take()

    def _complete(self, transaction: Transaction, moment: Moment) -> None:
        """Writes that a transaction is over; its producer id may be replaced now."""
        commit = transaction.status is TransactionStatus.PREPARE_COMMIT
        status = TransactionStatus.COMPLETE_COMMIT if commit else TransactionStatus.COMPLETE_ABORT
        after = transaction.moved(status, moment.wall_ms, partitions=())
        if transaction.next_producer_id != NO_PRODUCER_ID:
            after = replace(
                after,
                previous_producer_id=transaction.producer_id,
                producer_id=transaction.next_producer_id,
                producer_epoch=transaction.next_producer_epoch,
                next_producer_id=NO_PRODUCER_ID,
                next_producer_epoch=NO_EPOCH,
            )
        self._write(transaction.transactional_id, after, moment)

    # Effects

    def _write(
        self,
        transactional_id: str,
        after: Transaction | None,
        moment: Moment,
        request_id: int = -1,
        respond: Callable[[ErrorCode], Response] | None = None,
    ) -> None:
        assert transactional_id not in self._busy, "one transition at a time"
        append_id = self._next_append_id
        self._next_append_id += 1
        self._pending[append_id] = _Write(
            append_id=append_id,
            transactional_id=transactional_id,
            after=after,
            request_id=request_id,
            respond=respond,
        )
        self._busy[transactional_id] = append_id
        if respond is not None:
            self._deadlines.set((_ANSWER, str(append_id)), moment.now_ms + self._config.append_timeout_ms)
        self._effects.append(Append(append_id=append_id, records=(transaction_record(transactional_id, after),)))

    def _answer_write(self, write: _Write, code: ErrorCode) -> None:
        respond, write.respond = write.respond, None
        if respond is not None:
            self._answer(write.request_id, respond(code))

    def _answer(self, request_id: int, response: Response) -> None:
        self._effects.append(Answer(request_id=request_id, response=response))

    def _take(self) -> list[Effect]:
        effects = self._effects
        self._effects = []
        return effects

    # Time

    def next_deadline_ms(self) -> int | None:
        """When `on_timer` has to be called next."""
        return self._deadlines.next_ms()

    def on_timer(self, moment: Moment) -> list[Effect]:
        """Aborts transactions that took too long, answers what waits for slow replicas, repeats and expires."""
        while (key := self._deadlines.pop_due(moment.now_ms)) is not None:
            if key == _EXPIRY:
                self._expire(moment)
                self._deadlines.set(_EXPIRY, moment.now_ms + self._config.expiration_check_interval_ms)
            elif key[0] == _ANSWER:
                self._answer_write(self._pending[int(key[1])], _FAILURES[ErrorCode.REQUEST_TIMED_OUT])
            elif key[1] in self._busy:
                self._deadlines.set(key, moment.now_ms + self._config.retry_backoff_ms)
            elif key[0] == _COMPLETE:
                transaction = self._transactions[key[1]]
                assert transaction.status.is_preparing
                self._complete(transaction, moment)
            else:
                self._abort_fencing(self._transactions[key[1]], moment)
        return self._take()

    def _expire(self, moment: Moment) -> None:
        """Forgets transactional ids that nobody has used for ``transactional.id.expiration.ms``."""
        written = 0
        for name, transaction in self._transactions.items():
            idle_ms = moment.wall_ms - transaction.last_update_ms
            expired = transaction.status.is_settled and idle_ms >= self._config.id_expiration_ms
            if expired and name not in self._busy and written < self._config.expired_per_round_max:
                self._write(name, None, moment)
                written += 1

    def _abort_fencing(
        self,
        transaction: Transaction,
        moment: Moment,
        request_id: int = -1,
        respond: Callable[[ErrorCode], Response] | None = None,
    ) -> None:
        """Takes an open transaction from its producer: a higher epoch and the abort, in one record."""
        assert transaction.status is TransactionStatus.ONGOING
        after = transaction.moved(
            TransactionStatus.PREPARE_ABORT,
            moment.wall_ms,
            producer_epoch=min(transaction.producer_epoch + 1, EPOCH_MAX),
            last_epoch=NO_EPOCH,
        )
        self._write(transaction.transactional_id, after, moment, request_id, respond)

    # Requests

    def needs_producer_id(self, request: Request, version: int) -> bool:
        """Whether `handle` may need a fresh producer id to serve the request."""
        if isinstance(request, InitProducerIdRequest):
            transaction = self._transactions.get(request.transactional_id or "")
            return transaction is None or is_epoch_exhausted(transaction.producer_epoch)
        if isinstance(request, EndTxnRequest) and version >= _EPOCH_BUMP_FROM:
            transaction = self._transactions.get(request.transactional_id)
            return transaction is not None and is_epoch_exhausted(transaction.producer_epoch)
        return False

    def handle(
        self, request_id: int, request: Request, version: int, fresh_producer_id: int | None, moment: Moment
    ) -> list[Effect]:
        """Takes in a request about transactional ids of this partition; its answer is among these effects or later
        ones.

        AddPartitionsToTxn comes with exactly one transaction in the shape of version 4, ListTransactions and
        DescribeTransactions with the ids of this partition only. ``fresh_producer_id`` is given where
        `needs_producer_id` asked for one.
        """
        code = ErrorCode.NONE
        if isinstance(request, _WRITING) and len(self._pending) >= self._config.appends_pending_max:
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
            states = [self._describe(name) for name in request.transactional_ids]
            self._answer(request_id, DescribeTransactionsResponse(transaction_states=states))
        elif isinstance(request, ListTransactionsRequest):
            self._answer(request_id, self._list(request, moment))
        else:
            raise TypeError(f"{type(request).__name__} is not a request to a transaction coordinator")
        if code is not ErrorCode.NONE:
            self._answer(request_id, transaction_refusal(request, code))
        return self._take()

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
        if name in self._busy:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        transaction = self._transactions.get(name)
        if transaction is None:
            if request.producer_id != NO_PRODUCER_ID:
                return ErrorCode.INVALID_PRODUCER_ID_MAPPING
            if fresh_producer_id is None:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            created = Transaction(
                transactional_id=name,
                producer_id=fresh_producer_id,
                producer_epoch=0,
                timeout_ms=request.transaction_timeout_ms,
                last_update_ms=moment.wall_ms,
            )
            self._write(name, created, moment, request_id, _init_reply(created))
            return ErrorCode.NONE
        if not _may_init(transaction, request):
            return fenced(request, version)
        if transaction.status is TransactionStatus.ONGOING:

            def aborted(code: ErrorCode) -> Response:
                return init_error(ErrorCode.CONCURRENT_TRANSACTIONS if code is ErrorCode.NONE else code)

            self._abort_fencing(transaction, moment, request_id, aborted)
            return ErrorCode.NONE
        if not transaction.status.is_settled:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        after = self._next_producer(transaction, request, fresh_producer_id, moment)
        if after is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._write(name, after, moment, request_id, _init_reply(after))
        return ErrorCode.NONE

    def _next_producer(
        self, transaction: Transaction, request: InitProducerIdRequest, fresh_producer_id: int | None, moment: Moment
    ) -> Transaction | None:
        """The state that lets a new or recovering producer in; None if it takes a producer id that is not at hand."""
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
            return replace(clean, producer_epoch=epoch + 1, last_epoch=epoch if known else NO_EPOCH)
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
        """The transaction that a producer talks about, or why it may not."""
        if not name:
            return ErrorCode.INVALID_REQUEST, None
        transaction = self._transactions.get(name)
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
            # A broker asks whether a batch belongs to an open transaction (KIP-890).
            missing = ErrorCode.TRANSACTION_ABORTABLE if version >= 5 else ErrorCode.INVALID_TXN_STATE
            ongoing = transaction.status is TransactionStatus.ONGOING
            inside = set(transaction.partitions) if ongoing else set()
            answer = partition_codes(
                asked, lambda topic, index: ErrorCode.NONE if (topic, index) in inside else missing
            )
            self._answer(request_id, answer)
            return ErrorCode.NONE
        return self._add(
            transaction,
            wanted,
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
            moment,
            request_id,
            lambda outcome: AddOffsetsToTxnResponse(error_code=outcome),
        )

    def _add(
        self,
        transaction: Transaction,
        wanted: tuple[TopicPartition, ...],
        moment: Moment,
        request_id: int,
        respond: Callable[[ErrorCode], Response],
    ) -> ErrorCode:
        """Opens the transaction if need be, and adds partitions to it."""
        if transaction.transactional_id in self._busy or transaction.status.is_preparing:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        ongoing = transaction.status is TransactionStatus.ONGOING
        partitions = dict.fromkeys(transaction.partitions) if ongoing else {}
        before = len(partitions)
        partitions.update(dict.fromkeys(wanted))
        if ongoing and len(partitions) == before:
            self._answer(request_id, respond(ErrorCode.NONE))
            return ErrorCode.NONE
        after = transaction.moved(
            TransactionStatus.ONGOING,
            moment.wall_ms,
            partitions=tuple(partitions),
            start_ms=transaction.start_ms if ongoing else moment.wall_ms,
        )
        self._write(transaction.transactional_id, after, moment, request_id, respond)
        return ErrorCode.NONE

    def _end(
        self, request_id: int, request: EndTxnRequest, version: int, fresh_producer_id: int | None, moment: Moment
    ) -> ErrorCode:
        name, epoch = request.transactional_id, request.producer_epoch
        bumps = version >= _EPOCH_BUMP_FROM
        transaction = self._transactions.get(name)
        repeated = bumps and transaction is not None and _is_repeated_end(transaction, request)
        if not repeated:
            code, transaction = self._find(request, name, request.producer_id, epoch, version)
            if transaction is None:
                return code
        assert transaction is not None
        if name in self._busy:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        status = transaction.status
        decided = (
            (TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT)
            if request.committed
            else (TransactionStatus.PREPARE_ABORT, TransactionStatus.COMPLETE_ABORT)
        )
        if status.is_preparing:
            return ErrorCode.CONCURRENT_TRANSACTIONS if status in decided else ErrorCode.INVALID_TXN_STATE
        if status is not TransactionStatus.ONGOING:
            if status in decided and (repeated or not bumps):
                self._answer(request_id, _end_reply(transaction, bumps)(ErrorCode.NONE))
                return ErrorCode.NONE
            # With epochs that rise per transaction a client may abort before it has added anything.
            if repeated or not bumps or request.committed:
                return ErrorCode.INVALID_TXN_STATE
        prepared = TransactionStatus.PREPARE_COMMIT if request.committed else TransactionStatus.PREPARE_ABORT
        after = transaction.moved(prepared, moment.wall_ms)
        if bumps:
            after = replace(after, producer_epoch=min(transaction.producer_epoch + 1, EPOCH_MAX), client_version=2)
            if is_epoch_exhausted(transaction.producer_epoch):
                if fresh_producer_id is None:
                    return ErrorCode.COORDINATOR_NOT_AVAILABLE
                after = replace(after, next_producer_id=fresh_producer_id, next_producer_epoch=0)
        self._write(name, after, moment, request_id, _end_reply(after, bumps))
        return ErrorCode.NONE

    def _describe(self, name: str) -> DescribedTransaction:
        transaction = self._transactions.get(name)
        if not name or transaction is None:
            code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if name else ErrorCode.INVALID_REQUEST
            return DescribedTransaction(error_code=code, transactional_id=name)
        topics: dict[str, list[int]] = {}
        for topic, partition in transaction.partitions:
            topics.setdefault(topic, []).append(partition)
        return DescribedTransaction(
            transactional_id=name,
            transaction_state=transaction.status.label,
            transaction_timeout_ms=transaction.timeout_ms,
            transaction_start_time_ms=transaction.start_ms,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            topics=[TopicData(topic=topic, partitions=partitions) for topic, partitions in topics.items()],
        )

    @staticmethod
    def unknown_states(request: ListTransactionsRequest) -> list[str]:
        """State names of a filter that do not exist."""
        labels = {status.label for status in TransactionStatus}
        return [label for label in request.state_filters if label not in labels]

    def _list(self, request: ListTransactionsRequest, moment: Moment) -> ListTransactionsResponse:
        listed: list[ListedTransaction] = []
        for name, transaction in sorted(self._transactions.items()):
            if request.state_filters and transaction.status.label not in request.state_filters:
                continue
            if request.producer_id_filters and transaction.producer_id not in request.producer_id_filters:
                continue
            if request.duration_filter >= 0 and (
                transaction.start_ms < 0 or moment.wall_ms - transaction.start_ms <= request.duration_filter
            ):
                continue
            listed.append(
                ListedTransaction(
                    transactional_id=name,
                    producer_id=transaction.producer_id,
                    transaction_state=transaction.status.label,
                )
            )
        return ListTransactionsResponse(unknown_state_filters=self.unknown_states(request), transaction_states=listed)


def _may_init(transaction: Transaction, request: InitProducerIdRequest) -> bool:
    """Whether a producer that says who it was is the present one, or repeats a request whose answer it missed
    (KIP-360)."""
    if request.producer_id == NO_PRODUCER_ID:
        return True
    identity = (request.producer_id, request.producer_epoch)
    if request.producer_id == transaction.producer_id:
        return request.producer_epoch in (transaction.producer_epoch, transaction.last_epoch)
    return transaction.previous_producer_id != NO_PRODUCER_ID and (
        identity[0] == transaction.previous_producer_id and is_epoch_exhausted(identity[1])
    )


def _is_repeated_end(transaction: Transaction, request: EndTxnRequest) -> bool:
    """Whether a client that raises epochs asks again for an end that has been decided already."""
    if transaction.status is TransactionStatus.ONGOING:
        return False
    if request.producer_id == transaction.producer_id:
        return request.producer_epoch == transaction.producer_epoch - 1
    return (
        request.producer_id == transaction.previous_producer_id
        and transaction.producer_epoch == 0
        and is_epoch_exhausted(request.producer_epoch)
    )


def _init_reply(after: Transaction) -> Callable[[ErrorCode], Response]:
    def respond(code: ErrorCode) -> Response:
        if code is not ErrorCode.NONE:
            return init_error(code)
        return InitProducerIdResponse(producer_id=after.producer_id, producer_epoch=after.producer_epoch)

    return respond


def _end_reply(after: Transaction, bumps: bool) -> Callable[[ErrorCode], Response]:
    def respond(code: ErrorCode) -> Response:
        if code is not ErrorCode.NONE or not bumps:
            return EndTxnResponse(error_code=code)
        if after.next_producer_id != NO_PRODUCER_ID:
            return EndTxnResponse(producer_id=after.next_producer_id, producer_epoch=after.next_producer_epoch)
        return EndTxnResponse(producer_id=after.producer_id, producer_epoch=after.producer_epoch)

    return respond
