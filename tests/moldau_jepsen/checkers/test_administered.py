"""Goal: operations on a group's offsets, and reads of them, are judged by what certainly replaced what.

Method: one sound story, and changes of it that each break one rule.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau_jepsen.checkers.group.administered import (
    OPEN,
    Act,
    GroupOperation,
    Membership,
    OffsetRead,
    Parting,
    Sighting,
    check_administered,
)
from moldau_jepsen.history import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
FIRST = Membership("m1", 3, "", frozenset({"a"}))
LATER = FIRST._replace(epoch=4)
STATIC, SUCCESSOR = Membership("s1", 3, "static", frozenset()), Membership("s2", 4, "static", frozenset())


def done(act, begun, ended, values, member=None):
    return GroupOperation(act=act, begun_ms=begun, ended_ms=ended, values=tuple(values.items()), member=member)


STORY = [
    done(Act.COMMIT, 10, 12, {A: 1, B: 2}, FIRST),
    done(Act.COMMIT, 20, 22, {A: 3}, FIRST),
    done(Act.RESET, 40, 42, {A: 99}),
    done(Act.DELETE_OFFSETS, 50, 52, {B: None}),
    done(Act.COMMIT, 60, OPEN, {A: 4}),
    done(Act.DELETE_GROUP, 70, 72, {A: None, B: None}),
]
SEEN = [Sighting(0, 9, FIRST), Sighting(10, 12, FIRST), Sighting(20, 22, FIRST)]


def read(at, value, partition=A, *, node=-1, final=False):
    return OffsetRead(at, at + 1, ((partition, value),), node, final)


def judged(reads=(), operations=STORY, sightings=SEEN, partings=(), stale_ms=0.0):
    return check_administered(operations, reads, sightings, partings, stale_ms=stale_ms)


def test_a_sound_story_is_acquitted():
    sound = [
        read(5, None),
        read(11, None),
        read(11, 1),
        read(15, 1),
        read(19.5, 3),  # the write began while the read was under way
        read(21, 1),
        read(21, 3),
        read(25, 2, B),
        read(45, 99),
        read(51, 2, B),
        read(55, None, B),
        read(65, 4),
        read(80, 4, final=True),  # of unknown outcome: it came after the deletion
        read(90, None, final=True),
    ]
    assert judged(sound) == []


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (read(5, 1), "no client had asked for"),
        (read(15, 7), "no client had asked for"),
        (read(15, None), "commit had replaced by 1"),
        (read(25, 1), "commit had replaced by 3"),
        (read(45, 3), "reset had replaced by 99"),
        (read(55, 2, B), "delete-offsets had replaced by None"),
        (read(80, 99), "delete-group had replaced by None"),
    ],
)
def test_a_wrong_read_is_convicted(wrong, text):
    (found,) = judged([wrong])
    assert text in found


def test_reads_of_the_run_may_be_stale():
    assert judged([read(80, 3)], stale_ms=100.0) == []
    assert judged([read(80, 3, final=True)], stale_ms=100.0)


def test_a_broker_does_not_forget_what_it_acknowledged():
    own = [replace(operation, node=2) for operation in STORY]
    assert judged([read(45, 3, node=2)], own, stale_ms=100.0)
    assert judged([read(45, 3, node=1)], own, stale_ms=100.0) == []


def test_commits_of_a_former_epoch_are_convicted():
    seen = [*SEEN, Sighting(0, 30, LATER)]
    late = done(Act.COMMIT, 31, 33, {A: 50}, FIRST)
    (found,) = judged(operations=[*STORY, late], sightings=seen)
    assert "commit of 31 ms, of member m1 in epoch 3, was accepted after member m1 in epoch 4 was there" in found
    under_way = done(Act.COMMIT, 29, 33, {A: 50}, FIRST)
    assert judged(operations=[*STORY, under_way], sightings=seen) == []
    assert judged(operations=[*STORY, done(Act.COMMIT, 31, OPEN, {A: 50}, FIRST)], sightings=seen) == []


def test_commits_of_a_replaced_member_are_convicted():
    seen = [Sighting(0, 5, STATIC), Sighting(8, 30, SUCCESSOR)]
    late = done(Act.COMMIT, 31, 33, {A: 50}, STATIC)
    (found,) = judged(operations=[late], sightings=seen)
    assert "member s1 (instance static) in epoch 3, was accepted after member s2 (instance static)" in found
    again = [*seen, Sighting(29, 32, STATIC)]
    assert judged(operations=[late], sightings=again), "a member that was replaced does not come back"
    same_time = [Sighting(0, 9, STATIC), Sighting(8, 30, SUCCESSOR)]
    assert judged(operations=[late], sightings=same_time) == [], "the order of the two is not known"


@pytest.mark.parametrize("act", [Act.DELETE_GROUP, Act.RESET])
def test_a_group_with_members_cannot_be_changed(act):
    (found,) = judged(operations=[done(act, 14, 16, {A: 5})], sightings=SEEN)
    assert f"{act.value} of 14 ms was accepted while member m1 in epoch 3 was in the group" in found
    assert judged(operations=[done(act, 14, OPEN, {A: 5})], sightings=SEEN) == []
    assert judged(operations=[done(act, 19, 21, {A: 5})], sightings=SEEN) == [], "the member may have left by then"


def test_offsets_of_topics_that_are_read_cannot_be_deleted():
    assert judged(operations=[done(Act.DELETE_OFFSETS, 14, 16, {A: None})], sightings=SEEN)
    assert judged(operations=[done(Act.DELETE_OFFSETS, 14, 16, {B: None})], sightings=SEEN) == []
    resubscribed = [*SEEN[:2], SEEN[2]._replace(member=FIRST._replace(topics=frozenset()))]
    assert judged(operations=[done(Act.DELETE_OFFSETS, 14, 16, {A: None})], sightings=resubscribed) == []


def test_a_hidden_error_is_convicted():
    hidden = GroupOperation(act=Act.COMMIT, begun_ms=1, ended_ms=OPEN, values=((B, 5),), oversized=A)
    (found,) = judged(operations=[hidden], sightings=[])
    assert "a-0" in found
    assert "too long metadata" in found


def test_an_epoch_counts_again_after_a_parting():
    deleted = done(Act.DELETE_GROUP, 14, 16, {A: None, B: None})
    assert judged(operations=[deleted], partings=[Parting(13, "m1")]) == [], "the group began again at epoch 1"
    assert judged(operations=[deleted], partings=[Parting(13, "m2"), Parting(5, "m1"), Parting(25, "m1")])
    lower = done(Act.COMMIT, 31, 33, {A: 50}, FIRST)
    seen = [*SEEN, Sighting(0, 25, LATER)]
    assert judged(operations=[lower], sightings=seen, partings=[Parting(27, "m1")]) == []
    assert judged(operations=[lower], sightings=seen, partings=[Parting(32, "m1")]) == [], "it parted meanwhile"
    assert judged(operations=[lower], sightings=seen, partings=[Parting(24, "m1")])
    assert judged(operations=[lower], sightings=seen, partings=[Parting(34, "m1")]), "it parted afterwards"
