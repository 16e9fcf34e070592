"""Goal: no reader gets a batch whose base offset is wrong, which no checksum covers, and none passes one over.

Method: each bit of the base offset of each batch of a log is flipped in turn; the log is opened again and read from its
begin, and from each offset. All short orders of batches are compared with a plain rule, as are the remembered ranges.
"""

from __future__ import annotations

import random
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import pytest

from moldau.records import iterate_batches
from moldau.records.checksum import crc32c
from moldau_broker.log.errors import LogError
from moldau_broker.log.files import found_batches
from moldau_broker.log.files.found_batches import RANGES_MAX, FoundBytes, ordered_end
from support.log.damaged import contents, reborn, write_log
from support.log.model import Driver, read_rows
from support.proof import examples

if TYPE_CHECKING:
    from collections.abc import Iterable

SIZE = 61
"""Bytes of a batch without records."""


def flipped(files: dict[str, bytes], path: str, position: int, bit: int) -> dict[str, bytes]:
    changed = bytearray(files[path])
    changed[position + 7 - bit // 8] ^= 1 << bit % 8
    return {**files, path: bytes(changed)}


def check_reads(driver: Driver, begins: list[int], bad: range, max_bytes: int) -> int:
    """Reads on and on from each offset; returns how often a batch was refused, which only those of ``bad`` may be."""
    log, refused = driver.log, 0
    for begin in begins:
        offset = begin
        while offset < log.log_end_offset:
            try:
                _, rows, following = read_rows(log, offset, max_bytes=max_bytes)
            except LogError:
                assert offset in bad, f"offset {offset} is refused because of {bad}"
                refused, offset = refused + 1, offset + 1
                continue
            wanted = [row for row in rows if row.offset >= offset]
            assert wanted[0].offset == offset, f"offset {offset} is passed over"
            assert [row for row in wanted if driver.history[row.offset] != row] == []
            assert all(after.offset == before.offset + 1 for before, after in pairwise(wanted))
            assert following is not None
            offset = following
    return refused


@pytest.mark.drawn
@pytest.mark.parametrize("max_bytes", [1 << 20, 1])
def test_a_wrong_base_offset_reaches_no_reader(max_bytes: int) -> None:
    """Single bits of all batches, with the offset index as it was and without.

    A start notices what changes the end of the log, and mends it; these cases are left out.
    """
    driver = write_log(6)
    files, end, start = contents(driver), driver.log.log_end_offset, driver.log.log_start_offset
    driver.check_indexes = False
    places = [
        (path, batches, place)
        for path in sorted(path for path in files if path.endswith(".log"))[1:]
        for batches in [list(iterate_batches(files[path]))]
        for place in range(len(batches))
    ]
    cases = list(product(places, range(63), (True, False)))
    refused = tried = 0
    for number, ((path, batches, place), bit, has_index) in enumerate(random.Random(1).sample(cases, examples(480))):
        position, header = batches[place]
        changed = flipped(files, path, position, bit)
        if not has_index:
            changed = {name: data for name, data in changed.items() if not name.endswith(".index")}
        driver.machine = reborn(changed, number)
        driver.start()
        if driver.log.log_end_offset != end:
            continue
        # A batch that pretends to reach further is found for the offsets behind it, up to the next index entry.
        reaches_far = not header.base_offset >> bit & 1
        last = batches[-1][1].last_offset if reaches_far else header.last_offset
        bad = range(batches[max(0, place - 1)][1].base_offset, last + 1)
        begins = [start, batches[max(0, place - 2)][1].base_offset, *bad]
        refused += check_reads(driver, begins, bad, max_bytes) > 0
        tried += 1
    assert refused == tried > 20


@pytest.mark.parametrize("has_index", [True, False])
def test_a_wrong_offset_at_the_end_of_a_segment_is_seen_twice(has_index: bool) -> None:
    """Nothing in the segment follows that batch: a reader must neither go on in the next segment nor get it later."""
    driver = write_log(6)
    files, end = contents(driver), driver.log.log_end_offset
    for path, bit in product(sorted(path for path in files if path.endswith(".log"))[1:-1], (0, 1, 2, 4, 6, 8, 14)):
        position, header = list(iterate_batches(files[path]))[-1]
        changed = flipped(files, path, position, bit)
        if not has_index:
            changed = {name: data for name, data in changed.items() if not name.endswith(".index")}
        driver.machine = reborn(changed, bit)
        driver.start()
        assert driver.log.log_end_offset == end
        for _ in range(3):
            with pytest.raises(LogError):
                read_rows(driver.log, header.last_offset, max_bytes=1 << 20)
        assert read_rows(driver.log, header.last_offset + 1, max_bytes=1)[1][0].offset == header.last_offset + 1


def test_all_short_orders_of_batches() -> None:
    """Three batches with base offsets 0 to 4 in a segment of offsets 0 to 3: only those in order are sent.

    With one wrong batch among contiguous ones, all before it are sent, and nothing with a wrong offset.
    """
    for bases in product(range(5), repeat=3):
        file = batches_at(bases)
        size, next_base = SIZE * len(bases), 4
        found = ordered_end(file, 0, 0, size, size, 0, next_base)
        rises = all(before < after for before, after in pairwise(bases)) and bases[-1] < next_base
        assert (found == size) is rises, bases
        sent = bases[: found // SIZE]
        assert all(before < after for before, after in pairwise(sent))
        wrong = [place for place, base in enumerate(bases) if base != place]
        if len(wrong) == 1 and not rises:
            assert found == SIZE * wrong[0], bases


def test_a_whole_batch_before_other_bytes_is_sent() -> None:
    """A rotten length looks as if the next header were rotten: the checksum tells which."""
    garbage = bytes(100)
    for sound in (True, False):
        file = batches_at((0, 1), sound=sound, behind=garbage)
        found = ordered_end(file, 0, 0, 1000, len(file.data), 0, 10)
        assert found == SIZE * (2 if sound else 1)


def test_a_walk_has_a_bound_behind_its_begin() -> None:
    before, most = 30, found_batches.BATCHES_MAX
    file = batches_at(range(before + most + 100))
    size = len(file.data)
    assert ordered_end(file, 0, before * SIZE, size, size, 0, 1 << 40) == (before + most) * SIZE
    assert file.read_bytes < 2 * size


def test_checked_ranges_are_those_that_were_noted() -> None:
    """All short histories over six bytes, of which four were found, compared with a set of bytes."""
    pieces = [(low, high) for low in range(5) for high in range(low + 1, 6)]
    for history in product(pieces, repeat=3):
        found, known = FoundBytes(4), {4, 5}
        for low, high in history:
            found.add(low, high)
            known |= set(range(low, high))
        for low, high in pieces:
            assert found.are_checked(low, high) is (set(range(low, high)) <= known), history


def test_remembered_ranges_have_a_bound() -> None:
    """The shortest one is forgotten."""
    found = FoundBytes(1 << 20)
    for place in range(RANGES_MAX + 5):
        found.add(100 * place, 100 * place + 50 - place)
    assert len(found._ranges) == RANGES_MAX
    assert found.are_checked(0, 50)
    assert not found.are_checked(100 * (RANGES_MAX + 3), 100 * (RANGES_MAX + 3) + 1)


class Bytes:
    """A file in memory that counts what is read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.read_bytes = 0

    def read(self, position: int, count: int) -> bytes:
        self.read_bytes += count
        return self.data[position : position + count]


def batches_at(bases: Iterable[int], *, sound: bool = True, behind: bytes = b"") -> Any:
    """A file of batches with one offset each and no records."""
    data = bytearray()
    for base in bases:
        batch = bytearray(SIZE)
        batch[0:8] = base.to_bytes(8, "big")
        batch[8:12] = (SIZE - 12).to_bytes(4, "big")
        batch[16] = 2
        batch[17:21] = (crc32c(batch[21:]) ^ (not sound)).to_bytes(4, "big")
        data += batch
    return Bytes(bytes(data) + behind)
