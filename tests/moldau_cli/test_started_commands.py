"""Goal: a command that is a fork of ``support.started`` behaves as one with an interpreter of its own.

Method: both are started with the same words and compared; then exit codes, signals, directory and variables of forks.
``records/test_signals.py`` compares streams and interrupts.
"""

import os
import signal
import socket
import subprocess
import sys

import pytest

from support import started
from support.interop.clients import WAIT_S
from support.started import DEVNULL, PIPE, WORDS, Command, run_started, shell_command

pytestmark = pytest.mark.processes

CONFIG = """process.roles=controller
node.id=1
controller.quorum.voters=1@127.0.0.1:0,7@127.0.0.1:0
listeners=CONTROLLER://127.0.0.1:0
log.dirs={home}/data
"""


@pytest.mark.parametrize(
    ("words", "code"), [(["server", "/missing"], 2), (["topics", "--help"], 0), (["sim", "nothing", "--json"], 2)]
)
def test_a_fork_answers_as_an_interpreter_of_its_own(words, code):
    done = subprocess.run([*WORDS, *words], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert run_started(*words, timeout=WAIT_S) == (done.returncode, done.stdout, done.stderr)
    assert done.returncode == code


@pytest.fixture
def controller(tmp_path):
    """The configuration of a controller that waits for a second voter."""
    (tmp_path / "node.properties").write_text(CONFIG.format(home=tmp_path))
    return tmp_path


def test_directory_and_variables_are_those_that_are_given(controller):
    done = run_started(
        "server",
        "node.properties",
        "--check",
        timeout=WAIT_S,
        env=os.environ | {"MOLDAU_NODE_ID": "7"},
        cwd=controller,
    )
    assert done == (0, "node.properties: node 7 (controller)\n", "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_signals_end_a_server(controller, number, code):
    words = ("server", str(controller / "node.properties"))
    with Command(*words, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE) as server:
        assert os.getpgid(server.pid) == os.getpgid(0)
        assert b"INFO" in server.stderr.readline(), "it runs"
        assert server.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(0)
        server.send_signal(number)
        server.stderr.read()
        assert server.wait(WAIT_S) == code
    assert server.poll() == code
    server.kill()  # no process is signalled that has ended


def test_variables_that_changed_are_not_served_by_a_fork(monkeypatch):
    assert run_started("version", timeout=WAIT_S).returncode == 0
    refused = run_started("version", timeout=WAIT_S, env=os.environ | {"PYTHONOPTIMIZE": "1"})
    assert refused.returncode == 2
    assert "python -O" in refused.stderr
    monkeypatch.setenv("MOLDAU_OF_THIS_TEST", "1")
    with Command("version", stdout=PIPE) as command:
        assert parent_of(command) == os.getpid()
        assert command.wait(WAIT_S) == 0


def parent_of(command):
    asked = ["ps", "-o", "ppid=", "-p", str(command.pid)]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)


def test_a_command_of_a_shell_has_what_the_shell_gives(controller):
    """Streams, directory and variables; the shell gets its exit code."""
    shell_command(controller)
    environment = os.environ | {"PATH": f"{controller}{os.pathsep}{os.environ['PATH']}", "MOLDAU_NODE_ID": "7"}
    script = "moldau server node.properties --check; echo $?; moldau sim nothing; echo $?; echo x | moldau produce"
    done = subprocess.run(["bash", "-c", script], cwd=controller, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == "node.properties: node 7 (controller)\n0\n2\n"
    first, second = done.stderr.splitlines()
    assert "nothing" in first
    assert "topic" in second.lower()


def test_a_shell_ends_a_server_as_usual(controller):
    """The process that the shell knows stands for the server; a signal that ended it alone would leave the server."""
    shell_command(controller)
    environment = os.environ | {"PATH": f"{controller}{os.pathsep}{os.environ['PATH']}"}
    script = """moldau server node.properties 2> log & server=$!
until grep -q INFO log; do sleep 0.05; done
kill $server && wait $server; echo $?"""
    done = subprocess.run(["bash", "-c", script], cwd=controller, env=environment, capture_output=True, timeout=WAIT_S)
    assert done.stdout == b"0\n"


@pytest.mark.parametrize("sent", [b"", b"\x00", b"\x00\x00\x00\x09{"])
def test_half_a_request_harms_no_other(sent):
    """The process that asks may be killed at any time."""
    server = started._socket_for(os.environ)
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(server)
        if sent:
            socket.send_fds(asked, [sent], (0, 1, 2))
        asked.shutdown(socket.SHUT_WR)
        assert asked.recv(1) == b""
    assert run_started("version", timeout=WAIT_S).returncode == 0


def test_the_forking_process_ends_with_this_one():
    """Otherwise each run of tests would leave one, and its directory where the run is killed."""
    program = """import os, signal
from support import started
started._socket_for(os.environ)
print((started._home.directory / 'pid').read_text(), started._home.directory, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    pid, directory = done.stdout.split()
    asked = ["ps", "-o", "stat=", "-p", pid]
    for _ in range(600):
        if subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() in ("", "Z"):
            assert not os.path.exists(directory)
            return
        subprocess.run(["sleep", "0.1"], check=True)
    pytest.fail("it still runs")
