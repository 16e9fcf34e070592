"""Goal: after a crash a start knows the log as it was, and reads no more of it than it must.

Method: a broker's process ends without a stop; the next one opens the log, and is compared with the one before.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from moldau.records import encode_batch
from moldau.values import LeaderEpoch
from moldau_broker.log.directories.directory import RECOVERY_POINT_CHECKPOINT
from moldau_broker.log.files.checkpoint import read_offsets
from moldau_broker.log.values import run_work
from moldau_jepsen.world.disk.disk import VirtualFile
from support.log.lab import A, create, open_manager, put
from support.log.model import START_MS, VirtualMachine, all_rows, make_batch

if TYPE_CHECKING:
    import pytest

    from moldau_broker.log.directories.manager import LogManager

COMPACTED = {"compact": True, "delete": False, "min_cleanable_dirty_ratio": 0.0}


def killed(manager: LogManager, machine: VirtualMachine) -> None:
    """Ends the process; the operating system keeps what it wrote."""
    manager.directories[0].release()
    machine.boot(power_lost=False)


def test_a_start_reads_no_batch_below_its_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producers at the recovered segments come from a snapshot: the segments before it are not read.

    Otherwise a start would read the headers of the whole log, which may have terabytes.
    """
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    for number in range(200):
        put(log, b"%d" % number, producer=(7, 0, number))
    log.flush()
    manager.directories[0].recovery_points.write_now({A: log.log_end_offset})
    suspects = [segment.path(".log") for segment in log.segments[-2:]]
    producers = log.producer_state.describe()
    assert log.storage.segments.count > 10
    killed(manager, machine)
    reads: Counter[str] = Counter()
    read = VirtualFile.read

    def counted(file: VirtualFile, position: int, count: int) -> bytes:
        reads[file.path] += file.path.endswith(".log")
        return read(file, position, count)

    monkeypatch.setattr(VirtualFile, "read", counted)
    manager = open_manager(machine, ["/d1"])
    assert [path for path in reads if reads[path] and path not in suspects] == []
    assert manager.logs[A].producer_state.describe() == producers


def test_recovery_keeps_an_epoch_that_lost_its_first_batch() -> None:
    """Compaction takes away the first batches of an epoch, which begins where it began nevertheless.

    A replica that wrote records of the epoch before there, and was away since then, truncates them only if the leader
    says that the former epoch ended before them.
    """
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"], **COMPACTED)
    log = create(manager)

    def write(epoch: int, *keys: bytes) -> None:
        for key in keys:
            batch = make_batch([(START_MS, key, b"value")])
            log.append_as_leader(memoryview(batch), leader_epoch=LeaderEpoch(epoch), now_ms=START_MS)
        log.update_high_watermark(log.log_end_offset)

    write(1, b"a", b"b", b"c")
    write(2, b"d", b"d", b"d")
    write(4, b"e", b"e")
    log.storage.roll(log.log_end_offset, START_MS)
    write(4, b"f")
    log.flush()
    manager.directories[0].recovery_points.write_now({A: log.segments[-1].base_offset})
    for _ in range(30):
        for work in manager.cleaner_works(START_MS + 60_000):
            run_work(work)
    assert [row.offset for row in all_rows(log)] == [0, 1, 2, 5, 7, 8]
    epochs, ends = log.epochs.entries, [log.end_offset_for_epoch(epoch) for epoch in range(1, 5)]
    assert [(entry.leader_epoch, entry.start_offset) for entry in epochs] == [(1, 0), (2, 3), (4, 6)]
    killed(manager, machine)
    log = create(open_manager(machine, ["/d1"], **COMPACTED))
    assert log.epochs.entries == epochs
    assert [log.end_offset_for_epoch(epoch) for epoch in range(1, 5)] == ends


def test_a_lost_transaction_index_drops_no_segment() -> None:
    """The file of a closed segment is gone after a stop in order, and one of the segment's batches has rotted."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    for number in range(60):
        put(log, b"%d" % number, producer=(7, number, 0), transactional=True)
        log.append_end_transaction_marker(
            producer_id=7,
            producer_epoch=number,
            coordinator_epoch=0,
            commit=number % 2 == 0,
            leader_epoch=LeaderEpoch(1),
            now_ms=START_MS,
        )
    segment = log.segments[1]
    end, aborted = log.log_end_offset, list(segment.aborted_entries())
    assert aborted
    rotten = segment.position_of(segment.base_offset + 3)
    manager.close()
    machine.disk.remove(segment.path(".txnindex"))
    machine.virtual_disk.lookup(segment.path(".log")).content[rotten + 70] ^= 1
    machine.boot(power_lost=False)
    log = create(open_manager(machine, ["/d1"]))
    assert log.log_end_offset == end
    assert list(log.segments[1].aborted_entries()) == aborted
    machine.boot(power_lost=True)
    log = create(open_manager(machine, ["/d1"]))
    assert list(log.segments[1].aborted_entries()) == aborted


def test_a_recovered_segment_knows_what_producer_0_aborted() -> None:
    """Ids of producers begin at 0; batches without a producer have -1."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    for number in range(3):
        put(log, b"%d" % number, producer=(0, number, 0), transactional=True)
        log.append_end_transaction_marker(
            producer_id=0,
            producer_epoch=number,
            coordinator_epoch=0,
            commit=number == 1,
            leader_epoch=LeaderEpoch(1),
            now_ms=START_MS,
        )
    put(log, b"without a producer")
    aborted = list(log.segments[0].aborted_entries())
    assert [each.first_offset for each in aborted] == [0, 4]
    killed(manager, machine)
    log = create(open_manager(machine, ["/d1"]))
    assert list(log.segments[0].aborted_entries()) == aborted
    assert [each.producer_id for each in log.producer_state.describe()] == [0]


def test_a_log_that_lost_its_end_has_no_recovery_point_above_it() -> None:
    """Else the next start would take what is appended from here on for durable, and would not look at it."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    for number in range(10):
        put(log, b"%d" % number)
    log.flush()
    manager.directories[0].recovery_points.write_now({A: 10})
    (segment,) = log.segments
    machine.virtual_disk.lookup(segment.path(".log")).content[segment.position_of(6) + 60] ^= 1
    killed(manager, machine)
    log = create(open_manager(machine, ["/d1"]))
    assert (log.log_end_offset, log.recovery_point) == (6, 6)
    assert read_offsets(machine.disk, f"/d1/{RECOVERY_POINT_CHECKPOINT}") == {A: 6}


def test_a_damaged_checkpoint_makes_no_gap_a_loss() -> None:
    """Above a known recovery point a gap between segments is a lost end; without one it may be a leader's own."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    for _ in range(3):
        put(log)
    log.storage.roll(10, START_MS)
    data = encode_batch([(START_MS, b"k", b"v", ())], base_offset=10, partition_leader_epoch=1)
    log.append_as_follower(memoryview(data), now_ms=START_MS)
    log.flush()
    manager.directories[0].recovery_points.write_now({A: 11})
    machine.virtual_disk.lookup(f"/d1/{RECOVERY_POINT_CHECKPOINT}").content[0] ^= 1
    killed(manager, machine)
    log = create(open_manager(machine, ["/d1"]))
    assert [row.offset for row in all_rows(log)] == [0, 1, 2, 10]
