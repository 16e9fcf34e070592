"""Starts, inspects and signals the processes of nodes.

The kernel reuses process numbers. So a number together with a start mark (the time at which the process started)
identifies a node's process, and a signal is sent only if both agree.
"""

from __future__ import annotations

import enum
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from moldau_jepsen.launcher.process_table import look, same_start

if TYPE_CHECKING:
    import signal

    from moldau_jepsen.launcher.spec import Node

POLL_S = 0.01
LOG_TAIL_BYTES = 8_192


class ProcessState(enum.Enum):
    """The state of a node's process."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


def start_mark(pid: int) -> str:
    """Returns when a process started, as an opaque string; empty if there is no such process."""
    row = look(pid)
    return row.mark if row else ""


def state_of(pid: int, started: str) -> ProcessState:
    """Returns the state of the process with number ``pid`` and start mark ``started``. A zombie counts as stopped.

    A killed process counts as running while one of its threads is still in a system call (a sync, for example), even
    if its first thread is a zombie: it holds its listening port, and its last write may still reach the disk.
    """
    row = look(pid) if pid > 0 else None
    if row is None or not same_start(row.mark, started):
        return ProcessState.STOPPED
    if row.state in "ZX":
        return ProcessState.RUNNING if row.threads > 1 else ProcessState.STOPPED
    return ProcessState.PAUSED if row.state in "Tt" else ProcessState.RUNNING


def spawn(node: Node, *, tied_to_parent: bool) -> None:
    """Starts the node's process and records it in ``node``; its output is appended to the node's log.

    With ``tied_to_parent`` the node ends when this process ends; otherwise it keeps running, in its own session.
    """
    command = ["ip", "netns", "exec", node.namespace] if node.namespace else []  # ip execs the node
    command += [sys.executable, "-P", "-m"]
    # Both modules start the same server; the second one gives it a disk and clocks that the harness controls.
    command += ["moldau_cli.nodes.chaos_server", node.hostile] if node.hostile else ["moldau_cli", "server"]
    command.append(node.config)
    if tied_to_parent:
        command.append("--with-parent")
    with Path(node.log).open("ab") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    node.pid = child.pid
    node.started = start_mark(child.pid)
    # The launcher tracks processes by number and start mark, because another process may have started them, and
    # ``reap`` collects dead children. Without this line Popen would warn about a running child when it is collected.
    child.returncode = 0


def reap(pid: int) -> None:
    """Collects a dead child; does nothing if ``pid`` is alive or not a child of this process."""
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
    """Waits until the node's process is in a state; returns False after ``timeout_ms``."""
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
    """Returns the resident memory of a process in bytes; 0 if it is gone."""
    row = look(pid)
    return row.resident_bytes if row else 0


def cpu_ms(pid: int) -> float:
    """Returns the processor time (user and system) that a process has used; 0 if it is gone."""
    row = look(pid)
    return row.cpu_ms if row else 0.0


def log_end(node: Node) -> list[str]:
    """Returns the lines in the last ``LOG_TAIL_BYTES`` of the node's log; the first may be cut. Empty without a log."""
    try:
        with Path(node.log).open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - LOG_TAIL_BYTES))
            return log.read().decode("utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []


def log_tail(node: Node) -> str:
    """Returns the last line of the node's log that is not blank, for error messages; empty if there is none."""
    return next((line.strip() for line in reversed(log_end(node)) if line.strip()), "")
