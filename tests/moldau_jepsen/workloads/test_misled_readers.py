"""Goal: a reader that was given an impossible offset goes on to the end, and says no more than that.

Method: the readers of all workloads, with a stub in the consumer's place that is given such an offset once, or always;
virtual time.
"""

from __future__ import annotations

import random
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from moldau.records import Record, encode_batch
from moldau_jepsen.chaos.spark.workload import SparkWorkload
from moldau_jepsen.checkers import AnomalyKind, CheckOptions, TopicWrite, check_history, check_topics
from moldau_jepsen.checkers.log.compacted import Fate, KeyWrite
from moldau_jepsen.checkers.log.few_acks import FewAcksSend
from moldau_jepsen.checkers.log.tiered import check_tiered
from moldau_jepsen.history import Kind, Operation, Poll, Send, Status, TopicPartition
from moldau_jepsen.workloads import compacted, topics
from moldau_jepsen.workloads.acknowledgements import few_acks
from moldau_jepsen.workloads.phases.final_read import read_everything
from moldau_jepsen.workloads.phases.group_read import read_in_group
from moldau_jepsen.workloads.pipe import PipeOptions, PipeWorkload
from moldau_jepsen.workloads.recording.recorder import Recorder
from moldau_jepsen.workloads.tiered import readers
from moldau_jepsen.workloads.tiered.notes import TieredNotes
from support.kit.misled_consumer import ROTTEN_BIT, MisledConsumer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

P0 = TopicPartition("t", 0)
ALWAYS = 10_000


class Always(set[int]):
    """Offsets that are wrong each time."""

    def remove(self, offset: int) -> None:
        pass


def in_virtual_time(main: Callable[[], Awaitable[Any]]) -> Any:
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def clock() -> SimpleNamespace:
    start = trio.current_time()
    return SimpleNamespace(monotonic_ms=lambda: (trio.current_time() - start) * 1000, wall_ms=lambda: 0.0)


def numbered(count: int) -> list[Record]:
    return [Record(value, 0, None, value.to_bytes(8, "big"), ()) for value in range(count)]


def sent(recorder: Recorder, count: int) -> None:
    process = recorder.new_process()
    for value in range(count):
        recorder.operation(process, Kind.SEND, Status.OK, 0.0, Send(P0, value, value))


def final_read(rotten: set[int], *polled: tuple[int, int]) -> tuple[list[Operation], float]:
    """Returns the history of ten sends, a poll, and a final read; and how long it took."""
    history: list[Operation] = []

    async def main() -> float:
        recorder = Recorder(clock(), history.append)
        sent(recorder, 10)
        if polled:
            recorder.operation(recorder.new_process(), Kind.POLL, Status.OK, 0.0, Poll(((P0, polled),)))

        def make(isolation: str) -> MisledConsumer:
            return MisledConsumer(P0, numbered(10), rotten)

        begun = trio.current_time()
        await read_everything(make, "read_committed", [P0], recorder, 60.0)  # type: ignore[arg-type]
        return trio.current_time() - begun

    seconds = in_virtual_time(main)
    return history, seconds


def test_the_final_read_waits_for_no_impossible_offset() -> None:
    """Another reader was given one: no read can come there, and this one ends at the end."""
    history, seconds = final_read(set(), (0, 0), (1 ^ ROTTEN_BIT, 1))
    assert seconds < 5
    verdict = check_history(history, CheckOptions())
    assert verdict.counts == {AnomalyKind.IMPOSSIBLE_OFFSET: 1}


def test_the_final_read_goes_on_behind_an_impossible_offset() -> None:
    """Its position was far behind the end then; it has not read what comes before the end."""
    history, seconds = final_read({6})
    assert seconds < 5
    assert [len(pairs) for one in history for poll in one.polls for _, pairs in poll.records] == [7, 10]
    assert check_history(history, CheckOptions()).counts == {AnomalyKind.IMPOSSIBLE_OFFSET: 1}


def test_a_final_read_of_impossible_offsets_is_stuck() -> None:
    history, seconds = final_read(Always({6}))
    assert seconds >= 60
    assert check_history(history, CheckOptions()).counts == {AnomalyKind.IMPOSSIBLE_OFFSET: 1, AnomalyKind.STUCK: 1}
    assert history[-1].error.endswith("{'t-0': 'at 0 of 10'}")


def test_a_group_read_goes_on_behind_an_impossible_offset() -> None:
    async def main() -> Any:
        recorder = Recorder(clock(), lambda operation: None)
        sent(recorder, 10)

        def make(rebalances: Any) -> MisledConsumer:
            consumer = MisledConsumer(P0, numbered(10), {6})
            consumer.on_assigned = rebalances.reported
            return consumer

        return await read_in_group(make, "g", [P0], recorder, 60.0)  # type: ignore[arg-type]

    found = in_virtual_time(main)
    assert (found.unread, found.seen) == ("", {P0: set(range(10))})


def environment() -> SimpleNamespace:
    return SimpleNamespace(random=random.Random(1), clock=clock())


@pytest.mark.parametrize("rotten", [{3}, Always({3})])
def test_a_reader_of_a_compacted_topic(monkeypatch: pytest.MonkeyPatch, rotten: set[int]) -> None:
    async def main() -> list[str]:
        workload = compacted.CompactedWorkload(environment(), "", compacted.CompactedOptions(partitions=1))  # type: ignore[arg-type]
        place = TopicPartition("compacted", 0)
        log = []
        for number in range(6):
            key, value = f"k{number % 3}", b"%d" % number
            tick = workload._tick()
            workload.writes.append(
                KeyWrite(
                    partition=0, key=key, value=value, fate=Fate.COMMITTED, offset=number, begun=tick, known_at=tick
                )
            )
            log.append(Record(number, 0, key.encode(), value, (("number", b"%d" % number),)))
        monkeypatch.setattr(compacted, "Consumer", lambda *_, **__: MisledConsumer(place, log, rotten))
        await workload.final_read(5.0)
        assert (workload.stuck is None) is not isinstance(rotten, Always)
        return workload.verdict()

    wrong = f"returned write 3 of k0 at offset {3 ^ ROTTEN_BIT}, far above 5, the highest one known"
    assert in_virtual_time(main) == [f"partition 0 {wrong}"]


@pytest.mark.parametrize("rotten", [{3}, Always({3})])
def test_a_pass_over_a_tiered_partition(monkeypatch: pytest.MonkeyPatch, rotten: set[int]) -> None:
    place = ("tiered", 0)

    async def main() -> list[str]:
        notes, log = TieredNotes({}), []
        for number in range(6):
            write = notes.new_write(place, 1, 100 + number, 0)
            write.offset, write.acknowledged_at = number, notes.tick()
            notes.committed([write])
            log.append(Record(number, write.timestamp_ms, None, write.value, ()))
        consumer = MisledConsumer(TopicPartition(*place), log, rotten)
        monkeypatch.setattr(readers, "Consumer", lambda *_, **__: consumer)
        reader = readers.TieredReader(environment(), "", notes, random.Random(1), "")  # type: ignore[arg-type]
        assert not await reader.read(place, is_committed=True)
        assert await reader.read(place, is_committed=True) is not isinstance(rotten, Always)
        assert notes.seen_end(place, is_committed=True) == 6
        return check_tiered(notes.story)

    wrong = (
        f"a pass with read_committed returned write 3 at offset {3 ^ ROTTEN_BIT}, far above 5, the highest one known"
    )
    assert in_virtual_time(main) == [f"tiered-0: {wrong}"]


@pytest.mark.parametrize("rotten", [{3}, Always({3})])
def test_the_reader_of_few_acknowledgements(monkeypatch: pytest.MonkeyPatch, rotten: set[int]) -> None:
    async def main() -> list[str]:
        options = few_acks.FewAcksOptions(partitions=1)
        workload = few_acks.FewAcksWorkload(environment(), "", options, random.Random(1))  # type: ignore[arg-type]
        for number in range(6):
            workload.sends.append(
                FewAcksSend(
                    number=number,
                    producer=1,
                    partition=0,
                    value=f"v{number}",
                    acks=1,
                    retries=False,
                    in_flight=1,
                    is_acknowledged=True,
                    offset=number,
                    leader_epoch=4,
                )
            )
        log = [Record(number, 0, None, b"v%d" % number, ()) for number in range(6)]
        place = TopicPartition(options.topic, 0)
        monkeypatch.setattr(few_acks, "Consumer", lambda *_, **__: MisledConsumer(place, log, rotten))
        monkeypatch.setattr(few_acks, "Admin", lambda *_, **__: Epochs(options.topic))
        await workload.final_read(5.0)
        assert (workload.stuck is None) is not isinstance(rotten, Always)
        return workload.verdict()

    wrong = f"partition 0: 'v3' was read at offset {3 ^ ROTTEN_BIT}, far above 5, the highest one known"
    assert in_virtual_time(main) == [wrong], "without a final read nothing counts as lost"


class Epochs:
    """An administrator's client that names the leader epoch of one partition."""

    def __init__(self, topic: str) -> None:
        self.topic = topic

    async def __aenter__(self) -> Epochs:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def describe_topics(self, names: list[str]) -> dict[str, SimpleNamespace]:
        return {self.topic: SimpleNamespace(partitions=[SimpleNamespace(partition=0, leader_epoch=4)])}


@pytest.mark.parametrize("times", [1, ALWAYS])
def test_the_reader_of_topics_that_are_made_again(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """It fetches by itself, so that no position leads it astray; what it was given is judged once."""
    topic_id = uuid.UUID(int=7)
    left = [times]

    async def main() -> list[str]:
        recorder = Recorder(clock(), lambda operation: None)
        nodes = SimpleNamespace(broker_ids=[1])
        client = topics.TopicsWorkload(nodes, environment(), recorder)  # type: ignore[arg-type]
        client.writes += [TopicWrite(str(topic_id), 0, f"v{number}", number) for number in range(4)]

        async def leader(*_: object) -> tuple[int, int]:
            return 1, 4

        async def ask(broker: int, response: type, request: Any, version: int) -> Any:
            await trio.sleep(0.001)
            offset = request.topics[0].partitions[0].fetch_offset
            batch = encode_batch([(0, None, b"v%d" % number, ()) for number in range(offset, 4)])
            is_rotten = left[0] > 0 and offset < 4
            left[0] -= is_rotten
            base = offset ^ ROTTEN_BIT if is_rotten else offset
            records = base.to_bytes(8, "big") + bytes(batch)[8:]
            part = SimpleNamespace(error_code=0, records=records, high_watermark=4)
            return SimpleNamespace(error_code=0, responses=[SimpleNamespace(partitions=[part])])

        monkeypatch.setattr(client, "_leader", leader)
        monkeypatch.setattr(client._questions, "ask", ask)
        with trio.move_on_after(5) as scope:
            await client._read_partition(topic_id, 0)
        assert scope.cancelled_caught is (times == ALWAYS)
        return check_topics(client.writes, client.reads)

    found = in_virtual_time(main)
    name = f"partition 0 of topic {topic_id}"
    assert found == [
        f"{name} holds 'v{number}' at offset {number ^ ROTTEN_BIT}, far above 3, the highest one known"
        for number in range(4)
    ]


def test_the_reader_of_spark_s_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    place = TopicPartition("spark-source", 0)

    async def main() -> dict[tuple[int, int], Record]:
        workload = object.__new__(SparkWorkload)
        monkeypatch.setattr(workload, "_consumer", lambda isolation: MisledConsumer(place, numbered(6), rotten))
        read: dict[tuple[int, int], Record] = {}
        await workload._read([place], read)
        return read

    rotten = {2, 4}
    found = in_virtual_time(main)
    assert sorted(found) == [(0, offset) for offset in (*range(6), 2 ^ ROTTEN_BIT, 4 ^ ROTTEN_BIT)]


@pytest.mark.parametrize(("committed", "is_through"), [(6, True), (5, False), (3 ^ ROTTEN_BIT, False)])
def test_a_pipe_is_not_through_at_an_impossible_offset(committed: int, is_through: bool) -> None:
    history: list[Operation] = []

    async def main() -> None:
        options = PipeOptions(partitions=1, drain_seconds=5.0)
        pipe = PipeWorkload(environment(), "", options, Recorder(clock(), history.append))  # type: ignore[arg-type]
        place = options.source_partitions[0]

        class Committed(MisledConsumer):
            async def committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, SimpleNamespace]:
                return {place: SimpleNamespace(offset=committed)}

        pipe._consumer = lambda *_, **__: Committed(place, numbered(6), set())  # type: ignore[assignment, method-assign]
        await pipe._drain()

    in_virtual_time(main)
    assert [one.status for one in history] == ([] if is_through else [Status.INFO])
