"""A driver for the pure transaction core, and brokers in memory that accept its markers."""

from collections.abc import Mapping

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from moldau.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from moldau.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from moldau.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.protocol.schema import Request, Response
from moldau_broker.coordinator.runtime.effects import Answer, Append, Effect, Marker, Moment, SendMarkers
from moldau_broker.coordinator.transaction.core.config import TransactionConfig
from moldau_broker.coordinator.transaction.core.transaction_core import TransactionCore
from support.coordinator.transaction_rules import Identities, check_waits

WALL_START_MS = 1_700_000_000_000
TopicPartition = tuple[str, int]


class TransactionDriver:
    """Drives one `TransactionCore`: commits its writes and writes its markers on demand."""

    def __init__(self, config: TransactionConfig | None = None, *, automatic: bool = True, level: int = 2) -> None:
        self.config = config or TransactionConfig()
        self.automatic = automatic
        self.commits_at_once = False
        self.now_ms = 1_000
        self.wall_start_ms = WALL_START_MS
        """The wall clock of the coordinator's machine at time 0."""
        self.epoch = 0
        self.level = level
        self.answers: dict[int, Response] = {}
        self.log: list[Append] = []
        self.uncommitted: list[Append] = []
        self.markers: list[SendMarkers] = []
        self.written: list[tuple[Marker, TopicPartition]] = []
        self.request_count = 0
        self.next_producer_id = 100
        self.identities = Identities()
        self.core = self._new_core()
        self.perform(self.core.start(self.moment()))

    def _new_core(self) -> TransactionCore:
        core = TransactionCore(
            self.config, self.epoch, lambda group: ("__consumer_offsets", len(group)), lambda: self.level
        )
        for append in self.log:
            for key, value in append.records:
                core.replay(key, value)
        return core

    def moment(self) -> Moment:
        return Moment(self.now_ms, self.wall_start_ms + self.now_ms)

    def perform(self, effects: list[Effect]) -> None:
        check_waits(self.core.lifecycle)
        for effect in effects:
            if isinstance(effect, Append):
                self.uncommitted.append(effect)
            elif isinstance(effect, SendMarkers):
                self.markers.append(effect)
            else:
                assert isinstance(effect, Answer), "a transaction coordinator deletes no records"
                assert effect.request_id not in self.answers, "a request was answered twice"
                assert effect.request_id < self.request_count
                self.answers[effect.request_id] = effect.response
        if self.automatic:
            self.settle()
        elif self.commits_at_once:
            self.commit()

    def settle(self) -> None:
        """Commits all pending writes and writes all markers."""
        while self.uncommitted or self.markers:
            self.commit()
            if self.markers:
                self.write_markers()

    def commit(self) -> None:
        while self.uncommitted:
            append = self.uncommitted.pop(0)
            self.log.append(append)
            self.identities.note(append)
            self.perform(self.core.committed(append.append_id, self.moment()))

    def write_markers(self, count: int = 1_000) -> None:
        """Writes the markers of the oldest `SendMarkers`, in at most ``count`` partitions."""
        sent = self.markers.pop(0)
        done, left = sent.partitions[:count], sent.partitions[count:]
        self.written += [(sent.marker, partition) for partition in done]
        if left:
            rest = SendMarkers(transactional_id=sent.transactional_id, marker=sent.marker, partitions=left)
            self.markers.insert(0, rest)
        self.perform(self.core.markers_written(sent, done, self.moment()))

    def refuse(self, code: ErrorCode) -> None:
        append = self.uncommitted.pop(0)
        self.perform(self.core.failed(append.append_id, code, self.moment()))

    def pass_time(self, milliseconds: int) -> None:
        end = self.now_ms + milliseconds
        while (due := self.core.next_deadline_ms()) is not None and due <= end:
            self.now_ms = max(due, self.now_ms)
            self.perform(self.core.on_timer(self.moment()))
        self.now_ms = end

    def fail_over(self) -> None:
        """Replaces the coordinator by one that loads the committed log; pending writes are lost."""
        self.perform(self.core.resign(ErrorCode.NOT_COORDINATOR, self.moment()))
        self.uncommitted.clear()
        self.markers.clear()
        self.epoch += 1
        self.core = self._new_core()
        self.perform(self.core.start(self.moment()))

    def send(self, request: Request, version: int) -> int:
        request_id = self.request_count
        self.request_count += 1
        fresh = None
        if self.core.needs_producer_id(request, version):
            fresh = self.next_producer_id
            self.next_producer_id += 1
        self.perform(self.core.handle(request_id, request, version, fresh, self.moment()))
        return request_id

    def ask(self, request: Request, version: int) -> Response:
        return self.answers[self.send(request, version)]

    def describe(self, name: str = "x") -> TransactionState:
        answer = self.ask(DescribeTransactionsRequest(transactional_ids=[name]), 0)
        assert isinstance(answer, DescribeTransactionsResponse)
        return answer.transaction_states[0]

    def state(self, name: str = "x") -> str:
        return self.describe(name).transaction_state


def init_request(
    name: str | None = "x", *, timeout_ms: int = 60_000, producer_id: int = -1, epoch: int = -1
) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=timeout_ms, producer_id=producer_id, producer_epoch=epoch
    )


def add_request(
    producer_id: int, epoch: int, *partitions: int, name: str = "x", topic: str = "t", verify: bool = False
) -> AddPartitionsToTxnRequest:
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=name,
        producer_id=producer_id,
        producer_epoch=epoch,
        verify_only=verify,
        topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
    )
    return AddPartitionsToTxnRequest(transactions=[transaction])


def end_request(producer_id: int, epoch: int, *, commit: bool, name: str = "x") -> EndTxnRequest:
    return EndTxnRequest(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=commit)


def offsets_request(producer_id: int, epoch: int, group: str = "g", name: str = "x") -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, group_id=group)


def code_of(response: Response) -> ErrorCode:
    """Returns the first error code of an answer."""
    if isinstance(response, AddPartitionsToTxnResponse):
        topics = response.results_by_topic_v3_and_below or response.results_by_transaction[0].topic_results
        return ErrorCode(topics[0].results_by_partition[0].partition_error_code)
    assert isinstance(response, InitProducerIdResponse | EndTxnResponse | AddOffsetsToTxnResponse)
    return ErrorCode(response.error_code)


class Producer:
    """A transactional producer that acts like a real client; with ``bumps`` one of KIP-890."""

    def __init__(self, driver: TransactionDriver, name: str = "x", *, bumps: bool = False) -> None:
        self.driver = driver
        self.name = name
        self.bumps = bumps
        self.producer_id = -1
        self.epoch = -1

    def init(self, timeout_ms: int = 60_000) -> ErrorCode:
        answer = self.driver.ask(init_request(self.name, timeout_ms=timeout_ms), 4)
        assert isinstance(answer, InitProducerIdResponse)
        if answer.error_code == ErrorCode.NONE:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code)

    def add(self, *partitions: int, version: int = 4, verify: bool = False) -> ErrorCode:
        request = add_request(self.producer_id, self.epoch, *partitions, name=self.name, verify=verify)
        return code_of(self.driver.ask(request, version))

    def add_offsets(self, group: str = "g") -> ErrorCode:
        return code_of(self.driver.ask(offsets_request(self.producer_id, self.epoch, group, self.name), 4))

    def end(self, *, commit: bool) -> ErrorCode:
        request = end_request(self.producer_id, self.epoch, commit=commit, name=self.name)
        answer = self.driver.ask(request, 5 if self.bumps else 4)
        assert isinstance(answer, EndTxnResponse)
        if self.bumps and answer.error_code == ErrorCode.NONE:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code)


class MemoryMarkers:
    """`MarkerWriter` over brokers whose answers the test sets."""

    def __init__(self) -> None:
        self.written: list[tuple[Marker, TopicPartition]] = []
        self.failing: dict[TopicPartition, ErrorCode] = {}
        self.attempts = 0

    async def write_markers(
        self, marker: Marker, partitions: tuple[TopicPartition, ...]
    ) -> Mapping[TopicPartition, ErrorCode]:
        await trio.sleep(0.001)
        self.attempts += 1
        codes: dict[TopicPartition, ErrorCode] = {}
        for partition in partitions:
            codes[partition] = self.failing.get(partition, ErrorCode.NONE)
            if codes[partition] is ErrorCode.NONE:
                self.written.append((marker, partition))
        return codes


class MemoryProducerIds:
    """`ProducerIdSource` that returns consecutive ids."""

    def __init__(self) -> None:
        self.next = 1_000
        self.delay_seconds = 0.0

    async def take(self) -> int:
        await trio.sleep(self.delay_seconds)
        self.next += 1
        return self.next - 1
