"""Goal: a command does its work, and ends with its own exit code, although its notes and errors cannot be written.

Method: commands with a full disk, or a pipe without a reader, as stderr; streams in memory for what they cannot show.
"""

import io
import os
import subprocess
import sys

import pytest

from moldau_cli import main as entry
from moldau_cli import output


class Refusing(io.RawIOBase):
    """A stream that takes the first bytes and then refuses with an error, or as a full pipe that does not block."""

    def __init__(self, room, refusal):
        self.content = b""
        self._room = room
        self._refusal = refusal

    def writable(self):
        return True

    def write(self, data):
        taken = bytes(data)[: self._room - len(self.content)]
        if taken:
            self.content += taken
            return len(taken)
        if self._refusal is None:
            return None
        raise self._refusal


@pytest.fixture(params=["full disk", "no reader"])
def lost_stderr(request):
    """A file for stderr that takes nothing."""
    if request.param == "full disk":
        with open("/dev/full", "wb") as full:
            yield full
        return
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        yield pipe


@pytest.mark.parametrize(
    ("words", "code"), [(["version"], 0), (["nonsense"], 2), (["topics", "list", "-b", "x", "--json"], 2)]
)
def test_a_lost_error_keeps_its_exit_code(words, code, lost_stderr):
    """Each error ended with exit code 1, as if the usage had been right."""
    command = [sys.executable, "-m", "moldau_cli", *words]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=lost_stderr, timeout=120, check=False)
    assert run.returncode == code
    assert bool(run.stdout) == (code == 0)


@pytest.mark.parametrize("refusal", [OSError(28, "No space left"), BrokenPipeError(32, "x"), None], ids=repr)
@pytest.mark.parametrize("is_buffered", [True, False])
def test_a_lost_note_is_no_failure(refusal, is_buffered, monkeypatch):
    """``produce`` failed after all its records were acknowledged, and a script would have sent them again."""
    raw = Refusing(3, refusal)
    stderr = io.TextIOWrapper(io.BufferedWriter(raw) if is_buffered else raw, "utf-8", write_through=not is_buffered)
    monkeypatch.setattr(sys, "stderr", stderr)
    entry._drop_lost_notes()
    output.note("3 records acknowledged")
    output.note("nothing was changed")
    sys.stderr.flush()
    assert raw.content == b"3 r"
