"""Goal: while a loop reads record by record, all calls see the positions behind the records that it has received.

Method: the consumers for threads and asyncio on a trio consumer of the test that only keeps positions. The loop gets
each possible number of the records of a poll; then each call is made, and compared with a count of those records.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from moldau import TopicPartition, aio, blocking
from moldau.consumer import CommittedOffset, ConsumedBatch
from moldau.consumer.core.positions import Lag
from moldau.records import Record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

FACES = {"blocking": blocking, "aio": aio}
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
OFFSETS = {P0: (10, 13), P1: (20, 21)}
"""The records of the poll: in partition 0 without the offsets 11 and 12, which a transaction's marker took."""
EPOCHS = {P0: 5, P1: 6}
ENDS = {P0: 14, P1: 22}
COUNTS = range(5)


def expected(count: int) -> dict[TopicPartition, int]:
    """Returns the positions of a loop that has received so many records."""
    left = [(P0, 10), (P0, 13), (P1, 20), (P1, 21)][count:]
    return {each: next((offset for one, offset in left if one == each), ENDS[each]) for each in (P0, P1)}


class Positions:
    """A trio consumer that keeps positions; its poll returns all records at once."""

    def __init__(self) -> None:
        self.clusters_left = 0
        self.positions = {P0: 10, P1: 20}
        self.epochs: dict[TopicPartition, int] = {}
        self.commits: list[tuple[object, object]] = []

    async def poll(self, _: float) -> list[ConsumedBatch[Any, Any]]:
        self.positions = dict(ENDS)
        return [
            ConsumedBatch(
                topic=each.topic,
                partition=each.partition,
                records=[Record(offset, 0, None, b"v") for offset in offsets],
                next_offset=ENDS[each],
                leader_epoch=EPOCHS[each],
                high_watermark=ENDS[each],
                cluster=self.clusters_left,
            )
            for each, offsets in OFFSETS.items()
        ]

    def seek(self, partition: TopicPartition, offset: int, *, leader_epoch: int, cluster: int) -> None:
        if cluster != self.clusters_left or partition not in self.positions:
            raise LookupError
        assert leader_epoch == EPOCHS[partition]
        self.positions[partition] = offset

    async def position(self, partition: tuple[str, int], _: object) -> int:
        return self.positions[TopicPartition(*partition)]

    def position_nowait(self, partition: tuple[str, int]) -> int:
        return self.positions[TopicPartition(*partition)]

    def lag(self, partition: tuple[str, int]) -> Lag:
        return Lag(position=self.positions[TopicPartition(*partition)], end_offset=99)

    def offsets_to_commit(self, starts: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, object]:
        assert {each: epoch for each, (_, epoch) in starts.items()}.items() <= EPOCHS.items()
        return self.positions | {each: offset for each, (offset, _) in starts.items()}

    async def commit(self, offsets: object = None, *, cluster: int | None = None) -> None:
        self.commits.append((self.positions if offsets is None else offsets, cluster))


class Inline:
    """A portal that runs calls where they are made, and notes positions when it is closed."""

    token = None

    def __init__(self, consumer: Positions) -> None:
        self.consumer = consumer
        self.closed: list[tuple[dict[TopicPartition, int], bool]] = []

    def check_closer(self) -> None:
        """Any caller may close."""

    def call_sync(self, function: Callable[..., object], *given: object, **named: object) -> object:
        return function(*given, **named)

    async def call_async(self, function: Callable[..., Awaitable[object]], *given: object, **named: object) -> object:
        return await function(*given, **named)

    async def call_async_or_undo(self, _: object, function: Any, *given: object, **named: object) -> object:
        return await function(*given, **named)

    def call(self, function: Any, *given: object, **named: object) -> object:
        return asyncio.run(self.call_async(function, *given, **named))

    def call_or_undo(self, _: object, function: Any, *given: object, **named: object) -> object:
        return self.call(function, *given, **named)

    def stop(self, *, gives_up: bool, closing: object = None) -> None:
        del closing
        self.closed.append((dict(self.consumer.positions), gives_up))

    async def shut(self, *, gives_up: bool, closing: object = None) -> None:
        self.stop(gives_up=gives_up, closing=closing)


def after(face: str, count: int, act: Callable[[Any], object]) -> tuple[Any, Positions, Any]:
    """Returns what ``act`` returned for a consumer of whose poll a loop has received ``count`` records."""
    consumer: Any = FACES[face].Consumer({"bootstrap.servers": "b:1", "group.id": "g"})
    consumer._consumer = positions = Positions()
    consumer._portal = portal = Inline(positions)

    async def in_loop() -> object:
        await consumer._fill_unread()
        for _ in range(count):
            await anext(consumer)
        answer = act(consumer)
        return await answer if inspect.isawaitable(answer) else answer

    def in_thread() -> object:
        asyncio.run(consumer._fill_unread())
        records = iter(consumer)
        for _ in range(count):
            next(records)
        return act(consumer)

    answer = asyncio.run(in_loop()) if face == "aio" else in_thread()
    return answer, positions, portal


each_state = pytest.mark.parametrize("count", COUNTS)
each_face = pytest.mark.parametrize("face", FACES)


@each_face
@each_state
def test_positions_are_those_of_the_loop(face: str, count: int) -> None:
    wanted = expected(count)
    for each in (P0, P1):
        for partition in (each, tuple(each)):
            assert after(face, count, lambda consumer, one=partition: consumer.position(one))[0] == wanted[each]
            assert after(face, count, lambda consumer, one=partition: consumer.position_nowait(one))[0] == wanted[each]
            lag = after(face, count, lambda consumer, one=partition: consumer.lag(one))[0]
            assert lag == Lag(position=wanted[each], end_offset=99)
    assert after(face, count, lambda consumer: consumer.offsets_to_commit())[0] == wanted


@each_face
@each_state
def test_a_commit_covers_what_the_loop_has_received(face: str, count: int) -> None:
    _, positions, _ = after(face, count, lambda consumer: consumer.commit())
    assert positions.commits == [(expected(count), None)]
    given = {P0: CommittedOffset(3)}
    _, positions, _ = after(face, count, lambda consumer: consumer.commit(given, cluster=8))
    assert positions.commits == [(given, 8)], "offsets that the caller names are committed as they are"


def leave(error: type[BaseException] | None) -> Callable[[Any], object]:
    def act(consumer: Any) -> object:
        leaving = consumer.__aexit__ if isinstance(consumer, aio.Consumer) else consumer.__exit__
        return leaving(error, None, None)

    return act


@each_face
@each_state
@pytest.mark.parametrize("ends", ["close", "block"])
def test_an_end_commits_what_the_loop_has_received(face: str, count: int, ends: str) -> None:
    """The trio consumer commits its positions when it closes."""
    act = (lambda consumer: consumer.close()) if ends == "close" else leave(None)
    _, _, portal = after(face, count, act)
    assert portal.closed == [(expected(count), False)]


@each_face
@each_state
def test_an_exception_gives_the_records_up(face: str, count: int) -> None:
    """Nothing is committed then, and the thread may have ended by itself: the consumer is not called any more."""
    _, _, portal = after(face, count, leave(ValueError))
    assert portal.closed == [(ENDS, True)]


@each_face
@each_state
def test_an_end_ends_the_loop(face: str, count: int) -> None:
    def close_and_read(consumer: Any) -> object:
        if face == "aio":
            return closed_and_read(consumer)
        consumer.close()
        return list(consumer), list(consumer.batches())

    assert after(face, count, close_and_read)[0] == ([], [])


async def closed_and_read(consumer: Any) -> tuple[list[object], list[object]]:
    await consumer.close()
    return [each async for each in consumer], [each async for each in consumer.batches()]


@each_face
@each_state
def test_records_of_a_cluster_that_was_left_move_nothing(face: str, count: int) -> None:
    """The positions there are those of the new cluster's records."""

    def leave_cluster(consumer: Any) -> None:
        consumer._consumer.clusters_left = 1
        consumer._consumer.positions = {P0: 1, P1: 2}

    def positions_elsewhere(consumer: Any) -> object:
        leave_cluster(consumer)
        return consumer.offsets_to_commit(), consumer.position_nowait(P0), consumer.lag(P1).position

    assert after(face, count, positions_elsewhere)[0] == ({P0: 1, P1: 2}, 1, 2)

    def pause_elsewhere(consumer: Any) -> object:
        leave_cluster(consumer)
        consumer._return_unread()
        return consumer._consumer.positions, len(consumer._unread)

    assert after(face, count, pause_elsewhere)[0] == ({P0: 1, P1: 2}, 0)


@each_face
def test_a_partition_that_was_revoked_holds_up_no_other(face: str) -> None:
    def revoke(consumer: Any) -> object:
        del consumer._consumer.positions[P0]
        consumer._return_unread()
        return consumer._consumer.positions

    assert after(face, 0, revoke)[0] == {P1: 20}
