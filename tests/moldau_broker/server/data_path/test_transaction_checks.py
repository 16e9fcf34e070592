"""Goal: a transactional batch is appended only to a transaction that is open, or that its coordinator confirmed.

Method: each state of partition, request version and coordinator's answer, crossed, against the rules of KIP-890.
"""

import struct
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau_broker.server.data_path.transaction_checks import ATTRIBUTES_LOW_BYTE, TRANSACTIONAL_FLAG, TransactionChecks

KEY = (b"t", 0)
EPOCH_PER_REQUEST, ADDED_BY_BROKER, ABORTABLE = 10, 12, 11
SEEN = (3, 7)  # leader epoch and markers


def batch(first_sequence: int = 0, length: int = 61) -> memoryview:
    data = bytearray(61)
    struct.pack_into(">qhi", data, 43, 900, 2, first_sequence)
    return memoryview(data)[:length]


def partition(*, is_open: bool = False, is_leader: bool = True, written_epoch: int | None = None) -> Any:
    """``written_epoch`` is the epoch of the batches that the producer has in the log."""
    entry = None if written_epoch is None else SimpleNamespace(epoch=written_epoch, batches=["one"])
    producers = SimpleNamespace(has_ongoing_transaction=lambda _producer_id, _epoch: is_open, get=lambda _id: entry)
    return SimpleNamespace(is_leader=is_leader, ends_seen=SEEN, log=SimpleNamespace(producer_state=producers))


def checks(*, verifies: bool = True) -> TransactionChecks:
    unused: Any = SimpleNamespace()
    return TransactionChecks(unused, unused, lambda: verifies)


def error(where: Any, answer: Any, version: int, *, verifies: bool = True, first_sequence: int = 0) -> ErrorCode:
    verified = answer if answer is None else {KEY: answer} if answer else {}
    return checks(verifies=verifies).error(where, batch(first_sequence), verified, KEY, version)


@pytest.mark.parametrize("version", [EPOCH_PER_REQUEST, ABORTABLE, ADDED_BY_BROKER])
def test_an_open_transaction_needs_no_answer(version):
    assert error(partition(is_open=True), None, version) is ErrorCode.NONE
    assert error(partition(is_leader=False), None, version) is ErrorCode.NONE  # staging refuses it


def test_without_verification_old_clients_are_trusted():
    assert error(partition(), None, ABORTABLE, verifies=False) is ErrorCode.NONE
    assert error(partition(), None, ADDED_BY_BROKER, verifies=False) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize(
    ("answer", "version", "wanted"),
    [
        (None, ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        ((), ABORTABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
        ((ErrorCode.NONE, SEEN), ABORTABLE, ErrorCode.NONE),
        ((ErrorCode.NONE, (3, 8)), ABORTABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
        ((ErrorCode.NONE, (4, 7)), ABORTABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
        ((ErrorCode.NONE, (3, 8)), ADDED_BY_BROKER, ErrorCode.NONE),
        ((ErrorCode.CONCURRENT_TRANSACTIONS, SEEN), ABORTABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
        ((ErrorCode.CONCURRENT_TRANSACTIONS, SEEN), ADDED_BY_BROKER, ErrorCode.CONCURRENT_TRANSACTIONS),
        ((ErrorCode.TRANSACTION_ABORTABLE, SEEN), EPOCH_PER_REQUEST, ErrorCode.INVALID_TXN_STATE),
        ((ErrorCode.TRANSACTION_ABORTABLE, SEEN), ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        ((ErrorCode.COORDINATOR_NOT_AVAILABLE, SEEN), ADDED_BY_BROKER, ErrorCode.NOT_ENOUGH_REPLICAS),
        ((ErrorCode.INVALID_PRODUCER_EPOCH, SEEN), ADDED_BY_BROKER, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_the_answer_decides(answer, version, wanted):
    assert error(partition(), answer, version) is wanted


def test_a_transaction_begins_with_its_first_sequence():
    """A later sequence shows that an earlier batch of the transaction was refused, or is lost."""
    granted = (ErrorCode.NONE, SEEN)
    wanted = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert error(partition(), granted, ADDED_BY_BROKER, first_sequence=4) is wanted
    assert error(partition(), granted, ABORTABLE, first_sequence=4) is ErrorCode.NONE


def test_a_transaction_goes_on_with_the_sequence_of_its_epoch():
    """The end of the transaction before did not raise the epoch, as its client used the older protocol."""
    granted = (ErrorCode.NONE, SEEN)
    assert error(partition(written_epoch=2), granted, ADDED_BY_BROKER, first_sequence=4) is ErrorCode.NONE
    wanted = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert error(partition(written_epoch=1), granted, ADDED_BY_BROKER, first_sequence=4) is wanted


def test_a_batch_without_a_header_is_corrupt():
    short = batch(length=56)
    assert checks().error(partition(), short, {}, KEY, ABORTABLE) is ErrorCode.CORRUPT_MESSAGE


def test_a_transaction_that_ends_during_the_question_is_noticed():
    """Its markers count from before the question, or a late batch would open a transaction that nothing ends."""
    where = partition()
    where.is_internal = False
    where.key = SimpleNamespace(topic="t", partition=0)
    data = bytearray(batch())
    data[22] = 0x10

    async def verify(transactional_id: str, producer_id: int, epoch: int, partitions: list[Any]) -> Any:
        await trio.lowlevel.checkpoint()
        where.ends_seen = (3, 8)
        return dict.fromkeys(partitions, ErrorCode.NONE)

    replicas: Any = SimpleNamespace(by_raw_id={KEY: where}, by_raw_name={KEY: where})
    verifier: Any = SimpleNamespace(verify=verify, add=verify)
    checked = TransactionChecks(replicas, verifier, lambda: True)
    request: Any = SimpleNamespace(transactional_id="x", topics=[(b"t", [(0, memoryview(data))])])
    verified = trio.run(checked.verify, request, ABORTABLE)
    assert checked.error(where, memoryview(data), verified, KEY, ABORTABLE) is ErrorCode.NOT_ENOUGH_REPLICAS


@pytest.mark.parametrize("version", [ABORTABLE, ADDED_BY_BROKER])
def test_one_producer_does_not_vouch_for_another(version):
    """The coordinator is asked about one producer: nothing would end the transaction that another one opens."""
    data = [bytearray(batch()), bytearray(batch())]
    for each in data:
        each[22] = 0x10
    struct.pack_into(">q", data[1], 43, 901)
    places = [partition(), partition()]
    for index, where in enumerate(places):
        where.is_internal = False
        where.key = SimpleNamespace(topic="t", partition=index)

    async def confirm(transactional_id: str, producer_id: int, epoch: int, partitions: list[Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return dict.fromkeys(partitions, ErrorCode.NONE)

    by_key = {(b"t", index): where for index, where in enumerate(places)}
    replicas: Any = SimpleNamespace(by_raw_id=by_key, by_raw_name=by_key)
    verifier: Any = SimpleNamespace(verify=confirm, add=confirm)
    checked = TransactionChecks(replicas, verifier, lambda: True)
    topics = [(b"t", [(index, memoryview(each)) for index, each in enumerate(data)])]
    request: Any = SimpleNamespace(transactional_id="x", topics=topics)
    verified = trio.run(checked.verify, request, version)
    for index, where in enumerate(places):
        code = checked.error(where, memoryview(data[index]), verified, (b"t", index), version)
        assert code is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_no_question_is_asked_about_internal_topics():
    """Their batches are refused in any case; the coordinator would add the partition, and write a marker into it."""
    data = bytearray(batch())
    data[ATTRIBUTES_LOW_BYTE] = TRANSACTIONAL_FLAG
    for is_internal, is_leader, is_open in product((False, True), repeat=3):
        where = partition(is_open=is_open, is_leader=is_leader)
        where.is_internal = is_internal
        replicas: Any = SimpleNamespace(by_raw_name={KEY: where}, by_raw_id={})
        found = TransactionChecks(replicas, checks()._verifier, lambda: True).unverified(
            SimpleNamespace(topics=[(KEY[0], [(KEY[1], memoryview(data))])]), ADDED_BY_BROKER
        )
        is_asked = is_leader and not is_internal and not is_open
        assert found == [(*KEY, where, 900, 2)] * is_asked
