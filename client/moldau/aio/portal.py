"""A thread that runs trio, and awaits on its calls from an asyncio event loop.

Theory of operation: as in ``moldau.blocking.portal``, but the caller is a task that awaits a future. The trio thread
resolves futures through ``call_soon_threadsafe``. A task that is cancelled gives its call up, and its cancellation goes
on after the trio thread has cancelled or undone the call.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar

import trio

from moldau.blocking.portal import INTERRUPTED_WAIT_S, Call, Portal
from moldau.cluster.caller import Unportable, in_asyncio_task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


class LoopEvent:
    """An event that any thread sets and tasks of one asyncio event loop await."""

    __slots__ = ("_loop", "future")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.future: asyncio.Future[None] = loop.create_future()

    def set(self) -> None:
        """Sets the event; idempotent. No task waits any more if the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Waits for the event, at most ``timeout_s``; a cancellation leaves the event as it is."""
        await asyncio.wait([self.future], timeout=timeout_s)


class AioPortal(Portal[C], Generic[C]):
    """A thread that runs trio with one client open in it, called from one asyncio event loop."""

    face = "moldau.aio"
    opened_by = "async with"

    def __init__(self, name: str, client: AbstractAsyncContextManager[C]) -> None:
        super().__init__(name, client)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_started: LoopEvent | None = None
        self._has_ended: LoopEvent | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that opened the client."""
        assert self._loop is not None
        return self._loop

    def _note_start(self) -> None:
        super()._note_start()
        if self._has_started is not None:
            self._has_started.set()

    def _note_end(self) -> None:
        super()._note_end()
        if self._has_ended is not None:
            self._has_ended.set()

    def _check_caller(self) -> None:
        """Refuses calls from anywhere but the event loop that opened the client.

        Raises:
            RuntimeError: the calling thread runs trio, no event loop, or another one.
        """
        super()._check_caller()
        kind = "".join(map(str.capitalize, self._thread.name.split("-")[1:]))
        if not in_asyncio_task():
            raise RuntimeError(
                f"moldau.aio.{kind} runs under asyncio, and no event loop runs in this thread; "
                f"use moldau.blocking.{kind}"
            )
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                f"this {kind} was opened in another event loop, and only tasks of that one may call it; "
                f"open one in each event loop, or use moldau.blocking.{kind}"
            )

    async def open(self) -> C:
        """Starts the thread and opens the client; passes on the exceptions of opening.

        Raises:
            RuntimeError: the client has been opened before.
        """
        self._check_caller()
        if self._loop is not None:
            raise RuntimeError("a client can be opened only once; make a new one")
        loop = self._loop = asyncio.get_running_loop()
        self._has_started = LoopEvent(loop)
        self._has_ended = LoopEvent(loop)
        self._begin()
        try:
            await self._has_started.wait()
        except asyncio.CancelledError:
            # The client may not have opened yet, so the loop goes on waiting: opening waits for no broker.
            await asyncio.to_thread(self._started.wait, INTERRUPTED_WAIT_S)
            await self.shut(gives_up=True)
            raise
        return self._opened_client()

    async def call_async(self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs a coroutine function in the thread and returns its result."""
        return await self.call_async_or_undo(lambda _: None, function, *args, **kwargs)

    async def call_async_or_undo(
        self, undo: Callable[[R], object], function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Runs a coroutine function in the thread; a result that the task does not receive is undone.

        Raises:
            TimeoutError: the call took longer than its time limit.
            RuntimeError: the client is not open, or was closed during the call.
        """
        token = self.token
        has_answered, is_over = LoopEvent(self.loop), LoopEvent(self.loop)
        call = Call(lambda: function(*args, **kwargs), undo, is_over)
        try:
            token.run_sync_soon(self._begin_call, call, has_answered)
            await has_answered.future
        except trio.RunFinishedError as error:
            raise RuntimeError("the client was closed during the call") from error
        except asyncio.CancelledError:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(call.give_up)
                await is_over.wait(INTERRUPTED_WAIT_S)
            raise
        if call.answers:
            return call.answers[0]
        failure = call.error
        if failure is None or isinstance(failure, trio.Cancelled):
            raise RuntimeError("the client was closed during the call") from failure
        if isinstance(failure, trio.TooSlowError):
            raise TimeoutError(str(failure)) from failure
        raise failure

    def _begin_call(self, call: Call[Any], has_answered: LoopEvent) -> None:
        try:
            trio.lowlevel.spawn_system_task(_carry_out, call, has_answered)
        except RuntimeError:  # the trio run ends and takes no more tasks
            call.give_up()
            has_answered.set()

    def check_closer(self) -> None:
        """Refuses to close the client where the end of its thread cannot be awaited.

        Raises:
            RuntimeError: the client was opened in another event loop, which alone learns of the end.
        """
        if self._thread.is_alive():
            self._check_caller()

    async def shut(self, *, gives_up: bool, closing: Callable[[C], Awaitable[None]] | None = None) -> None:
        """Closes the client and ends the thread; passes on the exceptions of closing.

        ``closing`` is that of ``stop``. A cancellation makes the client give up pending work, and waits for that at
        most ``INTERRUPTED_WAIT_S``.

        Raises:
            RuntimeError: see ``check_closer``.
        """
        self.check_closer()
        if self._ask_stop(gives_up=gives_up, closing=closing):
            assert self._has_ended is not None
            try:
                await self._has_ended.wait()
            except asyncio.CancelledError:
                self._cancel()
                await self._has_ended.wait(INTERRUPTED_WAIT_S)
                if self._has_ended.future.done():
                    self._thread.join()  # the thread has set the event as its last act
                raise
            self._thread.join()
        self._raise_failure()


async def _carry_out(call: Call[Any], has_answered: LoopEvent) -> None:
    try:
        await call.run()
    except trio.Cancelled:
        raise
    except BaseException:  # noqa: BLE001 - the call keeps it, and the awaiting task raises it
        return
    finally:
        has_answered.set()


class AioClient(Unportable):
    """A client that lives in a portal's thread from ``__aenter__`` to ``__aexit__`` or ``close``."""

    _portal: AioPortal[Any]

    def __enter__(self) -> NoReturn:
        """Refuses ``with``; the error names the class to use.

        Raises:
            TypeError: always.
        """
        kind = type(self).__name__
        raise TypeError(f"use `async with moldau.aio.{kind}(...)` under asyncio, or `with moldau.blocking.{kind}(...)`")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Never reached: ``__enter__`` raises."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the client and ends the thread; after an exception pending work is dropped.

        Even then a consumer leaves its group, and a producer aborts its open transaction.
        """
        await self._portal.shut(gives_up=kind is not None)

    async def close(self) -> None:
        """Closes the client as leaving the block without an exception does; idempotent."""
        await self._portal.shut(gives_up=False)
