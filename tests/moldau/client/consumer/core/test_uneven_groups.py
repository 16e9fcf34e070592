"""Goal: the sticky assignor balances and keeps where members want different topics, also in large groups.

Method: all small groups, against the rules and against a search that looks at every member again for each partition;
calls of functions are counted as groups grow.
"""

from __future__ import annotations

import itertools
import sys

import pytest

from moldau.consumer.core.assignors import MemberSubscription, StickyAssignor, valid_ownership
from moldau.consumer.core.values import TopicPartition
from support.proof import proof_beyond

NAMES = ("x", "y", "z")


def group(topics, owned):
    return [
        MemberSubscription(member_id=name, topics=topics[name], owned=tuple(owned.get(name, ())), generation=1)
        for name in topics
    ]


def groups(sizes):
    """Yields the members of all groups of two and three, by what they want and what they own."""
    counts = dict(zip("abc", sizes, strict=False))
    every = [TopicPartition(topic, number) for topic in counts for number in range(counts[topic])]
    subsets = [subset for size in range(len(counts) + 1) for subset in itertools.combinations(counts, size)]
    for names in (NAMES[:2], NAMES):
        for wanted in itertools.product(subsets, repeat=len(names)):
            topics = dict(zip(names, wanted, strict=True))
            for owners in itertools.product((*names, None), repeat=len(every)):
                owned: dict[str, list[TopicPartition]] = {}
                for partition, owner in zip(every, owners, strict=True):
                    if owner is not None and partition.topic in topics[owner]:
                        owned.setdefault(owner, []).append(partition)
                    elif owner is not None:
                        break  # the same group as with None
                else:
                    yield counts, group(topics, owned)


def searched(counts, members):
    """The same assignment by a search of all members for each partition."""
    held = {name: list(owned) for name, owned in valid_ownership(counts, members).items()}
    before = {partition: name for name, owned in held.items() for partition in owned}
    able = {topic: [each.member_id for each in members if topic in each.topics] for topic in counts}
    rest = [TopicPartition(topic, at) for topic in counts for at in range(counts[topic])]
    rest = [each for each in rest if each not in before and able[each.topic]]

    def least(topic):
        return min(able[topic], key=lambda name: (len(held[name]), name))

    for partition in sorted(rest, key=lambda each: (len(able[each.topic]), each)):
        held[least(partition.topic)].append(partition)
    moving = True
    while moving:
        moving = False
        for giver in sorted(held, key=lambda name: (-len(held[name]), name)):
            for partition in sorted(held[giver], key=lambda each: (before.get(each) == giver, each)):
                taker = least(partition.topic)
                if len(held[giver]) > len(held[taker]) + 1:
                    held[giver].remove(partition)
                    held[taker].append(partition)
                    moving = True
    return held


@pytest.mark.parametrize("sizes", [(2,), (1, 2), (2, 2), *proof_beyond(0, [((1, 1, 2),), ((3, 2),)])], ids=str)
def test_small_groups_keep_all_rules(sizes):
    for counts, members in groups(sizes):
        found = StickyAssignor().assign(counts, members)
        assert list(found) == [each.member_id for each in members]
        wanted = {each.member_id: frozenset(each.topics) for each in members}
        placed = [partition for held in found.values() for partition in held]
        assert sorted(placed) == sorted(
            TopicPartition(topic, number)
            for topic in counts
            for number in range(counts[topic])
            if any(topic in each for each in wanted.values())
        )
        for giver, held in found.items():
            assert {partition.topic for partition in held} <= wanted[giver]
            for partition in held:
                assert all(
                    len(found[taker]) >= len(held) - 1 for taker in wanted if partition.topic in wanted[taker]
                ), (members, found)
        if len(set(wanted.values())) > 1:
            assert found == searched(counts, members), members
        again = group(
            {each.member_id: each.topics for each in members}, {name: tuple(held) for name, held in found.items()}
        )
        assert StickyAssignor().assign(counts, again) == found, "a balanced group changes nothing"


def calls(size):
    """Returns how many functions are called for a group whose first member owns all partitions, in proportion."""
    names = [f"m{number:03}" for number in range(size)]
    topics = [f"t{number:03}" for number in range(4 * size)]
    counts = dict.fromkeys(topics, 4)
    wanted = {name: tuple(topics) for name in names}
    wanted[names[-1]] = tuple(topics[1:])
    every = tuple(TopicPartition(topic, number) for topic in topics for number in range(4))
    members = group(wanted, {names[0]: every})
    count = 0

    def noted(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    former = sys.getprofile()
    sys.setprofile(noted)
    try:
        found = StickyAssignor().assign(counts, members)
    finally:
        sys.setprofile(former)
    assert {len(held) for held in found.values()} == {16}
    return count


def test_large_groups_are_assigned_in_one_search():
    """6,000 partitions of 100 members held up the event loop of an application for more than a second."""
    assert calls(80) <= 2.5 * calls(40)
