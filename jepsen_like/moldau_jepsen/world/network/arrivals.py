"""``Arrivals`` of a virtual network: which connections have received something, in the order in which they did."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeGuard

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.ports.environment import Connection


class Watched(Protocol):
    """A virtual connection."""

    on_arrival: Callable[[Watched, bool], None] | None

    @property
    def is_readable(self) -> bool:
        """Whether a receive would not block."""


def _is_virtual(connection: Connection) -> TypeGuard[Watched]:
    return hasattr(connection, "on_arrival")


class VirtualArrivals:
    """The ``Arrivals`` port."""

    __slots__ = ("_owners", "_queued", "_ready", "_waiters")

    def __init__(self) -> None:
        """Watches nothing yet."""
        self._owners: dict[Watched, object] = {}
        self._ready: deque[Watched] = deque()
        self._queued: set[Watched] = set()  # in ``_ready`` because of bytes
        self._waiters = trio.lowlevel.ParkingLot()

    def watch(self, connection: Connection, owner: object) -> bool:
        """See ``Arrivals.watch``."""
        if not _is_virtual(connection):
            return False
        self._owners[connection] = owner
        connection.on_arrival = self._report
        if connection.is_readable:
            self._report(connection, True)
        return True

    def _report(self, connection: Watched, ends: bool) -> None:
        """Notes that bytes have arrived, or that the stream has ended."""
        if ends or connection not in self._queued:
            self._ready.append(connection)
            if not ends:
                self._queued.add(connection)
            self._waiters.unpark_all()

    def forget(self, connection: Connection) -> None:
        """See ``Arrivals.forget``."""
        assert _is_virtual(connection)
        if self._owners.pop(connection, None) is not None:
            connection.on_arrival = None
            self._queued.discard(connection)
            self._ready = deque(known for known in self._ready if known is not connection)

    async def wait(self) -> None:
        """See ``Arrivals.wait``."""
        if self._ready:
            await trio.lowlevel.checkpoint()
        else:
            await self._waiters.park()

    def take(self, count: int) -> list[object]:
        """See ``Arrivals.take``."""
        found: dict[Watched, object] = {}
        again: list[Watched] = []
        while self._ready and len(found) < count:
            connection = self._ready.popleft()
            if connection in found:
                again.append(connection)
            else:
                found[connection] = self._owners[connection]
                self._queued.discard(connection)
        self._ready.extendleft(reversed(again))
        return list(found.values())

    def close(self) -> None:
        """See ``Arrivals.close``."""
        for connection in self._owners:
            connection.on_arrival = None
        self._owners.clear()
        self._ready.clear()
