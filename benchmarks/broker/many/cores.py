"""Gives the brokers of a benchmark cores of their own, so that peers are compared at equal cores.

The brokers of all peers get the same cores, and take turns on them; the load generator gets the others. A process that
is started gets its cores before its first instruction (``starting_on``), for a JVM sizes its pools by the cores that it
sees then. A process that runs already is pinned thread by thread (``pin``).
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ALL = "all"
PASSES_MAX = 10
"""How often ``pin`` looks for threads that started meanwhile."""


class CoresError(Exception):
    """Processes cannot be pinned as wanted; the text says why in one sentence."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Which cores the brokers and the load generator may use."""

    brokers: frozenset[int]
    load: frozenset[int]


def parse_cores(text: str) -> list[int | None]:
    """Reads ``all,1`` into numbers of cores; None stands for all cores, without pinning.

    Raises:
        ValueError: an entry is neither ``all`` nor a number above 0.
    """
    found: list[int | None] = []
    for part in text.split(","):
        if part != ALL and not (part.isascii() and part.isdigit() and int(part)):
            raise ValueError(f"{part!r} is neither {ALL!r} nor a number of cores above 0")
        found.append(None if part == ALL else int(part))
    return found


def divide_cores(count: int) -> Cores:
    """Returns the last ``count`` cores of this process for the brokers and the others for the load generator.

    Raises:
        CoresError: the machine cannot pin processes, or no core would be left for the load generator.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise CoresError("this operating system cannot pin processes to cores (no sched_setaffinity)")
    available = sorted(os.sched_getaffinity(0))
    if count >= len(available):
        raise CoresError(
            f"brokers on {count} of {len(available)} cores leave none for the load generator: use fewer, or {ALL!r}"
        )
    return Cores(frozenset(available[-count:]), frozenset(available[:-count]))


@contextlib.contextmanager
def starting_on(cores: frozenset[int] | None) -> Iterator[None]:
    """Lets processes that this thread starts inside the block run on ``cores`` only; None changes nothing."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def pin(pid: int, cores: frozenset[int]) -> None:
    """Pins all threads of a running process; threads that they start later inherit it.

    Raises:
        CoresError: the process kept starting threads from threads that were not pinned.
    """
    for _ in range(PASSES_MAX):
        found = 0
        for thread in threads_of(pid):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                if os.sched_getaffinity(thread) != cores:
                    found += 1
                    os.sched_setaffinity(thread, cores)
        if not found:
            return
    raise CoresError(f"process {pid} started threads faster than they could be pinned")


def threads_of(pid: int) -> list[int]:
    """Returns the ids of the threads of a process."""
    return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
