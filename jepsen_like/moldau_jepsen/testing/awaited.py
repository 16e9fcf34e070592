"""Finds calls of coroutine methods that a test forgot to await.

Python warns of such a coroutine when it is collected, which fails no test: without its fault the test tests nothing.
So each call of a method that ``noted`` wraps is noted until its coroutine starts, in whatever task.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar

from moldau_jepsen.launcher import LauncherUsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

P = ParamSpec("P")
T = TypeVar("T")

SHOWN_MAX: Final = 5


class ForgottenAwaitError(LauncherUsageError):
    """A test called a method without ``await``, so nothing was done."""


class Calls:
    """The calls whose coroutines have not started, counted by their place: as many as the test has lines at most."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def begin(self, place: str) -> None:
        """Notes a call."""
        self._open[place] += 1

    def start(self, place: str) -> None:
        """Notes that the coroutine of a call has started."""
        self._open[place] -= 1
        if not self._open[place]:
            del self._open[place]

    def error(self) -> ForgottenAwaitError | None:
        """Returns the error that names the calls, None if all coroutines have started."""
        if not self._open:
            return None
        places = [place if count == 1 else f"{place} ({count} times)" for place, count in self._open.items()]
        if len(places) > SHOWN_MAX:
            places[SHOWN_MAX:] = [f"{len(places) - SHOWN_MAX} more places"]
        return ForgottenAwaitError(f"await is missing, so nothing was done: {'; '.join(places)}")


class Noting(Protocol):
    """An object that notes the calls of its methods."""

    calls: Calls


def noted(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Wraps a coroutine method of a ``Noting``."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        noting: Noting = args[0]  # type: ignore[assignment]  # self
        frame = sys._getframe(1)
        place = f"{method.__name__}() at {frame.f_code.co_filename}:{frame.f_lineno}"
        noting.calls.begin(place)
        return started(noting.calls, place, *args, **kwargs)

    async def started(calls: Calls, place: str, *args: P.args, **kwargs: P.kwargs) -> T:
        calls.start(place)
        return await method(*args, **kwargs)

    # Python's own warning names the method, too
    started.__name__, started.__qualname__ = method.__name__, method.__qualname__
    return call
