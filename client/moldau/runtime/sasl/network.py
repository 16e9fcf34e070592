"""The network of an end that authenticates itself: connections are authenticated when ``connect`` returns."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from moldau.runtime.ports.environment import SYSTEM_BUFFERS
from moldau.runtime.sasl.core.client import ClientSession, Done, Send, reauthentication_at_ms
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau.runtime.sasl.login import Login
from moldau.runtime.tls.errors import TlsMismatchError, looks_like_tls
from moldau.values import join_address
from moldau.version import VERSION

if TYPE_CHECKING:
    from moldau.protocol.messages.api_versions import ApiVersionsResponse
    from moldau.runtime.config.sasl import LoginSettings
    from moldau.runtime.ports.environment import (
        Arrivals,
        Clock,
        Connection,
        Environment,
        Listener,
        Network,
        SocketBuffers,
    )

SOFTWARE: Final = ("moldau", VERSION)
ANSWER_BYTES_MAX: Final = 1 << 20
_SIZE: Final = struct.Struct(">i")


@dataclass(slots=True, kw_only=True)
class Authenticated:
    """The authentication of one connection, for its owner, which authenticates again in time."""

    session: ClientSession
    login: Login
    clock: Clock
    again_at_ms: float
    expires_at_ms: float

    @property
    def api_versions(self) -> ApiVersionsResponse | None:
        """The versions that the server advertised before the authentication."""
        return self.session.api_versions

    def done(self, lifetime_ms: int) -> None:
        """Notes a successful authentication."""
        now_ms = self.clock.monotonic_ms()
        self.again_at_ms = reauthentication_at_ms(now_ms, lifetime_ms)
        self.expires_at_ms = now_ms + lifetime_ms if lifetime_ms > 0 else math.inf


class SaslNetwork:
    """The ``Network`` port of a client or node that authenticates itself with SASL. Listeners are as they were."""

    def __init__(self, network: Network, login: Login, clock: Clock) -> None:
        """Opens connections through ``network``, which may speak TLS."""
        self.plain: Final = network
        self._login = login
        self._clock = clock

    async def listen(
        self, host: str, port: int, *, backlog: int = 1024, buffers: SocketBuffers = SYSTEM_BUFFERS
    ) -> Listener:
        """See ``Network.listen``."""
        return await self.plain.listen(host, port, backlog=backlog, buffers=buffers)

    def arrivals(self) -> Arrivals | None:
        """See ``Network.arrivals``."""
        return self.plain.arrivals()

    async def connect(self, host: str, port: int) -> Connection:
        """See ``Network.connect``.

        Raises:
            SaslAuthenticationError: the server refuses.
        """
        return (await self.open_authenticated(host, port, None))[0]

    async def open_authenticated(self, host: str, port: int, client_id: str | None) -> tuple[Connection, Authenticated]:
        """Connects and authenticates; also returns the state that a later re-authentication needs."""
        connection = await self.plain.connect(host, port)
        try:
            session = ClientSession(self._login.mechanism, join_address(host, port), client_id, SOFTWARE)
            step: Send | Done = session.start(await self._login.exchange(), 0)
            number = 0
            while isinstance(step, Send):
                await connection.send_all([step.frame])
                frame = await _receive_frame(connection)
                number += 1
                step = session.receive(memoryview(frame), number)
        except BaseException as error:
            connection.close()
            if isinstance(error, SaslAuthenticationError):
                self._login.refused()
            raise
        authenticated = Authenticated(
            session=session, login=self._login, clock=self._clock, again_at_ms=math.inf, expires_at_ms=math.inf
        )
        authenticated.done(step.lifetime_ms)
        return connection, authenticated


async def _receive_frame(connection: Connection) -> bytearray:
    """Returns the next frame without its size. The server sends nothing beyond it before the next request."""
    head = bytearray(_SIZE.size)
    await _fill(connection, head)
    (size,) = _SIZE.unpack(head)
    if not 4 <= size <= ANSWER_BYTES_MAX:
        if looks_like_tls(head):
            raise TlsMismatchError("this listener speaks TLS: set security.protocol=SASL_SSL")
        raise ConnectionAbortedError(f"answer of {size} bytes is outside 4..{ANSWER_BYTES_MAX}")
    frame = bytearray(size)
    await _fill(connection, frame)
    return frame


async def _fill(connection: Connection, buffer: bytearray) -> None:
    view = memoryview(buffer)
    while len(view):
        try:
            count = connection.receive_into_nowait(view)
        except BlockingIOError:
            await connection.wait_readable()
            continue
        if count == 0:
            raise ConnectionResetError("the peer closed the connection during the authentication")
        view = view[count:]


def with_login(environment: Environment, settings: LoginSettings) -> Environment:
    """Returns the environment whose connections authenticate themselves."""
    login = Login(settings, environment)
    return replace(environment, network=SaslNetwork(environment.network, login, environment.clock))
