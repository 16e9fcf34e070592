"""Provides virtual time and the agenda of a simulated world: calls booked for moments of virtual time.

Calls of one moment are made in the order of booking. Network deliveries and faults are calls on the agenda, not tasks:
a task per message would cost more than the message, and the order of tasks would be a second source of randomness. The
scheduler makes the calls between two turns of the event loop: when no task can run it moves the clock to the next call
or deadline.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

import trio
from trio.abc import Clock

if TYPE_CHECKING:
    from collections.abc import Callable


class VirtualClock(Clock):
    """The clock of a run. It stands still until the scheduler moves it."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        """Starts at zero."""
        self.now = 0.0  # seconds

    def start_clock(self) -> None:
        """See ``trio.abc.Clock``."""

    def current_time(self) -> float:
        """Returns the seconds since the beginning of the run."""
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Returns the virtual seconds to a deadline; the scheduler does not sleep that long."""
        return deadline - self.now


class Agenda:
    """Calls booked for moments, and calls made after every turn of the event loop."""

    __slots__ = ("_booked", "_counter", "_failed", "_failure", "clock", "ran", "watchers", "watching")

    def __init__(self) -> None:
        """Starts without booked calls."""
        self.clock = VirtualClock()
        self.watchers: list[Callable[[], None]] = []
        """Functions that are called after every turn, when its tasks have run."""
        self.watching = False
        """Whether a watcher runs now."""
        self.ran: dict[str, None] = {}
        """Names of the machines whose tasks ran in the turn that has ended, for the watchers."""
        self._booked: list[tuple[float, int, Callable[[], None]]] = []
        self._counter = 0
        self._failed = trio.Event()
        self._failure: Exception | None = None

    def call_at(self, seconds: float, call: Callable[[], None]) -> None:
        """Books ``call()`` for the virtual time ``seconds``; a time in the past means as soon as possible."""
        self._counter += 1
        heapq.heappush(self._booked, (seconds, self._counter, call))

    def call_after(self, seconds: float, call: Callable[[], None]) -> None:
        """Books ``call()`` for ``seconds`` from now."""
        self.call_at(self.clock.now + seconds, call)

    async def wait_until(self, condition: Callable[[], object], every_seconds: float) -> None:
        """Waits until ``condition()`` holds: looks now, and again each time that so many virtual seconds have passed.

        It looks in booked calls. A task that sleeps between two looks costs some twenty times as much.
        """
        met = trio.Event()

        def look() -> None:
            if waits:
                if _holds_or_fails(condition):
                    met.set()
                else:
                    self.call_after(every_seconds, look)

        waits = True
        try:
            while not condition():
                self.call_after(every_seconds, look)
                await met.wait()
                met = trio.Event()
        finally:
            waits = False

    def next_moment(self) -> float:
        """Returns the virtual time of the next call, infinite if there is none."""
        return self._booked[0][0] if self._booked else math.inf

    def make_due_calls(self) -> None:
        """Makes the calls that are due. ``run`` raises their exceptions."""
        booked, now = self._booked, self.clock.now
        while booked and booked[0][0] <= now:
            call = heapq.heappop(booked)[2]
            try:
                call()
            except Exception as error:  # noqa: BLE001 - ``run`` raises it in its task
                self._fail(error)

    def notify_watchers(self) -> None:
        """Calls the watchers after a turn. ``run`` raises their exceptions."""
        self.watching = True
        try:
            for watcher in self.watchers:
                watcher()
        except Exception as error:  # noqa: BLE001 - see make_due_calls
            self._fail(error)
        finally:
            self.watching = False

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            self._failed.set()

    async def run(self) -> None:
        """Waits for an exception of a call or a watcher, and raises it; a task of the world, until cancelled."""
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure


def _holds_or_fails(condition: Callable[[], object]) -> bool:
    """Returns whether a condition ends a wait: the task that waits evaluates it again, and raises its error."""
    try:
        return bool(condition())
    except Exception:  # noqa: BLE001 - see above
        return True
