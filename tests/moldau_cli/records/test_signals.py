"""Goal: Ctrl-C ends produce and consume in order. Method: real processes at one broker in this process."""

import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from support.client.socket_cluster import cluster

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def broker():
    with cluster() as fake:
        yield fake


@contextmanager
def command(broker, *arguments):
    words = [sys.executable, "-m", "moldau_cli", *arguments, "-b", broker.bootstrap]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def interrupted(process):
    """Interrupts and returns exit code and errors."""
    process.send_signal(signal.SIGINT)
    rest, errors = process.stdout.read(), process.stderr.read()
    return process.wait(60), rest, errors


@pytest.mark.usefixtures("interruptible")
def test_lines_that_were_typed_are_delivered(broker):
    """Standard input stays open, as a terminal's does; the abandoned read does not disturb the exit."""
    (log,) = broker.add_topic("typed")
    with command(broker, "produce", "typed", "-f", r"%s\n", "-X", "linger.ms=0", "-c", "3") as process:
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
def test_a_consumer_that_follows_ends_quietly(broker):
    broker.add_topic("followed")
    with command(broker, "produce", "followed") as process:
        process.communicate(b"one\n", timeout=60)
    with command(broker, "consume", "followed", "--from-beginning") as process:
        assert process.stdout.readline() == b"one\n"
        code, rest, errors = interrupted(process)
    assert (code, rest) == (130, b"")
    assert b"Traceback" not in errors


@pytest.mark.usefixtures("interruptible")
def test_a_live_view_ends_like_other_commands(broker):
    """Its last view is whole, and the exit code is that of an interrupted command."""
    broker.add_topic("watched")
    with command(broker, "top", "--groups", "0", "--interval", "0.2") as process:
        assert process.stdout.readline()
        code, rest, errors = interrupted(process)
    assert code == 130
    assert b"watched" in rest
    assert b"Traceback" not in errors
