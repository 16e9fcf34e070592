"""Goal: a share fetch takes what its limits allow, waits for its minimum, and reads no log in vain.

Method: the fetcher over stand-ins for share-partitions, with all combinations of what they have and what is asked for.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau_broker.replication.purgatory import PurgatoryFullError
from moldau_broker.server.share.core.values import AcquireMode
from moldau_broker.server.share.fetching import ShareFetcher, ShareQuery
from moldau_broker.server.share.led_partition import Acquisition, LedPartition, Wanted

RECORD_BYTES = 10
UNUSED: Any = None


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
        return Acquisition(bytes(found * RECORD_BYTES), (), found) if found else None


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
        found = trio.run(fetcher.fetch, query(max_records=max_records, max_bytes=max_bytes), keys, lookup, 1 << 20)
        given = {key: count for key, count in groups.asked.items() if count}
        assert {key: each.count for key, each in found.acquired.items()} == given
        taken = sum(given.values())
        used_up = taken >= max_records or (bool(taken) and taken * RECORD_BYTES >= max_bytes)
        assert list(groups.asked) == [0, 1, 2][: len(groups.asked)]
        assert used_up or len(groups.asked) == len(keys), (counts, max_records)


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
    found = trio.run(ShareFetcher(clock, groups, waits).fetch, asked, keys, lookup, 1 << 20)
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
