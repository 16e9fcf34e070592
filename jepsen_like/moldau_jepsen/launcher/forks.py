"""Starts nodes as forks of one process, which imports the code of nodes once for all clusters of this process.

The first start of nodes that are tied to this process starts that one (``moldau_cli.nodes.several --serve``). It stays
until this process ends, so each later start and restart of a node saves the imports, which are most of the processor
time of a start. A node is the same as when ``moldau server`` starts it: a process in a session of its own, with the
environment and the working directory that this process has at the time.

Code that was imported under other conditions is not used: a start with another interpreter or other environment
variables than the first one had is refused, and the caller starts the nodes in another way.
"""

from __future__ import annotations

import _thread
import json
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from moldau_jepsen.launcher import interpreter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau_jepsen.launcher.spec import Node

ANSWER_BYTES = 4_096
IGNORED = "PYTEST_"
"""Prefix of the variables that tell which test runs; no node reads them."""


class _Server(NamedTuple):
    """The process that forks nodes."""

    owner: int
    """Process that started it; the pipes belong to that one alone."""
    pid: int
    executable: str
    environment: dict[str, str]
    requests: int
    answers: int


class NodeForks:
    """Starts nodes that are tied to this process as forks of one process; calls from several threads take turns."""

    def __init__(self) -> None:
        """Starts no process yet."""
        self._lock = threading.Lock()
        self._server: _Server | None = None

    def start(self, nodes: Sequence[Node]) -> None:
        """Starts the nodes and notes their processes in ``node.pid``.

        It is 0 where no process was started, because the variables have changed or the other process has died.
        """
        for node in nodes:
            node.pid = 0
        with self._lock:
            server = self._server
            if server is None or server.owner != os.getpid():
                server = self._server = _serve(nodes[0])
            if (server.executable, server.environment) != (sys.executable, _variables()):
                return
            if not _asked(server, _request(nodes), nodes):
                self._server = None
                _close(server)


def _request(nodes: Sequence[Node]) -> bytes:
    """Returns the request for the nodes (``moldau_cli.nodes.several`` describes it)."""
    words = [[node.config, node.log, node.hostile] for node in nodes]
    asked = {"directory": str(Path.cwd()), "environment": dict(os.environ), "nodes": words}
    return f"{json.dumps(asked)}\n".encode()


def _asked(server: _Server, request: bytes, nodes: Sequence[Node]) -> bool:
    """Sends a request and takes the answers; returns False if the other process has ended.

    A thread does it, because an exception of a signal's handler (Ctrl-C, the time limit of a test) may interrupt this
    one: the rest of the answers would be those of the next request, and nothing would end the nodes of this one.
    """
    failures: list[OSError] = []
    has_ended = threading.Event()

    def ask() -> None:
        try:
            _ask(server, request, nodes)
        except OSError as error:
            failures.append(error)
        finally:
            has_ended.set()

    begun: list[int] = []
    try:
        begun.append(_thread.start_new_thread(ask, ()))  # ``Thread.start`` waits, and may be interrupted itself
        has_ended.wait()
    except BaseException:
        if begun:
            has_ended.wait()
        raise
    return not failures


def _ask(server: _Server, request: bytes, nodes: Sequence[Node]) -> None:
    """Sends a request, and waits for the numbers of the nodes' processes."""
    while request:
        request = request[os.write(server.requests, request) :]
    answer = bytearray()
    while answer.count(b"\n") < len(nodes):
        if not (more := os.read(server.answers, ANSWER_BYTES)):
            raise BrokenPipeError("the process that forks nodes has ended")
        answer += more
        for node, number in zip(nodes, answer.split(b"\n")[:-1], strict=False):
            node.pid = int(number)


def _variables() -> dict[str, str]:
    """Returns the environment variables that may change how code is imported."""
    return {name: value for name, value in os.environ.items() if not name.startswith(IGNORED)}


def _serve(first: Node) -> _Server:
    """Starts the process that forks nodes; what it says goes to the log of the ``first`` node."""
    requested, requests = os.pipe()
    answers, answered = os.pipe()
    with Path(first.log).open("ab") as log:
        child = interpreter.start_module(
            "moldau_cli.nodes.several", ["--serve"], stdin=requested, stdout=answered, stderr=log
        )
    os.close(requested)
    os.close(answered)
    child.returncode = 0  # it stays until this process ends, and ``_close`` collects it; Popen would warn of it
    return _Server(os.getpid(), child.pid, sys.executable, _variables(), requests, answers)


def _close(server: _Server) -> None:
    """Closes the pipes, and collects the process that has ended."""
    os.close(server.requests)
    os.close(server.answers)
    with suppress(ChildProcessError):
        os.waitpid(server.pid, os.WNOHANG)
