"""Free ports for local listeners.

Ports come from below the range that the kernel gives to outgoing connections (32768 and up on Linux), so that the port
of a killed node is still free when the node is restarted.

Another process that looks for free ports in the same way, such as a second test run, may take a port before its node
listens or while its node is down. So each process reserves whole blocks of ports. The first port of a block guards it:
the process binds this port, never listens on it, and holds it until the process ends.
"""

from __future__ import annotations

import errno
import os
import random
import socket
from contextlib import ExitStack

from moldau_jepsen.launcher.spec import HOST, LauncherError, LauncherUsageError

PORT_FIRST = 10_000
PORT_END = 32_000
BLOCK_PORTS = 250
"""Number of ports in a block, the guard included.

It is enough for twenty clusters in turn (three brokers and three controllers behind proxies) before a port is used
again, and it leaves 88 blocks for as many processes.
"""
BASE_PORT_USUAL = 9092


class PortBlocks:
    """The blocks of one process and the order in which their ports are used. A forked child takes its own blocks."""

    def __init__(self) -> None:
        """Starts without a block; ``take`` reserves blocks as needed."""
        self._owner = os.getpid()
        self._guards: list[int] = []  # Descriptors, not sockets: only the end of the process closes them.
        self._ports: list[int] = []
        self._next = 0

    def release(self) -> None:
        """Releases the blocks; the next call of ``take`` reserves others."""
        for guard in self._guards:
            os.close(guard)
        self._guards, self._ports, self._next = [], [], 0

    def take(self, count: int) -> list[int]:
        """Returns ``count`` free ports, those first that were not given out for the longest time."""
        if self._owner != os.getpid():
            self.release()  # The parent still uses the blocks that the inherited guards stand for.
            self._owner = os.getpid()
        found: list[int] = []
        with ExitStack() as held:
            looked_at = 0
            while len(found) < count:
                if looked_at == len(self._ports):
                    self._take_block()
                    continue
                port = self._ports[self._next]
                looked_at += 1
                self._next = (self._next + 1) % len(self._ports)
                probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                if _bind(probe, port):
                    found.append(port)
        return found

    def _take_block(self) -> None:
        """Adds a block, whose ports are used next.

        Raises:
            LauncherError: All blocks are taken.
        """
        firsts = list(range(PORT_FIRST, PORT_END, BLOCK_PORTS))
        random.SystemRandom().shuffle(firsts)
        for first in firsts:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as guard:
                if _bind(guard, first):
                    self._guards.append(guard.detach())
                    self._next = len(self._ports)
                    self._ports += range(first + 1, first + BLOCK_PORTS)
                    return
        raise LauncherError(f"no free ports between {PORT_FIRST} and {PORT_END} on {HOST}")


def _bind(probe: socket.socket, port: int) -> bool:
    """Binds ``port``; returns whether it could.

    Raises:
        LauncherError: the machine lacks the address, so no port of it can be bound.
    """
    try:
        probe.bind((HOST, port))
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise LauncherError(
                f"this machine has no address {HOST}, which local clusters use (ip addr show)"
            ) from error
        return False
    return True


_blocks = PortBlocks()


def take_free_ports(count: int) -> list[int]:
    """Returns ``count`` ports without listeners, which this function gives to no other process.

    They stay reserved until this process ends. It is not for use by several threads at once.
    """
    return _blocks.take(count)


def port_in_use(port: int) -> bool:
    """Returns whether a listener with SO_REUSEADDR would fail to bind ``port`` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return not _bind(probe, port)


def choose_ports(count: int, base_port: int | None) -> list[int]:
    """Returns ports for ``count`` nodes: ``base_port`` and following, or any free ones if it is None.

    Raises:
        LauncherUsageError: A port from ``base_port`` on is in use.
    """
    if base_port is None:
        return take_free_ports(count)
    ports = list(range(base_port, base_port + count))
    taken = [port for port in ports if port_in_use(port)]
    if taken:
        names = ", ".join(str(port) for port in taken)
        raise LauncherUsageError(f"port {names} of {HOST} is in use; give another --base-port")
    return ports


def usual_base_port(count: int) -> int | None:
    """Returns 9092 if it and the ports behind it are free, otherwise None (any free ports)."""
    usual = range(BASE_PORT_USUAL, BASE_PORT_USUAL + count)
    return None if any(port_in_use(port) for port in usual) else BASE_PORT_USUAL
