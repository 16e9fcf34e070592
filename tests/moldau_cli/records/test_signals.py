"""Goal: Ctrl-C ends produce and consume in order. Method: real processes at a broker in this process.

Each test runs with an interpreter of its own, and with a fork of ``support.started``, which must not differ.
"""

import signal
import subprocess
from contextlib import contextmanager

import pytest

from support.client.socket_cluster import cluster
from support.started import PIPE, WORDS, Command

pytestmark = pytest.mark.processes


@pytest.fixture
def broker():
    with cluster() as fake:
        yield fake


def own_interpreter(*words, **streams):
    return subprocess.Popen([*WORDS, *words], **streams)


@pytest.fixture(params=[own_interpreter, Command], ids=["interpreter", "fork"])
def command(request, broker):
    @contextmanager
    def started(*words):
        streams = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE}
        with request.param(*words, "-b", broker.bootstrap, **streams) as process:
            try:
                yield process
            finally:
                process.kill()

    return started


def interrupted(process):
    """Interrupts and returns exit code and errors."""
    process.send_signal(signal.SIGINT)
    rest, errors = process.stdout.read(), process.stderr.read()
    return process.wait(60), rest, errors


@pytest.mark.usefixtures("interruptible")
def test_lines_that_were_typed_are_delivered(broker, command):
    """Standard input stays open, as a terminal's does; the abandoned read does not disturb the exit."""
    (log,) = broker.add_topic("typed")
    with command("produce", "typed", "-f", r"%s\n", "-X", "linger.ms=0", "-c", "3") as process:
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        while len(log.values()) < 2:
            broker_has_waited(process)
        code, _, errors = interrupted(process)
    assert code == 130
    assert b"2 records acknowledged" in errors
    assert b"Traceback" not in errors
    assert b"Fatal" not in errors
    assert log.values() == [b"one", b"two"]


def broker_has_waited(process):
    """Yields to the broker's thread for as long as the command runs."""
    try:
        process.wait(0.05)
    except subprocess.TimeoutExpired:
        return
    raise AssertionError(process.stderr.read())


@pytest.mark.usefixtures("interruptible")
def test_a_consumer_that_follows_ends_quietly(broker, command):
    broker.add_topic("followed")
    with command("produce", "followed") as process:
        process.stdin.write(b"one\n")
        process.stdin.close()
        assert process.wait(60) == 0
    with command("consume", "followed", "--from-beginning") as process:
        assert process.stdout.readline() == b"one\n"
        code, rest, errors = interrupted(process)
    assert (code, rest) == (130, b"")
    assert b"Traceback" not in errors


@pytest.mark.usefixtures("interruptible")
def test_a_live_view_ends_like_other_commands(command, broker):
    """Its last view is whole, and the exit code is that of an interrupted command."""
    broker.add_topic("watched")
    with command("top", "--groups", "0", "--interval", "0.2") as process:
        assert process.stdout.readline()
        code, rest, errors = interrupted(process)
    assert code == 130
    assert b"watched" in rest
    assert b"Traceback" not in errors
