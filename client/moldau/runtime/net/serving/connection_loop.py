"""One Kafka connection of a server: the loop that turns bytes into requests and answers into bytes.

Two tasks run. The reader receives as much as its buffer holds, hands every complete frame to the connection's handler,
calls ``flush`` once (so that the appends of many pipelined requests become one write), and then sends the answers that
are ready. If an answer is not ready (a ``Deferred``: a long poll, an append that waits for followers), the writer takes
over: it waits for the answers in order and sends them, while the reader continues. Answers always leave in the order of
the requests.

While a client pauses because of its quota, the reader handles no request (``throttle``), but those of SASL: the session
of an authenticated client must not expire meanwhile.

The hot path has no stream object, no queue and no task switch: receive, handle, flush, send, receive. A connection that
always finds more bytes yields once per drain, which keeps the others' latency flat.

Everything is bounded. A receive buffer (``receive_buffer``) starts small and grows to the announced frame (never beyond
``request_bytes_max``). Its growth is charged to a byte budget that all connections share; when the budget is used up,
growth waits, and with it the peer. Answers in flight are bounded in number per connection; ready ones also in bytes.
Their memory and that of their requests is charged to the same budget (``held``). The server's sweeper enforces the
deadlines that are noted here, so a wait costs no cancel scope.
"""

from __future__ import annotations

import errno
import struct
from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, cast

import trio

from moldau.runtime.net.buffers import byte_count
from moldau.runtime.net.receive_buffer import SIZE_BYTES, ReceiveBuffer, unpack_size
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
)
from moldau.runtime.net.serving.held import HeldBytes
from moldau.runtime.net.serving.throttle import Throttle, throttle_of
from moldau.runtime.net.serving.transmission import NEVER_MS, Transmission
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.tls.errors import TlsHandshakeError, looks_like_tls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.runtime.net.serving.request_traces import RequestTrace
    from moldau.runtime.net.serving.server import Server
    from moldau.runtime.ports.environment import Connection

_unpack_api = struct.Struct(">hh").unpack_from  # API key and version, at the start of a request

HEAVY_BYTES = 4096
"""From this size on a request other than Produce is handled in a turn of its own: it may name thousands of things."""

REQUESTS_PER_TURN = 256
"""Requests of one connection before the others have their turn; only those without an answer can be so many."""

GATE_KEY = "sasl.server.max.receive.size"
"""The limit of frames before the authentication."""

_PRODUCE = b"\0\0"
"""API key 0."""

_SASL = (b"\0\x11", b"\0\x24")
"""API keys 17 and 36, SaslHandshake and SaslAuthenticate."""

FRAME_BYTES_MIN = 8
"""API key, version and correlation id: no request is shorter."""


def _byte_count(parts: Sequence[ResponsePart]) -> int:
    """Bytes of an answer that are in memory."""
    return sum(byte_count(part) for part in parts if not isinstance(part, FileRange))


_UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
"""Errors of the kernel for a peer that no longer answers; they are not ``ConnectionError``."""


class ConnectionLoop:
    """One connection: its two tasks, and the deadlines that the sweeper enforces."""

    __slots__ = (
        "_answers",
        "_begun",
        "_connection",
        "_end_reason",
        "_gate",
        "_handler",
        "_held",
        "_last_active_ms",
        "_limits",
        "_parked",
        "_paused_since_ms",
        "_preparing",
        "_received",
        "_scope",
        "_server",
        "_stalled_since_ms",
        "_throttle",
        "_transmission",
        "_work",
    )

    def __init__(self, server: Server, connection: Connection) -> None:
        self._server = server
        self._limits = server.limits
        self._connection = connection
        self._handler: ConnectionHandler | None = None
        self._gate: Gate | None = None  # the handler, if it demands an authentication
        self._throttle = Throttle()  # the handler's, once there is one
        self._paused_since_ms = NEVER_MS  # when requests began to wait for the end of a pause
        self._parked = False  # the reader waits for bytes and holds no view of the buffer
        self._answers: deque[Sequence[ResponsePart] | Deferred] = deque()  # the first is being waited for or sent
        self._begun: deque[tuple[int, float, RequestTrace | None]] = deque()
        """API keys of the answers that have not left, in order, when their requests arrived, and the traces of these;
        see ``times``."""
        self._held = HeldBytes(server.budget, self._limits.buffer_bytes)  # by ``_answers``
        self._received = ReceiveBuffer(server.budget, self._held, server.clock, self._limits)
        self._work = Signal()  # notified when ``_answers`` changes
        self._scope = trio.CancelScope()
        self._end_reason: str | None = None
        self._last_active_ms = server.clock.monotonic_ms()
        self._stalled_since_ms = self._last_active_ms  # when the last of ``_answers`` left, or the first came
        self._transmission = Transmission(connection, server.pool, server.clock, server.limits)
        # The next request with its size and its API key, before it is handled.
        self._preparing: tuple[Preparation, int, int, RequestTrace | None] | None = None

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
                if isinstance(self._handler, Gate):
                    self._gate = self._handler
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._guard, self._write)
                    await self._guard(self._read)
        finally:
            self._connection.close()
            self._received.release()
            self._held.close()
            if self._handler is not None:
                self._handler.closed()
        if self._end_reason is not None:
            self._server.closed_for_cause += 1
            host, port = self._connection.peer_address
            self._server.logger.warning("connection-closed", peer=f"{host}:{port}", reason=self._end_reason)

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
        """See ``connection_tally.Removable``."""
        return self._last_active_ms

    @property
    def is_ending(self) -> bool:
        """Whether the connection is about to end."""
        return self._scope.cancel_called

    def make_way(self) -> None:
        """See ``connection_tally.Removable``."""
        self._finish("makes way for a broker: max.connections reached")

    def give_up_handshake(self) -> None:
        """The peer has been silent for too long while others want to connect; the server logs how often."""
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
        elif not self._answers and not self._is_paused and now_ms - self._last_active_ms >= limits.idle_ms:
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
        if self._answers and now_ms - self._stalled_since_ms >= allowed_ms:
            self._finish(f"requests that wait keep {kept} bytes that others wait for")
        elif self._received.reserved > share and self._received.note_progress(now_ms) >= limits.overdraft_ms:
            self._finish(f"a frame that comes too slowly keeps {kept} bytes that others wait for")
        elif self._received.reserved and now_ms - self._paused_since_ms >= allowed_ms:
            self._finish(f"requests above the quota keep {kept} bytes that others wait for")

    def end_waits(self) -> None:
        """Lets requests be answered that need not wait, if this connection keeps bytes of the budget for requests."""
        if self._held.charged:
            for answer in self._answers:
                if isinstance(answer, EarlyAnswer):
                    answer.end_wait()

    # --- receiving

    async def _read(self) -> None:
        connection, received = self._connection, self._received
        clock = self._server.clock
        waited = True
        while True:
            try:
                count = connection.receive_into_nowait(received.view[received.end :])
            except BlockingIOError:
                self._parked = True
                await connection.wait_readable()
                self._parked = False
                waited = True
                continue
            if count == 0:
                await self._end_of_stream()
                return
            received.end += count
            self._last_active_ms = clock.monotonic_ms()
            if not waited:
                await trio.lowlevel.checkpoint()
            waited = False
            await self._handle_buffered()
            while wanted := received.make_room():
                self._server.keepers[self] = None
                await received.reserve(wanted)

    async def _end_of_stream(self) -> None:
        """Drops the pending answers, because the peer has left."""
        if self._received.pending:
            raise CloseConnection(f"peer left in the middle of a frame ({self._received.pending} bytes of it arrived)")
        self._finish(None)

    async def _handle_buffered(self) -> None:
        """Handles all complete frames, in rounds that the bounds on answers allow."""
        more = True
        while more:
            if len(self._answers) >= self._limits.answers_max:
                self._received.frame_deadline_ms = NEVER_MS
                await self._work.wait_until(lambda: len(self._answers) < self._limits.answers_max)
            if self._throttle.until_ms and self._preparing is None:
                await self._sit_out()
            answers: list[Sequence[ResponsePart] | Deferred] = []
            try:
                more = await self._take_turn(answers)
            except CloseConnection as close:
                self._received.drop()  # nothing more is read
                await self._dispatch(answers)
                await self._dispatch([close.answer] if close.answer else [])
                await self._work.wait_until(lambda: not self._answers)
                raise
            await self._dispatch(answers)
            if self._held.unpaid > 0:
                self._received.frame_deadline_ms = NEVER_MS
                self._server.keepers[self] = None
                await self._held.pay()
            if more:
                await trio.lowlevel.checkpoint()

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
        self._paused_since_ms = NEVER_MS

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
        received = self._received
        start = received.start
        if received.end - start < HEAVY_BYTES or not self._is_heavy(start, unpack_size(received.buffer, start)[0]):
            return self._handle_round(answers, REQUESTS_PER_TURN)
        received.frame_deadline_ms = NEVER_MS
        async with self._server.heavy_lane:
            self._handle_round(answers, 1)
        return True

    def _is_heavy(self, start: int, size: int) -> bool:
        """Whether the complete frame at ``start`` may hold thousands of things. Records are checked in native code."""
        received = self._received
        if not HEAVY_BYTES <= size <= received.end - start - SIZE_BYTES:
            return False
        return received.buffer[start + 4 : start + 6] != _PRODUCE

    def _handle_round(self, answers: list[Sequence[ResponsePart] | Deferred], requests_max: int) -> bool:
        """Handles frames until none is complete (returns False) or a bound is reached (returns True).

        Bounds are those on answers, and ``requests_max``; a heavy frame that is not the first ends the round too.
        """
        handler = self._handler
        assert handler is not None
        limits = self._limits
        received = self._received
        buffer, view = received.buffer, received.view
        times, api_key = self._server.times, -1
        traces = None if times is None else times.traces
        trace: RequestTrace | None = None
        traced: list[RequestTrace] = []
        start, end = received.start, received.end
        gate = self._gate
        least, largest = FRAME_BYTES_MIN, limits.request_bytes_max
        throttle = self._throttle
        room = limits.answers_max - len(self._answers)
        ready_bytes = handled = 0
        try:
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
                if room <= 0 or ready_bytes >= limits.answer_bytes_max or handled >= requests_max:
                    return True
                if handled and (throttle.until_ms or (size >= HEAVY_BYTES and self._is_heavy(start, size))):
                    return True
                handled += 1
                self._server.requests += 1
                received.start = start = stop
                received.frame_deadline_ms = NEVER_MS
                if traces is not None:
                    trace = traces.begin(
                        view[stop - size : stop], self._last_active_ms, self._server.listener_name, self._connection
                    )
                    traced.append(trace)
                answer = handler.handle(view[stop - size : stop])
                if times is not None:
                    api_key, version = _unpack_api(buffer, stop - size) if size >= FRAME_BYTES_MIN else (-1, -1)
                    times.received(api_key, version)
                if answer is None:
                    continue
                if isinstance(answer, (list, tuple)):
                    for part in answer:
                        if not isinstance(part, FileRange):
                            ready_bytes += byte_count(part)
                elif not isinstance(answer, WaitingAnswer) and isinstance(answer, Preparation):
                    self._preparing = (answer, size, api_key, trace)
                    return True
                else:
                    answer, kept = self._hold(answer, size)
                    ready_bytes += kept
                answers.append(answer)
                if times is not None:
                    self._begun.append((api_key, self._last_active_ms, trace))
                room -= 1
            return False
        finally:
            self._flush(answers)
            if traces is not None:
                traces.handled(traced)

    def _handle_prepared(self, answers: list[Sequence[ResponsePart] | Deferred]) -> None:
        """Handles the request that was prepared."""
        assert self._preparing is not None
        (preparation, size, api_key, trace), self._preparing = self._preparing, None
        try:
            answer = preparation.handle()
            if answer is not None:
                answers.append(answer if isinstance(answer, (list, tuple)) else self._hold(answer, size)[0])
                if self._server.times is not None:
                    self._begun.append((api_key, self._last_active_ms, trace))
        finally:
            self._flush(answers)
            if trace is not None:
                trace.owner.handled((trace,))

    def _flush(self, answers: list[Sequence[ResponsePart] | Deferred]) -> None:
        assert self._handler is not None
        try:
            self._handler.flush()
        except CloseConnection:
            answers.clear()  # they promise what was not written; a client that hears nothing asks again
            raise

    def _hold(self, answer: Deferred, size: int) -> tuple[list[ResponsePart] | Deferred, int]:
        """Counts what a request of ``size`` bytes keeps while it waits; answers it now if it must not wait for that.

        Returns the answer and its bytes in memory.
        """
        kept: int = getattr(answer, "held_bytes", size)
        if kept > self._limits.buffer_bytes and isinstance(answer, EarlyAnswer) and not self._held.fits(kept):
            early = answer.answer_early()
            if early is not None:
                return early, _byte_count(early)
        self._held.request_waits(kept)
        return answer, kept

    def shrink_if_parked(self) -> None:
        """Gives a large buffer back while the reader waits with nothing in it."""
        if self._parked and not self._received.pending:
            self._received.release()

    # --- sending

    async def _dispatch(self, answers: list[Sequence[ResponsePart] | Deferred]) -> None:
        """Sends the answers, or leaves them to the writer if one is not ready or others are still under way."""
        if not answers:
            return
        if self._answers or not all(isinstance(answer, (list, tuple)) for answer in answers):
            if not self._answers:
                self._stalled_since_ms = self._server.clock.monotonic_ms()
            for answer in answers:
                if isinstance(answer, (list, tuple)):
                    self._held.answer_queued(_byte_count(answer))
            is_idle = not self._answers
            self._answers.extend(answers)
            if is_idle and not self._waits_without_task():
                self._work.notify()
            return
        if len(answers) == 1:
            await self._transmission.send(cast("Sequence[ResponsePart]", answers[0]))
        else:
            ready = cast("list[Sequence[ResponsePart]]", answers)
            await self._transmission.send([part for parts in ready for part in parts])
        if self._begun:
            self._note_answered(cast("list[Sequence[ResponsePart]]", answers))

    def _note_answered(self, answers: list[Sequence[ResponsePart]]) -> None:
        """Counts the time of the first answers, which have left; a farewell has no request of its own."""
        times = self._server.times
        if times is not None:
            now_ms = self._server.clock.monotonic_ms()
            for answer in answers[: len(self._begun)]:
                api_key, begun_ms, trace = self._begun.popleft()
                times.answered(api_key, now_ms - begun_ms)
                if trace is not None:
                    trace.owner.answered(trace, now_ms, answer)

    async def _write(self) -> None:
        """The writer: waits for answers that were not ready, and sends them in order."""
        while True:
            while self._answers and not self._waits_without_task():
                await self._send_next()
            await self._work.wait()

    def _waits_without_task(self) -> bool:
        """Whether the next answer does not need the writer yet; then its end wakes the writer."""
        first = self._answers[0]
        if not isinstance(first, WaitingAnswer) or first.finished:
            return False
        first.when_finished(self._work.notify)
        return True

    async def _send_next(self) -> None:
        """Sends the next answers that are ready, in one call, or waits for one that is not and sends that."""
        answers = self._answers
        ready = self._ready_answers()
        if not ready:
            ready.append(await cast("Deferred", answers[0]).wait())
        parts = ready[0] if len(ready) == 1 else [part for each in ready for part in each]
        if self._begun and (trace := self._begun[0][2]) is not None:
            trace.owner.ready([begun[2] for begun in islice(self._begun, len(ready))])
        if parts:
            await self._transmission.send(parts)
        for _ in ready:
            answer = answers.popleft()
            if isinstance(answer, (list, tuple)):
                self._held.answer_sent(_byte_count(answer))
            else:
                self._held.request_answered()
        self._stalled_since_ms = self._last_active_ms = self._server.clock.monotonic_ms()
        if self._begun:
            self._note_answered(ready)
        self._work.notify()

    def _ready_answers(self) -> list[Sequence[ResponsePart]]:
        """Returns the answers at the head of the queue that need not wait; they stay in it until they have left."""
        ready: list[Sequence[ResponsePart]] = []
        for answer in self._answers:
            if isinstance(answer, (list, tuple)):
                ready.append(answer)
            elif isinstance(answer, WaitingAnswer) and answer.finished:
                ready.append(answer.answer_now())
            else:
                break
        return ready
