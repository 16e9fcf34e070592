"""Processor time of this process and all processes below it: Spark, its Python workers, and the brokers.

Other programs on the machine lengthen a run, and do not change what it costs.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PARENT, TIMES = 1, slice(11, 15)
"""Fields of /proc/PID/stat after the name: the parent; user and system time of the process and its dead children."""


def cpu_s() -> float:
    """Returns the seconds of processor time so far. A process that lost its parent is not counted."""
    stats: dict[int, list[str]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # the process has ended
                stats[int(name)] = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
    family = [os.getpid()]
    for pid in family:
        family += [child for child, fields in stats.items() if int(fields[PARENT]) == pid]
    return sum(sum(map(int, stats[pid][TIMES])) for pid in family if pid in stats) / TICKS_PER_S
