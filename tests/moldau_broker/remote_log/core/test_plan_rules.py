"""The decisions of a leader against their rules, written in another way, for all small sets of segments and limits."""

from __future__ import annotations

import itertools
from uuid import UUID

from moldau_broker.remote_log.core.names import DeletionProof, Listing, RemoteSegment
from moldau_broker.remote_log.core.plans import (
    NO_LIMIT,
    PROOFS_KEPT,
    ClosedRange,
    Retention,
    lacks_all,
    start_behind_expired,
    start_by_retention,
    to_copy,
    to_delete,
)
from moldau_broker.remote_log.core.remote_log import RemoteLog

OWN_EPOCH = 2
TIMES = (-1, 0, 10)
LIMITS_MS = (NO_LIMIT, 0, 10)
NOWS = (0, 1, 10, 11, 20, 21)
RANGES = [(base, end) for base in range(4) for end in range(base + 1, 5)]


def segment(base: int, end: int, *, epoch: int = OWN_EPOCH, time: int = 5, number: int = 1) -> RemoteSegment:
    """A segment of ten bytes for each offset."""
    return RemoteSegment(base, end - 1, epoch, time, False, UUID(int=number), 10 * (end - base))


def known(*segments: RemoteSegment, proofs: tuple[DeletionProof, ...] = ()) -> RemoteLog:
    return RemoteLog(Listing(list(segments), [], proofs), lambda _: OWN_EPOCH, 0)


def is_expired(time: int, limit_ms: int, now_ms: int) -> bool:
    return limit_ms != NO_LIMIT and time != -1 and now_ms - time > limit_ms


def test_retention_ends_at_a_segment_that_goes_with_all_before() -> None:
    for times in itertools.product(TIMES, repeat=3):
        remote = known(*(segment(10 * at, 10 * at + 10, time=time) for at, time in enumerate(times)))
        cases = itertools.product(LIMITS_MS, (NO_LIMIT, 0, 100, 250), (0, 10, 15, 35), (0, 50), NOWS)
        for limit_ms, limit_bytes, start, uncopied, now_ms in cases:
            goes = [
                10 * at + 10 <= start
                or is_expired(time, limit_ms, now_ms)
                or (limit_bytes != NO_LIMIT and 200 - 100 * at + uncopied >= limit_bytes)
                for at, time in enumerate(times)
            ]
            waits = [time == -1 and limit_ms != NO_LIMIT for time in times]
            expected = start
            for at in range(3):
                if goes[at] and all(goes[before] or waits[before] for before in range(at)):
                    expected = max(expected, 10 * at + 10)
            found = start_by_retention(
                remote,
                Retention(limit_ms, limit_bytes),
                log_start_offset=start,
                uncopied_bytes=uncopied,
                now_ms=now_ms,
            )
            assert found == expected


def test_missing_records_expire_with_the_first_local_segment() -> None:
    cases = itertools.product(LIMITS_MS, (NO_LIMIT, 0, 100), (-1, 0, 10), NOWS, (0, 99, 100), (3, 40))
    for limit_ms, limit_bytes, time, now_ms, local_bytes, local_start in cases:
        demanded = is_expired(time, limit_ms, now_ms) or (limit_bytes != NO_LIMIT and local_bytes >= limit_bytes)
        found = start_behind_expired(
            Retention(limit_ms, limit_bytes),
            log_start_offset=10,
            local_log_start_offset=local_start,
            local_bytes=local_bytes,
            first_timestamp_ms=time,
            now_ms=now_ms,
        )
        assert found == (40 if demanded and local_start == 40 else 10)


def test_every_missing_offset_of_the_log_is_copied() -> None:
    closed = [ClosedRange(0, 0), ClosedRange(1, 3), ClosedRange(4, 4)]
    for one, other in itertools.combinations_with_replacement(RANGES, 2):
        remote = known(segment(*one), segment(*other, number=2))
        held = {*range(*one), *range(*other)}
        for start in range(7):
            missing = set(range(start, 5)) - held
            expected = [at for at, (base, last) in enumerate(closed) if missing & set(range(base, last + 1))]
            assert to_copy(remote, closed, start) == expected
            for local_start in range(6):
                needed = set(range(start, local_start))
                lacking = lacks_all(remote, log_start_offset=start, local_log_start_offset=local_start)
                assert lacking == (bool(needed) and not needed & held)


def deletions(remote: RemoteLog, *, limit_ms: int = NO_LIMIT, start: int = 0, epoch: int = OWN_EPOCH, now_ms: int = 0):
    return to_delete(
        remote,
        Retention(limit_ms, NO_LIMIT),
        log_start_offset=start,
        leader_epoch=epoch,
        now_ms=now_ms,
        unfinished_delete_delay_ms=1000,
    )


def test_foreign_segments_go_unless_they_are_a_successors() -> None:
    cases = itertools.product(TIMES, (1, 3, 4), LIMITS_MS, NOWS, (9, 10, 11), (2, 3))
    for time, epoch, limit_ms, now_ms, start, leader_epoch in cases:
        foreign = segment(0, 10, epoch=epoch, time=time)
        found = deletions(known(foreign), limit_ms=limit_ms, start=start, epoch=leader_epoch, now_ms=now_ms)
        goes = epoch <= leader_epoch and (start >= 10 or is_expired(time, limit_ms, now_ms))
        assert found.segments == [foreign] * goes
        assert found.proofs == [DeletionProof(10, epoch)] * (goes and start >= 10)


def test_proofs_name_the_end_of_each_epoch_and_few_stay() -> None:
    segments = [segment(0, 2), segment(2, 4, number=2), segment(0, 3, epoch=1), segment(3, 5, epoch=1, number=4)]
    possible = [DeletionProof(end, epoch) for end, epoch in ((1, 1), (2, 2), (3, 1), (4, 2), (5, 1), (6, 2))]
    for count in range(len(possible) + 1):
        for written in itertools.combinations(possible, count):
            for start in range(7):
                found = deletions(known(*segments, proofs=written), start=start)
                gone = [each for each in segments if each.end_offset <= start]
                ends = {
                    DeletionProof(max(each.end_offset for each in gone if each.last_epoch == epoch), epoch)
                    for epoch in {each.last_epoch for each in gone}
                }
                assert found.segments == gone
                assert found.proofs == sorted(ends - set(written))
                below = sorted(each for each in ends | set(written) if each.end_offset <= start)
                needed = set(below[max(0, len(below) - PROOFS_KEPT) :])
                assert found.needless == [each for each in below if each in written and each not in needed]
