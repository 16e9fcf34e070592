"""Goal: a partition leader believes of a transaction what its coordinator says of it now, and nothing else.

A marker that is confirmed wrongly could block a producer, and one that is refused for good leaves its transaction open.

Method: every combination of a question with the state of the transaction, or with the answers of two coordinators,
which are given by hand.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from moldau.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from moldau.protocol.messages.list_transactions import ListTransactionsResponse
from moldau.protocol.messages.list_transactions import TransactionState as Listed
from moldau_broker.coordinator.runtime.effects import Marker, TransactionalProducer
from moldau_broker.coordinator.transaction.core.state import TransactionStatus
from moldau_broker.server.coordination import transaction_verifier
from moldau_broker.server.coordination.transaction_verifier import TransactionVerifier
from moldau_quorum.metadata.internal_topics import TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from moldau.protocol.schema import Request, Response

PRODUCER, EPOCH, LEADER_EPOCH = 7, 3, 5
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
KNOWS, KNOWS_NONE, REFUSES, IS_AWAY = "knows", "knows none", "refuses", "is away"


class Coordinator:
    """Knows one transaction, of one partition, unless ``search`` says otherwise."""

    def __init__(
        self,
        status: TransactionStatus = TransactionStatus.PREPARE_COMMIT,
        producer_id: int = PRODUCER,
        search: str = KNOWS,
        code: ErrorCode = ErrorCode.NONE,
        described: ErrorCode = ErrorCode.NONE,
    ) -> None:
        self.status, self.producer_id, self.search, self.code = status, producer_id, search, code
        self.described = described

    async def handle(self, request: Request, *, version: int) -> Response:
        await trio.lowlevel.checkpoint()
        if isinstance(request, AddPartitionsToTxnRequest):
            part = AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=self.code)
            topic = AddPartitionsToTxnTopicResult(name="t", results_by_partition=[part])
            result = AddPartitionsToTxnResult(transactional_id="x", topic_results=[topic])
            return AddPartitionsToTxnResponse(results_by_transaction=[result])
        if not isinstance(request, DescribeTransactionsRequest):
            if self.search == IS_AWAY:
                raise ConnectionError("no connection")
            if self.search == REFUSES:
                return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            found = [Listed(transactional_id="x", producer_id=PRODUCER)] if self.search == KNOWS else []
            return ListTransactionsResponse(transaction_states=found)
        state = TransactionState(
            error_code=self.described,
            transactional_id="x",
            transaction_state=self.status.label,
            producer_id=self.producer_id,
            producer_epoch=EPOCH,
            topics=[TopicData(topic="t", partitions=[0])],
        )
        return DescribeTransactionsResponse(transaction_states=[state])


def verifier_of(*coordinators: Coordinator, leaderless: int = 0) -> TransactionVerifier:
    """Returns the verifier of broker 1, whose coordinator is the first one."""

    async def request(broker_id: int, request: Request, version: int) -> Response:
        return await coordinators[broker_id - 1].handle(request, version=version)

    leaders = [*range(1, len(coordinators) + 1), *[-1] * leaderless]
    partitions = {
        number: SimpleNamespace(leader=leader, leader_epoch=LEADER_EPOCH) for number, leader in enumerate(leaders)
    }
    topics = {TRANSACTIONS_TOPIC: SimpleNamespace(partitions=partitions)}
    metadata: Any = SimpleNamespace(image=SimpleNamespace(topics_by_name=topics))
    peers: Any = SimpleNamespace(request=request)
    clock: Any = SimpleNamespace(monotonic_ms=lambda: 0.0)
    broker_id: Any = 1
    verifier = TransactionVerifier(broker_id, metadata, peers, clock, retry_ms=1, retry_max_ms=0)
    own: Any = coordinators[0]
    verifier.connect(own)
    return verifier


def marker_of(*, commit: bool = True, epoch: int = EPOCH, coordinator_epoch: int = LEADER_EPOCH) -> Marker:
    return Marker(
        producer=TransactionalProducer(producer_id=PRODUCER, producer_epoch=epoch),
        coordinator_epoch=coordinator_epoch,
        commit=commit,
        transaction_version=0,
    )


def test_only_the_marker_of_the_present_end_is_confirmed() -> None:
    async def main() -> None:
        for status, producer_id, commit, epoch, coordinator_epoch, index in product(
            TransactionStatus,
            (PRODUCER, PRODUCER + 1),
            (False, True),
            (EPOCH - 1, EPOCH, EPOCH + 1, 0x7FFF),
            (0, LEADER_EPOCH, LEADER_EPOCH + 1),
            (0, 1),
        ):
            marker = marker_of(commit=commit, epoch=epoch, coordinator_epoch=coordinator_epoch)
            ending = TransactionStatus.PREPARE_COMMIT if commit else TransactionStatus.PREPARE_ABORT
            expected = ErrorCode.NONE if index == 0 else ErrorCode.INVALID_TXN_STATE
            if coordinator_epoch > LEADER_EPOCH:
                expected = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if (status, producer_id, epoch) != (ending, PRODUCER, EPOCH):
                expected = ErrorCode.INVALID_TXN_STATE
            answer = await verifier_of(Coordinator(status, producer_id)).confirm_marker(marker, [("t", index)])
            assert answer == {("t", index): expected}, (status, producer_id, marker)

    trio.run(main)


@pytest.mark.parametrize("described", [ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.NOT_COORDINATOR, ErrorCode.NONE])
def test_a_marker_of_an_unknown_transaction_is_refused_for_good(described: ErrorCode) -> None:
    """One whose coordinator cannot say may be that of a transaction: it is sent again."""

    async def main() -> None:
        answer = await verifier_of(Coordinator(described=described)).confirm_marker(marker_of(), [("t", 0)])
        expected = {
            ErrorCode.NONE: ErrorCode.NONE,
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: ErrorCode.INVALID_TXN_STATE,
            ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
        }
        assert answer == {("t", 0): expected[described]}

    trio.run(main)


@pytest.mark.parametrize("leaderless", [0, 1])
@pytest.mark.parametrize("second", [KNOWS, KNOWS_NONE, REFUSES, IS_AWAY])
@pytest.mark.parametrize("first", [KNOWS, KNOWS_NONE, REFUSES, IS_AWAY])
def test_a_producer_is_unknown_only_if_all_say_so(first: str, second: str, leaderless: int) -> None:
    """A coordinator that does not answer may be the one that ends the transaction: its marker must come again."""

    async def main() -> ErrorCode:
        verifier = verifier_of(Coordinator(search=first), Coordinator(search=second), leaderless=leaderless)
        (code,) = (await verifier.confirm_marker(marker_of(), [("t", 0)])).values()
        return code

    said = next((each for each in (first, second) if each != KNOWS_NONE), KNOWS_NONE)
    expected = {KNOWS: ErrorCode.NONE, KNOWS_NONE: ErrorCode.INVALID_TXN_STATE}.get(
        said, ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    assert trio.run(main) is (ErrorCode.COORDINATOR_NOT_AVAILABLE if leaderless else expected)


@pytest.mark.parametrize("adds", [False, True])
def test_an_append_of_an_old_epoch_does_not_fence(adds: bool) -> None:
    """The producer may go on after an abort (KIP-588); all other answers pass as they are."""

    async def ask(code: ErrorCode) -> dict[tuple[str, int], ErrorCode]:
        verifier = verifier_of(Coordinator(code=code))
        return await (verifier.add if adds else verifier.verify)("x", PRODUCER, EPOCH, [("t", 0)])

    for code in ErrorCode:
        expected = ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code
        assert trio.run(ask, code) == {("t", 0): expected}


def test_a_producer_is_searched_for_once() -> None:
    """Its transactional id is remembered, and the later markers of its transactions need no search."""

    async def main() -> None:
        coordinator = Coordinator()
        verifier = verifier_of(coordinator)
        assert verifier.coordinator_epoch(PRODUCER) is None
        assert await verifier.confirm_marker(marker_of(), [("t", 0)]) == {("t", 0): ErrorCode.NONE}
        assert verifier.coordinator_epoch(PRODUCER) == LEADER_EPOCH
        coordinator.search = IS_AWAY
        assert await verifier.confirm_marker(marker_of(), [("t", 0)]) == {("t", 0): ErrorCode.NONE}

    trio.run(main)


def test_the_producers_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten first, and searched again when it is needed."""
    monkeypatch.setattr(transaction_verifier, "REMEMBERED_MAX", 3)
    verifier = verifier_of(Coordinator(code=ErrorCode.NONE))

    async def main() -> None:
        for producer_id in range(5):
            await verifier.verify("x", producer_id, EPOCH, [("t", 0)])

    trio.run(main)
    known = [verifier.coordinator_epoch(producer_id) is not None for producer_id in range(5)]
    assert known == [False, False, True, True, True]


def test_a_topic_of_states_that_is_gone_confirms_no_marker() -> None:
    """The markers must come again: the newest metadata of this broker may be late."""

    async def main() -> None:
        verifier = verifier_of(Coordinator())
        await verifier.confirm_marker(marker_of(), [("t", 0)])
        verifier._metadata.image.topics_by_name.clear()
        unavailable = {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert await verifier.confirm_marker(marker_of(), [("t", 0)]) == unavailable
        assert await verifier.verify("x", PRODUCER, EPOCH, [("t", 0)]) == unavailable
        assert verifier.coordinator_epoch(PRODUCER) is None

    trio.run(main)


@pytest.mark.parametrize(("ends_with", "attempts", "code"), [(3, 3, ErrorCode.NONE), (99, 6, CONCURRENT)])
def test_an_add_waits_for_the_markers_before_it(ends_with: int, attempts: int, code: ErrorCode) -> None:
    """It is repeated as long as a further attempt lies within ``add.partitions.to.txn.retry.backoff.max.ms``."""
    asked = 0

    class Ending(Coordinator):
        async def handle(self, request: Request, *, version: int) -> Response:
            nonlocal asked
            asked += 1
            self.code = ErrorCode.NONE if asked >= ends_with else CONCURRENT
            return await super().handle(request, version=version)

    async def main() -> None:
        verifier = verifier_of(Ending())
        clock: Any = SimpleNamespace(monotonic_ms=lambda: round(1000 * trio.current_time(), 3))
        verifier._clock, verifier._retry_ms, verifier._retry_max_ms = clock, 20, 100
        assert await verifier.add("x", PRODUCER, EPOCH, [("t", 0)]) == {("t", 0): code}
        assert trio.current_time() <= 0.1 + 1e-6

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert asked == attempts
