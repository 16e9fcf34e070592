"""Goal: the error that ends a node is an object of its log where that is JSON, and a text for its user otherwise.

Method: the command around a node that ends at once.
"""

from __future__ import annotations

import gc
import io
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau.runtime.ports.real import real_environment
from moldau.runtime.telemetry.node_log import NodeLogHandler
from moldau_cli.nodes import server

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


def ended(monkeypatch: pytest.MonkeyPatch, folder: Path, form: str, error: Exception) -> tuple[int, str, str]:
    """Returns the exit code of a node that ends with ``error``, the path of its file, and its log."""

    class Node:
        asked_to_stop = ready = False

        def __init__(self, *_: Any) -> None:
            pass

        async def run(self) -> None:
            await trio.lowlevel.checkpoint()
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
