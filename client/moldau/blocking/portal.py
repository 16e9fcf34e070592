"""A thread that runs trio, and the way into it."""

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
        """Runs a coroutine function in the thread and returns what it returns."""
        token = self.token

        async def run() -> R:
            return await function(*args, **kwargs)

        try:
            return trio.from_thread.run(run, trio_token=token)
        except (trio.RunFinishedError, trio.Cancelled) as error:
            raise RuntimeError("the client was closed during the call") from error

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
