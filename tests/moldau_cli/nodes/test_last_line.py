"""Goal: the line about a node that its guard killed is a line of the node's log, in either format.

Method: the guard's line beside the one that the node's own handler writes for the same event and time.
"""

from __future__ import annotations

import io
import logging
import os
import select
import signal
from errno import ENOSPC
from threading import Event
from unittest.mock import Mock

import pytest

from moldau.runtime.telemetry.log import EventLine
from moldau.runtime.telemetry.node_log import NodeLogHandler
from moldau_cli.nodes import guard
from moldau_cli.nodes.guard import last_line
from moldau_cli.nodes.watchdog import _form_of_log

NOW_S = 1_795_997_909.625


def _handler(stream: io.StringIO, log_format: str, process: int | None) -> NodeLogHandler:
    return NodeLogHandler(stream, log_format, repeats_max=0, monotonic_ms=lambda: 0.0, process=process)


@pytest.mark.parametrize("process", [None, 12])
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_guard_writes_a_line_of_the_log(
    log_format: str, process: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a text without a time, also among JSON lines, where a collector could not read it."""
    stream = io.StringIO()
    handler = _handler(stream, log_format, process)
    fields: dict[str, object] = {"pid": 7, "node.watchdog.ms": 2000, "reason": "the event loop has not turned"}
    line = EventLine("watchdog-killed", fields)
    record = logging.LogRecord("moldau.watchdog", logging.CRITICAL, "", 0, "%s", (line,), exc_info=None)
    record.created, record.msecs = NOW_S, NOW_S % 1 * 1000
    handler.emit(record)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    written_by, shared_by = _form_of_log()
    assert last_line(NOW_S, 7, 2000, written_by, shared_by) + "\n" == stream.getvalue()


def test_a_log_of_another_kind_has_no_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    assert _form_of_log() == []


def test_a_log_that_takes_no_line_saves_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk, or one that hangs, the line about the kill cannot be written; the node is killed all the same."""
    killed: list[tuple[int, int]] = []
    disk = Event()
    monkeypatch.setattr(guard, "LINE_S", 0.0)
    monkeypatch.setattr(select, "select", lambda *_: ([], [], []))
    monkeypatch.setattr(os, "kill", lambda *of: killed.append(of))
    for write in (Mock(side_effect=OSError(ENOSPC, "no space left on device")), lambda *_: disk.wait()):
        monkeypatch.setattr(os, "write", write)
        assert guard.main(7, 100) == 1
    disk.set()
    assert killed == [(7, signal.SIGKILL)] * 2
