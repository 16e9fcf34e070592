"""The loop of a task that looks at a state again whenever it may have changed.

A step looks at the whole state, performs what is due, and returns the time of the next step, which an event may bring
forward. So no event has to say what it changed, and none is lost: one that comes during a step is followed by another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.runtime.tasks.sync import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.ports.environment import Clock

_SLEEP_MAX_MS = 60_000.0


class StepLoop:
    """Calls a step after each event and at the time that the last step returned; owns the nursery of its tasks."""

    __slots__ = ("_changed", "_clock", "_is_wanted", "_nursery", "_wake")

    def __init__(self, clock: Clock, changed: Signal) -> None:
        """A notification of ``changed`` is an event, as a call of ``wake`` is."""
        self._clock = clock
        self._changed = changed
        self._wake = Signal()
        self._is_wanted = False
        self._nursery: trio.Nursery | None = None

    @property
    def nursery(self) -> trio.Nursery:
        """The nursery of the tasks that steps start, while ``run`` runs."""
        assert self._nursery is not None, "the loop runs"
        return self._nursery

    def wake(self) -> None:
        """Asks for a step now."""
        self._is_wanted = True
        self._wake.notify()

    def repeat(self) -> None:
        """Asks the step that runs for another one; does not wake a loop that sleeps."""
        self._is_wanted = True

    async def run(
        self, step: Callable[[], float], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Runs until cancelled. ``step`` returns when it is due without an event, in milliseconds of the clock."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._watch)
            task_status.started()
            while True:
                self._is_wanted = False
                next_ms = step()
                if self._is_wanted:
                    await trio.lowlevel.checkpoint()
                    continue
                delay_ms = min(max(next_ms - self._clock.monotonic_ms(), 0.0), _SLEEP_MAX_MS)
                with trio.move_on_after(delay_ms / 1000):
                    await self._wake.wait()

    async def _watch(self) -> None:
        while True:
            await self._changed.wait()
            self.wake()
