"""Runs ``moldau`` commands inside the test process.

A command in a process of its own spends most of its processor time on imports; what it prints and its exit code are
the same here.
"""

from __future__ import annotations

import contextlib
import io
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from moldau_cli.main import main

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Finished(NamedTuple):
    """The result of a command, with the names of ``subprocess.CompletedProcess``."""

    returncode: int
    stdout: str
    stderr: str


def run_command(
    *arguments: str, given: str = "", cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> Finished:
    """Runs one command.

    Args:
        *arguments: The words after ``moldau``.
        given: Text on the command's standard input.
        cwd: The directory in which the command runs; None: that of the test.
        environment: Variables that are set while the command runs.
    """
    typed = io.TextIOWrapper(io.BytesIO(given.encode()), encoding="utf-8")
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.StringIO()
    with contextlib.ExitStack() as undo:
        if cwd is not None:
            undo.enter_context(contextlib.chdir(cwd))
        patch = undo.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(sys, "stdin", typed)
        for name, value in (environment or {}).items():
            patch.setenv(name, value)
        undo.enter_context(contextlib.redirect_stdout(out))
        undo.enter_context(contextlib.redirect_stderr(err))
        code = main(list(arguments))
    out.flush()
    assert isinstance(out.buffer, io.BytesIO)
    return Finished(code, out.buffer.getvalue().decode(errors="surrogateescape"), err.getvalue())
