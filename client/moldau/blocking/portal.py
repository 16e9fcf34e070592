"""A thread that runs trio, and calls into it from other threads.

Theory of operation: the caller's thread waits while the coroutine of its call runs in the trio thread. If an exception
arises in the waiting thread (Ctrl-C, a signal handler that raises), the call cancels the coroutine and waits for its
end before the exception leaves the call. If the coroutine has already returned, the call's ``undo`` function reverts
its effects, because the caller does not receive the result. The trio thread decides this in the order in which calls
arrive, so the caller's next call sees the coroutine either completed or undone.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, Protocol, TypeVar

import trio

from moldau.cluster.background import exits_unwrapped
from moldau.cluster.caller import Unportable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

INTERRUPTED_WAIT_S = 5.0
"""How long an interrupted thread waits for the end of its call.

A cancelled coroutine ends at once unless it shields cleanup or the trio thread is busy. It is cancelled and undone
even if the thread has stopped waiting.
"""


class Settable(Protocol):
    """An event that any thread can set."""

    def set(self) -> None:
        """Sets the event."""


class Call(Generic[R]):
    """A coroutine that runs for a waiting thread.

    Once the coroutine has begun, only the trio thread uses the fields; the waiting thread uses its event.
    """

    def __init__(
        self, function: Callable[[], Awaitable[R]], undo: Callable[[R], object], is_over: Settable | None = None
    ) -> None:
        """Takes the function to run, ``undo``, and the event to set after ``give_up`` has taken effect.

        ``undo`` must not raise or wait. It is called with the result if the caller does not receive it.
        """
        self._function = function
        self._undo = undo
        self._scope = trio.CancelScope()
        self._has_begun = False
        self._has_ended = False
        self._is_given_up = False
        self.answers: list[R] = []
        self.error: BaseException | None = None
        self.is_over: Settable = threading.Event() if is_over is None else is_over

    async def run(self) -> None:
        """Runs the coroutine function and stores its result in ``answers``.

        An exception is stored in ``error`` and raised.
        """
        if self._is_given_up:
            return
        self._has_begun = True
        try:
            with self._scope:
                self.answers.append(await self._function())
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._finish()  # no checkpoint since the result: no other task has seen its effects yet

    def give_up(self) -> None:
        """Cancels the coroutine or undoes its result, because the thread no longer waits."""
        self._is_given_up = True
        if self._has_begun and not self._has_ended:
            self._scope.cancel()
        else:
            self._end()

    def _finish(self) -> None:
        self._has_ended = True
        if self._is_given_up:
            self._end()

    def _end(self) -> None:
        for answer in self.answers:
            self._undo(answer)
        self.is_over.set()


class Portal(Generic[C]):
    """A thread that runs trio with one client open in it."""

    face = "moldau.blocking"
    """The package whose clients use the portal, for error messages."""
    opened_by = "with"
    """The statement that opens a client of that package."""

    def __init__(self, name: str, client: AbstractAsyncContextManager[C]) -> None:
        self._opening = client
        self._pid = 0
        self._scope = trio.CancelScope()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._started = threading.Event()
        self._ended = threading.Event()  # as the last act of the thread: a join that is interrupted loses its state
        self.open_token: trio.lowlevel.TrioToken | None = None
        """The trio token of the thread, for hot paths; None before the client is open, and in a forked process.

        ``token`` checks more, and says what is wrong.
        """
        self._stop: trio.Event | None = None
        self._gives_up = False
        self._closing: Callable[[C], Awaitable[None]] | None = None
        self._failure: BaseException | None = None
        self._client: C | None = None
        self._callback_thread_id: int | None = None

    def start(self) -> C:
        """Starts the thread and opens the client; passes on the exceptions of opening.

        An interrupt closes the client, and waits for that at most twice ``INTERRUPTED_WAIT_S``.

        Raises:
            RuntimeError: the client has been opened before, or the calling thread runs trio.
        """
        self._check_caller()
        if self._pid:
            raise RuntimeError("a client can be opened only once; make a new one")
        try:
            self._begin()
            self._started.wait()
        except BaseException:
            # No caller gets the client, so none would close it. Opening waits for no broker.
            if self._thread.is_alive() and self._started.wait(INTERRUPTED_WAIT_S):
                self._ask_stop(gives_up=True)
                self._ended.wait(INTERRUPTED_WAIT_S)
            raise
        return self._opened_client()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._thread.start()
        _open_portals.add(self)

    def _opened_client(self) -> C:
        if self._client is None:
            self._thread.join()
            assert self._failure is not None
            raise self._failure
        return self._client

    def _main(self) -> None:
        try:
            with exits_unwrapped():
                trio.run(self._serve)
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that closes the client
            self._failure = error
        finally:
            self._note_start()
            self._note_end()

    def _note_start(self) -> None:
        """Signals the opening thread that the client is open, or has failed to open."""
        self._started.set()

    def _note_end(self) -> None:
        """Signals a closing thread or asyncio task that the thread ends."""
        self._ended.set()

    async def _serve(self) -> None:
        stop = self._stop = trio.Event()
        with self._scope as scope:
            async with self._opening as client:
                self._client = client
                self.open_token = trio.lowlevel.current_trio_token()
                self._note_start()
                await stop.wait()
                if self._gives_up:
                    scope.cancel()
                    await trio.lowlevel.checkpoint()
                elif self._closing is not None:
                    await self._closing(client)

    def _check_caller(self) -> None:
        """Refuses calls that would block a trio event loop.

        Raises:
            RuntimeError: the calling thread runs trio.
        """
        if not trio.lowlevel.in_trio_run():
            return
        kind = "".join(map(str.capitalize, self._thread.name.split("-")[1:]))
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                f"a callback of {self.face}.{kind} runs in the client's own thread, and cannot call the client"
            )
        raise RuntimeError(
            f"{self.face}.{kind} would stop trio's event loop while it waits: use `async with moldau.{kind}(...)`"
        )

    @property
    def token(self) -> trio.lowlevel.TrioToken:
        """The trio token of the thread.

        Raises:
            RuntimeError: the client is not open, the process was forked, or the calling thread runs trio.
        """
        self._check_caller()
        if self._pid and self._pid != os.getpid():
            raise RuntimeError(
                f"the client was opened in process {self._pid}, and a forked process has no copy of its thread; "
                "open a client of its own in each process"
            )
        if self.open_token is None or not self._thread.is_alive():
            raise RuntimeError(
                "the client is closed"
                if self._pid
                else f"the client is not open; use it as `{self.opened_by} ... as ...`"
            )
        return self.open_token

    def call(self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs a coroutine function in the thread and returns its result.

        An interrupt cancels the coroutine and waits for its end for at most ``INTERRUPTED_WAIT_S``.

        Raises:
            TimeoutError: the call took longer than its time limit.
            RuntimeError: the client is not open, or was closed during the call.
        """
        return self.call_or_undo(lambda _: None, function, *args, **kwargs)

    def call_or_undo(
        self, undo: Callable[[R], object], function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Works like ``call``, and undoes a result that the caller does not receive.

        If the thread was interrupted too late to return the result, the trio thread calls ``undo`` with it. ``undo``
        must not raise or wait.
        """
        token = self.token
        is_over = threading.Event()
        call = Call(lambda: function(*args, **kwargs), undo, is_over)
        try:
            trio.from_thread.run(call.run, trio_token=token)
            return call.answers[0]
        except (trio.RunFinishedError, trio.Cancelled) as error:
            raise RuntimeError("the client was closed during the call") from error
        except trio.TooSlowError as error:
            raise TimeoutError(str(error)) from error
        except BaseException as error:
            if error is not call.error:
                with contextlib.suppress(trio.RunFinishedError):
                    token.run_sync_soon(call.give_up)
                    is_over.wait(INTERRUPTED_WAIT_S)  # a second interrupt leaves it
            raise

    def call_sync(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs a function in the thread and returns its result."""
        token = self.token
        try:
            return trio.from_thread.run_sync(lambda: function(*args, **kwargs), trio_token=token)
        except trio.RunFinishedError as error:
            raise RuntimeError("the client was closed during the call") from error

    def note_fork(self) -> None:
        """Forgets the thread, which a forked process does not have."""
        self.open_token = None

    def check_closer(self) -> None:
        """Refuses to close the client where the end of its thread cannot be awaited.

        Raises:
            RuntimeError: a callback of the client calls, in that thread or while that thread waits for it.
        """
        if threading.current_thread() is self._thread:
            self._check_caller()
        if threading.get_ident() == self._callback_thread_id:
            raise RuntimeError("a callback cannot close the client, which waits for its end")

    async def call_back(self, callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Runs an application's function in a thread of its own and waits for it; it may call the client.

        A cancelled wait ends with the function.
        """

        def run() -> None:
            self._callback_thread_id = threading.get_ident()
            try:
                callback(*args, **kwargs)
            finally:
                self._callback_thread_id = None

        await trio.to_thread.run_sync(run)

    def stop(self, *, gives_up: bool, closing: Callable[[C], Awaitable[None]] | None = None) -> None:
        """Closes the client and ends the thread; passes on the exceptions of closing.

        ``closing`` runs in the thread before the client is left, unless it is given up or another call closes it. An
        interrupt makes the client give up pending work, and waits for that at most ``INTERRUPTED_WAIT_S``.

        Raises:
            RuntimeError: see ``check_closer``.
        """
        self.check_closer()
        try:
            # An interrupt may come before this call returns: the thread may close the client by then.
            runs = self._ask_stop(gives_up=gives_up, closing=closing)
            if runs:
                self._ended.wait()
        except BaseException:
            self._cancel()
            if self._thread.is_alive():
                self._ended.wait(INTERRUPTED_WAIT_S)  # a second interrupt leaves it
            raise
        if runs:
            self._thread.join()
        self._raise_failure()

    def _cancel(self) -> None:
        """Makes a closing client give up pending work."""
        if self.open_token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self.open_token.run_sync_soon(self._scope.cancel)

    def begin_exit(self) -> bool:
        """Begins to close a client that the program left open, as after an exception; returns whether it is open."""
        return self._pid == os.getpid() and self._ask_stop(gives_up=True)

    def wait_end(self, timeout_s: float) -> None:
        """Waits until the thread ends."""
        self._ended.wait(timeout_s)

    def _ask_stop(self, *, gives_up: bool, closing: Callable[[C], Awaitable[None]] | None = None) -> bool:
        """Asks the thread to close the client; returns whether it runs."""
        if not self._thread.is_alive() or self.open_token is None or self._stop is None:
            return False
        if not self._stop.is_set():
            self._closing = closing
        self._gives_up = self._gives_up or gives_up
        # The thread may have ended on its own; its failure then says why.
        with contextlib.suppress(trio.RunFinishedError):
            self.open_token.run_sync_soon(self._stop.set)
        return True

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


_open_portals: weakref.WeakSet[Portal[Any]] = weakref.WeakSet()


def _note_fork() -> None:
    for portal in list(_open_portals):
        portal.note_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


@atexit.register
def _stop_all() -> None:
    """Ends the threads of clients that are open when the interpreter exits, all within ``INTERRUPTED_WAIT_S``.

    A consumer so leaves its group, and a producer aborts its transaction, instead of timing out at the broker.
    """
    until_s = time.monotonic() + INTERRUPTED_WAIT_S
    for portal in [each for each in list(_open_portals) if each.begin_exit()]:
        portal.wait_end(max(0.0, until_s - time.monotonic()))


class PortalClient(Unportable):
    """A client that lives in a portal's thread from ``__enter__`` to ``__exit__`` or ``close``."""

    _portal: Portal[Any]

    async def __aenter__(self) -> NoReturn:
        """Refuses ``async with``; the error names the class to use.

        Raises:
            TypeError: always.
        """
        kind = type(self).__name__
        raise TypeError(f"use `with moldau.blocking.{kind}(...)`, or `async with moldau.{kind}(...)` under trio")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Never reached: ``__aenter__`` raises."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the client and ends the thread; after an exception pending work is dropped.

        Even then a consumer leaves its group, and a producer aborts its open transaction.
        """
        self._portal.stop(gives_up=kind is not None)

    def close(self) -> None:
        """Closes the client as leaving the ``with`` block without an exception does; idempotent."""
        self._portal.stop(gives_up=False)
