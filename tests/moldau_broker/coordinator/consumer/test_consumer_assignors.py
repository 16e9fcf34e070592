"""Goal: both assignors give every partition to one subscriber, evenly and with few moves.

Method: golden assignments, and Hypothesis over members, subscriptions, topics and former assignments.
"""

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from moldau_broker.coordinator.group.consumer.core.assignors import ASSIGNORS, Subscriber
from support.proof import examples

T, U = UUID(int=1), UUID(int=2)


def member(name: str, topics: set[UUID], previous: str = "", instance: str | None = None) -> Subscriber:
    """``previous`` is like ``t0 t1 u2``."""
    held = frozenset((T if each[0] == "t" else U, int(each[1:])) for each in previous.split())
    return Subscriber(member_id=name, instance_id=instance, topics=frozenset(topics), previous=held)


def assign(name: str, members: list[Subscriber], counts: dict[UUID, int]) -> dict[str, str]:
    found = ASSIGNORS[name](members, counts)
    return {
        each: " ".join(f"{'t' if topic == T else 'u'}{number}" for topic, number in sorted(partitions))
        for each, partitions in found.items()
    }


def test_range_gives_ranges_of_each_topic() -> None:
    members = [member("b", {T, U}), member("a", {T, U}), member("c", {T})]
    assert assign("range", members, {T: 5, U: 3}) == {"a": "t0 t1 u0 u1", "b": "t2 t3 u2", "c": "t4"}


def test_range_puts_static_members_first() -> None:
    members = [member("a", {T}), member("z", {T}, instance="i1"), member("y", {T}, instance="i2")]
    assert assign("range", members, {T: 4}) == {"z": "t0 t1", "y": "t2", "a": "t3"}


def test_range_with_more_members_than_partitions() -> None:
    assert assign("range", [member(name, {T}) for name in "abc"], {T: 2}) == {"a": "t0", "b": "t1", "c": ""}


def test_uniform_deals_out_evenly() -> None:
    members = [member("a", {T, U}), member("b", {T, U})]
    assert assign("uniform", members, {T: 3, U: 2}) == {"a": "t0 t2 u1", "b": "t1 u0"}


def test_uniform_moves_only_the_surplus() -> None:
    members = [member("a", {T}, "t0 t1 t2"), member("b", {T}, "t3 t4 t5"), member("c", {T})]
    assert assign("uniform", members, {T: 6}) == {"a": "t0 t1", "b": "t3 t4", "c": "t2 t5"}


def test_uniform_keeps_the_larger_share_where_it_is() -> None:
    members = [member("a", {T}, "t0"), member("b", {T}, "t1 t2")]
    assert assign("uniform", members, {T: 3}) == {"a": "t0", "b": "t1 t2"}


def test_uniform_with_different_topics() -> None:
    """No single move evens out the loads: c has no right to partitions of t."""
    members = [member("a", {T}, "t0 t1 t2"), member("b", {T, U}), member("c", {U})]
    assert assign("uniform", members, {T: 4, U: 2}) == {"a": "t0 t1 t2", "b": "t3 u1", "c": "u0"}


def test_uniform_drops_lost_topics_and_partitions() -> None:
    members = [member("a", {T}, "t0 u0 u1"), member("b", {T}, "t1 t9")]
    assert assign("uniform", members, {T: 2}) == {"a": "t0", "b": "t1"}


def test_nothing_to_assign() -> None:
    for name in ASSIGNORS:
        assert assign(name, [], {T: 2}) == {}
        assert assign(name, [member("a", {U})], {}) == {"a": ""}


TOPICS = [UUID(int=number) for number in range(1, 4)]


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Subscriber], dict[UUID, int]]:
    counts = {topic: draw(st.integers(1, 7)) for topic in TOPICS}
    names = draw(st.lists(st.sampled_from("abcdef"), min_size=1, unique=True))
    same = draw(st.booleans())
    shared = draw(st.frozensets(st.sampled_from(TOPICS), min_size=1))
    free = [(topic, number) for topic in TOPICS for number in range(9)]
    members = []
    for name in names:
        topics = shared if same else draw(st.frozensets(st.sampled_from(TOPICS), min_size=1))
        previous = draw(st.frozensets(st.sampled_from(free), max_size=5)) if free else frozenset()
        free = [each for each in free if each not in previous]
        members.append(Subscriber(member_id=name, instance_id=None, topics=topics, previous=previous))
    return members, counts


@settings(max_examples=examples(150), deadline=None)
@given(group=groups(), name=st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_has_one_subscriber(group: tuple[list[Subscriber], dict[UUID, int]], name: str) -> None:
    members, counts = group
    found = ASSIGNORS[name](members, counts)
    assert set(found) == {each.member_id for each in members}
    given_out = sorted(partition for partitions in found.values() for partition in partitions)
    subscribed = frozenset().union(*(each.topics for each in members))
    assert given_out == sorted((topic, number) for topic in subscribed for number in range(counts[topic]))
    for each in members:
        assert {topic for topic, _ in found[each.member_id]} <= each.topics


@settings(max_examples=examples(150), deadline=None)
@given(group=groups())
def test_uniform_is_even_and_comes_to_rest(group: tuple[list[Subscriber], dict[UUID, int]]) -> None:
    """No single move can even out the loads further, and an assignment that is even stays as it is."""
    members, counts = group
    found = ASSIGNORS["uniform"](members, counts)
    load = {name: len(partitions) for name, partitions in found.items()}
    for each in members:
        for topic, _ in sorted(found[each.member_id]):
            for other in members:
                assert topic not in other.topics or load[each.member_id] <= load[other.member_id] + 1
    again = [
        Subscriber(
            member_id=each.member_id, instance_id=None, topics=each.topics, previous=frozenset(found[each.member_id])
        )
        for each in members
    ]
    assert ASSIGNORS["uniform"](again, counts) == found
