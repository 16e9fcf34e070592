"""Runs tests, and short simulations, in a forked process that may carry a mutant.

The parent process has collected the tests and has run none. Each fork starts from that state, so a trial costs no
import and no collection, and no mutant can harm another one's trial.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from _pytest.runner import runtestprotocol
from _pytest.warnings import catch_warnings_for_item

from support.mutation.areas import module_name
from support.mutation.swap import NotSwappable, swap_in

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pytest

    from support.mutation.areas import Area
    from support.mutation.operators import Mutant

Calls: TypeAlias = "dict[str, list[tuple[float, str]]]"
"""For each function (module and qualified name), seconds and id of each test that calls it."""

FOUND, SURVIVED, UNSWAPPABLE = 1, 0, 3
"""Exit codes of a trial; a process that died otherwise found the mutant, for example by its time limit."""


def forked(work: Callable[[], int], *, cpu_seconds: int, wall_seconds: int) -> int:
    """Starts a process that does the work, silently, and ends with its result; returns the process id.

    The process is killed if it uses more processor time than ``cpu_seconds``, or lasts longer than ``wall_seconds``.
    """
    child = os.fork()
    if child:
        return child
    _end(work, cpu_seconds, wall_seconds)


def _end(work: Callable[[], int], cpu_seconds: int, wall_seconds: int) -> NoReturn:
    try:
        os.setpgid(0, 0)
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(wall_seconds)
        code = work()
    except BaseException:  # noqa: BLE001 - whatever the bug broke, it showed
        code = FOUND
    os._exit(code)


def end_group(child: int) -> None:
    """Kills the processes that a trial has left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def passes(items: Sequence[pytest.Item], last: pytest.Item | None = None) -> bool:
    """Runs tests up to the first that fails; ``last`` comes after them, for fixtures that it shares."""
    for item, following in zip(items, [*items[1:], last], strict=True):
        with catch_warnings_for_item(item.config, item.ihook, "runtest", item):  # with the test's own filters
            reports = runtestprotocol(item, log=False, nextitem=following)  # which may share a fixture with it
        if any(report.failed for report in reports):
            return False
    return True


def record(items: Sequence[pytest.Item], area: Area, result: Path) -> int:
    """Runs all tests without a mutant, and writes which functions of the area each of them calls.

    Returns:
        FOUND if a test fails, because then nothing that it says about mutants would count.
    """
    names = {str(path): module_name(path) for path in area.files()}
    calls: Calls = {}
    sharing: dict[Path, set[str]] = {}  # what the tests of a file call that share a fixture: each needs all of it
    costs: list[tuple[float, pytest.Item, set[str]]] = []
    for item, following in zip(items, [*items[1:], None], strict=True):
        own: set[str] = set()
        seen = sharing.setdefault(item.path, own) if _shares(item) else own

        def note(frame: types.FrameType, event: str, _: object, seen: set[str] = seen) -> None:
            if event == "call":
                module = names.get(frame.f_code.co_filename)
                if module is not None:
                    seen.add(f"{module}:{frame.f_code.co_qualname}")

        started = time.process_time()
        sys.setprofile(note)
        threading.setprofile(note)
        try:
            passed = passes([item], following)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        if not passed:
            result.write_text(json.dumps({"failed": item.nodeid}))
            return FOUND
        costs.append((time.process_time() - started, item, seen))
    for seconds, item, seen in costs:
        for function in sorted(seen):
            calls.setdefault(function, []).append((seconds, item.nodeid))
    result.write_text(json.dumps({"calls": calls}))
    return SURVIVED


def _shares(item: pytest.Item) -> bool:
    """Returns whether a test uses a fixture of its file."""
    known = getattr(item, "_fixtureinfo", None)
    return known is not None and any(each[-1].scope == "module" for each in known.name2fixturedefs.values())


def tried(mutant: Mutant, items: Sequence[pytest.Item]) -> int:
    """Runs the given tests with the mutant."""
    try:
        swap_in(mutant)
    except NotSwappable:
        return UNSWAPPABLE
    return SURVIVED if passes(items) else FOUND


def simulated(mutant: Mutant, seeds: Sequence[int]) -> int:
    """Runs whole clusters with the mutant."""
    from moldau_jepsen.simulation.campaign.runner import examine, options_of

    try:
        swap_in(mutant)
    except NotSwappable:
        return UNSWAPPABLE
    return SURVIVED if all(examine(seed, options_of(seed)).passed for seed in seeds) else FOUND
