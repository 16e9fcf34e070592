"""Goal: what the model leaves out: record batches, gaps, aborted records, stored states, fencing.

Method: the pure core, called as the leader calls it, with Kafka's answers as the expectation.
"""

import random
from itertools import pairwise

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.server.share.core.share_partition import InvalidStateError, SharePartition
from moldau_broker.server.share.core.state_batches import overlay
from moldau_broker.server.share.core.values import (
    AcknowledgementBatch,
    AcknowledgeType,
    AcquiredRange,
    AcquireMode,
    RecordState,
    ShareLimits,
    StateBatch,
)

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = RecordState
BATCHES = ((0, 10), (10, 20), (20, 30))


def make(**limits):
    chosen = {"delivery_count_max": 5, "record_locks_max": 200, "lock_duration_ms": 1000} | limits
    return SharePartition(ShareLimits(**chosen), leader_epoch=3, state_epoch=2, start_offset=0)


def acquire(share, member="m", most=500, batches=BATCHES, size=0, mode=AcquireMode.BATCH_OPTIMIZED, aborted=()):
    return share.acquire(
        member,
        batches,
        fetch_offset=share.next_fetch_offset,
        records_max=most,
        batch_size=size,
        mode=mode,
        now_ms=0,
        aborted=aborted,
    )


def acknowledge(share, first, last, *types, member="m"):
    return share.acknowledge(member, [AcknowledgementBatch(first, last, types)], now_ms=0)


def stored(share, answer):
    """Lets the write of an answer succeed."""
    assert answer.error is ErrorCode.NONE
    effects = share.persisted(ErrorCode.NONE)
    assert [each.token for each in effects.settled] == [answer.token]
    return effects


def restored(*batches, start=0, log_start=0):
    return SharePartition.restore(
        make().limits, batches, leader_epoch=1, state_epoch=4, start_offset=start, log_start_offset=log_start
    )


def deliver_and_lose(share, now_ms):
    """Lets a member acquire what it can, and its locks expire; returns the numbers of records, and the counts."""
    found = share.acquire(
        "m",
        BATCHES,
        fetch_offset=share.next_fetch_offset,
        records_max=500,
        batch_size=0,
        mode=AcquireMode.BATCH_OPTIMIZED,
        now_ms=now_ms,
    )
    share.on_timer(now_ms + share.limits.lock_duration_ms)
    share.persisted(ErrorCode.NONE)
    return [(each.last - each.first + 1, each.delivery_count) for each in found]


def test_records_that_fail_again_and_again_come_alone():
    """One record ends each member that gets it: the others of its batches are not given up with it."""
    share = make()
    rounds = [deliver_and_lose(share, 1000 * each) for each in range(4)]
    assert rounds == [[(30, 1)], [(30, 2)], [(30, 3)], [(15, 4)]]
    assert deliver_and_lose(share, 4000) == [(1, 5)], "the last delivery of the first record"
    assert share.start_offset == 1, "it is given up"
    (first,) = acquire(share, batches=((0, 30), (30, 40)))
    assert (first.first, first.last, first.delivery_count) == (1, 1, 5)
    (second,) = acquire(share, member="n", batches=((0, 30), (30, 40)))
    assert (second.first, second.last) == (2, 2), "another member goes on with the next one"


def test_suspected_records_end_an_acquisition():
    """Records that are delivered for the first time do not come together with them."""
    share = restored(StateBatch(2, 9, AVAILABLE, 3))
    assert acquire(share, batches=((0, 10), (10, 20))) == (AcquiredRange(0, 1, 1),)
    assert acquire(share, batches=((0, 10), (10, 20))) == (AcquiredRange(2, 5, 4),)
    assert acquire(share, batches=((0, 10), (10, 20))) == (AcquiredRange(6, 7, 4),)


@pytest.mark.parametrize(
    ("most", "count", "numbers"), [(2, 1, 30), (3, 1, 30), (3, 2, 1), (10, 4, 30), (10, 5, 15), (10, 6, 7)]
)
def test_suspicion_begins_after_half_of_the_deliveries(most, count, numbers):
    share = SharePartition.restore(
        make(delivery_count_max=most).limits,
        [StateBatch(0, 29, AVAILABLE, count)],
        leader_epoch=1,
        state_epoch=1,
        start_offset=0,
        log_start_offset=0,
    )
    assert acquire(share) == (AcquiredRange(0, numbers - 1, count + 1),)


def test_each_range_holds_about_the_wanted_number_of_records():
    batches = tuple((first, first + 10) for first in range(0, 50, 10))
    ranges = acquire(make(), batches=batches, size=15)
    assert [(each.first, each.last) for each in ranges] == [(0, 19), (20, 39), (40, 49)]


def test_nothing_to_acknowledge_is_no_error():
    share = make()
    assert share.acknowledge("m", [], now_ms=0).error is ErrorCode.NONE


def test_limit_ends_with_the_record_batch():
    """In the mode batch_optimized a limit of 11 records takes two whole batches of ten."""
    share = make()
    assert acquire(share, most=11) == (AcquiredRange(0, 19, 1),)
    assert share.next_fetch_offset == 20


def test_record_limit_cuts_a_record_batch():
    """In the mode record_limit exactly 11 records are acquired, and the next read begins after them (KIP-1206)."""
    share = make()
    assert acquire(share, most=11, mode=AcquireMode.RECORD_LIMIT) == (AcquiredRange(0, 10, 1),)
    assert share.next_fetch_offset == 11
    assert acquire(share, "n", most=2, mode=AcquireMode.RECORD_LIMIT) == (AcquiredRange(11, 12, 1),)


def test_ranges_of_about_the_batch_size():
    """Acquired ranges end with a record batch and have the client's size at least."""
    assert acquire(make(), size=15) == (AcquiredRange(0, 19, 1), AcquiredRange(20, 29, 1))
    assert acquire(make(), size=10) == tuple(AcquiredRange(o, o + 9, 1) for o in (0, 10, 20))
    assert acquire(make(), size=100) == (AcquiredRange(0, 29, 1),)


def test_records_in_flight_are_bounded():
    """No new records are acquired at the bound; released ones still are."""
    share = make(record_locks_max=20)
    assert acquire(share) == (AcquiredRange(0, 19, 1),)
    assert not share.can_acquire
    assert acquire(share) == ()
    stored(share, acknowledge(share, 5, 6, AcknowledgeType.RELEASE))
    assert share.can_acquire
    assert acquire(share, "n") == (AcquiredRange(5, 6, 2),)
    assert not share.can_acquire


def test_offsets_that_the_log_lost_are_archived():
    """Compaction removed available records and a part of the log that was never read; the start offset passes both."""
    share = make()
    acquire(share, batches=((0, 10),))
    stored(share, acknowledge(share, 0, 9, AcknowledgeType.RELEASE))
    assert acquire(share, batches=((6, 10), (50, 60))) == (AcquiredRange(6, 9, 2), AcquiredRange(50, 59, 1))
    assert share.start_offset == 6
    assert share.snapshot()[1] == (10, 50, ARCHIVED, 0, "")


def test_a_hole_that_is_longer_than_any_count():
    """Compaction may leave more offsets without records than the number of completed deliveries can say."""
    share = make()
    far = 5 << 30
    acquire(share, most=10, batches=((0, 1), (3, 4)))
    assert acquire(share, batches=((far, far + 1),)) == ()
    answer = acknowledge(share, 3, 3, AcknowledgeType.ACCEPT)
    assert answer.effects.persist.delivery_complete_count == (1 << 31) - 1


def test_gap_in_front_of_the_first_batch():
    """A log that begins with a gap: the offsets before the first batch are not in flight."""
    share = make()
    assert acquire(share, batches=((40, 50),)) == (AcquiredRange(40, 49, 1),)
    assert (share.start_offset, share.end_offset) == (40, 50)


def test_gaps_acknowledged_by_the_client():
    """Offsets without a record, such as control records, are acknowledged as gaps and are archived."""
    share = make()
    acquire(share, most=10)
    answer = acknowledge(share, 0, 9, *[1] * 9, AcknowledgeType.GAP)
    assert answer.effects.persist.start_offset == 10
    stored(share, answer)
    assert (share.start_offset, share.snapshot()) == (10, ())


def test_aborted_records_are_archived():
    """A group that reads committed records does not get those of aborted transactions (share.isolation.level)."""
    share = make()
    assert acquire(share, aborted=((5, 10), (25, 30))) == (AcquiredRange(0, 4, 1), AcquiredRange(10, 24, 1))
    assert [run[2] for run in share.snapshot()] == [ACQUIRED, ARCHIVED, ACQUIRED, ARCHIVED]
    share = make()
    assert acquire(share, aborted=((0, 30),)) == ()
    assert share.next_fetch_offset == share.start_offset == 30


def test_write_covers_what_came_meanwhile():
    """One write at a time: what arrives during a write forms the next one, and waits for that."""
    share = make()
    acquire(share)
    first = acknowledge(share, 0, 9, 1)
    second = acknowledge(share, 20, 24, 3)
    third = acknowledge(share, 25, 29, 1)
    assert first.effects.persist.batches == (StateBatch(0, 9, ACKNOWLEDGED, 1),)[1:]
    assert first.effects.persist.start_offset == 10
    assert second.effects.persist is None
    assert third.effects.persist is None
    following = share.persisted(ErrorCode.NONE)
    assert [each.token for each in following.settled] == [first.token]
    write = following.persist
    assert write.batches == (StateBatch(20, 24, ARCHIVED, 1), StateBatch(25, 29, ACKNOWLEDGED, 1))
    assert (write.start_offset, write.delivery_complete_count, write.state_epoch, write.leader_epoch) == (10, 10, 2, 3)
    assert [each.token for each in share.persisted(ErrorCode.NONE).settled] == [second.token, third.token]


def test_refused_write_undoes_and_the_lock_goes_on():
    """After a failed write the records are acquired as before, and the lock still ends at its time."""
    share = make()
    acquire(share)
    answer = acknowledge(share, 0, 29, 1)
    assert share.next_deadline_ms() is None
    effects = share.persisted(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert [(each.token, each.error) for each in effects.settled] == [
        (answer.token, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    ]
    assert share.next_deadline_ms() == 1000
    assert share.on_timer(1000).acquirable
    assert acquire(share, "n") == (AcquiredRange(0, 29, 2),)


def test_expired_locks_of_a_failed_write_are_stored_later():
    """The release of an expired lock is repeated with the next write, and does not overtake a later state."""
    share = make()
    acquire(share, batches=((0, 10), (10, 20)))
    write = share.on_timer(1000).persist
    assert write.batches == (StateBatch(0, 19, AVAILABLE, 1),)
    assert share.persisted(ErrorCode.COORDINATOR_NOT_AVAILABLE).persist is None
    share.acquire(
        "m", ((0, 10),), fetch_offset=0, records_max=10, batch_size=0, mode=AcquireMode.RECORD_LIMIT, now_ms=1000
    )
    answer = acknowledge(share, 5, 9, 3)
    assert answer.effects.persist.batches == (
        StateBatch(0, 4, AVAILABLE, 1),
        StateBatch(5, 9, ARCHIVED, 2),
        StateBatch(10, 19, AVAILABLE, 1),
    )


def test_a_state_stored_late_is_stored_once():
    """Once a later write has stored what a failed one left, no further write may name it: newer states came since."""
    share = make()
    acquire(share, batches=((0, 10), (10, 20)))
    share.on_timer(1000)
    share.persisted(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    share.acquire(
        "m", ((0, 20),), fetch_offset=0, records_max=20, batch_size=0, mode=AcquireMode.RECORD_LIMIT, now_ms=1000
    )
    stored(share, acknowledge(share, 5, 9, AcknowledgeType.ACCEPT))
    answer = acknowledge(share, 15, 19, AcknowledgeType.ACCEPT)
    assert answer.effects.persist.batches == (StateBatch(15, 19, ACKNOWLEDGED, 2),)


def test_release_of_an_ended_session_counts():
    """A member that closes after each failure does not get a bad record for ever: its deliveries end at the limit."""
    share = make(delivery_count_max=2)
    acquire(share)
    stored(share, acknowledge(share, 3, 9, AcknowledgeType.ACCEPT))
    stored(share, share.release("m"))
    assert share.release("m").token is None
    assert acquire(share, "n") == (AcquiredRange(0, 2, 2), AcquiredRange(10, 29, 2))
    stored(share, share.release("n"))
    assert (share.start_offset, acquire(share, "m")) == (30, ())


def test_a_record_that_ends_its_members_is_given_up():
    """The session of each member that gets the first record ends, by its connection or by itself."""
    share = make()
    rounds = []
    for _ in range(5):
        rounds.append([(each.last - each.first + 1, each.delivery_count) for each in acquire(share)])
        stored(share, share.release("m"))
    assert rounds == [[(30, 1)], [(30, 2)], [(30, 3)], [(15, 4)], [(1, 5)]]
    assert share.start_offset == 1, "only this one is given up"


@pytest.mark.parametrize(
    ("first", "last", "types", "member", "error"),
    [
        (0, 30, (1,), "m", ErrorCode.INVALID_REQUEST),
        (0, 3, (1, 1), "m", ErrorCode.INVALID_REQUEST),
        (0, 3, (5,), "m", ErrorCode.INVALID_REQUEST),
        (0, 3, (), "m", ErrorCode.INVALID_REQUEST),
        (0, 3, (1,), "n", ErrorCode.INVALID_RECORD_STATE),
        (18, 22, (1,), "m", ErrorCode.INVALID_RECORD_STATE),
        (0, 20, (1,), "m", ErrorCode.INVALID_RECORD_STATE),
    ],
)
def test_refused_acknowledgements_change_nothing(first, last, types, member, error):
    """Unknown offsets, wrong types, another's records: an error, and all runs stay as they are."""
    share = make()
    acquire(share)
    stored(share, acknowledge(share, 20, 20, 2))
    before = share.snapshot()
    answer = share.acknowledge(
        member, [AcknowledgementBatch(10, 11, (1,)), AcknowledgementBatch(first, last, types)], now_ms=0
    )
    assert (answer.error, answer.token) == (error, None)
    assert share.snapshot() == before


def test_twice_acknowledged():
    """A second acknowledgement of a record is refused, also while the first is being stored."""
    share = make()
    acquire(share)
    answer = acknowledge(share, 10, 11, 1)
    assert acknowledge(share, 11, 11, 2).error is ErrorCode.INVALID_RECORD_STATE
    stored(share, answer)
    assert acknowledge(share, 11, 11, 2).error is ErrorCode.INVALID_RECORD_STATE


def test_restored_state():
    """A new leader: terminal records at the start are passed, holes between batches are available, archived stays."""
    share = restored(
        StateBatch(0, 4, ACKNOWLEDGED, 1),
        StateBatch(10, 14, AVAILABLE, 2),
        StateBatch(15, 19, ARCHIVED, 5),
    )
    assert (share.start_offset, share.end_offset, share.next_fetch_offset) == (5, 20, 5)
    assert acquire(share) == (AcquiredRange(5, 9, 1), AcquiredRange(10, 14, 3), AcquiredRange(20, 29, 1))


def test_restored_state_below_the_log_start():
    """Retention removed stored records: they are forgotten."""
    share = restored(StateBatch(2, 4, AVAILABLE, 2), start=2, log_start=8)
    assert (share.start_offset, share.end_offset, share.snapshot()) == (8, 8, ())


@pytest.mark.parametrize(
    "batches",
    [
        (StateBatch(0, 4, AVAILABLE, 1), StateBatch(4, 6, AVAILABLE, 1)),
        (StateBatch(0, 4, ACQUIRED, 1),),
        (StateBatch(4, 2, AVAILABLE, 1),),
    ],
)
def test_contradictory_state_is_refused(batches):
    """Overlaps, an acquired record and an empty batch are no state that a leader stores."""
    with pytest.raises(InvalidStateError):
        restored(*batches)


def test_fenced_leader_closes():
    """A newer leader has read the state: everything that waits fails, and nothing is acquired or acknowledged."""
    share = make()
    acquire(share)
    first, second = acknowledge(share, 0, 9, 1), acknowledge(share, 10, 19, 1)
    effects = share.persisted(ErrorCode.FENCED_LEADER_EPOCH)
    assert [(each.token, each.error) for each in effects.settled] == [
        (answer.token, ErrorCode.FENCED_LEADER_EPOCH) for answer in (first, second)
    ]
    assert share.closed
    assert acquire(share) == ()
    assert acknowledge(share, 20, 29, 1).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert share.on_timer(5000) == share.move_log_start(9) == share.persisted(ErrorCode.NONE) == share.close()


def test_log_start_passes_acquired_records():
    """Retention removes acquired records: their acknowledgement is ignored, the others of the request hold."""
    share = make()
    acquire(share)
    assert share.move_log_start(15).acquirable
    answer = acknowledge(share, 10, 20, 1)
    assert answer.effects.persist.start_offset == 21
    stored(share, answer)
    assert acknowledge(share, 0, 14, 1) == acknowledge(share, 0, 3, 1, 1, 1, 1)
    assert share.start_offset == 21
    assert not share.move_log_start(3).acquirable


def test_a_long_outage_leaves_one_state_for_each_record():
    """Expired locks were collected for as long as no write succeeded; putting them in order took the leader minutes."""
    share = make(delivery_count_max=100)
    for count in range(1, 31):
        for member in ("a", "b"):
            acquire(share, member, most=10)
        write = share.on_timer(2_000).persist
        assert write.batches == tuple(StateBatch(first, first + 9, AVAILABLE, count) for first in (0, 10))
        share.persisted(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert len(share._unstored) == 2


def test_what_is_given_up_in_an_outage_is_not_kept():
    share = make(delivery_count_max=1)
    for first in range(0, 300, 10):
        acquire(share, most=10, batches=((first, first + 10),))
        share.on_timer(2_000)
        share.persisted(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert share.start_offset == 300
    assert not share._unstored


def test_what_is_given_up_stays_unstored_after_another_failure():
    """Nothing but the start offset says so, which the failed write of an acknowledgement would have stored as well."""
    share = make(delivery_count_max=1)
    acquire(share, most=10, batches=((0, 10),))
    share.on_timer(2_000)
    share.persisted(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    acquire(share, most=10, batches=((10, 20),))
    acknowledge(share, 10, 19, 1)
    share.persisted(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert share.is_behind
    assert not share.is_stored
    write = share.write_again().persist
    assert write is not None
    assert write.start_offset == 10
    share.persisted(ErrorCode.NONE)
    assert not share.is_behind


@pytest.mark.parametrize("seed", range(20))
def test_the_latest_state_of_each_record_holds(seed):
    """The states of a write, in any order, and a naive overlay that keeps an entry for each record."""
    generator = random.Random(seed)
    batches, naive = [], {}
    for number in range(generator.randrange(1, 12)):
        first = generator.randrange(20)
        batches.append(StateBatch(first, first + generator.randrange(6), AVAILABLE, number))
        naive |= dict.fromkeys(range(first, batches[-1].last + 1), number)
    start = generator.randrange(10)
    found = list(overlay(batches, start))
    assert all(left.last < right.first for left, right in pairwise(found))
    assert {o: b.delivery_count for b in found for o in range(b.first, b.last + 1)} == {
        offset: number for offset, number in naive.items() if offset >= start
    }


@pytest.mark.parametrize("log_start", [0, 1, 3, 4, 6, 9, 10])
def test_types_keep_their_offsets_behind_the_log_start(log_start):
    """Of a batch with a type for each offset only those behind the log start count, each for its own offset."""
    types = [1, 1, 1, 2, 2, 2, 3, 3, 1, 1]
    share = make()
    acquire(share, batches=((0, 10),))
    share.move_log_start(log_start)
    answer = acknowledge(share, 0, 9, *types)
    if log_start < 10:
        stored(share, answer)
    expected = [{1: ACKNOWLEDGED, 2: AVAILABLE, 3: ARCHIVED}[kind] for kind in types]
    found = {offset: state for first, end, state, *_ in share.snapshot() for offset in range(first, end)}
    assert all(found[offset] is expected[offset] for offset in found)
    left = [offset for offset in range(log_start, 10) if types[offset] == 2]
    assert share.start_offset == (left[0] if left else 10)
