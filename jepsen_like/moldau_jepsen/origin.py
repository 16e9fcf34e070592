"""Where a report comes from: when it was made, by which version and command, and on what machine."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import sys
from pathlib import Path

import moldau
from moldau_jepsen.reports.page import Origin

_CPU_INFO = Path("/proc/cpuinfo")


def origin() -> Origin:
    """Finds out about this moment, this process and this machine. The machine's name is left out: pages travel."""
    now = datetime.datetime.now(datetime.UTC)
    return Origin(
        date=f"{now:%Y-%m-%d %H:%M} UTC",
        version=f"Moldau {moldau.__version__}",
        machine=_machine(),
        command=_command(sys.argv),
    )


def _command(arguments: list[str]) -> str:
    """Returns the command line, without the folders of the program."""
    name = Path(arguments[0]).name if arguments and arguments[0] else "python"
    if name == "__main__.py":
        name = f"python -m {Path(arguments[0]).parent.name}"
        return " ".join([name, shlex.join(arguments[1:])]).strip()
    return shlex.join([name, *arguments[1:]])


def _machine() -> str:
    parts = [f"{platform.system()} {platform.release()} {platform.machine()}", _processors()]
    memory = _memory_gb()
    if memory:
        parts.append(f"{memory:.0f} GB of memory")
    return ", ".join([*parts, f"Python {platform.python_version()}"])


def _processors() -> str:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{count} CPU{'s' if count > 1 else ''}{_model()}"


def _model() -> str:
    """Returns the model of the processor, where the kernel reports it."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f" ({models[0]})" if models else ""


def _memory_gb() -> float:
    """Returns the memory of the machine; 0 where the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    except (ValueError, OSError, AttributeError):
        return 0.0
