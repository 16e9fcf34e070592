"""Goal: failed writes, damaged records and levels of clients change no more of a transaction than they must.

Method: the pure core; the test commits or refuses each write.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.end_txn import EndTxnResponse
from moldau_broker.coordinator.transaction.core.config import TransactionConfig
from moldau_broker.coordinator.transaction.core.state import TransactionStatus
from support.coordinator.transaction_world import (
    Producer,
    TransactionDriver,
    add_request,
    code_of,
    end_request,
    init_request,
)

DAY_MS = 24 * 3_600_000


def test_a_failed_request_does_not_end_its_transaction() -> None:
    """The client repeats it; only an abort that the coordinator began itself is tried again soon."""
    driver = TransactionDriver(automatic=False)
    driver.commits_at_once = True
    producer = Producer(driver)
    producer.init(timeout_ms=60_000)
    assert producer.add(0) is ErrorCode.NONE
    driver.commits_at_once = False
    driver.send(add_request(producer.producer_id, producer.epoch, 1), 4)
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.pass_time(30_000)
    assert not driver.uncommitted
    assert driver.state() == "Ongoing"
    driver.pass_time(30_000)
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.pass_time(driver.config.retry_backoff_ms)
    driver.commit()
    assert driver.state() == "PrepareAbort"


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\x63", b"\0\0"])
def test_a_damaged_record_does_not_stop_the_coordinator(value: bytes) -> None:
    """It is counted, and the transactions of other records are there."""
    driver = TransactionDriver()
    producer = Producer(driver)
    producer.init()
    ((key, _),) = driver.log[-1].records
    for damaged in ((key, value), (None, value), (b"", value), (b"\0", value)):
        driver.core.replay(*damaged)
    assert driver.core.unreadable_records == 4
    assert driver.state() == "Empty"


@pytest.mark.parametrize(("level", "version"), [(0, 0), (1, 0), (2, 2)])
def test_the_level_of_a_client_stays_with_its_transaction(level: int, version: int) -> None:
    """From its offsets to the end by a timeout; at level 2 the coordinator's own abort takes an epoch as well."""
    driver = TransactionDriver(automatic=False, level=level)
    driver.commits_at_once = True
    producer = Producer(driver)
    producer.init(timeout_ms=5_000)
    assert producer.add_offsets() is ErrorCode.NONE
    assert driver.core.transactions["x"].client_version == 0
    driver.pass_time(5_000)
    found = driver.core.transactions["x"]
    assert (found.status, found.client_version) == (TransactionStatus.PREPARE_ABORT, version)
    assert found.producer_epoch == producer.epoch + 1


def test_older_clients_get_no_new_epoch() -> None:
    """Versions of EndTxn before 5 have no field for it."""
    driver = TransactionDriver()
    producer = Producer(driver)
    producer.init()
    producer.add(0)
    answer = driver.ask(end_request(producer.producer_id, producer.epoch, commit=True), 4)
    assert answer == EndTxnResponse()


def test_a_producer_that_timed_out_cannot_come_back() -> None:
    """Its epoch was taken from it, so its late InitProducerId is no repetition of one whose answer was lost."""
    driver = TransactionDriver()
    producer = Producer(driver)
    producer.init(timeout_ms=10_000)
    producer.add(1)
    driver.pass_time(10_000)
    assert driver.state() == "CompleteAbort"
    late = driver.ask(init_request(producer_id=producer.producer_id, epoch=producer.epoch), 4)
    assert code_of(late) is ErrorCode.PRODUCER_FENCED


def test_a_coordinator_that_is_full_refuses_each_partition() -> None:
    """The answer to AddPartitionsToTxn is one part of a combined one."""
    driver = TransactionDriver(TransactionConfig(appends_pending_max=1), automatic=False)
    driver.commits_at_once = True
    producer, other = Producer(driver), Producer(driver, "y")
    producer.init()
    other.init()
    driver.commits_at_once = False
    driver.send(add_request(producer.producer_id, producer.epoch, 0), 4)
    answer = driver.ask(add_request(other.producer_id, other.epoch, 3, 5, name="y"), 4)
    (transaction,) = answer.results_by_transaction
    assert transaction.transactional_id == "y"
    (topic,) = transaction.topic_results
    codes = {each.partition_index: each.partition_error_code for each in topic.results_by_partition}
    assert codes == dict.fromkeys((3, 5), ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert code_of(driver.ask(end_request(other.producer_id, other.epoch, commit=True, name="y"), 4)) is (
        ErrorCode.COORDINATOR_NOT_AVAILABLE
    )


@pytest.mark.parametrize("round_max", [1, 3, 10])
def test_a_round_of_expiry_is_bounded_and_no_id_is_left_out(round_max: int) -> None:
    config = TransactionConfig(expired_per_round_max=round_max, id_expiration_ms=1_000_000)
    driver = TransactionDriver(config)
    for number in range(7):
        Producer(driver, f"x{number}").init()
    driver.pass_time(config.expiration_check_interval_ms - 1)
    assert len(driver.core.transactions) == 7
    driver.pass_time(1)
    left = [len(driver.core.transactions)]
    while driver.core.transactions:
        driver.pass_time(config.expired_rounds_pause_ms)
        left.append(len(driver.core.transactions))
    assert left == [max(7 - round_max * turn, 0) for turn in range(1, len(left) + 1)]


def test_expiry_leaves_room_for_the_writes_of_clients() -> None:
    """The log takes no write for a while; the rounds of expiry follow each other."""
    config = TransactionConfig(appends_pending_max=4, expired_per_round_max=2, id_expiration_ms=1_000_000)
    driver = TransactionDriver(config)
    for number in range(7):
        Producer(driver, f"x{number}").init()
    driver.automatic = False
    driver.pass_time(config.expiration_check_interval_ms + 10 * config.expired_rounds_pause_ms)
    assert len(driver.uncommitted) == 2


@pytest.mark.parametrize("version", [4, 5])
def test_only_an_end_with_an_epoch_of_its_own_needs_an_id(version: int) -> None:
    driver = TransactionDriver()
    producer = Producer(driver, bumps=version > 4)
    producer.init()
    transaction = driver.core.transactions["x"]
    driver.core.lifecycle.transactions["x"] = replace(transaction, producer_epoch=32_766)
    request = end_request(producer.producer_id, 32_766, commit=True)
    assert driver.core.needs_producer_id(request, version) == (version > 4)


def test_nothing_is_kept_of_markers_that_are_written() -> None:
    driver = TransactionDriver(automatic=False)
    driver.commits_at_once = True
    producer = Producer(driver)
    producer.init()
    assert producer.add(0, 1) is ErrorCode.NONE
    driver.send(end_request(producer.producer_id, producer.epoch, commit=True), 4)
    driver.write_markers(1)
    assert list(driver.core.lifecycle._markers_left) == ["x"]
    driver.write_markers()
    assert not driver.core.lifecycle._markers_left
    assert driver.state() == "CompleteCommit"


def test_an_id_is_unused_from_the_end_of_its_last_transaction() -> None:
    """Its markers may take days while a partition has no leader; the producer may begin its next one after that."""
    driver = TransactionDriver(TransactionConfig(id_expiration_ms=7 * DAY_MS))
    producer = Producer(driver)
    producer.init()
    producer.add(1)
    driver.automatic = False
    driver.send(end_request(producer.producer_id, producer.epoch, commit=True), 4)
    driver.commit()
    driver.pass_time(5 * DAY_MS)
    assert driver.state() == "PrepareCommit"
    driver.automatic = True
    driver.settle()
    driver.pass_time(6 * DAY_MS)
    assert driver.state() == "CompleteCommit"
    driver.pass_time(2 * DAY_MS)
    assert driver.describe().error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
