"""Paused processes: the tasks of a machine do not run for a while, as after SIGSTOP or when its host is suspended.

A task belongs to the machine whose name its context carries; tasks that it starts inherit the name. While a machine is
paused, tasks that become able to run are held back here instead of standing in the event loop's queue. Everything else
goes on: its connections stay open and their windows fill, its clock runs, deadlines pass. What its disk has not
done by then is done when it goes on, as late as a disk may: nothing becomes durable meanwhile. Continued, the tasks run
in the order in which they became able to, and find that it is late.
"""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import trio

MACHINE: ContextVar[str] = ContextVar("MACHINE", default="")
"""Name of the machine that a task runs on; empty for what belongs to none (a test, the world itself)."""


class RunQueue(deque["trio.lowlevel.Task"]):
    """The event loop's queue of tasks that can run. It has a dictionary, so that ``append`` can be put in its place."""


class TaskGate:
    """Holds back the tasks of paused machines. Invariant: ``queue`` holds no task that came while its machine was."""

    def __init__(self) -> None:
        """Nothing is paused."""
        self.queue = RunQueue()
        self._held: dict[str, list[trio.lowlevel.Task]] = {}

    @property
    def holds_any(self) -> bool:
        """Whether any machine is paused."""
        return bool(self._held)

    def is_paused(self, machine: str) -> bool:
        """Whether the machine's tasks are held back."""
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
        """Lets the machine's tasks run again; no effect on one that is not paused."""
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
