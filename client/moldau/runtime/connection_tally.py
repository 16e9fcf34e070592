"""How many connections a node has, all its listeners together, and from where.

``max.connections`` and ``max.connections.per.ip`` are of the whole node (KIP-402); a listener may have a bound of its
own beside. Where brokers ask each other at a listener of their own, clients at the others cannot shut them out: a
broker's connection is let in beyond the bound, and the connection of a client that has been silent longest makes way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable


class Removable(Protocol):
    """A connection that may have to make way."""

    @property
    def last_active_ms(self) -> float:
        """When it last did something, in milliseconds of the monotonic clock."""
        ...

    def make_way(self) -> None:
        """Ends the connection soon."""
        ...


class Tenant(Protocol):
    """A listener whose connections are counted."""

    @property
    def is_protected(self) -> bool:
        """Whether brokers ask each other here."""
        ...

    def removable(self) -> Iterable[Removable]:
        """Its connections that were not asked to make way yet."""
        ...


class ConnectionTally:
    """The connections of a node. Invariant: ``total`` is the sum of ``per_host``, whose counts are positive."""

    __slots__ = ("_tenants", "per_host", "total")

    def __init__(self) -> None:
        """Nothing is connected."""
        self._tenants: list[Tenant] = []
        self.per_host: dict[str, int] = {}
        self.total = 0

    def add_tenant(self, tenant: Tenant) -> None:
        """Its connections count from now on."""
        self._tenants.append(tenant)

    def remove_tenant(self, tenant: Tenant) -> None:
        """It has ended; its connections leave by themselves."""
        self._tenants.remove(tenant)

    def enter(self, host: str) -> None:
        """A connection from ``host`` has begun."""
        self.total += 1
        self.per_host[host] = self.per_host.get(host, 0) + 1

    def leave(self, host: str) -> None:
        """A connection from ``host`` has ended."""
        self.total -= 1
        self.per_host[host] -= 1
        if self.per_host[host] == 0:
            del self.per_host[host]

    def make_room(self, tenant: Tenant) -> bool:
        """Whether ``tenant`` may have a connection although the node has as many as it may; then another makes way.

        Only a protected listener beside others may, while these have connections.
        """
        if not tenant.is_protected:
            return False
        others = [connection for other in self._tenants if not other.is_protected for connection in other.removable()]
        if not others:
            return False
        min(others, key=lambda connection: connection.last_active_ms).make_way()
        return True
