"""The shared parts of the connections of one listener with SASL: mechanisms, credentials, and the log of attempts."""

from __future__ import annotations

import base64
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from moldau.runtime.config.sasl import SCRAM_MECHANISMS, BootstrapCredential, listener_sasl, principal_rules
from moldau.runtime.net.serving.answers import CloseConnection
from moldau.runtime.sasl.attempts import ListenerAttempts
from moldau.runtime.sasl.core.identity import Identity, Peer
from moldau.runtime.sasl.core.oauth import OauthServer
from moldau.runtime.sasl.core.plain import PlainServer
from moldau.runtime.sasl.core.principals import distinguished_name
from moldau.runtime.sasl.core.scram import (
    NONCE_BYTES,
    SALT_BYTES,
    ScramKeys,
    ScramServer,
    TokenKeys,
    decoy_keys,
    keys_of,
    salted_password,
)
from moldau.runtime.sasl.core.server import SessionRules
from moldau.runtime.sasl.gate import SaslGate
from moldau.runtime.sasl.tokens import TokenChecker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.runtime.config import Config, SecurityProtocol
    from moldau.runtime.net.serving.answers import Answer, ConnectionHandler, HandlerFactory
    from moldau.runtime.ports.environment import Connection, Environment
    from moldau.runtime.sasl.core.mechanism import Rejected, ServerExchange
    from moldau.runtime.telemetry.log import EventLogger

FAILURES_LOGGED_MAX: Final = 20
"""Failed attempts that a listener logs in one second; more are counted."""
CLAIMED_SHOWN_MAX: Final = 64


class ScramCredentials(Protocol):
    """Where a listener finds SCRAM credentials; mechanisms have the numbers of KIP-554."""

    def keys(self, user: str, mechanism: int) -> ScramKeys | None:
        """Returns the keys of a user, None if there are none."""
        ...

    def usual_iterations(self, mechanism: int) -> int:
        """Returns the iteration count that users have here, for the answer to an unknown user."""
        ...

    def token(self, token_id: str, mechanism: int, wall_ms: int) -> TokenKeys | None:
        """Returns a delegation token, None if there is none or it has expired at ``wall_ms``."""
        ...


class SaslListener:
    """One listener with SASL. ``reload`` takes changed configuration for logins and renewals from then on."""

    def __init__(
        self,
        environment: Environment,
        config: Config,
        listener_name: str,
        security_protocol: SecurityProtocol,
        credentials: ScramCredentials,
        logger: EventLogger,
    ) -> None:
        """Draws a secret for decoys.

        Raises:
            ConfigError: the configuration cannot be used.
        """
        self.name = listener_name
        self.security_protocol = security_protocol.name
        self._environment = environment
        self._credentials = credentials
        self._logger = logger
        # Drawn also where it is configured, so that a run of the simulation does not depend on that.
        self._drawn_secret = environment.random.getrandbits(256).to_bytes(32, "big")
        self._logged_second = -1.0
        self._logged = self._suppressed = 0
        self.attempts = ListenerAttempts()
        self._settings = listener_sasl(config, listener_name)
        self._tokens: TokenChecker | None = None
        self.rules: SessionRules
        self.reload(config)

    def reload(self, config: Config) -> None:
        """Takes changed configuration. Sessions that live go on to their end, and are then renewed by it.

        Raises:
            ConfigError: it is wrong, and nothing has changed.
        """
        settings = listener_sasl(config, self.name)
        tokens = self._tokens
        if "OAUTHBEARER" not in settings.mechanisms:
            tokens = None
        elif tokens is None or settings.tokens != self._settings.tokens:  # else it keeps the keys that it has read
            tokens = TokenChecker(settings.tokens, self._environment)
        self._settings = settings
        self._tokens = tokens
        self.rules = SessionRules(
            exchanges={mechanism: self._factory(mechanism) for mechanism in settings.mechanisms},
            reauthentication_ms=settings.reauthentication_ms,
        )
        self.attempts.show(settings.mechanisms)
        self.failure_delay_ms = settings.failure_delay_ms
        self.receive_bytes_max = settings.receive_bytes_max

    def handler_factory(self, make_inner: Callable[[Connection, Peer], ConnectionHandler]) -> HandlerFactory:
        """Returns the factory of gates in front of the handlers that ``make_inner`` makes."""
        return lambda connection: SaslGate(self, connection, self._environment.clock, make_inner)

    # --- mechanisms

    def _factory(self, mechanism: str) -> Callable[[], ServerExchange]:
        if mechanism == "PLAIN":
            return partial(PlainServer, self._settings.plain_users.get)
        if mechanism == "OAUTHBEARER":
            assert self._tokens is not None
            return partial(OauthServer, self._tokens.check)
        return partial(self._scram, mechanism)

    def _scram(self, mechanism: str) -> ScramServer:
        nonce = self._environment.random.getrandbits(8 * NONCE_BYTES).to_bytes(NONCE_BYTES, "big")
        number = SCRAM_MECHANISMS[mechanism]
        secret = self._settings.decoy_secret or self._drawn_secret
        return ScramServer(
            mechanism,
            lambda user: self._credentials.keys(user, number),
            lambda user: decoy_keys(mechanism, user, secret, self._credentials.usual_iterations(number)),
            base64.b64encode(nonce).decode().replace("=", ""),
            lambda token_id: self._credentials.token(token_id, number, self._environment.clock.wall_ms()),
        )

    async def prepare(self, mechanism: str, token: bytes) -> None:
        """Reads what the check of a token needs and does not have yet."""
        if mechanism == "OAUTHBEARER" and self._tokens is not None:
            await self._tokens.prepare(token)

    # --- counts and log

    def note_success(self, identity: Identity, *, again: bool) -> None:
        """Counts and logs that a peer has authenticated."""
        self.attempts.of(identity.mechanism).count(accepted=True, again=again)
        self._logger.debug(
            "re-authenticated" if again else "authenticated",
            principal=identity.principal,
            mechanism=identity.mechanism,
            peer=identity.host,
            listener=self.name,
        )

    def note_failure(self, host: str, mechanism: str, rejected: Rejected, *, again: bool) -> None:
        """Counts and logs a failed attempt; a flood of them costs a bounded number of lines."""
        self.attempts.of(mechanism).count(accepted=False, again=again)
        second = self._environment.clock.monotonic_ms() // 1000
        if second != self._logged_second:
            self._logged_second, self._logged = second, 0
        if self._logged >= FAILURES_LOGGED_MAX:
            self._suppressed += 1
            return
        self._logged += 1
        suppressed, self._suppressed = self._suppressed, 0
        self._logger.warning(
            "re-authentication-failed" if again else "authentication-failed",
            peer=host,
            listener=self.name,
            mechanism=mechanism,
            principal=f"User:{rejected.claimed[:CLAIMED_SHOWN_MAX]}",
            reason=rejected.cause,
            **({"unlogged": suppressed} if suppressed else {}),
        )


def peer_handlers(
    config: Config,
    listener_name: str,
    security_protocol: SecurityProtocol,
    sasl: SaslListener | None,
    make_inner: Callable[[Connection, Peer], ConnectionHandler],
) -> HandlerFactory:
    """Returns the factory of a listener's handlers, which know their peer.

    With SASL a gate stands in front of them; with TLS alone the peer is the owner of its certificate.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    if sasl is not None:
        return sasl.handler_factory(make_inner)
    rules = principal_rules(config, listener_name) if security_protocol.uses_tls else None

    def make(connection: Connection) -> ConnectionHandler:
        identity = Identity(
            host=connection.peer_address[0], listener_name=listener_name, security_protocol=security_protocol.name
        )
        certificate = getattr(connection, "peer_certificate", None)
        if rules is not None and certificate:
            subject = distinguished_name(certificate)
            name = rules.apply(subject)
            if name is None:
                return _NoPrincipal(subject)
            identity = Identity(
                principal=f"User:{name}",
                mechanism="SSL",
                host=identity.host,
                listener_name=listener_name,
                security_protocol=security_protocol.name,
            )
        return make_inner(connection, Peer(identity))

    return make


class _NoPrincipal:
    """Ends a connection whose certificate no rule of ``ssl.principal.mapping.rules`` fits, as Kafka does."""

    def __init__(self, name: str) -> None:
        self._name = name

    def handle(self, frame: memoryview) -> Answer:
        """Refuses the peer.

        Raises:
            CloseConnection: always.
        """
        raise CloseConnection(f"no rule of ssl.principal.mapping.rules fits the certificate of {self._name}")

    def flush(self) -> None:
        """Has nothing to write."""

    def closed(self) -> None:
        """Has nothing to drop."""


def bootstrap_keys(
    credentials: Sequence[BootstrapCredential], draw: Callable[[int], bytes]
) -> dict[tuple[str, int], ScramKeys]:
    """Returns the keys of the bootstrap credentials, by user and number of the mechanism.

    ``draw`` returns random bytes, for an entry without a salt.
    """
    found: dict[tuple[str, int], ScramKeys] = {}
    for entry in credentials:
        salt = draw(SALT_BYTES) if entry.salt is None else entry.salt
        salted = entry.salted_password
        if salted is None:
            assert entry.password is not None
            salted = salted_password(entry.mechanism, entry.password, salt, entry.iterations)
        found[entry.user, SCRAM_MECHANISMS[entry.mechanism]] = keys_of(entry.mechanism, salted, salt, entry.iterations)
    return found
