"""Goal: every timer expires once, at the first tick not before its deadline, in O(1).

Method: a naive model, and a count of steps.
"""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from moldau_broker.replication.timer_wheel import DELAY_MS_MAX, TimerWheel

DELAYS = st.one_of(
    st.integers(0, 130),
    st.integers(0, 5000),
    st.integers(0, 1 << 20),
    st.sampled_from([1, 63, 64, 65, 4095, 4096, 4097]),
)
STEPS = st.lists(st.tuples(st.sampled_from(["insert", "cancel", "advance"]), DELAYS), max_size=60)


def test_nothing_expires_early_and_all_expires_in_order() -> None:
    wheel: TimerWheel[str] = TimerWheel(1000.5)
    wheel.insert(1500, "b")
    wheel.insert(1001.2, "a")
    wheel.insert(90_000, "c")
    assert wheel.advance(1001) == []
    assert wheel.advance(1002) == ["a"]
    assert wheel.advance(1499.9) == []
    assert wheel.advance(100_000) == ["b", "c"]
    assert wheel.next_deadline_ms() is None


def test_a_deadline_in_the_past_expires_at_the_next_tick() -> None:
    wheel: TimerWheel[int] = TimerWheel(10_000)
    wheel.insert(3, 1)
    assert wheel.advance(10_000) == []
    assert wheel.advance(10_001) == [1]
    wheel.advance(20_000)
    wheel.insert(3, 2)
    assert wheel.advance(20_000) == []
    assert wheel.advance(9_000) == [], "time does not go back"
    assert wheel.next_deadline_ms() == 20_001


def test_cancelled_timers_do_not_expire_and_cancel_once() -> None:
    wheel: TimerWheel[int] = TimerWheel(0)
    timer = wheel.insert(70, 1)
    assert wheel.cancel(timer)
    assert not wheel.cancel(timer)
    assert len(wheel) == 0
    assert wheel.advance(1000) == []


def test_an_expired_timer_cannot_be_cancelled() -> None:
    wheel: TimerWheel[int] = TimerWheel(0)
    timer = wheel.insert(5, 1)
    assert wheel.advance(5) == [1]
    assert not wheel.cancel(timer)


def test_delays_beyond_the_limit_are_cut() -> None:
    wheel: TimerWheel[int] = TimerWheel(7)
    wheel.insert(1e15, 1)
    assert wheel.advance(7 + DELAY_MS_MAX - 1) == []
    assert wheel.advance(7 + DELAY_MS_MAX) == [1]


def test_a_whole_turn_away_comes_after_the_rest_of_the_turn() -> None:
    """The highest level may hold a timer in its present slot, which expires one turn later than the slots beside it."""
    slot = (DELAY_MS_MAX + 1) >> 6
    wheel: TimerWheel[str] = TimerWheel(10 * slot + 7)
    wheel.insert(1e15, "turn")
    for later in (13, 15):
        wheel.insert(later * slot, str(later))
    assert wheel.next_deadline_ms() == 13 * slot
    assert wheel.advance(13 * slot) == ["13"]
    assert wheel.advance(15 * slot) == ["15"]
    assert wheel.next_deadline_ms() == 10 * slot + 7 + DELAY_MS_MAX
    assert wheel.advance(10 * slot + 7 + DELAY_MS_MAX) == ["turn"]


@given(start=st.integers(0, 1 << 37), steps=STEPS)
def test_agrees_with_a_sorted_list(start: int, steps: list[tuple[str, int]]) -> None:
    wheel: TimerWheel[int] = TimerWheel(start)
    model: dict[int, int] = {}
    timers = {}
    now = start
    for number, (action, value) in enumerate(steps):
        if action == "insert":
            timers[number] = wheel.insert(now + value, number)
            model[number] = max(now + value, now + 1)
        elif action == "cancel" and timers:
            chosen = sorted(timers)[value % len(timers)]
            assert wheel.cancel(timers.pop(chosen)) == (chosen in model)
            model.pop(chosen, None)
        elif action == "advance":
            now += value
            due = sorted(number for number, deadline in model.items() if deadline <= now)
            expired = wheel.advance(now)
            assert sorted(expired) == due
            assert [model[n] for n in expired] == sorted(model[n] for n in expired)
            for number in due:
                del model[number]
        assert len(wheel) == len(model)
        deadline = wheel.next_deadline_ms()
        assert (deadline is None) == (not model)
        if deadline is not None:
            assert now <= deadline <= min(model.values())
            if len(model) <= 8:
                assert deadline == min(model.values()), "a few timers cause no wake-up but their own"


def test_cost_does_not_grow_with_the_number_of_timers() -> None:
    def cost(count: int) -> float:
        wheel: TimerWheel[int] = TimerWheel(0)
        for number in range(count):
            wheel.insert(30_000 + number % 1000, number)
        samples = []
        for _ in range(5):
            begin = time.thread_time()
            for _ in range(1000):
                wheel.cancel(wheel.insert(40_000, -1))
            samples.append(time.thread_time() - begin)
        return min(samples)

    assert cost(200_000) < 20 * cost(1000)
