"""The agenda of a simulated world: calls that happen at moments of virtual time, in the order of moment and booking.

Network deliveries and faults are calls on the agenda, not tasks: a task per message would cost more than the message,
and its order among others would be a second source of chance.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable


class Agenda:
    """Calls booked for moments. ``run`` makes them; it is a task of the world."""

    __slots__ = ("_booked", "_counter", "_scope")

    def __init__(self) -> None:
        """Nothing is booked."""
        self._booked: list[tuple[float, int, Callable[[], None]]] = []
        self._counter = 0
        self._scope: trio.CancelScope | None = None

    def call_at(self, seconds: float, call: Callable[[], None]) -> None:
        """Books ``call()`` for the virtual moment ``seconds``; a moment that has passed means as soon as possible."""
        self._counter += 1
        heapq.heappush(self._booked, (seconds, self._counter, call))
        if self._scope is not None and seconds < self._scope.deadline:
            self._scope.deadline = seconds

    def call_after(self, seconds: float, call: Callable[[], None]) -> None:
        """Books ``call()`` for ``seconds`` from now."""
        self.call_at(trio.current_time() + seconds, call)

    async def run(self) -> None:
        """Makes the calls when their moments have come, until cancelled."""
        booked = self._booked
        while True:
            now = trio.current_time()
            while booked and booked[0][0] <= now:
                heapq.heappop(booked)[2]()
            with trio.CancelScope(deadline=booked[0][0] if booked else math.inf) as self._scope:
                await trio.sleep_forever()
            self._scope = None
