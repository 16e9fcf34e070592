"""Goal: the file that says where a log begins on its disk is read as it was written, or refused.

Method: round trips, and each bit flipped.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.records.checksum import crc32c
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.checkpoint import EpochEntry
from moldau_broker.log.files.dump import dump_file
from moldau_broker.log.files.names import LOCAL_START_CHECKPOINT
from moldau_broker.log.remote.local_start import LocalStartFile, decode_local_start, encode_local_start, local_start
from support.log.model import VirtualMachine

EPOCHS = [EpochEntry(leader_epoch=epoch, start_offset=offset) for epoch, offset in ((1, 0), (4, 30), (7, 90))]
CONTENT = b"0\n10 50\n2\n1 0\n4 30\ncrc32c: 16ab58b4\n"


def test_the_content_holds_the_epochs_below_the_local_start() -> None:
    start = local_start(10, 50, EPOCHS)
    assert encode_local_start(start) == CONTENT
    assert decode_local_start("x", CONTENT) == start == (10, 50, tuple(EPOCHS[:2]))


@pytest.mark.parametrize(("offset", "count"), [(0, 0), (1, 1), (30, 1), (31, 2), (90, 2), (91, 3)])
def test_an_epoch_that_begins_at_the_local_start_is_not_past(offset: int, count: int) -> None:
    assert local_start(0, offset, EPOCHS).leader_epochs == tuple(EPOCHS[:count])


@given(st.lists(st.integers(0, 2**62), min_size=2, max_size=2).map(sorted), st.integers(0, 3))
def test_round_trips(offsets: list[int], count: int) -> None:
    start = local_start(*offsets, EPOCHS[:count])
    assert decode_local_start("x", encode_local_start(start)) == start


def test_each_flipped_bit_and_each_cut_is_refused() -> None:
    with pytest.raises(CorruptLogFileError):
        decode_local_start("x", b"00000000\n")  # the checksum of nothing
    for position in range(len(CONTENT)):
        changed = bytearray(CONTENT)
        changed[position] ^= 1
        for data in (bytes(changed), CONTENT[:position]):
            with pytest.raises(CorruptLogFileError):
                decode_local_start("x", data)


def test_another_version_is_refused() -> None:
    content = b"1" + CONTENT[1:].partition(b"crc32c")[0]
    with pytest.raises(CorruptLogFileError, match="version b'1' is unknown"):
        decode_local_start("x", content + b"crc32c: %08x\n" % crc32c(content))


def test_a_damaged_file_can_be_written_and_removed() -> None:
    machine = VirtualMachine(1)
    machine.disk.make_directories("/d1")
    file = LocalStartFile(machine.disk, "/d1")
    file.write(local_start(10, 50, EPOCHS))
    machine.virtual_disk.flip_bit(file.path, 0, 0)
    damaged = LocalStartFile(machine.disk, "/d1")
    with pytest.raises(CorruptLogFileError):
        damaged.load()
    assert (damaged.is_damaged, damaged.content) == (True, None)
    damaged.write(local_start(20, 60, EPOCHS))
    assert (damaged.is_damaged, damaged.offset) == (False, 60)
    again = LocalStartFile(machine.disk, "/d1")
    again.load()
    assert (again.is_damaged, again.content) == (False, damaged.content)
    damaged.remove()
    assert (damaged.content, damaged.offset) == (None, 0)
    assert not machine.disk.exists(damaged.path)


@pytest.mark.parametrize("seed", range(8))
def test_both_changes_outlive_a_power_loss(seed: int) -> None:
    machine = VirtualMachine(seed)
    machine.disk.make_directories("/d1")
    machine.disk.sync_directory("/")
    file = LocalStartFile(machine.disk, "/d1")
    file.write(local_start(10, 50, EPOCHS))
    machine.boot(power_lost=True)
    file = LocalStartFile(machine.disk, "/d1")
    file.load()
    assert file.content == local_start(10, 50, EPOCHS)
    file.remove()
    machine.boot(power_lost=True)
    assert not machine.disk.exists(file.path)


@pytest.mark.parametrize(
    ("found", "later"),
    [
        ([(1, 0), (4, 30), (7, 90)], [(7, 90)]),
        ([(4, 50), (7, 90)], [(7, 90)]),  # the first batch on this disk is of an epoch that began before it
        ([(4, 60), (5, 60)], [(5, 60)]),
        ([(3, 50), (5, 50)], [(5, 50)]),
        ([(5, 49), (6, 50)], [(6, 50)]),
        ([], []),
    ],
)
def test_the_epochs_of_the_file_come_before_later_ones(
    found: list[tuple[int, int]], later: list[tuple[int, int]]
) -> None:
    file = LocalStartFile(VirtualMachine(1).disk, "/d1")
    entries = [EpochEntry(leader_epoch=epoch, start_offset=offset) for epoch, offset in found]
    assert file.with_past(entries) == entries
    file.content = local_start(10, 50, EPOCHS)
    expected = [EpochEntry(leader_epoch=epoch, start_offset=offset) for epoch, offset in later]
    assert file.with_past(entries) == [*EPOCHS[:2], *expected]


def test_the_dump_shows_it() -> None:
    machine = VirtualMachine(1)
    machine.disk.make_directories("/d1")
    file = LocalStartFile(machine.disk, "/d1")
    file.write(local_start(10, 50, EPOCHS))
    lines = list(dump_file(machine.disk, f"/d1/{LOCAL_START_CHECKPOINT}"))
    assert lines[1:] == [
        "logStartOffset: 10 localLogStartOffset: 50",
        "epoch: 1 startOffset: 0",
        "epoch: 4 startOffset: 30",
    ]
