"""Goal: pauses, late answers and refusals of a transactional producer, rule by rule.

Method: the pure core alone, with answers that a coordinator gives in rare moments.
"""

import pytest

from moldau.cluster.group_metadata import GroupMetadata
from moldau.cluster.metadata import TopicPartition
from moldau.producer.core.transaction_core import CONCURRENT_BACKOFF_MS
from moldau.producer.core.transaction_errors import FatalTransactionError
from moldau.producer.core.transaction_values import Coordinator, OffsetToCommit, State
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from support.client.asked_coordinator import GROUP, P0, P1, answer_to, make, ready, serve

OTHER = GroupMetadata(group_id="other", generation_id=1, member_id="m")
OFFSETS = {P0: OffsetToCommit(offset=5)}


def begun(*partitions: TopicPartition):
    manager = ready()
    manager.begin()
    for partition in partitions:
        manager.admit(partition)
    return manager


def at(request_class):
    """A producer at the point where it sends a request of the class, and that call."""
    if request_class is InitProducerIdRequest:
        manager = make()
        manager.begin_init()
        return manager, serve(manager, until=request_class)
    manager = begun(*([P0] if request_class in (AddPartitionsToTxnRequest, EndTxnRequest) else []))
    if request_class in (AddOffsetsToTxnRequest, TxnOffsetCommitRequest):
        manager.send_offsets(OFFSETS, GROUP)
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
BUSY = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

# Pauses


@pytest.mark.parametrize("request_class", REQUESTS)
def test_pauses_start_over_after_a_success(request_class):
    """Failures of one request say nothing about the next one."""
    manager, call = at(request_class)
    for _ in range(3):
        manager.answered(call, answer_to(call.request, BUSY), 1_000)
        call = manager.next_call(has_records=False)
    assert manager.retry_at_ms == 1_000 + 4 * manager.retry_backoff_ms
    manager.answered(call, answer_to(call.request), 2_000)
    if manager.state is State.READY:
        manager.begin()
    manager.admit(P1)
    call = serve(manager, until=AddPartitionsToTxnRequest)
    manager.answered(call, answer_to(call.request, BUSY), 3_000)
    assert manager.retry_at_ms == 3_000 + manager.retry_backoff_ms


def test_pauses_start_over_with_another_coordinator():
    manager, call = at(AddPartitionsToTxnRequest)
    for _ in range(3):
        manager.unanswered(call, 1_000)
        manager.found(manager.next_call(has_records=False), 3)
        call = manager.next_call(has_records=False)
        assert manager.retry_at_ms == 1_000 + manager.retry_backoff_ms


@pytest.mark.parametrize("request_class", [AddPartitionsToTxnRequest, AddOffsetsToTxnRequest])
def test_only_the_last_transaction_is_waited_for_in_small_steps(request_class):
    """A coordinator that loads, or is busy later in the transaction, needs longer."""
    manager, call = at(request_class)
    manager.answered(call, answer_to(call.request, ErrorCode.CONCURRENT_TRANSACTIONS), 1_000)
    assert manager.retry_at_ms == 1_000 + CONCURRENT_BACKOFF_MS
    manager.answered(manager.next_call(has_records=False), answer_to(call.request, BUSY), 2_000)
    assert manager.retry_at_ms == 2_000 + manager.retry_backoff_ms
    serve(manager)
    manager.send_offsets(OFFSETS, OTHER)
    call = serve(manager, until=AddOffsetsToTxnRequest)
    manager.answered(call, answer_to(call.request, ErrorCode.CONCURRENT_TRANSACTIONS), 3_000)
    assert manager.retry_at_ms == 3_000 + manager.retry_backoff_ms


def test_offsets_that_an_answer_leaves_out_are_sent_again():
    manager, call = at(TxnOffsetCommitRequest)
    manager.answered(call, TxnOffsetCommitResponse(topics=[]), 1_000)
    assert manager.retry_at_ms == 1_000 + manager.retry_backoff_ms
    assert isinstance(manager.next_call(has_records=False).request, TxnOffsetCommitRequest)


def test_a_partition_that_an_answer_leaves_out_is_not_added():
    """Not even if the answer has another one in its place: a coordinator that lacks it writes no marker to it."""
    manager, call = at(AddPartitionsToTxnRequest)
    response = answer_to(call.request, ErrorCode.NONE)
    response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_index += 7
    manager.answered(call, response, 0)
    assert P0 not in manager.admitted
    assert manager.state is State.FATAL_ERROR
    assert str(P0) in manager.error.message


def test_a_connection_that_failed_is_tried_again_after_a_pause():
    manager, call = at(EndTxnRequest)
    manager.unanswered(call, 1_000)
    assert manager.retry_at_ms == 1_000 + manager.retry_backoff_ms


@pytest.mark.parametrize(
    ("request_class", "looks_up"),
    [(TxnOffsetCommitRequest, True), (AddOffsetsToTxnRequest, False), (EndTxnRequest, False)],
)
def test_a_group_coordinator_that_times_out_is_looked_up_again(request_class, looks_up):
    """Its commit took too long; a transaction coordinator that says so goes on with its work."""
    manager, call = at(request_class)
    manager.answered(call, answer_to(call.request, ErrorCode.REQUEST_TIMED_OUT), 0)
    again = manager.next_call(has_records=False)
    assert (again.request is None) is looks_up
    assert again.coordinator is (Coordinator.GROUP if looks_up else Coordinator.TRANSACTION)


# Partitions and groups on their way


def test_partitions_on_their_way_are_asked_for_once():
    manager, call = at(AddPartitionsToTxnRequest)
    assert manager.admit(P0) is False
    assert manager.admit(P1) is True
    assert manager.admit(P1) is False
    manager.answered(call, answer_to(call.request), 0)
    (second,) = serve(manager)
    assert [list(topic.partitions) for topic in second.v3_and_below_topics] == [[1]]
    assert list(manager.admitted) == [P0, P1]


def test_an_answer_about_earlier_partitions_admits_no_later_ones():
    manager, first = at(AddPartitionsToTxnRequest)
    manager.answered(first, answer_to(first.request), 0)
    manager.admit(P1)
    serve(manager, until=AddPartitionsToTxnRequest)
    manager.answered(first, answer_to(first.request), 0)
    assert list(manager.admitted) == [P0]


@pytest.mark.parametrize("request_class", [AddOffsetsToTxnRequest, TxnOffsetCommitRequest])
def test_an_answer_about_earlier_offsets_ends_no_later_ones(request_class):
    manager, call = at(request_class)
    later = manager.send_offsets({P0: OffsetToCommit(offset=7)}, OTHER)
    answer = answer_to(call.request)
    manager.answered(call, answer, 0)
    if request_class is AddOffsetsToTxnRequest:
        commit = serve(manager, until=TxnOffsetCommitRequest)
        manager.answered(commit, answer_to(commit.request), 0)
    manager.answered(call, answer, 0)
    assert not later.is_known
    asked = serve(manager)
    assert [type(request) for request in asked] == [AddOffsetsToTxnRequest, TxnOffsetCommitRequest]
    assert {request.group_id for request in asked} == {"other"}


def test_an_answer_without_all_partitions_is_no_success():
    manager = begun(P0, P1)
    call = serve(manager, until=AddPartitionsToTxnRequest)
    answer = answer_to(call.request)
    del answer.results_by_topic_v3_and_below[0].results_by_partition[1]
    manager.answered(call, answer, 0)
    assert not manager.admitted
    assert manager.state is State.FATAL_ERROR


@pytest.mark.parametrize("request_class", [AddPartitionsToTxnRequest, AddOffsetsToTxnRequest])
def test_a_refused_request_is_not_repeated(request_class):
    """The application must abort; until it does, nothing is due, whatever waited."""
    manager, call = at(request_class)
    manager.send_offsets({P1: OffsetToCommit(offset=7)}, OTHER)
    manager.admit(P1)
    manager.answered(call, answer_to(call.request, ErrorCode.TRANSACTION_ABORTABLE), 0)
    assert manager.state is State.ABORTABLE_ERROR
    assert serve(manager) == []
    manager.begin_abort()
    assert serve(manager) == []
    assert manager.state is State.READY


@pytest.mark.parametrize("request_class", [AddPartitionsToTxnRequest, AddOffsetsToTxnRequest])
@pytest.mark.parametrize("code", [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_an_abort_does_not_repeat_what_was_not_carried_out(request_class, code):
    """The answer says so, and nothing needs an end."""
    manager, call = at(request_class)
    manager.begin_abort()
    manager.answered(call, answer_to(call.request, code), 0)
    assert serve(manager) == []
    assert manager.state is State.READY


def test_a_group_that_must_not_be_looked_up_is_left_alone():
    manager = begun()
    manager.send_offsets(OFFSETS, GROUP)
    call = serve(manager, until=TxnOffsetCommitRequest)
    manager.unanswered(call, 0)
    look_up = manager.next_call(has_records=False)
    assert (look_up.coordinator, look_up.request) == (Coordinator.GROUP, None)
    manager.not_found(look_up, ErrorCode.GROUP_AUTHORIZATION_FAILED, 0)
    assert manager.state is State.ABORTABLE_ERROR
    assert serve(manager) == []


# Errors


def test_a_look_up_that_is_refused_for_good_is_fatal():
    manager = make()
    manager.begin_init()
    call = manager.next_call(has_records=False)
    manager.not_found(call, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 0)
    assert manager.state is State.FATAL_ERROR
    assert isinstance(manager.error, FatalTransactionError)


def test_nothing_is_due_and_nothing_counts_after_a_fatal_error():
    manager, call = at(AddPartitionsToTxnRequest)
    manager.send_offsets(OFFSETS, GROUP)
    manager.fail(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert manager.next_call(has_records=False) is None
    manager.answered(call, answer_to(call.request), 0)
    assert (manager.state, list(manager.admitted), manager.is_open) == (State.FATAL_ERROR, [], False)


@pytest.mark.parametrize(
    ("code", "needs"),
    [
        (ErrorCode.UNKNOWN_PRODUCER_ID, True),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, True),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False),
    ],
)
def test_a_lost_producer_id_is_renewed_with_the_abort(code, needs):
    manager, call = at(AddPartitionsToTxnRequest)
    manager.answered(call, answer_to(call.request, code), 0)
    manager.begin_abort()
    asked = [type(request) for request in serve(manager)]
    assert asked == ([InitProducerIdRequest] if needs else [])
    assert manager.producer_epoch == int(needs)


def test_an_abort_that_cannot_be_carried_out_is_fatal():
    """Only a commit may fail in such a way that an abort helps."""
    manager = begun(P0)
    serve(manager)
    manager.begin_abort()
    call = serve(manager, until=EndTxnRequest)
    manager.answered(call, answer_to(call.request, ErrorCode.TRANSACTION_ABORTABLE), 0)
    assert manager.state is State.FATAL_ERROR


def test_nothing_is_sent_outside_of_a_transaction():
    manager = ready()
    for action in (lambda: manager.admit(P0), lambda: manager.send_offsets(OFFSETS, GROUP), manager.prepared):
        with pytest.raises(RuntimeError, match="cannot send"):
            action()
    assert manager.next_call(has_records=False) is None


def test_a_request_that_failed_is_looked_into_by_the_abort():
    """The coordinator may have carried it out: the abort asks again, and ends what is open."""
    manager, call = at(AddPartitionsToTxnRequest)
    manager.unanswered(call, 0)
    manager.record_failed(ErrorCode.MESSAGE_TOO_LARGE)
    assert (manager.state, serve(manager)) == (State.ABORTABLE_ERROR, [])
    manager.begin_abort()
    asked = [type(request) for request in serve(manager)]
    assert asked == [AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest]
    assert manager.state is State.READY


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (ErrorCode.PRODUCER_FENCED, State.FATAL_ERROR),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, State.FATAL_ERROR),
        (ErrorCode.MESSAGE_TOO_LARGE, State.ABORTABLE_ERROR),
    ],
)
def test_a_lost_record_ends_the_transaction_or_the_producer(code, state):
    manager = begun(P0)
    serve(manager)
    manager.record_failed(code)
    assert manager.state is state


def test_partitions_of_the_transaction_are_not_asked_for_again():
    manager = begun(P0)
    serve(manager)
    assert manager.admit(P0) is False
    assert serve(manager) == []


@pytest.mark.parametrize("action", ["begin_init", "begin_commit", "begin_abort"])
def test_a_fatal_error_ends_the_call_that_waits(action):
    """And the first such error stays."""
    manager = make() if action == "begin_init" else begun(P0)
    outcome = getattr(manager, action)()
    manager.fail(ErrorCode.UNKNOWN_SERVER_ERROR, "first")
    manager.fail(ErrorCode.PRODUCER_FENCED, "second")
    assert outcome.is_known
    assert isinstance(outcome.error, FatalTransactionError)
    assert "first" in str(manager.error)


def rising():
    """A producer whose cluster has learned to give each transaction an epoch of its own; the next one begins."""
    manager = ready()
    manager.cluster_level = 2
    manager.begin()
    return manager


def test_partitions_that_wait_for_an_epoch_are_not_announced():
    """Brokers add them when records arrive."""
    manager = rising()
    assert manager.admit(P0) is True
    assert [type(request) for request in serve(manager)] == [InitProducerIdRequest]
    assert list(manager.admitted) == [P0]
    assert manager.admit(P1) is False


def test_a_look_up_opens_no_transaction():
    manager = rising()
    serve(manager)
    manager.send_offsets(OFFSETS, GROUP)
    assert manager.next_call(has_records=False).request is None
    manager.begin_abort()
    assert serve(manager) == []
    assert manager.state is State.READY


# Several codes in one answer

PASSING = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
STAYING = [
    (ErrorCode.TOPIC_AUTHORIZATION_FAILED, State.ABORTABLE_ERROR),
    (ErrorCode.INVALID_PRODUCER_EPOCH, State.FATAL_ERROR),
]


@pytest.mark.parametrize("passing", PASSING)
@pytest.mark.parametrize(("staying", "state"), STAYING)
@pytest.mark.parametrize("passing_first", [True, False])
def test_a_refused_offset_counts_beside_one_to_be_tried_again(passing, staying, state, passing_first):
    """A topic that was deleted hid the refusal of another one until the call's time was over."""
    manager = begun()
    outcome = manager.send_offsets({P0: OffsetToCommit(offset=5), P1: OffsetToCommit(offset=6)}, GROUP)
    call = serve(manager, until=TxnOffsetCommitRequest)
    answer = answer_to(call.request)
    parts = [part for topic in answer.topics for part in topic.partitions]
    parts[0].error_code, parts[1].error_code = (passing, staying) if passing_first else (staying, passing)
    manager.answered(call, answer, 1_000)
    assert manager.state is state
    assert outcome.is_known
    assert outcome.error is manager.error


@pytest.mark.parametrize("passing", PASSING)
@pytest.mark.parametrize(("staying", "state"), STAYING)
@pytest.mark.parametrize("passing_first", [True, False])
def test_a_refused_partition_counts_beside_one_to_be_tried_again(passing, staying, state, passing_first):
    manager = begun(P0, P1)
    call = serve(manager, until=AddPartitionsToTxnRequest)
    answer = answer_to(call.request)
    parts = [part for topic in answer.results_by_topic_v3_and_below for part in topic.results_by_partition]
    first, second = (passing, staying) if passing_first else (staying, passing)
    parts[0].partition_error_code, parts[1].partition_error_code = first, second
    manager.answered(call, answer, 1_000)
    assert manager.state is state
