"""Goal: each init, commit and abort delivers its own outcome to the waiting call.

If that call has ended, the next call of the same kind gets the outcome, once. Sent offsets deliver their outcome to the
waiting call.

Method: the pure core alone.
"""

from types import SimpleNamespace

import pytest
import trio

from moldau import aio, blocking
from moldau.producer.core.transaction_core import TransactionManager
from moldau.producer.core.transaction_errors import (
    AbortableTransactionError,
    FatalTransactionError,
    TransactionAbortedError,
)
from moldau.producer.core.transaction_values import OffsetToCommit, State
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from support.client.asked_coordinator import GROUP, P0, P1, answer_to, make, ready, serve


def test_a_commit_keeps_its_own_outcome_whatever_comes_after_it():
    manager = ready()
    manager.begin()
    manager.admit(P0)
    serve(manager)
    committing = manager.begin_commit()
    assert manager.begin_commit() is committing
    manager.record_failed(ErrorCode.MESSAGE_TOO_LARGE, "t-0")
    aborting = manager.begin_abort()  # by another task, before the one that waits for the commit could run
    assert manager.begin_abort() is aborting
    assert not aborting.is_known
    serve(manager)
    assert (manager.state, aborting.is_known, aborting.error) == (State.READY, True, None)
    manager.begin()
    assert committing.is_known
    assert isinstance(committing.error, AbortableTransactionError)
    assert "t-0" in str(committing.error)


CALLS = [TransactionManager.begin_init, TransactionManager.begin_commit, TransactionManager.begin_abort]


def asked(call):
    """A producer whose application has made the call, and its outcome, known after ``serve``."""
    manager = make() if call is TransactionManager.begin_init else ready()
    if call is not TransactionManager.begin_init:
        manager.begin()
        manager.admit(P0)
    return manager, call(manager)


@pytest.mark.parametrize("call", CALLS)
def test_undelivered_outcome_is_returned_to_the_same_call(call):
    """An undelivered outcome is returned to the next call of the same kind, once."""
    manager, outcome = asked(call)
    assert call(manager) is outcome
    serve(manager)
    assert manager.state is State.READY
    assert call(manager) is outcome
    assert (outcome.is_known, outcome.error) == (True, None)
    outcome.is_delivered = True
    with pytest.raises(RuntimeError, match="is ready"):
        call(manager)


@pytest.mark.parametrize("call", CALLS)
def test_the_next_transaction_drops_undelivered_outcomes(call):
    manager, _ = asked(call)
    serve(manager)
    manager.begin()
    if call is TransactionManager.begin_init:
        with pytest.raises(RuntimeError, match="is in a transaction"):
            call(manager)
        return
    second = call(manager)
    assert not second.is_known


def test_abort_reports_a_commit_and_commit_an_abort():
    """An abort reports that the transaction was committed, and a commit reports that it was aborted."""
    manager, committing = asked(TransactionManager.begin_commit)
    serve(manager)
    with pytest.raises(RuntimeError, match="cannot abort: the transaction of 'id' was committed"):
        manager.begin_abort()
    assert manager.begin_commit() is committing, "a refusal has not delivered the commit"
    manager, aborting = asked(TransactionManager.begin_abort)
    serve(manager)
    with pytest.raises(RuntimeError, match="cannot commit: the transaction of 'id' was aborted"):
        manager.begin_commit()
    assert manager.begin_abort() is aborting


def test_undelivered_failure_is_raised_until_the_abort():
    """A failure whose call did not return it is raised by each commit until the abort."""
    manager, committing = asked(TransactionManager.begin_commit)
    manager.record_failed(ErrorCode.MESSAGE_TOO_LARGE)
    for _ in range(2):
        with pytest.raises(AbortableTransactionError):
            manager.begin_commit()
    assert committing.error is manager.error
    manager.begin_abort()
    serve(manager)
    with pytest.raises(RuntimeError, match="was aborted"):
        manager.begin_commit()


def sending_offsets():
    """A producer in a transaction whose application sends offsets, and their outcome."""
    manager = ready()
    manager.begin()
    return manager, manager.send_offsets({P0: OffsetToCommit(offset=5), P1: OffsetToCommit(offset=6)}, GROUP)


@pytest.mark.parametrize("under_way", [AddOffsetsToTxnRequest, TxnOffsetCommitRequest])
def test_aborted_offsets_fail_in_the_next_transaction(under_way):
    """Aborted offsets raise their error although the next transaction has begun."""
    manager, sent = sending_offsets()
    call = serve(manager, until=under_way)
    manager.begin_abort()  # by another task, while the first one waits for its offsets
    manager.answered(call, answer_to(call.request), 0)
    serve(manager)
    manager.begin()
    assert sent.is_known
    assert isinstance(sent.error, TransactionAbortedError)


def test_offsets_keep_an_earlier_error_after_the_abort():
    """Offsets keep an earlier error of the transaction after the abort."""
    manager, sent = sending_offsets()
    manager.record_failed(ErrorCode.MESSAGE_TOO_LARGE, "t-0")
    manager.begin_abort()
    serve(manager)
    assert isinstance(sent.error, AbortableTransactionError)
    assert "t-0" in str(sent.error)


@pytest.mark.parametrize(
    ("under_way", "code", "error"),
    [
        (AddOffsetsToTxnRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED, AbortableTransactionError),
        (AddOffsetsToTxnRequest, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, FatalTransactionError),
        (TxnOffsetCommitRequest, ErrorCode.ILLEGAL_GENERATION, AbortableTransactionError),
        (TxnOffsetCommitRequest, ErrorCode.INVALID_PRODUCER_EPOCH, FatalTransactionError),
    ],
)
def test_refused_offsets_and_later_ones_raise_the_refusal(under_way, code, error):
    """Refused offsets raise the refusal, and so do the offsets sent after them."""
    manager, sent = sending_offsets()
    behind = manager.send_offsets({P0: OffsetToCommit(offset=7)}, GROUP)
    call = serve(manager, until=under_way)
    manager.answered(call, answer_to(call.request, code), 0)
    for each in (sent, behind):
        assert isinstance(each.error, error)


def test_a_group_that_must_not_be_looked_up_ends_its_offsets():
    manager, sent = sending_offsets()
    while (call := manager.next_call(has_records=False)).key != GROUP.group_id:
        if call.request is None:
            manager.found(call, 1)
        else:
            manager.answered(call, answer_to(call.request), 0)
    manager.not_found(call, ErrorCode.GROUP_AUTHORIZATION_FAILED, 0)
    assert isinstance(sent.error, AbortableTransactionError)


def test_offsets_at_their_coordinator_stay_sent():
    """Offsets that reached their coordinator count as sent, whatever happens later."""
    manager, sent = sending_offsets()
    serve(manager)
    manager.record_failed(ErrorCode.MESSAGE_TOO_LARGE)
    manager.begin_abort()
    assert (sent.is_known, sent.error) == (True, None)
    nothing = ready()
    nothing.begin()
    assert nothing.send_offsets({}, GROUP).is_known


@pytest.mark.parametrize("sent", ["nothing", "record", "offsets", "failed"])
def test_an_interrupted_begin_of_nothing_is_taken_back(sent):
    """An interrupt may keep the begin from its caller, who begins again. Nothing that was sent since is forgotten."""
    manager = ready()
    manager.begin()
    if sent == "record":
        manager.admit(P0)
    elif sent == "offsets":
        manager.send_offsets({P0: OffsetToCommit(offset=1)}, GROUP)
    elif sent == "failed":
        manager.record_failed(ErrorCode.MESSAGE_TOO_LARGE)
    before = manager.state
    manager.undeliver(of_begin=True)
    assert manager.state is (State.READY if sent == "nothing" else before)
    manager.undeliver(of_begin=True)
    if sent == "nothing":
        manager.begin()


@pytest.mark.parametrize("face", [blocking, aio])
def test_faces_take_an_interrupted_begin_back(face):
    """The portal calls the undo function if the begin was carried out too late for its caller."""
    producer = face.Producer({"bootstrap.servers": "b:1", "transactional.id": "x"})
    manager = ready()
    producer._trio_producer._transactions = SimpleNamespace(manager=manager)
    producer._handover = SimpleNamespace(begin_transaction=manager.begin)

    def carry_out(undo, function):
        undo(function())

    async def carry_out_async(undo, function):
        await trio.lowlevel.checkpoint()
        carry_out(undo, function)

    producer._portal = SimpleNamespace(token=None, call_or_undo=carry_out, call_async_or_undo=carry_out_async)

    async def begin():
        begun = producer.begin_transaction()
        if begun is not None:
            await begun

    trio.run(begin)
    assert manager.state is State.READY
