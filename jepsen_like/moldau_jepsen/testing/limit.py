"""Ends a simulated test that waits for something that never happens.

Its cluster keeps running on virtual time, so such a test has no end of its own. The limit counts from the start of the
cluster, as the times of its events do. The error names the lines at which the test's tasks wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau_jepsen.testing import awaited
from moldau_jepsen.testing.imports import PACKAGES
from moldau_jepsen.testing.suspects import is_library
from moldau_jepsen.world.time.gate import MACHINE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import FrameType

    import trio
    from trio._core._run import CancelStatus

    from moldau_jepsen.world.time.timeline import VirtualClock

CLEANUP_SECONDS: Final = 60.0
"""Virtual seconds for shielded code of a test that was cancelled at its limit; then its shields are taken away."""
PLACES_SHOWN: Final = 5


class TimeLimit:
    """The limit of one run, a watcher of its world's agenda."""

    def __init__(
        self, clock: VirtualClock, seconds_max: float, main: trio.lowlevel.Task, nodes: Collection[str]
    ) -> None:
        """Takes the task that runs the test, and the names of the machines whose tasks are not the test's."""
        self.found: str | None = None
        self.on_found: Callable[[], None] | None = None
        self._clock, self._main, self._nodes = clock, main, nodes
        self._seconds_max = self._next = seconds_max

    def turn_ended(self) -> None:
        """Looks at the time after a turn of the event loop."""
        if self._clock.now < self._next:
            return
        self._next = self._clock.now + CLEANUP_SECONDS
        if self.found is not None:
            for task in self._tasks():
                _unshield(task)
            return
        self.found = (
            f"the test has not ended after {self._seconds_max:g} s of virtual time (virtual_seconds_max); "
            f"it waits in {self._waits()}"
        )
        if self.on_found is not None:
            self.on_found()

    def _waits(self) -> str:
        """Returns where the tasks of the test wait: all that run its own code, or else its first one."""
        first, *others = map(_place, self._tasks())
        places = [first, *sorted({place for place in others if place not in ("", first)})]
        shown = [*filter(None, places)] or [_frames(self._main)]
        if len(shown) > PLACES_SHOWN:
            shown[PLACES_SHOWN:] = [f"{len(shown) - PLACES_SHOWN} more places"]
        return "; ".join(shown)

    def _tasks(self) -> Iterator[trio.lowlevel.Task]:
        """Yields the task that runs the test, and those below it that are not of a node."""
        found = [self._main]
        while found:
            task = found.pop()
            if task.context.get(MACHINE, "") not in self._nodes:
                yield task
                found += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


def _place(task: trio.lowlevel.Task) -> str:
    """Returns the test's own line at which a task waits, and the call in that line; empty without such a line."""
    place, called = "", ""
    for frame, line in task.iter_await_frames():
        if _is_own(frame):
            place, called = f"{frame.f_code.co_filename}:{line} ({frame.f_code.co_qualname})", ""
        elif place and not called and frame.f_globals.get("__name__") != awaited.__name__:
            called = frame.f_code.co_qualname
    return f"{called} at {place}" if called else place


def _unshield(task: trio.lowlevel.Task) -> None:
    """Lets a cancellation reach a task, through all scopes that it is in."""
    status: CancelStatus | None = task._cancel_status
    while status is not None:
        status._scope.shield = False
        status = status._parent


def _is_own(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__"))
    return name.partition(".")[0] not in PACKAGES and not is_library(frame.f_code.co_filename)


def _frames(task: trio.lowlevel.Task) -> str:
    """Returns the functions in which a task waits, in the order of their calls."""
    return " > ".join(f"{frame.f_code.co_qualname}:{line}" for frame, line in task.iter_await_frames())
