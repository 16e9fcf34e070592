"""Goal: the broker's assignors decide as those of Apache Kafka's group coordinator do.

Method: a table of the situations that the unit tests of Kafka 4.1 cover, with the assignments that Kafka expects. The
range assignor must give exactly these. The uniform one may choose otherwise among equals, such as who gets the odd
partition: shares must be of the same sizes as in Kafka, and no more partitions may move.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from moldau_broker.coordinator.group.consumer.core.assignors import ASSIGNORS, Subscriber

Situation = tuple[dict[str, int], dict[str, tuple[str, str]], dict[str, str]]
"""Partitions of topics 1, 2 ...; topics and former partitions of each member; Kafka's assignment.

``1:02 3:1`` stands for partitions 0 and 2 of topic 1, and partition 1 of topic 3.
"""
RANGE: dict[str, Situation] = {
    "two members, two topics": (
        {"1": 3, "3": 2},
        {"a": ("13", ""), "b": ("13", "")},
        {"a": "1:01 3:0", "b": "1:2 3:1"},
    ),
    "different subscriptions": (
        {"1": 3, "2": 3, "3": 2},
        {"a": ("12", ""), "b": ("3", ""), "c": ("23", "")},
        {"a": "1:012 2:01", "b": "3:0", "c": "2:2 3:1"},
    ),
}
UNIFORM: dict[str, Situation] = {
    "two members, two topics": (
        {"1": 3, "3": 2},
        {"a": ("13", ""), "b": ("13", "")},
        {"a": "1:02 3:1", "b": "1:1 3:0"},
    ),
    "more members than partitions": ({"3": 2}, dict.fromkeys("abc", ("3", "")), {"a": "3:0", "b": "3:1", "c": ""}),
    "unbalanced before": (
        {"1": 3, "2": 3},
        {"a": ("12", "1:01 2:01"), "b": ("12", "1:2 2:2")},
        {"a": "1:01 2:0", "b": "1:2 2:12"},
    ),
    "partitions are added": (
        {"1": 6, "2": 5},
        {"a": ("12", "1:02 2:0"), "b": ("12", "1:1 2:12")},
        {"a": "1:02 2:034", "b": "1:1345 2:12"},
    ),
    "a member is added": (
        {"1": 3, "2": 3},
        {"a": ("12", "1:02 2:0"), "b": ("12", "1:1 2:12"), "c": ("12", "")},
        {"a": "1:02", "b": "1:1 2:1", "c": "2:02"},
    ),
    "a member is removed": (
        {"1": 3, "2": 3},
        {"a": ("12", "1:0 2:0"), "b": ("12", "1:1 2:1")},
        {"a": "1:0 2:02", "b": "1:12 2:1"},
    ),
    "a subscription is removed": (
        {"1": 2, "2": 2},
        {"a": ("2", "1:0 2:0"), "b": ("2", "1:1 2:1")},
        {"a": "2:0", "b": "2:1"},
    ),
}
DIFFERENT: dict[str, Situation] = {
    "two members": ({"1": 3, "3": 6}, {"a": ("13", ""), "b": ("3", "")}, {"a": "1:012 3:4", "b": "3:01235"}),
    "more members than partitions": (
        {"1": 2, "3": 1},
        {"a": ("3", ""), "b": ("3", ""), "c": ("1", "")},
        {"a": "3:0", "b": "", "c": "1:01"},
    ),
    "unbalanced before": (
        {"1": 6, "2": 4, "3": 4},
        {"a": ("1", "1:012"), "b": ("12", "1:3 2:0"), "c": ("123", "1:45 2:123 3:0123")},
        {"a": "1:0125", "b": "1:3 2:0123", "c": "1:4 3:0123"},
    ),
    "partitions are added": (
        {"1": 6, "2": 5, "3": 3, "4": 3},
        {"a": ("13", "1:0123 3:01"), "b": ("1234", "2:012 4:012")},
        {"a": "1:012345 3:012", "b": "2:01234 4:012"},
    ),
    "a member and partitions are added": (
        {"1": 6, "2": 7},
        {"a": ("1", "1:02 2:0"), "b": ("12", "1:1 2:12"), "c": ("12", "")},
        {"a": "1:02345", "b": "1:1 2:126", "c": "2:0345"},
    ),
    "a member is removed": (
        {"1": 3, "2": 8, "3": 3},
        {"a": ("13", "1:012 3:01"), "b": ("2", "2:3456")},
        {"a": "1:012 3:012", "b": "2:01234567"},
    ),
    "a subscription is removed": (
        {"1": 3, "2": 5},
        {"a": ("1", "1:02 2:13"), "b": ("12", "1:1 2:024")},
        {"a": "1:012", "b": "2:01234"},
    ),
}


def parse(text: str) -> frozenset[tuple[UUID, int]]:
    parts = [part.split(":") for part in text.split()]
    return frozenset((UUID(int=int(topic)), int(number)) for topic, numbers in parts for number in numbers)


def assigned(name: str, situation: Situation) -> dict[str, frozenset[tuple[UUID, int]]]:
    counts, members, _ = situation
    subscribers = [
        Subscriber(
            member_id=member,
            instance_id=None,
            topics=frozenset(UUID(int=int(topic)) for topic in topics),
            previous=parse(previous),
        )
        for member, (topics, previous) in members.items()
    ]
    found = ASSIGNORS[name](subscribers, {UUID(int=int(topic)): count for topic, count in counts.items()})
    return {member: frozenset(partitions) for member, partitions in found.items()}


@pytest.mark.parametrize("situation", RANGE.values(), ids=list(RANGE))
def test_range_assigns_exactly_as_kafka(situation: Situation) -> None:
    assert assigned("range", situation) == {member: parse(text) for member, text in situation[2].items()}


@pytest.mark.parametrize("situation", [*UNIFORM.values(), *DIFFERENT.values()], ids=[*UNIFORM, *DIFFERENT])
def test_uniform_is_as_even_and_as_sticky_as_kafka(situation: Situation) -> None:
    _, members, golden = situation
    found = assigned("uniform", situation)
    expected = {member: parse(text) for member, text in golden.items()}
    assert sorted(map(len, found.values())) == sorted(map(len, expected.values()))
    assert frozenset().union(*found.values()) == frozenset().union(*expected.values())
    before = {member: parse(previous) for member, (_, previous) in members.items()}
    kept, kafkas = (sum(len(held[member] & before[member]) for member in members) for held in (found, expected))
    assert kept >= kafkas
