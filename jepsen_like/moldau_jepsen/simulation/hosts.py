"""The hosts of a virtual network: what a machine's kernel knows, and when its process is to die."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_jepsen.simulation.connection import VirtualConnection
    from moldau_jepsen.simulation.network import VirtualListener

EPHEMERAL_PORTS = range(32768, 60999)


def untold() -> None:
    """Nobody wants to know."""


class Kernel:
    """What runs on a host from one loss of power to the next."""

    __slots__ = ("off_seconds",)

    def __init__(self) -> None:
        """Runs."""
        self.off_seconds = inf  # virtual time of the loss of power


class Host:
    """A machine with a name: what its kernel knows."""

    __slots__ = ("_next_port", "_on_send_point", "_sends_left", "connections", "kernel", "listeners", "name", "up")

    def __init__(self, name: str) -> None:
        """Up, with nothing running."""
        self.name = name
        self.up = True  # the machine has power
        self.kernel = Kernel()  # the last one, while it has not
        self.listeners: dict[int, VirtualListener] = {}
        self.connections: dict[tuple[int, int], VirtualConnection] = {}  # by number and local port
        self._next_port = 0
        self._sends_left = 0
        self._on_send_point: Callable[[], None] = untold

    def crash_after_sends(self, count: int, crash: Callable[[], None]) -> None:
        """Calls ``crash()`` just after the ``count``-th time from now that the process sends something (0: never)."""
        self._sends_left, self._on_send_point = count, crash

    def forget_crash_point(self) -> None:
        """Undoes ``crash_after_sends`` if the send has not come."""
        self._sends_left, self._on_send_point = 0, untold

    def count_send(self) -> None:
        """The process has sent something."""
        if self._sends_left:
            self._sends_left -= 1
            if not self._sends_left:
                self._on_send_point()

    def take_port(self) -> int:
        """Returns an ephemeral port."""
        self._next_port = (self._next_port + 1) % len(EPHEMERAL_PORTS)
        return EPHEMERAL_PORTS[self._next_port]

    def remember(self, connection: VirtualConnection) -> None:
        """A connection of this host was established."""
        self.connections[connection.number, connection.local_address[1]] = connection

    def forget(self, connection: VirtualConnection) -> None:
        """A connection of this host has ended."""
        self.connections.pop((connection.number, connection.local_address[1]), None)
