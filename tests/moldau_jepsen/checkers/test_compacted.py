"""Goal: reads of a compacted topic are judged by the model of each key.

Method: one sound story of writes and reads, and changes of it that each break one rule.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau_jepsen.checkers.log.compacted import Fate, KeyRead, KeyRecord, KeyWrite, check_compacted

COMMITTED, ABORTED, UNKNOWN = Fate.COMMITTED, Fate.ABORTED, Fate.UNKNOWN


def write(key, value, fate=COMMITTED, offset=-1, known_at=-1):
    return KeyWrite(partition=0, key=key, value=value, fate=fate, offset=offset, known_at=known_at)


WRITES = [
    write("a", b"0", offset=0, known_at=1),
    write("a", b"1", offset=1, known_at=2),
    write("b", b"2", offset=2, known_at=2),
    write("b", b"3", ABORTED),
    write("b", None, offset=5, known_at=3),
    write("c", b"5", UNKNOWN),
    write("a", b"6", offset=9, known_at=20),
]
A0, A1, B2, B3, B4, C5, A6 = (
    KeyRecord(offset, each.key, number, each.value)
    for number, (each, offset) in enumerate(zip(WRITES, (0, 1, 2, 4, 5, 7, 9), strict=True))
)


def read(*records, begun=10, ended=12, log_start=0, judges_absence=True):
    return KeyRead(0, begun, ended, log_start, records, judges_absence=judges_absence)


ROTTEN = 1 << 49


def test_an_offset_that_no_log_has_is_the_only_finding():
    """A wrong offset of a record, or of an acknowledgement, says nothing about the key."""
    moved = read(A0, A1._replace(offset=1 ^ ROTTEN), B2, B4)
    wrong = f"partition 0 returned write 1 of a at offset {1 ^ ROTTEN}, far above 9, the highest one known"
    assert check_compacted(WRITES, [moved, read(A1, B4, begun=13, ended=14)], tombstones_stay=True) == [wrong]
    alone = read(A1._replace(offset=-2), begun=0)
    assert check_compacted(WRITES, [alone, read(A1, B4)], tombstones_stay=True) == [
        "partition 0 returned write 1 of a at offset -2, which is negative"
    ]
    writes = [*WRITES, write("d", b"7", offset=ROTTEN, known_at=3)]
    wrong = f"partition 0 acknowledged write 7 of d at offset {ROTTEN}, far above 9, the highest one known"
    assert check_compacted(writes, [read(A1, B4)], tombstones_stay=True) == [wrong]


def test_sound_reads_are_acquitted():
    sound = [
        read(begun=0, ended=1),
        read(A0, A1, B2, B4),
        read(A1, B4, begun=13, ended=14),  # compacted
        read(A1, C5, begun=15, ended=16),  # the tombstone has served its time
        read(A0, A1, C5, begun=21, ended=22, log_start=10, judges_absence=False)._replace(records=(C5, A6)),
        read(C5, A6, begun=23, ended=24),
        read(A6, begun=30, ended=31, log_start=8),  # retention took the write of unknown fate
    ]
    assert check_compacted(WRITES, sound, tombstones_stay=False) == []
    assert check_compacted(WRITES, sound[:3], tombstones_stay=True) == []
    during = [*WRITES, write("d", b"7", offset=11, known_at=11)]
    assert check_compacted(during, [read(A1, B4)], tombstones_stay=True) == [], "the read had begun before"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (read(A0, B4), "lost write 1 of a, known to be committed at 1: write 0 at 0 is the newest"),
        (read(B4), "lost write 1 of a, known to be committed at 1: the key is absent"),
        (read(A1, B2), "lost write 4 of b, known to be committed at 5: write 2 at 2 came back from the dead"),
        (read(A1, B3, B4), "returned write 3 of b at 4, which was aborted"),
        (read(B4, A1), "was read with offsets [5, 1], which do not rise"),
        (read(A1, A1, B4), "was read with offsets [1, 1, 5], which do not rise"),
        (read(A1._replace(value=b"x"), B4), "holds b'x' of a at 1, which was not written"),
        (read(A1._replace(key="b"), B4), "holds b'1' of b at 1, which was not written"),
        (read(A1._replace(number=77), B4), "holds b'1' of a at 1, which was not written"),
        (read(A1, B4._replace(value=b""), C5), "holds b'' of b at 5, which was not written"),
        (read(A1._replace(offset=3), B4), "write 1 of partition 0 had the offsets 1 and 3"),
        (read(A1, B2, B4, C5._replace(offset=2))._replace(records=(A1, C5._replace(offset=2), B4)), "at offset 2"),
    ],
)
def test_each_anomaly_is_convicted(found, text):
    assert any(text in line for line in check_compacted(WRITES, [found], tombstones_stay=False))


def test_a_tombstone_that_must_stay_is_missed():
    """A tombstone may not be absent while delete.retention.ms is not over."""
    (wrong,) = check_compacted(WRITES, [read(A1)], tombstones_stay=True)
    assert wrong == "partition 0 lost write 4 of b, known to be committed at 5: the key is absent"
    assert check_compacted(WRITES, [read(A1)], tombstones_stay=False) == []


def test_a_write_that_was_read_once_is_known():
    """A write of unknown fate that was read once must be read again, or a later one of its key."""
    before, after = read(A1, B4, C5), read(A1, B4, begun=13, ended=14)
    (wrong,) = check_compacted(WRITES, [before, after], tombstones_stay=False)
    assert wrong == "partition 0 lost write 5 of c, known to be committed at 7: the key is absent"
    meanwhile = replace_begun(after, 11)
    assert check_compacted(WRITES, [before, meanwhile], tombstones_stay=False) == []


def test_a_write_behind_the_end_may_have_superseded():
    """Found by seed 920004: a read ended before a newer value, whose arrival let the cleaner drop the older one."""
    newer = [*WRITES, KeyWrite(partition=0, key="a", value=b"7", fate=COMMITTED, offset=13, begun=11, known_at=20)]
    short = read(B4)._replace(end=12)
    assert check_compacted(newer, [short], tombstones_stay=False) == []
    late = [*newer[:-1], replace(newer[-1], begun=13)]
    assert check_compacted(late, [short], tombstones_stay=False), "it began after the read had ended"
    before = [*newer[:-1], replace(newer[-1], offset=11)]
    assert check_compacted(before, [short], tombstones_stay=False), "it lies in what was read"
    assert check_compacted([*newer[:-1], replace(newer[-1], fate=ABORTED)], [short], tombstones_stay=False)
    unanswered = replace(newer[-1], fate=UNKNOWN, offset=-1, known_at=-1)
    assert check_compacted([*newer[:-1], unanswered], [short], tombstones_stay=False) == [], "it may be in the log"


def replace_begun(of, begun):
    return of._replace(begun=begun)


def test_deleted_offsets_are_not_missed():
    """Records below the log start offset at the end of a read may be absent, whatever the read found before them."""
    moved = read(B4, log_start=2)
    assert check_compacted(WRITES, [moved], tombstones_stay=False) == []
    assert check_compacted(WRITES, [read(B4, judges_absence=False)], tombstones_stay=False) == []
    assert check_compacted(WRITES, [read(A0, B4, log_start=2)], tombstones_stay=False) == []
    assert check_compacted(WRITES, [read(A0, B4, log_start=1)], tombstones_stay=False)


def test_partitions_are_judged_apart():
    other = [replace(each, partition=1) for each in WRITES]
    assert check_compacted(other, [read()], tombstones_stay=True) == []
