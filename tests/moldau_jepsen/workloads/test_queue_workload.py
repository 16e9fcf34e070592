"""Goal: a reader in a group that is given its partitions again says so, also when the generation stays the same; a
sender tells of each record what it knows.

Method: the workload with a stub in the client's place. Found by seed 400 of whole clusters: a member whose session
had expired joined again, was given generation 1 again, and began at the committed offset.
"""

from __future__ import annotations

import functools
import math
import random
from types import SimpleNamespace

import trio
import trio.testing

from moldau.cluster.metadata import TopicPartition
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import Record
from moldau_jepsen.checkers import AnomalyKind, CheckOptions, check_history
from moldau_jepsen.history import Kind, Poll, Status
from moldau_jepsen.workloads.queue import QueueOptions, QueueWorkload
from moldau_jepsen.workloads.recording.recorder import Recorder

ASSIGNED, AGAIN = object(), object()
REPEATS = (ASSIGNED, [0, 1], [2, 3], AGAIN, [2, 3], [4])
SKIPS = (ASSIGNED, [0, 1], AGAIN, [3, 4])


class StubConsumer:
    """Gives out the offsets of a script; the generation is always 1."""

    assignment_generation = 1

    def __init__(self, script, config, *, environment, on_assigned, on_revoked):
        self.assignment = [TopicPartition("queue", 0)]
        self.on_assigned, self.on_revoked = on_assigned, on_revoked
        self.script = iter(script)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    def abandon(self):
        pass

    def subscribe(self, topics):
        pass

    def assign(self, partitions):
        pass

    async def commit(self):
        pass

    async def poll(self, timeout_ms):
        await trio.sleep(0.1)
        offsets = next(self.script, None)
        if offsets is None:
            await trio.sleep_forever()
        if offsets is AGAIN:
            await self.on_revoked(self.assignment)
        if offsets in (ASSIGNED, AGAIN):
            await self.on_assigned(self.assignment)
            offsets = next(self.script)
        records = [Record(offset, 0, None, offset.to_bytes(8, "big")) for offset in offsets]
        return [SimpleNamespace(topic="queue", partition=0, records=records)]


def read_in_group(monkeypatch, script, **consumer):
    """The history of one member of a group that is given what the script says, and of a final read."""
    monkeypatch.setattr("moldau_jepsen.workloads.queue.Consumer", functools.partial(StubConsumer, script))
    history = []
    clock = SimpleNamespace(monotonic_ms=lambda: trio.current_time() * 1000)
    environment = SimpleNamespace(random=random.Random(1), clock=clock)
    options = QueueOptions(
        partitions=1, senders=0, assigned_readers=0, group_readers=1, crash_every_s=0.0, consumer=consumer
    )

    async def main():
        recorder = Recorder(environment.clock, history.append)
        workload = QueueWorkload(environment, "b:9092", options, recorder)
        with trio.move_on_after(5):
            await workload.run()
        everything = Poll(((TopicPartition("queue", 0), tuple((value, value) for value in range(5))),))
        recorder.operation(recorder.new_process(), Kind.POLL, Status.OK, 0.0, everything, final=True)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return history


def test_positions_may_start_over_within_a_generation(monkeypatch):
    """Positions that start over within a generation are not an anomaly."""
    history = read_in_group(monkeypatch, REPEATS)
    reported = [(one.kind, one.rebalanced) for one in history]
    assert reported == [
        (Kind.SUBSCRIBE, False),
        (Kind.POLL, True),
        (Kind.POLL, False),
        (Kind.SUBSCRIBE, False),
        (Kind.POLL, True),
        (Kind.POLL, False),
        (Kind.POLL, False),
    ]
    assert check_history(history, CheckOptions()).valid


def test_a_member_that_skips_after_a_new_assignment_is_convicted(monkeypatch):
    """A member that skips a record when its partitions are assigned again is convicted."""
    verdict = check_history(read_in_group(monkeypatch, SKIPS), CheckOptions())
    assert verdict.counts == {AnomalyKind.GROUP_SKIP: 1}
    assert not verdict.valid


def test_a_group_that_begins_at_the_latest_offset_may_skip(monkeypatch):
    """A group that begins at the latest offset may skip records."""
    history = read_in_group(monkeypatch, SKIPS, **{"auto.offset.reset": "latest"})
    assert check_history(history, CheckOptions()).valid


def read_assigned(monkeypatch, script, **consumer):
    """The history of a reader that is given what the script says by hand."""
    monkeypatch.setattr("moldau_jepsen.workloads.queue.Consumer", functools.partial(StubConsumer, script))
    history = []
    environment = SimpleNamespace(
        random=random.Random(1), clock=SimpleNamespace(monotonic_ms=lambda: trio.current_time() * 1000)
    )
    options = QueueOptions(partitions=1, senders=0, group_readers=0, crash_every_s=0.0, consumer=consumer)

    async def main():
        recorder = Recorder(environment.clock, history.append)
        with trio.move_on_after(5):
            await QueueWorkload(environment, "b:9092", options, recorder).run()
        everything = Poll(((TopicPartition("queue", 0), tuple((value, value) for value in range(5))),))
        recorder.operation(recorder.new_process(), Kind.POLL, Status.OK, 0.0, everything, final=True)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return history


def test_an_assigned_reader_begins_at_the_first_record(monkeypatch):
    assert check_history(read_assigned(monkeypatch, [[0, 1], [2, 3]]), CheckOptions()).counts == {}
    late = read_assigned(monkeypatch, [[2, 3], [4]])
    assert [one.kind for one in late][:3] == [Kind.ASSIGN, Kind.SEEK, Kind.POLL]
    assert check_history(late, CheckOptions()).counts == {AnomalyKind.SEEK_MISSED: 1}
    latest = read_assigned(monkeypatch, [[2, 3], [4]], **{"auto.offset.reset": "latest"})
    assert check_history(latest, CheckOptions()).counts == {}


FATES = (
    (Status.OK, None),
    (Status.FAIL, ErrorCode.MESSAGE_TOO_LARGE),
    (Status.INFO, ErrorCode.REQUEST_TIMED_OUT),
    (Status.INFO, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
)
"""Of records that are handed over, by their numbers."""
NEVER_ANSWERED, NOT_HANDED_OVER = 18, 9


class StubProducer:
    """Knows the fate of each record by its number."""

    def __init__(self, config, *, environment):
        pass

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def send(self, topic, value, **_):
        number = int.from_bytes(value[:8], "big")
        if number == NOT_HANDED_OVER:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        return StubDelivery(number)


class StubDelivery:
    acknowledged_by = None

    def __init__(self, number):
        self.number = number

    def __await__(self):
        return self.answer().__await__()

    async def answer(self):
        await trio.sleep(math.inf if self.number == NEVER_ANSWERED else 0.01)
        if (code := FATES[self.number % len(FATES)][1]) is not None:
            raise KafkaError(code)
        return SimpleNamespace(offset=self.number)


def test_each_record_of_a_sender_is_reported_once(monkeypatch):
    """A record of a client that crashed has an unknown outcome, whatever the client was waiting for."""
    monkeypatch.setattr("moldau_jepsen.workloads.queue.Producer", StubProducer)
    history = []
    clock = SimpleNamespace(monotonic_ms=lambda: trio.current_time() * 1000, wall_ms=lambda: 0)
    environment = SimpleNamespace(random=random.Random(1), clock=clock)
    options = QueueOptions(
        partitions=1, senders=1, assigned_readers=0, group_readers=0, crash_every_s=5.0, sends_per_second=3.0
    )

    async def main():
        workload = QueueWorkload(environment, "b:9092", options, Recorder(clock, history.append))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(workload.run)
            await trio.sleep(40)
            workload.stop()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    reported = {send.value: one for one in history for send in one.sends}
    assert sorted(reported) == list(range(len(reported)))
    assert sum(len(list(one.sends)) for one in history) == len(reported) > 2 * NEVER_ANSWERED
    crashed = [value for value, one in reported.items() if one.error == "the client crashed"]
    assert NEVER_ANSWERED in crashed
    assert len(crashed) <= options.in_flight_max * sum(one.kind is Kind.CRASH for one in history)
    for value, one in reported.items():
        expected = FATES[value % len(FATES)][0] if value != NOT_HANDED_OVER else Status.FAIL
        assert one.status is (Status.INFO if value in crashed else expected), value
