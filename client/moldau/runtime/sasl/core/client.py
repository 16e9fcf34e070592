"""States of the client's side of SASL on one connection. Pure: frames in, frames out.

VERSIONS --ApiVersions--> HANDSHAKE --mechanism accepted--> EXCHANGE --done--> AUTHENTICATED
                              ^                                                     |
                              +------------------- re-authentication ---------------+
"""

from __future__ import annotations

import enum
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.protocol.api import ApiKey
from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import decode_response, encode_request
from moldau.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from moldau.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau.runtime.sasl.core.mechanism import SaslExchangeError

if TYPE_CHECKING:
    from moldau.protocol.schema import Request
    from moldau.runtime.sasl.core.mechanism import ClientExchange

ROUNDS_MAX: Final = 8
"""Tokens of one exchange that a client sends at most."""
REAUTHENTICATE_AFTER: Final = 0.85
"""Part of a session's life after which the client authenticates again; Kafka's clients draw 0.85 to 0.95."""


class ClientState(enum.Enum):
    """The answer that the client waits for."""

    NEW = enum.auto()
    VERSIONS = enum.auto()
    HANDSHAKE = enum.auto()
    EXCHANGE = enum.auto()
    AUTHENTICATED = enum.auto()
    FAILED = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a request frame (with its size prefix) and hand the response frame to ``receive``."""

    frame: bytes
    correlation_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The client has authenticated; ``lifetime_ms`` is 0 for a session without an end."""

    lifetime_ms: int


Step = Send | Done


class ClientSession:
    """The client's side on one connection. ``peer`` is for messages."""

    def __init__(self, mechanism: str, peer: str, client_id: str | None, software: tuple[str, str]) -> None:
        """``software`` are name and version that ApiVersions carries."""
        self.mechanism = mechanism
        self.state = ClientState.NEW
        self.api_versions: ApiVersionsResponse | None = None
        self.lifetime_ms = 0
        self._peer = peer
        self._client_id = client_id
        self._software = software
        self._exchange: ClientExchange | None = None
        self._version = 0  # of the request under way
        self._authenticate_version = 0
        self._rounds = 0

    # --- inputs

    def start(self, exchange: ClientExchange, correlation_id: int) -> Send:
        """Begins the first authentication of a connection with ApiVersions."""
        assert self.state is ClientState.NEW, self.state
        self._exchange = exchange
        self.state = ClientState.VERSIONS
        return self._ask_versions(ApiVersionsRequest.__versions__.last, correlation_id)

    def start_again(self, exchange: ClientExchange, correlation_id: int) -> Send:
        """Begins a re-authentication (KIP-368)."""
        assert self.state is ClientState.AUTHENTICATED, self.state
        self._exchange = exchange
        return self._shake_hands(correlation_id)

    def receive(self, frame: memoryview, correlation_id: int) -> Step:
        """Takes the response to the last request; ``correlation_id`` is for the next request.

        Raises:
            SaslAuthenticationError: the server refused, or is not the one that it claims to be.
        """
        try:
            match self.state:
                case ClientState.VERSIONS:
                    return self._take_versions(frame, correlation_id)
                case ClientState.HANDSHAKE:
                    return self._take_handshake(frame, correlation_id)
                case ClientState.EXCHANGE:
                    return self._take_token(frame, correlation_id)
                case _:
                    raise AssertionError(f"no response is awaited in {self.state}")
        except DecodeError as error:
            raise self._failed(ErrorCode.SASL_AUTHENTICATION_FAILED, f"malformed answer: {error}") from error

    # --- transitions

    def _ask_versions(self, version: int, correlation_id: int) -> Send:
        self._version = version
        name, release = self._software
        return self._send(
            ApiVersionsRequest(client_software_name=name, client_software_version=release), version, correlation_id
        )

    def _take_versions(self, frame: memoryview, correlation_id: int) -> Step:
        (code,) = struct.unpack_from(">h", frame, 4) if len(frame) >= 6 else (0,)
        if code == ErrorCode.UNSUPPORTED_VERSION and self._version > 0:
            named = decode_response(ApiVersionsResponse, 0, frame)[1].api_keys
            last = next((each.max_version for each in named if each.api_key == ApiKey.API_VERSIONS), 0)
            return self._ask_versions(max(0, min(last, self._version - 1)), correlation_id)
        response = decode_response(ApiVersionsResponse, self._version, frame)[1]
        if response.error_code != ErrorCode.NONE:
            raise self._failed(ErrorCode.of(response.error_code), "the server refused ApiVersions")
        self.api_versions = response
        return self._shake_hands(correlation_id)

    def _served(self, key: ApiKey) -> tuple[int, int] | None:
        assert self.api_versions is not None
        return next(
            ((each.min_version, each.max_version) for each in self.api_versions.api_keys if each.api_key == key), None
        )

    def _shake_hands(self, correlation_id: int) -> Send:
        handshake, authenticate = self._served(ApiKey.SASL_HANDSHAKE), self._served(ApiKey.SASL_AUTHENTICATE)
        if handshake is None or handshake[1] < 1 or authenticate is None:
            raise self._failed(
                ErrorCode.ILLEGAL_SASL_STATE,
                "the server does not serve SaslAuthenticate: set security.protocol to PLAINTEXT or SSL, "
                "or use a newer server",
            )
        self._authenticate_version = min(authenticate[1], SaslAuthenticateRequest.__versions__.last)
        self._version = 1
        self._rounds = 0
        self.state = ClientState.HANDSHAKE
        return self._send(SaslHandshakeRequest(mechanism=self.mechanism), 1, correlation_id)

    def _take_handshake(self, frame: memoryview, correlation_id: int) -> Step:
        response = decode_response(SaslHandshakeResponse, 1, frame)[1]
        code = ErrorCode.of(response.error_code)
        if code is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(response.mechanisms) or "none"
            raise self._failed(code, f"it does not offer this mechanism; set sasl.mechanism to one of: {offered}")
        if code is ErrorCode.ILLEGAL_SASL_STATE:
            raise self._failed(
                code,
                "this listener does not use SASL: set security.protocol to PLAINTEXT or SSL"
                if self.lifetime_ms == 0
                else "it does not accept a re-authentication now",
            )
        if code is not ErrorCode.NONE:
            raise self._failed(code, "it refused the SASL handshake")
        assert self._exchange is not None
        self.state = ClientState.EXCHANGE
        return self._send_token(self._exchange.first(), correlation_id)

    def _take_token(self, frame: memoryview, correlation_id: int) -> Step:
        response = decode_response(SaslAuthenticateResponse, self._authenticate_version, frame)[1]
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE:
            raise self._failed(code, response.error_message or code.message)
        assert self._exchange is not None
        try:
            token = self._exchange.respond(bytes(response.auth_bytes))
        except SaslExchangeError as error:
            raise self._failed(ErrorCode.SASL_AUTHENTICATION_FAILED, str(error)) from error
        if token is not None:
            return self._send_token(token, correlation_id)
        if not self._exchange.is_complete:
            raise self._failed(ErrorCode.SASL_AUTHENTICATION_FAILED, "the server ended the exchange too early")
        self.state = ClientState.AUTHENTICATED
        self._exchange = None
        self.lifetime_ms = max(0, response.session_lifetime_ms)
        return Done(lifetime_ms=self.lifetime_ms)

    # --- parts

    def _send_token(self, token: bytes, correlation_id: int) -> Send:
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            raise self._failed(ErrorCode.SASL_AUTHENTICATION_FAILED, f"no end after {ROUNDS_MAX} messages")
        self._version = self._authenticate_version
        return self._send(SaslAuthenticateRequest(auth_bytes=token), self._version, correlation_id)

    def _send(self, request: Request, version: int, correlation_id: int) -> Send:
        return Send(
            frame=encode_request(request, version, correlation_id, self._client_id), correlation_id=correlation_id
        )

    def _failed(self, code: ErrorCode, detail: str) -> SaslAuthenticationError:
        self.state = ClientState.FAILED
        self._exchange = None
        return SaslAuthenticationError(code, f"{self._peer} with SASL {self.mechanism}: {detail}")


def reauthentication_at_ms(now_ms: float, lifetime_ms: int) -> float:
    """Returns when the client has to authenticate again; infinite for a session without an end."""
    return now_ms + REAUTHENTICATE_AFTER * lifetime_ms if lifetime_ms > 0 else math.inf
