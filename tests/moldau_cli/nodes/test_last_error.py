"""Goal: the error that ends a node is an object of its log where that is JSON, and a text for its user otherwise.

Method: the command around a node that ends at once.
"""

from __future__ import annotations

import errno
import gc
import io
import json
import logging
import signal
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
import trio

from moldau.runtime.config import parse_server_config
from moldau.runtime.ports.real import real_environment
from moldau.runtime.telemetry.node_log import NodeLogHandler
from moldau_broker.server import LogDirectoriesFailedError
from moldau_cli.nodes import server, watchdog

if TYPE_CHECKING:
    from pathlib import Path

FILE = """process.roles=controller
node.id=101
listeners=CONTROLLER://:9093
controller.listener.names=CONTROLLER
controller.quorum.voters=101@localhost:9093
log.dirs={folder}
node.log.format={form}
"""


def ended(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    form: str,
    error: Exception | None,
    *,
    ready: bool = False,
    asked: bool = False,
) -> tuple[int, str, str]:
    """Returns the exit code of a node that ends with ``error``, the path of its file, and its log."""

    class Node:
        def __init__(self, *_: Any) -> None:
            self.ready, self.asked_to_stop = ready, asked

        async def run(self) -> None:
            await trio.lowlevel.checkpoint()
            if error is not None:
                raise error

    log = io.StringIO()

    def start_log(config: Any, *_: Any) -> None:
        handler = NodeLogHandler(log, config.get_str("node.log.format"), repeats_max=0, monotonic_ms=lambda: 0.0)
        monkeypatch.setattr(logging.getLogger(), "handlers", [handler])

    for name, stand_in in (("_Node", Node), ("_start_log", start_log), ("_raise_limits", lambda: None)):
        monkeypatch.setattr(server, name, stand_in)
    monkeypatch.setattr(gc, "set_threshold", lambda *_: None)
    path = folder / "node.properties"
    path.write_text(FILE.format(folder=folder / "data", form=form))
    return server.serve_command([str(path)], real_environment), str(path), log.getvalue()


@pytest.mark.parametrize(
    ("error", "code", "event"), [(OSError("a port is taken"), 2, "start-refused"), (KeyError("x"), 1, "node-failed")]
)
def test_the_last_error_is_an_object_of_a_log_in_json(
    error: Exception,
    code: int,
    event: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """A collector of JSON lines could not read the one line that says why a node is gone."""
    exit_code, path, log = ended(monkeypatch, tmp_path, "json", error)
    line = json.loads(log)
    assert (exit_code, line["level"], line["event"], line["file"]) == (code, "ERROR", event, path)
    assert str(error) in line["reason"]
    assert ("Traceback" in line.get("exception", "")) is (event == "node-failed")
    assert capsys.readouterr().err == ""


def test_the_last_error_is_a_text_otherwise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    exit_code, path, log = ended(monkeypatch, tmp_path, "text", OSError("a port is taken"))
    assert (exit_code, capsys.readouterr().err, log) == (2, f"moldau: {path}: a port is taken\n", "")


TAKEN, LOST = OSError(errno.EADDRINUSE, "in use"), LogDirectoriesFailedError("no directory is left")
DENIED, BROKEN = LogDirectoriesFailedError("all are closed"), LogDirectoriesFailedError("all are broken")
DENIED.__cause__, BROKEN.__cause__ = OSError(errno.EACCES, "denied"), OSError(errno.EIO, "broken")
DEFECT = "node failed"
ENDS: list[tuple[Exception | None, str, str]] = [
    # The end of the node; before it was ready: code and words; afterwards: code and words.
    (TAKEN, "1 in use", f"1 the {DEFECT}: in use"),
    (OSError(errno.EACCES, "denied"), "2 denied", f"1 the {DEFECT}: denied"),
    (ValueError("a damaged file"), "2 a damaged file", f"1 the {DEFECT}: a damaged file"),
    (KeyError("x"), f"1 the {DEFECT}: KeyError 'x'", f"1 the {DEFECT}: KeyError 'x'"),
    (LOST, f"1 {LOST}", f"1 the {DEFECT}: {LOST}"),  # while the broker waited for controllers; or later
    (DENIED, f"2 {DENIED}", f"1 the {DEFECT}: {DENIED}"),
    (BROKEN, f"1 {BROKEN}", f"1 the {DEFECT}: {BROKEN}"),
    (ExceptionGroup("", [TAKEN, KeyError("x")]), f"1 the {DEFECT}: in use; KeyError 'x'", f"1 the {DEFECT}: in use"),
    (ExceptionGroup("", [TAKEN, OSError(errno.EACCES, "denied")]), "1 in use; denied", f"1 the {DEFECT}: in use"),
    (RuntimeError("no role started"), f"1 the {DEFECT}: RuntimeError no role", f"1 the {DEFECT}: RuntimeError no role"),
]


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize(("error", "early", "late"), ENDS)
def test_the_exit_code_says_whether_a_start_would_help(
    error: Exception,
    early: str,
    late: str,
    ready: bool,
    asked: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """2 is a configuration that cannot be used, which systemd does not try again; only a defect shows its traceback."""
    code, path, _ = ended(monkeypatch, tmp_path, "text", error, ready=ready, asked=asked)
    said = capsys.readouterr().err
    if asked and not ready and isinstance(error, RuntimeError):
        assert (code, said) == (0, ""), "stopped while it started"
        return
    wanted, words = (late if ready else early).split(" ", 1)
    assert code == int(wanted)
    assert said.splitlines()[-1].startswith(f"moldau: {path}: {words}")
    assert ("Traceback" in said) == (DEFECT in words and not isinstance(error, LogDirectoriesFailedError))


def test_a_look_at_files_without_a_descriptor_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The node ended with a traceback if the limit left no descriptor for the look at its files of secrets."""
    short = OSError(errno.EMFILE, "Too many open files")
    monkeypatch.setattr(server, "_warn_of_open_files", Mock(side_effect=short))
    code, path, _ = ended(monkeypatch, tmp_path, "text", None)
    assert (code, capsys.readouterr().err) == (1, f"moldau: {path}: Too many open files\n")


@pytest.mark.parametrize(("asked", "code"), [(True, 0), (False, 1)])
def test_a_node_that_ends_unasked_has_failed(
    asked: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert ended(monkeypatch, tmp_path, "text", None, ready=True, asked=asked)[::2] == (code, "")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("nohup", [False, True])
def test_a_closed_terminal_stops_a_node_in_order(nohup: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SIGHUP killed it, and its logs had to be recovered. The kernel and the shell may both send the signal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else (lambda *_: None))
    ends: list[str] = []

    async def roles(self: Any, *_: object) -> None:
        with trio.move_on_after(0.01):
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGHUP)
            try:
                await trio.sleep_forever()
            finally:
                ends.append("in order" if self.asked_to_stop else "not asked")

    monkeypatch.setattr(server._Node, "_run_roles", roles)
    config = parse_server_config(FILE.format(folder=tmp_path, form="text"), "node.properties", {})
    try:
        trio.run(server._Node(real_environment(1), config, None, server._Extras(None, None)).run)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert ends == ["not asked" if nohup else "in order"]


def test_a_node_without_a_guard_is_not_ready(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It was: the shortage that kept the guard from starting then counted as a defect, with a traceback."""

    async def role(*_: object, task_status: trio.TaskStatus[object]) -> None:
        task_status.started(None)
        await trio.sleep_forever()

    monkeypatch.setattr(server._Node, "_run_controller", role)
    monkeypatch.setattr(watchdog, "Guard", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
    config = parse_server_config(FILE.format(folder=tmp_path, form="text"), "node.properties", {})
    node = server._Node(real_environment(1), config, None, server._Extras(None, None))
    with pytest.RaisesGroup(OSError, flatten_subgroups=True):
        trio.run(node.run, strict_exception_groups=True)
    assert not node.ready


@pytest.mark.parametrize("form", ["text", "json"])
def test_misplaced_data_are_reported_in_the_form_of_the_log(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The refusal of a node with the data of several processes, the first thing that it could write to its log."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    place = tmp_path / "data" / "broker.7"
    place.mkdir(parents=True)
    (place / "meta.properties").touch()
    path = tmp_path / "node.properties"
    text = FILE.format(folder=tmp_path / "data", form=form).replace("node.id=101", "node.id=7")
    text = text.replace("process.roles=controller", "process.roles=broker").replace("CONTROLLER://:", "PLAINTEXT://:")
    path.write_text(text)
    level = logging.getLogger().level
    try:
        assert server.serve_command([str(path)], real_environment) == 2
    finally:
        logging.getLogger().setLevel(level)
    (line,) = capsys.readouterr().err.splitlines()
    if form == "json":
        found = json.loads(line)
        assert (found["event"], found["file"]) == ("start-refused", str(path))
        line = f"moldau: {path}: {found['reason']}"
    assert line.startswith(f"moldau: {path}: {tmp_path / 'data'} holds broker.7 of several processes")
