"""Goal: copies keep to their rate over time, and other traffic is not delayed. Method: the clock is a number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau_broker.replication.throttle import UNLIMITED, ReplicationThrottle, is_throttled


def test_a_second_may_be_saved_up_and_an_answer_overdrawn() -> None:
    throttle = ReplicationThrottle(1000, 0)
    assert throttle.allows(0)
    throttle.spend(3000, 0)
    assert not throttle.allows(0)
    assert throttle.wait_ms(0) == 2001
    assert not throttle.allows(2000)
    assert throttle.allows(2001)
    throttle.spend(0, 100_000)
    throttle.spend(1000, 100_000)
    assert not throttle.allows(100_000), "a long pause saves up one second only"


def test_a_changed_rate_counts_from_now() -> None:
    throttle = ReplicationThrottle(UNLIMITED, 0)
    throttle.spend(10**9, 0)
    assert throttle.wait_ms(0) == 0
    throttle.set_rate(100, 0)
    throttle.spend(100, 0)
    assert throttle.wait_ms(0) > 0


def test_a_changed_rate_is_the_rate_from_then_on() -> None:
    throttle = ReplicationThrottle(10, 0)
    throttle.set_rate(1000, 0)
    throttle.spend(10, 0)
    assert throttle.wait_ms(0) == 1
    throttle.spend(499, 500)
    assert throttle.allows(500), "half a second of 1,000 bytes a second"
    throttle.spend(1, 500)
    assert not throttle.allows(500)


def test_the_time_before_a_change_has_the_former_rate() -> None:
    """A raised rate does not pay an overdraft for the time before, and a lowered one takes nothing of it back."""
    for before, after, wait_ms in ((1000, 10_000, 500.1), (10_000, 1000, 1)):
        throttle = ReplicationThrottle(before, 0)
        throttle.spend(before + 10_000, 0)
        now = 5_000 if before == 1000 else 1_000
        throttle.set_rate(after, now)
        assert throttle.wait_ms(now) == pytest.approx(wait_ms)


@pytest.mark.parametrize("spent", [0, 1, 1.5, 1.99, 2, 3])
def test_the_wait_is_over_when_bytes_may_be_copied(spent: float) -> None:
    throttle = ReplicationThrottle(2, 0)
    throttle._fill(0)
    throttle._tokens -= spent
    assert (throttle.wait_ms(0) == 0) == throttle.allows(0)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 300)), min_size=1, max_size=100))
def test_the_rate_holds_over_any_span(steps: list[tuple[int, int]]) -> None:
    rate, largest = 1000.0, 300
    throttle = ReplicationThrottle(rate, 0)
    now, copied = 0.0, 0
    for pause_ms, count in steps:
        now += pause_ms
        if throttle.allows(now):
            throttle.spend(count, now)
            copied += count
        assert copied <= rate * (1 + now / 1000) + largest


def test_lists_of_replicas() -> None:
    assert is_throttled(("*",), 3, 1)
    assert is_throttled(("0:1", "3:1"), 3, 1)
    assert not is_throttled(("3:2",), 3, 1)
    assert not is_throttled((), 3, 1)
