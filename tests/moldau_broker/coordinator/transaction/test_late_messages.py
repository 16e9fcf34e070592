"""Goal: at level 2 of ``transaction.version`` no late copy of a message changes a transaction (KIP-890).

Method: a Hypothesis state machine drives a producer, the coordinator's core and the producer state of three partitions,
which follow the rules of a partition leader. The network keeps a copy of every message and delivers copies in any
order. A naive model knows which records each transaction wrote and how its client ended it. The same schedule at level
1 is a negative control: it tears a transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.records import encode_batch, encode_end_txn_marker, iterate_batches
from moldau_broker.log.errors import LogError
from moldau_broker.log.producers.producer_state import EndMarker, ProducerStateManager
from moldau_broker.log.values import AppendOrigin
from moldau_broker.server.coordination.transactions import is_late
from support.coordinator.transaction_world import Producer, TransactionDriver, add_request, code_of, end_request
from support.proof import examples

if TYPE_CHECKING:
    from moldau_broker.coordinator.runtime.effects import Marker, SendMarkers

PARTITIONS = 3


@dataclass(frozen=True)
class Batch:
    """One produced record, on its way or in a log."""

    partition: int
    producer_id: int
    epoch: int
    sequence: int
    transaction: int

    def header(self):
        data = encode_batch(
            [(0, None, b"v", ())],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            is_transactional=True,
        )
        return next(header for _, header in iterate_batches(data))


@dataclass
class Leader:
    """A partition's leader: its producers, and its log of batches and markers."""

    producers: ProducerStateManager = field(default_factory=lambda: ProducerStateManager(10**12, 0))
    log: list[Batch | bool] = field(default_factory=list)

    def append(self, batch: Batch) -> bool:
        """Appends a batch; returns whether it is in the log now (a duplicate was before)."""
        header = batch.header()._replace(base_offset=len(self.log))
        try:
            if self.producers.check(header, AppendOrigin.CLIENT) is not None:
                return True
        except LogError:
            return False
        self.producers.apply(header)
        self.log.append(batch)
        return True

    def end(self, marker: Marker) -> None:
        """Appends a marker unless it is late."""
        producer = marker.producer
        data = encode_end_txn_marker(
            commit=marker.commit,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp=0,
        )
        header = next(header for _, header in iterate_batches(data))._replace(base_offset=len(self.log))
        end = EndMarker(marker.commit, marker.coordinator_epoch)
        try:
            self.producers.check_marker(header, end)
        except LogError:
            return
        if not is_late(marker, self.producers):
            completed = self.producers.apply_marker(header, end)
            if completed is not None:
                self.producers.complete(completed)
            self.log.append(marker.commit)


class World:
    """A client, a coordinator and three partitions at one level."""

    def __init__(self, level: int) -> None:
        self.level = level
        self.driver = TransactionDriver(automatic=False, level=level)
        self.driver.commits_at_once = True
        self.producer = Producer(self.driver, bumps=level == 2)
        self.producer.init(timeout_ms=900_000)
        self.leaders = [Leader() for _ in range(PARTITIONS)]
        self.sequences: dict[int, int] = {}
        self.transaction = 0
        self.records: dict[int, list[Batch]] = {}
        self.outcomes: dict[int, bool] = {}
        self.held: list[Batch | EndTxnRequest | tuple[Marker, int]] = []

    def send(self, partition: int) -> bool:
        """Sends a record as the client's first try; returns whether it was written."""
        producer = self.producer
        sequence = self.sequences.get(partition, 0)
        batch = Batch(partition, producer.producer_id, producer.epoch, sequence, self.transaction)
        if self.level == 1 and producer.add(partition, version=3) is not ErrorCode.NONE:
            return False
        self.held.append(batch)
        if not self.produce(batch):
            return False
        self.sequences[partition] = sequence + 1
        self.records.setdefault(self.transaction, []).append(batch)
        return True

    def produce(self, batch: Batch) -> bool:
        """Appends a batch as a leader does: the first of a transaction only with the coordinator's consent."""
        leader = self.leaders[batch.partition]
        if not leader.producers.has_ongoing_transaction(batch.producer_id, batch.epoch):
            request = add_request(batch.producer_id, batch.epoch, batch.partition, verify=self.level == 1)
            if code_of(self.driver.ask(request, 5)) is not ErrorCode.NONE:
                return False
            if self.level == 2 and batch.sequence:
                return False
        return leader.append(batch)

    def end(self, commit: bool) -> None:
        """Ends the transaction, and writes no marker yet."""
        producer = self.producer
        request = end_request(producer.producer_id, producer.epoch, commit=commit)
        self.held.append(request)
        if self.records.get(self.transaction) and producer.end(commit=commit) is ErrorCode.NONE:
            self.outcomes[self.transaction] = commit
            self.transaction += 1
            if self.level == 2:
                self.sequences.clear()

    def write_markers(self, count: int = PARTITIONS) -> None:
        """Writes markers of the decided transaction, in at most ``count`` partitions."""
        if self.driver.markers:
            sent: SendMarkers = self.driver.markers[0]
            for _, partition in sent.partitions[:count]:
                self.held.append((sent.marker, partition))
                self.leaders[partition].end(sent.marker)
            self.driver.write_markers(count)

    def deliver(self, number: int) -> None:
        """Delivers a copy of an earlier message."""
        message = self.held[number % len(self.held)]
        if isinstance(message, Batch):
            self.produce(message)
        elif isinstance(message, EndTxnRequest):
            self.driver.send(message, 5 if self.level == 2 else 4)
        else:
            marker, partition = message
            self.leaders[partition].end(marker)

    def faults(self) -> list[str]:
        """Returns how the logs differ from the answers to the client."""
        found: list[str] = []
        for number, leader in enumerate(self.leaders):
            open_records: list[Batch] = []
            written: list[Batch] = []
            for entry in leader.log:
                if isinstance(entry, Batch):
                    open_records.append(entry)
                    written.append(entry)
                    continue
                ended, open_records = open_records, []
                found += [
                    f"partition {number}: transaction {record.transaction} got a marker {entry}"
                    for record in ended
                    if self.outcomes.get(record.transaction) is not entry
                ]
                if len({record.transaction for record in ended}) > 1:
                    found.append(f"partition {number}: one marker ended several transactions")
            found += [
                f"partition {number}: transaction {record.transaction} hangs"
                for record in open_records
                if record.transaction in self.outcomes
            ]
            acknowledged = [
                batch for batches in self.records.values() for batch in batches if batch.partition == number
            ]
            if not set(acknowledged) <= set(written):
                found.append(f"partition {number}: an acknowledged record is missing")
        return found


class LateMessages(RuleBasedStateMachine):
    """One producer at level 2, whose messages are also delivered late."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(level=2)

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def send(self, partition: int) -> None:
        self.world.send(partition)

    @rule(commit=st.booleans())
    def end(self, commit: bool) -> None:
        self.world.end(commit)

    @rule(count=st.integers(1, PARTITIONS))
    def write_markers(self, count: int) -> None:
        self.world.write_markers(count)

    @rule(commit=st.booleans(), partitions=st.sets(st.integers(0, PARTITIONS - 1), min_size=1))
    def whole_transaction(self, commit: bool, partitions: set[int]) -> None:
        self.world.write_markers()
        for partition in sorted(partitions):
            self.world.send(partition)
        self.world.end(commit)
        self.world.write_markers()

    @rule()
    def fail_over(self) -> None:
        self.world.driver.fail_over()

    @precondition(lambda self: self.world.held)
    @rule(number=st.integers(0, 200))
    def deliver_late(self, number: int) -> None:
        before = self.world.driver.core.transactions["x"]
        was_open = self.world.held[number % len(self.world.held)]
        self.world.deliver(number)
        after = self.world.driver.core.transactions["x"]
        if isinstance(was_open, EndTxnRequest) and was_open.producer_epoch != self.world.producer.epoch:
            assert (after.status, after.producer_epoch) == (before.status, before.producer_epoch)

    def teardown(self) -> None:
        while self.world.driver.markers:
            self.world.write_markers()
        assert self.world.faults() == []


TestLateMessages = LateMessages.TestCase
TestLateMessages.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


def story(level: int) -> World:
    """A commit is repeated; its first copy arrives in the next transaction, which the client aborts."""
    world = World(level)
    world.send(0)
    world.end(commit=True)
    world.write_markers()
    late = next(number for number, message in enumerate(world.held) if isinstance(message, EndTxnRequest))
    world.send(1)
    world.deliver(late)
    world.write_markers()
    world.send(2)
    world.end(commit=False)
    world.write_markers()
    return world


def test_a_late_commit_tears_a_transaction_at_level_1_only() -> None:
    assert story(level=2).faults() == []
    assert story(level=2).outcomes == {0: True, 1: False}
    torn = story(level=1)
    assert "partition 1: transaction 1 got a marker True" in torn.faults()


def test_a_late_marker_ends_the_next_transaction_at_level_1_only() -> None:
    for level in (1, 2):
        world = World(level)
        world.send(0)
        world.end(commit=True)
        world.write_markers()
        world.send(0)
        number = next(n for n, message in enumerate(world.held) if isinstance(message, tuple))
        world.deliver(number)
        world.end(commit=False)
        world.write_markers()
        assert bool(world.faults()) == (level == 1)
