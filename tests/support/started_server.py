"""The process that forks others for ``support.started``; its standard input is the socket that takes the requests.

Its words are the directory of that socket, and the descriptor of a pipe: it ends when that closes. ``support.forking``
describes the form of a request, and ``support.started_request`` its content.
"""

from __future__ import annotations

import importlib
import io
import os
import runpy
import select
import shutil
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from _pytest.config import default_plugins

from moldau.protocol.api import APIS
from moldau.protocol.codec import codec_for
from moldau.protocol.schema import Struct
from moldau_cli.application import COMMANDS
from moldau_cli.nodes import several
from support import started
from support.forking import serve

IMPORTED = (
    *several.IMPORTED,
    *(f"moldau_cli.commands.{entry.module}" for entry in COMMANDS.values()),
    "encodings.ascii",
    "encodings.idna",
    "moldau.admin.admin",
    "moldau.blocking",
    "moldau.consumer.consumer",
    "moldau.producer.producer",
    "moldau_cli.client.running",
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
    if lives not in select.select([requests.fileno(), lives], [], [])[0]:
        _prepare()
        serve(requests, lives, partial(_become, directory))
    shutil.rmtree(directory, ignore_errors=True)  # it is still there if the processes that this one served were killed
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


def _become(directory: Path, request: dict[str, Any]) -> NoReturn:
    """Runs a module in this new process, as if an interpreter of its own did, and ends it."""
    if request["has_session"]:
        os.setsid()
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
