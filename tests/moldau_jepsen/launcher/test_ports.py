"""Goal: processes that take free ports concurrently get different ones, also while no process listens on them.

Method: this process, others that hold what they took, and a forked child.
"""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, closing

import pytest

from moldau_jepsen.launcher import ports
from moldau_jepsen.launcher.ports import (
    BLOCK_PORTS,
    PortBlocks,
    choose_ports,
    port_in_use,
    take_free_ports,
    usual_base_port,
)
from moldau_jepsen.launcher.spec import HOST, LauncherError, LauncherUsageError

TAKER = """
import sys
from moldau_jepsen.launcher.ports import take_free_ports
print(*take_free_ports(300), flush=True)
sys.stdin.read()
"""

FORKER = """
import os
from moldau_jepsen.launcher.ports import BLOCK_PORTS, take_free_ports
print(*take_free_ports(10), flush=True)
if os.fork() == 0:
    print(*take_free_ports(BLOCK_PORTS - 1), flush=True)
    os._exit(0)
os.wait()
print(*take_free_ports(10))
"""


def environment():
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_ports_are_free_and_a_taken_one_is_named():
    assert not any(port_in_use(port) for port in take_free_ports(6))
    with closing(socket.create_server((HOST, 0))) as server:
        port = server.getsockname()[1]
        with pytest.raises(LauncherUsageError, match=f"port {port} of 127.0.0.1 is in use"):
            choose_ports(1, port)


def test_processes_take_different_ports_even_without_listeners():
    """Processes take different ports, even before a node listens on them."""
    with ExitStack() as running:
        takers = [
            running.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", TAKER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment(),
                )
            )
            for _ in range(3)
        ]
        taken = [take_free_ports(300)]
        for taker in takers:
            assert taker.stdout is not None
            taken.append([int(word) for word in taker.stdout.readline().split()])
        for taker in takers:
            assert taker.stdin is not None
            taker.stdin.close()
    assert [len(set(found)) for found in taken] == [300] * 4
    assert len(set().union(*taken)) == 1200


@pytest.fixture
def blocks():
    made = PortBlocks()
    yield made
    made.release()


def test_a_forked_child_leaves_its_parents_ports_alone():
    done = subprocess.run(
        [sys.executable, "-c", FORKER], capture_output=True, text=True, timeout=120, check=True, env=environment()
    )
    first, child, second = (set(line.split()) for line in done.stdout.splitlines())
    assert [len(first), len(child), len(second)] == [10, BLOCK_PORTS - 1, 10]
    assert not child & (first | second)


def test_ports_are_reused_late_and_ports_in_use_are_skipped(blocks):
    """A port is reused as late as possible, and a port in use is skipped."""
    first = blocks.take(5)
    with closing(socket.create_server((HOST, first[2]))):
        rest = [blocks.take(1)[0] for _ in range(BLOCK_PORTS - 1 - 5)]
        assert not set(rest) & set(first)
        assert blocks.take(4) == [port for port in first if port != first[2]]


def test_blocks_that_are_given_back_can_be_taken_again(blocks, monkeypatch):
    (port,) = take_free_ports(1)
    monkeypatch.setattr(ports, "PORT_FIRST", port)
    monkeypatch.setattr(ports, "PORT_END", port + 1)
    assert blocks.take(1) == [port + 1]
    with pytest.raises(LauncherError, match="no free ports between"):
        PortBlocks().take(1)
    blocks.release()
    assert blocks.take(1) == [port + 1]


@pytest.mark.parametrize(
    "take", [lambda: PortBlocks().take(1), lambda: choose_ports(1, 9092), lambda: usual_base_port(1)]
)
def test_a_machine_without_the_address_is_named(take, monkeypatch):
    """A machine with IPv6 only has no 127.0.0.1; the launcher said that no port was free."""
    monkeypatch.setattr(ports, "HOST", "192.0.2.1")  # reserved for documentation (RFC 5737)
    with pytest.raises(LauncherError, match="this machine has no address"):
        take()


def test_the_usual_ports_are_used_while_they_are_free(monkeypatch):
    (port,) = take_free_ports(1)
    monkeypatch.setattr(ports, "BASE_PORT_USUAL", port)
    assert usual_base_port(1) == port
    with closing(socket.create_server((HOST, port))):
        assert usual_base_port(1) is None
