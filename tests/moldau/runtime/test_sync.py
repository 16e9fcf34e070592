"""Goal: a signal wakes exactly those that must run. Method: tasks on virtual time that count how often they ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from moldau.runtime.tasks.sync import Signal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def run(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


class _Steps(trio.abc.Instrument):
    """Counts the steps of tasks by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, int] = {}

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.by_name[task.name] = self.by_name.get(task.name, 0) + 1


def test_waiter_runs_only_when_its_condition_holds() -> None:
    """A task that waits for a condition runs only when the condition holds."""

    async def main() -> None:
        signal = Signal()
        value = 0
        steps = _Steps()
        trio.lowlevel.add_instrument(steps)

        async def wait_for_three() -> None:
            await signal.wait_until(lambda: value >= 3)
            assert value == 3

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_three, name="patient")
            await trio.testing.wait_all_tasks_blocked()
            before = steps.by_name["patient"]
            for _ in range(2):
                value += 1
                signal.notify()
                await trio.testing.wait_all_tasks_blocked()
            assert steps.by_name["patient"] == before, "nothing that it waits for has happened"
            value += 1
            signal.notify()

    run(main)


def test_condition_that_no_longer_holds_is_awaited_again() -> None:
    """A task waits again if its condition held but no longer holds."""

    async def main() -> None:
        signal = Signal()
        holds = False
        done = trio.Event()

        async def waiter() -> None:
            await signal.wait_until(lambda: holds)
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter)
            await trio.testing.wait_all_tasks_blocked()
            holds = True
            signal.notify()
            holds = False  # before the waiter has run
            await trio.testing.wait_all_tasks_blocked()
            assert not done.is_set()
            holds = True
            signal.notify()
            await done.wait()

    run(main)


def test_exception_of_a_condition_reaches_the_waiter() -> None:
    """An exception of a condition reaches the waiter and not the notifier."""

    async def main() -> None:
        signal = Signal()
        broken = False

        def condition() -> bool:
            if broken:
                raise ValueError("no leader any more")
            return False

        async def waiter() -> None:
            with pytest.raises(ValueError, match="no leader"):
                await signal.wait_until(condition)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter)
            await trio.testing.wait_all_tasks_blocked()
            broken = True
            signal.notify()

    run(main)


def test_a_waiter_that_is_cancelled_is_forgotten() -> None:
    async def main() -> None:
        signal = Signal()
        asked = 0

        def condition() -> bool:
            nonlocal asked
            asked += 1
            return False

        with trio.move_on_after(1):
            await signal.wait_until(condition)
        before = asked
        signal.notify()
        assert asked == before

    run(main)


def test_all_that_wait_without_a_condition_are_woken() -> None:
    async def main() -> None:
        signal = Signal()
        woken = 0

        async def waiter() -> None:
            nonlocal woken
            await signal.wait()
            woken += 1

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(waiter)
            await trio.testing.wait_all_tasks_blocked()
            signal.notify()
        assert woken == 3

    run(main)
