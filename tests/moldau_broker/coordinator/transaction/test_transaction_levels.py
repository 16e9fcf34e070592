"""Goal: at each level of ``transaction.version`` the coordinator answers as Kafka's does, and late requests do nothing.

Method: tables over the pure core. Level 2 (KIP-890) gives every transaction its own epoch, which EndTxn 5 returns.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau.protocol.codec import decode
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.end_txn import EndTxnResponse
from moldau.protocol.messages.internal.transaction_log import TransactionLogValue
from moldau_broker.coordinator.transaction.core.state import EPOCH_MAX, TransactionStatus, transaction_record
from support.coordinator.transaction_world import (
    Producer,
    TransactionDriver,
    add_request,
    code_of,
    end_request,
    init_request,
)

S = TransactionStatus
NONE, CONCURRENT = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS
FENCED, STATE, MAPPING = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING

# EndTxn 5 of a producer that began at epoch 4: the state of its id, whose record has epoch 4 (Empty, Ongoing) or, once
# the end is decided, 5. For each: the answers to commit and abort with epoch 3 (an older one), 4, 5 and 6.
END_TABLE = {
    S.EMPTY: {3: (FENCED, FENCED), 4: (STATE, NONE), 5: (FENCED, FENCED)},
    S.ONGOING: {3: (FENCED, FENCED), 4: (NONE, NONE), 5: (FENCED, FENCED)},
    S.PREPARE_COMMIT: {3: (FENCED, FENCED), 4: (CONCURRENT, STATE), 5: (CONCURRENT, CONCURRENT), 6: (FENCED, FENCED)},
    S.PREPARE_ABORT: {3: (FENCED, FENCED), 4: (FENCED, CONCURRENT), 5: (CONCURRENT, CONCURRENT), 6: (FENCED, FENCED)},
    S.COMPLETE_COMMIT: {3: (FENCED, FENCED), 4: (NONE, STATE), 5: (STATE, NONE), 6: (FENCED, FENCED)},
    S.COMPLETE_ABORT: {3: (FENCED, FENCED), 4: (FENCED, NONE), 5: (STATE, NONE), 6: (FENCED, FENCED)},
}


def in_state(status: TransactionStatus, client_version: int = 2, level: int = 2) -> TransactionDriver:
    """Returns a coordinator that loaded an id in a state; its writes and markers stay pending."""
    driver = TransactionDriver(automatic=False, level=level)
    producer = Producer(driver)
    driver.commits_at_once = True
    producer.init()
    driver.commits_at_once = False
    decided = status.is_preparing or status in (S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
    known = driver.core.transactions["x"]
    loaded = replace(
        known,
        producer_id=100,
        producer_epoch=5 if decided and client_version == 2 else 4,
        status=status,
        partitions=(("t", 0),) if status is S.ONGOING or status.is_preparing else (),
        start_ms=known.last_update_ms,
        client_version=client_version,
    )
    driver.core.replay(*transaction_record("x", loaded))
    driver.perform(driver.core.start(driver.moment()))
    return driver


@pytest.mark.parametrize("status", END_TABLE)
def test_end_of_a_transaction_with_its_own_epoch(status: TransactionStatus) -> None:
    for epoch, answers in END_TABLE[status].items():
        for commit, expected in zip((True, False), answers, strict=True):
            driver = in_state(status)
            driver.commits_at_once = True
            before = driver.core.transactions["x"]
            answer = driver.ask(end_request(100, epoch, commit=commit), 5)
            assert isinstance(answer, EndTxnResponse)
            assert answer.error_code == expected, (status, epoch, commit)
            after = driver.core.transactions["x"]
            if expected is not NONE:
                assert after == before
                assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
            else:
                assert (answer.producer_id, answer.producer_epoch) == (100, 5 if epoch == 4 else 6)
                assert after.producer_epoch == answer.producer_epoch
            assert code_of(driver.ask(end_request(101, epoch, commit=commit), 5)) is MAPPING


def test_a_late_end_of_level_1_ends_the_next_transaction() -> None:
    """Shows the hazard that level 2 removes: with one epoch for all, a held-back EndTxn ends the wrong transaction."""
    for bumps, expected in ((False, "CompleteCommit"), (True, "Ongoing")):
        driver = TransactionDriver()
        producer = Producer(driver, bumps=bumps)
        producer.init()
        producer.add(0)
        late = end_request(producer.producer_id, producer.epoch, commit=True)
        assert producer.end(commit=True) is NONE
        producer.add(1)
        answer = driver.ask(late, 5 if bumps else 4)
        assert code_of(answer) is (FENCED if bumps else NONE)
        assert driver.state() == expected


def test_a_late_partition_joins_no_later_transaction() -> None:
    for bumps, expected in ((False, NONE), (True, FENCED)):
        driver = TransactionDriver()
        producer = Producer(driver, bumps=bumps)
        producer.init()
        producer.add(0)
        late = add_request(producer.producer_id, producer.epoch, 0)
        producer.end(commit=True)
        assert code_of(driver.ask(late, 5)) is expected
        assert driver.state() == ("Ongoing" if expected is NONE else "CompleteCommit")


def test_the_next_transaction_waits_for_the_markers() -> None:
    """A client may begin with the epoch that EndTxn returned while markers are outstanding; it is not fenced."""
    driver = in_state(S.ONGOING)
    driver.commits_at_once = True
    assert code_of(driver.ask(end_request(100, 4, commit=True), 5)) is NONE
    for version in (4, 5):
        assert code_of(driver.ask(add_request(100, 5, 0), version)) is CONCURRENT
        assert code_of(driver.ask(add_request(100, 5, 0, verify=True), version)) is CONCURRENT
    driver.automatic = True
    driver.settle()
    assert code_of(driver.ask(add_request(100, 5, 0), 5)) is NONE


def test_a_new_producer_id_waits_for_the_markers_too() -> None:
    driver = in_state(S.ONGOING)
    known = driver.core.transactions["x"]
    driver.core.replay(*transaction_record("x", replace(known, producer_epoch=EPOCH_MAX - 1)))
    driver.commits_at_once = True
    fresh = driver.next_producer_id
    answer = driver.ask(end_request(100, EPOCH_MAX - 1, commit=True), 5)
    assert isinstance(answer, EndTxnResponse)
    assert (answer.producer_id, answer.producer_epoch) == (fresh, 0)
    assert code_of(driver.ask(add_request(fresh, 0, 0), 5)) is CONCURRENT
    assert code_of(driver.ask(end_request(fresh, 0, commit=False), 5)) is CONCURRENT
    assert code_of(driver.ask(add_request(fresh + 1, 0, 0), 5)) is MAPPING


@pytest.mark.parametrize(("version", "level"), [(4, 0), (5, 2)])
def test_markers_state_the_level_of_the_client(version: int, level: int) -> None:
    """A partition expects a higher epoch in a marker of level 2, so a marker of EndTxn 4 must not claim it."""
    driver = in_state(S.ONGOING)  # added at level 2, which a careless client ends with another version
    driver.commits_at_once = True
    assert code_of(driver.ask(end_request(100, 4, commit=True), version)) is NONE
    (sent,) = driver.markers
    assert sent.marker.transaction_version == level
    assert sent.marker.producer.producer_epoch == (5 if level == 2 else 4)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_level_decides_the_form_of_the_records(level: int) -> None:
    driver = TransactionDriver(level=level)
    producer = Producer(driver, bumps=True)
    producer.init()
    producer.add(1)
    for append in driver.log:
        for record in append.records:
            assert record.value is not None
            version = int.from_bytes(record.value[:2], "big")
            assert version == min(level, 1)
            decode(TransactionLogValue, version, record.value, 2)
    driver.fail_over()
    assert driver.core.transactions["x"].client_version == (2 if level else 0)
    assert driver.state() == "Ongoing"


def test_clients_of_both_levels_may_take_turns() -> None:
    """A cluster that goes up or down finds clients of either level, whose transactions end as they began."""
    driver = TransactionDriver()
    producer = Producer(driver)
    producer.init()
    for bumps in (False, True, True, False, True):
        producer.bumps = bumps
        before = producer.epoch
        assert producer.add(1, version=5 if bumps else 3) is NONE
        assert producer.end(commit=True) is NONE
        assert producer.epoch == before + bumps
        marker = driver.written[-1][0]
        assert (marker.producer.producer_epoch, marker.transaction_version) == (producer.epoch, 2 * bumps)


@pytest.mark.parametrize("answered", [S.PREPARE_ABORT, S.COMPLETE_ABORT])
def test_a_new_producer_keeps_the_former_one_out(answered: TransactionStatus) -> None:
    """The former producer may send its abort before the new one has repeated its request: it must not go on."""
    driver = in_state(S.ONGOING)
    driver.commits_at_once = True
    assert code_of(driver.ask(init_request(), 4)) is CONCURRENT
    if answered is S.COMPLETE_ABORT:
        driver.automatic = True
        driver.settle()
    for commit in (True, False):
        assert code_of(driver.ask(end_request(100, 4, commit=commit), 5)) is FENCED
    for epoch in (4, 5):
        assert code_of(driver.ask(add_request(100, epoch, 0), 5)) is FENCED
    driver.automatic = True
    driver.settle()
    answer = driver.ask(init_request(), 4)
    assert (answer.error_code, answer.producer_epoch) == (0, 7)


@pytest.mark.parametrize(
    ("level", "epoch", "expected"), [(2, 4, (NONE, 5)), (1, 4, (FENCED, -1)), (2, EPOCH_MAX - 1, (FENCED, -1))]
)
def test_a_producer_that_begins_again_goes_on(level: int, epoch: int, expected: tuple[ErrorCode, int]) -> None:
    """It names the id and epoch of its open transaction: the abort keeps no former producer out."""
    driver = in_state(S.ONGOING, level=level)
    known = replace(driver.core.transactions["x"], producer_epoch=epoch, client_version=2 if level == 2 else 0)
    driver.core.replay(*transaction_record("x", known))
    driver.automatic = True
    again = init_request(producer_id=known.producer_id, epoch=epoch)
    assert code_of(driver.ask(again, 4)) is CONCURRENT
    for _ in range(2):
        answer = driver.ask(again, 4)
        assert (answer.error_code, answer.producer_epoch) == expected


def test_a_commit_after_ones_own_abort_is_no_timeout() -> None:
    for fails_over, expected in ((False, STATE), (True, FENCED)):
        driver = TransactionDriver()
        producer = Producer(driver, bumps=True)
        producer.init()
        producer.add(0)
        commit = end_request(producer.producer_id, producer.epoch, commit=True)
        assert producer.end(commit=False) is NONE
        if fails_over:
            driver.fail_over()
        assert code_of(driver.ask(commit, 5)) is expected


def test_an_abort_without_partitions_begins_now() -> None:
    """The transaction before may be days old: its time must not count as the age of the present one."""
    driver = in_state(S.COMPLETE_COMMIT)
    driver.now_ms += 100_000
    driver.commits_at_once = True
    driver.send(end_request(100, 5, commit=False), 5)
    prepared = decode(TransactionLogValue, 1, driver.log[-2].records[0].value, 2)
    assert prepared.transaction_start_timestamp_ms == driver.moment().wall_ms


@pytest.mark.parametrize(("level", "expected"), [(1, FENCED), (2, NONE)])
def test_a_client_learns_the_epoch_of_a_timeout(level: int, expected: ErrorCode) -> None:
    """A transaction that timed out is aborted; at level 2 its client's abort returns the epoch to go on with."""
    driver = TransactionDriver(level=level)
    producer = Producer(driver, bumps=level == 2)
    producer.init(timeout_ms=5_000)
    producer.add(1, version=5 if level == 2 else 3)
    driver.pass_time(6_000)
    assert driver.state() == "CompleteAbort"
    commit = end_request(producer.producer_id, producer.epoch, commit=True)
    assert code_of(driver.ask(commit, 5 if level == 2 else 4)) is FENCED
    assert producer.end(commit=False) is expected
    assert producer.epoch == (1 if level == 2 else 0)


def test_a_fence_at_the_last_epoch_needs_a_new_producer_id() -> None:
    """No epoch is left above the fence, so its client must not go on with it."""
    driver = in_state(S.ONGOING)
    last = EPOCH_MAX - 1
    driver.core.replay(
        *transaction_record("x", replace(driver.core.transactions["x"], producer_epoch=last, timeout_ms=10))
    )
    driver.automatic = True
    assert code_of(driver.ask(init_request(), 4)) is CONCURRENT
    assert driver.core.transactions["x"].producer_epoch == EPOCH_MAX
    assert code_of(driver.ask(end_request(100, last, commit=False), 5)) is FENCED
    successor = Producer(driver)
    assert successor.init() is NONE
    assert (successor.producer_id > 100, successor.epoch) == (True, 0)


def test_the_answer_of_a_lost_bump_is_given_again() -> None:
    """InitProducerId with the epoch before the last end returns the present one, until a transaction begins."""
    driver = TransactionDriver()
    producer = Producer(driver, bumps=True)
    producer.init()
    producer.add(0)
    producer.end(commit=False)
    repeated = init_request(producer_id=producer.producer_id, epoch=0)
    answer = driver.ask(repeated, 4)
    assert (answer.error_code, answer.producer_epoch) == (0, 1)
    producer.add(0)
    assert code_of(driver.ask(repeated, 4)) is FENCED
    assert driver.state() == "Ongoing", "a late request does not abort it"


def test_epochs_rise_from_a_new_producer_id_on() -> None:
    """The id that replaced one without epochs is that of all later transactions, each with an epoch of its own."""
    driver = TransactionDriver()
    producer = Producer(driver, bumps=True)
    producer.init()
    known = driver.core.transactions["x"]
    driver.core.replay(*transaction_record("x", replace(known, producer_epoch=EPOCH_MAX - 1)))
    producer.epoch = EPOCH_MAX - 1
    identities: list[tuple[int, int]] = []
    for _ in range(4):
        assert producer.add(1) is NONE
        assert producer.end(commit=True) is NONE
        identities.append((producer.producer_id, producer.epoch))
    assert identities == [(known.producer_id + 1, epoch) for epoch in range(4)]


def test_the_time_limit_of_a_transaction_ends_with_it() -> None:
    """An idle producer finds what it left, also after a move of its coordinator."""
    driver = TransactionDriver()
    producer = Producer(driver, bumps=True)
    producer.init(timeout_ms=10_000)
    producer.add(1)
    assert producer.end(commit=True) is NONE
    identity = producer.producer_id, producer.epoch
    driver.pass_time(60_000)
    assert driver.state() == "CompleteCommit"
    assert producer.add(1) is NONE
    assert (producer.producer_id, producer.epoch) == identity
