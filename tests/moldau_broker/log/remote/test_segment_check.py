"""Goal: the check of a segment that is to be copied finds each damage that recovery would find, in bounded steps.

Method: each byte of the second batch is damaged in turn, and the check must stop there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.batches import scan_headers
from moldau_broker.log.files.names import LOG_SUFFIX, segment_file
from moldau_broker.log.remote import segment_check
from moldau_broker.log.remote.segment_check import SegmentCheck
from support.log.lab import A
from support.log.model import VirtualMachine
from support.log.tiered import filled, open_tiered

if TYPE_CHECKING:
    from moldau_broker.log.remote.segments_to_copy import SegmentToCopy

EPOCH_AT = 12
PATH = f"/d1/{A}/{segment_file(0, LOG_SUFFIX)}"


def run(check: SegmentCheck, found: SegmentToCopy) -> int:
    """Runs a check to its end; returns how many steps it took."""
    steps = 0
    while not check.is_complete:
        check.step(found)
        steps += 1
    return steps


@pytest.mark.parametrize("piece", [1, 150, 400, 1 << 20])
def test_each_damaged_byte_is_found_in_its_batch(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that are smaller than a batch, that hold one or two, and that hold all.

    The check of a repaired segment goes on where it has stopped.
    """
    monkeypatch.setattr(segment_check, "PIECE_BYTES", piece)
    machine = VirtualMachine(1)
    log = filled(open_tiered(machine))
    found = log.closed_segments(0)[0]
    (_, first), (position, header) = list(scan_headers(found.content.file, 0, found.size_bytes))[:2]
    assert 75 < header.size_bytes < 200
    for byte in range(position, position + header.size_bytes):
        check = SegmentCheck(found)
        machine.virtual_disk.flip_bit(PATH, byte, 6)
        for _ in range(2):
            with pytest.raises(CorruptLogFileError) as caught:
                run(check, found)
            assert (caught.value.path, caught.value.position, check.next_offset) == (PATH, position, first.next_offset)
        machine.virtual_disk.flip_bit(PATH, byte, 6)
        run(check, found)
        assert (check.position, check.next_offset) == (found.size_bytes, found.end_offset)


def test_a_step_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_check, "PIECE_BYTES", 200)
    monkeypatch.setattr(segment_check, "STEP_BYTES", 1)
    log = filled(open_tiered(VirtualMachine(1)))
    found = log.closed_segments(0)[0]
    batches = len(list(scan_headers(found.content.file, 0, found.size_bytes)))
    assert run(SegmentCheck(found), found) == batches


@pytest.mark.parametrize("missing", [1, 5])
@pytest.mark.parametrize("piece", [1, 150, 1 << 20])
def test_a_truncation_during_the_check_is_no_damage(piece: int, missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_check, "PIECE_BYTES", piece)
    log = filled(open_tiered(VirtualMachine(1)))
    found = log.closed_segments(0)[0]
    found.content.file.truncate(found.size_bytes - missing)
    with pytest.raises(OSError, match="truncated"):
        run(SegmentCheck(found), found)


@pytest.mark.parametrize(("step_batches", "spare"), [(1, 0), (2, 0), (2, 1), (3, 0)])
def test_each_step_ends_at_the_batch_that_fills_it(
    step_batches: int, spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(open_tiered(VirtualMachine(1)))
    found = log.closed_segments(0)[0]
    batches = list(scan_headers(found.content.file, 0, found.size_bytes))
    size = batches[0][1].size_bytes
    assert {header.size_bytes for _, header in batches} == {size}
    monkeypatch.setattr(segment_check, "PIECE_BYTES", size)
    monkeypatch.setattr(segment_check, "STEP_BYTES", step_batches * size - spare)
    check = SegmentCheck(found)
    ends = []
    while not check.is_complete:
        check.step(found)
        ends.append(check.position)
    full = range(step_batches * size, found.size_bytes, step_batches * size)
    assert ends == [*full, found.size_bytes]


def test_batches_without_an_epoch_may_come_first() -> None:
    """They are older than leader epochs; the checksum of a batch does not cover its epoch."""
    machine = VirtualMachine(1)
    found = filled(open_tiered(machine)).closed_segments(0)[0]
    for bit in range(31):
        machine.virtual_disk.flip_bit(PATH, EPOCH_AT + 3 - (bit + 1) // 8, (bit + 1) % 8)  # 1 becomes -1
    check = SegmentCheck(found)
    check.step(found)
    assert check.is_complete
