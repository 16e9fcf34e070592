"""The write-ahead log: what was synced is read back; torn ends are cut; damage anywhere else is reported."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.runtime.environment import OpenMode
from moldau_jepsen.simulation.disk import NodeDisk
from moldau_jepsen.simulation.disk_profile import DiskProfile
from moldau_jepsen.simulation.platters import VirtualDisk
from moldau_quorum.log_engine import LogDamagedError
from moldau_quorum.raft.snapshot_store import SnapshotFileReader, SnapshotWriter, open_newest_snapshot
from moldau_quorum.raft.types import Configuration, Entry, EntryKind, HardState, SnapshotPoint
from moldau_quorum.raft.wal import WriteAheadLog, make_durable_directories
from raft_world import NoTrace

DIRECTORY = "/data/metadata"


def fresh_disk(seed=0):
    platters = VirtualDisk("disk", random.Random(seed), NoTrace(), DiskProfile())
    make_durable_directories(NodeDisk(platters), DIRECTORY)
    return platters


def open_wal(platters, segment_bytes=400):
    return WriteAheadLog.open(NodeDisk(platters), DIRECTORY, segment_bytes)


def sync(wal):
    work = wal.begin_sync()
    if work is not None:
        work.run()
        wal.sync_done(work)


def write(wal, hard_state, entries, prev_epoch=0):
    if wal.wants_rotation:
        sync(wal)
        wal.rotate()
    wal.write(hard_state, entries, prev_epoch)


def entry(index, epoch, size=5):
    return Entry(index, epoch, EntryKind.DATA, bytes([index % 256]) * size)


def contents(log):
    return [log.entry(index) for index in range(log.first_index, log.last_index + 1)]


def filled(count=30, segment_bytes=400, seed=0):
    platters = fresh_disk(seed)
    wal, _, _ = open_wal(platters, segment_bytes)
    for index in range(1, count + 1):
        write(wal, HardState(epoch=index, voted_for=1), [entry(index, index)])
        sync(wal)
    wal.close()
    return platters, [entry(index, index) for index in range(1, count + 1)]


@pytest.mark.parametrize("size", [5, 3000])
def test_what_a_failed_sync_left_in_the_cache_is_durable_when_the_next_process_counts_it(size):
    """The kernel counts the pages of a failed sync as written: the next process must write them again."""
    for seed in range(10):
        platters = fresh_disk(seed)
        wal, _, _ = open_wal(platters, 1 << 20)
        write(wal, HardState(epoch=1, voted_for=1), [entry(1, 1)])
        sync(wal)
        write(wal, HardState(epoch=2, voted_for=3), [entry(index, 2, size) for index in range(2, 8)])
        platters.profile.sync_error_probability = 1.0
        with pytest.raises(OSError, match="Input/output error"):
            sync(wal)
        platters.profile.sync_error_probability = 0.0
        wal.close()
        wal, counted_state, log = open_wal(platters, 1 << 20)
        counted = contents(log)
        assert counted_state == HardState(epoch=2, voted_for=3), "it is in the cache"
        wal.close()
        platters.lose_power()
        _, hard_state, log = open_wal(platters, 1 << 20)
        assert (contents(log), hard_state) == (counted, counted_state)


def segments(platters):
    return [path for path in platters.files(DIRECTORY) if path.endswith(".wal")]


def test_what_was_synced_comes_back():
    platters, entries = filled()
    assert len(segments(platters)) > 3, "the log has rotated"
    platters.lose_power()
    _, hard_state, log = open_wal(platters)
    assert contents(log) == entries
    assert hard_state == HardState(epoch=30, voted_for=1)


def test_entries_replace_others():
    platters = fresh_disk()
    wal, _, _ = open_wal(platters)
    write(wal, None, [entry(index, 1) for index in range(1, 10)])
    write(wal, None, [entry(4, 2), entry(5, 2)], prev_epoch=1)
    sync(wal)
    _, _, log = open_wal(platters)
    assert [(item.index, item.epoch) for item in contents(log)] == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]


def test_segments_go_when_a_snapshot_covers_them():
    platters = fresh_disk()
    wal, _, _ = open_wal(platters)
    for index in range(1, 41):
        write(wal, HardState(epoch=3, voted_for=2) if index == 1 else None, [entry(index, 3)])
        sync(wal)
    before = len(segments(platters))
    assert wal.drop_before(20) > 0
    assert len(segments(platters)) < before
    _, hard_state, log = open_wal(platters)
    assert log.base_index <= 20
    assert log.last_index == 40
    assert hard_state == HardState(epoch=3, voted_for=2), "the vote is repeated where a segment begins"


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 30), steps=st.lists(st.sampled_from(["write", "sync", "vote", "cut"]), max_size=40))
def test_power_loss_takes_no_more_than_what_was_not_synced(seed, steps):
    """After a power loss the log holds all that was synced, and a prefix of what was written after."""
    platters = fresh_disk(seed)
    wal, _, _ = open_wal(platters)
    written, state = [], HardState()
    durable = (list(written), state)
    histories = [durable]
    for number, step in enumerate(steps):
        if wal.wants_rotation:
            sync(wal)
            durable, histories = (list(written), state), [(list(written), state)]
            wal.rotate()
        if step == "sync":
            sync(wal)
            durable = (list(written), state)
            histories = [durable]
        elif step == "vote":
            state = HardState(epoch=number + 1, voted_for=seed % 3)
            wal.write(state, [])
        else:
            keep = len(written) // 2 if step == "cut" and written else len(written)
            added = entry(keep + 1, number + 1, size=seed % 700)
            wal.write(None, [added], written[keep - 1].epoch if keep else 0)
            written = [*written[:keep], added]
        histories.append((list(written), state))
        if step == "cut":
            histories.append((written[:-1], state))
    platters.lose_power()
    _, found_state, log = open_wal(platters)
    assert (contents(log), found_state) in histories


def flip(platters, path, position, bit=0):
    platters.flip_bit(path, position, bit)


@pytest.mark.parametrize("which", [0, 1, -2])
def test_damage_in_a_sealed_segment_is_reported(which):
    platters, _ = filled()
    path = segments(platters)[which]
    flip(platters, path, 60)
    with pytest.raises(LogDamagedError, match=path):
        open_wal(platters)


def test_every_flipped_bit_of_the_log_is_reported_or_torn_at_the_very_end():
    """One flipped bit anywhere: reported, unless it hits what comes after the last proof, a mark without content."""
    platters, entries = filled(count=6, segment_bytes=1 << 20)
    (path,) = segments(platters)
    size = NodeDisk(platters).file_size(path)
    silent = []
    for position in range(0, size, 3):
        flip(platters, path, position, position % 8)
        try:
            wal, _, log = open_wal(platters, 1 << 20)
        except LogDamagedError:
            flip(platters, path, position, position % 8)
        else:
            wal.close()
            assert contents(log) == entries, "what is silent loses nothing"
            silent.append(position)
            platters, entries = filled(count=6, segment_bytes=1 << 20)
    assert all(position >= size - 21 for position in silent), silent


def test_missing_segment_is_reported():
    platters, _ = filled()
    NodeDisk(platters).remove(segments(platters)[2])
    with pytest.raises(LogDamagedError, match="missing"):
        open_wal(platters)


def test_torn_end_is_cut_and_writing_goes_on():
    platters, entries = filled(count=3, segment_bytes=1 << 20)
    disk = NodeDisk(platters)
    (path,) = segments(platters)
    file = disk.open(path, OpenMode.WRITE)
    file.append([b"mlr1\x07\x00\x00"])
    file.close()
    wal, _, log = open_wal(platters, 1 << 20)
    assert wal.torn_bytes == 7
    wal.write(None, [entry(4, 4)])
    sync(wal)
    _, _, log = open_wal(platters, 1 << 20)
    assert contents(log) == [*entries, entry(4, 4)]


# --- snapshots


POINT = SnapshotPoint(index=7, epoch=3, configuration=Configuration())


def written_snapshot(platters, pieces=(b"one", b"", b"three" * 100)):
    writer = SnapshotWriter(NodeDisk(platters), DIRECTORY, POINT, "taking")
    for piece in pieces:
        writer.add(piece)
    writer.finish()
    return writer.path


def test_snapshot_is_read_back_after_power_loss():
    platters = fresh_disk()
    written_snapshot(platters)
    platters.lose_power()
    reader = open_newest_snapshot(NodeDisk(platters), DIRECTORY)
    assert reader is not None
    assert reader.point == POINT
    assert reader.read_pieces(0, 1 << 20) == (b"one", b"", b"three" * 100)
    assert reader.read_pieces(1, 1) == (b"",)
    assert reader.info.piece_count == 3


def test_unfinished_snapshot_is_cleared_away():
    platters = fresh_disk()
    writer = SnapshotWriter(NodeDisk(platters), DIRECTORY, POINT, "taking")
    writer.add(b"half")
    assert open_newest_snapshot(NodeDisk(platters), DIRECTORY) is None
    assert platters.files(DIRECTORY) == []


def test_every_flipped_bit_of_a_snapshot_is_reported():
    platters = fresh_disk()
    path = written_snapshot(platters, pieces=(b"one", b"two"))
    for position in range(NodeDisk(platters).file_size(path)):
        flip(platters, path, position, position % 8)
        with pytest.raises(LogDamagedError, match=path):
            SnapshotFileReader(NodeDisk(platters), path).read_pieces(0, 1 << 20)
        flip(platters, path, position, position % 8)
