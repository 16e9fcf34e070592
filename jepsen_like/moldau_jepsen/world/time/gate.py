"""Pauses simulated processes: their tasks do not run, as after SIGSTOP or when the host is suspended.

A task belongs to the machine whose name is in its context; tasks that it starts inherit the name. While a machine is
paused, its runnable tasks are held here instead of in the event loop's queue. Everything else continues: connections
stay open and their windows fill, the clock runs, deadlines pass. Disk operations that are not done yet are done after
the pause, so nothing becomes durable meanwhile. After the pause the tasks run in the order in which they became
runnable, and see that time has passed.
"""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import trio

MACHINE: ContextVar[str] = ContextVar("MACHINE", default="")
"""Name of the machine of a task; empty for tasks without a machine (a test, the world itself)."""


class RunQueue(deque["trio.lowlevel.Task"]):
    """The event loop's queue of runnable tasks. It has a ``__dict__``, so that ``append`` can be replaced."""


class TaskGate:
    """Holds back the tasks of paused machines. Invariant: no task enters ``queue`` while its machine is paused."""

    def __init__(self) -> None:
        """Starts without paused machines."""
        self.queue = RunQueue()
        self._held: dict[str, list[trio.lowlevel.Task]] = {}

    @property
    def holds_any(self) -> bool:
        """Returns whether any machine is paused."""
        return bool(self._held)

    def is_paused(self, machine: str) -> bool:
        """Returns whether the machine's tasks are held back."""
        return machine in self._held

    def pause(self, machine: str) -> None:
        """Holds back the machine's tasks from the next turn of the event loop on."""
        if machine in self._held:
            return
        held = self._held[machine] = []
        waiting = list(self.queue)
        self.queue.clear()
        for task in waiting:
            (held if task.context.get(MACHINE) == machine else self.queue).append(task)
        self.queue.append = self._append  # type: ignore[method-assign]

    def resume(self, machine: str) -> None:
        """Releases the machine's tasks; has no effect if the machine is not paused."""
        held = self._held.pop(machine, None)
        if held is None:
            return
        if not self._held:
            del self.queue.append
        self.queue.extend(held)

    def _append(self, task: trio.lowlevel.Task) -> None:
        held = self._held.get(task.context.get(MACHINE, ""))
        if held is not None:
            held.append(task)
        else:
            deque.append(self.queue, task)
