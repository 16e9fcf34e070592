"""The states of the transactions in one partition of ``__transaction_state``. Pure (KIP-98, KIP-588, KIP-890).

Theory of operation. The state of each transactional id is its last committed record. A request that changes it writes
the next state. Until that write is committed or refused, every other request for the id gets CONCURRENT_TRANSACTIONS:
there is one transition at a time, and each starts from committed state. `transaction_core` handles the requests.

The commit of PrepareCommit or PrepareAbort decides the outcome of a transaction, and the client is answered then.
`SendMarkers` writes the outcome into every partition. When all partitions have their marker, one more record completes
the transaction. A coordinator that loads a decided transaction sends its markers again; markers are idempotent.

Fencing: a new producer gets a higher epoch. The abort of an open transaction that its producer did not request (a new
producer did, or the timeout passed) also raises the epoch, and its markers take that epoch into the partitions. From
version 5 of EndTxn on, every transaction ends with a higher epoch, so no late message can enter the next one. The
markers of such a transaction say so: a partition refuses one whose epoch already has an open transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.runtime.effects import Answer, Append, Effect, Marker, SendMarkers, TransactionalProducer
from moldau_broker.coordinator.runtime.log_refusals import LOG_REFUSALS
from moldau_broker.coordinator.runtime.timers import Deadlines
from moldau_broker.coordinator.transaction.core.state import (
    EPOCH_MAX,
    EPOCH_PER_TRANSACTION,
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

    from moldau.protocol.schema import Response
    from moldau.values import Buffer
    from moldau_broker.coordinator.runtime.effects import Moment
    from moldau_broker.coordinator.transaction.core.config import TransactionConfig
    from moldau_broker.coordinator.transaction.core.state import TopicPartition

_TIMEOUT = "transaction timeout"
_COMPLETE = "write completion"
_ANSWER = "answer"
_EXPIRY = ("expiry",)

_FAILURES = {
    **LOG_REFUSALS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


@dataclass(slots=True, kw_only=True)
class _Write:
    """A pending transition. ``respond`` is None once it is answered, or if no request waits for it."""

    append_id: int
    transactional_id: str
    after: Transaction | None
    request_id: int
    respond: Callable[[ErrorCode], Response] | None


class TransactionLifecycle:
    """The transactions of one partition. Events return effects, in the order in which to perform them.

    Invariants: at most one write is pending per transactional id; every request is answered once; markers are
    outstanding only for transactions in a prepare state.
    """

    def __init__(self, config: TransactionConfig, coordinator_epoch: int, level: Callable[[], int]) -> None:
        """Starts with nothing loaded.

        ``coordinator_epoch`` is the leader epoch of the partition; markers carry it. ``level`` returns the cluster's
        level of ``transaction.version``.
        """
        self.unreadable_records = 0
        self._level = level
        self._config = config
        self._coordinator_epoch = coordinator_epoch
        self.transactions: dict[str, Transaction] = {}
        self.pending: dict[int, _Write] = {}
        self.busy: dict[str, int] = {}
        self._markers_left: dict[str, dict[TopicPartition, None]] = {}
        self._deadlines: Deadlines[tuple[str, ...]] = Deadlines()
        self._effects: list[Effect] = []
        self._next_append_id = 0

    # The log

    def replay(self, key: Buffer | None, value: Buffer | None) -> None:
        """Applies one committed record."""
        try:
            parsed = parse_transaction(key, value)
        except DecodeError:
            self.unreadable_records += 1
            return
        if parsed is not None:
            self._apply(*parsed)

    def _apply(self, transactional_id: str, transaction: Transaction | None) -> None:
        if transaction is None:
            self.transactions.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = transaction

    def start(self, moment: Moment) -> list[Effect]:
        """Starts the timeouts of open transactions and completes decided ones, after the log is loaded."""
        for transaction in list(self.transactions.values()):
            self._follow_up(transaction, moment)
        self._deadlines.set(_EXPIRY, moment.now_ms + self._config.expiration_check_interval_ms)
        return self.take()

    def committed(self, append_id: int, moment: Moment) -> list[Effect]:
        """Applies a write that is committed, and all writes before it."""
        assert append_id in self.pending, f"write {append_id} is not pending"
        while self.pending:
            write = next(iter(self.pending.values()))
            if write.append_id > append_id:
                break
            self._forget(write)
            self._apply(write.transactional_id, write.after)
            self.answer_write(write, ErrorCode.NONE)
            if write.after is not None:
                self._follow_up(write.after, moment)
        return self.take()

    def failed(self, append_id: int, code: ErrorCode, moment: Moment) -> list[Effect]:
        """Drops a write that the log refused; the state is unchanged."""
        write = self.pending[append_id]
        self._forget(write)
        self.answer_write(write, _FAILURES.get(code, code))
        transaction = self.transactions.get(write.transactional_id)
        if transaction is not None:
            again = moment.now_ms + self._config.retry_backoff_ms
            if transaction.status.is_preparing and not self._markers_left.get(write.transactional_id):
                self._deadlines.set((_COMPLETE, write.transactional_id), again)
            elif transaction.status is TransactionStatus.ONGOING and write.request_id < 0:
                self._deadlines.set((_TIMEOUT, write.transactional_id), again)
        return self.take()

    def resign(self, code: ErrorCode) -> list[Effect]:
        """Answers all open requests after leadership is lost. Must not be used afterwards."""
        for write in self.pending.values():
            self.answer_write(write, code)
        self.pending.clear()
        return self.take()

    def _forget(self, write: _Write) -> None:
        del self.pending[write.append_id]
        del self.busy[write.transactional_id]
        self._deadlines.cancel((_ANSWER, str(write.append_id)))

    def _follow_up(self, transaction: Transaction, moment: Moment) -> None:
        """Sets the timeout of an open transaction, and sends the markers of a decided one."""
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
            transaction_version=transaction.client_version,
        )
        self._effects.append(SendMarkers(transactional_id=name, marker=marker, partitions=transaction.partitions))

    def markers_written(
        self, sent: SendMarkers, partitions: tuple[TopicPartition, ...], moment: Moment
    ) -> list[Effect]:
        """Records that the markers in these partitions are written; the last one completes the transaction."""
        name = sent.transactional_id
        transaction = self.transactions.get(name)
        left = self._markers_left.get(name)
        assert transaction is not None, "a decided transaction cannot vanish"
        assert left is not None, "markers were reported twice"
        assert transaction.producer_epoch == sent.marker.producer.producer_epoch
        for partition in partitions:
            left.pop(partition, None)
        if not left:
            del self._markers_left[name]
            self._complete(transaction, moment)
        return self.take()

    def _complete(self, transaction: Transaction, moment: Moment) -> None:
        """Writes the complete state of a transaction; replaces the producer id if its epochs are exhausted."""
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
        self.write(transaction.transactional_id, after, moment)

    # Effects

    def write(
        self,
        transactional_id: str,
        after: Transaction | None,
        moment: Moment,
        request_id: int = -1,
        respond: Callable[[ErrorCode], Response] | None = None,
    ) -> None:
        """Collects the write of a transition; the shell reports its outcome with `committed` or `failed`."""
        assert transactional_id not in self.busy, "one transition at a time"
        append_id = self._next_append_id
        self._next_append_id += 1
        self.pending[append_id] = _Write(
            append_id=append_id,
            transactional_id=transactional_id,
            after=after,
            request_id=request_id,
            respond=respond,
        )
        self.busy[transactional_id] = append_id
        if respond is not None:
            self._deadlines.set((_ANSWER, str(append_id)), moment.now_ms + self._config.append_timeout_ms)
        record = transaction_record(transactional_id, after, min(self._level(), 1))
        self._effects.append(Append(append_id=append_id, records=(record,)))

    def answer_write(self, write: _Write, code: ErrorCode) -> None:
        """Answers the request of a write with its outcome, once."""
        respond, write.respond = write.respond, None
        if respond is not None:
            self.answer(write.request_id, respond(code))

    def answer(self, request_id: int, response: Response) -> None:
        """Collects an answer."""
        self._effects.append(Answer(request_id=request_id, response=response))

    def take(self) -> list[Effect]:
        """Removes and returns the effects collected since the last call."""
        effects = self._effects
        self._effects = []
        return effects

    # Time

    def next_deadline_ms(self) -> int | None:
        """Returns when `on_timer` has to be called next."""
        return self._deadlines.next_ms()

    def on_timer(self, moment: Moment) -> list[Effect]:
        """Aborts timed-out transactions, answers late writes with an error, retries writes and expires ids."""
        while (key := self._deadlines.pop_due(moment.now_ms)) is not None:
            if key == _EXPIRY:
                pause_ms = self._config.expiration_check_interval_ms
                if self._expire(moment):
                    pause_ms = min(pause_ms, self._config.expired_rounds_pause_ms)
                self._deadlines.set(_EXPIRY, moment.now_ms + pause_ms)
            elif key[0] == _ANSWER:
                self.answer_write(self.pending[int(key[1])], _FAILURES[ErrorCode.REQUEST_TIMED_OUT])
            elif key[1] in self.busy:
                self._deadlines.set(key, moment.now_ms + self._config.retry_backoff_ms)
            elif key[0] == _COMPLETE:
                transaction = self.transactions[key[1]]
                assert transaction.status.is_preparing
                self._complete(transaction, moment)
            else:
                self.abort_fencing(self.transactions[key[1]], moment)
        return self.take()

    def _expire(self, moment: Moment) -> bool:
        """Deletes transactional ids that were unused for ``transactional.id.expiration.ms``.

        Returns whether some may be left for the next round. Half of the writes that may be pending stay for requests.
        """
        room = min(self._config.expired_per_round_max, self._config.appends_pending_max // 2 - len(self.pending))
        for name, transaction in self.transactions.items():
            idle_ms = moment.wall_ms - transaction.last_update_ms
            expired = transaction.status.is_settled and idle_ms >= self._config.id_expiration_ms
            if expired and name not in self.busy:
                if room <= 0:
                    return True
                self.write(name, None, moment)
                room -= 1
        return False

    def abort_fencing(
        self,
        transaction: Transaction,
        moment: Moment,
        request_id: int = -1,
        respond: Callable[[ErrorCode], Response] | None = None,
        *,
        is_own: bool = False,
    ) -> None:
        """Aborts an open transaction and fences its producer: writes the abort with a higher epoch.

        After a timeout (no ``request_id``), a client with an epoch per transaction learns the next epoch when it
        aborts. If a new producer requests the abort, that epoch is skipped: the former producer could otherwise begin
        transactions faster than the new one repeats its request. Kafka 4.4 no longer skips it. A producer that begins
        again by itself (``is_own``) gets the next epoch when it repeats its request, unless it is the last one of its
        id.
        """
        assert transaction.status is TransactionStatus.ONGOING
        has_own_epoch = transaction.has_own_epoch or self._level() >= EPOCH_PER_TRANSACTION
        epoch = transaction.producer_epoch
        goes_on = is_own and has_own_epoch and not is_epoch_exhausted(epoch)
        raised = epoch + (2 if has_own_epoch and request_id >= 0 and not goes_on else 1)
        after = transaction.moved(
            TransactionStatus.PREPARE_ABORT,
            moment.wall_ms,
            producer_epoch=min(raised, EPOCH_MAX),
            last_epoch=epoch if goes_on else NO_EPOCH,
            client_version=EPOCH_PER_TRANSACTION if has_own_epoch else transaction.client_version,
        )
        self.write(transaction.transactional_id, after, moment, request_id, respond)
