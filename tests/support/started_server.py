"""The process that forks others for ``support.started``; its standard input is the socket that takes the requests.

Its words are the directory of that socket, and the descriptor of a pipe: it ends when that closes. A request has a
connection of its own. It is the length of a JSON object in four bytes, which carry the descriptors of stdin, stdout,
stderr and a pipe, and the object (``support.started_request``). To the pipe goes the number of the new process, and
when that has ended, its status, each as one line.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from _pytest.config import default_plugins

from moldau.protocol.api import APIS
from moldau.protocol.codec import codec_for
from moldau.protocol.schema import Struct
from moldau_cli.application import COMMANDS
from moldau_cli.nodes import several
from support import started

IMPORTED = (
    *several.IMPORTED,
    *(f"moldau_cli.commands.{entry.module}" for entry in COMMANDS.values()),
    "encodings.ascii",
    "encodings.idna",
    "moldau.admin.admin",
    "moldau.blocking",
    "moldau.consumer.consumer",
    "moldau.producer.producer",
    "moldau_cli.client",
    "moldau_cli.main",
    "moldau_cli.output",
    "moldau_cli.plans.documents",
    "moldau_cli.plans.offsets",
    "moldau_cli.plans.partitions",
    "moldau_cli.profiles.selection",
    "moldau_cli.quorum_watch",
    "moldau_cli.records.formats",
    "moldau_cli.records.reading",
    "moldau_cli.records.sending",
    "moldau_jepsen.chaos.network.panel",
    "moldau_jepsen.launcher.cluster",
    "moldau_jepsen.launcher.probe",
    "moldau_jepsen.testing.local",
    "moldau_jepsen.testing.plugin",
    "pytest",
    *(f"_pytest.{name}" for name in default_plugins),
    "rich.console",
    "rich.table",
    "typer",
)
"""Modules that many of the started processes import while they run."""


def main(directory: Path, lives: int) -> NoReturn:
    """Serves until no process is left to serve."""
    requests = socket.socket(fileno=os.dup(0))
    if lives in select.select([requests.fileno(), lives], [], [])[0]:
        _end(directory)
    _prepare()
    gc.collect()
    gc.freeze()
    ended, wake = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # without a handler nothing is written to the pipe
    running: dict[int, int] = {}
    while True:
        readable = select.select([requests.fileno(), ended, lives], [], [])[0]
        if ended in readable:
            os.read(ended, select.PIPE_BUF)
            _collect(running)
        if lives in readable:
            _end(directory)
        if requests.fileno() not in readable:
            continue
        with requests.accept()[0] as asked:
            head, descriptors, _, _ = socket.recv_fds(asked, 4, 4)
            if not head:  # the process that asked has ended
                continue
            request = json.loads(_exactly(asked, int.from_bytes(head, "big")))
        status = descriptors.pop()
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in (ended, wake, status, lives, *running.values()):
                os.close(number)
            requests.close()
            _become(request, descriptors, directory)
        for number in descriptors:
            os.close(number)
        running[child] = status
        _say(status, child)


def _end(directory: Path) -> NoReturn:
    """Removes the directory, which is still there when the processes that this one served were killed."""
    shutil.rmtree(directory, ignore_errors=True)
    sys.exit()


def _prepare() -> None:
    """Imports what processes import, and compiles what they compile: the codecs of messages at their last versions."""
    for name in IMPORTED:
        importlib.import_module(name)
    for api in APIS.values():
        for message in (api.request, api.response):
            codec_for(message, message.__versions__.last)
    tables: list[Any] = [Struct]
    for table in tables:
        table.compile_init()
        tables += table.__subclasses__()


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
        more = requests.recv(size - len(received))
        assert more, "half a request"
        received += more
    return bytes(received)


def _become(request: dict[str, Any], descriptors: list[int], directory: Path) -> NoReturn:
    """Runs a module in this new process, as if an interpreter of its own did, and ends it."""
    if request["has_session"]:
        os.setsid()
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
    module = request["module"]
    if module in sys.modules and not hasattr(sys.modules[module], "__path__"):
        del sys.modules[module]  # runpy warns of it, and imports it as the main module
    started.serve_from(directory)
    sys.argv[1:] = request["words"]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


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
    main(Path(sys.argv[1]), int(sys.argv[2]))
