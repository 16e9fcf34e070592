"""One Kafka connection of a server: the loop that turns bytes into requests and answers into bytes.

Two tasks run. The reader receives as much as its buffer holds, hands every complete frame to the connection's handler,
calls ``flush`` once (so that the appends of many pipelined requests become one write), and then sends the answers that
are ready. If an answer is not ready (a ``Deferred``: a long poll, an append that waits for followers), the writer takes
over: it waits for the answers in order and sends them, while the reader continues (``answer_queue``). Answers always
leave in the order of the requests.

While a client pauses because of its quota, the reader handles no request (``throttle``), but those of SASL: the session
of an authenticated client must not expire meanwhile.

While the reader waits for bytes, the task of ``turns`` does the same work for all connections that have received
something: receive, handle, flush, send, without a task switch for each. What a turn cannot finish (a long
request, a full socket, a frame that needs memory, an error) is left to the reader, which it wakes. A connection that
always finds more bytes yields once per drain, which keeps the others' latency flat.

Everything is bounded. A receive buffer (``receive_buffer``) starts small and grows to the announced frame (never beyond
``request_bytes_max``). Its growth is charged to a byte budget that all connections share; when the budget is used up,
growth waits, and with it the peer. Answers in flight are bounded in number per connection; ready ones also in bytes.
Their memory and that of their requests is charged to the same budget (``held``). The server's sweeper enforces the
deadlines that are noted here, so a wait costs no cancel scope.
"""

from __future__ import annotations

import errno
from functools import partial
from typing import TYPE_CHECKING, cast

import trio

from moldau.runtime.net.buffers import byte_count
from moldau.runtime.net.receive_buffer import SIZE_BYTES, ReceiveBuffer, unpack_size
from moldau.runtime.net.serving.answer_queue import AnswerQueue, ready_bytes
from moldau.runtime.net.serving.answers import (
    CloseConnection,
    ConnectionHandler,
    Deferred,
    EarlyAnswer,
    FileRange,
    Gate,
    Preparation,
    ResponsePart,
    WaitingAnswer,
    is_gate,
)
from moldau.runtime.net.serving.held import HeldBytes
from moldau.runtime.net.serving.parked_reader import HEAVY_BYTES, REQUESTS_PER_TURN, ParkedReader
from moldau.runtime.net.serving.throttle import Throttle, throttle_of
from moldau.runtime.net.serving.transmission import NEVER_MS, Transmission
from moldau.runtime.tls.errors import TlsHandshakeError, looks_like_tls
from moldau.values import join_address

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.runtime.net.serving.request_traces import RequestTrace
    from moldau.runtime.net.serving.server import Server
    from moldau.runtime.ports.environment import Connection

GATE_KEY = "sasl.server.max.receive.size"
"""The limit of frames before the authentication."""

_PRODUCE = b"\0\0"
"""API key 0."""

_SASL = (b"\0\x11", b"\0\x24")
"""API keys 17 and 36, SaslHandshake and SaslAuthenticate."""

LARGE_BUFFER_MS = 10_000
"""How long a quiet connection keeps a large receive buffer that no other connection waits for.

A peer with larger requests would otherwise pay for growing it again every second."""

FRAME_BYTES_MIN = 8
"""API key, version and correlation id: no request is shorter."""


_UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
"""Errors of the kernel for a peer that no longer answers; they are not ``ConnectionError``."""


class ConnectionLoop:
    """One connection: its two tasks, and the deadlines that the sweeper enforces."""

    __slots__ = (
        "_answers",
        "_connection",
        "_end_reason",
        "_gate",
        "_handler",
        "_held",
        "_limits",
        "_parked",
        "_pause_ended_ms",
        "_paused_since_ms",
        "_preparing",
        "_received",
        "_scope",
        "_server",
        "_throttle",
        "_traced",
        "_transmission",
    )

    def __init__(self, server: Server, connection: Connection) -> None:
        self._server = server
        self._limits = server.limits
        self._connection = connection
        self._handler: ConnectionHandler | None = None
        self._gate: Gate | None = None  # the handler, if it demands an authentication
        self._throttle = Throttle()  # the handler's, once there is one
        self._paused_since_ms = NEVER_MS  # when requests began to wait for the end of a pause
        self._pause_ended_ms = 0.0  # when they last stopped to wait for it
        self._held = HeldBytes(server.budget, self._limits.buffer_bytes)  # by ``_answers``
        self._received = ReceiveBuffer(server.budget, self._held, server.clock, self._limits)
        self._scope = trio.CancelScope()
        self._end_reason: str | None = None
        self._transmission = Transmission(connection, server.pool, server.clock, server.limits)
        self._answers = AnswerQueue(self._transmission, self._held, server.clock, server.times, server.ended_waits)
        self._parked = ParkedReader(self, connection, self._received, self._answers, self._held, self._throttle)
        # The next request with its size and its API key, before it is handled.
        self._preparing: tuple[Preparation, int, int, RequestTrace | None] | None = None
        self._traced: list[RequestTrace] = []  # requests that were handled and not flushed

    # --- life of the connection

    async def run(self, secure: Callable[[Connection], Connection] | None) -> None:
        """Serves the connection until it ends; ``secure`` wraps it first."""
        try:
            with self._scope:
                if secure is not None:
                    self._connection = self._transmission.connection = secure(self._connection)
                    try:
                        await self._guard(self._shake_hands)
                    finally:
                        self._server.handshakes.leave(self)
                    await trio.lowlevel.checkpoint_if_cancelled()
                self._handler = self._server.handler_factory(self._connection)
                self._throttle = throttle_of(self._handler)
                if is_gate(self._handler):
                    self._gate = self._handler
                self._parked.watch(self._connection, self._server.arrivals, self._throttle)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._guard, self._answers.write)
                    await self._guard(self._read)
        finally:
            self._parked.close()
            self._connection.close()
            self._received.release()
            self._held.close()
            if self._handler is not None:
                self._handler.closed()
        if self._end_reason is not None:
            self._server.closed_for_cause += 1
            host, port = self._connection.peer_address
            self._server.logger.warning("connection-closed", peer=join_address(host, port), reason=self._end_reason)

    def _finish(self, reason: str | None) -> None:
        """Ends the connection; only the first reason is logged."""
        if not self._scope.cancel_called:
            self._end_reason = reason
            self._scope.cancel()

    @property
    def peer_host(self) -> str:
        """Address of the peer, without its port."""
        return self._connection.peer_address[0]

    @property
    def last_active_ms(self) -> float:
        """See ``connection_tally.Removable``. A client that is asked to pause is silent only after it."""
        pause_ends_ms = max(self._pause_ended_ms, self._throttle.until_ms)
        return max(self._received.arrived_ms, self._answers.stalled_since_ms, pause_ends_ms)

    @property
    def is_ending(self) -> bool:
        """Whether the connection is about to end."""
        return self._scope.cancel_called

    def make_way(self, reason: str) -> None:
        """See ``connection_tally.Removable``."""
        self._finish(reason)

    def give_up_handshake(self) -> None:
        """Closes a handshake whose peer has been silent for too long while others want to connect."""
        self._finish(None)

    async def _guard(self, work: Callable[[], object]) -> None:
        """Runs a task of this connection; an error in it ends this connection and no other."""
        try:
            await work()  # type: ignore[misc]
        except CloseConnection as error:
            self._finish(None if error.is_logged else error.reason)
        except (ConnectionError, EOFError, trio.BrokenResourceError):
            self._finish(None)  # the peer closed the connection, which is not an error
        except AssertionError:
            raise  # a broken invariant concerns the whole node
        except Exception as error:  # noqa: BLE001 - one peer's request must not harm the others
            if isinstance(error, OSError) and error.errno in _UNREACHABLE:
                self._finish(None)
                return
            self._server.logger.error(
                "request-failed", exception=error, peer=self._connection.peer_address, error=type(error).__name__
            )
            self._finish(f"internal error: {type(error).__name__}: {error}")

    async def _shake_hands(self) -> None:
        handshake = getattr(self._connection, "handshake", None)
        if handshake is None:
            return
        with trio.move_on_after(self._limits.handshake_ms / 1000) as scope:
            try:
                await handshake(partial(self._server.heard_in_handshake, self))
            except TlsHandshakeError as error:
                self._server.handshakes_failed += 1
                raise CloseConnection(str(error.strerror or error)) from error
        if scope.cancelled_caught:
            raise CloseConnection("TLS handshake took too long")

    def enforce_deadlines(self, now_ms: float) -> None:
        """Enforces the deadlines; the sweeper calls it."""
        limits = self._limits
        self._received.note_progress(now_ms)
        if now_ms >= self._received.frame_deadline_ms:
            self._finish(f"frame incomplete after {limits.frame_ms:.0f} ms")
        elif self._gate is not None and now_ms >= self._gate.deadline_ms:
            self._finish("the peer did not authenticate in time")
        elif now_ms >= self._transmission.deadline_ms:
            self._finish(f"peer read nothing for {limits.send_ms:.0f} ms")
        elif not self._answers.pending and not self._is_paused and now_ms - self.last_active_ms >= limits.idle_ms:
            self._server.logger.debug("connection-idle", peer=self._connection.peer_address)
            self._finish(None)

    @property
    def _is_paused(self) -> bool:
        return self._paused_since_ms != NEVER_MS

    @property
    def _kept_bytes(self) -> int:
        return self._received.reserved + self._held.charged

    @property
    def keeps_or_waits(self) -> bool:
        """Whether the connection has bytes of the budget or waits for some."""
        return self._kept_bytes > 0 or self._held.in_line or self._held.is_paying

    def enforce_share(self, now_ms: float, share: int) -> None:
        """Checks the use of bytes; the sweeper calls it while a task waits for the budget.

        ``share`` is the fair share of this connection. A connection that keeps more must make progress: answer
        requests, or receive its frame fast enough to complete it in ``held_ms``. So a stalled connection loses its
        bytes after ``overdraft_ms``, and while all keep to their share, a request within the share finds room.
        """
        kept = self._kept_bytes
        if kept == 0 or not self._held.others_wait:
            return
        limits = self._limits
        allowed_ms = limits.overdraft_ms if kept > share else limits.held_ms
        if self._answers.pending and now_ms - self._answers.stalled_since_ms >= allowed_ms:
            self._finish(f"requests that wait keep {kept} bytes that others wait for")
        elif self._received.reserved > share and self._received.note_progress(now_ms) >= limits.overdraft_ms:
            self._finish(f"a frame that comes too slowly keeps {kept} bytes that others wait for")
        elif self._received.reserved and now_ms - self._paused_since_ms >= allowed_ms:
            self._finish(f"requests above the quota keep {kept} bytes that others wait for")

    def end_waits(self) -> None:
        """Lets requests be answered that need not wait, if this connection keeps bytes of the budget for requests."""
        if self._held.charged:
            self._answers.end_waits()

    # --- receiving

    async def _read(self) -> None:
        connection, received = self._connection, self._received
        clock = self._server.clock
        waited = True
        while True:
            try:
                count = connection.receive_into_nowait(received.view[received.end :])
            except BlockingIOError:
                await self._wait_for_bytes()
                waited = True
                continue
            if count == 0:
                await self._end_of_stream()
                return
            received.end += count
            received.arrived_ms = clock.monotonic_ms()
            if not waited:
                await trio.lowlevel.checkpoint()
            waited = False
            await self._handle_buffered()
            await self._make_room()

    async def _make_room(self) -> None:
        """Prepares the buffer for the next bytes."""
        while wanted := self._received.make_room():
            self._server.keepers[self] = None
            await self._received.reserve(wanted)

    async def _wait_for_bytes(self) -> None:
        """Waits for bytes; completes what a turn has begun meanwhile."""
        left = await self._parked.wait()
        if left is None:
            return
        if left.rest:
            await self._answers.finish(left.rest, left.answers)
        if left.error is not None:
            if isinstance(left.error, CloseConnection):
                await self._bid_farewell(left.answers, left.error)
            raise left.error
        await self._pay_for_waits()
        if left.has_more:
            await self._handle_buffered()
        await self._make_room()

    async def _end_of_stream(self) -> None:
        """Drops the pending answers, because the peer has left."""
        if self._received.pending:
            raise CloseConnection(f"peer left in the middle of a frame ({self._received.pending} bytes of it arrived)")
        self._finish(None)

    async def _handle_buffered(self) -> None:
        """Handles all complete frames, in rounds that the bounds on answers allow."""
        more = True
        while more:
            if len(self._answers.pending) >= self._limits.answers_max:
                self._received.frame_deadline_ms = NEVER_MS
                await self._answers.changed.wait_until(lambda: len(self._answers.pending) < self._limits.answers_max)
            if self._throttle.until_ms and self._preparing is None:
                await self._sit_out()
            answers: list[Sequence[ResponsePart] | Deferred] = []
            try:
                more = await self._take_turn(answers)
            except CloseConnection as close:
                await self._bid_farewell(answers, close)
                raise
            await self._answers.dispatch(answers)
            await self._pay_for_waits()
            if more:
                await trio.lowlevel.checkpoint()

    async def _bid_farewell(self, answers: Sequence[Sequence[ResponsePart] | Deferred], close: CloseConnection) -> None:
        """Sends the answers that are due before the connection closes."""
        self._received.drop()  # nothing more is read
        await self._answers.dispatch(answers)
        await self._answers.dispatch([close.answer] if close.answer else [])
        await self._answers.changed.wait_until(lambda: not self._answers.pending)

    async def _pay_for_waits(self) -> None:
        """Pays for the memory of requests that wait, before more is read."""
        if self._held.unpaid > 0:
            self._received.frame_deadline_ms = NEVER_MS
            self._server.keepers[self] = None
            await self._held.pay()

    async def _sit_out(self) -> None:
        """Waits until the client's pause is over, or a request of SASL is the next; notices the end of the stream."""
        throttle, clock, received = self._throttle, self._server.clock, self._received
        received.frame_deadline_ms = NEVER_MS
        self._paused_since_ms = clock.monotonic_ms()
        if received.reserved:
            self._server.keepers[self] = None
        while (remaining_ms := throttle.until_ms - clock.monotonic_ms()) > 0:
            if self._is_sasl_next():
                self._paused_since_ms = NEVER_MS
                return
            if received.start:
                received.move_to_front()
            has_room = received.end < len(received.buffer)
            await throttle.wait(remaining_ms, self._receive_more if has_room else trio.sleep_forever)
        throttle.until_ms = 0.0
        self._paused_since_ms, self._pause_ended_ms = NEVER_MS, clock.monotonic_ms()

    def _is_sasl_next(self) -> bool:
        received, start = self._received, self._received.start
        return received.pending >= SIZE_BYTES + 2 and received.buffer[start + 4 : start + 6] in _SASL

    async def _receive_more(self) -> None:
        """Receives into the rest of the buffer."""
        connection, received = self._connection, self._received
        await connection.wait_readable()
        try:
            count = connection.receive_into_nowait(received.view[received.end :])
        except BlockingIOError:
            return
        if count == 0:
            self._finish(None)
            await trio.lowlevel.checkpoint()  # it is cancelled
        received.end += count
        received.arrived_ms = self._server.clock.monotonic_ms()

    async def _take_turn(self, answers: list[Sequence[ResponsePart] | Deferred]) -> bool:
        """Handles requests up to the bounds of one turn; returns whether there may be more.

        Long requests are handled one at a time over all connections, each in its own turn. A small request therefore
        waits for one of them, not for one of each peer.
        """
        if self._preparing is not None:
            self._received.frame_deadline_ms = NEVER_MS
            await self._preparing[0].prepare()
            self._handle_prepared(answers)
            return True
        if not self.starts_heavy():
            return self._handle_round(answers, REQUESTS_PER_TURN)
        self._received.frame_deadline_ms = NEVER_MS
        async with self._server.heavy_lane:
            self._handle_round(answers, 1)
        return True

    def starts_heavy(self) -> bool:
        """Returns whether the next request may take long, so that it needs a turn of its own."""
        received, start = self._received, self._received.start
        return received.end - start >= HEAVY_BYTES and self._is_heavy(start, unpack_size(received.buffer, start)[0])

    def must_wait(self) -> bool:
        """Returns whether the next request must wait: for the end of a pause, or until an answer has left."""
        return self._throttle.until_ms > 0 or len(self._answers.pending) >= self._limits.answers_max

    def _is_heavy(self, start: int, size: int) -> bool:
        """Returns whether the frame at ``start`` may hold thousands of entries; records are checked in native code."""
        received = self._received
        if not HEAVY_BYTES <= size <= received.end - start - SIZE_BYTES:
            return False
        return received.buffer[start + 4 : start + 6] != _PRODUCE

    def _handle_round(self, answers: list[Sequence[ResponsePart] | Deferred], requests_max: int) -> bool:
        """Handles frames until none is complete (returns False) or a bound is reached (returns True); then flushes.

        Bounds are those on answers, and ``requests_max``; a heavy frame that is not the first ends the round too.
        """
        try:
            return self.handle_frames(answers, requests_max)
        finally:
            self.flush(answers)

    def handle_frames(self, answers: list[Sequence[ResponsePart] | Deferred], requests_max: int) -> bool:
        """Does what ``_handle_round`` does, without the flush.

        Raises:
            CloseConnection: the connection must be closed.
        """
        handler = self._handler
        assert handler is not None
        limits = self._limits
        received = self._received
        buffer, view = received.buffer, received.view
        times, api_key = self._server.times, -1
        traces = None if times is None else times.traces
        trace: RequestTrace | None = None
        start, end = received.start, received.end
        gate = self._gate
        least, largest = FRAME_BYTES_MIN, limits.request_bytes_max
        throttle = self._throttle
        room = limits.answers_max - len(self._answers.pending)
        begun = self._answers.begun
        bytes_ready = handled = 0
        while end - start >= SIZE_BYTES:
            size = unpack_size(buffer, start)[0]
            if gate is not None:
                least, largest = gate.frame_bounds(FRAME_BYTES_MIN, limits.request_bytes_max)
            if size < least or size > largest:
                if looks_like_tls(view[start:end]):
                    raise CloseConnection("the peer speaks TLS, and this listener does not")
                key = "socket.request.max.bytes" if largest == limits.request_bytes_max else GATE_KEY
                raise CloseConnection(f"frame size {size} is outside {least}..{largest} ({key})")
            stop = start + SIZE_BYTES + size
            if stop > end:
                return False
            if room <= 0 or bytes_ready >= limits.answer_bytes_max or handled >= requests_max:
                return True
            if handled and (throttle.until_ms or (size >= HEAVY_BYTES and self._is_heavy(start, size))):
                return True
            handled += 1
            self._server.requests += 1
            received.start = start = stop
            received.frame_deadline_ms = NEVER_MS
            frame = view[stop - size : stop]
            if traces is not None:
                trace = traces.begin(frame, received.arrived_ms, self._server.listener_name, self._connection)
                self._traced.append(trace)
            answer = handler.handle(frame)
            if times is not None:
                head = unpack_size(buffer, stop - size)[0] if size >= FRAME_BYTES_MIN else -1
                times.received(head)
                api_key = head >> 16
            if answer is None:
                continue
            if type(answer) is tuple or type(answer) is list:
                for part in answer:
                    if type(part) is bytes:  # as a rule
                        bytes_ready += len(part)
                    elif not isinstance(part, FileRange):
                        bytes_ready += byte_count(part)
            elif not isinstance(answer, WaitingAnswer) and isinstance(answer, Preparation):
                self._preparing = (answer, size, api_key, trace)
                return True
            else:
                answer, kept = self._hold(cast("Deferred", answer), size)
                bytes_ready += kept
            answers.append(answer)
            if times is not None:
                begun.append((api_key, received.arrived_ms, trace))
            room -= 1
        return False

    def _handle_prepared(self, answers: list[Sequence[ResponsePart] | Deferred]) -> None:
        """Handles the request that was prepared."""
        assert self._preparing is not None
        (preparation, size, api_key, trace), self._preparing = self._preparing, None
        if trace is not None:
            self._traced.append(trace)
        try:
            answer = preparation.handle()
            if answer is not None:
                answers.append(answer if isinstance(answer, (list, tuple)) else self._hold(answer, size)[0])
                if self._server.times is not None:
                    self._answers.begun.append((api_key, self._received.arrived_ms, trace))
        finally:
            self.flush(answers)

    def flush(self, answers: list[Sequence[ResponsePart] | Deferred]) -> None:
        """Flushes what was handled; drops ``answers`` if that fails."""
        assert self._handler is not None
        try:
            self._handler.flush()
        except CloseConnection:
            answers.clear()  # they promise what was not written; a client that hears nothing asks again
            raise
        if self._traced:
            traced, self._traced = self._traced, []
            traced[0].owner.handled(traced)

    def _hold(self, answer: Deferred, size: int) -> tuple[list[ResponsePart] | Deferred, int]:
        """Counts what a request of ``size`` bytes keeps while it waits; answers it now if it must not wait for that.

        Returns the answer and its bytes in memory.
        """
        kept: int = getattr(answer, "held_bytes", size)
        if kept > self._limits.buffer_bytes and isinstance(answer, EarlyAnswer) and not self._held.fits(kept):
            early = answer.answer_early()
            if early is not None:
                return early, ready_bytes(early)
        self._held.request_waits(kept)
        return answer, kept

    def shrink_if_parked(self, quiet_since_ms: float = NEVER_MS) -> None:
        """Gives a large buffer back while the reader waits with nothing in it, if nothing came after that time."""
        if self._parked.is_parked and not self._received.pending and self._received.arrived_ms <= quiet_since_ms:
            self._received.release()
