"""Small trio primitives that several shells need: a broadcast signal, a one-shot, and a bounded byte budget."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import Callable


class Signal:
    """Wakes all tasks that wait for the next change of some state.

    There is no lock and no memory: a task reads the state and, if it must wait, calls ``wait`` without a checkpoint in
    between. A ``notify`` before ``wait`` has no effect on it. A task that waits for a condition is woken only when the
    condition holds, because checking it costs far less than waking the task.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        """Creates a signal without waiting tasks."""
        self._waiting: dict[trio.lowlevel.Task, Callable[[], bool] | None] = {}

    def notify(self) -> None:
        """Wakes all waiting tasks except those whose condition does not hold."""
        waiting = self._waiting
        if not waiting:
            return
        for task, condition in list(waiting.items()):
            if condition is None or _is_due(condition):
                del waiting[task]
                trio.lowlevel.reschedule(task)

    async def wait(self) -> None:
        """Waits for the next ``notify``. Callers that must end by a time use ``trio.move_on_after``."""
        await self._park(None)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits until ``condition()`` holds, looking again at each ``notify``. Returns at once if it holds.

        An exception of ``condition`` is raised here. ``notify`` calls it too, so it must not change anything.
        """
        while not condition():
            await self._park(condition)

    async def _park(self, condition: Callable[[], bool] | None) -> None:
        waiting, task = self._waiting, trio.lowlevel.current_task()
        waiting[task] = condition

        def abort(_: object) -> trio.lowlevel.Abort:
            del waiting[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


def _is_due(condition: Callable[[], bool]) -> bool:
    """Returns whether the task that waits for ``condition`` must run: the condition holds, or raises an exception."""
    try:
        return condition()
    except Exception:  # noqa: BLE001 - the waiting task calls it again and raises it
        return True


class OneShot:
    """Finishes once, and tells one function or one waiting task. Lighter than ``trio.Event``, which tells many."""

    __slots__ = ("_on_finish", "finished")

    def __init__(self) -> None:
        self.finished = False
        self._on_finish: Callable[[], object] | None = None

    def finish(self) -> None:
        """Calls what waits for the end."""
        assert not self.finished, "it finishes once"
        self.finished = True
        if self._on_finish is not None:
            self._on_finish()
            self._on_finish = None

    def when_finished(self, call: Callable[[], object]) -> None:
        """Lets ``finish`` call a function, in its own turn, instead of an earlier one."""
        assert not self.finished, "it is too late"
        self._on_finish = call

    async def wait_finished(self) -> None:
        """Waits for the end. A checkpoint only when it has to wait."""
        if self.finished:
            return
        assert self._on_finish is None, "one task waits"
        self._on_finish = partial(trio.lowlevel.reschedule, trio.lowlevel.current_task())

        def abort(_: object) -> trio.lowlevel.Abort:
            self._on_finish = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


SMALL_PART = 8
"""Requests for more than this part of the limit leave as much free for those that ask for less."""

OLDEST_EVERY = 16
"""One of this many grants goes to the task that has waited longest, whatever its size."""


class BudgetUser(Protocol):
    """A server whose connections take bytes of a budget."""

    def reclaim(self) -> None:
        """Releases bytes that are kept without need; called when bytes become short."""
        ...

    def keepers_count(self) -> int:
        """Returns how many of its connections keep bytes of the budget or wait for them."""
        ...


class ByteBudget:
    """A bounded number of bytes that many tasks share; the smallest request comes first.

    So a large request delays small ones only when it is the oldest and its turn has come (one grant of
    ``OLDEST_EVERY``). Then no request passes it, so that none starves. A request too large to leave the last
    ``SMALL_PART`` free, or larger than the limit, is granted when no other bytes are in use.
    Invariant: ``used <= limit``, or exactly one grant is outstanding.
    """

    __slots__ = ("_asked", "_grants", "_limit", "_line", "_smallest", "_used", "_users")

    def __init__(self, limit: int) -> None:
        """``limit`` in bytes, at least 1."""
        assert limit >= 1, "a byte budget needs at least one byte"
        self._limit = limit
        self._used = 0
        self._asked = 0
        self._grants = 0
        self._line: OrderedDict[int, tuple[int, trio.Event]] = OrderedDict()  # by age: bytes, event of the grant
        self._smallest: list[tuple[int, int]] = []  # a heap of bytes and age; those that have left the line are stale
        self._users: list[BudgetUser] = []

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
        return bool(self._line)

    @property
    def waiters(self) -> int:
        """How many tasks wait for bytes."""
        return len(self._line)

    @property
    def fair_share(self) -> int:
        """Bytes that each connection that keeps bytes or waits for them may keep.

        While no connection keeps more, one that asks for no more than this need not wait.
        """
        return self._limit // max(1, sum(user.keepers_count() for user in self._users))

    def add_user(self, user: BudgetUser) -> None:
        """Counts the connections of a user from now on."""
        self._users.append(user)

    def remove_user(self, user: BudgetUser) -> None:
        """Forgets a user."""
        self._users.remove(user)

    def _fits(self, count: int) -> bool:
        small = self._limit // SMALL_PART
        return self._used + count <= self._limit - (small if count > small else 0) or self._used == 0

    def _next(self) -> tuple[int, int] | None:
        """Returns bytes and age of the one whose turn it is."""
        if not self._line:
            return None
        if self._grants % OLDEST_EVERY == OLDEST_EVERY - 1:
            age, (count, _) = next(iter(self._line.items()))
            return count, age
        while self._smallest[0][1] not in self._line:
            heapq.heappop(self._smallest)
        return self._smallest[0]

    def has_room(self, count: int) -> bool:
        """Returns whether ``acquire_nowait(count)`` would succeed now."""
        if not self._fits(count):
            return False
        following = self._next()
        return following is None or (count < following[0] and self._grants % OLDEST_EVERY != OLDEST_EVERY - 1)

    def acquire_nowait(self, count: int) -> bool:
        """Takes ``count`` bytes if they are free and no other request is first; returns whether it did."""
        if not self.has_room(count):
            return False
        self._used += count
        if self._line:
            self._grants += 1
        return True

    async def acquire(self, count: int) -> None:
        """Takes ``count`` bytes, waiting for its turn. A checkpoint only when it waits."""
        if self.acquire_nowait(count):
            return
        if not self._line:  # tasks that wait already have asked for the bytes that users can give back
            for user in self._users:
                user.reclaim()
            if self.acquire_nowait(count):
                return
        granted = trio.Event()
        age = self._asked
        self._asked += 1
        self._line[age] = (count, granted)
        heapq.heappush(self._smallest, (count, age))
        self._grant()  # it may be its turn at once
        try:
            await granted.wait()
        except trio.Cancelled:
            if granted.is_set():
                self.release(count)
            else:
                del self._line[age]
                self._grant()
            raise

    def release(self, count: int) -> None:
        """Gives ``count`` bytes back."""
        assert 0 <= count <= self._used, "more bytes given back than were taken"
        self._used -= count
        self._grant()

    def _grant(self) -> None:
        while True:
            following = self._next()
            if following is None:
                self._smallest.clear()
                return
            count, age = following
            if not self._fits(count):
                return
            _, granted = self._line.pop(age)
            self._used += count
            self._grants += 1
            granted.set()
