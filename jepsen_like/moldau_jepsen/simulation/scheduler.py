"""Runs a trio program so that the same seed gives the same run, in any process and on any machine.

This is the one module that touches trio's private names. trio orders each batch of runnable tasks at random; with
``_ALLOW_DETERMINISTIC_SCHEDULING`` it sorts the batch by task number first and shuffles it with ``_r``, which is seeded
here. Time is an autojumping mock clock that never looks at the real one. The cyclic garbage collector is off during a
run, so that no finalizer runs at a moment that depends on allocation counts. trio is pinned for these names' sake.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, TypeVar

import trio
import trio._core._run as _trio_run
import trio.testing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


def run_deterministic(main: Callable[[], Awaitable[T]], seed: int) -> T:
    """Runs ``main`` to its end on virtual time, with the order of tasks drawn from ``seed``; returns its result.

    Not reentrant, and not for use in two threads at once.
    """
    previous = _trio_run._ALLOW_DETERMINISTIC_SCHEDULING
    previous_state = _trio_run._r.getstate()
    collecting = gc.isenabled()
    _trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    _trio_run._r.seed(seed)
    gc.collect()
    gc.disable()
    try:
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        _trio_run._ALLOW_DETERMINISTIC_SCHEDULING = previous  # type: ignore[misc]
        _trio_run._r.setstate(previous_state)
        if collecting:
            gc.enable()
