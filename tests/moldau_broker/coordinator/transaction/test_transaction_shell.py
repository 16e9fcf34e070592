"""Goal: the transaction coordinator serves, survives failovers, and repeats markers until all are written.

Method: `TransactionCoordinator` on virtual time over an in-memory log and brokers that refuse markers at will.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

import pytest
import trio
import trio.testing

from moldau.protocol.codec import encode
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from moldau.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from moldau.protocol.messages.init_producer_id import InitProducerIdResponse
from moldau.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.schema import Request, Response
from moldau_broker.coordinator.runtime.partitioning import partition_for
from moldau_broker.coordinator.transaction.coordinator import MARKER_ATTEMPTS_MAX, TransactionCoordinator
from moldau_broker.coordinator.transaction.core.config import TransactionConfig
from support.coordinator.group_world import MemoryLog, Topics, World
from support.coordinator.transaction_world import (
    MemoryMarkers,
    MemoryProducerIds,
    add_request,
    code_of,
    end_request,
    init_request,
    offsets_request,
)

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Environment

PARTITIONS = 4


class Broker:
    """A coordinator with its log; a failover makes a new coordinator over the same log."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.markers = MemoryMarkers()
        self.producer_ids = MemoryProducerIds()
        self.topics = Topics()
        self.coordinator = TransactionCoordinator(
            environment=cast("Environment", World()),
            log=log,
            topics=self.topics,
            markers=self.markers,
            producer_ids=self.producer_ids,
            config=TransactionConfig(),
            partition_count=lambda: PARTITIONS,
            offsets_partition_count=lambda: 50,
            level=lambda: 2,
        )

    async def lead_all(self, leader_epoch: int = 1) -> None:
        for partition in range(PARTITIONS):
            self.log.lead(partition, leader_epoch)
            self.coordinator.become_leader(partition, leader_epoch)
        await trio.sleep(0.01)

    async def ask(self, request: Request, version: int) -> Response:
        response = await self.coordinator.handle(request, version=version)
        encode(response, version)
        return response

    async def init(self, name: str = "x", timeout_ms: int = 60_000) -> tuple[int, int]:
        answer = await self.ask(init_request(name, timeout_ms=timeout_ms), 4)
        assert isinstance(answer, InitProducerIdResponse)
        assert answer.error_code == ErrorCode.NONE
        return answer.producer_id, answer.producer_epoch

    async def state(self, name: str = "x") -> str:
        answer = await self.ask(DescribeTransactionsRequest(transactional_ids=[name]), 0)
        assert isinstance(answer, DescribeTransactionsResponse)
        return answer.transaction_states[0].transaction_state


def run(scenario: Callable[[Broker], Awaitable[None]], log: MemoryLog | None = None) -> None:
    async def main() -> None:
        broker = Broker(log or MemoryLog())
        async with trio.open_nursery() as nursery:
            await nursery.start(broker.coordinator.run)
            await scenario(broker)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_transaction_with_markers() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.lead_all()
        pid, epoch = await broker.init()
        assert code_of(await broker.ask(add_request(pid, epoch, 1, 2), 4)) is ErrorCode.NONE
        assert code_of(await broker.ask(offsets_request(pid, epoch), 3)) is ErrorCode.NONE
        assert code_of(await broker.ask(end_request(pid, epoch, commit=True), 3)) is ErrorCode.NONE
        await trio.sleep(0.1)
        assert await broker.state() == "CompleteCommit"
        offsets = ("__consumer_offsets", partition_for("g", 50))
        assert [partition for _, partition in broker.markers.written] == [("t", 1), ("t", 2), offsets]
        assert all(marker.coordinator_epoch == 1 for marker, _ in broker.markers.written)

    run(scenario)


def test_old_shape_of_adding_partitions() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.lead_all()
        pid, epoch = await broker.init()
        written = [AddPartitionsToTxnTopic(name="t", partitions=[0])]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=pid,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=written,
        )
        for version in range(4):
            answer = await broker.ask(request, version)
            assert isinstance(answer, AddPartitionsToTxnResponse)
            assert answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
            # A client adds offsets of groups by AddOffsetsToTxn.
            request.v3_and_below_topics = [AddPartitionsToTxnTopic(name="__consumer_offsets", partitions=[0]), *written]
            answer = await broker.ask(request, version)
            codes = [each.results_by_partition[0].partition_error_code for each in answer.results_by_topic_v3_and_below]
            assert codes == [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.OPERATION_NOT_ATTEMPTED]
            request.v3_and_below_topics = written
        many = AddPartitionsToTxnRequest(
            transactions=[*add_request(pid, epoch, 3).transactions, *add_request(1, 0, 3, name="y").transactions]
        )
        answer = await broker.ask(many, 5)
        assert isinstance(answer, AddPartitionsToTxnResponse)
        codes = [
            (result.transactional_id, result.topic_results[0].results_by_partition[0].partition_error_code)
            for result in answer.results_by_transaction
        ]
        assert codes == [("x", ErrorCode.NONE), ("y", ErrorCode.INVALID_PRODUCER_ID_MAPPING)]
        bad = await broker.ask(add_request(pid, epoch, 1, 99), 4)
        assert isinstance(bad, AddPartitionsToTxnResponse)
        results = bad.results_by_transaction[0].topic_results[0].results_by_partition
        assert [result.partition_error_code for result in results] == [
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]

    run(scenario)


def test_markers_are_repeated_until_written() -> None:
    """Markers are retried while leaders move and brokers fail; a deleted topic or a higher epoch needs no marker."""

    async def scenario(broker: Broker) -> None:
        await broker.lead_all()
        pid, epoch = await broker.init()
        failing = {
            ("t", 1): ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ("t", 2): ErrorCode.NETWORK_EXCEPTION,
            ("t", 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("t", 4): ErrorCode.INVALID_PRODUCER_EPOCH,
        }
        broker.markers.failing = dict(failing)
        await broker.ask(add_request(pid, epoch, 0, 1, 2, 3, 4), 4)
        await broker.ask(add_request(pid, epoch, 0, topic="u"), 4)
        del broker.topics.ids["u"]
        assert code_of(await broker.ask(end_request(pid, epoch, commit=False), 4)) is ErrorCode.NONE
        await trio.sleep(30)
        assert await broker.state() == "PrepareAbort"
        assert 25 < broker.markers.attempts < 40
        broker.markers.failing.clear()
        await trio.sleep(2)
        assert await broker.state() == "CompleteAbort"
        assert sorted(partition for _, partition in broker.markers.written) == [("t", 0), ("t", 1), ("t", 2), ("t", 3)]

    run(scenario)


def test_the_next_coordinator_finishes() -> None:
    log = MemoryLog()
    producer: list[int] = []

    async def before(broker: Broker) -> None:
        await broker.lead_all()
        producer.extend(await broker.init())
        broker.markers.failing = {("t", 1): ErrorCode.NETWORK_EXCEPTION}
        await broker.ask(add_request(*producer, 1), 4)
        assert code_of(await broker.ask(end_request(*producer, commit=True), 4)) is ErrorCode.NONE
        await trio.sleep(1)

    async def after(broker: Broker) -> None:
        await broker.lead_all(2)
        await trio.sleep(0.1)
        assert await broker.state() == "CompleteCommit"
        ((marker, partition),) = broker.markers.written
        assert (partition, marker.coordinator_epoch, marker.commit) == (("t", 1), 2, True)

    run(before, log)
    run(after, log)


def test_waits_between_attempts_hold_no_other_markers_up() -> None:
    """As many transactions as may be attempted at a time include a partition that has no leader."""

    async def scenario(broker: Broker) -> None:
        await broker.lead_all()
        broker.markers.failing = {("t", 1): ErrorCode.LEADER_NOT_AVAILABLE}
        names = (f"x-{number}" for number in range(8 * MARKER_ATTEMPTS_MAX))
        here = [name for name in names if partition_for(name, PARTITIONS) == 0][: MARKER_ATTEMPTS_MAX + 1]
        *held, free = here
        assert len(held) == MARKER_ATTEMPTS_MAX
        for name in here:
            pid, epoch = await broker.init(name)
            await broker.ask(add_request(pid, epoch, 2 if name == free else 1, name=name), 4)
            assert code_of(await broker.ask(end_request(pid, epoch, commit=True, name=name), 3)) is ErrorCode.NONE
        await trio.sleep(5)
        assert await broker.state(held[0]) == "PrepareCommit"
        assert await broker.state(free) == "CompleteCommit"

    run(scenario)


def test_a_fenced_coordinator_stops() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.lead_all()
        pid, epoch = await broker.init()
        broker.markers.failing = {("t", 1): ErrorCode.TRANSACTION_COORDINATOR_FENCED}
        await broker.ask(add_request(pid, epoch, 1), 4)
        await broker.ask(end_request(pid, epoch, commit=True), 4)
        await trio.sleep(1)
        assert broker.markers.attempts == 1
        assert code_of(await broker.ask(init_request(), 4)) is ErrorCode.NOT_COORDINATOR

    run(scenario)


def test_timeouts_abort_in_real_time() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.lead_all()
        pid, epoch = await broker.init(timeout_ms=10_000)
        await broker.ask(add_request(pid, epoch, 1), 4)
        await trio.sleep(9.9)
        assert await broker.state() == "Ongoing"
        await trio.sleep(0.2)
        assert await broker.state() == "CompleteAbort"
        assert code_of(await broker.ask(end_request(pid, epoch, commit=True), 4)) is ErrorCode.PRODUCER_FENCED

    run(scenario)


def test_requests_without_a_coordinator() -> None:
    async def scenario(broker: Broker) -> None:
        for request, version in (
            (init_request(), 4),
            (add_request(1, 0, 1), 4),
            (offsets_request(1, 0), 3),
            (end_request(1, 0, commit=True), 3),
        ):
            assert code_of(await broker.ask(request, version)) is ErrorCode.NOT_COORDINATOR
        broker.coordinator.become_leader(partition_for("x", PARTITIONS), 1)
        completion = broker.coordinator.submit(init_request(), version=4)
        assert code_of(completion.response()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        listing = broker.coordinator.submit(ListTransactionsRequest(), version=1).response()
        assert isinstance(listing, ListTransactionsResponse)
        assert listing.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(TypeError):
            broker.coordinator.submit(MetadataRequest(), version=9)

    run(scenario)


def test_slow_producer_ids_end_by_a_deadline() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.lead_all()
        broker.producer_ids.delay_seconds = 60
        started = trio.current_time()
        assert code_of(await broker.ask(init_request(), 4)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert trio.current_time() - started == pytest.approx(10, abs=0.1)

    run(scenario)


@pytest.mark.parametrize("leads_again", [False, True])
def test_a_producer_id_may_arrive_after_a_move(leads_again: bool) -> None:
    """The partition is given up while an id is allocated; the coordinator that leads it after that serves."""

    async def scenario(broker: Broker) -> None:
        await broker.lead_all()
        partition = partition_for("x", PARTITIONS)
        broker.producer_ids.delay_seconds = 5
        waiting = broker.coordinator.submit(init_request(), version=4)
        await trio.sleep(1)
        broker.coordinator.resign(partition, 1)
        if leads_again:
            broker.log.lead(partition, 3)
            broker.coordinator.become_leader(partition, 3)
        code = code_of(await waiting.wait())
        assert code is (ErrorCode.NONE if leads_again else ErrorCode.NOT_COORDINATOR)
        if leads_again:
            assert await broker.state() == "Empty"

    run(scenario)


def test_listing_over_all_partitions() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.lead_all()
        names = [f"id-{index}" for index in range(12)]
        for name in names:
            await broker.init(name)
        listing = await broker.ask(ListTransactionsRequest(state_filters=["Empty", "Odd"]), 1)
        assert isinstance(listing, ListTransactionsResponse)
        assert sorted(state.transactional_id for state in listing.transaction_states) == sorted(names)
        assert listing.unknown_state_filters == ["Odd"]
        chosen = await broker.ask(ListTransactionsRequest(transactional_id_pattern="id-1.?"), 2)
        assert isinstance(chosen, ListTransactionsResponse)
        assert sorted(one.transactional_id for one in chosen.transaction_states) == ["id-1", "id-10", "id-11"]
        everything = await broker.ask(ListTransactionsRequest(transactional_id_pattern=""), 2)
        assert isinstance(everything, ListTransactionsResponse)
        assert len(everything.transaction_states) == len(names)
        refused = await broker.ask(ListTransactionsRequest(transactional_id_pattern="("), 2)
        assert isinstance(refused, ListTransactionsResponse)
        assert (refused.error_code, refused.transaction_states) == (ErrorCode.INVALID_REGULAR_EXPRESSION, ())

    run(scenario)


def test_a_fenced_partition_hides_no_other_in_a_list() -> None:
    """Another broker leads it, and lists its transactions."""

    async def scenario(broker: Broker) -> None:
        await broker.lead_all()
        names = [f"id-{index}" for index in range(12)]
        for name in names:
            await broker.init(name)
        pid, epoch = await broker.init("x")
        broker.markers.failing = {("t", 1): ErrorCode.TRANSACTION_COORDINATOR_FENCED}
        await broker.ask(add_request(pid, epoch, 1), 4)
        await broker.ask(end_request(pid, epoch, commit=True), 4)
        await trio.sleep(1)
        listing = await broker.ask(ListTransactionsRequest(), 1)
        assert isinstance(listing, ListTransactionsResponse)
        assert listing.error_code == ErrorCode.NONE
        fenced = partition_for("x", PARTITIONS)
        left = {name for name in names if partition_for(name, PARTITIONS) != fenced}
        assert {state.transactional_id for state in listing.transaction_states} == left
        assert 0 < len(left) < len(names)

    run(scenario)


def test_a_list_beside_a_damaged_partition_is_refused() -> None:
    """A transaction that is missing in the list would be taken for a hanging one, and aborted."""
    log = MemoryLog()

    async def before(broker: Broker) -> None:
        await broker.lead_all()
        await broker.init("x")

    async def after(broker: Broker) -> None:
        state = log.partitions[partition_for("x", PARTITIONS)]
        state.batches[0] = state.batches[0][:-1] + bytes((state.batches[0][-1] ^ 1,))
        await broker.lead_all(2)
        listing = await broker.ask(ListTransactionsRequest(), 1)
        assert isinstance(listing, ListTransactionsResponse)
        assert (listing.error_code, listing.transaction_states) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, ())

    run(before, log)
    run(after, log)


def test_statistics_count_each_transaction_and_partition() -> None:
    """Partitions that load have no transactions yet, and those that another broker leads are not counted."""

    async def scenario(broker: Broker) -> None:
        await broker.lead_all()
        counted = broker.coordinator.statistics()
        assert (counted.states, counted.partitions, counted.longest_open_ms) == ({}, {"active": PARTITIONS}, 0)
        for name in ("id-0", "id-1", "id-2"):
            await broker.init(name)
        for seconds in (5, 2):
            pid, epoch = await broker.init(f"open-{seconds}")
            await broker.ask(add_request(pid, epoch, 1, name=f"open-{seconds}"), 4)
            await trio.sleep(seconds)
        counted = broker.coordinator.statistics()
        assert counted.states == {"Empty": 3, "Ongoing": 2}
        assert counted.partitions == {"active": PARTITIONS}
        assert counted.longest_open_ms == pytest.approx(7_000, abs=100)
        for partition in range(PARTITIONS):
            broker.coordinator.become_leader(partition, 2)
            loading = broker.coordinator.statistics().partitions
            active = {"active": PARTITIONS - partition - 1} if partition + 1 < PARTITIONS else {}
            assert loading == {**active, "loading": partition + 1}
        counted = broker.coordinator.statistics()
        assert (counted.states, counted.longest_open_ms) == ({}, 0)
        for partition in range(PARTITIONS):
            broker.coordinator.resign(partition, 2)
        assert broker.coordinator.statistics().partitions == {}

    run(scenario)
