"""Goal: a command whose security settings do not fit the listener names the setting in one line, with exit code 2."""

import errno
import socket
import subprocess
import sys

import pytest

from moldau.runtime.ports.real import real_environment
from moldau.runtime.tls.context import ListenerTls
from moldau_cli.client.reachable import _plain
from moldau_cli.main import main
from support.certificates import authority
from support.client.socket_cluster import cluster

COMMANDS = [["consume", "t", "--exit"], ["produce", "t"], ["topics", "list"], ["groups", "list"]]


def test_nothing_but_that_line_is_written():
    """The output contains neither warnings of the client's log nor a traceback."""
    secure = ListenerTls(authority().settings("127.0.0.1"), real_environment().disk)
    with cluster(secure) as fake:
        command = [sys.executable, "-m", "moldau_cli", "topics", "list", "-b", fake.bootstrap]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 2
    assert run.stderr.startswith("moldau: INVALID_CONFIG: no broker of 127.0.0.1:")
    assert run.stderr.count("\n") == 1


def test_a_name_that_cannot_be_resolved_is_reported_in_words():
    """The numbers of the resolver are no ``errno``: -2 was called an unknown error."""
    wrapped = OSError("all attempts to connect failed")
    wrapped.__cause__ = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert _plain(wrapped) == "Name or service not known"
    assert _plain(ConnectionRefusedError(errno.ECONNREFUSED, "x")) == "Connection refused"


def fails(arguments, text, capsys):
    assert main(arguments) == 2
    reported = capsys.readouterr()
    assert reported.out == ""
    assert reported.err.count("\n") == 1
    assert text in reported.err


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_without_tls_at_a_tls_listener(command, capsys):
    secure = ListenerTls(authority().settings("127.0.0.1"), real_environment().disk)
    with cluster(secure) as fake:
        fails([*command, "-b", fake.bootstrap], "this listener speaks TLS: set security.protocol=SSL", capsys)


@pytest.mark.parametrize("command", COMMANDS[:2], ids=" ".join)
def test_settings_of_a_command_reach_its_first_question(command, capsys):
    """The check that the topic exists once ignored these settings."""
    with cluster() as fake:
        fake.add_topic("t")
        arguments = [*command, "-b", fake.bootstrap, "-X", "security.protocol=SSL"]
        fails(arguments, "this listener does not speak TLS: set security.protocol=PLAINTEXT", capsys)
