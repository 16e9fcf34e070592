"""Goal: a read by a new group ends past the highest offset reported to any client, and names partitions that it
did not read so far; the checker finds exactly the acknowledged records that it lacks.

Method: a stub in the consumer's place; histories by hand.
"""

from __future__ import annotations

from types import SimpleNamespace

import trio
import trio.testing

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import Record
from moldau_jepsen.checkers import AnomalyKind, check_read
from moldau_jepsen.history import Kind, Operation, Poll, Send, Status, TopicPartition
from moldau_jepsen.workloads.phases.group_read import read_in_group
from moldau_jepsen.workloads.recording.recorder import Recorder

P0, P1, Q0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("q", 0)
AGAIN = "again"
BROKEN = "broken"


class StubConsumer:
    """Owns both partitions from its first poll on, and gives out what a script says: a partition, and offsets."""

    def __init__(self, script, rebalances):
        self.script, self.rebalances = iter(script), rebalances
        self.assignment, self.positions, self.topics = [], {}, []

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    def subscribe(self, topics):
        self.topics = list(topics)

    def position_nowait(self, partition):
        return self.positions.get(partition)

    async def poll(self, timeout_ms):
        assert self.topics == ["t", "q"]
        step = next(self.script, None)
        if step is None:
            await trio.sleep(timeout_ms / 1000)
            return []
        if step == BROKEN:
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "for a moment")
        if not self.assignment or step == AGAIN:
            self.assignment = [P0, P1, Q0]
            await self.rebalances.reported(self.assignment)
        if step == AGAIN:
            step = next(self.script)
        partition, *offsets = step
        self.positions[partition] = offsets[-1] + 1
        records = [Record(offset, 0, None, offset.to_bytes(8, "big")) for offset in offsets]
        return [SimpleNamespace(topic=partition.topic, partition=partition.partition, records=records)]


def read(script, *reported):
    """Returns the result of a read after these reports to others, its operations, and its duration in seconds."""
    history = []

    async def main():
        start = trio.current_time()
        recorder = Recorder(SimpleNamespace(monotonic_ms=lambda: (trio.current_time() - start) * 1000), history.append)
        for part in reported:
            kind = Kind.SEND if isinstance(part, Send) else Kind.POLL
            recorder.operation(recorder.new_process(), kind, Status.OK, 0.0, part)
        make = lambda rebalances: StubConsumer(script, rebalances)  # noqa: E731
        found = await read_in_group(make, "new", [P0, P1, Q0], recorder, 20.0)
        return found, trio.current_time() - start

    found, seconds = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return found, history[len(reported) :], seconds


def test_it_ends_at_the_offsets_reported_before_it_began():
    """The read ends at the offsets that others had reported before it began, and ignores later records."""
    script = [(P0, 0, 1), BROKEN, (P1, 0), AGAIN, (P0, 0, 1, 2), (P1, 1), (P1, 2)]
    found, operations, seconds = read(script, Send(P0, 2, 2), Poll(((P1, ((0, 0), (1, 1))),)))
    assert found.unread == ""
    assert found.seen == {P0: {0, 1, 2}, P1: {0, 1}, Q0: set()}
    assert seconds < 1
    assert [(one.kind, one.rebalanced) for one in operations] == [
        (Kind.SUBSCRIBE, False),
        (Kind.POLL, True),
        (Kind.POLL, False),
        (Kind.SUBSCRIBE, False),
        (Kind.POLL, True),
        (Kind.POLL, False),
    ]
    polls = [one for one in operations if one.kind is Kind.POLL]
    assert {(one.group, one.final) for one in polls} == {("new", False)}
    assert operations[0].partitions == (P0, P1, Q0)
    assert operations[0].generation == -1, "it shares nothing with the owners of another group"


def test_an_incomplete_read_names_its_partitions():
    found, _, seconds = read([(P0, 0, 1), (P1, 0)], Send(P0, 4, 4), Send(P1, 0, 0), Send(Q0, 0, 0))
    assert found.unread == "a new member of group new read t-0 at 2 of 5, q-0 at 0 of 1 in 20 s"
    assert 20 <= seconds < 21


def operation(index, *parts, **more):
    defaults = {"kind": Kind.SEND, "status": Status.OK, "process": 1, "begun_ms": 0.0, "ended_ms": 1.0}
    return Operation(index=index, operations=parts, **{**defaults, **more})


def test_acknowledged_and_unread_records_are_found():
    before = [
        operation(0, Send(P0, 0, 0)),
        operation(1, Send(P0, 1, 1)),
        operation(2, Send(P0, 2, 2), status=Status.INFO),
        operation(3, Send(P0, 3, None), status=Status.FAIL),
        operation(4, Send(P0, 4, 4), Send(P1, 0, 0), kind=Kind.TRANSACTION),
        operation(5, Send(P0, 5, 5), kind=Kind.TRANSACTION, aborted=True),
        operation(6, Send(Q0, 0, 0)),
        operation(7, Send(P1, 1, None)),
    ]
    assert check_read(before, {P0: {0, 1, 4}, P1: {0, 1}}, "group new") == []
    found = check_read(before, {P0: {0, 2, 5}, P1: {0}}, "group new")
    assert [(one.kind, one.allowed, one.partition, one.operations, one.offsets) for one in found] == [
        (AnomalyKind.UNSEEN, False, P0, (1,), (1,)),
        (AnomalyKind.UNSEEN, False, P0, (4,), (4,)),
        (AnomalyKind.UNSEEN, False, P1, (7,), ()),
    ]
    assert found[0].text == "value 1 was acknowledged, and group new read t-0 from the beginning without it"
