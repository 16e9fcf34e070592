"""Starts, inspects and signals the processes of nodes.

The kernel reuses process numbers. So a number together with a start mark (the time at which the process started)
identifies a node's process, and a signal is sent only if both agree.
"""

from __future__ import annotations

import enum
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from moldau_jepsen.launcher import interpreter
from moldau_jepsen.launcher.forks import NodeForks
from moldau_jepsen.launcher.process_table import look, same_start
from moldau_jepsen.launcher.spec import LauncherError

if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence

    from moldau_jepsen.launcher.spec import Node

POLL_S = 0.01
LOG_TAIL_BYTES = 8_192
_parents: set[int] = set()
"""Processes that started several nodes and stay until those end, to be collected then."""
_FORKS = NodeForks()


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


def spawn_all(nodes: Sequence[Node], *, tied_to_parent: bool) -> None:
    """Starts the processes of several nodes, as ``spawn`` does for each.

    Those that run in this machine's own network namespace are forks of one process (``moldau_cli.nodes.several``),
    which saves most of the processor time of a start. Where they are tied to this process, that one serves all later
    starts too (``moldau_jepsen.launcher.forks``).

    Raises:
        LauncherError: not all processes could be made; ``node.pid`` says which run.
    """
    here = [node for node in nodes if not node.namespace]
    if here and tied_to_parent:
        try:
            _FORKS.start(here)
        finally:  # an interrupt does not end the nodes that run by then
            for node in here:
                node.started = start_mark(node.pid) if node.pid else ""
        here = [node for node in here if not node.pid]
    alone = here if len(here) == 1 else []
    for node in (*(node for node in nodes if node.namespace), *alone):
        spawn(node, tied_to_parent=tied_to_parent)
    if len(here) > 1:
        _fork(here, tied_to_parent=tied_to_parent)


def _fork(nodes: Sequence[Node], *, tied_to_parent: bool) -> None:
    """Starts nodes with ``moldau_cli.nodes.several``, which stays their parent if they are tied to this process."""
    words = ["--with-parent"] if tied_to_parent else []
    for node in nodes:
        node.pid = 0
        words += [node.config, node.log, node.hostile]
    with Path(nodes[0].log).open("ab") as log:
        parent = interpreter.start_module("moldau_cli.nodes.several", words, stdout=subprocess.PIPE, stderr=log)
    assert parent.stdout is not None, "a pipe was asked for"
    with parent.stdout as numbers:
        for node, number in zip(nodes, numbers, strict=False):
            node.pid = int(number)
            node.started = start_mark(node.pid)
    if tied_to_parent and nodes[-1].pid:
        _parents.add(parent.pid)
        parent.returncode = 0  # ``reap`` collects it; see ``spawn``
    else:
        parent.wait()
    if not nodes[-1].pid:
        raise LauncherError(f"the nodes did not start: {log_tail(nodes[0])}")


def spawn(node: Node, *, tied_to_parent: bool) -> None:
    """Starts the node's process and records it in ``node``; its output is appended to the node's log.

    With ``tied_to_parent`` the node ends when this process ends; otherwise it keeps running, in its own session.
    """
    prefix = ["ip", "netns", "exec", node.namespace] if node.namespace else []  # ip execs the node
    # Both modules start the same server; the first one gives it a disk and clocks that the harness controls.
    module, first = ("moldau_cli.nodes.chaos_server", node.hostile) if node.hostile else ("moldau_cli", "server")
    words = [first, node.config, *(["--with-parent"] if tied_to_parent else [])]
    with Path(node.log).open("ab") as log:
        child = interpreter.start_module(module, words, stdout=log, stderr=subprocess.STDOUT, prefix=prefix)
    node.pid = child.pid
    node.started = start_mark(child.pid)
    # The launcher tracks processes by number and start mark, because another process may have started them, and
    # ``reap`` collects dead children. Without this line Popen would warn about a running child when it is collected.
    child.returncode = 0


def reap(pid: int) -> None:
    """Collects a dead child, and dead parents of nodes; does nothing if ``pid`` is alive or another's child."""
    for child in (pid, *_parents):
        try:
            if os.waitpid(child, os.WNOHANG)[0]:
                _parents.discard(child)
        except ChildProcessError:
            _parents.discard(child)


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
