"""One end of a virtual TCP connection, and the pipe through which its bytes go.

See ``network`` for what happens to a pipe while its link is cut or a host is down.
"""

from __future__ import annotations

import enum
import errno
import zlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.environment import Buffer, File
    from moldau_jepsen.simulation.network import Host, VirtualNetwork


TLS_HANDSHAKE_RECORD = b"\x16\x03"
"""How the first record of a TLS stream begins (RFC 8446 section 5.1)."""


class Mark(enum.Enum):
    """Segments without bytes."""

    FIN = "fin"  # the sender sends no more
    RST = "rst"  # the sender does not know the connection


class Pipe:
    """One direction of a connection. Invariant: ``held`` is empty unless the way is blocked; order is never changed."""

    __slots__ = ("_network", "broken", "episode", "held", "in_flight", "last_seconds", "receiver", "sender")

    def __init__(self, network: VirtualNetwork, sender: VirtualConnection) -> None:
        self._network = network
        self.sender = sender
        self.receiver: VirtualConnection
        self.in_flight = 0  # bytes sent and not read by the receiver
        self.episode = 0  # counts the times the way was blocked
        self.last_seconds = 0.0  # no segment arrives before the one ahead of it
        self.held: deque[bytes | Mark] = deque()  # segments that could not be delivered yet
        self.broken = False  # a segment was lost for good: nothing behind it arrives

    def send(self, segment: bytes | Mark, extra_seconds: float = 0.0) -> None:
        network, agenda = self._network, self._network.agenda
        lost_seconds = None if self.broken else network.resend_delay(self.sender.host, self.receiver.host)
        if lost_seconds is None:
            if not self.broken:
                self.broken = True
                agenda.call_after(network.profile.give_up_seconds, self._give_up)
            return
        extra_seconds += lost_seconds
        count = 0 if isinstance(segment, Mark) else len(segment)
        arrival = agenda.clock.now + network.draw_delay(self.sender.host, self.receiver.host, count) + extra_seconds
        if arrival > self.last_seconds:
            self.last_seconds = arrival
        agenda.call_at(self.last_seconds, partial(self._arrive, segment))

    def _arrive(self, segment: bytes | Mark) -> None:
        if self.held or self._network.blocked(self.sender.host, self.receiver.host):
            if not self.held:
                self.episode += 1
                episode, patience = self.episode, self._network.profile.give_up_seconds
                self._network.agenda.call_after(patience, lambda: self._give_up_if_held(episode))
                self._network.remember_blocked(self)
            self.held.append(segment)
            return
        self._deliver(segment)

    def _deliver(self, segment: bytes | Mark) -> None:
        if not isinstance(segment, Mark):
            self.receiver.on_data(segment)
        elif segment is Mark.FIN:
            self.receiver.on_fin()
        else:
            self.receiver.on_reset()

    def release(self) -> None:
        """The way is free again: what was held goes out once more."""
        segments, self.held = self.held, deque()
        resend = self._network.random.uniform(0.0, self._network.profile.retransmit_seconds)
        for segment in segments:
            self.send(segment, resend)

    def _give_up_if_held(self, episode: int) -> None:
        if self.held and self.episode == episode:
            self.held.clear()
            self._give_up()

    def _give_up(self) -> None:
        self.sender.fail(errno.ETIMEDOUT, "the peer does not acknowledge")


class VirtualConnection:
    """One end of a connection; the ``Connection`` port."""

    __slots__ = (
        "_encrypted",
        "_error",
        "_fin",
        "_inbox",
        "_inbox_bytes",
        "_local",
        "_network",
        "_peer",
        "_readers",
        "_writers",
        "closed",
        "dead",
        "host",
        "number",
        "outgoing",
        "peer_end",
    )

    def __init__(
        self, network: VirtualNetwork, host: Host, number: int, local: tuple[str, int], peer: tuple[str, int]
    ) -> None:
        """Made by the network, in pairs."""
        self._network = network
        self.host = host
        self.number = number
        self._local = local
        self._peer = peer
        self.outgoing = Pipe(network, self)
        self.peer_end: VirtualConnection
        self._inbox: deque[memoryview] = deque()
        self._inbox_bytes = 0
        self._encrypted: bool | None = None  # whether this end sends TLS, once it has sent something
        self._fin = False  # the peer sends no more
        self._error: OSError | None = None
        self.closed = False  # by this end
        self.dead = False  # the process that had it is gone
        self._readers = trio.lowlevel.ParkingLot()
        self._writers = trio.lowlevel.ParkingLot()

    @property
    def peer_address(self) -> tuple[str, int]:
        """Host and port of the other end."""
        return self._peer

    @property
    def local_address(self) -> tuple[str, int]:
        """Host and port of this end."""
        return self._local

    def _check(self) -> None:
        if self.closed or self.dead:
            raise ConnectionAbortedError(errno.ECONNABORTED, "this end of the connection was closed")

    def _raise_error(self) -> None:
        if self._error is not None:
            raise type(self._error)(*self._error.args)

    def receive_into_nowait(self, buffer: memoryview) -> int:
        """See ``Connection.receive_into_nowait``."""
        self._check()
        if not self._inbox:
            self._raise_error()
            if self._fin or len(buffer) == 0:
                return 0
            raise BlockingIOError(errno.EAGAIN, "nothing has arrived")
        filled = 0
        while self._inbox and filled < len(buffer):
            chunk = self._inbox[0]
            count = min(len(chunk), len(buffer) - filled)
            buffer[filled : filled + count] = chunk[:count]
            filled += count
            if count == len(chunk):
                self._inbox.popleft()
            else:
                self._inbox[0] = chunk[count:]
        self._inbox_bytes -= filled
        self.peer_end.credit(filled)
        return filled

    async def wait_readable(self) -> None:
        """See ``Connection.wait_readable``."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check()
        if self._inbox or self._fin or self._error is not None:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        await self._readers.park()
        self._check()

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        """See ``Connection.send_nowait``."""
        room = self._room()
        data = b"".join(buffers)[:room]
        self._send(data)
        return len(data)

    def _room(self) -> int:
        self._check()
        self._raise_error()
        room = self._network.profile.window_bytes - self.outgoing.in_flight
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, "the window is full")
        return room

    def _send(self, data: bytes) -> None:
        if not data:
            return
        network = self._network
        self.outgoing.in_flight += len(data)
        if network.tap is not None:
            network.tap(self, data)
        network.trace.event("send", self.host.name, self._peer[0], self.number, len(data), self._fingerprint(data))
        if len(data) > 1 and network.random.random() < network.profile.fragment_probability:
            middle = network.random.randrange(1, len(data))
            self.outgoing.send(data[:middle])
            self.outgoing.send(data[middle:])
        else:
            self.outgoing.send(data)

    def _fingerprint(self, data: bytes) -> int:
        """What the trace keeps of the content: nothing where it is TLS, whose keys come from the operating system.

        Told as a sniffer tells it, by the first record; a Kafka frame that began so would have 369 MB.
        """
        if self._encrypted is None:
            self._encrypted = data[:2] == TLS_HANDSHAKE_RECORD
        return 0 if self._encrypted else zlib.crc32(data)

    async def wait_writable(self) -> None:
        """See ``Connection.wait_writable``."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check()
        if self._error is not None or self.outgoing.in_flight < self._network.profile.window_bytes:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        await self._writers.park()
        self._check()

    def send_file_nowait(self, file: File, position: int, count: int) -> int:
        """See ``Connection.send_file_nowait``."""
        data = file.read(position, min(count, self._room()))
        if not data:
            raise EOFError(f"{file.path}: no content at position {position}")
        self._send(data)
        return len(data)

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """See ``Connection.send_all``."""
        pending = memoryview(b"".join(buffers))
        while pending:
            try:
                pending = pending[self.send_nowait((pending,)) :]
            except BlockingIOError:
                await self.wait_writable()

    def close(self) -> None:
        """See ``Connection.close``."""
        if self.closed or self.dead:
            return
        self.closed = True
        self._say_goodbye()
        self._wake()

    def _say_goodbye(self) -> None:
        self.host.forget(self)
        if self._error is None:
            self.outgoing.send(Mark.RST if self._inbox else Mark.FIN)
            self._network.trace.event("close", self.host.name, self._peer[0], self.number)

    def _wake(self) -> None:
        self._readers.unpark_all()
        self._writers.unpark_all()

    # --- what arrives

    def on_data(self, data: bytes) -> None:
        """Bytes have arrived."""
        if self.closed or self.dead:
            self.outgoing.send(Mark.RST)
            return
        if self._error is not None:
            return
        self._network.trace.event("deliver", self._peer[0], self.host.name, self.number, len(data))
        self._inbox.append(memoryview(data))
        self._inbox_bytes += len(data)
        self._readers.unpark_all()

    def on_fin(self) -> None:
        """The peer sends no more."""
        self._fin = True
        if self.dead:
            self.outgoing.send(Mark.RST)
        self._readers.unpark_all()

    def on_reset(self) -> None:
        """The peer does not know the connection any more."""
        self.fail(errno.ECONNRESET, "the peer reset the connection")

    def fail(self, code: int, text: str) -> None:
        """Ends the connection from outside: the network gave up, or the peer reset it."""
        if self._error is None and not self.closed and not self.dead:
            self._network.trace.event("reset", self._peer[0], self.host.name, self.number, code)
            self._error = OSError(code, text)  # the constructor picks the subclass that belongs to the code
            self.host.forget(self)
            self._wake()

    def credit(self, count: int) -> None:
        """The peer has read ``count`` bytes: so many more may be sent."""
        full = self.outgoing.in_flight >= self._network.profile.window_bytes
        self.outgoing.in_flight -= count
        if full:
            self._writers.unpark_all()

    def die(self, *, silent: bool) -> None:
        """The process is gone; its kernel says goodbye unless it is gone as well (``silent``)."""
        if not self.closed and not self.dead:
            self.dead = True
            if not silent:
                self._say_goodbye()
            self._wake()
