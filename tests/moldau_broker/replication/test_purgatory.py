"""Goal: an operation leaves the purgatory once, by its condition or by its deadline.

Method: both races, and a model under random events.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau_broker.replication.purgatory import Delayed, Purgatory, PurgatoryFullError


def test_condition_before_deadline() -> None:
    purgatory: Purgatory[str, str] = Purgatory(0, 10)
    delayed = purgatory.watch("produce", ["a", "b"], 100)
    assert purgatory.watchers("a") == (delayed,)
    assert purgatory.complete(delayed)
    assert not purgatory.complete(delayed)
    assert purgatory.expire(1000) == []
    assert not purgatory.watches("a")
    assert not purgatory.watches("b")


def test_deadline_before_condition() -> None:
    purgatory: Purgatory[str, str] = Purgatory(0, 10)
    delayed = purgatory.watch("produce", ["a"], 100)
    assert purgatory.expire(99) == []
    assert purgatory.expire(100) == ["produce"]
    assert not purgatory.complete(delayed)
    assert purgatory.watchers("a") == ()


def test_watchers_keep_their_order_during_completion() -> None:
    """Watchers keep their order, and completing some does not change the snapshot."""
    purgatory: Purgatory[str, int] = Purgatory(0, 10)
    first, second = purgatory.watch(1, ["a"], 50), purgatory.watch(2, ["a"], 40)
    seen = []
    for delayed in purgatory.watchers("a"):
        purgatory.complete(first)
        purgatory.complete(second)
        seen.append(delayed.operation)
    assert seen == [1, 2]


def test_an_operation_without_keys_still_expires() -> None:
    """An operation is not found under keys that it no longer watches, but its deadline still expires."""
    purgatory: Purgatory[str, str] = Purgatory(0, 10)
    delayed = purgatory.watch("fetch", ["a", "b"], 10)
    purgatory.unwatch(delayed, "a")
    assert purgatory.watchers("a") == ()
    assert purgatory.watchers("b") == (delayed,)
    assert purgatory.expire(10) == ["fetch"]
    assert purgatory.watchers("b") == ()


def test_the_bound_refuses_and_leaves_no_trace() -> None:
    purgatory: Purgatory[str, int] = Purgatory(0, 1)
    purgatory.watch(1, ["a"], 10)
    with pytest.raises(PurgatoryFullError, match="1 operations"):
        purgatory.watch(2, ["b"], 10)
    assert not purgatory.watches("b")
    assert len(purgatory) == 1
    beyond = purgatory.watch(3, ["b"], 10, bounded=False)
    assert purgatory.complete(beyond)


def test_the_bound_counts_operations_and_not_keys() -> None:
    """Many produces wait for one partition, and one fetch waits for many."""
    purgatory: Purgatory[str, int] = Purgatory(0, 3)
    purgatory.watch(0, "abcdefgh", 10)
    for number in (1, 2):
        purgatory.watch(number, ["a"], 10)
    with pytest.raises(PurgatoryFullError):
        purgatory.watch(3, ["a"], 10)
    assert purgatory.expire(10) == [0, 1, 2]
    purgatory.watch(4, ["a"], 20)


@given(
    st.lists(
        st.tuples(st.sampled_from(["watch", "complete", "expire", "unwatch"]), st.integers(0, 5), st.integers(0, 80)),
        max_size=80,
    )
)
def test_each_operation_ends_once(events: list[tuple[str, int, int]]) -> None:
    purgatory: Purgatory[int, int] = Purgatory(0, 1000)
    made: list[Delayed[int, int]] = []
    ended: list[int] = []
    watched: dict[int, dict[int, None]] = {key: {} for key in range(6)}
    now = 0
    for kind, key, value in events:
        if kind == "watch":
            for each in (key, (key + 1) % 6):
                watched[each][len(made)] = None
            made.append(purgatory.watch(len(made), [key, (key + 1) % 6, key], now + value))
        elif kind == "complete" and made:
            delayed = made[value % len(made)]
            if purgatory.complete(delayed):
                ended.append(delayed.operation)
        elif kind == "unwatch" and made:
            purgatory.unwatch(made[value % len(made)], key)
            watched[key].pop(value % len(made), None)
        elif kind == "expire":
            now += value
            ended += purgatory.expire(now)
        for each, operations in watched.items():
            waiting = [operation for operation in operations if operation not in ended]
            assert [delayed.operation for delayed in purgatory.watchers(each)] == waiting
            assert purgatory.watches(each) == bool(waiting)
    ended += purgatory.expire(now + 10_000)
    assert sorted(ended) == list(range(len(made)))
    assert len(purgatory) == 0
    assert purgatory.next_deadline_ms() is None
    assert not any(purgatory.watches(key) for key in range(6))
