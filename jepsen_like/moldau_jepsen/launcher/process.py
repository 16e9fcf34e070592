"""Node processes: starting them, telling whether they live, and signalling them.

A process number alone does not name a process for long, because numbers are reused. A node is known by its number
and its start mark (the kernel's start time), and no signal is sent unless both agree.
"""

from __future__ import annotations

import enum
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal

    from moldau_jepsen.launcher.spec import Node

POLL_S = 0.01
LOG_TAIL_BYTES = 8_192

# Places in /proc/PID/stat behind the command name (proc(5) counts them from 3).
STAT_STATE = 0
STAT_USER_TICKS = 11
STAT_SYSTEM_TICKS = 12
STAT_THREADS = 17
STAT_START = 19
STAT_RESIDENT_PAGES = 21


class ProcessState(enum.Enum):
    """What a node's process is doing."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of ``/proc/PID/stat`` behind the command name (state first), or None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()


def start_mark(pid: int) -> str:
    """The kernel's start time of a process, an opaque word; empty when there is no such process."""
    fields = _stat_fields(pid)
    return fields[STAT_START] if fields else ""


def state_of(pid: int, started: str) -> ProcessState:
    """State of the process that had number ``pid`` and start mark ``started``. A zombie counts as stopped.

    A killed process whose first thread is a zombie while another ends its call to the kernel (a sync, say) still runs:
    until its last thread is gone it holds its listening port, and what it was writing may still reach the disk.
    """
    fields = _stat_fields(pid) if pid > 0 else None
    if fields is None or fields[STAT_START] != started:
        return ProcessState.STOPPED
    if fields[STAT_STATE] in "ZX":
        return ProcessState.RUNNING if int(fields[STAT_THREADS]) > 1 else ProcessState.STOPPED
    return ProcessState.PAUSED if fields[STAT_STATE] in "Tt" else ProcessState.RUNNING


def spawn(node: Node, *, tied_to_parent: bool) -> None:
    """Starts the node's process and records it in ``node``; its output is appended to the node's log.

    With ``tied_to_parent`` the node ends when this process ends; otherwise it lives on, in a session of its own.
    """
    command = ["ip", "netns", "exec", node.namespace] if node.namespace else []  # gives way to the node: one process
    command += [sys.executable, "-P", "-m"]
    # The same server either way; behind the second door it is given a disk and clocks that the harness rules.
    command += ["moldau_cli.chaos_server", node.hostile] if node.hostile else ["moldau_cli", "server"]
    command.append(node.config)
    if tied_to_parent:
        command.append("--with-parent")
    with Path(node.log).open("ab") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    node.pid = child.pid
    node.started = start_mark(child.pid)
    # The launcher follows processes by number and start mark, also those that another process started; a child that
    # died is reaped in ``reap``. Popen would otherwise warn about a running child when it is collected.
    child.returncode = 0


def reap(pid: int) -> None:
    """Collects a dead child; does nothing when ``pid`` is alive or no child of this process."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def send_signal(node: Node, number: signal.Signals) -> bool:
    """Signals the node's process; returns False when it is gone."""
    if state_of(node.pid, node.started) is ProcessState.STOPPED:
        return False
    try:
        os.kill(node.pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_state(node: Node, wanted: ProcessState, timeout_ms: float) -> bool:
    """Waits until the node's process is in a state; returns False when it is not within ``timeout_ms``."""
    deadline = time.monotonic() + timeout_ms / 1000
    while state_of(node.pid, node.started) is not wanted:
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
        reap(node.pid)
    if wanted is ProcessState.STOPPED:
        reap(node.pid)
    return True


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 when it is gone."""
    fields = _stat_fields(pid)
    return int(fields[STAT_RESIDENT_PAGES]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def cpu_ms(pid: int) -> float:
    """Processor time (user and system) a process has used so far; 0 when it is gone."""
    fields = _stat_fields(pid)
    if fields is None:
        return 0.0
    return (int(fields[STAT_USER_TICKS]) + int(fields[STAT_SYSTEM_TICKS])) * 1000 / os.sysconf("SC_CLK_TCK")


def log_end(node: Node) -> list[str]:
    """The lines in the last ``LOG_TAIL_BYTES`` of the node's log; the first may be cut. None when there is no log."""
    try:
        with Path(node.log).open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - LOG_TAIL_BYTES))
            return log.read().decode("utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []


def log_tail(node: Node) -> str:
    """The last line of the node's log that says something, for error messages; empty when there is none."""
    return next((line.strip() for line in reversed(log_end(node)) if line.strip()), "")
