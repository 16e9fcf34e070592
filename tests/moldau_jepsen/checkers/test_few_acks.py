"""Goal: producers with acks=0 and acks=1 are judged by what Kafka promises them, and by no more.

Method: one sound story of sends and reads, and changes of it that each break one rule, or none.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau_jepsen.checkers.log.few_acks import NO_OFFSET, FewAcksRead, FewAcksSend, check_few_acks

EPOCH = 4


def send(number, acks=1, offset=NO_OFFSET, **changes):
    given = {
        "number": number,
        "producer": 1,
        "partition": 0,
        "value": f"v{number}",
        "acks": acks,
        "retries": False,
        "in_flight": 1,
        "is_acknowledged": offset != NO_OFFSET or acks == 0,
        "offset": offset,
        "leader_epoch": EPOCH if acks else -1,
    }
    return FewAcksSend(**(given | changes))


SENDS = [
    send(0, offset=0),
    send(1, acks=0, producer=2),
    send(2, offset=2),
    send(3),  # without an outcome
    send(4, acks=0, producer=2),  # lost
    send(5, offset=4),
    send(6, offset=0, partition=1, retries=True, in_flight=5, producer=3),
]
LEFT = ((0, "v0"), (1, "v1"), (2, "v2"), (3, "v3"), (4, "v5"))
OTHER = FewAcksRead(1, ((0, "v6"),))


def judged(sends=SENDS, left=LEFT, other=OTHER, reads=(), epoch=EPOCH):
    return check_few_acks(sends, reads, [FewAcksRead(0, left), other], {0: epoch, 1: epoch})


def changed(number, **changes):
    return [replace(each, **changes) if each.number == number else each for each in SENDS]


def test_an_offset_that_no_log_has_is_the_only_finding():
    rotten = 1 << 49
    assert judged(reads=[FewAcksRead(0, ((0, "v0"), (rotten, "v2")))]) == [
        f"partition 0: 'v2' was read at offset {rotten}, far above 4, the highest one known"
    ]
    assert judged(reads=[FewAcksRead(0, ((-1, "v2"),))]) == [
        "partition 0: 'v2' was read at offset -1, which is negative"
    ]
    answered = changed(2, offset=rotten)
    wrong = f"partition 0: 'v2' of producer 1 was acknowledged at offset {rotten}, far above 0, the highest one known"
    assert judged(answered, epoch=EPOCH + 1) == [wrong], "whatever leader followed"


def test_a_sound_story_is_acquitted():
    assert judged() == []
    assert judged(reads=[FewAcksRead(0, LEFT[:3]), FewAcksRead(0, LEFT[3:]), OTHER]) == []
    assert judged(left=LEFT[:3] + LEFT[4:]) == [], "a send without an outcome may be lost"
    assert judged(left=LEFT[:1] + LEFT[2:]) == [], "a send with acks=0 may be lost"


def test_a_former_leader_may_lose_what_it_acknowledged():
    assert judged(left=LEFT[:4], epoch=EPOCH + 1) == []
    (text,) = judged(left=LEFT[:4])
    assert text == (
        "partition 0: 'v5' was acknowledged with acks=1 at offset 4 in leader epoch 4, where nothing is, and no other "
        "leader followed"
    )
    (text,) = judged(left=(*LEFT[:4], (5, "v5")))
    assert "at offset 4" in text
    (text,) = judged(left=(*LEFT[:4], (4, "v4")))
    assert "'v5' was acknowledged with acks=1 at offset 4 in leader epoch 4, where 'v4' is" in text


def test_the_last_leader_gives_an_offset_once():
    twice = changed(5, offset=2)
    assert any("were both acknowledged at offset 2" in text for text in judged(twice))
    assert not any("both" in text for text in judged(twice, epoch=EPOCH + 1))


@pytest.mark.parametrize(
    ("change", "is_allowed"),
    [
        ({"retries": False}, False),
        ({"retries": True}, True),
        ({"retries": True, "acks": 0, "offset": NO_OFFSET}, False),
        ({"retries": False, "acks": 0, "offset": NO_OFFSET}, False),
    ],
)
def test_only_retries_with_an_answer_repeat_records(change, is_allowed):
    found = judged(changed(5, **change), left=(*LEFT, (5, "v5")))
    assert [("at the offsets 4 and 5" in text) for text in found] == ([] if is_allowed else [True])


@pytest.mark.parametrize(
    ("retries", "in_flight", "is_allowed"), [(False, 1, False), (False, 5, False), (True, 1, False), (True, 5, True)]
)
def test_order_ends_only_with_retries_of_several_requests(retries, in_flight, is_allowed):
    sends = [send(number, offset=1 - number, retries=retries, in_flight=in_flight) for number in range(2)]
    found = judged([*sends, SENDS[6]], left=((0, "v1"), (1, "v0")))
    assert ["sent 'v0' before 'v1'" in text for text in found] == ([] if is_allowed else [True])
    strangers = [sends[0], replace(sends[1], producer=9), SENDS[6]]
    assert judged(strangers, left=((0, "v1"), (1, "v0"))) == []


def test_each_record_is_compared_with_the_one_before_it():
    sends = [send(number, offset=offset) for number, offset in enumerate((0, 2, 1))]
    (text,) = judged([*sends, SENDS[6]], left=((0, "v0"), (1, "v2"), (2, "v1")))
    assert "sent 'v1' before 'v2'; their offsets are 2 and 1" in text


def test_what_was_read_stays():
    (text,) = judged(changed(1, value="x1"), left=(LEFT[0], *LEFT[2:]), reads=[FewAcksRead(0, ((1, "x1"),))])
    assert text == "partition 0: 'x1' was read at offset 1; nothing is there now"


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (FewAcksRead(0, (*LEFT, (9, "zz"))), "offset 9 holds 'zz', which nothing has sent there"),
        (FewAcksRead(0, (*LEFT, (9, "v6"))), "offset 9 holds 'v6', which nothing has sent there"),
        (FewAcksRead(0, (LEFT[0], LEFT[0])), "offset 0 was read after 0"),
        (FewAcksRead(0, (LEFT[2], LEFT[1])), "offset 1 was read after 2"),
    ],
)
def test_reads_have_only_what_was_sent_there_and_in_order(read, text):
    assert any(text in found for found in judged(reads=[read]))


def test_offsets_are_reported_where_an_answer_has_them():
    assert any("with acks=0, and the offset 7 was reported" in text for text in judged(changed(4, offset=7)))
    lacking = changed(3, is_acknowledged=True)
    assert any("acknowledged with acks=1 and without an offset" in text for text in judged(lacking))
