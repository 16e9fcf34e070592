"""The client side of one Kafka connection.

Many requests may be in flight; the peer answers them in order. A connection owns no background task: bytes move while
a task waits for an answer. The first such task receives for all; when its own answer has arrived (or it is cancelled),
another waiting task takes over. The requesting task passes its request to the transport, and a waiting task sends the
bytes that the transport does not take at once. So a connection needs no nursery, leaves no task behind, and a request
needs no task switch if the transport takes it.

A request that times out closes the connection, because no later answer can arrive before its own (Kafka's clients do
the same). All other requests in flight then fail with ``ConnectionError``, and it is unknown whether the peer carried
them out. Cancelling a sent request only drops its answer; if that does not come in the time of its wait, the next
request finds the connection closed. Closing a connection with pending answers aborts it: the
caller may retry the request elsewhere, and after an ordinary close the transport could deliver the old request later.
Packets in flight can still arrive. A client that ends retries nothing, so the transport may deliver its requests.

Every answer gets memory of its own, so that messages may keep views of it.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, TypeVar, cast

import trio

from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.framing import decode_response, encode_request, encode_request_header
from moldau.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.protocol.schema import Request, Response
from moldau.runtime.net.buffers import byte_count, drop_sent
from moldau.runtime.net.features import FinalizedFeatures
from moldau.runtime.net.frames import BadFrameError, ResponseFrames, reason_of_bad_frame, reason_of_end
from moldau.runtime.net.layers import logs_in
from moldau.runtime.net.pending import (
    REQUEST_TIMEOUT_MS,
    PendingResponse,
    RpcBusyError,
    decode_api_versions,
    older_version,
)
from moldau.runtime.net.served_versions import ServedVersions
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.tls.errors import TlsHandshakeError, TlsMismatchError, looks_like_tls
from moldau.values import join_address
from moldau.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from moldau.runtime.net.peers import ExpectedPeer
    from moldau.runtime.net.renewal import Renewal
    from moldau.runtime.net.served_versions import NeededVersion
    from moldau.runtime.ports.environment import Connection, Environment
    from moldau.runtime.sasl.core.client import Send
    from moldau.runtime.sasl.network import Authenticated
    from moldau.values import Buffer

R = TypeVar("R", bound=Response)
T = TypeVar("T")

_SIZE = struct.Struct(">i")

CLIENT_SOFTWARE_NAME = "moldau"
CLIENT_SOFTWARE_VERSION = VERSION

RESPONSE_BYTES_MAX = 256 * 1024 * 1024
"""Largest response frame taken by default; Kafka's clients bound fetches by ``fetch.max.bytes`` plus one batch."""

EXPECTED_PEER_VERSION = 5
"""From this version of ApiVersions on a client names the node that it expects (KIP-1242)."""

SESSION_LOST = "the authenticated session has ended, and a new connection needs a new token"

REQUESTS_IN_FLIGHT_MAX = 64
DRAIN_BYTES_MAX = 1024 * 1024
"""Bytes received without a wait before other tasks get their turn."""


class RpcConnection:
    """One connection to a Kafka-compatible node. Made by ``open``.

    Invariants: ``_pending`` holds the requests without an answer in the order in which their bytes were queued; at most
    one task receives and at most one task sends.
    """

    def __init__(
        self,
        connection: Connection,
        client_id: str | None,
        *,
        in_flight_max: int = REQUESTS_IN_FLIGHT_MAX,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
        authenticated: Authenticated | None = None,
        expected: ExpectedPeer | None = None,
    ) -> None:
        """Takes over ``connection``. Without ``negotiate`` only ``request_raw`` and explicit versions can be used."""
        self._expected = expected
        self._connection = connection
        self._client_id = client_id
        self._in_flight_max = in_flight_max
        self._next_correlation_id = 0
        self._pending: deque[PendingResponse[object]] = deque()
        self._outgoing: Sequence[Buffer] = ()
        self._sending = False
        self._receiving = False
        self._receive_wait = trio.CancelScope()
        self._changed = Signal()  # an answer came, a role became free, the connection died
        self._error: str | None = None
        self._error_class: type[ConnectionError] = ConnectionAbortedError
        self._has_unanswerable = False  # only the transport knows whether such requests have arrived: it keeps them
        self._served = ServedVersions()
        self.features = FinalizedFeatures()
        self._frames = ResponseFrames(response_bytes_max)
        self._answers = 0  # since the peer first said what it serves
        self.throttled_until = 0.0
        """When the peer reads requests again, on trio's clock in seconds, as its last answers said (KIP-219)."""
        self._renewal: Renewal | None = None
        if authenticated is not None:
            from moldau.runtime.net.renewal import Renewal  # not loaded by clients without SASL

            self._renewal = Renewal(authenticated)

    @classmethod
    async def open(
        cls,
        environment: Environment,
        host: str,
        port: int,
        client_id: str | None,
        *,
        timeout_ms: float = REQUEST_TIMEOUT_MS,
        in_flight_max: int = REQUESTS_IN_FLIGHT_MAX,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
        negotiate: bool = True,
        expected: ExpectedPeer | None = None,
    ) -> RpcConnection:
        """Connects through the environment's network (with TLS: ``TlsNetwork``), and asks for the versions served.

        A login asks before it and names no ``expected`` peer, which the server must be authenticated for.

        Raises:
            OSError: the connection was refused or died.
            trio.TooSlowError: it took longer than ``timeout_ms`` altogether.
            KafkaError: the peer answered ApiVersions with an error: REBOOTSTRAP_REQUIRED if it is not ``expected``.
        """
        with trio.fail_after(timeout_ms / 1000):
            authenticated: Authenticated | None = None
            network = environment.network
            if logs_in(network):
                connection, authenticated = await network.open_authenticated(host, port, client_id)
            else:
                connection = await network.connect(host, port)
            try:
                opened = cls(
                    connection,
                    client_id,
                    in_flight_max=in_flight_max,
                    response_bytes_max=response_bytes_max,
                    authenticated=authenticated,
                    expected=expected,
                )
                if authenticated is not None and authenticated.api_versions is not None:
                    opened.learn_versions(authenticated.api_versions)
                    negotiate = expected is not None and opened.version_for(ApiVersionsRequest) >= EXPECTED_PEER_VERSION
                if negotiate:
                    await opened.negotiate(timeout_ms)
            except BaseException:
                connection.close()
                raise
        return opened

    # --- what the peer serves

    async def negotiate(self, timeout_ms: float = REQUEST_TIMEOUT_MS) -> None:
        """Asks for the API versions that the peer serves (KIP-35), again in its own version after error 35."""
        version = ApiVersionsRequest.__versions__.last
        await self._wait_capacity(timeout_ms)
        response = await self._ask_versions(version, timeout_ms)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            response = await self._ask_versions(older_version(response, version), timeout_ms)
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode.of(response.error_code), f"{self.peer} refused ApiVersions")
        self.learn_versions(response)

    async def _ask_versions(self, version: int, timeout_ms: float) -> ApiVersionsResponse:
        request = ApiVersionsRequest(
            client_software_name=CLIENT_SOFTWARE_NAME, client_software_version=CLIENT_SOFTWARE_VERSION
        )
        if self._expected is not None and version >= EXPECTED_PEER_VERSION:
            request.cluster_id, request.node_id = self._expected
        frame = await self._submit_message(request, version, lambda frame: frame).wait(timeout_ms)
        return decode_api_versions(frame, version)

    def learn_versions(self, response: ApiVersionsResponse) -> None:
        """Takes the versions that the peer serves."""
        if not self._served.by_key:
            self._answers = 0
        self._served = ServedVersions(response)
        self.features = FinalizedFeatures.of(response)

    @property
    def served_versions(self) -> Mapping[int, tuple[int, int]]:
        """First and last version that the peer serves, by API key; empty before ``negotiate``."""
        return self._served.by_key

    def serves(self, api_key: int) -> bool:
        """Returns whether the peer serves an API in a version known here."""
        return self._served.serves(api_key)

    def version_for(self, message: type[Request] | Request, version_max: int | None = None) -> int:
        """Returns the highest version of a request that both ends know, at most ``version_max``.

        Raises:
            UnsupportedApiError: there is none.
        """
        return self._served.version_for(message, version_max, self.peer)

    def require(self, message: type[Request] | Request, needed: NeededVersion) -> None:
        """Checks that the peer serves the version of a request from which on it has a feature.

        Raises:
            UnsupportedApiError: it does not.
        """
        self._served.require(message, needed, self.peer)

    # --- requests

    @property
    def peer(self) -> str:
        """Host and port of the other end."""
        return join_address(*self._connection.peer_address)

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return len(self._pending) + (len(self._renewal.held) if self._renewal is not None else 0)

    @property
    def is_open(self) -> bool:
        """Whether nothing has gone wrong yet."""
        return self._error is None

    def notice_lost_session(self) -> bool:
        """Returns whether the connection is still open; closes it if its session has ended, and it cannot get another.

        The next request would find that out, and fail.
        """
        if self._renewal is not None and self._error is None and self._renewal.is_lost:
            self.fail(SESSION_LOST)
        return self._error is None

    def notice_end(self) -> bool:
        """Returns whether the connection is still open, after a check for a close by the peer.

        Checks only a connection without requests in flight, or with an answer that is overdue and that no task waits
        for: if it has not come, the connection is closed. On others some task receives.
        """
        while self._error is None and not self._receiving and (not self._pending or self._pending[0].is_overdue):
            try:
                count = self._connection.receive_into_nowait(self._frames.room())
            except BlockingIOError:
                if self._pending:
                    self.fail(f"no answer to request {self._pending[0].correlation_id}, whose caller was cancelled")
                break
            except OSError as error:
                self._lost(error)
            else:
                if count:
                    self._received(count)
                else:
                    self.fail("the peer closed the connection")
        return self._error is None

    def submit(self, message: Request, version: int | None = None) -> PendingResponse[Response]:
        """Queues a request for sending, without waiting, and returns its answer under way.

        Requests reach the peer in the order of the calls.

        Raises:
            ConnectionError: the connection is closed.
            RpcBusyError: ``in_flight_max`` requests are under way.
        """
        if version is None:
            version = self.version_for(message)
        chosen = version
        response_class = APIS[message.__api_key__].response
        return self._submit_message(message, chosen, lambda frame: decode_response(response_class, chosen, frame)[1])

    def submit_frame(self, encode: Callable[[int], bytes], decode: Callable[[memoryview], T]) -> PendingResponse[T]:
        """Queues the request frame that ``encode`` makes of a correlation id; ``decode`` reads the frame of its answer.

        Raises:
            Exception: as ``submit``.
        """
        self._check_capacity()
        correlation_id = self._take_correlation_id()
        return self._enqueue(correlation_id, (encode(correlation_id),), decode)

    def submit_without_response(self, message: Request, version: int | None = None) -> None:
        """Queues a request that gets no answer (Produce with acks=0). Bytes may wait until some task waits."""
        self._check_open()
        if version is None:
            version = self.version_for(message)
        self._has_unanswerable = True
        frame = (encode_request(message, version, self._take_correlation_id(), self._client_id),)
        if not self._hold(None, frame):
            self._queue(frame)

    async def request(
        self,
        message: Request,
        version: int | None = None,
        timeout_ms: float = REQUEST_TIMEOUT_MS,
    ) -> Response:
        """Sends a request and returns the response to it, whose class belongs to the request's API.

        Waits first while too many requests are in flight.

        Raises:
            Exception: as ``submit`` and ``PendingResponse.wait``.
        """
        await self._wait_capacity(timeout_ms)
        return await self.submit(message, version).wait(timeout_ms)

    async def request_as(
        self,
        response_class: type[R],
        message: Request,
        version: int | None = None,
        timeout_ms: float = REQUEST_TIMEOUT_MS,
    ) -> R:
        """Sends a request like ``request``; ``response_class`` states the type of the response."""
        response = await self.request(message, version, timeout_ms)
        assert isinstance(response, response_class), f"{type(message).__name__} is not answered by {response_class}"
        return response

    async def request_raw(
        self, api_key: int, version: int, body: Buffer, timeout_ms: float = REQUEST_TIMEOUT_MS
    ) -> memoryview:
        """Sends a request of a private API (header version 1) and returns the body of its answer (header version 0)."""
        await self._wait_capacity(timeout_ms)
        return await self.submit_raw(api_key, version, body).wait(timeout_ms)

    def submit_raw(self, api_key: int, version: int, body: Buffer) -> PendingResponse[memoryview]:
        """Queues a request of a private API; ``body`` is kept until it is sent.

        Raises:
            Exception: as ``submit``.
        """
        self._check_capacity()
        correlation_id = self._take_correlation_id()
        header = encode_request_header(api_key, version, correlation_id, self._client_id, 1)
        frame = (_SIZE.pack(len(header) + byte_count(body)) + header, body)
        return self._enqueue(correlation_id, frame, lambda response: response[4:])

    async def _wait_capacity(self, timeout_ms: float) -> None:
        if self.in_flight < self._in_flight_max:
            return
        if self._pending and self._pending[0].is_overdue:
            self.notice_end()
        with trio.move_on_after(timeout_ms / 1000) as scope:
            while self.in_flight >= self._in_flight_max:
                await self.drive(self._pending[0])
        if scope.cancelled_caught:
            raise trio.TooSlowError(f"{self.peer}: {self._in_flight_max} requests in flight for {timeout_ms:.0f} ms")

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error_class(f"{self.peer}: {self._error}")

    def _check_capacity(self) -> None:
        if self._pending and self._pending[0].is_overdue:
            self.notice_end()
        self._check_open()
        if self.in_flight >= self._in_flight_max:
            raise RpcBusyError(f"{self.peer}: {self._in_flight_max} requests are in flight")

    def _take_correlation_id(self) -> int:
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        return correlation_id

    def _submit_message(self, message: Request, version: int, decode: Callable[[memoryview], T]) -> PendingResponse[T]:
        self._check_capacity()
        correlation_id = self._take_correlation_id()
        frame = encode_request(message, version, correlation_id, self._client_id)
        return self._enqueue(correlation_id, (frame,), decode)

    def _enqueue(
        self, correlation_id: int, frame: tuple[Buffer, ...], decode: Callable[[memoryview], T]
    ) -> PendingResponse[T]:
        pending = PendingResponse(self, correlation_id, decode)
        if not self._hold(cast("PendingResponse[object]", pending), frame):
            self._pending.append(cast("PendingResponse[object]", pending))
            self._queue(frame)
        return pending

    # --- re-authentication (KIP-368)

    def _hold(self, pending: PendingResponse[object] | None, frame: tuple[Buffer, ...]) -> bool:
        """Returns whether a request waits for the end of a re-authentication, which begins here when it is due."""
        renewal = self._renewal
        if renewal is None:
            return False
        if not renewal.is_under_way and renewal.is_due:
            self._renew(renewal)
        if not renewal.is_under_way:
            return False
        renewal.held.append((pending, frame))
        return True

    def _renew(self, renewal: Renewal) -> None:
        try:
            step = renewal.begin(self._take_correlation_id())
        except SaslAuthenticationError as error:
            self.fail(f"re-authentication failed: {error.message}")
            raise ConnectionAbortedError(f"{self.peer}: {self._error}") from error
        if step is not None:
            self._send_renewal(renewal, step)
        elif renewal.is_over:
            self.fail(SESSION_LOST)
            raise ConnectionAbortedError(f"{self.peer}: {self._error}")

    def _send_renewal(self, renewal: Renewal, step: Send) -> None:
        self._pending.append(renewal.await_answer(self, step.correlation_id))
        self._queue((step.frame,))

    def _advance_renewal(self, renewal: Renewal, frame: memoryview) -> None:
        """Takes an answer of the re-authentication; at its end the requests that waited leave."""
        try:
            step = renewal.receive(frame, self._take_correlation_id())
            if step is not None:
                self._send_renewal(renewal, step)
                return
            held, renewal.held = renewal.held, []
            for pending, waiting in held:
                if pending is not None:
                    self._pending.append(pending)
                self._queue(waiting)
        except SaslAuthenticationError as error:
            self.fail(f"re-authentication failed: {error.message}")
        except ConnectionError:
            return  # ``_queue`` has closed the connection, and says so to every task that waits

    def _queue(self, buffers: tuple[Buffer, ...]) -> None:
        """Hands bytes to the transport, or puts them behind those that wait already."""
        if self._outgoing:
            self._outgoing = [*self._outgoing, *buffers]
            return
        try:
            self._outgoing = drop_sent(buffers, self._connection.send_nowait(buffers))
        except BlockingIOError:
            self._outgoing = buffers
        except OSError as error:
            self._lost(error)
            raise self._error_class(f"{self.peer}: {self._error}") from error
        if self._outgoing:
            self._changed.notify()

    # --- moving bytes

    async def drive(self, wanted: PendingResponse[T]) -> None:
        """Moves bytes in both directions, as far as no other task does, until ``wanted`` has its answer."""
        while not wanted.arrived:
            self._check_open()
            if self._outgoing and not self._sending:
                await self._send_outgoing()
            elif not self._receiving:
                await self._receive_until(wanted)
            else:
                await self._changed.wait()

    async def flush(self) -> None:
        """Waits until the transport has taken every queued byte; for requests without a response.

        Raises:
            ConnectionError: the connection ended first.
        """
        renewal = self._renewal
        while self._outgoing or (renewal is not None and renewal.held):
            self._check_open()
            if not self._outgoing and renewal is not None and renewal.awaited is not None:
                await self.drive(renewal.awaited)
            elif self._sending:
                await self._changed.wait()
            else:
                await self._send_outgoing()

    async def _send_outgoing(self) -> None:
        self._sending = True
        try:
            while self._outgoing:
                try:
                    self._outgoing = drop_sent(self._outgoing, self._connection.send_nowait(self._outgoing))
                except BlockingIOError:
                    await self._connection.wait_writable()
        except OSError as error:
            self._lost(error)
        finally:
            self._sending = False
            self._changed.notify()
            if self._outgoing:  # this task is cancelled, and the one that receives may be the only one to go on sending
                self._receive_wait.cancel()

    async def _receive_until(self, wanted: PendingResponse[T]) -> None:
        """Receives for all until ``wanted`` is answered, or until there are bytes to send and no sending task."""
        self._receiving = True
        drained = 0
        try:
            while not wanted.arrived and self._error is None:
                try:
                    count = self._connection.receive_into_nowait(self._frames.room())
                except BlockingIOError:
                    if self._outgoing and not self._sending:
                        return
                    with trio.CancelScope() as self._receive_wait:
                        await self._connection.wait_readable()
                    drained = 0
                    continue
                if count == 0:
                    self.fail(
                        reason_of_end(
                            is_first=not self._answers and self._renewal is None,
                            serves_sasl=self.serves(ApiKey.SASL_HANDSHAKE),
                        )
                    )
                    return
                self._received(count)
                drained += count
                if drained >= DRAIN_BYTES_MAX:
                    await trio.lowlevel.checkpoint()
                    drained = 0
        except OSError as error:
            self._lost(error)
        finally:
            self._receiving = False
            self._changed.notify()

    def _lost(self, error: OSError) -> None:
        """Closes the connection after an error of the transport; a refused certificate stays recognizable as one."""
        if isinstance(error, TlsHandshakeError):
            self._error_class = type(error)
            self.fail(str(error))
        else:
            self.fail(f"connection lost: {error.strerror or error}")

    def _received(self, count: int) -> None:
        try:
            for frame in self._frames.take(count):
                self._complete(frame)
                if self._error is not None:
                    return
        except BadFrameError as error:
            if looks_like_tls(error.received):
                self._error_class = TlsMismatchError
            self.fail(reason_of_bad_frame(error))

    def _complete(self, frame: memoryview) -> None:
        (correlation_id,) = _SIZE.unpack_from(frame)
        if not self._pending or self._pending[0].correlation_id != correlation_id:
            expected = self._pending[0].correlation_id if self._pending else "none"
            self.fail(f"answer with correlation id {correlation_id} where {expected} was expected")
            return
        arrived = self._pending.popleft()
        self._answers += 1
        arrived.resolve(frame)
        if self._renewal is not None and arrived is self._renewal.awaited:
            self._advance_renewal(self._renewal, frame)
        self._changed.notify()

    def fail(self, reason: str) -> None:
        """Closes the connection; all requests in flight fail with ``ConnectionError`` that names ``reason``.

        With requests in flight it is aborted, so that the transport does not deliver abandoned requests later.
        """
        self._shut(reason, keeps_sent=self._has_unanswerable)

    def close(self, *, keeps_sent: bool = False) -> None:
        """Closes the connection; idempotent. Requests in flight fail with ``ConnectionError``.

        With ``keeps_sent`` the transport still delivers them, for a client that ends and repeats none of them. A
        cancelled member leaves its group by such a request.
        """
        self._shut("this end closed the connection", keeps_sent=keeps_sent or self._has_unanswerable)

    def _shut(self, reason: str, *, keeps_sent: bool) -> None:
        if self._error is None:
            self._error = reason
            if self._pending and not keeps_sent:
                self._connection.abort()
            else:
                self._connection.close()
            self._pending.clear()
            if self._renewal is not None:
                self._renewal.held.clear()
            self._outgoing = ()
            self._changed.notify()
