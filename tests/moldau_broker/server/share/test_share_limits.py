"""Goal: a share fetch takes what its limits allow, waits for its minimum, and reads no log in vain.

Method: the fetcher over stand-ins for share-partitions, with all combinations of what they have and what is asked for.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.runtime.net.serving.answers import FileRange, FileRecords
from moldau_broker.replication.purgatory import PurgatoryFullError
from moldau_broker.server.share.core.values import AcquiredRange, AcquireMode
from moldau_broker.server.share.fetching import TURN_BYTES, Fetched, ShareFetcher, ShareQuery
from moldau_broker.server.share.led_partition import Acquisition, LedPartition, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD_BYTES = 10
UNUSED: Any = None


def is_open() -> bool:
    """The member's session goes on."""
    return True


def query(*, max_records: int = 100, min_bytes: int = 0, max_bytes: int = 1_000) -> ShareQuery:
    return ShareQuery(
        group_id="g",
        member="m",
        max_wait_ms=0,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        max_records=max_records,
        batch_size=1,
        mode=AcquireMode.BATCH_OPTIMIZED,
    )


class Groups:
    """Share-partitions that have some records each, of which one acquisition gives whole batches."""

    def __init__(self, counts: tuple[int, ...], batch_records: int) -> None:
        self.counts = counts
        self.batch_records = batch_records
        self.asked: dict[int, int] = {}
        """The records that each share-partition gave, in the order of the questions."""

    def settings(self, _: str) -> Any:
        return None

    def open(self, _: str, partition: Any) -> Any:
        return partition

    def acquire(self, led: int, wanted: Wanted) -> Acquisition | None:
        assert wanted.records_max > 0, "no more records are wanted"
        assert wanted.bytes_max > 0 or wanted.first, "no more bytes are wanted"
        assert wanted.first is not any(self.asked.values())
        count = min(self.counts[led], wanted.records_max)
        whole = -(-count // self.batch_records) * self.batch_records  # the last batch is acquired whole
        if whole * RECORD_BYTES > wanted.bytes_max:
            whole = wanted.bytes_max // RECORD_BYTES // self.batch_records * self.batch_records
            whole = max(whole, self.batch_records if wanted.first else 0)
        self.asked[led] = found = min(whole, self.counts[led])
        if not found:
            return None
        size = found * RECORD_BYTES
        return Acquisition(FileRecords((FileRange(UNUSED, 0, size),)), (AcquiredRange(0, found - 1, 1),), found, size)


@pytest.mark.parametrize("batch_records", [1, 3])
@pytest.mark.parametrize("max_bytes", [0, 15, 40, 1_000])
def test_a_fetch_asks_until_its_limits_are_used_up(max_bytes: int, batch_records: int) -> None:
    """A partition that is asked in vain costs a read of its log; one that is left out has its turn with the next."""
    for counts, max_records in product(product((0, 1, 4), repeat=3), (1, 3, 100)):
        groups: Any = Groups(counts, batch_records)
        clock: Any = SimpleNamespace(monotonic_ms=lambda: 0.0)
        fetcher = ShareFetcher(clock, groups, UNUSED)
        keys: Any = (0, 1, 2)
        lookup: Any = lambda key: key  # noqa: E731
        asked = query(max_records=max_records, max_bytes=max_bytes)
        found = trio.run(fetcher.fetch, asked, keys, lookup, 1 << 20, is_open)
        given = {key: count for key, count in groups.asked.items() if count}
        assert {key: each.count for key, each in found.acquired.items()} == given
        taken = sum(given.values())
        used_up = taken >= max_records or (bool(taken) and taken * RECORD_BYTES >= max_bytes)
        assert list(groups.asked) == [0, 1, 2][: len(groups.asked)]
        assert used_up or len(groups.asked) == len(keys), (counts, max_records)


class LongReads:
    """Share-partitions of which each read takes a whole turn, and notes which turn that was."""

    def __init__(self, wanted_from: int) -> None:
        """The first ``wanted_from`` reads of each share-partition find nothing that the group wants."""
        self.wanted_from = wanted_from
        self.turn = 0
        self.reads: list[tuple[int, int]] = []

    def settings(self, _: str) -> Any:
        return None

    def open(self, _: str, partition: Any) -> Any:
        return partition

    def acquire(self, led: Any, _: Wanted) -> Acquisition:
        self.reads.append((self.turn, led))
        if sum(number == led for _, number in self.reads) <= self.wanted_from:
            return Acquisition(FileRecords(()), (), 0, TURN_BYTES)
        return Acquisition(FileRecords((FileRange(UNUSED, 0, 10),)), (AcquiredRange(0, 0, 1),), 1, TURN_BYTES)


def fetch_in_turns(groups: LongReads, goes_on: Callable[[], bool]) -> Fetched:
    class Turns(trio.abc.Instrument):
        def before_task_step(self, _: trio.lowlevel.Task) -> None:
            groups.turn += 1

    clock: Any = SimpleNamespace(monotonic_ms=lambda: 0.0)
    stand_in: Any = groups
    fetcher = ShareFetcher(clock, stand_in, UNUSED)
    keys: Any = (0, 1, 2)
    lookup: Any = lambda key: key  # noqa: E731
    return trio.run(fetcher.fetch, query(), keys, lookup, 1 << 20, goes_on, instruments=[Turns()])


@pytest.mark.parametrize("wanted_from", [0, 3])
def test_other_tasks_run_between_long_reads(wanted_from: int) -> None:
    """An answer reads sixteen megabytes at most, and as many that the group does not want of each partition."""
    groups = LongReads(wanted_from)
    found = fetch_in_turns(groups, is_open)
    assert len(found.acquired) == 3
    assert [led for _, led in groups.reads] == [led for led in range(3) for _ in range(wanted_from + 1)]
    turns = [turn for turn, _ in groups.reads]
    assert len(dict.fromkeys(turns)) == len(turns), "two reads in one turn"


def test_a_fetch_reads_on_behind_many_unwanted_records() -> None:
    """An aborted transaction of a gigabyte: a fetch that waited behind its first part would not be woken."""
    led: Any = SimpleNamespace(is_acquirable=lambda _: True)
    groups: Any = LongReads(40)
    clock: Any = SimpleNamespace(monotonic_ms=lambda: 0.0)
    keys: Any = (0,)
    lookup: Any = lambda _: led  # noqa: E731
    waits: Any = None  # it does not wait
    asked = replace(query(), max_wait_ms=60_000)
    found = trio.run(ShareFetcher(clock, groups, waits).fetch, asked, keys, lookup, 1 << 20, is_open)
    assert list(found.acquired) == [0]
    assert len(groups.reads) == 41


def test_a_session_that_ends_between_reads_gets_nothing_more() -> None:
    """The end released its records: what is acquired afterwards would stay locked until the locks expire."""
    groups = LongReads(0)
    found = fetch_in_turns(groups, lambda: len(groups.reads) < 2)
    assert len(groups.reads) == 2
    assert not found.acquired


def test_nothing_is_acquired_after_the_end_of_a_session() -> None:
    """Any moment may be the end, also the one in which other tasks run before the next read."""

    def fetched_until(end: int) -> int:
        groups = LongReads(0)
        found = fetch_in_turns(groups, lambda: groups.turn < end)
        assert all(turn < end for turn, _ in groups.reads), (end, groups.reads)
        assert len(found.acquired) == (3 if len(groups.reads) == 3 else 0)
        return len(groups.reads)

    assert {fetched_until(end) for end in range(20)} == {0, 1, 2, 3}


@pytest.mark.parametrize("min_bytes", [0, 1, 2, 100])
def test_a_fetch_is_answered_when_it_finds_its_minimum(min_bytes: int) -> None:
    """Or an error: that is answered at once."""
    fetcher = ShareFetcher(UNUSED, UNUSED, UNUSED)
    for sizes in product((None, 0, 1, 60, 99, 100), repeat=2):
        leds: list[Any] = [
            SimpleNamespace(
                error=ErrorCode.NOT_LEADER_OR_FOLLOWER if size is None else ErrorCode.NONE,
                is_acquirable=lambda _, size=size: size != 0,
                available_bytes=lambda _, most, size=size: min(size or 0, most),
            )
            for size in sizes
        ]
        enough = None in sizes or sum(size or 0 for size in sizes) >= max(1, min_bytes)
        assert fetcher._has_enough(query(min_bytes=min_bytes), UNUSED, leds) is enough, sizes


def test_a_fetch_without_room_to_wait_is_answered_at_once() -> None:
    """The broker has as many waiting requests as it may have; a fetch that asked again and again would stop it."""
    looks = 0

    def monotonic_ms() -> float:
        nonlocal looks
        looks += 1
        assert looks < 10
        return 0.0

    def watch(*_: object) -> None:
        raise PurgatoryFullError

    clock: Any = SimpleNamespace(monotonic_ms=monotonic_ms)
    led = SimpleNamespace(is_acquirable=lambda _: False, watch=None, partition=Mock())
    groups: Any = SimpleNamespace(settings=lambda _: None, open=lambda _, partition: partition)
    waits: Any = SimpleNamespace(fetches=SimpleNamespace(watch=watch))
    keys: Any = (0,)
    lookup: Any = lambda _: led  # noqa: E731
    asked = replace(query(), max_wait_ms=10_000)
    found = trio.run(ShareFetcher(clock, groups, waits).fetch, asked, keys, lookup, 1 << 20, is_open)
    assert not found.acquired
    assert not found.errors


@pytest.mark.parametrize("can_acquire", [True, False])
@pytest.mark.parametrize("offset", [3, 5, 7])
def test_a_log_is_read_only_if_it_may_have_records(offset: int, can_acquire: bool) -> None:
    """Each read takes a megabyte; a group whose members hold as many records as they may acquires none."""
    high_watermark, reads = 5, []

    def read(first: int, **_: object) -> Any:
        reads.append(first)
        return SimpleNamespace(ranges=())

    partition: Any = SimpleNamespace(
        log=SimpleNamespace(read=read), replica=SimpleNamespace(high_watermark=high_watermark)
    )
    core: Any = SimpleNamespace(next_fetch_offset=offset, can_acquire=can_acquire)
    led = LedPartition(UNUSED, partition, 1, core)
    settings: Any = SimpleNamespace(reads_committed=False)
    wanted = Wanted(
        member="m", records_max=1, bytes_max=100, batch_size=1, mode=AcquireMode.BATCH_OPTIMIZED, first=True
    )
    assert led.acquire(settings, wanted, 0.0) is None
    assert reads == ([offset] if can_acquire and offset < high_watermark else [])


@pytest.mark.parametrize("error", [None, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.KAFKA_STORAGE_ERROR])
def test_a_remote_read_that_has_ended_is_released(error: ErrorCode | None) -> None:
    """Whatever it has found: reads in memory are few."""
    released: list[Any] = []
    read = SimpleNamespace(has_ended=True, error=error, records=b"")
    remote: Any = SimpleNamespace(ask=lambda *_: read, release=released.extend)
    groups: Any = SimpleNamespace(acquire=lambda *_: None)
    fetcher = ShareFetcher(UNUSED, groups, UNUSED, remote)
    led: Any = SimpleNamespace(partition=None, upper_offset=lambda _: 9)
    settings: Any = SimpleNamespace(reads_committed=False)
    found = fetcher._acquire_remote(led, settings, UNUSED, 0, Fetched())
    assert found is (error if error is ErrorCode.KAFKA_STORAGE_ERROR else None)
    assert released == [read]
