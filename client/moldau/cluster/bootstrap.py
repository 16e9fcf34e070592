"""The environment of a client's connections, and detection of servers in ``bootstrap.servers`` that it cannot use.

Errors name the remedy. A client without TLS that connects to a TLS listener receives a TLS alert instead of a Kafka
frame. If a client with TLS connects to a listener without TLS, the listener just closes the connection, as a busy
broker does. So the client sends one ApiVersions request without TLS, which holds only its software name; an answer
proves that the listener has no TLS. A controller is recognised by the API keys that it serves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.net.layers import logs_in, plain_environment
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.net.served_versions import UnsupportedApiError
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau.runtime.tls.errors import TlsHandshakeCutError, TlsHandshakeError, TlsMismatchError
from moldau.values import join_address

if TYPE_CHECKING:
    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.telemetry.log import EventLogger

PROBE_TIMEOUT_MS = 3_000.0


def environment_or_real(given: Environment | None) -> Environment:
    """Returns ``given``, or the environment of the operating system, whose modules are loaded only then."""
    if given is not None:
        return given
    from moldau.runtime.ports.real import real_environment

    return real_environment()


def bootstrap_key(config: Config) -> str:
    """Returns the configuration key with the addresses at which a client starts."""
    key = "bootstrap.controllers"
    return key if key in config and config.get_list(key) else "bootstrap.servers"


class BootstrapError(KafkaError):
    """Reports that no server can be used: its listener does not match the client, or it is not a broker."""

    def __init__(self, detail: str, code: ErrorCode = ErrorCode.INVALID_CONFIG) -> None:
        """Takes ``detail``, which names the servers and the last one's error."""
        super().__init__(code, detail)


def is_final(error: BaseException) -> bool:
    """Returns whether the failure lasts until a configuration changes."""
    if isinstance(error, TlsHandshakeError):
        return not isinstance(error, TlsHandshakeCutError)
    return isinstance(error, UnsupportedApiError | SaslAuthenticationError)


class Misfits:
    """The servers that the client cannot use.

    The client logs one warning for each, if it can use another server; otherwise its calls fail.
    """

    def __init__(self, logger: EventLogger) -> None:
        self._logger = logger
        self._errors: dict[tuple[str, int], BaseException] = {}
        self._warned: set[tuple[str, int]] = set()
        self._is_served = False

    def failed(self, address: tuple[str, int], error: BaseException) -> None:
        """Records an attempt to connect to a server."""
        if is_final(error):
            self._errors[address] = error
            self._warn()

    def opened(self, address: tuple[str, int]) -> None:
        """Records an open connection, which proves that the listener matches."""
        if isinstance(self._errors.get(address), TlsHandshakeError | SaslAuthenticationError):
            del self._errors[address]
            self._warned.discard(address)

    def served(self) -> None:
        """Records an answer from any server."""
        self._is_served = True
        self._warn()

    def _warn(self) -> None:
        for address, error in self._errors.items():
            if self._is_served and address not in self._warned:
                self._warned.add(address)
                self._logger.warning("server-unusable", host=address[0], port=address[1], error=error)


async def explained(error: Exception, environment: Environment, host: str, port: int) -> Exception:
    """Returns the error of a failed connection; an aborted handshake may mean a listener without TLS."""
    if not isinstance(error, TlsHandshakeCutError):
        return error
    try:
        connection = await RpcConnection.open(
            plain_environment(environment), host, port, None, timeout_ms=PROBE_TIMEOUT_MS
        )
    except (OSError, trio.TooSlowError, ProtocolError, KafkaError):
        return error
    connection.close()
    wanted = "SASL_PLAINTEXT" if logs_in(environment.network) else "PLAINTEXT"
    return TlsMismatchError(
        f"{join_address(host, port)}: this listener does not speak TLS: set security.protocol={wanted}"
    )


def secured_environment(environment: Environment, config: Config) -> Environment:
    """Returns the environment for connections with ``security.protocol``.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    if config.get_str("security.protocol") == "PLAINTEXT":
        return environment
    from moldau.runtime.tls.outgoing import client_environment  # not loaded by clients without TLS and SASL

    return client_environment(environment, config)
