"""Counts the connections of a node, over all its listeners and per address.

``max.connections`` and ``max.connections.per.ip`` hold for the whole node (KIP-402); a listener may have its own bound
too. If brokers have their own listener, nothing locks them out: a broker's connection is admitted beyond the bound, and
the client connection that was silent longest is closed, if there is one. Where the bound falls below the number of
connections, those of clients that were silent longest are closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.runtime.ports.descriptors import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Removable(Protocol):
    """A connection that may have to make way."""

    @property
    def last_active_ms(self) -> float:
        """When it last did something, in milliseconds of the monotonic clock."""
        ...

    def make_way(self, reason: str) -> None:
        """Ends the connection soon."""
        ...


class ConnectionOwner(Protocol):
    """A listener whose connections are counted."""

    @property
    def is_protected(self) -> bool:
        """Whether brokers ask each other here."""
        ...

    def removable(self) -> Iterable[Removable]:
        """Returns the owner's connections that were not asked to make way yet."""
        ...


class AdmissionRates(Protocol):
    """Bounds the rate at which connections are accepted."""

    def arrived(self, listener: str, host: str, now_ms: float) -> tuple[int, int]:
        """Counts a connection that has arrived.

        Returns for how many milliseconds the listener accepts nothing before it serves the connection; and, unless 0,
        after how many milliseconds the connection is closed unserved.
        """
        ...


class ConnectionTally:
    """The connections of a node. Invariant: ``total`` is the sum of ``per_host``, whose counts are positive."""

    __slots__ = ("_owners", "descriptors_max", "per_host", "total")

    def __init__(self, descriptors_max: Callable[[], int] = lambda: UNLIMITED) -> None:
        """Starts without connections; ``descriptors_max`` returns for how many there are file descriptors now."""
        self.descriptors_max = descriptors_max
        self._owners: list[ConnectionOwner] = []
        self.per_host: dict[str, int] = {}
        self.total = 0

    def add_owner(self, owner: ConnectionOwner) -> None:
        """Counts the connections of an owner from now on."""
        self._owners.append(owner)

    def remove_owner(self, owner: ConnectionOwner) -> None:
        """Forgets an owner that has ended; its connections leave by themselves."""
        self._owners.remove(owner)

    def enter(self, host: str) -> None:
        """Counts a new connection from ``host``."""
        self.total += 1
        self.per_host[host] = self.per_host.get(host, 0) + 1

    def leave(self, host: str) -> None:
        """Counts a connection from ``host`` that has ended."""
        self.total -= 1
        self.per_host[host] -= 1
        if self.per_host[host] == 0:
            del self.per_host[host]

    def make_room(self, owner: ConnectionOwner, limit: str) -> bool:
        """Lets the client that was silent longest make way for a connection of ``owner``; returns whether one does.

        Clients make way for a protected listener only. ``limit`` says which limit of the node is reached.
        """
        return owner.is_protected and self._end_silent(1, f"makes way for a broker: {limit}") == 1

    def shed(self, most: int) -> None:
        """Ends connections of clients that were silent longest, so that at most ``most`` connections are left.

        Those of a protected listener stay, as in Kafka.
        """
        left = sum(1 for owner in self._owners for _ in owner.removable())
        if left > most:
            self._end_silent(left - most, f"max.connections={most} is below the number of connections")

    def _end_silent(self, count: int, reason: str) -> int:
        others = [connection for owner in self._owners if not owner.is_protected for connection in owner.removable()]
        chosen = sorted(others, key=lambda connection: connection.last_active_ms)[:count]
        for connection in chosen:
            connection.make_way(reason)
        return len(chosen)
