"""Goal: rows L2 and L4: when a segment ends, and how many reads a lookup needs. Method: a disk that counts reads."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace

import pytest

from moldau.runtime.config import TOPIC_CONFIG
from moldau_broker.log.config import LogConfig
from moldau_broker.log.directories.manager import LogManager
from moldau_broker.log.values import run_work
from moldau_jepsen.world.disk.disk import VirtualFile
from support.log.model import PARTITION, START_MS, VirtualMachine, make_batch


def open_log(machine: VirtualMachine | None = None, **config: object):
    machine = machine or VirtualMachine(1)
    manager = LogManager(
        machine.disk,
        ["/data"],
        node_id=1,
        cluster_id="c",
        random=random.Random(1),
        default_config=LogConfig(**config),
    )
    manager.start(START_MS)
    manager.begin_discarding(START_MS)
    return manager, manager.get_or_create(PARTITION, topic_id=uuid.UUID(int=1), now_ms=START_MS)


def put(log, *, now: int = START_MS, timestamp: int | None = None, value: bytes = b"x" * 100):
    data = make_batch([(now if timestamp is None else timestamp, b"k", value)])
    return log.append_as_leader(memoryview(data), leader_epoch=1, now_ms=now)


def test_a_segment_never_exceeds_its_size() -> None:
    _, log = open_log(segment_bytes=1000)
    rnd = random.Random(1)
    before = b""
    for _ in range(200):
        put(log, value=b"x" * rnd.randrange(900))
        assert all(segment.size <= 1000 for segment in log.segments)
        content = b"".join(segment.file.read(0, segment.size) for segment in log.segments)
        assert content.startswith(before), "what is written stays as it is"
        before = content
    bases = [segment.base_offset for segment in log.segments]
    assert bases == sorted(bases)
    assert len(bases) > 50


def test_staged_batches_count_for_the_size() -> None:
    _, log = open_log(segment_bytes=1000)
    for _ in range(30):
        data = make_batch([(START_MS, b"k", b"x" * 100)])
        log.stage_as_leader(memoryview(data), leader_epoch=1, now_ms=START_MS)
    log.flush_staged()
    assert log.log_end_offset == 30
    assert all(segment.size <= 1000 for segment in log.segments)


def test_roll_by_time() -> None:
    """The age counts by message timestamps; a segment without appends is closed by the clock."""
    manager, log = open_log(segment_ms=1000)
    put(log)
    assert not put(log, now=START_MS + 900, timestamp=START_MS + 1000).rolled
    assert put(log, now=START_MS + 900, timestamp=START_MS + 1001).rolled
    assert not put(log, now=START_MS + 900, timestamp=START_MS + 1001).rolled
    log.update_high_watermark(log.log_end_offset)
    for work in manager.tick(START_MS + 60_000, START_MS + 60_000):
        run_work(work)
    assert (log.storage.segments.count, log.storage.segments.active.size) == (3, 0)


LONG, SHORT = {"segment_ms": 100_000, "segment_jitter_ms": 50_000}, {"segment_ms": 1_000}


@pytest.mark.parametrize(
    ("before", "after"), [(LONG, SHORT), (LONG, {"compact": True, "max_compaction_lag_ms": 1_000}), (SHORT, LONG)]
)
def test_the_jitter_follows_the_settings(before: dict[str, int], after: dict[str, int]) -> None:
    """Drawn for a longer time, it would be more than the whole age, and each batch would begin a segment."""
    _, log = open_log(**before)
    put(log)
    log.update_config(replace(log.config, **after))
    first, last = START_MS, START_MS + log.config.roll_ms
    while first < last:
        middle = (first + last) // 2
        if log.storage.must_roll(100, middle, log.log_end_offset, middle):
            last = middle
        else:
            first = middle + 1
    jitter_ms = START_MS + log.config.roll_ms + 1 - last
    assert 0 < jitter_ms < log.config.jitter_ms_max
    assert log.storage.next_roll_ms() == last
    assert not put(log).rolled


def test_roll_when_an_index_is_full() -> None:
    _, log = open_log(segment_index_bytes=12 * 4, index_interval_bytes=1)
    for number in range(20):
        put(log, timestamp=START_MS + number)
    assert log.storage.segments.count > 3
    for segment in log.segments[:-1]:
        assert segment.time_index.count <= 4
        assert segment.offset_index.count <= 6


def test_a_compacted_segment_ends_in_time_for_its_lag() -> None:
    assert LogConfig(compact=True, max_compaction_lag_ms=5, segment_ms=100).roll_ms == 5
    assert LogConfig(compact=False, max_compaction_lag_ms=5, segment_ms=100).roll_ms == 100


def test_reserved_space_is_given_back(tmp_path) -> None:
    """Preallocation changes neither the size nor what a start finds."""
    from moldau.runtime.ports.real import RealDisk

    class Real:
        disk = RealDisk()

    manager = LogManager(
        Real.disk,
        [f"{tmp_path}/d"],
        node_id=1,
        cluster_id="c",
        random=random.Random(1),
        default_config=LogConfig(preallocate=True, segment_bytes=1 << 20),
    )
    manager.start(START_MS)
    log = manager.get_or_create(PARTITION, topic_id=uuid.UUID(int=1), now_ms=START_MS)
    put(log)
    path = tmp_path / "d" / "topic-0" / "00000000000000000000.log"
    reserved = path.stat().st_blocks * 512
    assert path.stat().st_size == log.size_bytes
    assert reserved >= 1 << 20
    log.storage.roll(log.log_end_offset, START_MS)
    assert path.stat().st_blocks * 512 < reserved
    manager.close()


def test_space_is_reserved_only_where_it_is_wanted(monkeypatch) -> None:
    """Reserving takes milliseconds on some file systems, and an append would wait for it: a segment reserves nothing,
    or with ``preallocate`` all of its space once.
    """
    reserved: list[int] = []
    good = VirtualFile.preallocate
    monkeypatch.setattr(VirtualFile, "preallocate", lambda self, size: (reserved.append(size), good(self, size))[1])
    for wanted, expected in ((False, []), (True, [8 << 20])):
        _, log = open_log(segment_bytes=8 << 20, max_message_bytes=2 << 20, preallocate=wanted)
        for _ in range(6):
            put(log, value=bytes(1 << 20))
        assert log.storage.segments.active.size > 6 << 20
        assert reserved == expected


def test_a_lookup_reads_one_interval_and_one_batch(monkeypatch) -> None:
    """L4, L5: however large the log, a few pages of the index and of the log are read, and the right batch is found."""
    _, log = open_log(segment_bytes=1 << 20, index_interval_bytes=4096)
    for _ in range(6000):
        put(log)
    log.storage.roll(log.log_end_offset, START_MS)
    reads: list[int] = []
    good = VirtualFile.read

    def read(self, position: int, count: int) -> bytes:
        reads.append(count)
        return good(self, position, count)

    monkeypatch.setattr(VirtualFile, "read", read)
    rnd = random.Random(2)
    for _ in range(300):
        offset = rnd.randrange(6000)
        log.read(offset, max_bytes=1, upper_bound_offset=6000, min_one_batch=True)
    reads.clear()
    for _ in range(300):
        offset = rnd.randrange(6000)
        result = log.read(offset, max_bytes=1, upper_bound_offset=6000, min_one_batch=True)
        (piece,) = result.ranges
        assert int.from_bytes(piece.file.read(piece.position, 8), "big") == offset
    assert len(reads) / 300 < 5
    assert sum(reads) / 300 < 3 * 4096


def test_the_tail_is_found_without_a_read(monkeypatch) -> None:
    _, log = open_log()
    for _ in range(3000):
        put(log)
    monkeypatch.setattr(VirtualFile, "read", lambda *arguments: pytest.fail("the tail was looked up on disk"))
    for offset in range(2500, 3000):
        assert log.read(offset, max_bytes=1 << 20, upper_bound_offset=3000, min_one_batch=True).size_bytes > 0


def test_settings_come_from_the_declarations() -> None:
    config = LogConfig.from_config(TOPIC_CONFIG.parse({"cleanup.policy": "compact,delete", "flush.messages": "1"}))
    assert (config.compact, config.delete, config.bounds_unsynced) == (True, True, True)
    assert LogConfig.from_config(TOPIC_CONFIG.parse({})) == LogConfig()
