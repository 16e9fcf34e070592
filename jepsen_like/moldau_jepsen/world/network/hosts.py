"""Defines the hosts of a virtual network: the state of a machine's kernel, and crash points of its process."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_jepsen.world.network.connection import VirtualConnection
    from moldau_jepsen.world.network.network import VirtualListener

EPHEMERAL_PORTS = range(32768, 60999)


def ignored() -> None:
    """Does nothing; the default of callbacks."""


class Kernel:
    """The kernel of a host between two losses of power."""

    __slots__ = ("off_seconds",)

    def __init__(self) -> None:
        """Starts the kernel."""
        self.off_seconds = inf  # virtual time of the loss of power


class Host:
    """A named machine and the state of its kernel."""

    __slots__ = ("_next_port", "_on_send_point", "_sends_left", "connections", "kernel", "listeners", "name", "up")

    def __init__(self, name: str) -> None:
        """Makes a host with power and without a process."""
        self.name = name
        self.up = True  # the machine has power
        self.kernel = Kernel()  # the last one while the machine has no power
        self.listeners: dict[int, VirtualListener] = {}
        self.connections: dict[tuple[int, int], VirtualConnection] = {}  # by number and local port
        self._next_port = 0
        self._sends_left = 0
        self._on_send_point: Callable[[], None] = ignored

    def crash_after_sends(self, count: int, crash: Callable[[], None]) -> None:
        """Calls ``crash()`` just after the ``count``-th time from now that the process sends something (0: never)."""
        self._sends_left, self._on_send_point = count, crash

    def forget_crash_point(self) -> None:
        """Cancels ``crash_after_sends`` unless the crash has happened."""
        self._sends_left, self._on_send_point = 0, ignored

    def count_send(self) -> None:
        """Counts a send of the process."""
        if self._sends_left:
            self._sends_left -= 1
            if not self._sends_left:
                self._on_send_point()

    def take_port(self) -> int:
        """Returns an ephemeral port."""
        self._next_port = (self._next_port + 1) % len(EPHEMERAL_PORTS)
        return EPHEMERAL_PORTS[self._next_port]

    def remember(self, connection: VirtualConnection) -> None:
        """Adds an established connection of this host."""
        self.connections[connection.number, connection.local_address[1]] = connection

    def forget(self, connection: VirtualConnection) -> None:
        """Removes a connection of this host that has ended."""
        self.connections.pop((connection.number, connection.local_address[1]), None)
