"""Goal: the final read reaches the highest offset that an acknowledgement or a poll has shown.

Method: a stub in the consumer's place whose log has lost its end for some time.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import trio
import trio.testing

from moldau.records import Record
from moldau_jepsen.checkers import CheckOptions, check_history
from moldau_jepsen.history import Kind, Poll, Send, Status, TopicPartition
from moldau_jepsen.workloads.phases.final_read import _is_at_the_ends, read_everything
from moldau_jepsen.workloads.recording.recorder import Recorder
from support.kit.golden_histories import Story

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class StubConsumer:
    """Reads a log of one partition that holds ``first`` records, and ``last`` ones from ``grows_at`` on.

    It receives at most ``readable`` of them; its leader reports ``reported``.
    """

    def __init__(
        self, first: int, last: int, grows_at: float, readable: int | None = None, reported: int | None = None
    ) -> None:
        self.first, self.last, self.grows_at = first, last, grows_at
        self.readable, self.reported = readable, reported
        self.position = 0

    @property
    def end(self) -> int:
        return self.last if trio.current_time() >= self.grows_at else self.first

    async def __aenter__(self) -> StubConsumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def assign(self, partitions: list[TopicPartition]) -> None:
        assert partitions == [P0]

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.end if self.reported is None else self.reported)

    def position_nowait(self, partition: TopicPartition) -> int:
        return self.position

    async def poll(self, timeout_ms: float) -> list[SimpleNamespace]:
        end = self.end if self.readable is None else min(self.end, self.readable)
        if self.position == end:
            await trio.sleep(timeout_ms / 1000)
            return []
        records = [Record(at, 0, None, at.to_bytes(8, "big")) for at in range(self.position, end)]
        self.position = end
        return [SimpleNamespace(topic="t", partition=0, records=records)]


def read(
    *seen: Send | Poll,
    first: int,
    last: int,
    grows_at: float = 5.0,
    readable: int | None = None,
    stable: int | None = None,
):
    """The operations of a final read after others have ended. ``stable``: where readers of committed data end."""
    history = []

    async def main() -> None:
        start = trio.current_time()
        clock = SimpleNamespace(monotonic_ms=lambda: (trio.current_time() - start) * 1000)
        recorder = Recorder(clock, history.append)
        for part in seen:
            kind = Kind.SEND if isinstance(part, Send) else Kind.POLL
            recorder.operation(recorder.new_process(), kind, Status.OK, 0.0, part)

        def make(isolation: str) -> StubConsumer:
            reported = stable if isolation == "read_committed" else None
            return StubConsumer(first, last, start + grows_at, readable, reported)

        await read_everything(make, "read_committed", [P0], recorder, 20.0)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return history[len(seen) :]


def offsets(operations) -> list[int]:
    return [offset for one in operations for poll in one.polls for _, pairs in poll.records for offset, _ in pairs]


def test_it_waits_for_acknowledged_and_for_polled_records():
    """The final read waits for acknowledged records and for polled records."""
    for seen in (Send(P0, 2, 2), Poll(((P0, ((1, 1), (2, 2))),)), Poll(((P0, ((2, 2), (0, 0))),))):
        operations = read(seen, first=1, last=3)
        assert all(one.final and one.status is Status.OK for one in operations), seen
        assert offsets(operations) == [0, 1, 2], seen


def test_it_does_not_wait_for_unreported_records():
    for seen in (Send(P0, 2, None), Poll(((P0, ()),)), Poll(((P1, ((7, 7),)),))):
        assert offsets(read(seen, first=1, last=3)) == [0], seen


def test_records_missing_at_the_end_of_a_log_are_lost_not_late():
    """It waits all its time for that; then the leaders' ends show that the log has no more records."""
    earlier = [Poll(((P0, ((0, 0), (1, 1), (2, 2))),)), Send(P0, 2, 2)]
    for seen in earlier:
        operations = read(seen, first=1, last=1)
        assert [one.status for one in operations] == [Status.OK]
        story = Story().add(900, Kind.SEND if isinstance(seen, Send) else Kind.POLL, seen).history + operations
        numbered = [replace(one, index=index) for index, one in enumerate(story)]
        anomalies = check_history(numbered, CheckOptions(subscribe=True)).anomalies
        assert "value 2 was" in anomalies[-1].text
        assert "is not in the final read" in anomalies[-1].text


def test_a_log_that_grows_after_the_time_limit_is_not_finished():
    """A log that still grows after the time limit is not read to its end."""
    operations = read(Send(P0, 2, 2), first=1, last=2, grows_at=20.0)
    assert [one.status for one in operations] == [Status.OK, Status.INFO]
    assert operations[-1].error == "not at the end after 20.0 s: {'t-0': 'at 1 of 3'}"


def test_it_names_the_partitions_that_their_leaders_have_more_of():
    operations = read(first=3, last=3, readable=2)
    assert [one.status for one in operations] == [Status.OK, Status.INFO]
    assert operations[-1].error == "not at the end after 20.0 s: {'t-0': 'at 2 of 3'}"


def test_it_says_that_the_ends_were_not_settled():
    (stuck,) = read(first=3, last=3, stable=2)
    wanted = ", and a transaction was open or no leader answered with the ends: {}"
    assert stuck.error == f"not at the end after 20.0 s{wanted}"


def test_a_read_that_lacks_one_partition_is_not_at_the_ends(monkeypatch):
    async def settled(make_consumer, partitions):
        return {P0: 5, P1: 7}

    monkeypatch.setattr("moldau_jepsen.workloads.phases.final_read.settled_ends", settled)
    for position, is_complete in (({P0: 5, P1: 7}, True), ({P0: 5, P1: 6}, False), ({P0: 4, P1: 7}, False)):
        assert trio.run(_is_at_the_ends, None, position) is is_complete
