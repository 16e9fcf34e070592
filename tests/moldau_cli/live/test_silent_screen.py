"""Goal: ``moldau top`` in a terminal ends at silent servers as all commands do. Method: a socket without answers."""

import io
import socket

import pytest

from moldau_cli import quorum_watch
from moldau_cli.commands.watching import top
from moldau_cli.main import main


@pytest.fixture
def silent():
    """The address of a server that accepts connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_top_in_a_terminal_ends_at_silent_servers(silent, monkeypatch, capsys):
    """It waited a minute with an empty screen."""
    written = io.StringIO()
    monkeypatch.setattr(written, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout", written)
    for name, seconds in (("FIRST_LOOK_S", 0.1), ("SILENCE_S", 0.2), ("ANSWER_S", 1.0)):
        monkeypatch.setattr(quorum_watch, name, seconds)
    assert main(["top", "-b", silent]) == 1
    note, error = capsys.readouterr().err.splitlines()
    assert quorum_watch.SILENT in note
    assert error.startswith(f"moldau: no broker of {silent} answers within 1 s")
    assert written.getvalue() == "", "the screen begins with the first view"


@pytest.mark.parametrize(("term", "fills"), [("xterm", True), ("", True), ("dumb", False), ("unknown", False)])
def test_a_terminal_without_a_screen_gets_text(term, fills, monkeypatch):
    """In a shell of an editor (TERM=dumb) ``moldau top`` showed nothing."""
    written = io.StringIO()
    monkeypatch.setattr(written, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout", written)
    monkeypatch.setenv("TERM", term)
    assert top._is_screen() is fills
