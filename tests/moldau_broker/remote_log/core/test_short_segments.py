"""Reads of one remote segment: what any index leads to, and for which bytes a reader asks.

Goal: no index changes an answer, and a sound one saves requests. Method: a segment of four batches with gaps, compared
with a search of its batches one by one, under random pairs of index entries; a segment of large batches, of which each
request shows one.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import pytest

from moldau.records import BatchBuilder, iterate_batches
from moldau_broker.log.config import LogConfig
from moldau_broker.log.files.index import OffsetIndex, TimeIndex
from moldau_broker.log.values import SegmentParts, TimestampOffset
from moldau_broker.remote_log.core.errors import CorruptRemoteSegmentError
from moldau_broker.remote_log.core.names import RemoteSegment
from moldau_broker.remote_log.core.reading import RemoteRead, read, search_timestamp
from moldau_broker.remote_log.core.requests import ReadRange
from support.remote_log.segments import Store

if TYPE_CHECKING:
    from moldau.records import BatchHeader

Entry = tuple[int, int]
BASE = 1000
WALK_BYTES = 16 * 1024


def batch(offset: int, times: tuple[int, ...], value: bytes = b"", last_delta: int | None = None) -> bytes:
    builder = BatchBuilder(1 << 20)
    for time in times:
        builder.append(time, b"k", value)
    return bytes(builder.build(base_offset=BASE + offset, partition_leader_epoch=1, last_offset_delta=last_delta))


class Stored:
    """A segment in a store, made of batches, with room for index entries."""

    def __init__(self, batches: list[bytes], last_offset: int) -> None:
        self.data = b"".join(batches)
        self.store = Store(chunk_bytes=1 << 20, cache_bytes=1 << 24)
        self.headers: list[tuple[int, BatchHeader]] = list(iterate_batches(self.data))
        largest = max(header.max_timestamp for _, header in self.headers)
        self.segment = RemoteSegment(BASE, BASE + last_offset, 1, largest, False, UUID(int=1), len(self.data))
        self.put(self.data)
        self.index()

    def put(self, data: bytes) -> None:
        self.store.logs[self.segment.segment_id] = data
        self.segment = self.segment._replace(size_bytes=len(data))

    def index(self, offsets: list[Entry] | None = None, times: list[Entry] | None = None) -> None:
        """Puts an index of offsets and positions, and one of times and offsets; offsets are relative."""
        positions = b"".join(OffsetIndex.LAYOUT.pack(*entry) for entry in offsets or [])
        moments = b"".join(TimeIndex.LAYOUT.pack(*entry) for entry in times or [])
        self.store.parts[self.segment.segment_id] = SegmentParts(positions, moments, b"", b"", b"")

    def read(self, offset: int, max_bytes: int = 1, upper: int = 1 << 40) -> RemoteRead:
        parts = self.store.parts[self.segment.segment_id]
        reader = read(
            self.segment,
            parts,
            BASE + offset,
            max_bytes=max_bytes,
            upper_bound_offset=BASE + upper,
            min_one_batch=True,
        )
        found: RemoteRead = self.store.run(reader)
        return found

    def search(self, time: int, start: int = 0) -> int | None:
        """Returns the offset of a record, relative to the first one."""
        reader = search_timestamp([self.segment], time, BASE + start, LogConfig())
        found: TimestampOffset | None = self.store.run(reader)
        return None if found is None else found.offset - BASE

    def asked(self) -> list[int]:
        """Returns the positions that the last reader asked for."""
        return [request.position for request in self.store.asked if isinstance(request, ReadRange)]


class Record(NamedTuple):
    offset: int
    time: int


def short() -> tuple[Stored, list[Record]]:
    """Returns a segment with gaps before, between and after its batches; the last batch has no records.

    A value holds a whole batch, as a topic of backups may, and another one ends with the bytes of a header.
    """
    inner = batch(3, (20, 20))
    batches = [
        batch(0, (10, 30)),
        inner,
        batch(6, (40,), value=inner + b"more"),
        batch(7, (15,)),
        batch(8, (), last_delta=1),
    ]
    records = [Record(0, 10), Record(1, 30), Record(3, 20), Record(4, 20), Record(6, 40), Record(7, 15)]
    return Stored(batches, last_offset=11), records


def test_no_offset_index_changes_a_read() -> None:
    stored, _ = short()
    inner_at = stored.data.index(stored.data[stored.headers[1][0] :][:61], stored.headers[2][0])
    positions = [position for position, _ in stored.headers]
    near = [0, 1, positions[1] + 1, inner_at, len(stored.data) - 1, len(stored.data), 1 << 20]
    entries = list(itertools.product((0, 1, 4, 6, 7, 9, 11, 12), [*positions, *near]))
    entries.remove((4, inner_at))  # as if the batch in the value were one of the segment
    draw = random.Random(3)
    for count, offset in itertools.product((0, 1, 1, 2, 2, 2, 2, 3) * 12, range(12)):
        index = sorted(draw.sample(entries, count))
        stored.index(index)
        if any(position == inner_at and relative >= offset for relative, position in index):
            continue  # an entry may hide nothing but a batch that is one
        max_bytes, upper = draw.choice((1, 80, 200, 1 << 20)), draw.randint(offset, 14)
        assert stored.read(offset, max_bytes, upper) == read_one_by_one(stored, offset, max_bytes, upper), index


def read_one_by_one(stored: Stored, offset: int, max_bytes: int, upper: int) -> RemoteRead:
    if offset >= upper:
        return RemoteRead(b"", BASE + offset)
    end, following = None, BASE + offset
    begin = next((at for at, header in stored.headers if header.last_offset >= BASE + offset), len(stored.data))
    for position, header in stored.headers:
        fits = end is None or position + header.size_bytes - begin <= max_bytes
        if position < begin:
            continue
        if header.last_offset >= BASE + upper or not fits:
            break
        end, following = position + header.size_bytes, header.next_offset
    if begin == len(stored.data):
        following = stored.segment.end_offset
    return RemoteRead(stored.data[begin : begin if end is None else end], following)


def test_no_time_index_changes_a_search() -> None:
    stored, records = short()
    offsets = [(header.last_offset - BASE, position) for position, header in stored.headers[1:]]
    times = (9, 10, 15, 20, 29, 30, 40, 41)
    false = {(15, 7), (20, 4)}  # as if no batch before had a later time
    entries = [[entry] for entry in itertools.product(times, range(13)) if entry not in false]
    pairs = [sorted(one + other) for one, other in itertools.combinations(entries, 2) if one[0][0] != other[0][0]]
    draw = random.Random(4)
    for index in [[], *entries, *draw.sample(pairs, 250)]:
        stored.index(offsets if draw.random() < 0.5 else None, index)
        for time, start in itertools.product((10, 16, 21, 31, 41), draw.sample(range(12), 3)):
            expected = [each.offset for each in records if each.offset >= start and each.time >= time]
            assert stored.search(time, start) == (expected[0] if expected else None), index


@pytest.mark.parametrize("count", [1, 60, 61])
def test_bytes_behind_the_last_batch_are_damage(count: int) -> None:
    stored, records = short()
    stored.put(stored.data + bytes(count))
    assert stored.read(8).data == stored.data[stored.headers[-1][0] :]
    for ask in (lambda: stored.read(10), lambda: stored.search(16, records[-1].offset)):
        with pytest.raises(CorruptRemoteSegmentError, match=f"byte {len(stored.data)}: no batch header"):
            ask()


COUNT = 32
SIZE = len(batch(0, (0,), bytes(20_000)))


def tall() -> Stored:
    """Returns a segment of batches that are larger than the bytes of a walk; batch ``n`` has offset and time ``n``."""
    stored = Stored([batch(number, (number,), bytes(20_000)) for number in range(COUNT)], COUNT - 1)
    assert len(stored.data) == COUNT * SIZE
    return stored


def positions(*numbers: int) -> list[int]:
    return [SIZE * number for number in numbers]


OFFSETS = [(number, SIZE * number) for number in range(1, COUNT)]
FALSE_OFFSETS = [(number, position + 1) for number, position in OFFSETS]


def test_an_entry_leads_to_its_batch() -> None:
    stored = tall()
    stored.index(OFFSETS)
    for number in range(1, COUNT):
        assert stored.read(number).end_offset == BASE + number + 1
        assert stored.asked() == positions(number, number), "the header, and the rest"


def test_false_entries_are_left_in_steps_that_double() -> None:
    stored = tall()
    for number in (1, 2, 4, 16, COUNT - 1):
        entries = list(itertools.takewhile(lambda entry: entry >= 1, (number + 1 - (1 << step) for step in range(9))))
        stored.index(FALSE_OFFSETS)
        assert stored.read(number).end_offset == BASE + number + 1
        tried = [position + 1 for position in positions(*entries)]
        assert stored.asked() == [*tried, *positions(*range(number + 1), number)]
        stored.index([OFFSETS[0], *FALSE_OFFSETS[1:]])
        assert stored.read(number).end_offset == BASE + number + 1
        leads = entries[-1] == 1
        assert stored.asked() == [
            *(tried[:-1] if leads else tried),
            *positions(*range(1 if leads else 0, number + 1), number),
        ]


def test_damage_behind_a_right_entry_is_not_looked_for_twice() -> None:
    stored = tall()
    stored.index(OFFSETS[:9])
    damaged = bytearray(stored.data)
    damaged[10 * SIZE + 16] = 1  # no such version of the format
    stored.put(bytes(damaged))
    with pytest.raises(CorruptRemoteSegmentError, match=f"byte {10 * SIZE}: no batch header"):
        stored.read(12)
    assert stored.asked() == positions(9, 10)


@pytest.mark.parametrize(
    ("time", "start", "first"),
    [
        (9, 0, [8, 9]),
        (9, 7, [8, 9]),
        (9, 8, [8, 9]),  # the search begins at the start offset, which is that of the entry
        (9, 9, [9]),  # no entry above the start offset: its own batch is the first one
        (9, 12, [12]),
        (COUNT - 1, 0, [COUNT - 1]),
        (4, 0, [4]),
    ],
)
def test_a_time_entry_above_the_start_saves_the_walk(time: int, start: int, first: list[int]) -> None:
    stored = tall()
    stored.index(OFFSETS, [(number, number) for number in (4, 8, COUNT - 1)])
    assert stored.search(time, start) == max(time, start)
    assert stored.asked() == [*positions(*first), *positions(first[-1])]


def test_a_time_entry_beyond_the_segment_costs_nothing() -> None:
    stored = tall()
    stored.index(OFFSETS, [(4, 4), (6, COUNT)])
    assert stored.search(7) == 7
    assert stored.asked() == positions(4, 5, 6, 7, 7)
