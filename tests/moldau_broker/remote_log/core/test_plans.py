"""Copies and deletions of a leader, case by case; ``test_two_leaders`` checks the decisions together."""

from collections.abc import Sequence
from uuid import UUID

import pytest

from moldau.runtime.ports.objects import StoredObject
from moldau_broker.remote_log.core.names import DeletionProof, Listing, RemoteSegment
from moldau_broker.remote_log.core.plans import (
    NO_LIMIT,
    ClosedRange,
    Retention,
    is_superseded,
    may_reuse_id,
    must_list,
    start_behind_deleted,
    start_behind_expired,
    start_by_retention,
    to_copy,
    to_delete,
)
from moldau_broker.remote_log.core.remote_log import RemoteLog

FOR_EVER = Retention(NO_LIMIT, NO_LIMIT)
DELAY_MS = 1000


def segment(base: int, end: int, *, epoch: int = 1, number: int = 0, time: int = 5) -> RemoteSegment:
    """A segment of ten bytes for each offset."""
    return RemoteSegment(base, end - 1, epoch, time, False, UUID(int=number or base + 1), 10 * (end - base))


def known(
    *segments: RemoteSegment,
    unfinished: tuple[StoredObject, ...] = (),
    proofs: Sequence[DeletionProof] = (),
    listed_ms: int = 0,
) -> RemoteLog:
    return RemoteLog(Listing(list(segments), list(unfinished), proofs), lambda _: 1, listed_ms)


def start(remote: RemoteLog, ms: int, size: int, *, log_start: int = 0, uncopied: int = 0, now: int = 100) -> int:
    return start_by_retention(
        remote, Retention(ms, size), log_start_offset=log_start, uncopied_bytes=uncopied, now_ms=now
    )


def deleted(remote: RemoteLog, retention: Retention = FOR_EVER, *, log_start: int = 0, epoch: int = 1, now: int = 0):
    return to_delete(
        remote,
        retention,
        log_start_offset=log_start,
        leader_epoch=epoch,
        now_ms=now,
        unfinished_delete_delay_ms=DELAY_MS,
    )


def test_only_ranges_that_the_store_lacks_are_copied() -> None:
    closed = [ClosedRange(0, 4), ClosedRange(5, 9), ClosedRange(10, 14), ClosedRange(15, 19)]
    assert to_copy(known(), closed, 0) == [0, 1, 2, 3]
    assert to_copy(known(segment(0, 10)), closed, 0) == [2, 3]
    assert to_copy(known(segment(0, 12)), closed, 0) == [2, 3]
    assert to_copy(known(segment(0, 5), segment(10, 15)), closed, 0) == [1, 3]  # a hole is filled
    assert to_copy(known(), closed, 11) == [2, 3]
    assert to_copy(known(segment(11, 20)), closed, 11) == []


def test_an_id_is_used_again_only_for_half_of_the_delay() -> None:
    assert may_reuse_id(5000, 5499, DELAY_MS)
    assert not may_reuse_id(5000, 5500, DELAY_MS)


def test_a_leader_lists_once_and_after_the_delay() -> None:
    assert must_list(None, 0, DELAY_MS)
    assert not must_list(0, 999, DELAY_MS)
    assert must_list(0, 1000, DELAY_MS)
    assert not must_list(5000, 5999, DELAY_MS)
    assert must_list(5000, 6000, DELAY_MS)


@pytest.mark.parametrize(
    ("log_start", "proofs", "expected"),
    [
        (0, [], 0),  # nothing says that the missing records were deleted
        (0, [DeletionProof(10, 1)], 10),
        (0, [DeletionProof(5, 1), DeletionProof(10, 1)], 10),
        (12, [DeletionProof(10, 1)], 12),
        (0, [DeletionProof(5, 1), DeletionProof(10, 7)], 5),  # the greater one is of another log
    ],
)
def test_the_log_starts_behind_deleted_segments(log_start: int, proofs: list[DeletionProof], expected: int) -> None:
    remote = known(segment(10, 20), segment(20, 30), proofs=proofs)
    assert start_behind_deleted(remote, 1, log_start_offset=log_start) == expected


@pytest.mark.parametrize(
    ("retention", "expected"),
    [
        (Retention(NO_LIMIT, NO_LIMIT), 10),
        (Retention(NO_LIMIT, 501), 10),
        (Retention(NO_LIMIT, 500), 40),  # what is missing would be too much
        (Retention(1000, NO_LIMIT), 10),
        (Retention(999, NO_LIMIT), 40),  # what is missing is older than what has expired
    ],
)
def test_a_log_without_remote_records_starts_behind_expired_ones(retention: Retention, expected: int) -> None:
    known_of_log = {"log_start_offset": 10, "local_log_start_offset": 40, "local_bytes": 500}
    assert start_behind_expired(retention, **known_of_log, first_timestamp_ms=1000, now_ms=2000) == expected
    timeless = start_behind_expired(retention, **known_of_log, first_timestamp_ms=-1, now_ms=2000)
    assert timeless == (40 if retention.retention_bytes == 500 else 10)


def test_a_superseded_leader_moves_its_start_behind_nothing() -> None:
    remote = known(segment(10, 20), segment(0, 12, epoch=2), proofs=[DeletionProof(10, 1)])
    assert is_superseded(remote, 1)
    assert start_behind_deleted(remote, 1, log_start_offset=0) == 0
    assert not is_superseded(remote, 2)
    assert start_behind_deleted(remote, 2, log_start_offset=0) == 10


class TestRetention:
    """``retention.ms`` and ``retention.bytes`` move the log start offset to the end of a segment."""

    def test_by_time(self) -> None:
        remote = known(segment(0, 10, time=10), segment(10, 20, time=50), segment(20, 30, time=20))
        assert start(remote, 40, NO_LIMIT, now=50) == 0  # exactly 40 ms old
        assert start(remote, 40, NO_LIMIT, now=51) == 10
        assert start(remote, 40, NO_LIMIT, now=90) == 10  # the third one waits for the second
        assert start(remote, 40, NO_LIMIT, now=91) == 30
        assert start(remote, NO_LIMIT, NO_LIMIT, now=1 << 60) == 0
        assert start(remote, 0, NO_LIMIT, now=60) == 30

    def test_without_timestamps(self) -> None:
        remote = known(segment(0, 10, time=-1), segment(10, 20, time=50), segment(20, 30, time=-1))
        assert start(remote, 40, NO_LIMIT, now=90) == 0
        assert start(remote, 40, NO_LIMIT, now=91) == 20
        assert start(remote, 40, NO_LIMIT, now=1 << 60) == 20

    def test_without_any_timestamp(self) -> None:
        """The time of the store counts; nothing else would ever end such a log by time."""
        segments = [segment(0, 10, time=-1), segment(10, 20, time=-1), segment(20, 30, time=150)]
        stored_ms = {each.segment_id: each.base_offset * 10 for each in segments[:2]}
        for count in (2, 3):
            remote = RemoteLog(Listing(segments[:count], [], (), stored_ms), lambda _: 1, 0)
            ends = [start(remote, 100, NO_LIMIT, now=now) for now in (100, 101, 200, 201, 251)]
            assert ends == [0, 10, 10, 20, 10 * count]
        assert start(known(*segments[:2]), 100, NO_LIMIT, now=1 << 60) == 0, "not listed yet"

    def test_by_size(self) -> None:
        remote = known(segment(0, 10), segment(10, 20), segment(20, 30))
        assert start(remote, NO_LIMIT, 300) == 0
        assert start(remote, NO_LIMIT, 299) == 0  # a whole segment must be too much
        assert start(remote, NO_LIMIT, 200) == 10
        assert start(remote, NO_LIMIT, 300, uncopied=150) == 10
        assert start(remote, NO_LIMIT, 0) == 30

    def test_ranges_count_once(self) -> None:
        remote = known(segment(0, 10), segment(0, 10, number=99), segment(5, 15))
        assert start(remote, NO_LIMIT, 100) == 0
        assert start(remote, NO_LIMIT, 50) == 10

    def test_below_the_log_start_offset(self) -> None:
        remote = known(segment(0, 10), segment(10, 20), segment(20, 30))
        assert start(remote, NO_LIMIT, 200, log_start=12) == 12
        assert start(remote, NO_LIMIT, 100, log_start=12) == 20


class TestDeletions:
    """Each reason to delete, and what another broker may still need."""

    def test_below_the_log_start_offset(self) -> None:
        segments = [segment(0, 10), segment(10, 20), segment(20, 30)]
        assert deleted(known(*segments), log_start=19).segments == segments[:1]
        assert deleted(known(*segments), log_start=20).segments == segments[:2]

    def test_time_alone_deletes_none_of_the_log(self) -> None:
        """The log start offset must be durable first."""
        assert deleted(known(segment(0, 10, time=1)), Retention(10, NO_LIMIT), now=1 << 60) == ([], [], [], [])

    def test_contained_copies(self) -> None:
        segments = [segment(0, 10), segment(0, 10, number=99), segment(5, 8), segment(5, 15)]
        assert set(deleted(known(*segments)).segments) == {segments[1], segments[2]}

    def test_foreign_segments_go_with_their_offsets_or_their_time(self) -> None:
        foreign = segment(0, 10, epoch=0, time=100)
        assert deleted(known(foreign)) == ([], [], [], [])
        assert deleted(known(foreign), log_start=10).segments == [foreign]
        assert deleted(known(foreign), Retention(50, NO_LIMIT), now=150) == ([], [], [], [])
        assert deleted(known(foreign), Retention(50, NO_LIMIT), now=151).segments == [foreign]

    def test_segments_of_a_newer_leader_stay(self) -> None:
        newer = segment(0, 10, epoch=2, time=1)
        assert deleted(known(newer), Retention(50, NO_LIMIT), log_start=10, now=1 << 60) == ([], [], [], [])
        assert deleted(known(newer), log_start=10, epoch=2).segments == [newer]

    def test_unfinished_objects_go_by_their_age_when_listed(self) -> None:
        leftover = StoredObject("x.aux", 5, 100)
        assert deleted(known(unfinished=(leftover,), listed_ms=1099), now=1 << 60) == ([], [], [], [])
        assert deleted(known(unfinished=(leftover,), listed_ms=1100), now=1100).objects == [leftover]

    def test_are_proved_once(self) -> None:
        past = segment(0, 10), segment(10, 20)
        assert deleted(known(*past), log_start=15).proofs == [DeletionProof(10, 1)]
        assert deleted(known(*past), log_start=20).proofs == [DeletionProof(20, 1)]
        assert deleted(known(*past, proofs=[DeletionProof(20, 1)]), log_start=20).proofs == []
        assert deleted(known(*past), log_start=5).proofs == []
        older = segment(0, 10, epoch=0)  # perhaps of this log: its epochs are not known any more
        assert deleted(known(older, segment(10, 20)), log_start=20).proofs == [
            DeletionProof(10, 0),
            DeletionProof(20, 1),
        ]

    def test_the_furthest_of_an_epoch_is_proved(self) -> None:
        """Whose records lie below the first known epoch is not known: they may be of the same epoch as the log's own.

        The next leader must not take the others for lost.
        """
        past = segment(0, 10), segment(10, 20)
        remote = RemoteLog(Listing(list(past), []), lambda offset: 1 if offset >= 10 else -1, 0)
        assert [list(remote.segments), list(remote.foreign)] == [[past[1]], [past[0]]]
        assert deleted(remote, log_start=20).proofs == [DeletionProof(20, 1)]

    def test_of_needless_proofs(self) -> None:
        """The last ones below the log start offset stay; those above it may be another leader's."""
        proofs = [DeletionProof(10 * number, 1) for number in range(1, 6)]
        later = DeletionProof(90, 3)
        assert deleted(known(proofs=[*proofs, later]), log_start=50).needless == proofs[:1]
        assert deleted(known(segment(50, 60), proofs=[*proofs, later]), log_start=60).needless == proofs[:2]
