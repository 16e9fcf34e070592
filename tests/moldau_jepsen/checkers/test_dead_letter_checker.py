"""Goal: a dead letter that is missing or wrong is noticed, and no other one is.

Method: golden histories by hand of one record, each with one on the other side of the border.
"""

import pytest

from moldau_jepsen.checkers.group.dead_letters import DeadLetter
from moldau_jepsen.checkers.group.share import (
    Acknowledged,
    Acknowledgement,
    Archived,
    Delivered,
    Sent,
    ShareAnomalyKind,
    check_share_group,
)
from moldau_jepsen.history import TopicPartition

PLACE = (TopicPartition("t", 0), 5)
OTHER = (TopicPartition("t", 0), 6)
MISSING, WRONG = ShareAnomalyKind.LETTER_MISSING, ShareAnomalyKind.LETTER_WRONG
SENT = Sent(PLACE, 9)
ACCEPT, RELEASE, REJECT, _ = Acknowledgement
FIRST = Delivered(PLACE, 9, 1, 1, 0, 10)
LAST = Delivered(PLACE, 9, 5, 2, 110, 120)


def answered(kind, is_stored=True, member=1, begun_ms=20):
    return Acknowledged(PLACE, member, kind, begun_ms, begun_ms + 10, is_stored)


def letter(*, place=PLACE, value=9, deliveries=1, is_rejection=True):
    return DeadLetter(place, value, deliveries, is_rejection)


TOO_OFTEN = letter(deliveries=5, is_rejection=False)
REJECTED = [SENT, FIRST, answered(REJECT)]
GIVEN_UP = [SENT, FIRST, LAST]
HISTORIES = {
    "rejected, with its letter": ([*REJECTED, letter()], []),
    "rejected, with two of them": ([*REJECTED, letter(), letter()], []),
    "rejected, and no letter": (REJECTED, [MISSING]),
    "rejected, and the letter of another": ([*REJECTED, letter(place=OTHER)], [WRONG, MISSING]),
    "rejected perhaps": ([SENT, FIRST, answered(REJECT, None)], []),
    "rejected perhaps, with its letter": ([SENT, FIRST, answered(REJECT, None), letter()], []),
    "refused rejection, then accepted": (
        [SENT, FIRST, answered(REJECT, is_stored=False), answered(ACCEPT, begun_ms=40)],
        [],
    ),
    "refused rejection, with a letter": (
        [SENT, FIRST, answered(REJECT, is_stored=False), answered(ACCEPT, begun_ms=40), letter()],
        [WRONG],
    ),
    "accepted, with a letter": ([SENT, FIRST, answered(ACCEPT), letter()], [WRONG]),
    "accepted": ([SENT, FIRST, answered(ACCEPT)], []),
    "delivered too often, with its letter": ([*GIVEN_UP, TOO_OFTEN], []),
    "delivered too often, and no letter": (GIVEN_UP, [MISSING]),
    "archived by the coordinator, and no letter": ([SENT, Archived(PLACE, 5)], [MISSING]),
    "archived by the coordinator, with its letter": ([SENT, Archived(PLACE, 5), TOO_OFTEN], []),
    "a letter before the limit": ([*GIVEN_UP, letter(deliveries=4, is_rejection=False)], [WRONG]),
    "a letter beyond the limit": ([*GIVEN_UP, letter(deliveries=6, is_rejection=False)], [WRONG]),
    "a rejection by no member": ([*GIVEN_UP, letter(deliveries=5)], [WRONG]),
    "another value": ([*REJECTED, letter(value=8)], [WRONG]),
    "no copy": ([*REJECTED, letter(value=None)], []),
    "a letter of a record that no member had": ([letter()], [WRONG]),
    "one that was given up before any member had it": ([TOO_OFTEN], []),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_history(name):
    events, expected = HISTORIES[name]
    verdict = check_share_group(events, delivery_count_max=5, lock_ms=80, has_queue=True)
    assert sorted(each.kind.value for each in verdict.anomalies) == sorted(kind.value for kind in expected)


def test_nothing_is_missing_without_a_queue():
    """The cluster's features may not allow one, or the final read did not come to its end."""
    for options in ({"has_queue": False}, {"has_queue": True, "drained": False}):
        assert check_share_group(REJECTED, delivery_count_max=5, lock_ms=80, **options).valid


def test_a_lost_record_is_not_missed_twice():
    """One violation has one name."""
    verdict = check_share_group([SENT], delivery_count_max=5, lock_ms=80, has_queue=True)
    assert [each.kind for each in verdict.anomalies] == [ShareAnomalyKind.LOST]
