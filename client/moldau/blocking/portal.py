"""A thread that runs trio, and the way into it.

Theory of operation: a call waits in the caller's thread while its coroutine runs in trio's. An exception that arises in
the waiting thread itself (Ctrl-C, a signal handler that raises) does not leave the call before the coroutine has been
cancelled and has ended, so that nothing goes on behind the caller's back. Where it had an answer already, which nobody
receives now, the call is undone by a function that came with it. All that is decided in the trio thread, in the order
in which calls come there: what the caller does next finds it done.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

INTERRUPTED_WAIT_S = 5.0
"""How long an interrupted thread waits for the end of its call. A cancelled coroutine ends at once, but for cleanup
that it shields and a trio thread that is busy; it is cancelled, and undone, also when nobody waits any more."""


class Call(Generic[R]):
    """A coroutine that runs for a waiting thread. Once it has begun, all but ``is_over`` belongs to the trio thread."""

    def __init__(self, function: Callable[[], Awaitable[R]], undo: Callable[[R], object]) -> None:
        """``undo`` is called with an answer that the thread does not receive; it must not raise or wait."""
        self._function = function
        self._undo = undo
        self._scope = trio.CancelScope()
        self._has_begun = False
        self._has_ended = False
        self._is_given_up = False
        self.answers: list[R] = []
        self.error: BaseException | None = None
        self.is_over = threading.Event()

    async def run(self) -> None:
        """Runs the coroutine function. Its answer is in ``answers``; what it raises is raised, and in ``error``."""
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
            self._finish()  # without a checkpoint since the answer: nobody has seen yet what it changed

    def give_up(self) -> None:
        """The thread does not wait any more: cancels the coroutine, or undoes what it has answered."""
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

    def __init__(self, name: str, client: AbstractAsyncContextManager[C]) -> None:
        self._opening = client
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._started = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._gives_up = False
        self._failure: BaseException | None = None
        self._client: C | None = None

    def start(self) -> C:
        """Starts the thread and opens the client. Raises what opening it raises."""
        self._thread.start()
        self._started.wait()
        if self._client is None:
            self._thread.join()
            assert self._failure is not None
            raise self._failure
        return self._client

    def _main(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that closes the client
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        stop = self._stop = trio.Event()
        with trio.CancelScope() as scope:
            async with self._opening as client:
                self._client = client
                self._token = trio.lowlevel.current_trio_token()
                self._started.set()
                await stop.wait()
                if self._gives_up:
                    scope.cancel()
                    await trio.lowlevel.checkpoint()

    @property
    def token(self) -> trio.lowlevel.TrioToken:
        """The way into the thread. Raises ``RuntimeError`` when the client is not open."""
        if self._token is None or not self._thread.is_alive():
            raise RuntimeError("the client is not open; use it as `with ... as ...`")
        return self._token

    def call(self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs a coroutine function in the thread and returns what it returns.

        Interrupted, it cancels the coroutine, and waits for its end for at most ``INTERRUPTED_WAIT_S``.
        """
        return self.call_or_undo(lambda _: None, function, *args, **kwargs)

    def call_or_undo(
        self, undo: Callable[[R], object], function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """As ``call``. ``undo`` is called in the trio thread with what the function returned when it was too late for
        the interrupted thread to return it; it must not raise or wait.
        """
        token = self.token
        call = Call(lambda: function(*args, **kwargs), undo)
        try:
            trio.from_thread.run(call.run, trio_token=token)
            return call.answers[0]
        except (trio.RunFinishedError, trio.Cancelled) as error:
            raise RuntimeError("the client was closed during the call") from error
        except BaseException as error:
            if error is not call.error:
                with contextlib.suppress(trio.RunFinishedError):
                    token.run_sync_soon(call.give_up)
                    call.is_over.wait(INTERRUPTED_WAIT_S)  # a second interrupt leaves it
            raise

    def call_sync(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs a function in the thread and returns what it returns."""
        token = self.token
        try:
            return trio.from_thread.run_sync(lambda: function(*args, **kwargs), trio_token=token)
        except trio.RunFinishedError as error:
            raise RuntimeError("the client was closed during the call") from error

    def stop(self, *, gives_up: bool) -> None:
        """Closes the client and ends the thread. Raises what closing it raises."""
        if self._thread.is_alive() and self._token is not None and self._stop is not None:
            stop = self._stop
            self._gives_up = gives_up
            # It may have ended by itself; the failure below then says why.
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(stop.set)
            self._thread.join()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


class PortalClient:
    """A client that lives in a portal's thread from ``__enter__`` to ``__exit__`` or ``close``."""

    _portal: Portal[Any]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the client and ends the thread; after an exception what is left to do is given up."""
        self._portal.stop(gives_up=kind is not None)

    def close(self) -> None:
        """As leaving the ``with`` block without an exception; idempotent."""
        self._portal.stop(gives_up=False)
