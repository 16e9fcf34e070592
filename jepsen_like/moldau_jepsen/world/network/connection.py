"""Implements one end of a virtual TCP connection, and the pipe that carries its bytes.

``network`` explains the effects of a cut link or a dead host on a pipe.
"""

from __future__ import annotations

import enum
import errno
import math
import zlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.runtime.ports.environment import File
    from moldau.values import Buffer
    from moldau_jepsen.world.network.arrivals import Watched
    from moldau_jepsen.world.network.hosts import Host, Kernel
    from moldau_jepsen.world.network.network import VirtualNetwork


TLS_HANDSHAKE_RECORD = b"\x16\x03"
"""First bytes of the first record of a TLS stream (RFC 8446 section 5.1)."""


class Mark(enum.Enum):
    """Segments without bytes."""

    FIN = "fin"  # the sender has closed its direction
    RST = "rst"  # the sender does not know the connection


class _Segment:
    """Bytes, or a mark, in flight."""

    __slots__ = ("arrived", "content", "kernel", "sent_seconds")

    def __init__(self, content: bytes | Mark, kernel: Kernel) -> None:
        self.content = content
        self.kernel = kernel  # the sending kernel, which also retransmits
        self.sent_seconds = 0.0  # time of the last transmission
        self.arrived = False  # at the far host, where it may have to wait for segments ahead of it


class Pipe:
    """One direction of a connection.

    Invariant: the receiver got a prefix of the sent bytes, in order; ``held`` is empty unless the direction is blocked.
    A retransmitted segment may arrive after later ones: the far host keeps those until the gap is filled (RFC 9293
    section 3.10.7.4).
    """

    __slots__ = (
        "_abandoned_seconds",
        "_gave_up",
        "_network",
        "_silence",
        "_silent",
        "_transit",
        "_unheard_bytes",
        "broken",
        "episode",
        "held",
        "in_flight",
        "last_seconds",
        "receiver",
        "sender",
    )

    def __init__(self, network: VirtualNetwork, sender: VirtualConnection) -> None:
        self._network = network
        self.sender = sender
        self.receiver: VirtualConnection
        self.in_flight = 0  # bytes sent that the receiver has not read, as far as the sender has heard
        self.episode = 0  # counts the times the direction was blocked
        self.last_seconds = 0.0  # no segment arrives before the one ahead of it, unless that is retransmitted
        self.held: deque[_Segment] = deque()  # segments that could not be delivered yet and will be retransmitted
        self.broken = False  # a segment was lost for good: no later segment arrives
        self._transit: deque[_Segment] = deque()  # sent, and not delivered to the receiver; resets are not in it
        self._gave_up = False  # the sender retransmits nothing
        self._abandoned_seconds = math.inf  # when the sender dropped its sent segments: none is retransmitted
        self._silence = 0  # counts the times the way back was blocked while acknowledgements were due
        self._silent = False  # whether the way back is blocked while acknowledgements are due
        self._unheard_bytes = 0  # read by the receiver, but not acknowledged to the sender

    def send(self, content: bytes | Mark) -> None:
        """Sends the next bytes or mark. A reset is delivered out of order, past any gap."""
        segment = _Segment(content, self.sender.host.kernel)
        if content is not Mark.RST:
            if self.broken:
                return
            self._transit.append(segment)
        self._transmit(segment, 0.0)

    def hold(self, seconds: float) -> None:
        """Lets nothing arrive for so long that is sent from now on; what was sent before is not affected."""
        self.last_seconds = max(self.last_seconds, self._network.agenda.clock.now + seconds)

    def _transmit(self, segment: _Segment, wait_seconds: float) -> None:
        network, agenda = self._network, self._network.agenda
        lost_seconds = network.resend_delay(self.sender.host, self.receiver.host)
        if lost_seconds is None:
            if not self.broken:
                self.broken = True
                agenda.call_after(network.profile.give_up_seconds, self._give_up)
            return
        content, extra_seconds = segment.content, wait_seconds + lost_seconds
        segment.sent_seconds = agenda.clock.now + extra_seconds
        count = 0 if isinstance(content, Mark) else len(content)
        arrival = agenda.clock.now + network.draw_delay(self.sender.host, self.receiver.host, count) + extra_seconds
        if arrival > self.last_seconds:
            self.last_seconds = arrival
        agenda.call_at(self.last_seconds, partial(self._arrive, segment))

    def _arrive(self, segment: _Segment) -> None:
        off_seconds = segment.kernel.off_seconds
        if segment.sent_seconds > off_seconds:
            return  # The machine lost power before it could retransmit the segment.
        if segment.sent_seconds > self._abandoned_seconds and segment.content is not Mark.RST:
            return
        if self._network.blocked(self.sender.host, self.receiver.host):
            if self._gave_up or off_seconds <= self._network.agenda.clock.now or self._is_abandoned(segment):
                return
            if not self.held:
                self.episode += 1
                episode, patience = self.episode, self._network.profile.give_up_seconds
                self._network.agenda.call_after(patience, lambda: self._give_up_if_held(episode))
                self._network.remember_blocked(self)
            self.held.append(segment)
            return
        if segment.content is Mark.RST:
            self.receiver.on_reset()
            return
        segment.arrived = True
        while self._transit and self._transit[0].arrived:
            self._deliver(self._transit.popleft().content)
        if self._network.blocked(self.receiver.host, self.sender.host):
            self._miss_acknowledgement()

    def _deliver(self, content: bytes | Mark) -> None:
        if not isinstance(content, Mark):
            self.receiver.on_data(content)
        else:
            assert content is Mark.FIN, "resets are not ordered"
            self.receiver.on_fin()

    def release(self) -> None:
        """Retransmits the held segments when the direction is free again, unless the sending machine lost power."""
        now = self._network.agenda.clock.now
        segments, self.held = [segment for segment in self.held if segment.kernel.off_seconds > now], deque()
        resend = self._network.random.uniform(0.0, self._network.profile.retransmit_seconds)
        for segment in segments:
            if not self.broken or segment.content is Mark.RST:
                self._transmit(segment, resend)

    def abandon(self) -> None:
        """Drops the sender's copies of sent segments: those in flight may arrive, none is retransmitted."""
        self._abandoned_seconds = self._network.agenda.clock.now
        self.held = deque(segment for segment in self.held if not self._is_abandoned(segment))

    def _is_abandoned(self, segment: _Segment) -> bool:
        """Returns whether a segment is not retransmitted. Resets are: the host answers each segment with one."""
        return self._abandoned_seconds < math.inf and segment.content is not Mark.RST

    def _give_up_if_held(self, episode: int) -> None:
        if self.held and self.episode == episode:
            self._give_up()

    def _give_up(self) -> None:
        self._gave_up = self.broken = True
        self.held.clear()
        self.sender.fail(errno.ETIMEDOUT, "the peer does not acknowledge")

    # --- the way back: acknowledgements and window updates

    def acknowledge(self, count: int) -> None:
        """Acknowledges ``count`` bytes that the receiver has read, as soon as the way back is free."""
        if self._network.blocked(self.receiver.host, self.sender.host):
            self._unheard_bytes += count
            self._miss_acknowledgement()
        else:
            self.sender.credit(count)

    def _miss_acknowledgement(self) -> None:
        """Lets the sender retransmit or probe the window, and give up after a long time without an answer."""
        if self._silent or self._gave_up:
            return
        self._silent = True
        self._silence += 1
        silence = self._silence
        self._network.remember_silent(self)
        self._network.agenda.call_after(self._network.profile.give_up_seconds, lambda: self._give_up_if_silent(silence))

    def _give_up_if_silent(self, silence: int) -> None:
        if self._silent and self._silence == silence:
            self._give_up()

    def way_back_is_free(self) -> None:
        """Acknowledges everything that the receiver has read, because retransmissions are answered again."""
        self._silent = False
        count, self._unheard_bytes = self._unheard_bytes, 0
        network = self._network
        network.agenda.call_after(network.profile.retransmit_seconds, partial(self.acknowledge, count))


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
        "on_arrival",
        "outgoing",
        "peer_end",
    )

    def __init__(
        self, network: VirtualNetwork, host: Host, number: int, local: tuple[str, int], peer: tuple[str, int]
    ) -> None:
        """Is called by the network, which makes both ends."""
        self._network = network
        self.host = host
        self.number = number
        self._local = local
        self._peer = peer
        self.outgoing = Pipe(network, self)
        self.peer_end: VirtualConnection
        self._inbox: deque[memoryview] = deque()
        self._inbox_bytes = 0
        self._encrypted: bool | None = None  # whether this end sends TLS; None before its first send
        self._fin = False  # the peer has closed its direction
        self._error: OSError | None = None
        self.closed = False  # by this end
        self.dead = False  # its process is gone
        self.on_arrival: Callable[[Watched, bool], None] | None = None
        self._readers = trio.lowlevel.ParkingLot()
        self._writers = trio.lowlevel.ParkingLot()

    @property
    def peer_address(self) -> tuple[str, int]:
        """Returns host and port of the other end."""
        return self._peer

    @property
    def local_address(self) -> tuple[str, int]:
        """Returns host and port of this end."""
        return self._local

    @property
    def _has_given_up(self) -> bool:
        """Returns whether this end gave the connection up, so that its host does not know it any more."""
        return self._error is not None and self._error.errno == errno.ETIMEDOUT

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
        self._network.acknowledge(self.peer_end.outgoing, filled)
        return filled

    @property
    def is_readable(self) -> bool:
        """Returns whether a receive would not block."""
        return bool(self._inbox) or self._fin or self._error is not None

    async def wait_readable(self) -> None:
        """See ``Connection.wait_readable``."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check()
        if self.is_readable:
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
        self.host.count_send()

    def _fingerprint(self, data: bytes) -> int:
        """Returns a fingerprint of the content for the trace; 0 for TLS, whose keys come from the operating system.

        The first record identifies TLS; a Kafka frame with the same first bytes would have 369 MB.
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

    def abort(self) -> None:
        """See ``Connection.abort``."""
        if self.closed or self.dead:
            return
        self.closed = True
        self.outgoing.abandon()
        self._say_goodbye(resets=True)
        self._wake()

    def _say_goodbye(self, *, resets: bool = False) -> None:
        self.host.forget(self)
        if self._error is None:
            self.outgoing.send(Mark.RST if self._inbox or resets else Mark.FIN)
            self._network.trace.event("close", self.host.name, self._peer[0], self.number)

    def _wake(self) -> None:
        self._wake_reader(ends=True)
        self._writers.unpark_all()

    def _wake_reader(self, *, ends: bool) -> None:
        self._readers.unpark_all()
        if self.on_arrival is not None:
            self.on_arrival(self, ends)

    # --- what arrives

    def on_data(self, data: bytes) -> None:
        """Takes bytes that have arrived."""
        if self.closed or self.dead or self._has_given_up:
            self.outgoing.send(Mark.RST)
            return
        if self._error is not None:
            return
        self._network.trace.event("deliver", self._peer[0], self.host.name, self.number, len(data))
        self._inbox.append(memoryview(data))
        self._inbox_bytes += len(data)
        self._wake_reader(ends=False)

    def on_fin(self) -> None:
        """Notes that the peer has closed its direction."""
        self._fin = True
        if self.dead or self._has_given_up:
            self.outgoing.send(Mark.RST)
        self._wake_reader(ends=True)

    def on_reset(self) -> None:
        """Fails the connection, because the peer does not know it any more."""
        self.fail(errno.ECONNRESET, "the peer reset the connection")

    def fail(self, code: int, text: str) -> None:
        """Ends the connection from outside: the network gave up, or the peer reset it."""
        if self._error is None and not self.closed and not self.dead:
            self._network.trace.event("reset", self._peer[0], self.host.name, self.number, code)
            self._error = OSError(code, text)  # The constructor picks the subclass for the code.
            self.host.forget(self)
            self._wake()

    def credit(self, count: int) -> None:
        """Frees ``count`` bytes of the window, which the peer has acknowledged."""
        full = self.outgoing.in_flight >= self._network.profile.window_bytes
        self.outgoing.in_flight -= count
        if full:
            self._writers.unpark_all()

    def die(self, *, silent: bool) -> None:
        """Ends the connection of a dead process; the kernel resets the peer, unless power was lost (``silent``)."""
        if not self.closed and not self.dead:
            self.dead = True
            if not silent:
                self._say_goodbye()
            self._wake()
