"""Starts several nodes of a local cluster as forks of one process, which has imported the code of all roles.

The command is ``python -m moldau_cli.nodes.several [--with-parent] CONFIG LOG HOSTILE [CONFIG LOG HOSTILE ...]``, with
three words for each node: its configuration file; the file to which its output is appended; the directory of its
hostile environment (``moldau_cli.nodes.chaos_server``), or an empty word. The process writes the number of each node's
process to stdout, one line each in the order of the words, and closes stdout when the last one has started. If nothing
reads the numbers any more, it kills the nodes that it has started, because nothing else would.

A node imports about 500 modules, which costs more processor time than everything else that it does before it serves.
Forks share that work, and the memory of the code. Each node is a process in a session of its own, as if
``moldau server`` had started it.

Without ``--with-parent`` this process ends as soon as the nodes run. With it, this process stays until all of them
have ended, and the nodes end when it ends; it ends when the process that started it does.

``python -m moldau_cli.nodes.several --serve`` stays for as long as its stdin is open, and forks nodes as often as it is
asked (``moldau_jepsen.launcher.forks``). A request is a JSON object on one line of stdin, with ``directory``,
``environment`` and ``nodes``, a list of the three words for each node. The answer is the number of each node's process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moldau_cli.errors import EXIT_DONE, EXIT_FAILED
from moldau_cli.nodes.server import PARENT_POLL_S, serve_command

if TYPE_CHECKING:
    from collections.abc import Sequence

WORDS_PER_NODE: Final = 3
IMPORTED: Final = (
    "moldau.runtime.ports.real",
    "moldau.runtime.telemetry.node_log",
    "moldau_broker.server.lifecycle.broker",
    "moldau_cli.nodes.group.layout",
    "moldau_cli.nodes.watchdog",
    "moldau_jepsen.launcher.hostile",
    "moldau_quorum.log.raft.node",
    "moldau_quorum.log.raft.shell",
    "moldau_quorum.node.server",
)
"""Modules that a node imports while it starts; the log of the metadata is that of the default configuration."""


class _NodeWords(NamedTuple):
    """The words of the command line for one node."""

    config: str
    log: str
    hostile: str
    """Directory of the hostile environment; empty: the operating system's."""


def main(arguments: Sequence[str]) -> int:
    """Starts the nodes and returns an exit code: of this process, or of the node whose process it has become."""
    parent = os.getppid()
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a node would write to every page that the forks share
    if arguments == ["--serve"]:
        return _serve(parent)
    with_parent = bool(arguments) and arguments[0] == "--with-parent"
    words = arguments[1:] if with_parent else arguments
    nodes = [_NodeWords(*words[place : place + WORDS_PER_NODE]) for place in range(0, len(words), WORDS_PER_NODE)]
    children: set[int] = set()
    for node in nodes:
        child = os.fork()
        if child == 0:
            return _become(node, with_parent=with_parent)
        children.add(child)
        try:
            os.write(1, f"{child}\n".encode())
        except BrokenPipeError:
            _kill(children)
            return EXIT_FAILED
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # the reader of the numbers finds their end
    return _stay(children, parent) if with_parent else EXIT_DONE


def _kill(children: set[int]) -> None:
    """Ends nodes of which their starter will not learn: it was interrupted during the imports, and has gone."""
    for child in children:
        with suppress(ProcessLookupError):  # collected by no one else, so the number is still this child's
            os.kill(child, signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)


def _serve(parent: int) -> int:
    """Forks nodes on request until stdin ends or ``parent`` does; returns an exit code, in a new node the node's."""
    ended, wake = _watch_children()
    received = bytearray()
    while os.getppid() == parent:
        readable = select.select([0, ended], [], [], PARENT_POLL_S)[0]
        if ended in readable:
            os.read(ended, select.PIPE_BUF)
            _collect()
        if 0 not in readable:
            continue
        if not (more := os.read(0, select.PIPE_BUF)):
            break
        received += more
        if not received.endswith(b"\n"):
            continue
        request = json.loads(received)
        received.clear()
        for words in request["nodes"]:
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(ended)
                os.close(wake)
                return _become_requested(_NodeWords(*words), request)
            os.write(1, f"{child}\n".encode())
    return EXIT_DONE


def _become_requested(node: _NodeWords, request: dict[str, Any]) -> int:
    """Makes this new process a node in the surroundings of the process that asked for it."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    return _become(node, with_parent=True)


def _become(node: _NodeWords, *, with_parent: bool) -> int:
    """Makes this new process the node, with input, output and session of its own; returns the node's exit code."""
    os.setsid()
    with Path(node.log).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    options = ["--with-parent"] if with_parent else []
    if not node.hostile:
        return serve_command([node.config, *options])
    from moldau_jepsen.launcher.hostile import hostile_environment

    return serve_command([node.config, *options], lambda: hostile_environment(Path(node.hostile)))


def _stay(children: set[int], parent: int) -> int:
    """Collects the nodes when they end. Returns when all have ended, or the process that started this one has."""
    ended, _ = _watch_children()
    while children and os.getppid() == parent:
        for child in list(children):
            if os.waitpid(child, os.WNOHANG)[0]:
                children.remove(child)
        if children and select.select([ended], [], [], PARENT_POLL_S)[0]:
            os.read(ended, select.PIPE_BUF)
    return EXIT_FAILED if children else EXIT_DONE


def _watch_children() -> tuple[int, int]:
    """Returns both ends of a pipe, to which a byte is written when a child ends."""
    ended, wake = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # without a handler nothing is written to the pipe
    return ended, wake


def _collect() -> None:
    """Collects all children that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
