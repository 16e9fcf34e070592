"""Goal: a run is the same whatever else the process does, and leaves trio as it was; it waits on virtual time.

Method: trio busy in another thread while a seed runs twice; conditions that hold, fail, or never hold; moved deadlines.
"""

import math
import threading
from collections.abc import Callable

import pytest
import trio

from moldau_jepsen.world.time.scheduler import run_deterministic
from moldau_jepsen.world.time.timeline import Agenda


async def order_of_tasks() -> list[int]:
    order: list[int] = []

    async def task(number: int) -> None:
        for _ in range(20):
            await trio.lowlevel.checkpoint()
            order.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(task, number)
    return order


def test_trio_in_another_thread_does_not_change_a_run() -> None:
    expected = run_deterministic(order_of_tasks, 3)
    assert run_deterministic(order_of_tasks, 4) != expected
    stopping = threading.Event()
    started = threading.Event()

    async def busy() -> None:
        async def spin() -> None:
            while not stopping.is_set():
                await trio.lowlevel.checkpoint()
                started.set()

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(spin)

    other = threading.Thread(target=trio.run, args=(busy,))
    other.start()
    try:
        assert started.wait(10)
        for _ in range(20):
            assert run_deterministic(order_of_tasks, 3) == expected
    finally:
        stopping.set()
        other.join(10)


def waited_for(condition: Callable[[], object], limit_seconds: float = 10.0) -> float:
    """Returns the virtual time after a wait for a condition of a run whose time passes in steps of 0.3 s."""
    agenda = Agenda()

    async def main() -> float:
        with trio.fail_after(limit_seconds):
            await agenda.wait_until(condition, every_seconds=0.3)
        return trio.current_time()

    return run_deterministic(main, 1, agenda)


def test_a_condition_is_looked_at_until_it_holds() -> None:
    answers = iter([False, False, True, False, False, True, True])
    # It holds for the third look and not for the task that goes on then; so the wait goes on.
    assert waited_for(lambda: next(answers)) == pytest.approx(1.2)
    assert list(answers) == []
    assert waited_for(lambda: True) == 0


def test_an_error_of_a_condition_ends_the_task_that_waits() -> None:
    with pytest.raises(ZeroDivisionError):
        waited_for(lambda: 1 / (0 if trio.current_time() > 1 else 1) < 0)
    looks: list[float] = []
    with pytest.raises(trio.TooSlowError):
        waited_for(lambda: looks.append(trio.current_time()), limit_seconds=1)
    assert looks == pytest.approx([0, 0.3, 0.6, 0.9])


def test_instruments_are_called_in_a_run() -> None:
    class Steps(trio.abc.Instrument):
        count = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            del task
            self.count += 1

    steps = Steps()

    async def main() -> None:
        await trio.lowlevel.checkpoint()
        trio.lowlevel.add_instrument(steps)
        await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(steps)
        await trio.lowlevel.checkpoint()

    run_deterministic(main, 1)
    assert steps.count == 1


def test_deadlines_that_move_count_as_they_are_last() -> None:
    async def main() -> list[float]:
        ended: list[float] = []
        with trio.move_on_after(1) as scope:
            scope.deadline += 4
            await trio.sleep(100)
        ended.append(trio.current_time())
        with trio.move_on_after(9) as scope:
            scope.relative_deadline = 2
            await trio.sleep(100)
        ended.append(trio.current_time())
        with trio.move_on_after(1) as scope:
            scope.deadline = math.inf
            await trio.sleep(3)
        ended.append(trio.current_time())
        with trio.CancelScope(deadline=trio.current_time() - 1) as scope:
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught, "a deadline in the past"
        return ended

    begun = run_deterministic(trio_time, 1)
    assert [round(at - begun, 6) for at in run_deterministic(main, 1)] == [5, 7, 10]


async def trio_time() -> float:
    return trio.current_time()


def test_trio_is_as_before_after_a_run() -> None:
    def parts() -> list[dict[str, object]]:
        return [dict(vars(trio.CancelScope)), dict(vars(type(trio.Cancelled)))]

    async def main() -> None:
        assert parts() != before, "the run has shorter ways"
        raise ValueError("ends the run")

    before = parts()
    with pytest.raises(ValueError, match="ends the run"):
        run_deterministic(main, 1)
    assert parts() == before


def test_deadlines_that_no_longer_count_are_forgotten() -> None:
    """Those of scopes that have ended are dropped in bulk, which trio does when it counts enough of them."""

    async def main() -> tuple[float, int]:
        deadlines = trio._core._run.GLOBAL_RUN_CONTEXT.runner.deadlines
        with trio.CancelScope(deadline=trio.current_time() + 50) as scope:
            scope.cancel()
            cancelled = deadlines.next_deadline()
            await trio.lowlevel.checkpoint()
        for _ in range(3_000):
            with trio.CancelScope(deadline=trio.current_time() + 1_000):
                await trio.lowlevel.checkpoint()
        await trio.sleep(0.1)
        return cancelled, len(deadlines._heap)

    cancelled, kept = run_deterministic(main, 1)
    assert cancelled == math.inf
    assert kept < 1_000
