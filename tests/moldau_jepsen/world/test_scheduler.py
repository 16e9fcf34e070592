"""Goal: a run is the same whatever else the process does; it waits for conditions on virtual time.

Method: trio busy in another thread while a seed runs twice; conditions that hold, fail, or never hold.
"""

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
