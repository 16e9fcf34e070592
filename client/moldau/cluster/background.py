"""Background tasks of an async context manager, in a nursery that does not wrap the block's exceptions.

A plain nursery wraps an exception of the block in an ``ExceptionGroup``, which would burden users of a client. Here an
exception of the block passes unchanged; only an exception of a background task, which is a bug, comes as a group.

The tasks are shielded from cancellations outside of the block and end with the block. So a client whose block raised
an exception can still leave its group or abort its transaction, for a short time.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType


FAREWELL_MS = 2_000
"""How long a client may take to send its last requests after an exception or Ctrl-C."""


class Background:
    """One nursery, opened and closed by the owner's ``__aenter__`` and ``__aexit__``."""

    __slots__ = ("_manager", "_nursery", "_scope")

    def __init__(self) -> None:
        self._manager: AbstractAsyncContextManager[trio.Nursery, bool | None] | None = None
        self._nursery: trio.Nursery | None = None
        self._scope = trio.CancelScope()

    @property
    def is_open(self) -> bool:
        """Whether tasks can be started."""
        return self._nursery is not None

    @property
    def nursery(self) -> trio.Nursery:
        """The nursery.

        Raises:
            RuntimeError: the block is not open.
        """
        if self._nursery is None:
            raise RuntimeError("not open; use it as `async with ... as ...`")
        return self._nursery

    async def open(self, *tasks: Callable[..., Awaitable[object]]) -> trio.Nursery:
        """Opens the nursery, once, and starts ``tasks`` in it; closes it again if a task does not start."""
        if self._manager is not None:
            raise RuntimeError("it can be opened only once")
        self._manager = trio.open_nursery()
        outer = await self._manager.__aenter__()
        try:
            self._nursery = await outer.start(self._host)
            self._scope.shield = True  # only now: a shielded start could not be cancelled
            # A cancellation before the shield has closed the nursery; it is for this task as well.
            await trio.lowlevel.checkpoint_if_cancelled()
            for task in tasks:
                await self._nursery.start(task)
        except BaseException as error:
            await self.close(type(error), error, error.__traceback__)
            raise
        return self._nursery

    async def _host(self, *, task_status: trio.TaskStatus[trio.Nursery]) -> None:
        """Holds the nursery of the tasks.

        The block runs outside of it, so that a cancellation reaches the block.
        """
        with self._scope:
            async with trio.open_nursery() as nursery:
                task_status.started(nursery)
                await trio.sleep_forever()

    def cancel(self) -> None:
        """Ends the tasks; idempotent."""
        self._scope.cancel()

    async def close(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        *,
        closing: Callable[[], Awaitable[None]] | None = None,
        departing: Callable[[], Awaitable[None]] | None = None,
        ended: Callable[[], None] | None = None,
    ) -> bool | None:
        """Ends the tasks and waits for them; ``__aexit__`` passes its arguments and returns the result.

        ``closing`` runs first if the block ended without an exception. ``departing`` runs if the block or ``closing``
        raised one, shielded from cancellation, for at most ``FAREWELL_MS``. ``ended`` runs in any case before the tasks
        are cancelled. The nursery is closed in order even if these raise or are cancelled.
        """
        failure: BaseException | None = None
        if error is None and closing is not None:
            try:
                await closing()
            except BaseException as raised:  # noqa: BLE001 - it is raised again below, when the nursery is left
                failure = raised
                kind, error, traceback = type(raised), raised, raised.__traceback__
        if error is not None and departing is not None:
            try:
                with trio.move_on_after(FAREWELL_MS / 1000, shield=True):
                    await departing()
            except BaseException as raised:  # noqa: BLE001 - it is raised again below, when the nursery is left
                failure = raised
                kind, error, traceback = type(raised), raised, raised.__traceback__
        if ended is not None:
            ended()
        self.cancel()
        manager = self._manager
        assert manager is not None
        is_swallowed: bool | None = False
        with exits_unwrapped():
            if error is None or _holds_cancellation(error):
                is_swallowed = await manager.__aexit__(kind, error, traceback)
            else:
                await manager.__aexit__(None, None, None)
        if failure is not None and not is_swallowed:
            raise failure
        return is_swallowed


class Closing:
    """The closing of a client: one task carries it out, and the others wait for its end.

    The end of a block closes the client too, and ends the tasks that another task's closing needs.
    """

    __slots__ = ("_ended", "_task")

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._ended = trio.Event()

    @property
    def is_under_way(self) -> bool:
        """Whether a task carries it out now."""
        return self._task is not None and not self._ended.is_set()

    @contextmanager
    def carried_out(self) -> Iterator[None]:
        """Makes the others wait for the end of the block."""
        self._task = trio.lowlevel.current_task()
        self._ended = trio.Event()
        try:
            yield
        finally:
            self._ended.set()

    async def wait(self, timeout_ms: float) -> None:
        """Waits for the end of a closing under way, at most ``timeout_ms``; callbacks of the closing do not wait."""
        await trio.lowlevel.checkpoint()
        if self.is_under_way and self._task is not trio.lowlevel.current_task():
            with trio.move_on_after(timeout_ms / 1000):
                await self._ended.wait()


def _holds_cancellation(error: BaseException) -> bool:
    """Returns whether an exception holds ``trio.Cancelled``, which the nursery must see."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(trio.Cancelled) is not None
    return isinstance(error, trio.Cancelled)


@contextmanager
def exits_unwrapped() -> Iterator[None]:
    """Takes a KeyboardInterrupt or a SystemExit out of the groups in which nurseries raise it.

    A script that the user interrupts must end as Python ends it, wherever the signal met the client's tasks. The group
    is the cause of the exception if it holds other errors.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        from moldau.runtime.tasks.exceptions import leaves  # not loaded by clients without failures

        found = list(leaves(group))
        ending = next((each for each in found if isinstance(each, KeyboardInterrupt | SystemExit)), None)
        if ending is None:
            raise
        raise ending from (group if any(isinstance(each, Exception) for each in found) else None)
