"""Goal: an administered share group is judged by what its calls certainly left, and by nothing that faults can cause.

Method: golden histories by hand. Each is one group with a partition of ten records, and is sound until one event breaks
one rule.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau_jepsen.checkers.group.share import Acknowledged, Acknowledgement, Archived, Delivered
from moldau_jepsen.checkers.group.share_administration import (
    LIMIT,
    OPEN,
    RESET,
    OffsetsRead,
    Outcome,
    Presence,
    Setting,
    ShareAct,
    ShareAdministrationHistory,
    ShareCall,
    Written,
    check_share_administration,
)
from moldau_jepsen.history import TopicPartition

T = TopicPartition("t", 0)
ACCEPT, RELEASE, REJECT, RENEW = Acknowledgement
OK, REFUSED, UNKNOWN = Outcome
FINAL_MS = 1_000.0
WRITTEN = [*(Written((T, offset), 5.0) for offset in range(9)), Written((T, 9), 107.0)]
EARLIEST, LATEST = Setting(RESET, "earliest", 1, 2, 3), Setting(RESET, "latest", 1, 2, 3)
THREE = Setting(LIMIT, "3", 1, 2, 3)


def alter(start, begun, outcome=OK, *, has_member=False):
    return ShareCall(
        act=ShareAct.ALTER,
        outcome=outcome,
        begun_ms=begun,
        answered_ms=begun + 1,
        starts=((T, start),),
        has_member=has_member,
    )


def delete(begun, outcome=OK, act=ShareAct.DELETE_GROUP):
    return ShareCall(act=act, outcome=outcome, begun_ms=begun, answered_ms=begun + 1, starts=((T, None),))


def delivered(offset, at, *, count=1, member=1):
    return Delivered((T, offset), 0, count, member, at, at + 1)


def answered(offset, at, kind=ACCEPT, *, member=1, is_stored=True):
    return Acknowledged((T, offset), member, kind, at, at + 1, is_stored)


def done(offset, at, *, member=1):
    return delivered(offset, at, member=member), answered(offset, at + 2, member=member)


def read(start, at, *, final=False):
    return OffsetsRead(at, at + 1, ((T, start),), final)


def judged(*events, members=None, settings=(EARLIEST, THREE), lost_fetches=(), kept=(), stale_ms=0.0):
    """Returns the anomalies of a group with these events, in any order."""
    every = [each for event in events for each in (event if type(event) is tuple else (event,))]
    history = ShareAdministrationHistory(
        group="g",
        calls=[each for each in every if isinstance(each, ShareCall)],
        settings=list(settings),
        reads=[each for each in every if isinstance(each, OffsetsRead)],
        members=[Presence(begun_ms=10)] if members is None else members,
        deliveries=[each for each in every if isinstance(each, Delivered)],
        answers=[each for each in every if isinstance(each, Acknowledged)],
        lost_fetches=list(lost_fetches),
        archived=[each for each in every if isinstance(each, Archived)],
    )
    return check_share_administration(history, WRITTEN, kept, undivided={"t"}, final_ms=FINAL_MS, stale_ms=stale_ms)


def finds(found, text):
    assert len(found) == 1, found
    assert text in found[0]


CURRENT = done(5, 110)
"""Shows that member 1 reads the state after a call that ended before 110 ms."""
SOUND = {
    "from the start on": (alter(5, 100), CURRENT, done(6, 120)),
    "before the call": (done(2, 90), alter(5, 100), CURRENT),
    "during the call": (delivered(2, 100.5), alter(5, 100)),
    "by a former leader, perhaps": (alter(5, 100), delivered(2, 120), answered(2, 122)),
    "another member is not current": (alter(5, 100), CURRENT, delivered(2, 120, member=2)),
    "a renewal needs no write": (alter(5, 100), delivered(6, 105), answered(6, 107, RENEW), delivered(2, 120)),
    "the answer was refused": (
        alter(5, 100),
        delivered(6, 105),
        answered(6, 107, is_stored=False),
        delivered(2, 120),
    ),
    "acquired before the call, answered after": (
        delivered(6, 95),
        alter(5, 100),
        answered(6, 107),
        delivered(2, 120),
    ),
    "a former call may come late": (alter(1, 90, UNKNOWN), alter(5, 100), CURRENT, delivered(2, 120)),
    "a later call may have come": (alter(5, 100), CURRENT, alter(1, 115, UNKNOWN), delivered(2, 120)),
    "a later call": (alter(5, 100), CURRENT, alter(1, 115), delivered(2, 120)),
    "deleted, begun with the first record": (alter(5, 80), delete(100), CURRENT, done(0, 120)),
}


ROTTEN = 1 << 49


def test_an_offset_that_no_log_has_is_the_only_finding():
    reason = "far above 9, the highest one known"
    finds(judged(alter(5, 100), CURRENT, delivered(ROTTEN, 120)), f"offset {ROTTEN} was delivered")
    (text,) = judged(alter(5, 100), read(ROTTEN, 110), read(5, 120), read(6, 130), read(-4, 140), members=[])[:1]
    assert text == f"group g: {T}: a description between 110 and 111 ms shows the start offset {ROTTEN}, {reason}"
    back = judged(alter(5, 100), read(ROTTEN, 110), read(5, 120), read(6, 130))
    finds(back, reason)


@pytest.mark.parametrize("events", SOUND.values(), ids=SOUND)
def test_what_faults_can_cause_is_acquitted(events):
    assert judged(*events) == []


def test_a_record_before_the_start_convicts():
    finds(judged(alter(5, 100), CURRENT, delivered(4, 120)), "offset 4 was delivered between 120 and 121 ms, before")
    finds(judged(alter(1, 90, UNKNOWN), alter(5, 100), CURRENT, delivered(0, 120)), "before the start set by")
    finds(judged(alter(1, 90, REFUSED), alter(5, 100), CURRENT, delivered(2, 120)), "before the start set by")
    finds(judged(alter(5, 100), CURRENT, alter(1, 115, REFUSED), delivered(2, 120)), "before the start set by")
    finds(judged(alter(5, 100), delivered(4, FINAL_MS + 1)), "before the start set by")  # nothing is stale then


def test_a_deleted_group_begins_by_its_rule():
    fresh = delete(100), done(9, 110), delivered(2, 120)
    later = [Presence(begun_ms=105)]
    finds(judged(*fresh, settings=(LATEST, THREE), members=later), "before the start set by delete-group")
    assert judged(*fresh, members=later) == []
    changing = (LATEST, Setting(RESET, "earliest", 90, 91, OPEN), THREE)
    assert judged(*fresh, settings=changing, members=later) == []  # no broker need have the new rule yet
    changed = (EARLIEST, Setting(RESET, "latest", 20, 21, 30), THREE)
    finds(judged(*fresh, settings=changed, members=later), "before the start set by delete-group")
    unsure = (EARLIEST, Setting(RESET, "earliest", 15, OPEN, OPEN), Setting(RESET, "latest", 20, 21, 30), THREE)
    assert judged(*fresh, settings=unsure, members=later) == []  # the request of 15 ms may have come late
    members = [Presence(begun_ms=10, ended_ms=50), Presence(begun_ms=120)]
    old = judged(delete(100), delivered(9, FINAL_MS + 1), settings=(LATEST, THREE), members=members)
    finds(old, "before the start set by delete-group")  # a member that had left before chose nothing


def test_counts_begin_again():
    before = delivered(6, 90), answered(6, 92, RELEASE)
    again = delivered(6, 120, count=2)
    finds(judged(before, alter(5, 100), CURRENT, again), "at most 1 deliveries followed alter-offsets")
    assert judged(before, alter(5, 100, UNKNOWN), CURRENT, again) == []
    assert judged(before, alter(5, 100), CURRENT, again, lost_fetches=[112]) == []
    assert judged(before, alter(5, 100), CURRENT, again, members=[Presence(begun_ms=10, is_exact=False)]) == []
    twice = delivered(6, 112), answered(6, 114, RELEASE)
    assert judged(before, alter(5, 100), CURRENT, twice, again) == []


def test_counts_do_not_exceed_the_limit():
    members = [Presence(begun_ms=10, is_exact=False)]
    assert judged(delivered(6, 90, count=3), members=members) == []
    finds(judged(delivered(6, 90, count=4), members=members), "the limit is 3")
    unknown = (EARLIEST, Setting(LIMIT, "3", 1, 2, OPEN))  # some broker may still have the default of five
    assert judged(delivered(6, 90, count=5), members=members, settings=unknown) == []
    finds(judged(delivered(6, 90, count=6), members=members, settings=unknown), "the limit is 5")
    lowered = (EARLIEST, THREE, Setting(LIMIT, "2", 20, 21, 22))
    assert judged(delivered(6, 90, count=3), members=members, settings=lowered) == []


def test_each_record_behind_the_start_is_done_at_the_end():
    rest = [done(offset, 200 + 10 * offset) for offset in range(5, 10)]
    assert judged(alter(5, 100), *rest, kept=[T]) == []
    finds(judged(alter(5, 100), *rest[1:], kept=[T]), "offset 5 was never delivered after alter-offsets")
    finds(judged(done(5, 50), alter(5, 100), *rest[1:], kept=[T]), "offset 5 was never delivered")
    released = delivered(5, 300), answered(5, 302, RELEASE)
    finds(judged(alter(5, 100), released, *rest[1:], kept=[T]), "offset 5 was delivered with the counts [1]")
    assert judged(alter(5, 100), released, Archived((T, 5), 3), *rest[1:], kept=[T]) == []
    unknown = delivered(5, 300), answered(5, 302, is_stored=None)
    assert judged(alter(5, 100), unknown, *rest[1:], kept=[T]) == []
    assert judged(alter(5, 100), alter(6, 110, UNKNOWN), *rest[1:], kept=[T]) == []
    assert len(judged(alter(5, 100), alter(4, 110, REFUSED), kept=[T])) == 5
    assert len(judged(alter(5, 100), delete(110), *rest, kept=[T])) == 5  # all from the first record on
    assert judged(alter(5, 100), delete(110), kept=[T], settings=(LATEST, THREE)) == []


READS = {
    "the start that was set": ((alter(5, 100), read(5, 110)), ""),
    "moved by a member": ((alter(5, 100), read(7, 110)), ""),
    "before the start": ((alter(5, 100), read(4, 110)), "shows the start offset 4"),
    "no state": ((alter(5, 100), read(None, 110)), "shows the start offset None"),
    "during the call": ((alter(5, 100), read(None, 100.5)), ""),
    "perhaps of a late call": ((alter(3, 90, UNKNOWN), alter(5, 100), read(4, 110)), ""),
    "of a refused call": ((alter(5, 100), alter(3, 105, REFUSED), read(3, 110)), "shows the start offset 3"),
    "deleted": ((alter(5, 100), delete(105), read(None, 110)), ""),
    "deleted, and begun by a member": ((alter(5, 100), delete(105), read(0, 110)), ""),
    "forward": ((alter(5, 100), read(6, 110), read(8, 120)), ""),
    "back": ((alter(5, 100), read(8, 110), read(6, 120)), "went back from 8 to 6"),
    "back by a call": ((alter(5, 100), read(8, 110), alter(6, 115), read(6, 120)), ""),
    "back by a late call": ((alter(5, 100), read(8, 110), alter(6, 115, UNKNOWN), read(6, 120)), ""),
}


@pytest.mark.parametrize(("events", "text"), READS.values(), ids=READS)
def test_descriptions_show_what_calls_and_members_left(events, text):
    found = judged(*events)
    assert (found == []) if not text else (text in found[0])


def test_without_members_the_start_offset_is_that_of_the_call():
    assert judged(alter(5, 100), read(5, 110), members=[]) == []
    finds(judged(alter(5, 100), read(6, 110), members=[]), "shows the start offset 6")
    finds(judged(alter(5, 100), delete(105), read(5, 110), members=[]), "shows the start offset 5")
    left = [Presence(begun_ms=10, ended_ms=90)]
    finds(judged(alter(5, 100), read(6, 110), members=left), "shows the start offset 6")
    assert judged(alter(5, 100), read(6, 110), members=[Presence(begun_ms=10)]) == []  # it may still be there


def test_a_description_of_the_run_may_be_stale():
    stale = replace(alter(3, 50)), alter(5, 100), read(3, 110)
    assert judged(*stale, members=[], stale_ms=20) == []
    finds(judged(*stale, members=[], stale_ms=5), "shows the start offset 3")
    finds(judged(alter(3, 50), alter(5, 100), read(3, 110, final=True), members=[], stale_ms=20), "start offset 3")


def test_a_call_while_a_member_is_in_the_group_must_be_refused():
    finds(judged(alter(5, 100, has_member=True)), "was accepted while a member was in the group")
    assert judged(alter(5, 100, REFUSED, has_member=True), alter(5, 110, UNKNOWN, has_member=True)) == []
