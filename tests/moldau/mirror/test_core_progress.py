"""Positions of a mirror against a model: a position never passes a record that the target has not acknowledged."""

import uuid
from types import SimpleNamespace

import pytest
import trio
import trio.testing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moldau import TopicPartition
from moldau.mirror.at_least_once import PARTITION_BYTES_MAX, AtLeastOnce
from moldau.mirror.core.batches import Run
from moldau.mirror.core.formats import Position
from moldau.mirror.core.progress import Progress, stored_start
from moldau.mirror.reading import Part
from moldau.mirror.sending import Sent
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.values import ZERO_UUID
from support.proof import examples

P = TopicPartition("orders", 0)
TOPIC = uuid.UUID(int=7)


class ProgressMachine(RuleBasedStateMachine):
    """A partition that is read, sent, acknowledged in any order, refused, and read again."""

    def __init__(self):
        super().__init__()
        self.progress = Progress()
        self.progress.begin(P, Position(0))
        self.read_to = 0
        self.spans = []
        self.stale = []
        self.written = set()
        self.stored = 0

    @rule(count=st.integers(0, 5))
    def send(self, count):
        """Reads and sends some records, or only moves past a marker."""
        runs = (Run(self.read_to, 0, count),) if count else ()
        after = self.read_to + max(count, 1)
        generation = self.progress.generation(P)
        span = self.progress.sent(P, generation, runs, after, topic_id=TOPIC, leader_epoch=3)
        self.spans.append((span, self.read_to, after))
        self.read_to = after

    @precondition(lambda self: self.spans)
    @rule(data=st.data())
    def acknowledge(self, data):
        span, first, after = self.spans.pop(data.draw(st.integers(0, len(self.spans) - 1)))
        self.written.update(range(first, after))
        assert self.progress.acknowledged(span)

    @precondition(lambda self: self.spans)
    @rule(data=st.data())
    def refuse(self, data):
        """One batch fails: everything that was not acknowledged is read again."""
        span, _, _ = self.spans.pop(data.draw(st.integers(0, len(self.spans) - 1)))
        before = self.progress.generation(P)
        position = self.progress.by_partition[P].position
        self.progress.begin(P, position)
        self.stale += [span, *(each for each, _, _ in self.spans)]
        self.spans.clear()
        self.read_to = position.offset
        late = self.progress.sent(P, before, (), self.read_to + 9, topic_id=TOPIC, leader_epoch=3)
        assert late is None, "records that were read before the failure leave a gap"

    @precondition(lambda self: self.stale)
    @rule()
    def late_outcome(self):
        """Outcomes of batches that were sent before the last failure change nothing."""
        span = self.stale.pop()
        position = self.progress.by_partition[P].position
        assert not self.progress.acknowledged(span)
        assert self.progress.by_partition[P].position == position

    @rule(is_lost=st.booleans())
    def store(self, is_lost):
        moved = self.progress.take_moved()
        if is_lost:
            self.progress.keep_moved(moved)
        elif moved:
            assert moved == {P: self.progress.by_partition[P].position}
            self.stored = moved[P].offset

    @invariant()
    def nothing_is_passed_over(self):
        position = self.progress.by_partition[P].position.offset
        assert all(offset in self.written for offset in range(position))
        assert self.stored <= position

    def teardown(self):
        while self.spans:
            span, first, after = self.spans.pop()
            self.written.update(range(first, after))
            self.progress.acknowledged(span)
        assert self.progress.by_partition[P].position.offset == self.read_to
        assert self.progress.pending() == 0


ProgressMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestProgress = ProgressMachine.TestCase


def test_positions_count_in_their_topic_only():
    other = uuid.UUID(int=8)
    assert stored_start(None, TOPIC) is None
    assert stored_start(Position(5, TOPIC, 2), TOPIC) == Position(5, TOPIC, 2)
    assert stored_start(Position(5, other, 2), TOPIC) is None
    assert stored_start(Position(5, ZERO_UUID), TOPIC) == Position(5, TOPIC)


def test_a_partition_that_ended_is_forgotten():
    progress = Progress()
    progress.begin(P, Position(3, TOPIC), is_news=True)
    assert progress.has_moved
    span = progress.sent(P, progress.generation(P), (), 4, topic_id=TOPIC, leader_epoch=0)
    progress.end(P)
    assert not progress.acknowledged(span)
    assert progress.take_moved() == {}
    assert progress.generation(P) is None


def test_a_former_acknowledgement_does_not_count_after_a_return():
    """A topic leaves the list and comes back: the copy was not made for the position that counts now."""
    progress = Progress()
    progress.begin(P, Position(3, TOPIC))
    span = progress.sent(P, progress.generation(P), (), 4, topic_id=TOPIC, leader_epoch=0)
    progress.end(P)
    progress.begin(P, Position(0, TOPIC))
    assert not progress.acknowledged(span)
    assert progress.by_partition[P].position == Position(0, TOPIC)


def test_the_records_and_the_offset_on_their_way_are_counted():
    """Of acknowledged spans in order; a partition that begins again keeps its count of records."""
    progress = Progress()
    progress.begin(P, Position(0))
    first = progress.sent(P, progress.generation(P), (Run(0, 0, 3), Run(5, 3, 2)), 7, topic_id=TOPIC, leader_epoch=3)
    second = progress.sent(P, progress.generation(P), (Run(7, 0, 1),), 8, topic_id=TOPIC, leader_epoch=3)
    state = progress.by_partition[P]
    assert (state.position.offset, state.sent_offset, state.records) == (0, 8, 0)
    assert progress.acknowledged(second)
    assert (state.position.offset, state.records) == (0, 0), "the first span has no outcome yet"
    assert progress.acknowledged(first)
    assert (state.position.offset, state.sent_offset, state.records) == (8, 8, 6)
    progress.begin(P, Position(2))
    again = progress.by_partition[P]
    assert (again.position.offset, again.sent_offset, again.records) == (2, 2, 6)


def test_a_partition_is_read_in_order():
    progress = Progress()
    progress.begin(P, Position(4))
    progress.sent(P, progress.generation(P), (), 9, topic_id=TOPIC, leader_epoch=3)
    with pytest.raises(AssertionError, match="read in order"):
        progress.sent(P, progress.generation(P), (), 8, topic_id=TOPIC, leader_epoch=3)


def test_a_stop_during_a_flush_stores_what_that_had_taken():
    """The last flush stores the positions of the one that the stop has cancelled; else records are copied again."""
    progress, stored = Progress(), []
    progress.begin(P, Position(5), is_news=True)
    flushes = 0

    async def poll(*_):
        await trio.sleep(0.1)
        return []

    async def send(_, moved):
        nonlocal flushes
        flushes += 1
        if flushes == 1:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        stored.append(moved)
        return []

    async def flush(_):
        await trio.lowlevel.checkpoint()

    copies = AtLeastOnce(
        SimpleNamespace(progress=progress, poll=poll),
        None,
        None,
        SimpleNamespace(send=send),
        SimpleNamespace(flush=flush),
        None,
        flush_ms=100.0,
        statistics=SimpleNamespace(failures=0),
        logger=None,
    )

    async def main():
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(copies.run, stop)
            await trio.sleep(1)
            stop.set()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert stored == [{P: Position(5)}]


def test_a_part_without_records_holds_no_partition():
    """After a failure one batch goes alone; where only markers are left, no outcome comes that would release it."""
    progress, held = Progress(), {}
    progress.begin(P, Position(5))
    batches = SimpleNamespace(topic_partition=P, topic_id=TOPIC, next_offset=30)

    async def poll(*_):
        await trio.lowlevel.checkpoint()
        return [Part(progress.generation(P), batches)]

    async def send(part, sent, *, batches_max):
        await trio.lowlevel.checkpoint()
        sent.append(Sent(progress.sent(P, part.generation, (), 30, topic_id=TOPIC, leader_epoch=3), None, 0))
        return False

    reader = SimpleNamespace(
        progress=progress,
        poll=poll,
        is_doubtful=lambda _: True,
        hold=lambda partition: held.update({partition: None}),
        release=lambda partitions: [held.pop(each, None) for each in partitions],
        acknowledged=lambda _: None,
    )
    copies = AtLeastOnce(
        reader, SimpleNamespace(send=send), None, None, None, None, flush_ms=100.0, statistics=None, logger=None
    )
    trio.run(copies._step, None)
    assert held == {}
    assert progress.by_partition[P].position.offset == 30


def test_a_refused_batch_is_on_its_way_no_more():
    """Its bytes hold the partition until then; they would hold it for good."""
    progress, held = Progress(), {}
    progress.begin(P, Position(5))
    span = progress.sent(P, progress.generation(P), (), 30, topic_id=TOPIC, leader_epoch=3)

    async def refused():
        await trio.lowlevel.checkpoint()
        raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)

    reader = SimpleNamespace(
        progress=progress,
        hold=lambda partition: held.update({partition: None}),
        release=lambda partitions: [held.pop(each, None) for each in partitions],
        failed=lambda partition, _: progress.begin(partition, Position(5)),
    )
    sender = SimpleNamespace(shrinks=lambda *_: False)
    copies = AtLeastOnce(reader, sender, None, None, None, None, flush_ms=100.0, statistics=None, logger=None)

    async def main():
        async with trio.open_nursery() as nursery:
            await copies._watch(nursery, Sent(span, refused(), PARTITION_BYTES_MAX + 1))
            assert held == {P: None}

    trio.run(main)
    assert held == {}


def test_a_batch_that_goes_alone_skips_nothing_refused():
    """A batch before it is refused while it waits for memory: the partition is read again from that one."""
    progress, seeks = Progress(), []
    progress.begin(P, Position(5))
    batches = SimpleNamespace(topic_partition=P, topic_id=TOPIC, next_offset=30)

    async def poll(*_):
        await trio.lowlevel.checkpoint()
        return [Part(progress.generation(P), batches)]

    async def send(part, sent, *, batches_max):
        assert batches_max == 1
        span = progress.sent(P, part.generation, (), 20, topic_id=TOPIC, leader_epoch=3)
        await trio.lowlevel.checkpoint()
        progress.begin(P, progress.by_partition[P].position)  # what ``SourceReader.failed`` does meanwhile
        seeks.append(5)
        sent.append(Sent(span, None, 0))
        return True

    def seek(_, offset):
        seeks.append(offset)

    ignored = {"hold": lambda _: None, "release": lambda _: None, "is_doubtful": lambda _: True}
    copies = AtLeastOnce(
        SimpleNamespace(progress=progress, poll=poll, go_on_at=seek, **ignored),
        SimpleNamespace(send=send),
        None,
        None,
        None,
        None,
        flush_ms=100.0,
        statistics=None,
        logger=None,
    )
    trio.run(copies._step, None)
    assert seeks == [5]
