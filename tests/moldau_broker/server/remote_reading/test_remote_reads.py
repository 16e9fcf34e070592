"""Goal: fetches share reads of remote records, in bounded numbers and bytes, and lose no result before they ask again.

Method: the table of reads alone, in virtual time, over a reader whose reads end when the test says so. Random requests
are compared with a model.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from moldau.protocol.errors import ErrorCode
from moldau_broker.log.errors import OffsetOutOfRangeError
from moldau_broker.server.metrics.traffic import Traffic
from moldau_broker.server.remote_reading.reads import (
    KEPT_MS,
    READ_BYTES_MAX,
    READ_TIMEOUT_MS,
    SHARED_MS,
    RemoteRead,
    RemoteReads,
)
from moldau_broker.server.remote_reading.values import (
    RemoteRange,
    RemoteRecords,
    RemoteSegmentMissingError,
    RemoteStorageError,
    first_batches,
)
from support.cluster.broker_cluster import batch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Outcome = RemoteRecords | Exception


class Reader:
    """Ends a read when its outcome is put."""

    def __init__(self) -> None:
        self.asked: list[RemoteRange] = []
        self._outcomes: dict[int, trio.Event] = {}
        self._ends: dict[int, Outcome] = {}

    async def read(self, partition: Any, wanted: RemoteRange) -> RemoteRecords:
        self.asked.append(wanted)
        event = self._outcomes[wanted.offset] = trio.Event()
        await event.wait()
        outcome = self._ends[wanted.offset]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def end(self, offset: int, outcome: Outcome) -> None:
        await trio.testing.wait_all_tasks_blocked()
        self._ends[offset] = outcome
        self._outcomes[offset].set()
        await trio.testing.wait_all_tasks_blocked()


class Waiter:
    def __init__(self) -> None:
        self.ended: list[RemoteRead] = []

    def read_ended(self, read: RemoteRead) -> None:
        assert read.has_ended
        self.ended.append(read)


class Replica:
    def __init__(self) -> None:
        self.key = "t-0"
        self.traffic = Traffic()
        self.replica = SimpleNamespace(state=SimpleNamespace(leader_epoch=3))


def partition_of() -> Any:
    return Replica()


def wanted(offset: int, max_bytes: int = 1000, *, reads_committed: bool = False) -> RemoteRange:
    return RemoteRange(offset, max_bytes, 1 << 40, reads_committed)


def run(test: Callable[[RemoteReads, Reader], Awaitable[None]], reads_max: int = 64, **bounds: Any) -> None:
    async def main() -> None:
        reader = Reader()
        clock: Any = SimpleNamespace(monotonic_ms=lambda: trio.current_time() * 1000)
        reads = RemoteReads(clock, reader, reads_max=lambda: reads_max, max_wait_ms=lambda: 500.0, **bounds)
        async with trio.open_nursery() as nursery:
            await nursery.start(reads.run)
            await test(reads, reader)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def asked(reads: RemoteReads, partition: Any, range_: RemoteRange) -> RemoteRead:
    read = reads.ask(partition, range_)
    assert read is not None
    return read


def test_requests_for_one_place_share_a_read_and_its_end() -> None:
    async def test(reads: RemoteReads, reader: Reader) -> None:
        partition = partition_of()
        read = asked(reads, partition, wanted(7))
        assert asked(reads, partition, wanted(7, 50)) is read
        first, second, gone = Waiter(), Waiter(), Waiter()
        for waiter in (first, second, gone):
            read.add_waiter(waiter)
        read.remove_waiter(gone)
        await reader.end(7, RemoteRecords(b"abc", ()))
        assert (first.ended, second.ended, gone.ended) == ([read], [read], [])
        assert read.records == RemoteRecords(b"abc", ())
        assert asked(reads, partition, wanted(7)) is read, "it stays until an answer has it"
        reads.release([read])
        assert asked(reads, partition, wanted(7)) is read, "others may read side by side"
        await trio.sleep(SHARED_MS / 1000)
        assert asked(reads, partition, wanted(7)) is not read
        await trio.testing.wait_all_tasks_blocked()
        assert len(reader.asked) == 2

    run(test)


def test_another_isolation_or_leader_epoch_is_another_read() -> None:
    """After an unclean election the log may be another one; and a result without aborted transactions lacks them."""

    async def test(reads: RemoteReads, reader: Reader) -> None:
        partition = partition_of()
        found = [asked(reads, partition, wanted(7)), asked(reads, partition, wanted(7, reads_committed=True))]
        partition.replica.state.leader_epoch += 1
        found.append(asked(reads, partition, wanted(7)))
        found.append(asked(reads, partition_of(), wanted(7)))
        assert len({id(each) for each in found}) == 4

    run(test)


def test_more_reads_than_the_bound_are_refused() -> None:
    async def test(reads: RemoteReads, reader: Reader) -> None:
        partition = partition_of()
        assert asked(reads, partition, wanted(1))
        assert asked(reads, partition, wanted(2))
        assert reads.ask(partition, wanted(3)) is None
        await reader.end(1, RemoteRecords(b"", ()))
        assert asked(reads, partition, wanted(3))
        assert reads.statistics()._replace(held_bytes=0) == (3, 0, 1, 0, 2, 0)

    run(test, reads_max=2)


def test_results_that_no_request_took_make_room_oldest_first() -> None:
    async def test(reads: RemoteReads, reader: Reader) -> None:
        partition = partition_of()
        old, new = (asked(reads, partition, wanted(offset, 400)) for offset in (1, 2))
        await reader.end(2, RemoteRecords(b"x" * 400, ()))
        await reader.end(1, RemoteRecords(b"x" * 400, ()))
        assert reads.statistics().held_bytes == 800
        assert asked(reads, partition, wanted(3, 400))
        assert asked(reads, partition, wanted(1)) is old, "it ended last"
        assert asked(reads, partition, wanted(2, 200)) is not new
        assert reads.ask(partition, wanted(4, 900)) is None, "reads in progress keep their room"
        assert reads.statistics().held_bytes <= 1000

    run(test, held_bytes_max=1000)


def test_a_read_with_a_limit_above_all_bounds_runs_alone() -> None:
    """Otherwise a consumer with that limit would never get on; the limit of one read is far below the bound."""

    async def test(reads: RemoteReads, reader: Reader) -> None:
        partition = partition_of()
        assert asked(reads, partition, wanted(1, 5000))
        assert reads.ask(partition, wanted(2, 1)) is None
        await trio.testing.wait_all_tasks_blocked()
        assert reader.asked[0].max_bytes == 5000
        await reader.end(1, RemoteRecords(b"", ()))
        assert asked(reads, partition, wanted(2, 1 << 30))
        await trio.testing.wait_all_tasks_blocked()
        assert reader.asked[1].max_bytes == READ_BYTES_MAX

    run(test, held_bytes_max=1000)


@pytest.mark.parametrize(
    ("error_of", "code"),
    [
        (lambda: RemoteStorageError("away"), ErrorCode.KAFKA_STORAGE_ERROR),
        (lambda: RemoteSegmentMissingError("gone"), ErrorCode.KAFKA_STORAGE_ERROR),
        (lambda: OffsetOutOfRangeError(1, 2, 3), ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_an_error_is_an_outcome_for_one_answer(error_of: Callable[[], Exception], code: ErrorCode) -> None:
    async def test(reads: RemoteReads, reader: Reader) -> None:
        partition = partition_of()
        read = asked(reads, partition, wanted(1))
        await reader.end(1, error_of())
        assert (asked(reads, partition, wanted(1)), read.error, read.records) == (read, code, None)
        reads.release([read])
        assert asked(reads, partition, wanted(1)).error is None
        assert reads.statistics().failed == 1

    run(test)


def test_a_result_is_kept_for_a_while_only() -> None:
    """An error of an hour ago says nothing, and the result holds memory."""

    async def test(reads: RemoteReads, reader: Reader) -> None:
        partition = partition_of()
        read = asked(reads, partition, wanted(1))
        await reader.end(1, RemoteStorageError("away"))
        await trio.sleep(KEPT_MS / 1000 - 0.001)
        assert asked(reads, partition, wanted(1)) is read
        await trio.sleep(0.001)
        assert asked(reads, partition, wanted(1)) is not read

    run(test)


def test_a_read_that_never_ends_is_given_up() -> None:
    async def test(reads: RemoteReads, reader: Reader) -> None:
        read = asked(reads, partition_of(), wanted(1))
        await trio.sleep(READ_TIMEOUT_MS / 1000 + 0.001)
        assert read.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert reads.statistics().in_progress == 0

    run(test)


def test_a_broker_that_stops_begins_no_read() -> None:
    """Its connections may serve a little longer than its tasks run."""

    async def main() -> None:
        clock: Any = SimpleNamespace(monotonic_ms=lambda: 0.0)
        reads = RemoteReads(clock, Reader(), reads_max=lambda: 64, max_wait_ms=lambda: 500.0)
        assert reads.ask(partition_of(), wanted(1)) is None, "it has not begun"
        async with trio.open_nursery() as nursery:
            await nursery.start(reads.run)
            nursery.cancel_scope.cancel()
        assert reads.ask(partition_of(), wanted(1)) is None
        assert reads.statistics().refused == 2

    trio.run(main)


def test_an_answer_gets_whole_batches_up_to_its_limit() -> None:
    one, two = batch(b"one"), batch(b"two", base_offset=1)
    both, size = one + two, len(one)
    assert first_batches(both, 1 << 20, min_one_batch=False) == both
    assert first_batches(both, len(both) - 1, min_one_batch=False) == one
    assert first_batches(both, size, min_one_batch=False) == one
    assert first_batches(both, size - 1, min_one_batch=False) == b""
    assert first_batches(both, size - 1, min_one_batch=True) == one
    assert first_batches(b"", 0, min_one_batch=True) == b""


def test_the_configured_rate_refuses_reads_and_lets_them_again() -> None:
    """KIP-956. A bucket holds the bytes of one second; results that are held are served all the same."""

    async def test(reads: RemoteReads, reader: Reader) -> None:
        partition = partition_of()
        first = asked(reads, partition, wanted(0))
        await reader.end(0, RemoteRecords(b"x" * 300, ()))
        assert reads.ask(partition, wanted(1)) is None
        assert asked(reads, partition, wanted(0)) is first
        await trio.sleep(1.9)
        assert reads.ask(partition, wanted(1)) is None
        await trio.sleep(0.2)
        asked(reads, partition, wanted(1))
        assert reads.statistics().refused == 2
        await reader.end(1, RemoteRecords(b"x" * 300, ()))
        rates.append(1e9)
        assert reads.ask(partition, wanted(2)) is None
        await trio.sleep(0.001)
        asked(reads, partition, wanted(2))

    rates = [100.0]
    run(test, rate=lambda: rates[-1])


def test_a_place_asked_for_again_later_holds_its_bytes_once() -> None:
    """A result that no request took is replaced after its time; its bytes come back."""

    async def test(reads: RemoteReads, reader: Reader) -> None:
        partition = partition_of()
        for _ in range(3):
            asked(reads, partition, wanted(7))
            await reader.end(7, RemoteRecords(b"r" * 400, ()))
            assert reads.statistics().held_bytes == 400
            await trio.sleep(KEPT_MS / 1000 + 1)
        assert len(reader.asked) == 3

    run(test)


@dataclass(slots=True, eq=False)
class Held:
    """A read as the model knows it."""

    offset: int
    size: int
    until_ms: float = float("inf")
    has_ended: bool = False


class ReadsModel:
    """The rules of the table over a list: the first read that has ended is the first to make room."""

    def __init__(self, reads_max: int, bytes_max: int) -> None:
        self.reads_max, self.bytes_max = reads_max, bytes_max
        self.held: list[Held] = []
        self.begun = self.failed = self.refused = self.bytes_read = 0

    @property
    def in_progress(self) -> int:
        return sum(not each.has_ended for each in self.held)

    @property
    def held_bytes(self) -> int:
        return sum(each.size for each in self.held)

    def ask(self, offset: int, size: int, now_ms: float) -> Held | None:
        for each in self.held:
            if each.offset == offset and each.until_ms > now_ms:
                return each
        self.held = [each for each in self.held if each.until_ms > now_ms]
        has_room = self.in_progress < self.reads_max
        while has_room and self.held_bytes + size > self.bytes_max:
            ended = [each for each in self.held if each.has_ended]
            if not ended:
                has_room = not self.in_progress
                break
            self.held.remove(ended[0])
        if not has_room:
            self.refused += 1
            return None
        self.begun += 1
        self.held.append(Held(offset, size))
        return self.held[-1]

    def end(self, read: Held, size: int | None, now_ms: float) -> None:
        self.failed += size is None
        self.bytes_read += size or 0
        read.size, read.until_ms, read.has_ended = size or 0, now_ms + KEPT_MS, True
        self.held.remove(read)
        self.held.append(read)

    def release(self, read: Held, now_ms: float) -> None:
        if read not in self.held or not read.has_ended:
            return
        self.held.remove(read)
        if read.size:
            read.until_ms = min(read.until_ms, now_ms + SHARED_MS)
            self.held.insert(0, read)


@pytest.mark.parametrize("seed", range(3))
def test_random_requests_get_what_a_model_gives(seed: int) -> None:
    draw = random.Random(seed)
    now = SimpleNamespace(ms=0.0)

    async def main() -> None:
        reader, model = Reader(), ReadsModel(3, 1000)
        clock: Any = SimpleNamespace(monotonic_ms=lambda: now.ms)
        reads = RemoteReads(clock, reader, max_wait_ms=lambda: 500.0, reads_max=lambda: 3, held_bytes_max=1000)
        partition = partition_of()
        pairs: list[tuple[RemoteRead, Held]] = []
        async with trio.open_nursery() as nursery:
            await nursery.start(reads.run)
            for _ in range(500):
                step = draw.choice(["ask"] * 4 + ["end"] * 3 + ["release"] * 2 + ["time"])
                open_pairs = [pair for pair in pairs if not pair[1].has_ended]
                if step == "ask":
                    offset, size = draw.randrange(6), draw.choice([100, 400, 600, 1000, 1100])
                    found, expected = reads.ask(partition, wanted(offset, size)), model.ask(offset, size, now.ms)
                    known = [each for read, each in pairs if read is found]
                    assert (found is None) == (expected is None)
                    assert not known or known == [expected]
                    if found is not None and expected is not None and not known:
                        assert expected not in [each for _, each in pairs]
                        pairs.append((found, expected))
                elif step == "end" and open_pairs:
                    _, ended = draw.choice(open_pairs)
                    count = draw.choice([None, 0, 100, 400, 600])
                    error = RemoteStorageError("away")
                    await reader.end(ended.offset, error if count is None else RemoteRecords(b"r" * count, ()))
                    model.end(ended, count, now.ms)
                elif step == "release" and pairs:
                    released = draw.choice(pairs[-5:])
                    reads.release([released[0]])
                    model.release(released[1], now.ms)
                elif step == "time":
                    now.ms += draw.choice([SHARED_MS / 2, SHARED_MS, KEPT_MS / 2, KEPT_MS])
                counts = (model.begun, model.failed, model.refused, model.bytes_read)
                assert reads.statistics() == (*counts, model.in_progress, model.held_bytes)
                traffic = partition.traffic
                counted = (traffic.remote_fetch_requests, traffic.remote_fetch_errors, traffic.remote_fetch_bytes)
                assert counted == (model.begun, model.failed, model.bytes_read)
            nursery.cancel_scope.cancel()

    trio.run(main)
