"""Goal: the assignor of share groups is balanced, moves little, and leaves no partition without a member.

Method: golden assignments worked out from KIP-932, and all small groups with all former assignments of a kind.
"""

from itertools import product
from uuid import UUID

import pytest

from moldau_broker.coordinator.group.share.core.assignor import Sharer, simple_assignor

T, U = UUID(int=1), UUID(int=2)


def member(name: str, topics: set[UUID], previous: str = "") -> Sharer:
    """``previous`` is like ``t0 t1 u2``."""
    held = frozenset((T if each[0] == "t" else U, int(each[1:])) for each in previous.split())
    return Sharer(member_id=name, topics=frozenset(topics), previous=held)


def assign(members: list[Sharer], counts: dict[UUID, int]) -> dict[str, str]:
    found = simple_assignor(members, {topic: frozenset(range(count)) for topic, count in counts.items()})
    return {
        each: " ".join(f"{'t' if topic == T else 'u'}{number}" for topic, number in sorted(partitions))
        for each, partitions in found.items()
    }


def test_fewer_members_than_partitions_divide_them() -> None:
    assert assign([member("a", {T, U}), member("b", {T, U})], {T: 3, U: 2}) == {"a": "t0 t2 u1", "b": "t1 u0"}


def test_more_members_than_partitions_share_them() -> None:
    """Six members and two partitions: three members each. Three and two: two each, and one member has both."""
    found = assign([member(name, {T}) for name in "abcdef"], {T: 2})
    assert sorted(found.values()) == ["t0"] * 3 + ["t1"] * 3
    found = assign([member(name, {T}) for name in "abc"], {T: 2})
    assert sorted(found.values()) == ["t0", "t0 t1", "t1"]


def test_different_subscriptions_share_topic_by_topic() -> None:
    """Kafka's own case: the member with both topics gets half of each."""
    found = assign([member("a", {T}), member("b", {U}), member("c", {T, U})], {T: 2, U: 2})
    assert {name: len(text.split()) for name, text in found.items()} == {"a": 1, "b": 1, "c": 2}


def test_topics_that_left_the_subscription_are_taken_away() -> None:
    assert assign([member("a", {U}, "t0 t1"), member("b", {U}, "u0 t2")], {U: 2}) == {"a": "u1", "b": "u0"}


def test_a_newcomer_gets_the_surplus_only() -> None:
    found = assign([member("a", {T}, "t0 t1 t2"), member("b", {T}, "t3 t4 t5"), member("c", {T})], {T: 6})
    assert found["c"].split()
    assert set(found["a"].split()) < {"t0", "t1", "t2"}
    assert set(found["b"].split()) < {"t3", "t4", "t5"}


def test_no_members_and_no_partitions() -> None:
    assert simple_assignor([], {}) == {}
    assert assign([member("a", {T})], {}) == {"a": ""}


@pytest.mark.parametrize("partitions", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_all_small_groups_are_balanced(size: int, partitions: int) -> None:
    """Each member held nothing, a prefix or a suffix before."""
    numbers = [f"t{number}" for number in range(partitions)]
    before = ["", " ".join(numbers[:1]), " ".join(numbers[-2:]), " ".join(numbers)]
    sharing = -(-size // partitions)
    for held in product(before, repeat=size):
        members = [member(f"m{index}", {T}, text) for index, text in enumerate(held)]
        found = {name: text.split() for name, text in assign(members, {T: partitions}).items()}
        holders = [sum(number in mine for mine in found.values()) for number in numbers]
        assert all(1 <= count <= sharing for count in holders)
        sizes = [len(mine) for mine in found.values()]
        assert max(sizes) <= -(-sharing * partitions // size)
        again = [member(f"m{index}", {T}, " ".join(found[f"m{index}"])) for index in range(size)]
        if min(sizes) >= sharing * partitions // size:
            assert {n: t.split() for n, t in assign(again, {T: partitions}).items()} == found, "nothing had to move"
