"""Goal: a producer uses the cluster's level of ``transaction.version``, and changes it between transactions only.

Method: tables over the pure core with an obliging coordinator. At level 2 (KIP-890) nothing joins a transaction before
it is sent, and the answer to EndTxn 5 holds the next epoch.
"""

from __future__ import annotations

import pytest

from moldau.producer.core.transaction_values import OffsetToCommit, State
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from moldau.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from support.client.asked_coordinator import GROUP, P0, P1, answer_to, make, serve

OFFSETS = {P0: OffsetToCommit(offset=5)}


def ready(level: int = 2):
    manager = make()
    manager.cluster_level = level
    manager.begin_init()
    serve(manager)
    assert manager.state is State.READY
    manager.outcome.is_delivered = True
    return manager


def end(manager, *, commit=True):
    """Ends the transaction, and returns the requests and the highest version of EndTxn (0 if there was none)."""
    outcome = manager.begin_commit() if commit else manager.begin_abort()
    asked, version = [], 0
    while (call := manager.next_call(has_records=False)) is not None:
        if call.request is None:
            manager.found(call, 1)
            continue
        asked.append(type(call.request))
        if isinstance(call.request, EndTxnRequest):
            version = call.version_max
            epoch = call.request.producer_epoch + 1 if version >= 5 else -1
            answer = EndTxnResponse(producer_id=7 if epoch >= 0 else -1, producer_epoch=epoch)
        else:
            answer = answer_to(call.request)
        manager.answered(call, answer, 0)
    assert outcome.is_known
    assert outcome.error is None
    outcome.is_delivered = True
    return asked, version


@pytest.mark.parametrize("commit", [True, False])
def test_level_2_asks_only_for_the_end(commit):
    manager = ready()
    for epoch in range(3):
        manager.begin()
        assert manager.producer_epoch == epoch
        assert not manager.admit(P0), "no request precedes the record"
        assert list(manager.admitted) == [P0]
        manager.records_sent()
        assert end(manager, commit=commit) == ([EndTxnRequest], 5)
    assert not manager.admitted


def test_offsets_go_to_their_group_at_once():
    manager = ready()
    manager.begin()
    outcome = manager.send_offsets(OFFSETS, GROUP)
    call = serve(manager, until=TxnOffsetCommitRequest)
    assert call.version_max == 5
    assert manager.is_open, "the group's coordinator may have added its partition"
    manager.answered(call, answer_to(call.request, ErrorCode.CONCURRENT_TRANSACTIONS), 0)
    assert not outcome.is_known
    asked = serve(manager)
    assert [type(request) for request in asked] == [TxnOffsetCommitRequest]
    assert outcome.is_known
    assert end(manager) == ([EndTxnRequest], 5)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_without_requests_needs_no_end(commit):
    manager = ready()
    manager.begin()
    manager.admit(P0)  # its record was given up before it was sent
    assert end(manager, commit=commit) == ([], 0)
    assert manager.producer_epoch == 0


def test_level_1_announces_partitions_and_groups():
    manager = ready(1)
    manager.begin()
    assert manager.admit(P0)
    assert not manager.admitted
    manager.send_offsets(OFFSETS, GROUP)
    asked = [type(request) for request in serve(manager)]
    assert asked == [AddPartitionsToTxnRequest, AddOffsetsToTxnRequest, TxnOffsetCommitRequest]
    assert end(manager) == ([EndTxnRequest], 4)
    assert manager.producer_epoch == 0


def test_the_step_up_takes_a_new_epoch_first():
    """Nothing of level 1 may be left in the first epoch of level 2."""
    manager = ready(1)
    manager.begin()
    manager.cluster_level = 2
    assert manager.admit(P0), "an open transaction keeps its level"
    serve(manager)
    assert end(manager) == ([EndTxnRequest], 4)
    manager.begin()
    assert manager.admit(P1)
    assert not manager.admitted
    call = serve(manager, until=InitProducerIdRequest)
    assert (call.request.producer_id, call.request.producer_epoch) == (7, 0)
    manager.answered(call, answer_to(call.request, ErrorCode.CONCURRENT_TRANSACTIONS), 0)
    assert not manager.admitted, "no record leaves before the epoch is there"
    serve(manager)
    assert (manager.level, manager.producer_epoch, list(manager.admitted)) == (2, 1, [P1])
    manager.records_sent()
    assert end(manager) == ([EndTxnRequest], 5)
    manager.begin()
    assert manager.next_call(has_records=False) is None


@pytest.mark.parametrize("commit", [True, False])
def test_an_empty_transaction_may_step_up(commit):
    manager = ready(1)
    manager.cluster_level = 2
    manager.begin()
    assert end(manager, commit=commit) == ([InitProducerIdRequest], 0)
    assert (manager.level, manager.state) == (2, State.READY)


def test_the_step_down_needs_no_request():
    manager = ready()
    manager.begin()
    manager.cluster_level = 1
    assert not manager.admit(P0), "an open transaction keeps its level"
    manager.records_sent()
    assert end(manager) == ([EndTxnRequest], 5)
    manager.begin()
    assert manager.admit(P0)
    serve(manager)
    assert end(manager) == ([EndTxnRequest], 4)
    assert manager.producer_epoch == 1


def test_a_step_up_that_was_taken_back_does_not_come_later():
    """The begin that needed it was interrupted, and the cluster has stepped down since."""
    manager = ready(1)
    manager.cluster_level = 2
    manager.begin()
    manager.undeliver(of_begin=True)
    manager.cluster_level = 1
    manager.begin()
    assert manager.admit(P0)
    assert [type(request) for request in serve(manager)] == [AddPartitionsToTxnRequest]
    assert end(manager) == ([EndTxnRequest], 4)


@pytest.mark.parametrize("code", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.TRANSACTION_ABORTABLE])
def test_a_lost_record_needs_another_epoch_at_level_1(code):
    """The next transaction would begin behind a gap in the sequence numbers, and fail too."""
    manager = ready(1)
    manager.begin()
    manager.admit(P0)
    serve(manager)
    manager.record_failed(code)
    assert end(manager, commit=False) == ([EndTxnRequest, InitProducerIdRequest], 4)


@pytest.mark.parametrize("code", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.TRANSACTION_ABORTABLE])
def test_a_lost_record_needs_no_extra_epoch_at_level_2(code):
    manager = ready()
    manager.begin()
    manager.admit(P0)
    manager.records_sent()
    manager.record_failed(code)
    assert manager.state is State.ABORTABLE_ERROR
    assert end(manager, commit=False) == ([EndTxnRequest], 5)
    assert (manager.producer_epoch, manager.needs_new_epoch) == (1, False)


def test_an_abort_drops_offsets_on_their_way():
    """The epoch that the abort raises refuses their late arrival."""
    manager = ready()
    manager.begin()
    outcome = manager.send_offsets(OFFSETS, GROUP)
    call = serve(manager, until=TxnOffsetCommitRequest)
    manager.unanswered(call, 0)
    assert end(manager, commit=False) == ([EndTxnRequest], 5)
    assert outcome.error is not None


def test_the_new_producer_id_of_an_end_is_taken():
    manager = ready()
    manager.begin()
    manager.admit(P0)
    manager.records_sent()
    manager.begin_commit()
    call = serve(manager, until=EndTxnRequest)
    manager.answered(call, EndTxnResponse(producer_id=99, producer_epoch=0), 0)
    assert (manager.producer_id, manager.producer_epoch, manager.state) == (99, 0, State.READY)
