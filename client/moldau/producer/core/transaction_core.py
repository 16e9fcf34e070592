"""The pure core of a transactional producer: its states, its next request, and the meaning of each answer.

It implements KIP-98, KIP-360, KIP-447, KIP-588, KIP-691 and KIP-890.

Theory of operation. One request is in flight at a time. ``next_call`` returns the request that is due; the shell sends
it and reports ``answered``, ``unanswered`` or, for the look-up of a coordinator, ``found`` or ``not_found``. The order
is fixed: partitions and groups first join the transaction, then records and offsets are sent, and the transaction ends
when all of them are settled.

At level 2 of ``transaction.version`` (KIP-890) every transaction has an epoch of its own. Brokers add partitions and
groups to it when records and offsets arrive, so nothing joins beforehand, and the end of the transaction returns the
next epoch. The level may change between transactions (``cluster_level``). Before the first transaction at level 2 the
producer requests a new epoch, so that nothing of level 1 is left in it.

A transaction is *open* once its coordinator has confirmed that a partition or a group belongs to it, at level 2 once
records or offsets were sent; before that its end needs no request. The coordinator may have carried out a request whose
answer was lost, so the producer repeats it until an answer arrives, even while it aborts the transaction. The same
holds for the answers NOT_COORDINATOR and COORDINATOR_NOT_AVAILABLE: the coordinator may have written the change but
lost coordinatorship, or timed out, before it committed.

Errors are of two kinds. *Abortable*: this transaction cannot be committed; after ``abort`` the next one may begin.
*Fatal*: the producer is fenced or its protocol is broken, and only a new producer can continue. If a record with a
sequence number was lost, the producer requests a higher epoch after the abort, and sequences restart.

Each init, commit, abort and sending of offsets has its own ``Outcome``. A waiting task judges its outcome and not the
state, because another task may have aborted the transaction before the waiting task runs. If a call timed out or was
cancelled before it returned a success, the core keeps that outcome until the next transaction begins, and the same call
returns it once. An error is not kept separately: it stays until the abort.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from moldau.cluster.metadata import TopicPartition
from moldau.producer.core.transaction_codes import ABORTABLE, FATAL_OF_RECORDS, FENCED, RETRIED, SEEK_COORDINATOR, rank
from moldau.producer.core.transaction_errors import (
    AbortableTransactionError,
    FatalTransactionError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionError,
    error_text,
)
from moldau.producer.core.transaction_requests import (
    add_offsets_request,
    add_partitions_request,
    commit_offsets_request,
    end_request,
    init_request,
    refused_partitions,
)
from moldau.producer.core.transaction_values import (
    Call,
    Coordinator,
    OffsetToCommit,
    Outcome,
    PreparedTransaction,
    State,
    described,
)
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from moldau.protocol.messages.end_txn import EndTxnResponse
from moldau.protocol.messages.init_producer_id import InitProducerIdResponse
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.cluster.group_metadata import GroupMetadata
    from moldau.protocol.schema import Request, Response

NO_PRODUCER_ID = -1
CONCURRENT_BACKOFF_MS = 20.0
"""Pause while the coordinator still completes the previous transaction."""

ADD_PARTITIONS_VERSION_MAX = 3
"""Later versions are for brokers only."""
END_VERSION_MAX = 4
OFFSETS_VERSION_MAX = 4
"""Later versions belong to level 2, at which each transaction has an epoch of its own (KIP-890)."""
END_WITH_EPOCH_VERSION = 5
OFFSETS_WITH_EPOCH_VERSION = 5
INIT_VERSION_MAX = 5
EPOCH_PER_TRANSACTION = 2
"""The level of ``transaction.version`` at which each transaction has an epoch of its own."""


@dataclass(slots=True, kw_only=True)
class _Offsets:
    """Offsets of one group that the producer adds to the transaction."""

    group: GroupMetadata
    offsets: dict[TopicPartition, OffsetToCommit]
    outcome: Outcome
    is_added: bool = False  # the transaction includes the group's partition
    is_asked: bool = False  # AddOffsetsToTxn is in flight
    is_uncertain: bool = False  # it may have been executed: an answer was lost, or left that open


@dataclass(slots=True, kw_only=True)
class _Adding:
    """Partitions of an AddPartitionsToTxn that was sent at least once."""

    partitions: list[TopicPartition]
    is_asked: bool = False  # in flight
    is_uncertain: bool = False  # it may have been executed: an answer was lost, or left that open


@dataclass(slots=True, kw_only=True)
class TransactionManager:
    """The core of a transactional producer. Times in milliseconds.

    Invariant: ``admitted`` holds the partitions to which records of the open transaction may be sent; it is empty
    outside of one. ``level`` does not change while a transaction has records or offsets. In INITIALIZING, COMMITTING
    and ABORTING ``outcome`` is that of the call under way, not known yet.
    """

    transactional_id: str
    timeout_ms: int
    retry_backoff_ms: float = 100
    retry_backoff_max_ms: float = 1000
    state: State = State.UNINITIALIZED
    error: TransactionError | None = None
    outcome: Outcome | None = None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    admitted: dict[TopicPartition, None] = field(default_factory=dict)
    is_open: bool = False
    needs_new_epoch: bool = False
    cluster_level: int = 0
    """The cluster's level of ``transaction.version``, as far as the producer knows."""
    level: int = 1
    """The level of the transaction, or of the last one: 1 or 2."""
    retry_at_ms: float = -math.inf
    _is_rising: bool = False  # a new epoch is needed before anything of the transaction is sent at level 2
    _failures: int = 0
    _refusal: str = ""  # why the last failure was one, if a coordinator said so
    _new: dict[TopicPartition, None] = field(default_factory=dict)
    _adding: _Adding | None = None
    _offsets: list[_Offsets] = field(default_factory=list)
    _coordinators: dict[tuple[Coordinator, str], int] = field(default_factory=dict)

    # --- calls of the application

    def _refuse(self, action: str) -> NoReturn:
        if self.error is not None:
            raise self.error
        for ended, name in ((State.COMMITTING, "committed"), (State.ABORTING, "aborted")):
            if self._is_undelivered(ended):
                raise RuntimeError(
                    f"cannot {action}: the transaction of {self.transactional_id!r} was {name}; "
                    "the call that asked for it ended before that was known"
                )
        raise RuntimeError(f"cannot {action}: {described(self.transactional_id, self.state, action)}")

    def _ask(self, action: State) -> Outcome:
        """Enters the state of an init, a commit or an abort; returns where its outcome will be."""
        self.state = action
        self.outcome = Outcome(action=action)
        return self.outcome

    def _under_way(self) -> Outcome:
        """Returns the outcome of an earlier call that is pending or was not delivered."""
        assert self.outcome is not None
        return self.outcome

    def _is_undelivered(self, action: State) -> bool:
        """Returns whether the last call was of this kind and its success was not delivered."""
        last = self.outcome
        return (
            last is not None
            and last.action is action
            and last.is_known
            and last.error is None
            and not last.is_delivered
        )

    def _settle(self, error: TransactionError | None = None) -> None:
        """Sets the outcome of the call in progress."""
        if self.outcome is not None:
            self.outcome.settle(error)

    def _leave_out_offsets(self, error: KafkaError) -> None:
        """Fails the offsets that have not reached their coordinator."""
        for each in self._offsets:
            each.outcome.settle(error)

    def begin_init(self) -> Outcome:
        """Requests the producer id. The call may be repeated until its outcome is delivered."""
        if self.state is State.UNINITIALIZED:
            return self._ask(State.INITIALIZING)
        if self.state is State.INITIALIZING or self._is_undelivered(State.INITIALIZING):
            return self._under_way()
        self._refuse("initialize transactions")

    def begin(self) -> None:
        """Begins a transaction without a request, and drops the outcome of the previous one."""
        if self.state is not State.READY:
            self._refuse("begin a transaction")
        if self.cluster_level < EPOCH_PER_TRANSACTION:
            self.level, self._is_rising = 1, False
        elif self.level < EPOCH_PER_TRANSACTION:
            self._is_rising = True
        self.outcome = None
        self.state = State.IN_TRANSACTION

    def undeliver(self, *, of_begin: bool) -> None:
        """Notes that the application has not learned the outcome of a call, so that it may repeat the call.

        A begin is taken back if nothing was sent since.
        """
        if not of_begin:
            if self.outcome is not None:
                self.outcome.is_delivered = False
        elif self.state is State.IN_TRANSACTION and not (
            self.admitted or self._new or self._adding or self._offsets or self.is_open
        ):
            self.state = State.READY

    def check_sending(self) -> None:
        """Checks that records may be sent.

        Raises:
            KafkaError: the error of the transaction.
            RuntimeError: there is no transaction.
        """
        if self.state is not State.IN_TRANSACTION:
            self._refuse("send")

    def admit(self, partition: TopicPartition) -> bool:
        """Adds a partition to the transaction before a record is sent to it.

        Returns whether a request has to precede the record.

        Raises:
            KafkaError: the error of the transaction.
            RuntimeError: there is no transaction.
        """
        self.check_sending()
        if partition in self.admitted or partition in self._new:
            return False
        if self._adding is not None and partition in self._adding.partitions:
            return False
        if self.adds_by_sending:
            self.admitted[partition] = None
            return False
        self._new[partition] = None
        return True

    @property
    def adds_by_sending(self) -> bool:
        """Whether records and offsets may be sent at once, because brokers add their partitions (level 2)."""
        return self.level >= EPOCH_PER_TRANSACTION and not self._is_rising

    def records_sent(self) -> None:
        """Notes that records leave for a broker, which may add their partitions to the transaction."""
        if self.adds_by_sending:
            self.is_open = True

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetToCommit], group: GroupMetadata) -> Outcome:
        """Commits offsets of a group with the transaction.

        The outcome is known when the coordinator has all of them, or when it is certain that it will not commit them.
        """
        if self.state is not State.IN_TRANSACTION:
            self._refuse("send offsets")
        outcome = Outcome(action=State.IN_TRANSACTION)
        if offsets:
            self._offsets.append(_Offsets(group=group, offsets=dict(offsets), outcome=outcome))
        else:
            outcome.settle()
        return outcome

    def begin_commit(self) -> Outcome:
        """Requests the commit. The call may be repeated until its outcome is delivered."""
        if self.state is State.IN_TRANSACTION:
            return self._ask(State.COMMITTING)
        if self.state is State.COMMITTING or self._is_undelivered(State.COMMITTING):
            return self._under_way()
        self._refuse("commit")

    def prepared(self) -> PreparedTransaction | None:
        """Returns what ends the open transaction from elsewhere; None while offsets of it are not settled."""
        self.check_sending()
        if self._offsets:  # of a call that has ended before
            return None
        return PreparedTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            is_open=self.is_open,
        )

    def begin_abort(self) -> Outcome:
        """Requests the abort and drops what has not reached the coordinators.

        The call may be repeated until its outcome is delivered.

        Raises:
            RuntimeError: the transaction was committed.
        """
        if self.state is State.ABORTING or self._is_undelivered(State.ABORTING):
            return self._under_way()
        if self.state not in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            self._refuse("abort")
        outcome = self._ask(State.ABORTING)
        self.error = None
        self._new.clear()
        if self._adding is not None and not (self._adding.is_asked or self._adding.is_uncertain):
            self._adding = None
        self._leave_out_offsets(
            TransactionAbortedError(ErrorCode.OPERATION_NOT_ATTEMPTED, "the transaction of the offsets was aborted")
        )
        # The coordinator is asked again whether a group has joined. At level 2 the next epoch refuses what is late.
        kept = [each for each in self._offsets if (each.is_asked or each.is_uncertain) and not each.is_added]
        self._offsets = [] if self.adds_by_sending else kept
        return outcome

    # --- requests that are due

    def next_call(self, *, has_records: bool) -> Call | None:
        """Returns the request that is due (not before ``retry_at_ms``); None without one.

        ``has_records``: records of the transaction are not settled yet.
        """
        state = self.state
        if state in (State.UNINITIALIZED, State.READY, State.ABORTABLE_ERROR, State.FATAL_ERROR):
            return None  # what is left of a transaction that failed waits for its abort
        if state is State.INITIALIZING or self._is_rising:
            return self._to_transaction(init_request(self), INIT_VERSION_MAX)
        if self._adding is None and self._new and state in (State.IN_TRANSACTION, State.COMMITTING):
            self._adding = _Adding(partitions=list(self._new))
            self._new.clear()
        if self._adding is not None:
            self._adding.is_asked = True
            return self._to_transaction(
                add_partitions_request(self, self._adding.partitions), ADD_PARTITIONS_VERSION_MAX, self._adding
            )
        if self._offsets:
            first = self._offsets[0]
            if not first.is_added and not self.adds_by_sending:
                first.is_asked = True
                return self._to_transaction(add_offsets_request(self, first.group), OFFSETS_VERSION_MAX, first)
            request = commit_offsets_request(self, first.group, first.offsets)
            version_max = OFFSETS_WITH_EPOCH_VERSION if self.adds_by_sending else OFFSETS_VERSION_MAX
            call = self._call(Coordinator.GROUP, first.group.group_id, request, version_max, first)
            self.is_open |= call.request is not None  # the group's coordinator may add its partition
            return call
        if state not in (State.COMMITTING, State.ABORTING) or has_records:
            return None
        if self.is_open:
            version_max = END_WITH_EPOCH_VERSION if self.adds_by_sending else END_VERSION_MAX
            return self._to_transaction(end_request(self), version_max)
        if self.needs_new_epoch:
            return self._to_transaction(init_request(self), INIT_VERSION_MAX)
        self._finish()
        return None

    def _to_transaction(self, request: Request, version_max: int, subject: object = None) -> Call:
        return self._call(Coordinator.TRANSACTION, self.transactional_id, request, version_max, subject)

    def _call(
        self, coordinator: Coordinator, key: str, request: Request, version_max: int, subject: object = None
    ) -> Call:
        node_id = self._coordinators.get((coordinator, key))
        if node_id is None:
            return Call(coordinator=coordinator, key=key)
        return Call(
            coordinator=coordinator,
            key=key,
            node_id=node_id,
            request=request,
            version_max=version_max,
            subject=subject,
        )

    @property
    def retried_for(self) -> str:
        """Why a coordinator refused the request that is tried again; empty if none is."""
        return self._refusal if self._failures else ""

    # --- answers

    def found(self, call: Call, node_id: int) -> None:
        """Takes the coordinator that a look-up found."""
        self._coordinators[call.coordinator, call.key] = node_id
        self._failures = 0

    def not_found(self, call: Call, code: ErrorCode, now_ms: float, detail: str = "") -> None:
        """Takes the error of a look-up."""
        if code.retriable or code in SEEK_COORDINATOR:
            self._retry_later(now_ms, error_text(self.transactional_id, code, detail))
        elif code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
            self._abortable(code, detail)
            self._offsets = [each for each in self._offsets if each.group.group_id != call.key]
        else:
            self.fail(code, detail)

    def unanswered(self, call: Call, now_ms: float) -> None:
        """Notes that the connection failed; the coordinator may have carried out the request."""
        self._coordinators.pop((call.coordinator, call.key), None)
        subject = call.subject
        if isinstance(subject, _Adding | _Offsets):
            subject.is_asked = False
            subject.is_uncertain = True
        self._retry_later(now_ms)

    def answered(self, call: Call, response: Response, now_ms: float) -> None:
        """Takes the answer to a call."""
        if self.state is State.FATAL_ERROR:
            return
        if isinstance(call.subject, _Adding | _Offsets):
            call.subject.is_asked = False
        if isinstance(response, InitProducerIdResponse):
            self._on_init(call, response, now_ms)
        elif isinstance(response, AddPartitionsToTxnResponse):
            self._on_partitions_added(call, response, now_ms)
        elif isinstance(response, AddOffsetsToTxnResponse):
            self._on_offsets_added(call, ErrorCode.of(response.error_code), now_ms)
        elif isinstance(response, TxnOffsetCommitResponse):
            self._on_offsets_committed(call, response, now_ms)
        else:
            assert isinstance(response, EndTxnResponse)
            self._on_ended(call, response, now_ms)

    def _on_init(self, call: Call, response: InitProducerIdResponse, now_ms: float) -> None:
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE:
            if not self._tries_again(call, code, now_ms):
                self.fail(code)
            return
        self._failures = 0
        self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch
        self.needs_new_epoch = False
        if self.state is State.INITIALIZING:
            if self.cluster_level >= EPOCH_PER_TRANSACTION:
                self.level = EPOCH_PER_TRANSACTION
            self.state = State.READY
            self._settle()
        elif self._is_rising:
            self.level, self._is_rising = EPOCH_PER_TRANSACTION, False
            self.admitted.update(self._new)
            self._new.clear()
        elif self.state is State.ABORTING:
            self._finish()

    def _on_partitions_added(self, call: Call, response: AddPartitionsToTxnResponse, now_ms: float) -> None:
        adding = self._adding
        if adding is None or adding is not call.subject:
            return
        refused = refused_partitions(adding.partitions, response)
        wrong = sorted(refused.values(), key=rank)
        if not wrong:
            self._failures = 0
            self._adding = None
            self.is_open = True
            if self.state is not State.ABORTING:
                self.admitted.update(dict.fromkeys(adding.partitions))
            return
        code = wrong[0]
        if self._tries_again(call, code, now_ms, first=not self.is_open):
            adding.is_uncertain |= code in SEEK_COORDINATOR
            if self.state is State.ABORTING and not adding.is_uncertain:
                self._adding = None
            return
        self._adding = None
        partitions = tuple(partition for partition, each in refused.items() if each is code)
        self._judge(code, ", ".join(str(partition) for partition in partitions))
        if isinstance(self.error, AbortableTransactionError):
            self.error.partitions += partitions

    def _on_offsets_added(self, call: Call, code: ErrorCode, now_ms: float) -> None:
        if not self._offsets or self._offsets[0] is not call.subject:
            return
        first = self._offsets[0]
        if code is ErrorCode.NONE:
            self._failures = 0
            self.is_open = True
            first.is_added = True
            if self.state is State.ABORTING:
                self._offsets.pop(0)
            return
        if self._tries_again(call, code, now_ms, first=not self.is_open):
            first.is_uncertain |= code in SEEK_COORDINATOR
            if self.state is State.ABORTING and not first.is_uncertain:
                self._offsets.pop(0)
            return
        self._judge(code, f"group {first.group.group_id}")
        self._offsets.pop(0)

    def _on_offsets_committed(self, call: Call, response: TxnOffsetCommitResponse, now_ms: float) -> None:
        if not self._offsets or self._offsets[0] is not call.subject:
            return
        first = self._offsets[0]
        refused: list[tuple[ErrorCode, TopicPartition]] = []
        for topic in response.topics:
            for part in topic.partitions:
                code, partition = ErrorCode.of(part.error_code), TopicPartition(topic.name, part.partition_index)
                if code is ErrorCode.NONE:
                    first.offsets.pop(partition, None)
                else:
                    refused.append((code, partition))
        for code, partition in sorted(refused, key=lambda each: rank(each[0])):
            detail = f"offset of {partition} for group {first.group.group_id}"
            if not self._tries_again(call, code, now_ms, detail):
                self._judge(code, detail)
                self._offsets.pop(0)
            return
        self._failures = 0
        if not first.offsets:
            self._offsets.pop(0)
            first.outcome.settle()
        else:
            self._retry_later(now_ms)  # a coordinator that leaves out a partition is asked again

    def _on_ended(self, call: Call, response: EndTxnResponse, now_ms: float) -> None:
        code = ErrorCode.of(response.error_code)
        if code is ErrorCode.NONE:
            self._failures = 0
            self.is_open = False
            if response.producer_id != NO_PRODUCER_ID:  # the identity of the next transaction (level 2)
                self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch
                self.needs_new_epoch = False
            if not (self.state is State.ABORTING and self.needs_new_epoch):
                self._finish()
            return
        if self._tries_again(call, code, now_ms):
            return
        if self.state is State.COMMITTING and code is ErrorCode.TRANSACTION_ABORTABLE:
            self._abortable(code)
            return
        self.fail(code)

    def _finish(self) -> None:
        """Ends the transaction."""
        self.state = State.READY
        self.is_open = False
        self.admitted.clear()
        self._new.clear()
        self._adding = None
        self._offsets.clear()
        self._settle()

    # --- errors

    def _tries_again(self, call: Call, code: ErrorCode, now_ms: float, of: str = "", *, first: bool = False) -> bool:
        if code in SEEK_COORDINATOR or (code is ErrorCode.REQUEST_TIMED_OUT and call.coordinator is Coordinator.GROUP):
            self._coordinators.pop((call.coordinator, call.key), None)
        elif code not in RETRIED:
            return False
        if first and code is ErrorCode.CONCURRENT_TRANSACTIONS:
            self.retry_at_ms = now_ms + CONCURRENT_BACKOFF_MS
        else:
            self._retry_later(now_ms, error_text(self.transactional_id, code, of))
        return True

    def _retry_later(self, now_ms: float, refusal: str = "") -> None:
        self._refusal = refusal
        delay_ms = min(self.retry_backoff_ms * 2.0 ** min(self._failures, 20), self.retry_backoff_max_ms)
        self._failures += 1
        self.retry_at_ms = now_ms + delay_ms

    def _judge(self, code: ErrorCode, detail: str) -> None:
        if code in ABORTABLE:
            if code in (ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
                self.needs_new_epoch = True
            self._abortable(code, detail)
        else:
            self.fail(code, detail)

    def _abortable(self, code: ErrorCode, detail: str = "") -> None:
        if self.state in (State.IN_TRANSACTION, State.COMMITTING):
            self.state = State.ABORTABLE_ERROR
            self.error = AbortableTransactionError(code, error_text(self.transactional_id, code, detail))
            self._settle(self.error)
            self._leave_out_offsets(self.error)

    def fail(self, code: ErrorCode, detail: str = "") -> None:
        """Makes the producer fail for good."""
        if self.state is State.FATAL_ERROR:
            return
        self.state = State.FATAL_ERROR
        kind = ProducerFencedError if code in FENCED else FatalTransactionError
        code = ErrorCode.PRODUCER_FENCED if code in FENCED else code
        self.error = kind(code, error_text(self.transactional_id, code, detail))
        self._settle(self.error)
        self._leave_out_offsets(self.error)

    def record_failed(self, code: ErrorCode, detail: str = "") -> None:
        """Notes that a batch of the transaction was not delivered: its sequence numbers are used, and missing."""
        if code in FATAL_OF_RECORDS:
            self.fail(code, detail)
            return
        self.needs_new_epoch = True
        self._abortable(code, detail)
