"""The write-ahead log: what was synced is read back; torn ends are cut; damage anywhere else is reported."""

import contextlib
import itertools
import random
import struct

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.runtime.ports.environment import OpenMode
from moldau_jepsen.world.disk.disk import NodeDisk
from moldau_jepsen.world.disk.disk_profile import DiskProfile
from moldau_jepsen.world.disk.virtual_disk import VirtualDisk
from moldau_quorum.log.port import LogDamagedError
from moldau_quorum.log.raft.core.types import Configuration, Entry, EntryKind, HardState, SnapshotPoint
from moldau_quorum.log.raft.storage import record_format, snapshot_store
from moldau_quorum.log.raft.storage.record_format import RecordType, encode_record, read_record
from moldau_quorum.log.raft.storage.snapshot_store import SnapshotFileReader, SnapshotWriter, open_newest_snapshot
from moldau_quorum.log.raft.storage.wal import SLOT_BYTES, WriteAheadLog, make_durable_directories
from support.proof import examples
from support.raft.world import NoTrace

DIRECTORY = "/data/metadata"


def fresh_disk(seed=0):
    virtual_disk = VirtualDisk("disk", random.Random(seed), NoTrace(), DiskProfile())
    make_durable_directories(NodeDisk(virtual_disk), DIRECTORY)
    return virtual_disk


def open_wal(virtual_disk, segment_bytes=400):
    return WriteAheadLog.open(NodeDisk(virtual_disk), DIRECTORY, segment_bytes)


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
    virtual_disk = fresh_disk(seed)
    wal, _, _ = open_wal(virtual_disk, segment_bytes)
    for index in range(1, count + 1):
        write(wal, HardState(epoch=index, voted_for=1), [entry(index, index)])
        sync(wal)
    wal.close()
    return virtual_disk, [entry(index, index) for index in range(1, count + 1)]


@pytest.mark.parametrize("size", [5, 3000])
def test_entries_left_by_a_failed_sync_are_durable_when_used(size):
    """The kernel counts the pages of a failed sync as written: the next process must write them again."""
    for seed in range(10):
        virtual_disk = fresh_disk(seed)
        wal, _, _ = open_wal(virtual_disk, 1 << 20)
        write(wal, HardState(epoch=1, voted_for=1), [entry(1, 1)])
        sync(wal)
        write(wal, HardState(epoch=2, voted_for=3), [entry(index, 2, size) for index in range(2, 8)])
        virtual_disk.profile.sync_error_probability = 1.0
        with pytest.raises(OSError, match="Input/output error"):
            sync(wal)
        virtual_disk.profile.sync_error_probability = 0.0
        wal.close()
        wal, counted_state, log = open_wal(virtual_disk, 1 << 20)
        counted = contents(log)
        assert counted_state == HardState(epoch=2, voted_for=3), "it is in the cache"
        wal.close()
        virtual_disk.lose_power()
        _, hard_state, log = open_wal(virtual_disk, 1 << 20)
        assert (contents(log), hard_state) == (counted, counted_state)


def segments(virtual_disk):
    return [path for path in virtual_disk.files(DIRECTORY) if path.endswith(".wal")]


def test_synced_entries_survive_a_power_loss():
    virtual_disk, entries = filled()
    assert len(segments(virtual_disk)) > 3, "the log has rotated"
    virtual_disk.lose_power()
    _, hard_state, log = open_wal(virtual_disk)
    assert contents(log) == entries
    assert hard_state == HardState(epoch=30, voted_for=1)


def test_entries_replace_others():
    virtual_disk = fresh_disk()
    wal, _, _ = open_wal(virtual_disk)
    write(wal, None, [entry(index, 1) for index in range(1, 10)])
    write(wal, None, [entry(4, 2), entry(5, 2)], prev_epoch=1)
    sync(wal)
    _, _, log = open_wal(virtual_disk)
    assert [(item.index, item.epoch) for item in contents(log)] == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]


def test_segments_go_when_a_snapshot_covers_them():
    virtual_disk = fresh_disk()
    wal, _, _ = open_wal(virtual_disk)
    for index in range(1, 41):
        write(wal, HardState(epoch=3, voted_for=2) if index == 1 else None, [entry(index, 3)])
        sync(wal)
    before = len(segments(virtual_disk))
    assert wal.drop_before(20) > 0
    assert len(segments(virtual_disk)) < before
    _, hard_state, log = open_wal(virtual_disk)
    assert log.base_index <= 20
    assert log.last_index == 40
    assert hard_state == HardState(epoch=3, voted_for=2), "the vote is repeated where a segment begins"


@settings(max_examples=examples(150), deadline=None)
@given(seed=st.integers(0, 1 << 30), steps=st.lists(st.sampled_from(["write", "sync", "vote", "cut"]), max_size=40))
def test_power_loss_takes_no_more_than_what_was_not_synced(seed, steps):
    """After a power loss the log holds all that was synced, and a prefix of what was written after."""
    virtual_disk = fresh_disk(seed)
    wal, _, _ = open_wal(virtual_disk)
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
    virtual_disk.lose_power()
    _, found_state, log = open_wal(virtual_disk)
    assert (contents(log), found_state) in histories


@pytest.mark.parametrize("size", [5, 3000])
def test_no_torn_write_leaves_an_entry_of_a_later_epoch(size):
    """An epoch is written before its entries: a voter whose epoch lay below theirs could begin one that is over."""
    for seed in range(40):
        virtual_disk = fresh_disk(seed)
        wal, _, _ = open_wal(virtual_disk, 1 << 20)
        write(wal, HardState(epoch=1, voted_for=1), [entry(index, 1) for index in range(1, 5)])
        sync(wal)
        write(wal, HardState(epoch=2, voted_for=3), [entry(index, 2, size) for index in range(3, 6)], prev_epoch=1)
        virtual_disk.lose_power()
        _, hard_state, log = open_wal(virtual_disk, 1 << 20)
        assert hard_state.epoch >= log.last_epoch, f"seed {seed}"
        assert contents(log)[:2] == [entry(1, 1), entry(2, 1)]


_NEXT_OF_SYNC = {"done": "begin", "begin": "run", "run": "done"}
"""A sync is begun, runs in a thread, and is noted as done; then the next one may begin."""


def orders_with_syncs(length, phase="done"):
    """All orders of writes and of the parts of syncs."""
    if not length:
        return [()]
    part = _NEXT_OF_SYNC[phase]
    return [
        *(("write", *rest) for rest in orders_with_syncs(length - 1, phase)),
        *((part, *rest) for rest in orders_with_syncs(length - 1, part)),
    ]


def rest_of_syncs(steps):
    """The end of a sync that has begun, and one more sync."""
    parts = [step for step in steps if step != "write"]
    begun = {"begin": ("run", "done"), "run": ("done",)}
    return (*begun.get(parts[-1] if parts else "done", ()), "begin", "run", "done")


@pytest.mark.parametrize("ends", [False, True], ids=["power is lost", "one more sync"])
@pytest.mark.parametrize("size", [5, 3000])
def test_a_power_loss_during_a_sync_is_no_damage(size, ends):
    """Entries are written at each moment of a sync.

    The log must not say later that such an entry had been durable: a voter that lost only what it had never promised
    would refuse to start. And the next sync (``ends``) must not leave it out.
    """
    for steps in orders_with_syncs(6):
        for seed in range(12):
            virtual_disk = fresh_disk(seed)
            wal, _, _ = open_wal(virtual_disk, 1 << 20)
            written, work = [], None
            histories = [[]]
            for step in (*steps, *rest_of_syncs(steps)) if ends else steps:
                if step == "write":
                    written.append(entry(len(written) + 1, 1, size))
                    wal.write(None, written[-1:], 1)
                    histories.append(list(written))
                elif step == "begin":
                    work = wal.begin_sync()
                elif work is not None and step == "run":
                    work.run()
                    histories = [list(written)]
                elif work is not None:
                    wal.sync_done(work)
            virtual_disk.lose_power()
            _, _, log = open_wal(virtual_disk, 1 << 20)
            assert contents(log) in histories, f"{steps} with seed {seed}"
            assert not ends or contents(log) == written, f"{steps} with seed {seed}"


def flip(virtual_disk, path, position, bit=0):
    virtual_disk.flip_bit(path, position, bit)


@pytest.mark.parametrize("which", [0, 1, -2])
def test_damage_in_a_sealed_segment_is_reported(which):
    virtual_disk, _ = filled()
    path = segments(virtual_disk)[which]
    flip(virtual_disk, path, 150)
    with pytest.raises(LogDamagedError, match=path):
        open_wal(virtual_disk)


def slots(virtual_disk, path):
    """Where the two slots of a segment are."""
    disk = NodeDisk(virtual_disk)
    first = read_record(int(path[-24:-4]), disk.open(path, OpenMode.READ).read(0, 200), 0)
    return range(first.end, first.end + 2 * SLOT_BYTES)


def test_every_flipped_bit_outside_of_marks_is_reported():
    """One flipped bit anywhere: reported, unless it hits a slot, where the other one still says enough."""
    virtual_disk, entries = filled(count=6, segment_bytes=1 << 20)
    (path,) = segments(virtual_disk)
    size = NodeDisk(virtual_disk).file_size(path)
    silent = []
    for position in range(0, size, 3):
        flip(virtual_disk, path, position, position % 8)
        try:
            wal, _, log = open_wal(virtual_disk, 1 << 20)
        except LogDamagedError:
            flip(virtual_disk, path, position, position % 8)
        else:
            wal.close()
            assert contents(log) == entries, "what is silent loses nothing"
            silent.append(position)
            virtual_disk, entries = filled(count=6, segment_bytes=1 << 20)
    assert set(silent) <= set(slots(virtual_disk, path))


def cut(virtual_disk, path, size):
    file = NodeDisk(virtual_disk).open(path, OpenMode.WRITE)
    file.truncate(size)
    file.close()


@pytest.mark.parametrize("power", [False, True])
def test_every_cut_of_the_log_is_reported(power):
    """A killed process has left the mark of its last sync; one that lost power at least the one before."""
    virtual_disk, entries = filled(count=6, segment_bytes=1 << 20)
    (path,) = segments(virtual_disk)
    if power:
        virtual_disk.lose_power()
        wal, _, _ = open_wal(virtual_disk, 1 << 20)  # a start makes the mark durable
        wal.close()
        virtual_disk.lose_power()
    whole = NodeDisk(virtual_disk).open(path, OpenMode.READ).read(0, 1 << 20)
    for size in range(len(whole)):
        cut(virtual_disk, path, size)
        with pytest.raises(LogDamagedError, match=path):
            open_wal_that_exists(virtual_disk)
        cut(virtual_disk, path, 0)
        file = NodeDisk(virtual_disk).open(path, OpenMode.WRITE)
        file.append([whole])
        file.close()
    _, _, log = open_wal_that_exists(virtual_disk)
    assert contents(log) == entries


def open_wal_that_exists(virtual_disk, segment_bytes=1 << 20):
    return WriteAheadLog.open(NodeDisk(virtual_disk), DIRECTORY, segment_bytes, exists=True)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("emptied", [False, True])
@pytest.mark.parametrize("power", [False, True])
def test_missing_last_segments_are_reported(count, emptied, power):
    virtual_disk, _ = filled()
    if power:
        virtual_disk.lose_power()
    for path in segments(virtual_disk)[-count:]:
        if emptied:
            cut(virtual_disk, path, 0)
        else:
            NodeDisk(virtual_disk).remove(path)
    with pytest.raises(LogDamagedError, match=r"missing|durable|invalid"):
        open_wal(virtual_disk)


def test_a_log_that_had_begun_must_be_there():
    virtual_disk, _ = filled()
    for path in segments(virtual_disk):
        NodeDisk(virtual_disk).remove(path)
    with pytest.raises(LogDamagedError, match="gone"):
        open_wal_that_exists(virtual_disk)
    open_wal(virtual_disk)


def test_a_segment_that_was_torn_when_it_began_is_no_damage():
    """Power is lost before the first sync of a segment: the one before does not say that it is followed."""
    for seed in range(20):
        virtual_disk = fresh_disk(seed)
        wal, _, _ = open_wal(virtual_disk)
        for index in range(1, 11):
            write(wal, HardState(epoch=index, voted_for=1), [entry(index, index)])
            sync(wal)
        wal.rotate()
        wal.write(None, [entry(11, 11)])
        virtual_disk.lose_power()
        _, hard_state, log = open_wal_that_exists(virtual_disk)
        assert contents(log)[:10] == [entry(index, index) for index in range(1, 11)]
        assert hard_state == HardState(epoch=10, voted_for=1)


class PowerLostError(Exception):
    """Ends a process at a change of its disk."""


def port_until(virtual_disk, changes):
    """Returns a port that loses power just after so many changes."""
    port = NodeDisk(virtual_disk)

    def crash():
        port.freeze()
        raise PowerLostError

    port.crash_after_writes(changes, crash)
    return port


@pytest.mark.parametrize("again", [0, 1, 3, 6])
@pytest.mark.parametrize("seed", range(3))
def test_a_power_loss_between_any_two_changes_is_no_damage(seed, again):
    """Segments begin and go meanwhile: the voter starts, with all that was synced and nothing that was not written.

    ``again``: it first loses power once more, after so many changes of its start.
    """
    for changes in itertools.count(1):
        virtual_disk = fresh_disk(seed)
        exists, synced, written = False, 0, 0
        try:
            wal, _, _ = WriteAheadLog.open(port_until(virtual_disk, changes), DIRECTORY, 400)
            exists = True
            for written in range(1, 25):
                write(wal, HardState(epoch=written, voted_for=1), [entry(written, written)])
                wal.drop_before(written - 1)
                sync(wal)
                synced = written
                wal.drop_before(written - 1)
        except PowerLostError:
            virtual_disk.lose_power()
        else:
            break
        if again:
            with contextlib.suppress(PowerLostError):
                WriteAheadLog.open(port_until(virtual_disk, again), DIRECTORY, 400, exists=exists)
            virtual_disk.lose_power()
        _, hard_state, log = WriteAheadLog.open(NodeDisk(virtual_disk), DIRECTORY, 400, exists=exists)
        assert synced <= log.last_index <= written, changes
        assert contents(log) == [entry(index, index) for index in range(log.first_index, log.last_index + 1)]
        assert log.base_index <= synced, changes
        assert hard_state.epoch in (log.last_index, log.last_index + 1), "the epoch is written before its entry"
    assert changes > 80, "the whole history was cut at each change"


@pytest.mark.parametrize("seed", range(20))
def test_a_torn_end_of_a_new_segment_is_cut(seed):
    """Its records say how much of this segment is durable, not of the one before."""
    virtual_disk = fresh_disk(seed)
    wal, _, _ = open_wal(virtual_disk, 50_000)
    write(wal, None, [entry(index, 1, 3000) for index in range(1, 11)])
    sync(wal)
    wal.rotate()
    wal.write(None, [entry(index, 1, 3000) for index in range(11, 21)])
    virtual_disk.lose_power()
    for _ in range(2):
        wal, _, log = open_wal_that_exists(virtual_disk)
        assert contents(log) == [entry(index, 1, 3000) for index in range(1, log.last_index + 1)]
        assert log.last_index >= 10
        wal.close()
        virtual_disk.lose_power()


@pytest.mark.parametrize("kind", [RecordType.SNAPSHOT_HEADER, RecordType.DURABLE_MARK, RecordType.SEGMENT])
def test_a_record_that_does_not_belong_there_is_reported(kind):
    virtual_disk = fresh_disk()
    wal, _, _ = open_wal(virtual_disk)
    sync(wal)
    wal.close()
    NodeDisk(virtual_disk).open(segments(virtual_disk)[-1], OpenMode.WRITE).append([encode_record(1, 0, kind, b"x")])
    with pytest.raises(LogDamagedError, match=f"is of type {int(kind)}, which does not belong there"):
        open_wal(virtual_disk)


def test_a_lone_later_segment_without_its_beginning_is_reported():
    """The segment before it went because a snapshot covers it, so this one had been durable."""
    virtual_disk = fresh_disk()
    wal, _, _ = open_wal(virtual_disk)
    write(wal, None, [entry(1, 1)])
    sync(wal)
    wal.rotate()
    sync(wal)
    assert (wal.drop_before(0), wal.drop_before(1)) == (0, 1)
    wal.close()
    (path,) = segments(virtual_disk)
    cut(virtual_disk, path, 10)
    with pytest.raises(LogDamagedError, match="cut or damaged at its beginning"):
        open_wal(virtual_disk)


def test_the_largest_record_is_read_back(monkeypatch):
    monkeypatch.setattr(record_format, "PAYLOAD_BYTES_MAX", 100)
    for size in (99, 100):
        record = encode_record(3, 0, RecordType.ENTRY, bytes(size))
        assert read_record(3, record, 0).payload == bytes(size)
        assert record_format.record_length(record) == len(record)


def test_the_largest_piece_of_a_snapshot_is_taken(monkeypatch):
    monkeypatch.setattr(snapshot_store, "SNAPSHOT_PIECE_BYTES_MAX", 100)
    virtual_disk = fresh_disk()
    written_snapshot(virtual_disk, [b"x" * 100])
    reader = open_newest_snapshot(NodeDisk(virtual_disk), DIRECTORY)
    assert reader.read_pieces(0, 1 << 20) == (b"x" * 100,)
    with pytest.raises(ValueError, match="a piece of a snapshot has 101 bytes"):
        written_snapshot(virtual_disk, [b"x" * 101])


def test_a_log_of_the_format_before_is_read_and_goes_on():
    virtual_disk = fresh_disk()
    path = f"{DIRECTORY}/log-{1:020d}.wal"
    file = NodeDisk(virtual_disk).open(path, OpenMode.CREATE)
    file.append([encode_record(1, 0, RecordType.SEGMENT, msgpack.packb((1, 0, 0, 0, -1, 0)))])
    for index in (1, 2):
        payload = struct.pack("<QQB", index, 3, EntryKind.DATA) + entry(index, 3).data
        file.append([encode_record(1, 0, RecordType.ENTRY, payload)])
    file.append([encode_record(1, file.size, RecordType.SYNC_MARK, b"")])
    file.sync()
    file.close()
    NodeDisk(virtual_disk).sync_directory(DIRECTORY)
    wal, _, log = open_wal(virtual_disk, 1 << 20)
    assert contents(log) == [entry(1, 3), entry(2, 3)]
    wal.write(HardState(epoch=4, voted_for=2), [entry(3, 4)], 3)
    sync(wal)
    wal.close()
    virtual_disk.lose_power()
    _, hard_state, log = open_wal_that_exists(virtual_disk)
    assert contents(log) == [entry(1, 3), entry(2, 3), entry(3, 4)]
    assert hard_state == HardState(epoch=4, voted_for=2)
    assert len(segments(virtual_disk)) == 2, "what follows has marks"


def test_missing_segment_is_reported():
    virtual_disk, _ = filled()
    NodeDisk(virtual_disk).remove(segments(virtual_disk)[2])
    with pytest.raises(LogDamagedError, match="missing"):
        open_wal(virtual_disk)


def test_torn_end_is_cut_and_writing_goes_on():
    virtual_disk, entries = filled(count=3, segment_bytes=1 << 20)
    disk = NodeDisk(virtual_disk)
    (path,) = segments(virtual_disk)
    file = disk.open(path, OpenMode.WRITE)
    file.append([b"mlr1\x07\x00\x00"])
    file.close()
    wal, _, log = open_wal(virtual_disk, 1 << 20)
    assert wal.torn_bytes == 7
    wal.write(None, [entry(4, 4)])
    sync(wal)
    _, _, log = open_wal(virtual_disk, 1 << 20)
    assert contents(log) == [*entries, entry(4, 4)]


# --- snapshots


POINT = SnapshotPoint(index=7, epoch=3, configuration=Configuration())


def written_snapshot(virtual_disk, pieces=(b"one", b"", b"three" * 100)):
    writer = SnapshotWriter(NodeDisk(virtual_disk), DIRECTORY, POINT, "taking")
    for piece in pieces:
        writer.add(piece)
    writer.finish()
    return writer.path


@pytest.mark.parametrize("seed", range(5))  # what a power loss takes depends on the seed
def test_snapshot_is_read_back_after_power_loss(seed):
    virtual_disk = fresh_disk(seed)
    written_snapshot(virtual_disk)
    virtual_disk.lose_power()
    reader = open_newest_snapshot(NodeDisk(virtual_disk), DIRECTORY)
    assert reader is not None, "its name was durable"
    assert reader.point == POINT
    assert reader.read_pieces(0, 1 << 20) == (b"one", b"", b"three" * 100)
    assert reader.read_pieces(1, 1) == (b"",)
    assert reader.info.piece_count == 3


def test_unfinished_snapshot_is_cleared_away():
    virtual_disk = fresh_disk()
    writer = SnapshotWriter(NodeDisk(virtual_disk), DIRECTORY, POINT, "taking")
    writer.add(b"half")
    assert open_newest_snapshot(NodeDisk(virtual_disk), DIRECTORY) is None
    assert virtual_disk.files(DIRECTORY) == []


def test_every_flipped_bit_of_a_snapshot_is_reported():
    virtual_disk = fresh_disk()
    path = written_snapshot(virtual_disk, pieces=(b"one", b"two"))
    for position in range(NodeDisk(virtual_disk).file_size(path)):
        flip(virtual_disk, path, position, position % 8)
        with pytest.raises(LogDamagedError, match=path):
            SnapshotFileReader(NodeDisk(virtual_disk), path).read_pieces(0, 1 << 20)
        flip(virtual_disk, path, position, position % 8)
