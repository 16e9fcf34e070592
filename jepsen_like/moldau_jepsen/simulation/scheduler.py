"""Runs a trio program so that the same seed gives the same run, in any process and on any machine.

This is the one module that touches trio's private names. trio orders each batch of runnable tasks at random; with
``_ALLOW_DETERMINISTIC_SCHEDULING`` it sorts the batch by task number first and shuffles it with ``_r``, which is
replaced here by a seeded stream for the thread of the run; trio in other threads of the process (a blocking client,
link proxies) goes on drawing from its own. Time is an autojumping mock clock that never looks at the real one. The
cyclic garbage collector is off during a run, so that no finalizer runs at a moment that depends on allocation counts.
trio is pinned for these names' sake.
"""

from __future__ import annotations

import gc
import threading
from random import Random
from typing import TYPE_CHECKING, TypeVar

import trio
import trio._core._run as _trio_run
import trio.testing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class _ThreadStream(Random):
    """Random numbers of trio's scheduler: one stream for the thread that made it, another one for all others."""

    def __init__(self, own: Random, others: Random) -> None:
        self._owner = threading.get_ident()
        self._own = own
        self._others = others
        super().__init__()

    def random(self) -> float:
        """The next number of the calling thread's stream."""
        return self._stream().random()

    def getrandbits(self, k: int) -> int:
        """The next bits of the calling thread's stream."""
        return self._stream().getrandbits(k)

    def seed(self, *_: object) -> None:
        """Does nothing: the streams are seeded by their makers."""

    def _stream(self) -> Random:
        return self._own if threading.get_ident() == self._owner else self._others


def run_deterministic(main: Callable[[], Awaitable[T]], seed: int) -> T:
    """Runs ``main`` to its end on virtual time, with the order of tasks drawn from ``seed``; returns its result.

    Not reentrant, and not for use in two threads at once; trio may run in other threads meanwhile.
    """
    previous = _trio_run._ALLOW_DETERMINISTIC_SCHEDULING
    shared = _trio_run._r
    collecting = gc.isenabled()
    _trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    _trio_run._r = _ThreadStream(Random(seed), shared)
    gc.collect()
    gc.disable()
    try:
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        _trio_run._ALLOW_DETERMINISTIC_SCHEDULING = previous  # type: ignore[misc]
        _trio_run._r = shared
        if collecting:
            gc.enable()
