"""Injects network faults without root, by a TCP proxy in front of every node with one rule per directed link.

Each node advertises the address of its proxy and listens elsewhere, so every connection between two members of the
cluster, and from any client, passes a proxy. Which member opened a connection is read from the first request on it:
Kafka's request header carries a client id, and members call themselves ``broker-N...`` or ``controller-N...``;
anything else counts as a client.

A rule holds bytes back and does not drop them, because TCP would send lost segments again. While a link is cut no byte
passes, the two ends notice the cut only by their own timeouts, and bytes in flight arrive after the cut is healed if
the connection is still open. A partition has the same effect on a real stream. ``reset`` closes connections with RST
instead.
"""

from __future__ import annotations

import re
import socket
import struct
from typing import TYPE_CHECKING

import trio

from moldau_jepsen.chaos.network.rules import CLIENT, LOSS, Link, LinkRule, LinkRules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from moldau_jepsen.chaos.network.meter import WireMeter

HOST = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
CHUNKS_HELD_MAX = 32  # per direction of a connection: 2 MiB, then the sender feels back-pressure
HEADER_BYTES_MAX = 1024  # of a first frame that is read to learn the client id
CONNECTIONS_PER_NODE_MAX = 2_000
CONNECT_TIMEOUT_S = 5.0

_MEMBER = re.compile(rb"^(?:broker|controller|node|raft)-(\d{1,9})(?:\D|$)")
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, zero seconds: close sends RST


def member_of(first_bytes: bytes) -> int | None:
    """Identifies the opener of a connection by the start of its first frame.

    Args:
        first_bytes: The bytes received so far: size (int32), API key (int16), version (int16), correlation id (int32),
            client id (nullable string with an int16 length).

    Returns:
        The node id, ``CLIENT`` for everything else, or None when more bytes are needed.
    """
    if len(first_bytes) < 14:
        return None
    (length,) = struct.unpack_from(">h", first_bytes, 12)
    if length <= 0:
        return CLIENT
    if len(first_bytes) < 14 + min(length, HEADER_BYTES_MAX):
        return None
    match = _MEMBER.match(first_bytes[14 : 14 + length])
    return int(match[1]) if match else CLIENT


class Links(LinkRules):
    """The proxies of one cluster. All methods belong to one ``trio.run``."""

    blocks = False

    def __init__(self, targets: Mapping[int, int]) -> None:
        """``targets`` maps node ids to the ports they listen on."""
        super().__init__()
        self.lacks = {LOSS: "a proxy holds bytes back, it loses none"}
        self._targets = dict(targets)
        self._changed = trio.Event()
        self._open: dict[int, tuple[Link, trio.SocketStream, trio.SocketStream | None]] = {}
        self._next_number = 0
        self.meter: WireMeter | None = None
        """Takes what is forwarded."""
        self.bytes_forwarded = 0

    # -- rules -------------------------------------------------------------------------------------------------------

    def _carry_out(self, changes: Mapping[Link, tuple[LinkRule, LinkRule]]) -> None:
        """Wakes waiting tasks; the pumps look at the rules themselves."""
        self._changed.set()
        self._changed = trio.Event()

    def reset(self, members: Iterable[int]) -> int:
        """Resets all connections that one of ``members`` opened or accepted; returns how many.

        Both ends receive RST.
        """
        wanted = list(members)
        count = 0
        for link, near, far in list(self._open.values()):
            if link.source in wanted or link.target in wanted:
                count += 1
                for stream in (near, far):
                    if stream is not None:
                        _close_with_reset(stream)
        return count

    # -- forwarding --------------------------------------------------------------------------------------------------

    async def serve(
        self, ports: Mapping[int, int], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listens on ``ports`` (node id to proxy port) and forwards until cancelled.

        ``task_status`` reports when all listen.

        Raises:
            OSError: A port is taken.
        """
        async with trio.open_nursery() as nursery:
            for node_id, port in ports.items():
                listeners = await trio.open_tcp_listeners(port, host=HOST)
                nursery.start_soon(self._accept, node_id, listeners[0], nursery)
            task_status.started()

    async def _accept(self, node_id: int, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        limit = trio.CapacityLimiter(CONNECTIONS_PER_NODE_MAX)
        async with listener:
            while True:
                await limit.acquire_on_behalf_of(token := object())
                try:
                    near = await listener.accept()
                except OSError:  # the peer left before it was accepted, or descriptors are short for a moment
                    limit.release_on_behalf_of(token)
                    await trio.sleep(0.01)
                    continue
                nursery.start_soon(self._connection, node_id, near, limit, token)

    async def _connection(
        self, target: int, near: trio.SocketStream, limit: trio.CapacityLimiter, token: object
    ) -> None:
        number = self._next_number
        self._next_number += 1
        far: trio.SocketStream | None = None
        try:
            self._open[number] = (Link(CLIENT, target), near, None)
            first = bytearray()
            source: int | None = None
            while source is None:
                chunk = await near.receive_some(CHUNK_BYTES)
                if not chunk:
                    return
                first += chunk
                source = member_of(bytes(first[: 14 + HEADER_BYTES_MAX]))
            link = Link(source, target)
            self._open[number] = (link, near, None)
            await self._wait_open(link)
            with trio.fail_after(CONNECT_TIMEOUT_S):
                far = await trio.open_tcp_stream(HOST, self._targets[target])
            self._open[number] = (link, near, far)
            there, back = (None, None) if self.meter is None else self.meter.connection(source, target)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, link, near, far, bytes(first), there, nursery.cancel_scope)
                nursery.start_soon(self._pump, Link(target, source), far, near, b"", back, nursery.cancel_scope)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            return  # the target is down or an end left: both ends learn it by the close below
        finally:
            del self._open[number]
            limit.release_on_behalf_of(token)
            _close_with_reset(near)
            if far is not None:
                _close_with_reset(far)

    async def _pump(
        self,
        link: Link,
        source: trio.SocketStream,
        target: trio.SocketStream,
        first: bytes,
        count: Callable[[bytes], None] | None,
        connection_scope: trio.CancelScope,
    ) -> None:
        """Forwards one direction; the end of either direction ends the connection once all has been delivered.

        ``count`` takes what is delivered.
        """
        send, receive = trio.open_memory_channel[tuple[float, bytes]](CHUNKS_HELD_MAX)

        async def deliver() -> None:
            async for due, chunk in receive:
                rule = await self._wait_open(link)
                await trio.sleep_until(due + rule.delay_ms / 1000)
                rule = await self._wait_open(link)
                if rule.bytes_per_second > 0:
                    await trio.sleep(len(chunk) / rule.bytes_per_second)
                if count is not None:
                    count(chunk)
                await target.send_all(chunk)
                self.bytes_forwarded += len(chunk)

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(deliver)
                async with send:
                    chunk: bytes | bytearray = first or await source.receive_some(CHUNK_BYTES)
                    while chunk:
                        await send.send((trio.current_time(), bytes(chunk)))
                        chunk = await source.receive_some(CHUNK_BYTES)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # an end left; the scope below takes the other end along
        connection_scope.cancel()

    async def _wait_open(self, link: Link) -> LinkRule:
        while True:
            rule = self.rule(link)
            if not rule.cut:
                return rule
            await self._changed.wait()


def _close_with_reset(stream: trio.SocketStream) -> None:
    try:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    except (OSError, trio.ClosedResourceError):
        return  # closed already
    stream.socket.close()
