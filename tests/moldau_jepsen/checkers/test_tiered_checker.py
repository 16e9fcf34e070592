"""Goal: passes over tiered partitions are convicted of lost, repeated, reordered, altered and aborted records only.

Method: one sound story of writes and passes, and changes of it that each break one rule, or none.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau_jepsen.checkers.log.compacted import NEVER, Fate
from moldau_jepsen.checkers.log.tiered import (
    TieredRead,
    TieredRecord,
    TieredSearch,
    TieredStory,
    TieredWrite,
    check_tiered,
)

A, B = ("tiered", 0), ("trimmed", 0)


def write(offset, *, place=A, producer=1, fate=Fate.COMMITTED, number=None, **changes):
    name = offset if number is None else number
    acknowledged = NEVER if offset == NEVER else 1
    given = {
        "place": place,
        "producer": producer,
        "value": b"v%d" % name,
        "timestamp_ms": 100 + 10 * name,
        "fate": fate,
        "offset": offset,
        "acknowledged_at": acknowledged,
        "committed_at": acknowledged if fate is Fate.COMMITTED else NEVER,
    }
    return TieredWrite(**(given | changes))


WRITES = [
    write(0),
    write(1),
    write(3, fate=Fate.ABORTED, producer=2),  # offset 2 has a marker, and so has 4
    write(5),
    write(NEVER, fate=Fate.UNKNOWN, producer=3, number=6),  # it came to offset 6
    write(7, place=B),
    write(8, place=B),
]


def records(*offsets):
    return tuple(TieredRecord(offset, b"v%d" % offset, 100 + 10 * offset) for offset in offsets)


def read(*offsets, place=A, is_committed=True, begun=5, start=0, log_start=0, end=7):
    return TieredRead(place, is_committed, begun, begun + 1, start, log_start, records(*offsets), end)


READS = [
    read(0, 1, 5, 6),
    read(0, 1, 3, 5, 6, is_committed=False, begun=7),
    read(0, 1, 5, 6, begun=9),
    read(8, place=B, begun=9, start=0, log_start=8, end=9),
]


def judged(writes=WRITES, reads=READS, searches=(), trims=None):
    return check_tiered(
        TieredStory(writes=writes, reads=reads, searches=searches, trims={B: 8} if trims is None else trims)
    )


def changed(place, **changes):
    return [each._replace(**changes) if number == place else each for number, each in enumerate(READS)]


def test_an_offset_that_no_log_has_is_the_only_finding():
    """A pass that returned one proves nothing about other records: its reader was sent back."""
    rotten = 1 << 49
    moved = changed(0, records=(*records(0), records(1)[0]._replace(offset=1 ^ rotten)))
    wrong = f"tiered-0: a pass with read_committed returned write 1 at offset {1 ^ rotten}, far above 5"
    (text,) = judged(reads=[moved[0], *moved])
    assert text.startswith(wrong), "it counts once"
    lost = [*moved, read(0, 5, 6, begun=11)]
    assert len(judged(reads=lost)) == 2, "another pass lacks the record"
    (text,) = judged(writes=[*WRITES[:3], replace(WRITES[3], offset=-9), *WRITES[4:]])
    assert text == "tiered-0: write 3 was acknowledged at offset -9, which is negative"
    (text,) = judged(searches=[TieredSearch(A, 5, 100, rotten, 0, 99)])
    assert text.startswith(f"tiered-0: a search for 100 ended at offset {rotten}, far above 6")


def test_a_sound_story_is_acquitted():
    assert judged() == []
    assert judged(trims={B: None}) == [], "retention may delete"
    assert judged(reads=[read(5, 6, start=4), *READS[1:]]) == [], "a pass may begin at a later offset"
    assert judged(reads=[read(0, 1, end=2), *READS[1:]]) == [], "a pass need not have what lies behind its end"
    assert judged(reads=[read(begun=0), *READS[1:]]) == [], "nothing was known when it began"


@pytest.mark.parametrize("lost", [0, 1, 5])
def test_a_committed_record_that_a_pass_lacks_convicts(lost):
    left = tuple(record for record in READS[2].records if record.offset != lost)
    (text,) = judged(reads=changed(2, records=left))
    assert text.startswith("tiered-0: a pass with read_committed from 0 to 7, which returned 3 records, lacks write")
    assert f"at offset {lost}" in text


def test_a_record_that_an_earlier_pass_returned_stays():
    (text,) = judged(reads=changed(2, records=READS[2].records[:-1]))
    assert text.endswith("lacks the record at offset 6, which was read before")
    assert judged(reads=changed(0, records=READS[0].records[:-1])) == [], "nothing was known of it yet"


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_record_is_known_since_the_first_of_its_witnesses(is_committed):
    """A pass may return a record long before the answer to its producer comes."""
    writes = [write(0, acknowledged_at=20, committed_at=20), *WRITES[1:]]
    reads = [read(0, 1, 5, 6), read(1, 3, 5, 6, begun=9, is_committed=False)]
    if is_committed:
        reads[1] = read(1, 5, 6, begun=9)
    (text,) = judged(writes=writes, reads=reads)
    assert text.endswith("lacks the record at offset 0, which was read before")


def test_aborted_records_are_for_uncommitted_readers_alone():
    (text,) = judged(reads=changed(2, records=records(0, 1, 3, 5, 6)))
    assert text == "tiered-0: write 2 at offset 3 was read, and it was aborted"
    (text,) = judged(reads=changed(1, records=records(0, 1, 5, 6)))
    assert "read_uncommitted" in text
    assert "lacks write 2 at offset 3" in text


@pytest.mark.parametrize(
    ("offsets", "text"),
    [((0, 1, 1, 5, 6), "offset 1 after 1"), ((0, 5, 6, 1), "offset 1 after 6"), ((0, 1, 5, 6, 0), "offset 0 after 6")],
)
def test_each_record_is_served_once_and_in_order(offsets, text):
    (found,) = judged(reads=changed(0, records=records(*offsets)))
    assert found == f"tiered-0: a pass with read_committed returned {text}"


def test_bytes_and_timestamps_are_those_that_were_written():
    others = (*READS[2].records[:-1], TieredRecord(6, b"v6 ", 160))
    assert "tiered-0: offset 6 has b'v6 ', which was not written there" in judged(reads=changed(2, records=others))
    others = (*READS[2].records[:-1], TieredRecord(6, b"v6", 161))
    (text,) = judged(reads=changed(2, records=others))
    assert text == "tiered-0: write 4 at offset 6 has timestamp 161, it was written with 160"
    foreign = (*READS[2].records, TieredRecord(9, b"v7", 170))
    assert "offset 9 has b'v7', which was not written there" in judged(reads=changed(2, records=foreign))[0]


def test_the_log_start_moves_only_where_records_are_deleted():
    (text,) = judged(reads=changed(2, log_start=1))
    assert text == "tiered-0: the log begins at 1, and nothing above 0 was to be deleted"
    (text,) = judged(trims={B: 7})
    assert text == "trimmed-0: the log begins at 8, and nothing above 7 was to be deleted"


def test_an_offset_has_one_record_and_a_record_one_offset():
    twice = [*READS, TieredRead(A, False, 11, 12, 7, 0, (TieredRecord(9, b"v5", 150),), 10)]
    assert "tiered-0: write 3 has the offsets 5 and 9" in judged(reads=twice)
    other = [*READS, TieredRead(A, False, 11, 12, 7, 0, (TieredRecord(5, b"v6", 160),), 10)]
    found = judged(reads=other)
    assert "tiered-0: offset 5 held write 3 and write 4" in found


def test_a_producer_keeps_its_order():
    writes = [write(1, number=0), write(0, number=1)]
    pass_ = TieredRead(A, True, 5, 6, 0, 0, (TieredRecord(0, b"v1", 110), TieredRecord(1, b"v0", 100)), 2)
    assert judged(writes, [pass_]) == [
        "tiered-0: producer 1 sent write 0 before write 1, and they have the offsets 1 and 0"
    ]
    strangers = [writes[0], replace(writes[1], producer=2)]
    assert judged(strangers, [pass_]) == []


@pytest.mark.parametrize(
    ("asked", "offset", "text"),
    [
        (100, 0, ""),
        (101, 1, ""),
        (150, 5, ""),
        (115, 2, ""),  # the marker there may have such a timestamp, and nothing before it has
        (120, 5, ""),
        (200, -1, ""),
        (150, 6, "write 3 at offset 5 has timestamp 150"),
        (100, -1, "write 0 at offset 0 has timestamp 100"),
        (151, 5, "write 3 at offset 5 has timestamp 150"),
    ],
)
def test_searches_by_time_find_the_first_record(asked, offset, text):
    found = judged(searches=[TieredSearch(A, 5, asked, offset, 0, 99)])
    assert len(found) == bool(text), found
    if text:
        assert text in found[0]


def test_searches_see_only_what_was_known_and_is_kept():
    assert judged(searches=[TieredSearch(A, 1, 100, -1, 0, 99)]) == [], "it began before the write was known"
    assert judged(searches=[TieredSearch(B, 5, 170, 8, 8, 99)]) == [], "the log begins behind it"
    assert len(judged(searches=[TieredSearch(B, 5, 170, 8, 7, 99)])) == 1


def test_open_transactions_may_hide_from_a_search():
    """A reader of committed data sees nothing from the first offset of an open transaction on."""
    (first,) = [item.offset for item in WRITES if item.place == A and item.timestamp_ms == 100]
    assert judged(searches=[TieredSearch(A, 5, 100, -1, 0, first)]) == []
    assert len(judged(searches=[TieredSearch(A, 5, 100, -1, 0, first + 1)])) == 1
