"""``Arrivals`` of the operating system: one epoll instance that tells of edges, inside the one of the event loop.

The event loop asks for a registration with each wait; here a connection is registered once for its life, and one wait
serves all connections that have received something. Linux only: elsewhere connections wait one by one.
"""

from __future__ import annotations

import contextlib
import select
import sys
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.ports.environment import Arrivals, Connection


if sys.platform == "linux":
    _DATA = select.EPOLLIN
    _EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET

    class RealArrivals:
        """Arrivals on sockets.

        The kernel merges the end of the stream with bytes before it into one event, so such an event is reported twice.
        """

        __slots__ = ("_descriptor_of", "_ended", "_epoll", "_owners", "_poll")

        def __init__(self, descriptor_of: Callable[[Connection], int]) -> None:
            """Watches nothing yet. ``descriptor_of`` returns -1 for a connection that is no open socket."""
            self._descriptor_of = descriptor_of
            self._epoll = select.epoll()
            self._poll: Callable[[float, int], list[tuple[int, int]]] = self._epoll.poll
            self._owners: dict[int, object] = {}  # by descriptor
            self._ended: list[int] = []  # descriptors to report once more

        def watch(self, connection: Connection, owner: object) -> bool:
            """See ``Arrivals.watch``."""
            descriptor = self._descriptor_of(connection)
            if descriptor < 0:
                return False
            self._epoll.register(descriptor, _EVENTS)
            self._owners[descriptor] = owner
            return True

        def forget(self, connection: Connection) -> None:
            """See ``Arrivals.forget``."""
            descriptor = self._descriptor_of(connection)
            if self._owners.pop(descriptor, None) is not None:
                self._epoll.unregister(descriptor)
                with contextlib.suppress(ValueError):
                    self._ended.remove(descriptor)

        async def wait(self) -> None:
            """See ``Arrivals.wait``."""
            if self._ended:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(self._epoll.fileno())

        def take(self, count: int) -> list[object]:
            """See ``Arrivals.take``."""
            owners = self._owners
            ended, self._ended = self._ended[:count], self._ended[count:]
            found = [owners[descriptor] for descriptor in ended]
            if len(found) == count:
                return found
            for descriptor, events in self._poll(0, count - len(found)):
                owner = owners.get(descriptor)
                if owner is None or descriptor in ended:
                    continue
                found.append(owner)
                if events != _DATA:
                    self._ended.append(descriptor)
            return found

        def close(self) -> None:
            """See ``Arrivals.close``."""
            self._owners.clear()
            self._epoll.close()

    def real_arrivals(descriptor_of: Callable[[Connection], int]) -> Arrivals | None:
        """Returns a new watch."""
        return RealArrivals(descriptor_of)

else:

    def real_arrivals(descriptor_of: Callable[[Connection], int]) -> Arrivals | None:
        """Returns None: this system has no epoll."""
        del descriptor_of
        return None
