"""Small trio primitives that several shells need: a broadcast signal and a bounded byte budget."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable


class Signal:
    """Wakes all tasks that wait for the next change of some state.

    There is no lock and no memory: a waiter reads the state, and waits when it does not like it, without a checkpoint
    in between. A ``notify`` that happens before ``wait`` begins is not seen. Those who wait for a condition are woken
    only when it holds: looking costs far less than a task that runs, does not like what it sees and waits again.
    """

    __slots__ = ("_conditions", "_lot")

    def __init__(self) -> None:
        """Nobody waits."""
        self._lot = trio.lowlevel.ParkingLot()
        self._conditions: dict[trio.lowlevel.Task, Callable[[], bool]] = {}

    def notify(self) -> None:
        """Wakes all that wait now, but for those whose condition does not hold."""
        if self._lot:
            self._lot.unpark_all()
        if self._conditions:
            for task, condition in list(self._conditions.items()):
                if _is_due(condition):
                    del self._conditions[task]
                    trio.lowlevel.reschedule(task)

    async def wait(self) -> None:
        """Waits for the next ``notify``. Callers that must end by a time use ``trio.move_on_after``."""
        await self._lot.park()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits until ``condition()`` holds, looking again at each ``notify``. Returns at once if it holds.

        What ``condition`` raises is raised here. It is called by whoever notifies too, so it must not change anything.
        """
        while not condition():
            task = trio.lowlevel.current_task()
            self._conditions[task] = condition

            def abort(_: object, task: trio.lowlevel.Task = task) -> trio.lowlevel.Abort:
                del self._conditions[task]
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)


def _is_due(condition: Callable[[], bool]) -> bool:
    """Whether the task that waits for ``condition`` must run: it holds, or the task must hear of what it raises."""
    try:
        return condition()
    except Exception:  # noqa: BLE001 - the waiting task calls it again and raises it
        return True


class ByteBudget:
    """Bytes that may be in use at once, shared by many tasks, given out first come, first served.

    A request larger than the whole limit is granted when nothing else is in use, so that no request waits forever.
    Invariant: ``used <= limit``, or exactly one grant is outstanding.
    """

    __slots__ = ("_limit", "_reclaimers", "_used", "_waiting")

    def __init__(self, limit: int) -> None:
        """``limit`` in bytes, at least 1."""
        assert limit >= 1, "a byte budget needs at least one byte"
        self._limit = limit
        self._used = 0
        self._waiting: deque[tuple[int, trio.Event]] = deque()
        self._reclaimers: list[Callable[[], None]] = []

    @property
    def limit(self) -> int:
        """Most bytes in use."""
        return self._limit

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self._used

    @property
    def waiting(self) -> bool:
        """Whether some task waits for bytes."""
        return bool(self._waiting)

    @property
    def waiters(self) -> int:
        """How many tasks wait for bytes."""
        return len(self._waiting)

    def add_reclaimer(self, reclaim: Callable[[], None]) -> None:
        """``reclaim()`` is called when bytes are short; it releases what its owner keeps without need."""
        self._reclaimers.append(reclaim)

    def remove_reclaimer(self, reclaim: Callable[[], None]) -> None:
        """Forgets a reclaimer."""
        self._reclaimers.remove(reclaim)

    def _fits(self, count: int) -> bool:
        return self._used + count <= self._limit or self._used == 0

    def has_room(self, count: int) -> bool:
        """Whether ``acquire_nowait(count)`` would succeed now."""
        return not self._waiting and self._fits(count)

    def acquire_nowait(self, count: int) -> bool:
        """Takes ``count`` bytes if they are free and nobody waits; returns whether it did."""
        if self._waiting or not self._fits(count):
            return False
        self._used += count
        return True

    async def acquire(self, count: int) -> None:
        """Takes ``count`` bytes, waiting in line for them. A checkpoint only when it waits."""
        if self.acquire_nowait(count):
            return
        for reclaim in self._reclaimers:
            reclaim()
        if self.acquire_nowait(count):
            return
        granted = trio.Event()
        entry = (count, granted)
        self._waiting.append(entry)
        try:
            await granted.wait()
        except trio.Cancelled:
            if granted.is_set():
                self.release(count)
            else:
                self._waiting.remove(entry)
                self._grant()
            raise

    def release(self, count: int) -> None:
        """Gives ``count`` bytes back."""
        assert 0 <= count <= self._used, "more bytes given back than were taken"
        self._used -= count
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            count, granted = self._waiting.popleft()
            self._used += count
            granted.set()
