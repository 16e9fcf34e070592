"""Goal: the assignors keep their rules where members differ: other topics, other generations, other clients.

Method: small groups by hand. ``test_assignors.py`` has those of the Java client, and random rebalances.
"""

from __future__ import annotations

import struct

import pytest

from moldau.consumer.core.assignors import (
    CooperativeStickyAssignor,
    MemberSubscription,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    decode_sticky_user_data,
    decode_subscription,
    encode_sticky_user_data,
    encode_subscription,
    valid_ownership,
)
from moldau.consumer.core.values import TopicPartition
from moldau.protocol.codec import DecodeError

EVERY = pytest.mark.parametrize(
    "assignor", [RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor()]
)


def parse(text):
    return tuple(TopicPartition(part[:-1], int(part[-1])) for part in text.split())


def member(name, topics, owned="", generation=-1, instance=None):
    return MemberSubscription(
        member_id=name,
        topics=tuple(topics.split()),
        owned=parse(owned),
        generation=generation,
        instance_id=instance,
    )


def show(assignment):
    return {name: " ".join(f"{p.topic}{p.partition}" for p in held) for name, held in assignment.items()}


@EVERY
def test_a_group_without_members_or_partitions(assignor):
    assert assignor.assign({"a": 2}, []) == {}
    assert assignor.assign({}, [member("x", "a"), member("y", "b")]) == {"x": [], "y": []}


@pytest.mark.parametrize("assignor", [RangeAssignor(), RoundRobinAssignor()])
@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([member("y", "a"), member("x", "a")], {"x": "a0", "y": "a1"}),
        ([member("x", "a", instance="2"), member("y", "a", instance="1")], {"y": "a0", "x": "a1"}),
        ([member("x", "a"), member("y", "a", instance="1")], {"y": "a0", "x": "a1"}),
    ],
)
def test_the_order_is_that_of_names(assignor, members, expected):
    """Static members come first, by instance id: their member ids change with each restart (KIP-345)."""
    assert show(assignor.assign({"a": 2}, members)) == expected


@EVERY
def test_a_topic_that_is_named_twice_counts_once(assignor):
    members = [member("x", "a a"), member("y", "a")]
    assert {name: len(held) for name, held in assignor.assign({"a": 4}, members).items()} == {"x": 2, "y": 2}


def test_turns_pass_members_that_want_other_topics():
    members = [member("x", "b"), member("y", "a"), member("z", "a b")]
    assert show(RoundRobinAssignor().assign({"a": 3, "b": 2}, members)) == {"x": "b1", "y": "a0 a2", "z": "a1 b0"}


@pytest.mark.parametrize(
    ("owned", "expected"),
    [
        ([("x", "a0", 1), ("y", "a0", 2)], {"x": "", "y": "a0"}),
        ([("x", "a0", 2), ("y", "a0", 1)], {"x": "a0", "y": ""}),
        ([("x", "a0", 2), ("y", "a0", 2)], {"x": "", "y": ""}),
        ([("x", "a0", 1), ("y", "a0", 1), ("z", "a0", 2)], {"x": "", "y": "", "z": "a0"}),
        ([("x", "a0", 2), ("y", "a0", 2), ("z", "a0", 1)], {"x": "", "y": "", "z": ""}),
        ([("x", "a0 a1", -1), ("y", "a2", -1)], {"x": "a0 a1", "y": "a2"}),  # clients that name no generation
        ([("x", "a2 a3 a4 b0 c0", 1)], {"x": "a2"}),  # partitions that are gone, a topic not wanted, and one gone
    ],
)
def test_the_newest_single_claim_owns_a_partition(owned, expected):
    members = [member(name, "a c", held, generation) for name, held, generation in owned]
    assert show(valid_ownership({"a": 3, "b": 1}, members)) == expected


def test_a_topic_that_was_unsubscribed_is_given_away():
    """Its former owner keeps the rest."""
    members = [member("x", "a", "b0 a0", 1), member("y", "a b", "a1", 1)]
    assert show(StickyAssignor().assign({"a": 2, "b": 1}, members)) == {"x": "a0", "y": "a1 b0"}


def test_a_share_is_kept_before_more_is_given():
    """Of two members that hold one too many, the first keeps it; the members below get the rest in turn."""
    members = [member("w", "a", "a0 a1 a2", 1), member("x", "a", "a3 a4 a5", 1), member("y", "a"), member("z", "a")]
    assert show(StickyAssignor().assign({"a": 9}, members)) == {
        "w": "a0 a1 a2",
        "x": "a3 a4",
        "y": "a5 a7",
        "z": "a6 a8",
    }
    members = [member("w", "a", "a0 a1 a2", 1), member("x", "a", "a3 a4 a5", 1), member("y", "a", "a6", 1)]
    assert show(StickyAssignor().assign({"a": 3}, [member("x", "a", "a0", 1), member("y", "a", "a1", 1)])) == {
        "x": "a0 a2",
        "y": "a1",
    }
    few = [member("x", "a", "a0 a1 a2 a3", 1), member("y", "a", "a4", 1), member("z", "a")]
    assert show(StickyAssignor().assign({"a": 5}, few)) == {"x": "a0 a1", "y": "a4 a3", "z": "a2"}
    assert show(StickyAssignor().assign({"a": 8}, members)) == {"w": "a0 a1 a2", "x": "a3 a4 a5", "y": "a6 a7"}


def test_partitions_with_few_takers_are_placed_first():
    """``b`` has one taker only, so ``a`` goes to the others."""
    members = [member("x", "a b"), member("y", "a"), member("z", "a")]
    found = StickyAssignor().assign({"a": 4, "b": 2}, members)
    assert show({name: sorted(held) for name, held in found.items()}) == {"x": "b0 b1", "y": "a0 a2", "z": "a1 a3"}


def test_new_partitions_move_before_kept_ones():
    """The member that joins gets what no other one has worked on, if that makes the load even."""
    members = [member("x", "a b", "a0 a1 a2", 1), member("y", "b c", "", 1)]
    found = StickyAssignor().assign({"a": 3, "b": 1, "c": 3}, members)
    assert {name: len(held) for name, held in found.items()} == {"x": 4, "y": 3}
    assert set(parse("a0 a1 a2")) <= set(found["x"])
    members = [member("x", "a b", "b0 b1 b2 b3", 1), member("y", "b")]
    found = StickyAssignor().assign({"a": 0, "b": 4}, members)
    assert show({name: sorted(held) for name, held in found.items()}) == {"x": "b2 b3", "y": "b0 b1"}


def test_one_move_makes_room_for_another():
    """The new member takes the only partition that it can; its former owner then takes one of the third member's."""
    members = [member("x", "a"), member("y", "a b", "a0", 1), member("z", "b", "b0 b1 b2", 1)]
    found = StickyAssignor().assign({"a": 1, "b": 4}, members)
    assert show({name: sorted(held) for name, held in found.items()}) == {"x": "a0", "y": "b0 b3", "z": "b1 b2"}


def test_a_partition_is_handed_over_in_two_steps():
    """Others are given at once: those that were never owned, and those whose owner has given them up."""
    members = [member("x", "a", "a0 a1 a2", 1), member("y", "a", "", 1)]
    assert show(CooperativeStickyAssignor().assign({"a": 4}, members)) == {"x": "a0 a1", "y": "a3"}
    members = [member("x", "a", "a0 a1", 2), member("y", "a", "a3", 2)]
    assert show(CooperativeStickyAssignor().assign({"a": 4}, members)) == {"x": "a0 a1", "y": "a3 a2"}


# --- on the wire


@pytest.mark.parametrize(
    ("assignor", "owned", "user_data", "expected"),
    [
        ("sticky", "", None, ("", -1)),
        ("sticky", "", b"", ("", -1)),
        ("sticky", "", encode_sticky_user_data(parse("a1"), 4), ("a1", 4)),
        ("sticky", "a0", encode_sticky_user_data(parse("a1"), 4), ("a0", -1)),  # what it says now counts first
        ("range", "", encode_sticky_user_data(parse("a1"), 4), ("", -1)),
        ("sticky", "", b"unreadable", ("", -1)),
    ],
)
def test_user_data_counts_for_the_sticky_assignor(assignor, owned, user_data, expected):
    data = encode_subscription(["a"], parse(owned), -1, None, user_data)
    found = decode_subscription("m", None, data, assignor)
    assert (" ".join(f"{p.topic}{p.partition}" for p in found.owned), found.generation) == expected


def test_an_empty_rack_is_none():
    assert decode_subscription("m", None, encode_subscription(["a"], (), -1, "")).rack is None


def sticky_data(*topics, generation=7, count=None):
    parts = [struct.pack(">i", len(topics) if count is None else count)]
    for name, numbers in topics:
        parts.append(struct.pack(">h", len(name)) + name + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(parts) + (b"" if generation is None else struct.pack(">i", generation))


def test_older_clients_remember_no_generation():
    topics = ((b"a", (0, 3)), (b"b", (1,)))
    assert decode_sticky_user_data(sticky_data(*topics)) == (parse("a0 a3 b1"), 7)
    assert decode_sticky_user_data(sticky_data(*topics, generation=None)) == (parse("a0 a3 b1"), -1)
    assert decode_sticky_user_data(sticky_data(generation=0)) == ((), 0)


def test_what_is_remembered_must_be_whole():
    """Each end of the bytes is an error, except that before the generation, which older clients leave out."""
    data = sticky_data((b"ab", (0, 3)), (b"c", (1,)))
    for size in range(len(data) - 4):
        with pytest.raises(DecodeError):
            decode_sticky_user_data(data[:size])
    negative = struct.pack(">ih", 1, -2) + bytes(12)
    with pytest.raises(DecodeError, match="negative length"):
        decode_sticky_user_data(negative)
    for count in (-1, 2**31 - 1):
        with pytest.raises(DecodeError):
            decode_sticky_user_data(struct.pack(">ih1si", 1, 1, b"a", count) + bytes(16))


class Name(str):
    """A topic name that counts how often it is compared with another one."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@EVERY
@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_subscription_of_many_topics_is_not_searched(assignor, is_mixed):
    """The leader of a group that reads thousands of topics would hold up its event loop for seconds."""
    names = [Name(f"t{number:03}") for number in range(60)]
    counts = dict.fromkeys(names, 1)
    everyone = [f"m{number}" for number in range(10)]

    def members(owned):
        return [
            MemberSubscription(
                member_id=each,
                topics=tuple(names[1:] if is_mixed and each == "m3" else names),
                owned=tuple(owned.get(each, ())),
                generation=3,
            )
            for each in everyone
        ]

    Name.compared = 0
    first = assignor.assign(counts, members({}))
    again = assignor.assign(counts, members(first))
    assert sorted(part.topic for held in again.values() for part in held) == names
    assert Name.compared <= 4 * len(names) * len(everyone)
