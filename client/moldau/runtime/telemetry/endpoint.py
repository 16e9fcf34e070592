"""Serves a node's metrics and health over HTTP.

h11 knows HTTP; bytes pass through the ``Network`` port, so the endpoint runs in the simulation as it does in
production. It answers GET and HEAD, one request for each connection, in the event loop: an endpoint that answers has an
event loop that turns. Everything is bounded: the number of connections, the bytes of a request, and its time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import h11
import trio

from moldau.values import join_address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.runtime.ports.environment import Connection, Environment, Listener

CONNECTIONS_MAX: Final = 32
"""Connections at a time; one more is closed at once. A scrape takes milliseconds, and few programs scrape a node."""
REQUEST_BYTES_MAX: Final = 32 * 1024
REQUEST_MS: Final = 10_000.0
"""From accepting the connection to its end."""
PROMETHEUS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
TEXT_TYPE: Final = "text/plain; charset=utf-8"
_ABSOLUTE: Final = re.compile(rb"https?://[^/?]*", re.IGNORECASE)
"""The beginning of a target in absolute form, as proxies send it; a server must accept it (RFC 9112, 3.2.2)."""
_REASONS: Final = {200: b"OK", 404: b"Not Found", 405: b"Method Not Allowed", 503: b"Service Unavailable"}
_NO_REASON: Final = b"Bad Request"


@dataclass(frozen=True, slots=True)
class Page:
    """An answer. ``text`` ends with a line end."""

    status: int
    text: str
    content_type: str = TEXT_TYPE


async def serve_pages(
    environment: Environment,
    host: str,
    port: int,
    pages: Mapping[str, Callable[[], Page]],
    *,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves ``pages`` by their paths until cancelled. Started with the address that was bound.

    Raises:
        OSError: the port is taken, or the listener failed.
    """
    try:
        listener = await environment.network.listen(host, port)
    except OSError as error:
        raise OSError(error.errno, f"metrics.listener {join_address(host, port)}: {error.strerror or error}") from error
    try:
        async with trio.open_nursery() as nursery:
            task_status.started(listener.address)
            await _accept(listener, pages, nursery)
    finally:
        listener.close()


async def _accept(listener: Listener, pages: Mapping[str, Callable[[], Page]], nursery: trio.Nursery) -> None:
    while True:
        connection = await listener.accept()
        if len(nursery.child_tasks) >= CONNECTIONS_MAX:
            connection.close()
            continue
        nursery.start_soon(_serve_one, connection, pages)


async def _serve_one(connection: Connection, pages: Mapping[str, Callable[[], Page]]) -> None:
    """Answers one request; a peer that is slow or speaks something else loses its connection."""
    try:
        with trio.move_on_after(REQUEST_MS / 1000):
            peer = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
            incoming = _Incoming(connection, peer)
            request: h11.Request | None = None
            try:
                request = await incoming.head()
                page = None if request is None or not await incoming.ends() else _page_of(request, pages)
            except h11.RemoteProtocolError as error:
                page = Page(error.error_status_hint, f"{error}\n")
            if page is not None and peer.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                is_head = request is not None and request.method == b"HEAD"
                await connection.send_all([_response(peer, page, with_body=not is_head)])
    except OSError:
        pass  # the peer has left
    finally:
        connection.close()


class _Incoming:
    """One request as it comes in.

    Both methods raise ``h11.RemoteProtocolError`` if the peer sends no request or a too large one, and OSError if the
    connection failed.
    """

    def __init__(self, connection: Connection, peer: h11.Connection) -> None:
        self._connection = connection
        self._peer = peer
        self._buffer = memoryview(bytearray(4096))
        self._received = 0

    async def head(self) -> h11.Request | None:
        """Returns the request, before its body has come; None if the peer left before."""
        event = await self._event()
        return event if isinstance(event, h11.Request) else None

    async def ends(self) -> bool:
        """Skips the body; returns whether all of it has come."""
        while isinstance(event := await self._event(), h11.Data):
            pass
        return isinstance(event, h11.EndOfMessage)

    async def _event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while (event := self._peer.next_event()) is h11.NEED_DATA:
            try:
                count = self._connection.receive_into_nowait(self._buffer)
            except BlockingIOError:
                await self._connection.wait_readable()
                continue
            self._received += count
            if self._received > REQUEST_BYTES_MAX:
                text = f"a request has at most {REQUEST_BYTES_MAX} bytes"
                raise h11.RemoteProtocolError(text, error_status_hint=413)
            self._peer.receive_data(bytes(self._buffer[:count]))
        return event


def _page_of(request: h11.Request, pages: Mapping[str, Callable[[], Page]]) -> Page:
    absolute = _ABSOLUTE.match(request.target)
    target = request.target[absolute.end() :] if absolute is not None else request.target
    path = target.partition(b"?")[0].decode("ascii", "replace") or "/"
    make = pages.get(path)
    if make is None:
        return Page(404, f"{path} is not served here, only {', '.join(sorted(pages))}\n")
    if request.method not in (b"GET", b"HEAD"):
        return Page(405, "only GET and HEAD are served\n")
    return make()


def _response(peer: h11.Connection, page: Page, *, with_body: bool) -> bytes:
    body = page.text.encode()
    headers = [
        ("content-type", page.content_type),
        ("content-length", str(len(body))),
        ("cache-control", "no-store"),
        ("connection", "close"),
    ]
    if page.status == 405:
        headers.append(("allow", "GET, HEAD"))
    reason = _REASONS.get(page.status, _NO_REASON)
    parts = [peer.send(h11.Response(status_code=page.status, headers=headers, reason=reason))]
    if with_body:
        parts.append(peer.send(h11.Data(data=body)))
    parts.append(peer.send(h11.EndOfMessage()))
    return b"".join(part for part in parts if part)
