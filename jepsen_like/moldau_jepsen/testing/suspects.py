"""Finds the calls in a test's own code whose results are other ones in each run: random numbers, times, ids, threads.

Python calls a profile function for each call of the thread while ``Suspects.watched`` lasts. So a function is found in
whatever way the code has imported it, and nothing is replaced. That makes a run some times slower: it is for a run that
explains two others that have differed.

The stack decides whose call it is. The frames of the standard library and of installed packages are passed over, up to
one of the user's own code, whose line is named. Calls by Moldau and by the module ``logging`` do not count.
"""

from __future__ import annotations

import _thread
import datetime
import os
import random
import sys
import sysconfig
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from moldau_jepsen.testing.imports import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

SHOWN_MAX: Final = 5
INSTALLED: Final = ("site-packages", "dist-packages")
LIBRARY: Final = tuple(str(Path(sysconfig.get_path(name))) + os.sep for name in ("stdlib", "platstdlib"))
SHARED: Final = random.random.__self__  # type: ignore[attr-defined]  # the generator behind the module's functions
DRAWS: Final = frozenset({random.random, random.getrandbits})
CALLS: Final = DRAWS | {
    time.time,
    time.time_ns,
    time.monotonic,
    time.monotonic_ns,
    time.perf_counter,
    time.perf_counter_ns,
    datetime.datetime.now,
    datetime.datetime.utcnow,
    datetime.datetime.today,
    datetime.date.today,
    os.urandom,
    _thread.start_new_thread,
    *(one for one in (getattr(uuid, "_generate_time_safe", None),) if one is not None),
}
"""Functions in C that are at the bottom of all others, such as ``uuid.uuid4``, ``secrets`` and ``asyncio.run``."""


class Suspects:
    """The calls found in one run."""

    def __init__(self) -> None:
        self._found: dict[str, float] = {}  # the virtual time of the first call at a place
        self._seeded = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Looks at the calls of this thread while the block lasts, in place of a profiler, if there is one."""
        before = sys.getprofile()
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(before)

    def until(self, seconds: float) -> list[str]:
        """Returns the calls that were first made until a virtual time, the last one first."""
        found = [place for place, first in self._found.items() if first <= seconds]
        return [*found[::-1][:SHOWN_MAX], *([f"{len(found) - SHOWN_MAX} more"] if len(found) > SHOWN_MAX else [])]

    def _called(self, frame: FrameType, event: str, called: object) -> None:
        if event != "c_call":
            return
        if called in CALLS:
            if not (self._seeded and called in DRAWS) and (place := _place(frame, called)) is not None:
                self._found.setdefault(place, trio.current_time())
        elif getattr(called, "__self__", None) is SHARED and getattr(called, "__name__", "") == "seed":
            self._seeded = frame.f_locals.get("a") is not None  # from now on its numbers repeat


def _place(frame: FrameType | None, called: object) -> str | None:
    """Returns the name of a call and its line in the user's code; None if the call is not the user's."""
    name = f"{_module_of(called)}.{getattr(called, '__name__', called)}"
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        top, file = module.partition(".")[0], frame.f_code.co_filename
        if top in PACKAGES or top == "logging":
            return None
        if not is_library(file):
            return f"{name}() at {file}:{frame.f_lineno}"
        name = f"{module}.{frame.f_code.co_qualname}"
        frame = frame.f_back
    return None


def _module_of(called: object) -> str:
    """Returns the module of a function in C, or the class that it is a method of."""
    owner = getattr(called, "__self__", None)
    if owner is SHARED:
        return "random"
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}"
    return "os" if called is os.urandom else str(getattr(called, "__module__", ""))


def is_library(file: str) -> bool:
    """Returns whether code belongs to Python or to an installed package, or has no file."""
    return file.startswith(("<", *LIBRARY)) or any(part in INSTALLED for part in Path(file).parts)
