"""The gate in front of the handler of a connection: nothing but SASL passes until the peer has authenticated.

The gate is a ``ConnectionHandler`` around another one. The states are those of ``core.server``; this shell decodes
frames, supplies the time, reads keys of tokens, delays failed attempts and logs them. After the authentication it costs
a request one comparison of its API key.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.api import ApiKey
from moldau.protocol.codec import DecodeError, decode
from moldau.protocol.framing import decode_request_header, encode_response
from moldau.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from moldau.protocol.messages.sasl_handshake import SaslHandshakeRequest
from moldau.runtime.net.serving.answers import CloseConnection, Preparation
from moldau.runtime.net.serving.throttle import throttle_of
from moldau.runtime.sasl.core.identity import Identity, Peer
from moldau.runtime.sasl.core.server import Answer, Event, Input, PassOn, RawAnswer, Refuse, SaslSession, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.protocol.framing import RequestHeader
    from moldau.runtime.net.serving.answers import Answer as WireAnswer
    from moldau.runtime.net.serving.answers import ConnectionHandler, ResponsePart
    from moldau.runtime.ports.environment import Clock, Connection
    from moldau.runtime.sasl.core.mechanism import Rejected
    from moldau.runtime.sasl.core.server import Effect
    from moldau.runtime.sasl.listener import SaslListener

AUTHENTICATION_MS: Final = 30_000.0
"""A peer that has not authenticated after this time is disconnected: nothing is known of it."""
FRAME_BYTES_MIN: Final = 8
_HANDSHAKE = int(ApiKey.SASL_HANDSHAKE).to_bytes(2, "big")
_AUTHENTICATE = int(ApiKey.SASL_AUTHENTICATE).to_bytes(2, "big")
_VERSIONS = int(ApiKey.API_VERSIONS).to_bytes(2, "big")
_SASL_KEYS = (int(ApiKey.SASL_HANDSHAKE), int(ApiKey.SASL_AUTHENTICATE))  # below 256: the second byte of a frame
_EVENTS: Final = {_HANDSHAKE: Event.HANDSHAKE, _AUTHENTICATE: Event.AUTHENTICATE, _VERSIONS: Event.VERSIONS}


class SaslGate:
    """Serves one connection of a listener with SASL; see ``moldau.runtime.net.serving.answers.ConnectionHandler``."""

    def __init__(
        self,
        listener: SaslListener,
        connection: Connection,
        clock: Clock,
        make_inner: Callable[[Connection, Peer], ConnectionHandler],
    ) -> None:
        """No user has authenticated."""
        self._listener = listener
        self._clock = clock
        host = connection.peer_address[0]
        self._peer = Peer(
            Identity(host=host, listener_name=listener.name, security_protocol=listener.security_protocol)
        )
        self._session = SaslSession(listener.rules)
        self._is_open = False  # requests pass; kept in step with the session's state, for the hot path
        self._inner = make_inner(connection, self._peer)
        self.throttle = throttle_of(self._inner)
        self._deadline_ms = clock.monotonic_ms() + AUTHENTICATION_MS
        self._logged_failure: Rejected | None = None  # its answer was delayed as well

    # --- what the connection loop asks

    @property
    def deadline_ms(self) -> float:
        """When the connection must have authenticated; infinite once it has."""
        return self._deadline_ms

    def frame_bounds(self, least: int, largest: int) -> tuple[int, int]:
        """Returns the sizes that the next frame may have, from those of the listener for requests."""
        if self._is_open or self._session.user is not None:
            return least, largest
        if self._session.state is State.RAW_EXCHANGE:
            least = 0
        return least, min(largest, self._listener.receive_bytes_max)

    # --- ConnectionHandler

    def handle(self, frame: memoryview) -> WireAnswer | Preparation:
        """Handles one frame.

        Raises:
            CloseConnection: the peer may not say this now.
        """
        if self._is_open and (frame[1] not in _SASL_KEYS or frame[0]):
            if self._session.expires_ms != math.inf:
                effect = self._receive(self._input(Event.OTHER))
                if not isinstance(effect, PassOn):
                    self._refuse_request(effect)
            return self._inner.handle(frame)
        session = self._session
        if session.state is State.RAW_EXCHANGE:
            return _Step(self, self._input(Event.TOKEN, token=bytes(frame)), None)
        event = _EVENTS.get(bytes(frame[:2]), Event.OTHER)
        try:
            header = decode_request_header(frame)
            if event is Event.HANDSHAKE:
                return self._take_handshake(header, frame)
            if event is Event.AUTHENTICATE:
                return self._take_authenticate(header, frame)
        except DecodeError as error:
            raise CloseConnection(f"malformed request before authentication: {error}") from error
        effect = self._receive(self._input(event))
        if isinstance(effect, PassOn):
            return self._inner.handle(frame)
        self._refuse_request(effect)
        raise AssertionError(effect)

    def flush(self) -> None:
        """See ``ConnectionHandler.flush``."""
        self._inner.flush()

    def closed(self) -> None:
        """See ``ConnectionHandler.closed``."""
        self._inner.closed()

    # --- parts

    def _input(self, event: Event, *, version: int = 0, mechanism: str = "", token: bytes = b"") -> Input:
        clock = self._clock
        return Input(
            event=event,
            now_ms=clock.monotonic_ms(),
            wall_ms=clock.wall_ms(),
            version=version,
            mechanism=mechanism,
            token=token,
        )

    def _receive(self, given: Input) -> Effect:
        session = self._session
        was, user, mechanism = session.state, session.user, session.mechanism
        effect = session.receive(given)
        self._is_open = session.state is State.AUTHENTICATED
        # ``prepare`` counts failures of an exchange, and a connection that is closed already has been counted.
        if isinstance(effect, Refuse) and effect.failure is None and was is not State.CLOSED:
            if was is State.AUTHENTICATED and given.event in (Event.OTHER, Event.VERSIONS):
                self._listener.attempts.expired += 1
            else:
                self._listener.attempts.of(mechanism).count(accepted=False, again=user is not None)
        return effect

    def _refuse_request(self, effect: Effect) -> None:
        assert isinstance(effect, Refuse), effect
        raise CloseConnection(effect.reason)

    def _take_handshake(self, header: RequestHeader, frame: memoryview) -> WireAnswer:
        if header.api_version not in SaslHandshakeRequest.__versions__:
            raise CloseConnection(f"SaslHandshake version {header.api_version} is not served")
        request = decode(SaslHandshakeRequest, header.api_version, bytes(frame), header.body_offset)
        self._session.rules = self._listener.rules  # the login of an earlier exchange may be valid no more
        effect = self._receive(self._input(Event.HANDSHAKE, version=header.api_version, mechanism=request.mechanism))
        return self.answer_of(effect, header)

    def _take_authenticate(self, header: RequestHeader, frame: memoryview) -> WireAnswer | Preparation:
        if header.api_version not in SaslAuthenticateRequest.__versions__:
            raise CloseConnection(f"SaslAuthenticate version {header.api_version} is not served")
        request = decode(SaslAuthenticateRequest, header.api_version, bytes(frame), header.body_offset)
        return _Step(self, self._input(Event.AUTHENTICATE, token=bytes(request.auth_bytes)), header)

    async def prepare(self, given: Input) -> Effect:
        """Performs a step of an exchange: reads the keys of a token first, and delays the answer to a failure."""
        session, listener = self._session, self._listener
        if session.state in (State.EXCHANGE, State.RAW_EXCHANGE, State.REAUTHENTICATION):
            await listener.prepare(session.mechanism, given.token)
            clock = self._clock  # it may have waited for keys, and the client counts its session from the answer
            given = replace(given, now_ms=clock.monotonic_ms(), wall_ms=clock.wall_ms())
        was, mechanism = session.user, session.mechanism
        effect = self._receive(given)
        failure = None if isinstance(effect, PassOn) else effect.failure
        if failure is not None and failure is not self._logged_failure:  # OAUTHBEARER refuses in two answers
            self._logged_failure = failure
            listener.note_failure(self._peer.identity.host, mechanism, failure, again=was is not None)
            await trio.sleep(listener.failure_delay_ms / 1000)
        return effect

    def answer_of(self, effect: Effect, header: RequestHeader | None) -> list[ResponsePart]:
        """Turns an effect into what leaves; ``header`` is that of the request, None for a bare token.

        Raises:
            CloseConnection: the connection must end after its answer.
        """
        if isinstance(effect, RawAnswer):
            self._note_authenticated(effect.authenticated)
            return [len(effect.data).to_bytes(4, "big") + effect.data]
        if isinstance(effect, Refuse):
            parts: list[ResponsePart] = []
            if effect.response is not None and header is not None:
                parts = [encode_response(effect.response, header.api_version, header.correlation_id)]
            raise CloseConnection(effect.reason, parts, is_logged=effect.failure is not None)
        assert isinstance(effect, Answer), effect
        assert header is not None
        self._note_authenticated(effect.authenticated)
        return [encode_response(effect.response, header.api_version, header.correlation_id)]

    def _note_authenticated(self, user: str | None) -> None:
        if user is None:
            return
        self._deadline_ms = math.inf
        before = self._peer.identity
        self._peer.identity = Identity(
            principal=f"User:{user}",
            mechanism=self._session.mechanism,
            host=before.host,
            listener_name=before.listener_name,
            security_protocol=before.security_protocol,
            by_token=self._session.by_token,
        )
        self._listener.note_success(self._peer.identity, again=not before.is_anonymous)


class _Step(Preparation):
    """One token of an exchange; the connection is not read until its answer is ready."""

    __slots__ = ("_effect", "_gate", "_given", "_header")

    def __init__(self, gate: SaslGate, given: Input, header: RequestHeader | None) -> None:
        self._gate = gate
        self._given = given
        self._header = header
        self._effect: Effect | None = None

    async def prepare(self) -> None:
        """See ``Preparation.prepare``."""
        self._effect = await self._gate.prepare(self._given)

    def handle(self) -> WireAnswer:
        """See ``Preparation.handle``."""
        assert self._effect is not None, "it was prepared"
        return self._gate.answer_of(self._effect, self._header)
