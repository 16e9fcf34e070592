"""Goal: an opening that fails leaves no connection behind, whatever it failed of.

Method: a network of one connection that notes its end. Its peer sends what a test says, or nothing, or closes.
"""

from __future__ import annotations

import math
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from moldau.protocol.framing import encode_response
from moldau.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from moldau.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from moldau.protocol.messages.sasl_handshake import SaslHandshakeResponse
from moldau.runtime.ports.real import real_environment
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau.runtime.sasl.core.plain import PlainClient
from moldau.runtime.sasl.network import ANSWER_BYTES_MAX, Authenticated, SaslNetwork
from moldau.runtime.tls.context import TlsNetwork, client_context
from moldau.runtime.tls.errors import TlsHandshakeError, TlsMismatchError
from support.certificates import authority

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_S = 10
KEYS = [ApiVersion(api_key=key, min_version=0, max_version=1) for key in (17, 36)]


class Connection:
    """Gives the bytes of the peer, then the end of the stream, or silence."""

    peer_address = ("b", 1)

    def __init__(self, received: bytes, *, ends: bool, broken: OSError | None = None) -> None:
        self.received, self.ends, self.broken = received, ends, broken
        self.closed = 0

    async def send_all(self, buffers: Any) -> None:
        await trio.lowlevel.checkpoint()
        if self.broken is not None:
            raise self.broken

    def send_nowait(self, buffers: Any) -> int:
        return sum(len(each) for each in buffers)

    def receive_into_nowait(self, buffer: memoryview) -> int:
        part, self.received = self.received[: len(buffer)], self.received[len(buffer) :]
        if not part and not self.ends:
            raise BlockingIOError
        buffer[: len(part)] = part
        return len(part)

    async def wait_readable(self) -> None:
        if self.received or self.ends:
            await trio.lowlevel.checkpoint()
        else:
            await trio.sleep_forever()

    def close(self) -> None:
        self.closed += 1

    abort = close


class Login:
    mechanism = "PLAIN"

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.refusals = error, 0

    async def exchange(self) -> PlainClient:
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        return PlainClient("ann", "pencil")

    def refused(self) -> None:
        self.refusals += 1


class Clock:
    def monotonic_ms(self) -> float:
        return trio.current_time() * 1_000


def network_of(connection: Connection) -> Any:
    async def connect(host: str, port: int) -> Connection:
        await trio.lowlevel.checkpoint()
        return connection

    return SimpleNamespace(connect=connect)


def opened(make: Callable[[], Any]) -> tuple[BaseException | None, Any]:
    """Returns the error of an opening, or what it opened; None and None if it lasted for too long."""

    async def main() -> tuple[BaseException | None, Any]:
        with trio.move_on_after(LIMIT_S):
            try:
                return None, await make().connect("b", 1)
            except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - it is judged below
                return error, None
        return None, None

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def frame(response: Any, number: int, version: int = 0) -> bytes:
    return encode_response(response, version, number)


VERSIONS = frame(ApiVersionsResponse(api_keys=KEYS), 0, ApiVersionsRequest.__versions__.last)
OFFER = VERSIONS + frame(SaslHandshakeResponse(mechanisms=["PLAIN"]), 1, 1)
REFUSED = SaslAuthenticateResponse(error_code=58, error_message="wrong")
SASL_FAILURES = [
    ("its first answer never comes", b"", False, None),
    ("a later answer never comes", OFFER, False, None),
    ("an answer is cut", OFFER[:-3], False, None),
    ("the peer closes at once", b"", True, ConnectionResetError),
    ("the peer closes within an answer", VERSIONS[:7], True, ConnectionResetError),
    ("the listener speaks TLS", b"\x15\x03\x03\x00\x02\x02\x0a", True, TlsMismatchError),
    ("an answer is too large", struct.pack(">i", ANSWER_BYTES_MAX + 1), False, ConnectionAbortedError),
    ("a broken answer of four bytes", struct.pack(">ii", 4, 0), False, SaslAuthenticationError),
    ("an answer is too small", struct.pack(">i", 3), False, ConnectionAbortedError),
    (
        "the mechanism is not offered",
        VERSIONS + frame(SaslHandshakeResponse(error_code=33), 1, 1),
        False,
        SaslAuthenticationError,
    ),
    ("the password is wrong", OFFER + frame(REFUSED, 2, 1), False, SaslAuthenticationError),
]


@pytest.mark.parametrize(("_", "received", "ends", "error"), SASL_FAILURES, ids=[row[0] for row in SASL_FAILURES])
def test_a_login_that_fails_closes_its_connection(_: str, received: bytes, ends: bool, error: type | None) -> None:
    """A refused login says so to its owner, which then fetches another token. Nothing else does."""
    connection, login = Connection(received, ends=ends), Login()
    found, made = opened(lambda: SaslNetwork(network_of(connection), login, Clock()))
    assert (type(found), made) == (error or type(None), None)
    assert connection.closed == 1
    assert login.refusals == (error is SaslAuthenticationError)


@pytest.mark.parametrize("error", [ConnectionError("no token"), RuntimeError("a bug")])
def test_a_login_without_a_token_closes_its_connection(error: Exception) -> None:
    connection, login = Connection(b"", ends=False), Login(error)
    assert opened(lambda: SaslNetwork(network_of(connection), login, Clock())) == (error, None)
    assert (connection.closed, login.refusals) == (1, 0)


def test_a_login_that_succeeds_keeps_its_connection() -> None:
    lifetime = frame(SaslAuthenticateResponse(session_lifetime_ms=60_000), 2, 1)
    connection, login = Connection(OFFER + lifetime, ends=False), Login()
    error, made = opened(lambda: SaslNetwork(network_of(connection), login, Clock()))
    assert (error, made, connection.closed, login.refusals) == (None, connection, 0, 0)


@pytest.mark.parametrize(
    ("received", "ends", "error"),
    [
        (b"", False, None),
        (b"", True, TlsHandshakeError),
        (b"\x15\x03\x03\x00\x02\x02\x0a", False, TlsHandshakeError),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False, TlsHandshakeError),
        (b"\x16\x03\x03\x40", False, None),
    ],
)
def test_a_handshake_that_fails_closes_its_connection(received: bytes, ends: bool, error: type | None) -> None:
    context = client_context(authority().settings(), real_environment(1).disk)
    connection = Connection(received, ends=ends)
    found, made = opened(lambda: TlsNetwork(network_of(connection), context))
    assert isinstance(found, error or type(None))
    assert (made, connection.closed) == (None, 1)


@pytest.mark.parametrize("lifetimes", [[60_000, 0, 30_000], [0, 60_000], [1_000, 90_000, 10]])
def test_each_authentication_has_an_end_of_its_own(lifetimes: list[int]) -> None:
    """A renewal may lengthen a session, shorten it, or let it have no end."""
    session: Any = None
    clock = SimpleNamespace(monotonic_ms=lambda: now_ms)
    given = Authenticated(session=session, login=session, clock=clock, again_at_ms=math.inf, expires_at_ms=math.inf)
    for number, lifetime_ms in enumerate(lifetimes):
        now_ms = 1_000.0 * (number + 1)
        given.done(lifetime_ms)
        if lifetime_ms:
            assert given.expires_at_ms == now_ms + lifetime_ms
            assert now_ms < given.again_at_ms < given.expires_at_ms
        else:
            assert given.expires_at_ms == given.again_at_ms == math.inf
