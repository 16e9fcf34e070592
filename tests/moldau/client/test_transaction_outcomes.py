"""Goal: each init, commit and abort tells its own outcome, to whoever waits for it and, when nobody did, to the same
call once more. Offsets that are sent tell theirs to whoever waits for them.

Method: the pure core alone.
"""

import pytest

from asked_coordinator import GROUP, P0, P1, answer_to, make, ready, serve
from moldau.producer.transaction_core import TransactionManager
from moldau.producer.transaction_values import (
    AbortableTransactionError,
    FatalTransactionError,
    OffsetToCommit,
    State,
    TransactionAbortedError,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest


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
def test_an_outcome_that_nobody_was_told_is_given_to_the_same_call_once(call):
    manager, outcome = asked(call)
    assert call(manager) is outcome
    serve(manager)
    assert manager.state is State.READY
    assert call(manager) is outcome
    assert (outcome.is_known, outcome.error) == (True, None)
    outcome.is_told = True
    with pytest.raises(RuntimeError, match="is ready"):
        call(manager)


@pytest.mark.parametrize("call", CALLS)
def test_the_next_transaction_forgets_what_nobody_was_told(call):
    manager, _ = asked(call)
    serve(manager)
    manager.begin()
    if call is TransactionManager.begin_init:
        with pytest.raises(RuntimeError, match="is in a transaction"):
            call(manager)
        return
    second = call(manager)
    assert not second.is_known


def test_an_abort_says_that_the_transaction_was_committed_and_a_commit_that_it_was_aborted():
    manager, committing = asked(TransactionManager.begin_commit)
    serve(manager)
    with pytest.raises(RuntimeError, match="cannot abort: the transaction of 'id' was committed"):
        manager.begin_abort()
    assert manager.begin_commit() is committing, "a refusal has told nobody of the commit"
    manager, aborting = asked(TransactionManager.begin_abort)
    serve(manager)
    with pytest.raises(RuntimeError, match="cannot commit: the transaction of 'id' was aborted"):
        manager.begin_commit()
    assert manager.begin_abort() is aborting


def test_a_failure_that_nobody_was_told_is_raised_until_the_abort():
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
def test_offsets_are_told_to_be_aborted_though_the_next_transaction_has_begun(under_way):
    manager, sent = sending_offsets()
    call = serve(manager, until=under_way)
    manager.begin_abort()  # by another task, while the first one waits for its offsets
    manager.answered(call, answer_to(call.request), 0)
    serve(manager)
    manager.begin()
    assert sent.is_known
    assert isinstance(sent.error, TransactionAbortedError)


def test_offsets_keep_the_error_that_came_before_them_after_the_abort():
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
def test_refused_offsets_tell_the_refusal_and_so_do_those_behind_them(under_way, code, error):
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


def test_offsets_at_their_coordinator_are_sent_whatever_comes_after_them():
    manager, sent = sending_offsets()
    serve(manager)
    manager.record_failed(ErrorCode.MESSAGE_TOO_LARGE)
    manager.begin_abort()
    assert (sent.is_known, sent.error) == (True, None)
    nothing = ready()
    nothing.begin()
    assert nothing.send_offsets({}, GROUP).is_known
