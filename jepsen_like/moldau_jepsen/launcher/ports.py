"""Free ports for local listeners.

Ports come from below the range the kernel gives to outgoing connections (32768 and up on Linux), so that a node that
was killed finds its port free when it is restarted.

A port that is free now may be taken before its node listens, or while its node is down: by another process that looks
for free ports in the same way, as two test runs beside each other do. So each process takes its ports from blocks that
are its own. The guard of a block is its first port: bound, never listened on, and held until the process ends.
"""

from __future__ import annotations

import os
import random
import socket
from contextlib import ExitStack

from moldau_jepsen.launcher.spec import HOST, LauncherError, LauncherUsageError

PORT_FIRST = 10_000
PORT_END = 32_000
BLOCK_PORTS = 250
"""Ports of a block, the guard among them: enough for twenty clusters of three brokers and three controllers behind
proxies, one after the other, before a port is given out again; and as many processes as there are blocks (88) find one.
"""
BASE_PORT_USUAL = 9092


class PortBlocks:
    """The blocks of one process, and which of their ports is given out next. A forked child takes blocks of its own."""

    def __init__(self) -> None:
        """Takes no block until a port is asked for."""
        self._owner = os.getpid()
        self._guards: list[int] = []  # descriptors: the end of the process closes them, whatever it is doing
        self._ports: list[int] = []
        self._next = 0

    def release(self) -> None:
        """Gives the blocks back; the next call of ``take`` takes others."""
        for guard in self._guards:
            os.close(guard)
        self._guards, self._ports, self._next = [], [], 0

    def take(self, count: int) -> list[int]:
        """Returns ``count`` free ports, those first that were not given out for the longest time."""
        if self._owner != os.getpid():
            self.release()  # the parent has the guards too, and goes on using what they guard
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
        """Adds a block of which all ports are to be given out next. Raises ``LauncherError`` when there is none."""
        firsts = list(range(PORT_FIRST, PORT_END, BLOCK_PORTS))
        random.SystemRandom().shuffle(firsts)
        for first in firsts:
            guard = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            if _bind(guard, first):
                self._guards.append(guard.detach())
                self._next = len(self._ports)
                self._ports += range(first + 1, first + BLOCK_PORTS)
                return
            guard.close()
        raise LauncherError(f"no free ports between {PORT_FIRST} and {PORT_END} on {HOST}")


def _bind(probe: socket.socket, port: int) -> bool:
    try:
        probe.bind((HOST, port))
    except OSError:
        return False
    return True


_blocks = PortBlocks()


def take_free_ports(count: int) -> list[int]:
    """Returns ``count`` ports that nobody listens on, and that no other process is given by this function.

    They are this process's until it ends. Not for use by several threads at once.
    """
    return _blocks.take(count)


def port_in_use(port: int) -> bool:
    """Whether a listener could not bind ``port`` now (the check a restarting listener makes: SO_REUSEADDR)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return not _bind(probe, port)


def choose_ports(count: int, base_port: int | None) -> list[int]:
    """Ports for ``count`` nodes: from ``base_port`` on, or any free ones.

    Raises ``LauncherUsageError`` when one of the ports that were asked for is taken.
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
    """9092 if it and the ports behind it are free, otherwise None (any free ports)."""
    usual = range(BASE_PORT_USUAL, BASE_PORT_USUAL + count)
    return None if any(port_in_use(port) for port in usual) else BASE_PORT_USUAL
