"""States of the broker's side of SASL on one connection, with every event in every state. Pure.

    INITIAL --handshake v1--> EXCHANGE --accepted--> AUTHENTICATED --handshake v1--> REAUTHENTICATION --accepted--+
       |                                                 ^    ^                                                   |
       +-----handshake v0--> RAW_EXCHANGE --accepted-----+    +---------------------------------------------------+

With SaslHandshake version 0 the tokens travel as bare frames, with version 1 inside SaslAuthenticate. Before a client
has authenticated it may ask for ApiVersions until its handshake, and for nothing else. A session ends after
``connections.max.reauth.ms`` (KIP-368) or with the client's token: a request after that closes the connection, unless
it begins a re-authentication, which must keep mechanism and principal. Each failure is final: the connection closes
after one answer. ``_TABLE`` holds all transitions.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from moldau.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from moldau.runtime.sasl.core.mechanism import Accepted, Challenge, Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.protocol.schema import Request, Response
    from moldau.runtime.sasl.core.mechanism import ServerExchange

REAUTHENTICATION_INTERVAL_MIN_MS: Final = 1_000.0
"""Least time between two re-authentications, as in Kafka: each exchange costs the broker more than a request."""
MECHANISM_SHOWN_MAX: Final = 40


class State(enum.Enum):
    """Where the connection is."""

    INITIAL = enum.auto()
    EXCHANGE = enum.auto()
    RAW_EXCHANGE = enum.auto()
    AUTHENTICATED = enum.auto()
    REAUTHENTICATION = enum.auto()
    CLOSED = enum.auto()


class Event(enum.Enum):
    """The client's message."""

    VERSIONS = enum.auto()
    HANDSHAKE = enum.auto()
    AUTHENTICATE = enum.auto()
    TOKEN = enum.auto()  # a bare frame
    OTHER = enum.auto()  # any other request


# --- inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One frame of the client, at ``now_ms`` (monotonic) and ``wall_ms``."""

    event: Event
    now_ms: float
    wall_ms: int
    version: int = 0  # of HANDSHAKE
    mechanism: str = ""  # of HANDSHAKE
    token: bytes = b""  # of AUTHENTICATE and TOKEN


# --- effects


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOn:
    """The request goes to the handler behind the gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Send a response."""

    response: Response
    authenticated: str | None = None  # the user, where this answer completes an exchange
    failure: Rejected | None = None  # where it says why the authentication has failed


@dataclass(frozen=True, slots=True, kw_only=True)
class RawAnswer:
    """Send a bare token."""

    data: bytes
    authenticated: str | None = None
    failure: Rejected | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Send ``response``, if there is one, and close the connection. ``failure`` is set if an authentication failed."""

    reason: str
    response: Response | None = None
    failure: Rejected | None = None


Effect = PassOn | Answer | RawAnswer | Refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """The demands of a listener. Mechanisms are in the order in which answers list them."""

    exchanges: Mapping[str, Callable[[], ServerExchange]]
    reauthentication_ms: Mapping[str, int]  # by mechanism; 0: sessions have no end of their own

    def lifetime_ms(self, mechanism: str, expires_wall_ms: int | None, wall_ms: int) -> int:
        """Returns the life of a new session; 0 for one without an end."""
        lifetime_ms = max(0, self.reauthentication_ms.get(mechanism, 0))
        if expires_wall_ms is None:
            return lifetime_ms
        remaining_ms = max(1, expires_wall_ms - wall_ms)
        return min(lifetime_ms, remaining_ms) if lifetime_ms else remaining_ms


class SaslSession:
    """The state of one connection.

    Invariants: ``user`` is set exactly in AUTHENTICATED and REAUTHENTICATION; ``_exchange`` exactly in the three states
    of an exchange.
    """

    def __init__(self, rules: SessionRules) -> None:
        """Begins in INITIAL."""
        self.rules = rules
        """The demands of the listener, which may change between two exchanges."""
        self.state = State.INITIAL
        self.user: str | None = None
        self.by_token = False
        """Whether the user authenticated with a delegation token."""
        self.mechanism = ""
        self.expires_ms = math.inf
        """End of the session on the monotonic clock."""
        self._renewed_ms = -math.inf
        """When the last re-authentication began."""
        self._exchange: ServerExchange | None = None

    def receive(self, given: Input) -> Effect:
        """Takes one frame and returns what to do; no frame, whatever it holds, makes it fail."""
        effect = _TABLE[self.state, given.event](self, given)
        if isinstance(effect, Refuse):
            self.state = State.CLOSED
            self._exchange = None
        return effect

    # --- transitions

    def _pass_versions(self, given: Input) -> Effect:
        return PassOn()

    def _pass_request(self, given: Input) -> Effect:
        if given.now_ms >= self.expires_ms:
            return Refuse(reason="the authenticated session has expired")
        return PassOn()

    def _begin(self, given: Input) -> Effect:
        refusal = self._refusal_of_mechanism(given.mechanism)
        if refusal is not None:
            return refusal
        self.mechanism = given.mechanism
        self._exchange = self.rules.exchanges[given.mechanism]()
        self.state = State.RAW_EXCHANGE if given.version == 0 else State.EXCHANGE
        return Answer(response=self._handshake_response(ErrorCode.NONE))

    def _begin_again(self, given: Input) -> Effect:
        if given.now_ms - self._renewed_ms < REAUTHENTICATION_INTERVAL_MIN_MS:
            return Answer(response=self._handshake_response(ErrorCode.ILLEGAL_SASL_STATE))
        if given.version == 0:
            return self._illegal("a re-authentication needs SaslHandshake version 1")
        refusal = self._refusal_of_mechanism(given.mechanism)
        if refusal is not None:
            return refusal
        if given.mechanism != self.mechanism:
            return Refuse(
                reason=f"a re-authentication with {given.mechanism} in place of {self.mechanism}",
                response=self._handshake_response(ErrorCode.ILLEGAL_SASL_STATE),
            )
        self._exchange = self.rules.exchanges[given.mechanism]()
        self.state = State.REAUTHENTICATION
        self._renewed_ms = given.now_ms
        return Answer(response=self._handshake_response(ErrorCode.NONE))

    def _step(self, given: Input) -> Effect:
        assert self._exchange is not None
        outcome = self._exchange.step(given.token)
        if isinstance(outcome, Challenge):
            return self._answer(outcome.data, 0, None, outcome.refusal)
        if isinstance(outcome, Accepted):
            if self.user is not None and outcome.user != self.user:
                return self._failed(
                    Rejected(
                        cause=f"a re-authentication of {self.user} as another user",
                        message=f"Cannot change principals during re-authentication from User.{self.user}: "
                        f"User.{outcome.user}",
                        claimed=outcome.user,
                    )
                )
            lifetime_ms = self.rules.lifetime_ms(self.mechanism, outcome.expires_wall_ms, given.wall_ms)
            effect = self._answer(outcome.data, lifetime_ms, outcome.user)
            self.state = State.AUTHENTICATED
            self.user = outcome.user
            self.by_token = outcome.by_token
            self.expires_ms = given.now_ms + lifetime_ms if lifetime_ms else math.inf
            self._exchange = None
            return effect
        return self._failed(outcome)

    def _answer(self, data: bytes, lifetime_ms: int, user: str | None, failure: Rejected | None = None) -> Effect:
        if self.state is State.RAW_EXCHANGE:
            return RawAnswer(data=data, authenticated=user, failure=failure)
        response = SaslAuthenticateResponse(error_message=None, auth_bytes=data, session_lifetime_ms=lifetime_ms)
        return Answer(response=response, authenticated=user, failure=failure)

    def _failed(self, rejected: Rejected) -> Refuse:
        kind = "authentication" if self.user is None else "re-authentication"
        message = rejected.message or (
            f"Authentication failed during {kind} due to invalid credentials with SASL mechanism {self.mechanism}"
        )
        response = SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message, auth_bytes=b""
        )
        is_raw = self.state is State.RAW_EXCHANGE
        return Refuse(reason=rejected.cause, response=None if is_raw else response, failure=rejected)

    def _authenticate_late(self, given: Input) -> Effect:
        return Answer(
            response=SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received after successful authentication",
                auth_bytes=b"",
            )
        )

    def _refuse_early(self, given: Input) -> Effect:
        return Refuse(reason="a request before authentication")

    def _refuse_between(self, given: Input) -> Effect:
        return Refuse(reason="a request in the middle of a SASL exchange")

    def _authenticate_early(self, given: Input) -> Effect:
        return Refuse(
            reason="SaslAuthenticate before SaslHandshake",
            response=SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received before SaslHandshake",
                auth_bytes=b"",
            ),
        )

    def _handshake_between(self, given: Input) -> Effect:
        return self._illegal("SaslHandshake in the middle of a SASL exchange")

    def _token_elsewhere(self, given: Input) -> Effect:
        return Refuse(reason="a bare SASL token outside its exchange")

    def _closed(self, given: Input) -> Effect:
        return Refuse(reason="a request after a failed authentication")

    # --- parts

    def _illegal(self, reason: str) -> Refuse:
        return Refuse(reason=reason, response=self._handshake_response(ErrorCode.ILLEGAL_SASL_STATE))

    def _refusal_of_mechanism(self, mechanism: str) -> Refuse | None:
        if mechanism in self.rules.exchanges:
            return None
        return Refuse(
            reason=f"SASL mechanism {mechanism[:MECHANISM_SHOWN_MAX]!r} is not enabled on this listener",
            response=self._handshake_response(ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        )

    def _handshake_response(self, code: ErrorCode) -> SaslHandshakeResponse:
        return SaslHandshakeResponse(error_code=code, mechanisms=list(self.rules.exchanges))


_S, _E = State, Event
_TABLE: Final[Mapping[tuple[State, Event], Callable[[SaslSession, Input], Effect]]] = {
    (_S.INITIAL, _E.VERSIONS): SaslSession._pass_versions,
    (_S.INITIAL, _E.HANDSHAKE): SaslSession._begin,
    (_S.INITIAL, _E.AUTHENTICATE): SaslSession._authenticate_early,
    (_S.INITIAL, _E.TOKEN): SaslSession._token_elsewhere,
    (_S.INITIAL, _E.OTHER): SaslSession._refuse_early,
    (_S.EXCHANGE, _E.VERSIONS): SaslSession._refuse_between,
    (_S.EXCHANGE, _E.HANDSHAKE): SaslSession._handshake_between,
    (_S.EXCHANGE, _E.AUTHENTICATE): SaslSession._step,
    (_S.EXCHANGE, _E.TOKEN): SaslSession._token_elsewhere,
    (_S.EXCHANGE, _E.OTHER): SaslSession._refuse_between,
    (_S.RAW_EXCHANGE, _E.VERSIONS): SaslSession._refuse_between,
    (_S.RAW_EXCHANGE, _E.HANDSHAKE): SaslSession._refuse_between,
    (_S.RAW_EXCHANGE, _E.AUTHENTICATE): SaslSession._refuse_between,
    (_S.RAW_EXCHANGE, _E.TOKEN): SaslSession._step,
    (_S.RAW_EXCHANGE, _E.OTHER): SaslSession._refuse_between,
    (_S.AUTHENTICATED, _E.VERSIONS): SaslSession._pass_request,
    (_S.AUTHENTICATED, _E.HANDSHAKE): SaslSession._begin_again,
    (_S.AUTHENTICATED, _E.AUTHENTICATE): SaslSession._authenticate_late,
    (_S.AUTHENTICATED, _E.TOKEN): SaslSession._token_elsewhere,
    (_S.AUTHENTICATED, _E.OTHER): SaslSession._pass_request,
    (_S.REAUTHENTICATION, _E.VERSIONS): SaslSession._refuse_between,
    (_S.REAUTHENTICATION, _E.HANDSHAKE): SaslSession._handshake_between,
    (_S.REAUTHENTICATION, _E.AUTHENTICATE): SaslSession._step,
    (_S.REAUTHENTICATION, _E.TOKEN): SaslSession._token_elsewhere,
    (_S.REAUTHENTICATION, _E.OTHER): SaslSession._refuse_between,
    **{(_S.CLOSED, event): SaslSession._closed for event in Event},
}


def illegal_sasl_state(request: Request) -> Response | None:
    """Returns the answer to a SASL request on a listener without SASL, None to any other request."""
    if isinstance(request, SaslHandshakeRequest):
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
    if isinstance(request, SaslAuthenticateRequest):
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="This listener does not use SASL",
            auth_bytes=b"",
        )
    return None
