"""Goal: the pure core makes transactions atomic, fences producers and leaves no hanging transaction (T1, T3).

Method: scripts that read as stories; the test controls commits, markers and time. Error paths come first.
"""

from dataclasses import replace

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest
from moldau.protocol.messages.end_txn import EndTxnResponse
from moldau.protocol.messages.init_producer_id import InitProducerIdResponse
from moldau.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from moldau_broker.coordinator.runtime.effects import Append
from moldau_broker.coordinator.transaction.core.answers import transactions_of
from moldau_broker.coordinator.transaction.core.config import TransactionConfig
from moldau_broker.coordinator.transaction.core.state import (
    TRANSITIONS,
    Transaction,
    TransactionStatus,
    parse_transaction,
    transaction_record,
)
from support.coordinator.transaction_world import (
    Producer,
    TransactionDriver,
    add_request,
    code_of,
    end_request,
    init_request,
    offsets_request,
)

DAY_MS = 24 * 3_600_000


def test_bad_requests_are_refused() -> None:
    driver = TransactionDriver()
    refused = [
        (init_request(""), 4, ErrorCode.INVALID_REQUEST),
        (init_request(timeout_ms=0), 4, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (init_request(timeout_ms=900_001), 4, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (init_request(producer_id=5), 4, ErrorCode.INVALID_REQUEST),
        (add_request(1, 0, 0), 4, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (add_request(1, 0, 0, name=""), 4, ErrorCode.INVALID_REQUEST),
        (offsets_request(1, 0), 4, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (end_request(1, 0, commit=True), 5, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ]
    for request, version, code in refused:
        assert code_of(driver.ask(request, version)) is code
    assert not driver.log
    for name, code in (("none", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND), ("", ErrorCode.INVALID_REQUEST)):
        assert driver.describe(name).error_code == code


@pytest.mark.parametrize(
    ("version", "reported"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)]
)
def test_wrong_epochs_are_fenced(version: int, reported: ErrorCode) -> None:
    driver = TransactionDriver()
    producer = Producer(driver)
    producer.init()
    for epoch in (producer.epoch - 1, producer.epoch + 1, 0x7FFF):
        for request in (
            add_request(producer.producer_id, epoch, 0),
            offsets_request(producer.producer_id, epoch),
            end_request(producer.producer_id, epoch, commit=True),
        ):
            assert code_of(driver.ask(request, version)) is reported
    other = add_request(producer.producer_id + 1, 0, 0)
    assert code_of(driver.ask(other, 4)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_from_begin_to_end(commit: bool) -> None:
    """The client is answered when the outcome is committed; the transaction completes with its last marker."""
    driver = TransactionDriver(automatic=False)
    producer = Producer(driver)
    waiting = driver.send(init_request(), 4)
    assert waiting not in driver.answers
    driver.commit()
    answer = driver.answers[waiting]
    assert isinstance(answer, InitProducerIdResponse)
    assert (answer.producer_id, answer.producer_epoch) == (100, 0)
    producer.producer_id, producer.epoch = 100, 0
    adding = driver.send(add_request(100, 0, 3, 4), 4)
    assert adding not in driver.answers
    driver.commit()
    assert code_of(driver.answers[adding]) is ErrorCode.NONE
    with_offsets = driver.send(offsets_request(100, 0, "group"), 4)
    driver.commit()
    assert code_of(driver.answers[with_offsets]) is ErrorCode.NONE
    assert driver.state() == "Ongoing"
    assert producer.add(3) is ErrorCode.NONE
    ending = driver.send(end_request(100, 0, commit=commit), 4)
    assert ending not in driver.answers
    assert not driver.markers
    driver.commit()
    assert code_of(driver.answers[ending]) is ErrorCode.NONE
    assert driver.state() == ("PrepareCommit" if commit else "PrepareAbort")
    assert producer.add(5) is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.write_markers(2)
    assert not driver.uncommitted
    driver.write_markers()
    driver.commit()
    assert driver.state() == ("CompleteCommit" if commit else "CompleteAbort")
    assert [partition for _, partition in driver.written] == [("t", 3), ("t", 4), ("__consumer_offsets", 5)]
    assert all(marker.commit is commit and marker.producer.producer_epoch == 0 for marker, _ in driver.written)
    assert producer.end(commit=commit) is ErrorCode.NONE
    assert producer.end(commit=not commit) is ErrorCode.INVALID_TXN_STATE


def test_one_transition_at_a_time() -> None:
    driver = TransactionDriver()
    producer = Producer(driver)
    producer.init()
    driver.automatic = False
    waiting = driver.send(add_request(producer.producer_id, 0, 1), 4)
    for request in (
        add_request(producer.producer_id, 0, 2),
        offsets_request(producer.producer_id, 0),
        end_request(producer.producer_id, 0, commit=True),
        init_request(),
    ):
        assert code_of(driver.ask(request, 4)) is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.commit()
    assert code_of(driver.answers[waiting]) is ErrorCode.NONE


def test_a_successor_fences_and_aborts() -> None:
    """The second producer of an id first aborts the open transaction under a higher epoch, then is initialized."""
    driver = TransactionDriver(automatic=False)
    first, second = Producer(driver), Producer(driver)
    driver.automatic = True
    first.init()
    first.add(1)
    driver.automatic = False
    waiting = driver.send(init_request(), 4)
    driver.commit()
    assert code_of(driver.answers[waiting]) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert driver.state() == "PrepareAbort"
    assert first.end(commit=True) is ErrorCode.PRODUCER_FENCED
    (sent,) = driver.markers
    assert (sent.marker.commit, sent.marker.producer.producer_epoch) == (False, 2)
    assert second.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.automatic = True
    driver.settle()
    assert second.init() is ErrorCode.NONE
    assert (second.producer_id, second.epoch) == (first.producer_id, 3)
    assert first.add(1) is ErrorCode.PRODUCER_FENCED


def test_transactions_time_out() -> None:
    driver = TransactionDriver()
    producer = Producer(driver)
    producer.init(timeout_ms=10_000)
    driver.pass_time(50_000)
    producer.add(1)
    driver.pass_time(6_000)
    producer.add(2)
    driver.pass_time(3_999)
    assert driver.state() == "Ongoing"
    driver.pass_time(1)
    assert driver.state() == "CompleteAbort"
    assert [marker.commit for marker, _ in driver.written] == [False, False]
    assert producer.end(commit=True) is ErrorCode.PRODUCER_FENCED


def test_timeouts_survive_the_coordinator() -> None:
    driver = TransactionDriver()
    producer = Producer(driver)
    producer.init(timeout_ms=10_000)
    producer.add(1)
    driver.pass_time(6_000)
    driver.fail_over()
    driver.pass_time(3_999)
    assert driver.state() == "Ongoing"
    driver.pass_time(1)
    assert driver.state() == "CompleteAbort"


def test_a_wall_clock_that_is_behind_prolongs_no_transaction() -> None:
    """The next coordinator reads in its log a start that lies ahead: it waits for the timeout once, not for hours."""
    driver = TransactionDriver()
    producer = Producer(driver)
    producer.init(timeout_ms=10_000)
    producer.add(1)
    driver.wall_start_ms -= 3_600_000
    driver.fail_over()
    driver.pass_time(9_999)
    assert driver.state() == "Ongoing"
    driver.pass_time(1)
    assert driver.state() == "CompleteAbort"


@pytest.mark.parametrize("commit", [True, False])
def test_the_next_coordinator_finishes_a_decided_transaction(commit: bool) -> None:
    """The next coordinator sends the markers of a decided transaction again, with its own epoch."""
    driver = TransactionDriver()
    producer = Producer(driver)
    producer.init()
    producer.add(1, 2)
    driver.automatic = False
    ending = driver.send(end_request(producer.producer_id, 0, commit=commit), 4)
    driver.commit()
    driver.write_markers(1)
    driver.fail_over()
    assert code_of(driver.answers[ending]) is ErrorCode.NONE
    (sent,) = driver.markers
    assert sent.partitions == (("t", 1), ("t", 2))
    assert sent.marker.coordinator_epoch == 1
    driver.settle()
    assert driver.state() == ("CompleteCommit" if commit else "CompleteAbort")


def test_an_undecided_end_is_not_decided_by_the_failover() -> None:
    driver = TransactionDriver()
    producer = Producer(driver)
    producer.init()
    producer.add(1)
    driver.automatic = False
    ending = driver.send(end_request(producer.producer_id, 0, commit=True), 4)
    driver.fail_over()
    assert code_of(driver.answers[ending]) is ErrorCode.NOT_COORDINATOR
    assert not driver.markers
    assert driver.state() == "Ongoing"


@pytest.mark.parametrize(
    ("refusal", "reported"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_refused_writes_change_nothing(refusal: ErrorCode, reported: ErrorCode) -> None:
    driver = TransactionDriver()
    producer = Producer(driver)
    producer.init()
    producer.add(1)
    driver.automatic = False
    ending = driver.send(end_request(producer.producer_id, 0, commit=True), 4)
    driver.refuse(refusal)
    assert code_of(driver.answers[ending]) is reported
    assert driver.state() == "Ongoing"
    driver.automatic = True
    assert producer.end(commit=True) is ErrorCode.NONE
    assert driver.state() == "CompleteCommit"


def test_own_writes_are_repeated_until_they_succeed() -> None:
    """The coordinator retries the abort of a timed-out transaction and the completion of a decided one."""
    driver = TransactionDriver()
    producer = Producer(driver)
    producer.init(timeout_ms=10_000)
    producer.add(1)
    driver.automatic = False
    driver.pass_time(10_000)
    for _ in range(3):
        driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert not driver.uncommitted
        driver.pass_time(driver.config.retry_backoff_ms)
    driver.commit()
    driver.write_markers()
    for _ in range(3):
        driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert not driver.uncommitted
        driver.pass_time(driver.config.retry_backoff_ms)
    driver.commit()
    assert driver.state() == "CompleteAbort"
    assert driver.describe().producer_epoch == 1


def test_a_timeout_during_a_refused_write_is_not_forgotten() -> None:
    """The time is over while the producer's write is pending, and the log refuses that write afterwards."""
    driver = TransactionDriver()
    producer = Producer(driver)
    producer.init(timeout_ms=10_000)
    producer.add(1)
    driver.automatic = False
    driver.pass_time(9_000)
    driver.send(add_request(producer.producer_id, 0, 2), 4)
    driver.pass_time(3_000)
    assert driver.state() == "Ongoing"
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.automatic = True
    driver.pass_time(driver.config.retry_backoff_ms)
    assert driver.state() == "CompleteAbort"


def test_slow_commits_are_answered_in_time_and_count() -> None:
    driver = TransactionDriver()
    producer = Producer(driver)
    producer.init()
    driver.automatic = False
    waiting = driver.send(add_request(producer.producer_id, 0, 1), 4)
    driver.pass_time(5_000)
    assert code_of(driver.answers[waiting]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert producer.add(1) is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.commit()
    assert producer.add(1) is ErrorCode.NONE


def test_producers_with_an_id_bump_their_epoch() -> None:
    """A producer bumps its own epoch; a retry gets the same answer, a zombie an error (KIP-360)."""
    driver = TransactionDriver()
    producer = Producer(driver)
    producer.init()
    pid = producer.producer_id

    def again(epoch: int) -> tuple[ErrorCode, int]:
        answer = driver.ask(init_request(producer_id=pid, epoch=epoch), 4)
        assert isinstance(answer, InitProducerIdResponse)
        return ErrorCode(answer.error_code), answer.producer_epoch

    assert again(0) == (ErrorCode.NONE, 1)
    assert again(0) == (ErrorCode.NONE, 1)
    assert again(1) == (ErrorCode.NONE, 2)
    assert again(0) == (ErrorCode.PRODUCER_FENCED, -1)
    assert again(3) == (ErrorCode.PRODUCER_FENCED, -1)
    old = driver.ask(init_request(producer_id=pid, epoch=0), 3)
    assert code_of(old) is ErrorCode.INVALID_PRODUCER_EPOCH


def exhausted(driver: TransactionDriver, *, bumps: bool = False) -> Producer:
    """Returns a producer whose id has one epoch left."""
    producer = Producer(driver, bumps=bumps)
    producer.init()
    transaction = driver.core.transactions["x"]
    state = Transaction(
        transactional_id="x",
        producer_id=transaction.producer_id,
        producer_epoch=0x7FFE,
        timeout_ms=60_000,
        last_update_ms=transaction.last_update_ms,
    )
    driver.core.replay(*transaction_record("x", state))
    producer.epoch = 0x7FFE
    return producer


def test_a_producer_id_is_replaced_when_its_epochs_are_used_up() -> None:
    driver = TransactionDriver()
    old = exhausted(driver)
    successor = Producer(driver)
    successor.init()
    assert (successor.producer_id, successor.epoch) == (old.producer_id + 1, 0)
    driver = TransactionDriver()
    old = exhausted(driver)
    request = init_request(producer_id=old.producer_id, epoch=old.epoch)
    for _ in range(2):
        answer = driver.ask(request, 4)
        assert isinstance(answer, InitProducerIdResponse)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, old.producer_id + 1, 0)


@pytest.mark.parametrize("successor_begins", [False, True])
def test_a_former_producer_never_gets_its_successors_id(successor_begins: bool) -> None:
    """The id of a producer was replaced, and another producer has taken over: a late retry of the first is fenced.

    Two producers with one id and one epoch would send the same sequences, and records of one of them would be
    acknowledged as duplicates of the other's.
    """
    driver = TransactionDriver()
    old = exhausted(driver)
    retry = init_request(producer_id=old.producer_id, epoch=old.epoch)
    driver.ask(retry, 4)  # its answer is lost
    successor = Producer(driver)
    successor.init()
    if successor_begins:
        assert successor.add(1) is ErrorCode.NONE
    assert code_of(driver.ask(retry, 4)) is ErrorCode.PRODUCER_FENCED
    assert successor.add(2) is ErrorCode.NONE
    assert successor.end(commit=True) is ErrorCode.NONE


def test_a_retry_of_a_replaced_id_cannot_end_later_work() -> None:
    """The producer got the answer and works with its new id when a copy of its request arrives late."""
    driver = TransactionDriver()
    old = exhausted(driver)
    retry = init_request(producer_id=old.producer_id, epoch=old.epoch)
    answer = driver.ask(retry, 4)
    assert isinstance(answer, InitProducerIdResponse)
    old.producer_id, old.epoch = answer.producer_id, answer.producer_epoch
    assert old.add(1) is ErrorCode.NONE
    assert code_of(driver.ask(retry, 4)) is ErrorCode.PRODUCER_FENCED
    assert old.end(commit=True) is ErrorCode.NONE


def test_an_abort_of_nothing_uses_a_new_id_too() -> None:
    """With an epoch per transaction, a late copy of the old request must not get the epoch that the abort has given."""
    driver = TransactionDriver()
    old = exhausted(driver, bumps=True)
    retry = init_request(producer_id=old.producer_id, epoch=old.epoch)
    answer = driver.ask(retry, 4)
    assert isinstance(answer, InitProducerIdResponse)
    old.producer_id, old.epoch = answer.producer_id, answer.producer_epoch
    assert old.end(commit=False) is ErrorCode.NONE
    assert code_of(driver.ask(retry, 4)) is ErrorCode.PRODUCER_FENCED


def test_a_producer_of_an_expired_id_gets_a_new_one() -> None:
    """It says who it was, as after any error that it can recover from (KIP-360)."""
    driver = TransactionDriver()
    answer = driver.ask(init_request(producer_id=5, epoch=1), 4)
    assert isinstance(answer, InitProducerIdResponse)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (ErrorCode.NONE, 100, 0)


def test_epochs_rise_with_every_transaction() -> None:
    """No late message enters the next transaction; retried requests get the same answer (KIP-890)."""
    driver = TransactionDriver()
    producer = Producer(driver, bumps=True)
    producer.init()
    pid = producer.producer_id
    for round_number in range(3):
        producer.add(1)
        commit = round_number != 1
        ended = end_request(pid, producer.epoch, commit=commit)
        assert producer.end(commit=commit) is ErrorCode.NONE
        assert producer.epoch == round_number + 1
        assert driver.written[-1][0].producer.producer_epoch == round_number + 1
        repeated = driver.ask(ended, 5)
        assert isinstance(repeated, EndTxnResponse)
        assert (repeated.error_code, repeated.producer_epoch) == (0, round_number + 1)
        other = end_request(pid, ended.producer_epoch, commit=not commit)
        assert code_of(driver.ask(other, 5)) is ErrorCode.INVALID_TXN_STATE
        zombie = add_request(pid, producer.epoch - 1, 1)
        assert code_of(driver.ask(zombie, 4)) is ErrorCode.PRODUCER_FENCED


def test_aborting_nothing_raises_the_epoch_too() -> None:
    driver = TransactionDriver()
    producer = Producer(driver, bumps=True)
    producer.init()
    assert producer.end(commit=True) is ErrorCode.INVALID_TXN_STATE
    for epoch in (1, 2):
        assert producer.end(commit=False) is ErrorCode.NONE
        assert producer.epoch == epoch
        assert driver.state() == "CompleteAbort"
    assert not driver.written
    old = Producer(driver, "y")
    old.init()
    assert old.end(commit=False) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("fail_over", [False, True])
def test_the_last_epoch_ends_with_a_new_producer_id(fail_over: bool) -> None:
    driver = TransactionDriver()
    producer = exhausted(driver, bumps=True)
    old_id = producer.producer_id
    producer.add(1)
    driver.automatic = False
    request = end_request(old_id, 0x7FFE, commit=True)
    ending = driver.send(request, 5)
    driver.commit()
    if fail_over:
        driver.fail_over()
    (sent,) = driver.markers
    assert (sent.marker.producer.producer_id, sent.marker.producer.producer_epoch) == (old_id, 0x7FFF)
    answer = driver.answers[ending]
    assert isinstance(answer, EndTxnResponse)
    assert (answer.producer_id, answer.producer_epoch) == (old_id + 1, 0)
    assert code_of(driver.ask(request, 5)) is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.automatic = True
    driver.settle()
    repeated = driver.ask(request, 5)
    assert isinstance(repeated, EndTxnResponse)
    assert (repeated.error_code, repeated.producer_id, repeated.producer_epoch) == (0, old_id + 1, 0)
    producer.producer_id, producer.epoch = old_id + 1, 0
    assert producer.add(1) is ErrorCode.NONE


def test_a_late_end_of_a_replaced_id_ends_nothing() -> None:
    """The producer works with its new id, and its next transaction times out: a copy of the old request is refused."""
    driver = TransactionDriver()
    producer = exhausted(driver, bumps=True)
    producer.add(1)
    late = end_request(producer.producer_id, 0x7FFE, commit=False)
    assert producer.end(commit=False) is ErrorCode.NONE
    assert producer.epoch == 0
    producer.add(2)
    driver.pass_time(120_000)
    assert driver.state() == "CompleteAbort"
    assert code_of(driver.ask(late, 5)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_brokers_verify_what_producers_write() -> None:
    driver = TransactionDriver()
    producer = Producer(driver)
    producer.init()
    assert producer.add(1, verify=True) is ErrorCode.INVALID_TXN_STATE
    producer.add(1)
    assert producer.add(1, verify=True) is ErrorCode.NONE
    assert producer.add(2, verify=True) is ErrorCode.INVALID_TXN_STATE
    assert producer.add(2, verify=True, version=5) is ErrorCode.TRANSACTION_ABORTABLE
    producer.end(commit=True)
    assert producer.add(1, verify=True, version=5) is ErrorCode.TRANSACTION_ABORTABLE


def test_unused_ids_are_forgotten() -> None:
    driver = TransactionDriver(TransactionConfig(id_expiration_ms=7 * DAY_MS, timeout_max_ms=20 * DAY_MS))
    idle, busy = Producer(driver, "idle"), Producer(driver, "busy")
    idle.init()
    busy.init(timeout_ms=20 * DAY_MS)
    busy.add(1)
    driver.pass_time(7 * DAY_MS - 1)
    assert driver.state("idle") == "Empty"
    driver.pass_time(3_600_000)
    assert driver.describe("idle").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert driver.state("busy") == "Ongoing"
    driver.fail_over()
    assert driver.describe("idle").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_an_id_with_a_pending_write_is_not_forgotten() -> None:
    driver = TransactionDriver(TransactionConfig(id_expiration_ms=7 * DAY_MS))
    Producer(driver).init()
    driver.pass_time(7 * DAY_MS - 1)
    driver.automatic = False
    driver.send(init_request(), 4)
    driver.pass_time(3_600_000)
    assert len(driver.uncommitted) == 1, "no tombstone follows the record of the new producer"
    driver.commit()
    assert driver.state() == "Empty"


def test_listing_and_describing() -> None:
    driver = TransactionDriver()
    one, two = Producer(driver, "one"), Producer(driver, "two")
    one.init()
    two.init()
    two.add(5, 6)
    driver.pass_time(1_000)

    def listed(version: int = 1, **filters: object) -> list[tuple[str, str]]:
        answer = driver.ask(ListTransactionsRequest(**filters), version)  # type: ignore[arg-type]
        assert isinstance(answer, ListTransactionsResponse)
        return [(state.transactional_id, state.transaction_state) for state in answer.transaction_states]

    assert listed() == [("one", "Empty"), ("two", "Ongoing")]
    assert listed(state_filters=["Ongoing"]) == [("two", "Ongoing")]
    assert listed(producer_id_filters=[one.producer_id]) == [("one", "Empty")]
    assert listed(duration_filter=999) == [("two", "Ongoing")]
    assert listed(duration_filter=1_000) == []
    answer = driver.ask(ListTransactionsRequest(state_filters=["Nope", "Empty"]), 0)
    assert isinstance(answer, ListTransactionsResponse)
    assert answer.unknown_state_filters == ["Nope"]
    state = driver.describe("two")
    assert (state.producer_id, state.producer_epoch, state.transaction_timeout_ms) == (two.producer_id, 0, 60_000)
    assert [(topic.topic, list(topic.partitions)) for topic in state.topics] == [("t", [5, 6])]


class Looked(int):
    """A producer id that counts how often it is compared."""

    times = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Looked.times += 1
        return int(self) == other


def test_filters_of_a_list_are_not_searched_for_each_transaction() -> None:
    """Thousands of ids as a filter of thousands of transactions would stop the event loop for seconds."""
    driver = TransactionDriver()
    for number in range(20):
        Producer(driver, f"p{number}").init()
    wanted = [Looked(1_000_000 + number) for number in range(500)]
    answer = driver.ask(ListTransactionsRequest(producer_id_filters=wanted), 1)
    assert isinstance(answer, ListTransactionsResponse)
    assert not answer.transaction_states
    assert Looked.times < 500


def test_pending_writes_are_bounded() -> None:
    driver = TransactionDriver(TransactionConfig(appends_pending_max=1), automatic=False)
    driver.send(init_request("a"), 4)
    assert code_of(driver.ask(init_request("b"), 4)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.ask(DescribeTransactionsRequest(transactional_ids=["a"]), 0)


@pytest.mark.parametrize("before", TransactionStatus)
@pytest.mark.parametrize("after", TransactionStatus)
def test_only_the_transitions_of_the_table_exist(before: TransactionStatus, after: TransactionStatus) -> None:
    transaction = Transaction(transactional_id="x", producer_id=1, producer_epoch=0, timeout_ms=1, status=before)
    if after in TRANSITIONS[before]:
        assert transaction.moved(after, 7).last_update_ms == 7
    else:
        with pytest.raises(AssertionError):
            transaction.moved(after, 7)


def test_records_survive_the_round_trip() -> None:
    full = Transaction(
        transactional_id="x",
        producer_id=1,
        producer_epoch=2,
        timeout_ms=3,
        status=TransactionStatus.PREPARE_COMMIT,
        partitions=(("t", 1), ("t", 2), ("u", 0)),
        previous_producer_id=4,
        next_producer_id=5,
        next_producer_epoch=0,
        start_ms=6,
        last_update_ms=7,
        client_version=2,
    )
    assert parse_transaction(*transaction_record("x", full)) == ("x", full)
    assert parse_transaction(*transaction_record("x", None)) == ("x", None)
    assert parse_transaction(b"\0\7x", b"") is None
    driver = TransactionDriver()
    for key, value in ((None, b""), (b"\0\0\0\5", b""), (b"\0\0\0\1x", b"\0\x07"), (b"\0\0\0\1x", b"\0\0\0")):
        driver.core.replay(key, value)
    assert driver.core.unreadable_records == 4


def test_both_forms_of_a_request_for_partitions_mean_the_same() -> None:
    """Clients send one transaction in fields of its own, brokers several ones in a list."""
    topics = [AddPartitionsToTxnTopic(name="t", partitions=[3])]
    single = AddPartitionsToTxnTransaction(transactional_id="x", producer_id=7, producer_epoch=2, topics=topics)
    old = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=7,
        v3_and_below_producer_epoch=2,
        v3_and_below_topics=topics,
    )
    assert transactions_of(old, 3) == [single]
    assert transactions_of(AddPartitionsToTxnRequest(transactions=[single, single]), 4) == [single, single]


@pytest.mark.parametrize(
    "forged",
    [
        {"status": TransactionStatus.DEAD},
        {"status": TransactionStatus.PREPARE_EPOCH_FENCE},
        {"producer_id": -1, "status": TransactionStatus.PREPARE_ABORT, "partitions": (("t", 0),)},
        {"producer_epoch": -1, "status": TransactionStatus.ONGOING},
    ],
)
def test_a_state_that_no_coordinator_writes_is_not_read(forged: dict[str, object]) -> None:
    """A forged record changes no state, and the producer continues."""
    driver = TransactionDriver()
    producer = Producer(driver)
    producer.init()
    known = driver.core.transactions["x"]
    record = transaction_record("x", replace(known, **forged))  # type: ignore[arg-type]
    driver.log.append(Append(append_id=-1, records=(record,)))
    driver.fail_over()
    assert driver.core.unreadable_records == 1
    assert driver.core.transactions["x"] == known
    assert code_of(driver.ask(end_request(known.producer_id, known.producer_epoch, commit=False), 5)) is ErrorCode.NONE
    assert driver.state() == "CompleteAbort"
