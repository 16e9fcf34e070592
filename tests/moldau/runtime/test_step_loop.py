"""Goal: a loop of steps misses no event and sleeps until its deadline. Method: steps that note the virtual time."""

import math

import pytest
import trio
import trio.testing

from moldau.runtime.tasks.step_loop import StepLoop
from moldau.runtime.tasks.sync import Signal


class Clock:
    """The clock of trio, in milliseconds since the test began."""

    def __init__(self):
        self.began = trio.current_time()

    def monotonic_ms(self):
        return (trio.current_time() - self.began) * 1000


def steps_at(results, events, until_ms):
    """Runs steps that return ``results`` (a name wants another step at once), and ``events`` at times in ms.

    Returns the times of all steps until ``until_ms``.
    """

    async def main():
        clock, changed, times, left = Clock(), Signal(), [], list(results)
        loop = StepLoop(clock, changed)

        def step():
            times.append(round(clock.monotonic_ms()))
            due = left.pop(0) if left else math.inf
            if isinstance(due, str):
                calls[due]()
                return math.inf
            return due

        calls = {"wake": loop.wake, "changed": changed.notify, "repeat": loop.repeat}
        async with trio.open_nursery() as nursery:
            await nursery.start(loop.run, step)
            for at_ms, name in events:
                await trio.sleep_until(clock.began + at_ms / 1000)
                calls[name]()
            await trio.sleep_until(clock.began + until_ms / 1000)
            nursery.cancel_scope.cancel()
        return times

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    ("results", "events", "until_ms", "times"),
    [
        ([50, 70, 200_000], [], 190_000, [0, 50, 70, 60_070, 120_070, 180_070]),
        ([math.inf], [(10, "wake"), (20, "changed")], 59_000, [0, 10, 20]),
        (["repeat", "repeat", math.inf], [], 59_000, [0, 0, 0]),
        (["wake", "wake", math.inf], [], 59_000, [0, 0, 0]),
        ([math.inf, "changed", math.inf], [(10, "wake")], 59_000, [0, 10, 10]),
        ([-5, -5, math.inf], [], 59_000, [0, 0, 0]),
        ([100, math.inf], [(30, "repeat")], 59_000, [0, 100]),
    ],
    ids=["deadlines", "events", "repeated", "woken-in-a-step", "changed-in-a-step", "overdue", "repeat-while-asleep"],
)
def test_steps_run_at_events_and_deadlines(results, events, until_ms, times):
    """A step runs at each event and deadline, at least once a minute, and again if it asks for that."""
    assert steps_at(results, events, until_ms) == times


def test_steps_start_tasks_while_the_loop_runs():
    """The nursery of a loop takes tasks of its steps, and exists only once the loop runs."""

    async def main():
        loop, ran = StepLoop(Clock(), Signal()), []
        with pytest.raises(AssertionError):
            _ = loop.nursery

        async def task():
            ran.append(True)

        def step():
            if not ran:
                loop.nursery.start_soon(task)
            return math.inf

        async with trio.open_nursery() as nursery:
            await nursery.start(loop.run, step)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert ran == [True]

    trio.run(main)


def test_other_tasks_run_between_steps_that_follow_each_other():
    """A loop whose steps always ask for another one would stop its process, and could not be cancelled."""

    async def main():
        loop, steps = StepLoop(Clock(), Signal()), []

        def step():
            steps.append(True)
            assert len(steps) < 20, "no other task has run meanwhile"
            loop.repeat()
            return math.inf

        async with trio.open_nursery() as nursery:
            await nursery.start(loop.run, step)
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert len(steps) >= 3

    trio.run(main)
