"""Planted bugs of the transaction coordinator that short histories of two producers find."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.transaction.core import lifecycle, transaction_core
from moldau_broker.coordinator.transaction.core.lifecycle import TransactionLifecycle
from moldau_broker.coordinator.transaction.core.rules import is_repeated_end
from moldau_broker.coordinator.transaction.core.state import TransactionStatus

if TYPE_CHECKING:
    from moldau.protocol.messages.end_txn import EndTxnRequest
    from moldau_broker.coordinator.runtime.effects import Effect, Moment
    from moldau_broker.coordinator.transaction.core.lifecycle import _Write
    from moldau_broker.coordinator.transaction.core.state import Transaction
    from moldau_jepsen.planted_bug import Patch


def timeout_lost_while_busy() -> list[Patch]:
    """A timeout that comes while a write is pending is dropped instead of postponed."""

    def on_timer(self: TransactionLifecycle, moment: Moment) -> list[Effect]:
        while (key := self._deadlines.pop_due(moment.now_ms)) is not None:
            if key == lifecycle._EXPIRY:
                self._expire(moment)
                self._deadlines.set(lifecycle._EXPIRY, moment.now_ms + self._config.expiration_check_interval_ms)
            elif key[0] == lifecycle._ANSWER:
                self.answer_write(self.pending[int(key[1])], lifecycle._FAILURES[ErrorCode.REQUEST_TIMED_OUT])
            elif key[1] in self.busy:
                continue
            elif key[0] == lifecycle._COMPLETE:
                self._complete(self.transactions[key[1]], moment)
            else:
                self.abort_fencing(self.transactions[key[1]], moment)
        return self.take()

    return [(TransactionLifecycle, "on_timer", on_timer)]


def refused_completion_forgotten() -> list[Patch]:
    """A completion that the log refused is not written again."""

    def failed(self: TransactionLifecycle, append_id: int, code: ErrorCode, moment: Moment) -> list[Effect]:
        write = self.pending[append_id]
        self._forget(write)
        self.answer_write(write, lifecycle._FAILURES.get(code, code))
        return self.take()

    return [(TransactionLifecycle, "failed", failed)]


def repeated_end_believed() -> list[Patch]:
    """An EndTxn in the former epoch is taken for a repeated one, whatever was decided."""
    good_end = transaction_core.TransactionCore._end

    def end(self, request_id, request, version, fresh_producer_id, moment):  # type: ignore[no-untyped-def]
        transaction = self.lifecycle.transactions.get(request.transactional_id)
        if transaction is not None and version >= 5 and is_repeated_end(transaction, request):
            decided = transaction.status in (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.PREPARE_COMMIT)
            if not transaction.status.is_preparing and request.transactional_id not in self.lifecycle.busy:
                request = copy.copy(request)
                request.committed = decided
        return good_end(self, request_id, request, version, fresh_producer_id, moment)

    return [(transaction_core.TransactionCore, "_end", end)]


def fenced_epoch_ends() -> list[Patch]:
    """An EndTxn in the former epoch counts as a repeated one also while the next transaction is open."""

    def repeated(transaction: Transaction, request: EndTxnRequest) -> bool:
        if transaction.status is TransactionStatus.ONGOING and request.producer_id == transaction.producer_id:
            return request.producer_epoch == transaction.producer_epoch - 1
        return is_repeated_end(transaction, request)

    return [(transaction_core, "is_repeated_end", repeated)]


def abort_keeps_epoch() -> list[Patch]:
    """A transaction that timed out, or that a new producer aborts, ends without a higher epoch."""
    original = TransactionLifecycle.write

    def write(self, transactional_id, after, moment, request_id=-1, respond=None):  # type: ignore[no-untyped-def]
        before = self.transactions.get(transactional_id)
        aborts = after is not None and after.status is TransactionStatus.PREPARE_ABORT
        if aborts and before is not None and after.last_epoch == -1:
            after = replace(after, producer_epoch=before.producer_epoch)
        original(self, transactional_id, after, moment, request_id, respond)

    return [(TransactionLifecycle, "write", write)]


def decision_answered_when_appended() -> list[Patch]:
    """An EndTxn is answered when the decision is appended, before it is committed."""
    original = TransactionLifecycle.write

    def write(self, transactional_id, after, moment, request_id=-1, respond=None):  # type: ignore[no-untyped-def]
        original(self, transactional_id, after, moment, request_id, respond)
        if after is not None and after.status.is_preparing:
            pending: _Write = self.pending[self.busy[transactional_id]]
            self.answer_write(pending, ErrorCode.NONE)

    return [(TransactionLifecycle, "write", write)]
