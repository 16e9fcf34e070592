"""Bounds calls that block in threads: their number, and how long their callers wait.

A thread that hangs cannot be ended. Its caller gives up after a time; the thread goes on and stays counted until it
ends. So a store that hangs costs at most ``calls_max`` threads, and further calls fail after their time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

from moldau.runtime.ports.objects import ObjectStoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

LOOK_SECONDS = 0.05
"""Time after which a call that waits for a thread looks whether one has ended."""


class Offload(Protocol):
    """Runs work in a thread. A cancelled call returns at once, while the work goes on."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Returns the result of the work, or raises its exception."""
        ...


class _Call:
    """Work in a thread, which sets both marks: whether it has begun, and whether it has ended."""

    __slots__ = ("has_begun", "is_over")

    def __init__(self) -> None:
        self.has_begun = False
        self.is_over = False

    def run(self, work: Callable[[], T]) -> T:
        self.has_begun = True
        try:
            return work()
        finally:
            self.is_over = True


class BoundedCalls:
    """The calls of one store."""

    def __init__(self, store: str, offload: Offload, calls_max: int) -> None:
        """``store`` names the store in errors."""
        self._store = store
        self._offload = offload
        self._calls_max = calls_max
        self._calls: list[_Call] = []

    async def run(self, work: Callable[[], T], seconds: float) -> T:
        """Runs ``work`` in a thread; its exceptions pass through. A call that is cancelled returns at once.

        Raises:
            ObjectStoreError: it has not ended within ``seconds``, the time that it waited for a thread included.
        """
        call = _Call()
        try:
            with trio.fail_after(seconds):
                await self._wait_for_a_thread()
                self._calls.append(call)
                try:
                    return await self._offload(lambda: call.run(work))
                finally:
                    if not call.has_begun:  # A thread that still works stays counted.
                        call.is_over = True
        except trio.TooSlowError:
            raise ObjectStoreError(f"{self._store} did not answer within {seconds:.0f} s") from None

    async def _wait_for_a_thread(self) -> None:
        while True:
            self._calls = [call for call in self._calls if not call.is_over]
            if len(self._calls) < self._calls_max:
                return
            await trio.sleep(LOOK_SECONDS)
