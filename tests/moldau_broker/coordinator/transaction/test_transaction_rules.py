"""Goal: failed writes, damaged records and levels of clients change no more of a transaction than they must.

Method: the pure core; the test commits or refuses each write.
"""

from __future__ import annotations

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.end_txn import EndTxnResponse
from moldau_broker.coordinator.transaction.core.state import TransactionStatus
from support.coordinator.transaction_world import (
    Producer,
    TransactionDriver,
    add_request,
    code_of,
    end_request,
    init_request,
)


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
