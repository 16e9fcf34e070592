"""Background tasks of an object that is used as ``async with``: a nursery that does not wrap its user's exceptions.

A plain nursery puts an exception of the block into an ``ExceptionGroup``, which is right for tasks and a nuisance for
a client. Here an exception of the block goes through as it is, and one of a background task (a bug: they handle what
can happen) comes as a group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType


class Background:
    """One nursery, opened and closed by the owner's ``__aenter__`` and ``__aexit__``."""

    __slots__ = ("_manager", "_nursery")

    def __init__(self) -> None:
        self._manager: AbstractAsyncContextManager[trio.Nursery, bool | None] | None = None
        self._nursery: trio.Nursery | None = None

    @property
    def is_open(self) -> bool:
        return self._nursery is not None

    @property
    def nursery(self) -> trio.Nursery:
        """The nursery. Raises ``RuntimeError`` outside of the block."""
        if self._nursery is None:
            raise RuntimeError("not open; use it as `async with ... as ...`")
        return self._nursery

    async def open(self, *tasks: Callable[..., Awaitable[object]]) -> trio.Nursery:
        """Opens the nursery, once, and starts ``tasks`` in it (``nursery.start``); leaves it again if that fails."""
        if self._manager is not None:
            raise RuntimeError("it can be opened only once")
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        try:
            for task in tasks:
                await self._nursery.start(task)
        except BaseException as error:
            await self.close(type(error), error, error.__traceback__)
            raise
        return self._nursery

    def cancel(self) -> None:
        """Ends the tasks; idempotent."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    async def close(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        *,
        closing: Callable[[], Awaitable[None]] | None = None,
        ended: Callable[[], None] | None = None,
    ) -> bool | None:
        """Ends the tasks and waits for them; to be returned from ``__aexit__`` with its arguments.

        ``closing`` runs first if the block ended without an exception, ``ended`` in any case before the tasks are
        cancelled. The nursery is left in order whatever ``closing`` raises, cancellation included.
        """
        failure: BaseException | None = None
        if error is None and closing is not None:
            try:
                await closing()
            except BaseException as raised:  # noqa: BLE001 - it is raised again below, when the nursery is left
                failure = raised
                kind, error, traceback = type(raised), raised, raised.__traceback__
        if ended is not None:
            ended()
        self.cancel()
        manager = self._manager
        assert manager is not None
        is_swallowed: bool | None = False
        if error is None or _holds_cancellation(error):
            is_swallowed = await manager.__aexit__(kind, error, traceback)
        else:
            await manager.__aexit__(None, None, None)
        if failure is not None and not is_swallowed:
            raise failure
        return is_swallowed


def _holds_cancellation(error: BaseException) -> bool:
    """Whether trio's own exception is in it, which the nursery must see."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(trio.Cancelled) is not None
    return isinstance(error, trio.Cancelled)
