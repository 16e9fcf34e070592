"""Goal: each rule for share groups convicts what it must, and nothing that faults can cause.

Method: golden histories by hand, one record at a time.
"""

import pytest

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

K = ShareAnomalyKind
LOCK_MS = 80
PLACE = (TopicPartition("t", 0), 5)
SENT = Sent(PLACE, 9)
ACCEPT, RELEASE, REJECT, RENEW = Acknowledgement


def delivered(member, begun, ended, count=1, value=9):
    return Delivered(PLACE, value, count, member, begun, ended)


def acknowledged(member, begun, ended, kind=ACCEPT, is_stored=True):
    return Acknowledged(PLACE, member, kind, begun, ended, is_stored)


HISTORIES = {
    "accepted": ([SENT, delivered(1, 0, 10), acknowledged(1, 20, 30)], None),
    "rejected": ([SENT, delivered(1, 0, 10), acknowledged(1, 20, 30, REJECT)], None),
    "unknown outcome": ([SENT, delivered(1, 0, 10), acknowledged(1, 20, 30, is_stored=None)], None),
    "never delivered": ([SENT], K.LOST),
    "refused at the end": ([SENT, delivered(1, 0, 10), acknowledged(1, 20, 30, is_stored=False)], K.LOST),
    "released at the end": ([SENT, delivered(1, 0, 10), acknowledged(1, 20, 30, RELEASE)], K.LOST),
    "given up": ([SENT, delivered(1, 0, 10, count=5), acknowledged(1, 20, 30, RELEASE)], None),
    "of unknown fate": ([delivered(1, 0, 10)], None),
    "another value": ([SENT, delivered(1, 0, 10, value=8), acknowledged(1, 20, 30)], K.ALTERED),
    "expired, then accepted by another": (
        [SENT, delivered(1, 0, 10), delivered(2, 50, 60, 2), acknowledged(2, 70, 80)],
        None,
    ),
    "expired, and refused": (
        [
            SENT,
            delivered(1, 0, 10),
            delivered(2, 50, 60, 2),
            acknowledged(1, 70, 75, is_stored=False),
            acknowledged(2, 80, 90),
        ],
        None,
    ),
    "held by two": (
        [SENT, delivered(1, 0, 10), delivered(2, 50, 60, 2), acknowledged(1, 70, 75)],
        K.TWO_HOLDERS,
    ),
    "held by the other, perhaps no longer": (
        [SENT, delivered(1, 0, 10), delivered(2, 50, 60, 2), acknowledged(1, 85, 91), acknowledged(2, 95, 99)],
        None,
    ),
    "done by another before": (
        [SENT, delivered(1, 0, 10), delivered(2, 50, 60, 2), acknowledged(2, 62, 65), acknowledged(1, 70, 75)],
        None,
    ),
    "done by another meanwhile": (
        [SENT, delivered(1, 0, 10), delivered(2, 50, 60, 2), acknowledged(2, 62, 72), acknowledged(1, 70, 75)],
        None,
    ),
    "renewed by one, delivered to the other": (
        [
            SENT,
            delivered(1, 0, 10),
            delivered(2, 50, 60, 2),
            acknowledged(1, 70, 75, RENEW),
            acknowledged(2, 90, 99, is_stored=None),
        ],
        K.TWO_HOLDERS,
    ),
    "acquired before, perhaps": (
        [SENT, delivered(2, 5, 60), delivered(1, 0, 10), acknowledged(1, 70, 75)],
        None,
    ),
    "delivered during the acknowledgement": (
        [SENT, delivered(1, 0, 10), delivered(2, 72, 74, 2), acknowledged(1, 70, 75, RELEASE), acknowledged(2, 80, 81)],
        None,
    ),
    "delivered after it was accepted": (
        [SENT, delivered(1, 0, 10), acknowledged(1, 20, 30), delivered(2, 40, 50, 2), acknowledged(2, 60, 70)],
        K.DELIVERED_AGAIN,
    ),
    "delivered after it was accepted, and released": (
        [SENT, delivered(1, 0, 10), acknowledged(1, 20, 30), delivered(2, 40, 50, 2), acknowledged(2, 60, 70, RELEASE)],
        K.DELIVERED_AGAIN,
    ),
    "delivered by a leader that was replaced": (
        [
            SENT,
            delivered(1, 0, 10),
            acknowledged(1, 20, 30),
            delivered(2, 40, 50, 2),
            acknowledged(2, 60, 70, is_stored=False),
            delivered(2, 75, 80, 3),
            acknowledged(2, 82, 85, is_stored=None),
            delivered(3, 90, 95, 4),
        ],
        None,
    ),
    "delivered by a leader that was replaced, after a release": (
        [
            SENT,
            delivered(1, 0, 10, 2),
            acknowledged(1, 20, 30, RELEASE),
            delivered(2, 40, 50, 1),
            acknowledged(2, 60, 70, is_stored=False),
            delivered(1, 75, 80, 3),
            acknowledged(1, 82, 85),
        ],
        None,
    ),
    "fetched before it was accepted": (
        [SENT, delivered(1, 0, 10), acknowledged(1, 20, 30), delivered(2, 25, 50, 2)],
        None,
    ),
    "count does not rise": (
        [SENT, delivered(1, 0, 10), acknowledged(1, 20, 30, RELEASE), delivered(2, 40, 50, 1), acknowledged(2, 60, 70)],
        K.COUNT,
    ),
    "count rises": (
        [SENT, delivered(1, 0, 10), acknowledged(1, 20, 30, RELEASE), delivered(2, 40, 50, 2), acknowledged(2, 60, 70)],
        None,
    ),
    "crashed member does not count": (
        [SENT, delivered(1, 0, 10), delivered(2, 40, 50, 1), acknowledged(2, 60, 70)],
        None,
    ),
    "above the limit": ([SENT, delivered(1, 0, 10, count=6), acknowledged(1, 20, 30)], K.COUNT),
    "count of nothing": ([SENT, delivered(1, 0, 10, count=0), acknowledged(1, 20, 30)], K.COUNT),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_golden_histories(name):
    """Each history has the one anomaly that it was written for, or none."""
    events, expected = HISTORIES[name]
    verdict = check_share_group(events, delivery_count_max=5, lock_ms=LOCK_MS)
    assert {each.kind for each in verdict.anomalies} == ({expected} if expected else set())
    assert verdict.valid == (expected is None)


ROTTEN = (PLACE[0], PLACE[1] ^ 1 << 49)


def test_a_record_at_another_offset_than_was_acknowledged():
    """It is not lost as well: it was delivered, with a wrong offset."""
    events = [SENT, Delivered(ROTTEN, 9, 1, 1, 0, 10)]
    (found,) = check_share_group(events, delivery_count_max=5, lock_ms=LOCK_MS).anomalies
    assert (found.kind, found.place) == (K.ALTERED, ROTTEN)
    assert found.text == "value 9 came to member 1 at 10 ms, acknowledged at offset 5"


@pytest.mark.parametrize(
    ("offset", "reason"), [(ROTTEN[1], "far above 5, the highest one known"), (-1, "which is negative")]
)
def test_a_record_of_unknown_fate_at_an_impossible_offset(offset, reason):
    place = (PLACE[0], offset)
    events = [SENT, delivered(1, 0, 10), acknowledged(1, 20, 30), Delivered(place, 8, 1, 2, 40, 50)]
    (found,) = check_share_group(events, delivery_count_max=5, lock_ms=LOCK_MS).anomalies
    assert (found.kind, found.place, found.text) == (
        K.ALTERED,
        place,
        f"value 8 came to member 2 at 50 ms, {reason}",
    )
    answered = [*events[:3], Sent(place, 7)]
    (found,) = check_share_group(answered, delivery_count_max=5, lock_ms=LOCK_MS, drained=False).anomalies
    assert found.text == f"value 7 was acknowledged there, {reason}"


ACCEPTED = [SENT, delivered(1, 0, 10), acknowledged(1, 20, 30)]
NEXT, OTHER = (PLACE[0], 6), (TopicPartition("t", 1), 0)


@pytest.mark.parametrize(
    ("events", "place", "text"),
    [
        (
            [*ACCEPTED, Delivered(OTHER, 9, 1, 2, 40, 50)],
            OTHER,
            "value 9 came to member 2 at 50 ms, acknowledged at offset 5 of t-0",
        ),
        (
            [*ACCEPTED, Delivered(NEXT, 7, 1, 2, 40, 50), Delivered(NEXT, 9, 2, 1, 200, 210)],
            NEXT,
            "value 9 came to member 1 at 210 ms, acknowledged at offset 5",
        ),
        (
            [Delivered(PLACE, 7, 1, 2, 40, 50), Delivered(NEXT, 7, 1, 1, 200, 210)],
            NEXT,
            "value 7 came to member 1 at 210 ms, and came at offset 5",
        ),
        (
            [Delivered(PLACE, 7, 1, 2, 40, 50), Delivered(PLACE, 8, 2, 1, 200, 210)],
            PLACE,
            "value 7 came to member 2 at 50 ms and value 8 came to member 1 at 210 ms",
        ),
    ],
)
def test_deliveries_name_places_as_acknowledgements_do(events, place, text):
    """In another partition, at the second delivery, and of a record whose producer got no answer."""
    found = check_share_group(events, delivery_count_max=5, lock_ms=LOCK_MS).anomalies
    assert (found[0].kind, found[0].place, found[0].text) == (K.ALTERED, place, text)
    assert {each.kind for each in found} == {K.ALTERED}


def test_open_end():
    """Without the final phase, records may be open."""
    assert check_share_group([SENT], delivery_count_max=5, lock_ms=LOCK_MS, drained=False).valid


def deliveries_seen(count):
    """A record that was released or dropped after each delivery that a member saw."""
    return [SENT, *(delivered(1, 100 * number, 100 * number + 10, number) for number in range(1, count + 1))]


def test_unseen_deliveries_count_towards_the_limit():
    """A correct broker counts fetches whose answers are lost; the history alone cannot tell these from a loss."""
    history = deliveries_seen(3)
    (lost,) = check_share_group(history, delivery_count_max=5, lock_ms=LOCK_MS).anomalies
    assert lost.kind is K.LOST
    assert lost.text == "delivered 3 times (with the counts 1, 2, 3), neither accepted nor rejected"
    assert check_share_group([*history, Archived(PLACE, 5)], delivery_count_max=5, lock_ms=LOCK_MS).valid


def test_a_record_that_was_given_up_too_early_is_lost():
    """As by a share-partition that uses another limit than the group's."""
    archived = [Archived(PLACE, 4), Archived(PLACE, 2)]
    (lost,) = check_share_group([*deliveries_seen(3), *archived], delivery_count_max=5, lock_ms=LOCK_MS).anomalies
    assert lost.kind is K.LOST
    assert "archived after 4 deliveries, the limit is 5" in lost.text


def test_another_records_end_excuses_no_loss():
    other = (PLACE[0], PLACE[1] + 1)
    (lost,) = check_share_group([SENT, Archived(other, 5)], delivery_count_max=5, lock_ms=LOCK_MS).anomalies
    assert (lost.kind, lost.place) == (K.LOST, PLACE)
