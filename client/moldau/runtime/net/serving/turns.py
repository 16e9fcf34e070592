"""Turns: one task serves all connections of a listener that have received something.

A turn has three parts, each for all its connections before the next part begins: receive and handle, flush, send. So
the appends of many connections to one partition become one write, as those of one connection do, and a request costs
no switch of tasks and no registration with the event loop. What takes long is left to the readers of the connections.
Requests of other connections may wait for what a turn appends: their answers leave at its end, without their writers.

A turn is bounded in connections, requests and bytes, so that the first of them does not wait long for the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

import trio

if TYPE_CHECKING:
    from moldau.runtime.net.serving.answer_queue import AnswerQueue
    from moldau.runtime.net.serving.parked_reader import ParkedReader
    from moldau.runtime.ports.environment import Arrivals, Clock

CONNECTIONS_MAX = 32
"""Connections of one turn."""

REQUESTS_MAX = 64
"""Requests after which a turn receives no more."""

BYTES_MAX = 512 * 1024
"""Received bytes after which a turn receives no more."""


ENDED_MAX = 1024
"""Queues whose answers one turn sends at its end; the writers of others send them."""


class EndedWaits:
    """The queues whose first answer has stopped to wait in the present turn. Invariant: empty outside of a turn."""

    __slots__ = ("_queues", "_runs")

    def __init__(self) -> None:
        self._runs = False
        self._queues: list[AnswerQueue] = []

    def begin(self) -> None:
        """Begins a turn."""
        self._runs = True

    def note(self, queue: AnswerQueue) -> bool:
        """Lets the present turn send what is ready in ``queue``; returns False if the writer must do it."""
        if not self._runs or len(self._queues) >= ENDED_MAX:
            return False
        self._queues.append(queue)
        return True

    def end(self) -> None:
        """Sends the answers whose waits the turn has ended."""
        self._runs = False
        queues = self._queues
        if queues:
            self._queues = []
            for queue in queues:
                queue.leave_ready()


class TurnServer(Protocol):
    """The part of a ``Server`` that turns use."""

    arrivals: Arrivals | None
    requests: int
    ended_waits: EndedWaits

    @property
    def clock(self) -> Clock:
        """The clock of the node."""


async def serve_arrivals(server: TurnServer) -> None:
    """Serves the connections of a server until cancelled, if their arrivals are reported."""
    arrivals = server.arrivals
    if arrivals is None:
        return
    while True:
        await arrivals.wait()
        waiting = cast("list[ParkedReader]", arrivals.take(CONNECTIONS_MAX))
        while True:
            waiting = waiting[take_turn(server, waiting) :]
            if not waiting:
                break
            await trio.lowlevel.checkpoint()


def take_turn(server: TurnServer, waiting: list[ParkedReader]) -> int:
    """Serves the first of the connections, as many as one turn may; returns their number."""
    now_ms = server.clock.monotonic_ms()
    requests_end, bytes_left = server.requests + REQUESTS_MAX, BYTES_MAX
    served: list[ParkedReader] = []
    count = 0
    server.ended_waits.begin()
    for reader in waiting:
        count += 1
        received = reader.receive(now_ms)
        if received >= 0:
            served.append(reader)
            bytes_left -= received
            if bytes_left <= 0 or server.requests >= requests_end:
                break
    for reader in served:
        reader.flush()
    for reader in served:
        reader.answer()
    server.ended_waits.end()
    return count
