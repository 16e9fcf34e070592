"""Goal: the producer's side of transactions keeps its rules whatever coordinators answer, and in whatever order.

Method: the pure core alone. Tables say what each error means; a model coordinator that loses answers, moves and is busy
at random checks that no end is sent before its partitions are in, that nothing it holds open is forgotten, and that
every call comes to an end.
"""

from __future__ import annotations

import random

import pytest

from moldau.cluster.metadata import TopicPartition
from moldau.producer.core.transaction_errors import (
    AbortableTransactionError,
    FatalTransactionError,
    ProducerFencedError,
)
from moldau.producer.core.transaction_values import OffsetToCommit, State
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
)
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
)
from support.client.asked_coordinator import GROUP, P0, P1, answer_to, make, ready, serve
from support.proof import proof_beyond


def test_a_whole_transaction_in_the_order_of_its_requests():
    manager = ready()
    assert (manager.producer_id, manager.producer_epoch) == (7, 0)
    manager.begin()
    assert serve(manager) == [], "a beginning sends no request"
    assert manager.admit(P0)
    assert not manager.admit(P0)
    manager.admit(P1)
    (added,) = serve(manager)
    assert [(topic.name, list(topic.partitions)) for topic in added.v3_and_below_topics] == [("t", [0, 1])]
    assert list(manager.admitted) == [P0, P1]
    sent = manager.send_offsets({P0: OffsetToCommit(offset=5)}, GROUP)
    assert not sent.is_known
    asked = serve(manager)
    assert [type(request) for request in asked] == [AddOffsetsToTxnRequest, TxnOffsetCommitRequest]
    assert (asked[1].generation_id, asked[1].member_id) == (3, "m")
    assert (sent.is_known, sent.error) == (True, None)
    manager.begin_commit()
    assert serve(manager, has_records=True) == [], "the end waits for the records"
    (end,) = serve(manager)
    assert isinstance(end, EndTxnRequest)
    assert end.committed
    assert manager.state is State.READY
    assert not manager.admitted


@pytest.mark.parametrize("commit", [True, False])
def test_an_empty_transaction_needs_no_request(commit):
    manager = ready()
    manager.begin()
    manager.begin_commit() if commit else manager.begin_abort()
    assert serve(manager) == []
    assert manager.state is State.READY


def test_pauses_between_attempts_double_up_to_the_limit():
    manager = ready()
    first, longest = manager.retry_backoff_ms, manager.retry_backoff_max_ms
    pauses = []
    for _ in range(30):
        manager._retry_later(1_000)
        pauses.append(manager.retry_at_ms - 1_000)
    assert pauses == [min(first * 2.0**number, longest) for number in range(30)]
    assert pauses[0] == first < longest == pauses[-1]


def test_calls_in_a_wrong_state_are_refused_with_a_message():
    manager = make()
    for action in (manager.begin, manager.begin_commit, manager.begin_abort, manager.check_sending):
        with pytest.raises(RuntimeError, match="'id' is not initialized; call init_transactions first"):
            action()
    manager = ready()
    with pytest.raises(RuntimeError, match=r"cannot initialize transactions: transactional producer 'id' is ready$"):
        manager.begin_init()
    for action in (manager.begin_commit, manager.check_sending):
        with pytest.raises(RuntimeError, match=r"is ready; begin a transaction first, with transaction\(\)$"):
            action()
    manager.begin()
    with pytest.raises(RuntimeError, match="is in a transaction; commit or abort it first"):
        manager.begin()


FATAL = [
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]
FENCED = [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED]
AGAIN = [
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
]


def opened(request_class):
    """A producer at the point where it sends a request of the class, and that call."""
    if request_class is InitProducerIdRequest:
        manager = make()
        manager.begin_init()
        return manager, serve(manager, until=request_class)
    manager = ready()
    manager.begin()
    if request_class in (AddOffsetsToTxnRequest, TxnOffsetCommitRequest):
        manager.send_offsets({P0: OffsetToCommit(offset=1)}, GROUP)
    else:
        manager.admit(P0)
    if request_class is EndTxnRequest:
        manager.begin_commit()
    return manager, serve(manager, until=request_class)


REQUESTS = [
    InitProducerIdRequest,
    AddPartitionsToTxnRequest,
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
    EndTxnRequest,
]


@pytest.mark.parametrize("request_class", REQUESTS)
@pytest.mark.parametrize("code", [*FATAL, *FENCED])
def test_fatal_errors_are_fatal_everywhere(request_class, code):
    manager, call = opened(request_class)
    manager.answered(call, answer_to(call.request, code), 0)
    assert manager.state is State.FATAL_ERROR
    assert isinstance(manager.error, ProducerFencedError) == (code in FENCED)
    for action in (manager.begin, manager.begin_commit, manager.begin_abort, manager.check_sending):
        with pytest.raises(FatalTransactionError):
            action()
    assert manager.next_call(has_records=False) is None


@pytest.mark.parametrize("request_class", REQUESTS)
@pytest.mark.parametrize("code", AGAIN)
def test_passing_errors_are_asked_again_after_a_pause(request_class, code):
    manager, call = opened(request_class)
    manager.answered(call, answer_to(call.request, code), 1000)
    assert manager.retry_at_ms > 1000
    assert manager.error is None
    again = manager.next_call(has_records=False)
    looks_up = code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert (again.request is None) == looks_up
    serve(manager)
    assert manager.state in (State.READY, State.IN_TRANSACTION)


@pytest.mark.parametrize(
    ("request_class", "code"),
    [
        (AddPartitionsToTxnRequest, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (AddPartitionsToTxnRequest, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (AddPartitionsToTxnRequest, ErrorCode.TRANSACTION_ABORTABLE),
        (AddOffsetsToTxnRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (TxnOffsetCommitRequest, ErrorCode.ILLEGAL_GENERATION),
        (TxnOffsetCommitRequest, ErrorCode.UNKNOWN_MEMBER_ID),
        (TxnOffsetCommitRequest, ErrorCode.FENCED_INSTANCE_ID),
        (TxnOffsetCommitRequest, ErrorCode.REBALANCE_IN_PROGRESS),
        (EndTxnRequest, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_after_an_abortable_error_abort_is_all_that_helps(request_class, code):
    manager, call = opened(request_class)
    manager.answered(call, answer_to(call.request, code), 0)
    assert manager.state is State.ABORTABLE_ERROR
    for action in (manager.begin, manager.begin_commit, manager.check_sending):
        with pytest.raises(AbortableTransactionError):
            action()
    manager.begin_abort()
    serve(manager)
    assert manager.state is State.READY
    manager.begin()


def test_the_cause_is_named_not_its_consequences():
    manager = ready()
    manager.begin()
    manager.admit(P0)
    manager.admit(P1)
    call = serve(manager, until=AddPartitionsToTxnRequest)
    manager.answered(call, answer_to(call.request, ErrorCode.TOPIC_AUTHORIZATION_FAILED, only=1), 0)
    assert manager.error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert "t-1" in str(manager.error)
    assert "t-0" not in str(manager.error)


def test_a_brokers_text_that_says_nothing_more_is_not_repeated():
    manager = make()
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    manager.fail(code, code.message)
    assert str(manager.error).count(code.message) == 1


def test_a_lost_record_asks_for_a_new_epoch_with_the_abort():
    manager = ready()
    manager.begin()
    manager.admit(P0)
    serve(manager)
    manager.record_failed(ErrorCode.REQUEST_TIMED_OUT, "t-0")
    with pytest.raises(AbortableTransactionError, match="t-0"):
        manager.begin_commit()
    manager.begin_abort()
    end, init = serve(manager)
    assert not end.committed
    assert (init.producer_id, init.producer_epoch) == (7, 0)
    assert (manager.state, manager.producer_epoch) == (State.READY, 1)


def test_a_record_lost_during_the_abort_raises_the_epoch_too():
    """It was sent and may still arrive: in the next transaction, and as a part of it, if the epoch stayed the same."""
    manager = ready()
    manager.begin()
    manager.admit(P0)
    serve(manager)
    manager.begin_abort()
    assert serve(manager, has_records=True) == [], "the end waits for the records"
    manager.record_failed(ErrorCode.REQUEST_TIMED_OUT, "t-0")
    end, init = serve(manager)
    assert not end.committed
    assert (init.producer_id, init.producer_epoch) == (7, 0)
    assert (manager.state, manager.producer_epoch) == (State.READY, 1)


def test_fenced_record_can_still_be_aborted():
    """A transaction with a fenced record can still be aborted, because the coordinator decides."""
    manager = ready()
    manager.begin()
    manager.admit(P0)
    serve(manager)
    manager.record_failed(ErrorCode.INVALID_PRODUCER_EPOCH)
    assert manager.state is State.ABORTABLE_ERROR
    manager.begin_abort()
    call = serve(manager, until=EndTxnRequest)
    manager.answered(call, answer_to(call.request, ErrorCode.PRODUCER_FENCED), 0)
    assert isinstance(manager.error, ProducerFencedError)


@pytest.mark.parametrize("request_class", [AddPartitionsToTxnRequest, AddOffsetsToTxnRequest])
@pytest.mark.parametrize("loses", [True, False])
def test_a_possibly_open_transaction_is_ended(request_class, loses):
    """The abort comes while the request is under way, or after its answer was lost."""
    manager, call = opened(request_class)
    if loses:
        manager.unanswered(call, 0)
    manager.begin_abort()
    if not loses:
        manager.answered(call, answer_to(call.request), 0)
    asked = serve(manager)
    assert [type(request) for request in asked] == ([request_class] if loses else []) + [EndTxnRequest]
    assert manager.state is State.READY


@pytest.mark.parametrize("request_class", [AddPartitionsToTxnRequest, AddOffsetsToTxnRequest])
@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR])
@pytest.mark.parametrize("is_aborting", [True, False])
def test_change_committed_after_the_answer_is_ended(request_class, code, is_aborting):
    """The coordinator also answers so if its write times out, or if it loses coordinatorship before the commit."""
    manager, call = opened(request_class)
    if is_aborting:
        manager.begin_abort()
    manager.answered(call, answer_to(call.request, code), 0)
    if not is_aborting:
        manager.begin_abort()
    assert [type(request) for request in serve(manager)] == [request_class, EndTxnRequest]
    assert manager.state is State.READY


def test_a_refused_request_leaves_nothing_to_end():
    manager, call = opened(AddPartitionsToTxnRequest)
    manager.answered(call, answer_to(call.request, ErrorCode.CONCURRENT_TRANSACTIONS), 0)
    manager.begin_abort()
    assert serve(manager) == []
    assert manager.state is State.READY


class Model:
    """A coordinator that is busy, moves, and whose answers get lost."""

    def __init__(self, draw):
        self.draw = draw
        self.epoch = -1
        self.inside: set[TopicPartition | str] = set()
        self.offsets: dict[TopicPartition, int] = {}
        self.ended: list[tuple[bool, frozenset, dict]] = []

    def carry_out(self, request):
        if isinstance(request, InitProducerIdRequest):
            assert not self.inside, "a new epoch is asked for only outside of a transaction"
            self.epoch += 1
            return InitProducerIdResponse(producer_id=7, producer_epoch=self.epoch)
        if isinstance(request, AddPartitionsToTxnRequest):
            self.inside |= {
                TopicPartition(topic.name, number)
                for topic in request.v3_and_below_topics
                for number in topic.partitions
            }
        elif isinstance(request, AddOffsetsToTxnRequest):
            self.inside.add(request.group_id)
        elif isinstance(request, TxnOffsetCommitRequest):
            assert request.group_id in self.inside
            for topic in request.topics:
                for part in topic.partitions:
                    self.offsets[TopicPartition(topic.name, part.partition_index)] = part.committed_offset
        else:
            assert isinstance(request, EndTxnRequest)
            if self.inside:
                self.ended.append((request.committed, frozenset(self.inside), dict(self.offsets)))
                self.inside, self.offsets = set(), {}
            else:
                assert self.ended[-1][0] is request.committed, "an end is repeated with the same outcome"
        return answer_to(request)

    def step(self, manager, call, now_ms):
        if call.request is None:
            if self.draw.random() < 0.2:
                manager.not_found(call, ErrorCode.COORDINATOR_NOT_AVAILABLE, now_ms)
            else:
                manager.found(call, self.draw.randrange(3))
            return
        fate = self.draw.random()
        if fate < 0.2:
            code = self.draw.choice(AGAIN)
            if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE) and self.draw.random() < 0.5:
                self.carry_out(call.request)  # it is committed after the answer
            manager.answered(call, answer_to(call.request, code), now_ms)
        elif fate < 0.3:
            manager.unanswered(call, now_ms)
        elif fate < 0.45:
            self.carry_out(call.request)
            manager.unanswered(call, now_ms)
        else:
            manager.answered(call, self.carry_out(call.request), now_ms)


@pytest.mark.parametrize("seed", proof_beyond(20, range(60)))
def test_no_transaction_is_torn_or_forgotten(seed):
    draw = random.Random(seed)
    model, manager, now_ms = Model(draw), make(), 0.0

    def run(has_records=False, steps=10_000):
        nonlocal now_ms
        for _ in range(steps):
            call = manager.next_call(has_records=has_records)
            if call is None:
                return
            now_ms = max(now_ms, manager.retry_at_ms)
            model.step(manager, call, now_ms)
        assert steps < 10_000, "the calls do not end"

    manager.begin_init()
    run()
    for _ in range(30):
        manager.begin()
        wanted: set[TopicPartition | str] = set()
        offsets: dict[TopicPartition, int] = {}
        count = len(model.ended)
        for _ in range(draw.randrange(4)):
            partition = TopicPartition("t", draw.randrange(4))
            manager.admit(partition)
            wanted.add(partition)
            if draw.random() < 0.5:
                run(has_records=True, steps=draw.randrange(1, 4))
        if draw.random() < 0.5:
            offsets = {TopicPartition("in", draw.randrange(2)): draw.randrange(100)}
            manager.send_offsets({key: OffsetToCommit(offset=offset) for key, offset in offsets.items()}, GROUP)
            wanted.add("g")
            run(steps=draw.randrange(1, 4))
        loses = draw.random() < 0.2
        if loses:
            manager.record_failed(ErrorCode.REQUEST_TIMED_OUT)
        epoch = manager.producer_epoch
        commits = not loses and draw.random() < 0.6
        if commits:
            manager.begin_commit()
        else:
            manager.begin_abort()
        run()
        assert manager.state is State.READY
        assert not model.inside, "nothing stays open at the coordinator"
        new = model.ended[count:]
        if commits and wanted:
            assert new == [(True, frozenset(wanted), offsets)]
        else:
            assert all(not committed for committed, _, _ in new)
        assert (manager.producer_epoch > epoch) == loses
