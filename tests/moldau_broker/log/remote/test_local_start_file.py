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


@given(st.lists(st.integers(0, 2**62), min_size=2, max_size=2).map(sorted), st.integers(0, 3))
def test_round_trips(offsets: list[int], count: int) -> None:
    start = local_start(*offsets, EPOCHS[:count])
    assert decode_local_start("x", encode_local_start(start)) == start


def test_each_flipped_bit_and_each_cut_is_refused() -> None:
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
    damaged.remove()
    assert (damaged.content, damaged.offset) == (None, 0)
    assert not machine.disk.exists(damaged.path)


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
