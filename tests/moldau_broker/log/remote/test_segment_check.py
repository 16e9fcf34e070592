"""Goal: the check of a segment that is to be copied finds each damage that recovery would find, in bounded steps.

Method: each byte of the second batch is damaged in turn, and the check must stop there.
"""

from __future__ import annotations

import pytest

from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.batches import scan_headers
from moldau_broker.log.files.names import LOG_SUFFIX, segment_file
from moldau_broker.log.remote import segment_check
from moldau_broker.log.remote.segment_check import SegmentCheck
from support.log.lab import A
from support.log.model import VirtualMachine
from support.log.tiered import filled, open_tiered

PATH = f"/d1/{A}/{segment_file(0, LOG_SUFFIX)}"


def test_each_damaged_byte_is_found_in_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_check, "STEP_BYTES", 1)
    machine = VirtualMachine(1)
    log = filled(open_tiered(machine))
    found = log.closed_segments(0)[0]
    batches = list(scan_headers(found.content.file, 0, found.size_bytes))
    (_, first), (position, header) = batches[:2]
    check = SegmentCheck(found)
    check.step(found)
    assert (check.position, check.next_offset) == (position, first.next_offset)
    for byte in range(position, position + header.size_bytes):
        machine.virtual_disk.flip_bit(PATH, byte, 6)
        with pytest.raises(CorruptLogFileError) as caught:
            check.step(found)
        assert (caught.value.path, caught.value.position, check.next_offset) == (PATH, position, first.next_offset)
        machine.virtual_disk.flip_bit(PATH, byte, 6)
    steps = 0
    while not check.is_complete:
        check.step(found)
        steps += 1
    assert (steps, check.next_offset) == (len(batches) - 1, found.end_offset)


def test_a_truncation_during_the_check_is_no_damage() -> None:
    log = filled(open_tiered(VirtualMachine(1)))
    found = log.closed_segments(0)[0]
    check = SegmentCheck(found)
    found.content.file.truncate(found.size_bytes - 5)
    with pytest.raises(OSError, match="truncated"):
        check.step(found)
