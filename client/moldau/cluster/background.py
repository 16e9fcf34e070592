"""Background tasks of an object that is used as ``async with``: a nursery that does not wrap its user's exceptions.

A plain nursery puts an exception of the block into an ``ExceptionGroup``, which is right for tasks and a nuisance for
a client. Here an exception of the block goes through as it is, and one of a background task (a bug: they handle what
can happen) comes as a group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
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

    async def open(self) -> trio.Nursery:
        """Opens the nursery, once."""
        if self._manager is not None:
            raise RuntimeError("it can be opened only once")
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        return self._nursery

    def cancel(self) -> None:
        """Ends the tasks; idempotent."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    async def close(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Ends the tasks and waits for them; to be returned from ``__aexit__``."""
        self.cancel()
        manager = self._manager
        assert manager is not None
        if error is None or isinstance(error, trio.Cancelled | BaseExceptionGroup):
            return await manager.__aexit__(kind, error, traceback)
        await manager.__aexit__(None, None, None)
        return False
