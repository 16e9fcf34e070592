"""Assignors against golden assignments of the Java client and against their own guarantees."""

import random

import pytest

from moldau.cluster.group_bytes import decode_assignment, encode_assignment
from moldau.cluster.metadata import TopicPartition
from moldau.consumer.core.assignors import (
    CooperativeStickyAssignor,
    MemberSubscription,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    assignors_of,
    decode_sticky_user_data,
    decode_subscription,
    encode_sticky_user_data,
    encode_subscription,
)
from moldau.protocol.codec import DecodeError
from support.proof import proof_beyond


def member(name, topics, owned=(), generation=-1, instance=None):
    return MemberSubscription(
        member_id=name,
        topics=tuple(topics.split()),
        owned=tuple(parse(owned)) if isinstance(owned, str) else tuple(owned),
        generation=generation,
        instance_id=instance,
    )


def parse(text):
    return [TopicPartition(part[:-1], int(part[-1])) for part in text.split()]


def show(assignment):
    return {
        name: " ".join(f"{p.topic}{p.partition}" for p in sorted(held)) for name, held in sorted(assignment.items())
    }


@pytest.mark.parametrize(
    ("counts", "members", "golden"),
    [
        ({"a": 3, "b": 3}, [member("c1", "a b"), member("c2", "a b")], {"c1": "a0 a1 b0 b1", "c2": "a2 b2"}),
        ({"a": 1}, [member("c1", "a"), member("c2", "a")], {"c1": "a0", "c2": ""}),
        (
            {"a": 7},
            [member("c1", "a"), member("c2", "a"), member("c3", "a")],
            {"c1": "a0 a1 a2", "c2": "a3 a4", "c3": "a5 a6"},
        ),
        (
            {"a": 3, "b": 2},
            [member("c1", "a"), member("c2", "a b"), member("c3", "a")],
            {"c1": "a0", "c2": "a1 b0 b1", "c3": "a2"},
        ),
        ({}, [member("c1", "a")], {"c1": ""}),
        ({"a": 2}, [member("z", "a", instance="i1"), member("b", "a")], {"z": "a0", "b": "a1"}),
    ],
)
def test_range(counts, members, golden):
    assert show(RangeAssignor().assign(counts, members)) == dict(sorted(golden.items()))


@pytest.mark.parametrize(
    ("counts", "members", "golden"),
    [
        ({"a": 3, "b": 3}, [member("c1", "a b"), member("c2", "a b")], {"c1": "a0 a2 b1", "c2": "a1 b0 b2"}),
        (
            {"a": 1, "b": 2, "c": 3},
            [member("c0", "a"), member("c1", "a b"), member("c2", "a b c")],
            {"c0": "a0", "c1": "b0", "c2": "b1 c0 c1 c2"},
        ),
        ({"a": 1}, [member("c1", "a"), member("c2", "a")], {"c1": "a0", "c2": ""}),
    ],
)
def test_round_robin(counts, members, golden):
    assert show(RoundRobinAssignor().assign(counts, members)) == golden


@pytest.mark.parametrize(
    ("counts", "members", "golden"),
    [
        # Fresh: dealt in turn by member name, as the constrained algorithm does.
        ({"a": 3, "b": 3}, [member("c1", "a b"), member("c2", "a b")], {"c1": "a0 a2 b1", "c2": "a1 b0 b2"}),
        # A member joins: the others keep all but what exceeds their share.
        (
            {"a": 4},
            [member("c1", "a", "a0 a2", 1), member("c2", "a", "a1 a3", 1), member("c3", "a")],
            {"c1": "a0 a2", "c2": "a1", "c3": "a3"},
        ),
        # A member leaves: the others keep theirs and share the rest.
        (
            {"a": 6},
            [member("c1", "a", "a0 a3", 1), member("c2", "a", "a1 a4", 1)],
            {"c1": "a0 a2 a3", "c2": "a1 a4 a5"},
        ),
        # Both claim a0 in one generation: neither keeps it. The newer generation wins a1.
        (
            {"a": 2},
            [member("c1", "a", "a0 a1", 1), member("c2", "a", "a0", 1)],
            {"c1": "a1", "c2": "a0"},
        ),
        ({"a": 2}, [member("c1", "a", "a0 a1", 1), member("c2", "a", "a1", 2)], {"c1": "a0", "c2": "a1"}),
        # More members than partitions.
        ({"a": 1}, [member("c1", "a"), member("c2", "a", "a0", 3)], {"c1": "", "c2": "a0"}),
        # No member gets a removed partition.
        ({"a": 1}, [member("c1", "a", "a0 a1", 1)], {"c1": "a0"}),
    ],
)
def test_sticky(counts, members, golden):
    assert show(StickyAssignor().assign(counts, members)) == golden


def test_cooperative_moves_a_partition_after_revocation():
    """The cooperative assignor assigns a partition only after its owner has revoked it."""
    counts = {"a": 4}
    first = [member("c1", "a", "a0 a1 a2 a3", 1), member("c2", "a")]
    assert show(CooperativeStickyAssignor().assign(counts, first)) == {"c1": "a0 a1", "c2": ""}
    second = [member("c1", "a", "a0 a1", 2), member("c2", "a", "", 2)]
    assert show(CooperativeStickyAssignor().assign(counts, second)) == {"c1": "a0 a1", "c2": "a2 a3"}


@pytest.mark.parametrize("others", ["a", "a b"])
def test_a_partition_that_two_claim_waits_for_both(others):
    """Clients that name no generation may claim what was given to another since; either may still read it."""
    counts = {"a": 3, "b": 1}
    first = [member("c1", "a", "a0 a1", -1), member("c2", "a", "a0", -1), member("c3", others, "", -1)]
    found = show(CooperativeStickyAssignor().assign(counts, first))
    assert not any("a0" in held for held in found.values())
    second = [member("c1", "a", "a1", -1), member("c2", "a", "", -1), member("c3", others, "a2", -1)]
    found = show(CooperativeStickyAssignor().assign(counts, second))
    assert sum("a0" in held for held in found.values()) == 1


@pytest.mark.parametrize("seed", proof_beyond(50, range(150)))
def test_promises_hold_through_random_rebalances(seed):
    """Each partition has one owner, load is even, little moves, and cooperative rebalances end after two rounds."""
    drawn = random.Random(seed)
    counts = {topic: drawn.randrange(1, 7) for topic in "abc"}
    is_equal = drawn.random() < 0.6
    names = [f"m{index}" for index in range(drawn.randrange(1, 6))]
    wants = {name: "a b c" if is_equal else " ".join(drawn.sample("abc", drawn.randrange(1, 4))) for name in names}
    held: dict[str, list[TopicPartition]] = {name: [] for name in names}
    every = {TopicPartition(t, p) for t, n in counts.items() for p in range(n) if any(t in wants[m] for m in names)}
    for generation in range(4):
        members = [member(name, wants[name], held[name], generation) for name in names]
        for kind in (RangeAssignor, RoundRobinAssignor, StickyAssignor):
            assignment = kind().assign(counts, members)
            assert set(assignment) == set(names)
            owners = [partition for each in assignment.values() for partition in each]
            assert len(owners) == len(set(owners))
            assert set(owners) == every
            assert all(p.topic in wants[name] for name, each in assignment.items() for p in each)
        sticky = StickyAssignor().assign(counts, members)
        sizes = [len(each) for each in sticky.values()]
        if is_equal:
            assert max(sizes) - min(sizes) <= 1
        for name, each in sticky.items():
            for other, theirs in sticky.items():
                movable = [p for p in theirs if p.topic in wants[name]]
                assert not movable or len(theirs) <= len(each) + 1 or name == other, "a move would even the load out"
        if generation and set(wants) == set(held):
            again = StickyAssignor().assign(counts, [member(n, wants[n], sticky[n], 9) for n in names])
            assert {n: sorted(p) for n, p in again.items()} == {n: sorted(p) for n, p in sticky.items()}, (
                "nothing moves"
            )
        first = CooperativeStickyAssignor().assign(counts, members)
        for name in names:
            for partition in first[name]:
                assert all(partition not in held[other] for other in names if other != name)
        kept = {
            name: [p for p in held[name] if p in first[name]] + [p for p in first[name] if p not in held[name]]
            for name in names
        }
        second = CooperativeStickyAssignor().assign(
            counts, [member(name, wants[name], kept[name], generation + 1) for name in names]
        )
        assert {p for each in second.values() for p in each} == every
        held = second
        if drawn.random() < 0.5 and len(names) > 1:
            gone = names.pop(drawn.randrange(len(names)))
            del held[gone], wants[gone]
            every = {p for p in every if any(p.topic in wants[m] for m in names)}
        elif is_equal:
            names.append(f"n{generation}")
            wants[names[-1]] = "a b c"
            held[names[-1]] = []


def test_names_in_both_spellings():
    chosen = assignors_of(["org.apache.kafka.clients.consumer.RangeAssignor", "range", "cooperative-sticky"])
    assert [assignor.name for assignor in chosen] == ["range", "cooperative-sticky"]
    with pytest.raises(KeyError):
        assignors_of(["best"])


def test_wire_formats_round_trip():
    owned = parse("b1 a0 a3")
    data = encode_subscription(["t2", "t1"], owned, 5, "rack1")
    decoded = decode_subscription("m", "i", data)
    assert decoded == MemberSubscription(
        member_id="m", topics=("t1", "t2"), instance_id="i", owned=tuple(sorted(owned)), generation=5, rack="rack1"
    )
    assert decode_assignment(encode_assignment(owned)) == sorted(owned)
    assert decode_assignment(b"") == []
    assert decode_sticky_user_data(encode_sticky_user_data(owned, 8)) == (tuple(sorted(owned)), 8)
    remembered = encode_subscription(["a"], (), -1, None, encode_sticky_user_data(owned, 8))
    assert decode_subscription("m", None, remembered, "sticky").owned == tuple(sorted(owned))
    assert decode_subscription("m", None, remembered, "range").owned == ()
    damaged = encode_subscription(["a"], (), -1, None, b"other")
    assert decode_subscription("m", None, damaged, "sticky").owned == ()


def test_another_clients_subscription_is_understood():
    """aiokafka writes version 0 of the protocol, without owned partitions."""
    from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

    theirs = ConsumerProtocolMemberMetadata(0, ["t"], b"").encode()
    assert decode_subscription("m", None, theirs).topics == ("t",)
    ours = ConsumerProtocolMemberAssignment.decode(encode_assignment(parse("a0 a1")))
    assert ours.assignment == [("a", [0, 1])]


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\xff\xff", b"\0\0\0\0\0\x09", b"\0\3\0\0\0\1\0\x05ab", bytes(2) + b"\x7f\xff\xff\xff"]
)
def test_damaged_bytes_are_decode_errors(data):
    with pytest.raises(DecodeError):
        decode_subscription("m", None, data)
    if data:
        with pytest.raises(DecodeError):
            decode_assignment(data)


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0\1", b"\0\0\0\1\0\x05a", b"\0\0\0\1\0\1a\x7f\xff\xff\xff", b"\0\0\0\1\0\1\xff\0\0\0\0"]
)
def test_damaged_sticky_data_is_a_decode_error(data):
    with pytest.raises(DecodeError):
        decode_sticky_user_data(data)
