"""Connections to the other members, one each, for messages that go one way.

The first message of a connection is a hello. Nothing else but parts of handshakes goes out before the peer has
challenged it and got its proof (``sessions``). A link keeps its connection open whether or not there is something to
send: when the other process dies, the end of the stream and the refusal of the next attempt show it long before a
timeout would. Messages wait in a bounded queue. Those that do not fit, or were queued for a connection that died, are
dropped, because Raft repeats what matters.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.framing import encode_request_header
from moldau.runtime.net.buffers import drop_sent
from moldau.runtime.net.peer_refusals import PeerRefusals
from moldau.runtime.net.setup_times import SetupTimes
from moldau_quorum.log.port import QUORUM_MESSAGE_KEY, QUORUM_MESSAGE_VERSION
from moldau_quorum.log.raft import sessions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from moldau.runtime.ports.environment import Connection, Environment
    from moldau.runtime.telemetry.log import EventLogger
    from moldau_quorum.log.port import LogLimits
    from moldau_quorum.log.raft.envelope import Envelope

SEND_TIMEOUT_MS: Final = 5_000
"""A peer that takes no bytes for so long is given up; the queue drops messages meanwhile."""
SILENCE_MS: Final = 3_000
"""A connection on which messages are sent while the peer is silent for so long is opened again: it may be half dead."""
PROOF_TIMEOUT_MS: Final = 3_000
"""A connection that the peer has not taken for this node's after so long is opened again."""
HASTEN_MS_MIN: Final = 100.0
"""A peer that shows itself is connected to at once, but not more often than this."""
HANDSHAKES_QUEUED_MAX: Final = 64
RETRY_MS_MIN: Final = 20.0
RETRY_MS_MAX: Final = 500.0
REQUEST_HEADER_VERSION: Final = 1


def frame_message(sender: int, body: bytes) -> bytes:
    """Returns a quorum message as a Kafka request frame, size prefix included."""
    header = encode_request_header(
        QUORUM_MESSAGE_KEY, QUORUM_MESSAGE_VERSION, 0, f"controller-{sender}", REQUEST_HEADER_VERSION
    )
    return (len(header) + len(body)).to_bytes(4, "big") + header + body


class PeerLink:
    """The connection to one member. ``run`` is a task of its owner."""

    def __init__(
        self,
        environment: Environment,
        *,
        node_id: int,
        peer_id: int,
        address: tuple[str, int],
        connect: Callable[[str, int], Awaitable[Connection]],
        limits: LogLimits,
        envelope: Callable[[], Envelope],
        on_refused: Callable[[int], None],
        on_connected: Callable[[int], None],
        logger: EventLogger,
    ) -> None:
        """Creates the link; ``run`` connects.

        ``envelope`` is that of the next message to the peer. ``on_refused`` is called when the peer's host refuses a
        connection, ``on_connected`` when there is one.
        """
        self.peer_id = peer_id
        self.address = address
        self.scope = trio.CancelScope()
        self.heard_ms = float("-inf")
        """When a message from the peer came in, by whatever way."""
        self.renew_at_ms = float("inf")
        """When to replace the present connection, whose authenticated session ends soon after; ``connect`` sets it."""
        self.dropped = 0
        self._environment = environment
        self._node_id = node_id
        self._connect = connect
        self._setup_times = SetupTimes(environment)
        self._limits = limits
        self._envelope = envelope
        self._on_refused = on_refused
        self._on_connected = on_connected
        self._refusals = PeerRefusals(environment.clock, logger, peer_id)
        self._nonce = b""
        self._is_proven = False
        self._proven = trio.Event()
        self._hastened = trio.Event()
        self._tried_ms = float("-inf")
        self._queue: deque[bytes] = deque()
        self._queue_bytes = 0
        self.is_connected = False
        self._wakeup = trio.Event()

    def send(self, body: bytes) -> None:
        """Queues a message, or drops it."""
        full = (
            len(self._queue) >= self._limits.peer_queue_messages_max
            or self._queue_bytes >= self._limits.peer_queue_bytes_max
        )
        if full or not self._is_proven:
            self.dropped += 1
            return
        self._enqueue(body)

    def send_challenge(self, nonce: bytes, value: bytes) -> None:
        """Asks the peer whether the connection of that nonce is its own."""
        if self.is_connected and len(self._queue) < self._limits.peer_queue_messages_max + HANDSHAKES_QUEUED_MAX:
            self._enqueue(sessions.challenge(self._envelope(), nonce, value))

    def prove(self, nonce: bytes, value: bytes) -> None:
        """Sends the proof, and then messages, if the nonce that the peer asks about is that of this connection."""
        if self.is_connected and nonce == self._nonce and not self._is_proven:
            self._enqueue(sessions.proof(self._envelope(), value))
            self._is_proven = True
            self._proven.set()

    def hasten(self) -> None:
        """Ends the pause before the next attempt to connect, because a message of the peer has come in."""
        if self._environment.clock.monotonic_ms() - self._tried_ms >= HASTEN_MS_MIN:
            self._hastened.set()

    def _enqueue(self, body: bytes) -> None:
        self._queue.append(body)
        self._queue_bytes += len(body)
        self._wakeup.set()

    async def _send(self, connection: Connection, frames: Sequence[bytes]) -> None:
        """Sends all; the deadline is armed only when the transport is full, which it hardly ever is."""
        try:
            pending = drop_sent(frames, connection.send_nowait(frames))
        except BlockingIOError:
            pending = frames
        if pending:
            with trio.fail_after(SEND_TIMEOUT_MS / 1000):
                await connection.send_all(pending)

    async def run(self) -> None:
        """Connects, sends, connects again, until ``scope`` is cancelled."""
        retry_ms = RETRY_MS_MIN
        with self.scope:
            while True:
                self._hastened = trio.Event()
                self._tried_ms = self._environment.clock.monotonic_ms()
                self.renew_at_ms = float("inf")
                try:
                    with self._setup_times.limited(self.address):
                        connection = await self._connect(*self.address)
                except ConnectionRefusedError:
                    self._on_refused(self.peer_id)
                except (OSError, trio.TooSlowError) as error:
                    self._refusals.failed(error, self.address)  # an unreachable peer is tried again, without a report
                else:
                    self._refusals.connected()
                    if await self._serve(connection):
                        retry_ms = RETRY_MS_MIN
                        continue
                with trio.move_on_after(retry_ms * (0.5 + self._environment.random.random()) / 1000):
                    await self._hastened.wait()
                retry_ms = min(RETRY_MS_MAX, retry_ms * 2)

    async def _serve(self, connection: Connection) -> bool:
        """Sends until the connection ends; returns whether the peer had taken it for this node's."""
        self._queue.clear()
        self._queue_bytes = 0
        self._nonce = sessions.draw_token(self._environment)
        self._is_proven = False
        self._proven = trio.Event()
        self.is_connected = True
        self._connected_ms = self._environment.clock.monotonic_ms()
        self._enqueue(sessions.hello(self._envelope(), self._nonce))
        self._on_connected(self.peer_id)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, connection, nursery.cancel_scope)
                nursery.start_soon(self._pump, connection, nursery.cancel_scope)
                nursery.start_soon(self._give_up_unproven, nursery.cancel_scope)
                if self.renew_at_ms != float("inf"):
                    nursery.start_soon(self._renew_in_time, nursery.cancel_scope)
        finally:
            was_proven, self._is_proven = self._is_proven, False
            self.is_connected = False
            connection.close()
        # A peer that closes at once must not be asked in a busy loop.
        await trio.sleep(RETRY_MS_MIN * self._environment.random.random() / 4000)
        return was_proven

    async def _give_up_unproven(self, scope: trio.CancelScope) -> None:
        with trio.move_on_after(PROOF_TIMEOUT_MS / 1000):
            await self._proven.wait()
        if not self._is_proven:
            scope.cancel()

    async def _renew_in_time(self, scope: trio.CancelScope) -> None:
        """Ends the connection before its session ends: the next one authenticates again, and no message is refused.

        Messages go one way here, so the exchange of a re-authentication (KIP-368) has no place on the connection.
        """
        left_ms = self.renew_at_ms - self._environment.clock.monotonic_ms()
        await trio.sleep(max(0.0, left_ms / 1000))
        scope.cancel()

    async def _watch(self, connection: Connection, scope: trio.CancelScope) -> None:
        """Notices the end of the stream; nothing else ever comes back."""
        buffer = memoryview(bytearray(256))
        try:
            while True:
                try:
                    if connection.receive_into_nowait(buffer) == 0:
                        break
                except BlockingIOError:
                    pass
                await connection.wait_readable()
        except OSError:
            pass  # reset: the same as the end
        scope.cancel()

    async def _pump(self, connection: Connection, scope: trio.CancelScope) -> None:
        clock = self._environment.clock
        try:
            while True:
                if not self._queue:
                    self._wakeup = trio.Event()
                    await self._wakeup.wait()
                frames = [frame_message(self._node_id, body) for body in self._queue]
                self._queue.clear()
                self._queue_bytes = 0
                await self._send(connection, frames)
                now_ms = clock.monotonic_ms()
                if now_ms - max(self._connected_ms, self.heard_ms) > SILENCE_MS:
                    break
        except (OSError, trio.TooSlowError):
            pass  # the connection is dead: open another
        scope.cancel()
