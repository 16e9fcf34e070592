"""The process that forks commands for ``support.started``; its standard input is the socket of the requests.

A request is the length of a JSON object in four bytes, which carry the descriptors of stdin, stdout, stderr and a pipe,
and the object: ``words``, ``directory``, ``environment`` and ``ignores_interrupts``. To the pipe goes the number of the
command's process, and when that has ended, its status, each as one line.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

import moldau_cli
from moldau_cli.main import main as run_command
from moldau_cli.nodes import several

IMPORTED = (
    *several.IMPORTED,
    "moldau.blocking",
    "moldau_cli.application",
    "moldau_cli.client",
    "moldau_cli.output",
    "rich.console",
    "rich.table",
    "typer",
)
"""Modules that many commands import while they run."""


def main() -> int:
    """Serves until the socket ends; returns an exit code, in the process of a command that of the command."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=os.dup(0))
    ended, wake = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # without a handler nothing is written to the pipe
    running: dict[int, int] = {}
    while True:
        readable = select.select([requests.fileno(), ended], [], [])[0]
        if ended in readable:
            os.read(ended, select.PIPE_BUF)
            _collect(running)
        if requests.fileno() not in readable:
            continue
        head, descriptors, _, _ = socket.recv_fds(requests, 4, 4)
        if not head:
            return 0
        request = json.loads(_exactly(requests, int.from_bytes(head, "big")))
        status = descriptors.pop()
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in (ended, wake, status, *running.values()):
                os.close(number)
            requests.close()
            return _become(request, descriptors)
        for number in descriptors:
            os.close(number)
        running[child] = status
        _say(status, child)


def _collect(running: dict[int, int]) -> None:
    """Says of all commands that have ended how they did."""
    while running:
        child, how = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        status = running.pop(child)
        _say(status, how)
        os.close(status)


def _say(pipe: int, number: int) -> None:
    with suppress(BrokenPipeError):  # its starter waits for no end
        os.write(pipe, b"%d\n" % number)


def _exactly(requests: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        received += requests.recv(size - len(received))
    return bytes(received)


def _become(request: dict[str, Any], descriptors: list[int]) -> int:
    """Makes this new process the command, as if an interpreter of its own ran it; returns the exit code."""
    for standard, number in enumerate(descriptors):
        os.dup2(number, standard)
    for number in descriptors:
        os.close(number)
    sys.stdin, sys.stdout, sys.stderr = _stream(0), _stream(1), _stream(2)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    interrupt = signal.SIG_IGN if request["ignores_interrupts"] else signal.default_int_handler
    signal.signal(signal.SIGINT, interrupt)
    sys.argv = [os.path.join(os.path.dirname(moldau_cli.__file__), "__main__.py"), *request["words"]]
    return run_command(sys.argv[1:])


def _stream(number: int) -> io.TextIOWrapper:
    """Returns a standard stream as the interpreter makes it."""
    like = (sys.__stdin__, sys.__stdout__, sys.__stderr__)[number]
    assert like is not None
    is_terminal = os.isatty(number)
    raw = open(number, "rb" if number == 0 else "wb", closefd=False)  # noqa: SIM115 - open until the process ends
    return io.TextIOWrapper(
        raw,
        encoding=like.encoding,
        errors=like.errors,
        newline="\n" if number else None,
        line_buffering=is_terminal or number == 2,
        write_through=bool(os.environ.get("PYTHONUNBUFFERED")) and number != 0,
    )


if __name__ == "__main__":
    sys.exit(main())
