"""Looks up a process in /proc (Linux), or with ``ps`` (macOS, BSD) if there is no /proc.

Both tell a process from a later one with the same number by the time at which it started. /proc gives it in clock
ticks. ``ps`` gives it in seconds, and some versions compute it from a clock that may be set meanwhile, so marks that
lie two seconds apart still count as the same.
"""

from __future__ import annotations

import calendar
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC = Path("/proc")

# Places in /proc/PID/stat behind the command name (proc(5) counts them from 3).
STAT_STATE = 0
STAT_USER_TICKS = 11
STAT_SYSTEM_TICKS = 12
STAT_THREADS = 17
STAT_START = 19
STAT_RESIDENT_PAGES = 21

PS_TIMEOUT_S: Final = 60.0
_PS_MARK: Final = "ps:"
_PS_START_FORMAT: Final = "%a %b %d %H:%M:%S %Y"
_PS_START_WORDS: Final = 5
_PS_START_SLACK_S: Final = 2
_PS_SEVERAL_THREADS: Final = "l"
"""A letter behind the state (ps(1) of Linux and NetBSD). Where it is absent, as on macOS, a dead process has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One process."""

    mark: str
    """Time of the process's start, an opaque string; compare with ``same_start``."""
    state: str
    """The letter that ps(1) shows: T and t for stopped, Z and X for dead."""
    threads: int
    """Number of threads in /proc; from ``ps`` 2 stands for any number above 1. 1 if the system does not report it."""
    resident_bytes: int
    cpu_ms: float


def look(pid: int) -> ProcessRow | None:
    """Returns the process with a number, or None if there is none.

    Raises:
        OSError: The machine has neither /proc nor ``ps``.
    """
    return _from_proc(pid) if (PROC / "self" / "stat").exists() else _from_ps(pid)


def same_start(mark: str, other: str) -> bool:
    """Returns whether two marks belong to one process, given equal process numbers."""
    if mark.startswith(_PS_MARK) and other.startswith(_PS_MARK):
        return abs(int(mark.removeprefix(_PS_MARK)) - int(other.removeprefix(_PS_MARK))) <= _PS_START_SLACK_S
    return mark == other


def _from_proc(pid: int) -> ProcessRow | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    ticks = int(fields[STAT_USER_TICKS]) + int(fields[STAT_SYSTEM_TICKS])
    return ProcessRow(
        mark=fields[STAT_START],
        state=fields[STAT_STATE],
        threads=int(fields[STAT_THREADS]),
        resident_bytes=int(fields[STAT_RESIDENT_PAGES]) * os.sysconf("SC_PAGE_SIZE"),
        cpu_ms=ticks * 1000 / os.sysconf("SC_CLK_TCK"),
    )


def _from_ps(pid: int) -> ProcessRow | None:
    reported = subprocess.run(
        ["ps", "-o", "stat=,rss=,time=,lstart=", "-p", str(pid)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
        timeout=PS_TIMEOUT_S,
        check=False,
    )
    words = reported.stdout.split()
    if not words:  # Without such a process ps prints nothing and exits with 1.
        return None
    state, resident_kib, used, *started = words
    begun = time.strptime(" ".join(started[:_PS_START_WORDS]), _PS_START_FORMAT)
    return ProcessRow(
        mark=f"{_PS_MARK}{calendar.timegm(begun)}",
        state=state[0],
        threads=2 if _PS_SEVERAL_THREADS in state[1:] else 1,
        resident_bytes=int(resident_kib) * 1024,
        cpu_ms=_cpu_ms(used),
    )


def _cpu_ms(text: str) -> float:
    """Reads ``[[days-]hours:]minutes:seconds[.hundredths]``."""
    days, _, clock = text.rpartition("-")
    total = 0.0
    for part in clock.split(":"):
        total = total * 60 + float(part)
    return (int(days or 0) * 86_400 + total) * 1000
