"""Blocking connections to brokers, with TLS and SASL where ``kafka.security.protocol`` of the query says so."""

from __future__ import annotations

import math
import socket
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

from moldau.protocol.codec import ProtocolError
from moldau.protocol.framing import decode_response, encode_request
from moldau.protocol.schema import Response
from moldau.runtime.config import ConfigError
from moldau.values import join_address
from pyspark_moldau.client_options import PREFIX, OptionError, security_config
from pyspark_moldau.wire.authentication import authenticate, login_of

if TYPE_CHECKING:
    import ssl

    from moldau.protocol.schema import Request
    from moldau.runtime.tls.reloading import ReloadingContext
    from pyspark_moldau.client_options import ClientOptions

FRAME_BYTES_MAX: Final = 512 * 1024 * 1024
CERTIFICATE_EXPIRED: Final = 10
"""OpenSSL's code (``X509_V_ERR_CERT_HAS_EXPIRED``)."""
TLS_ALERT: Final = b"\x15\x03"
"""How a TLS server answers what is no handshake; as a size it would be more than ``FRAME_BYTES_MAX``."""
_OTHERWISE: Final = {
    (False, False): ("TLS or SASL", "SSL, SASL_SSL or SASL_PLAINTEXT"),
    (True, False): ("SASL", "SASL_SSL"),
    (False, True): ("TLS", "SASL_SSL"),
}
"""By whether the client speaks TLS, and SASL: which listeners hang up without an answer, and what to set then."""

R = TypeVar("R", bound=Response)


def tls_context(client: ClientOptions) -> ssl.SSLContext | None:
    """Returns what a new connection of a query speaks TLS with, None where it does not; it follows renewed files.

    Raises:
        OptionError: the configuration cannot be used; the text names the key.
    """
    found = _tls(client)
    return None if found is None else found.current()


@lru_cache(maxsize=16)
def _tls(client: ClientOptions) -> ReloadingContext | None:
    """Returns the TLS of a query, whose process may live longer than its certificate.

    Raises:
        OptionError: the configuration cannot be used; the text names the key.
    """
    if not client.security:
        return None
    from moldau.runtime.ports.real import RealClock, RealDisk
    from moldau.runtime.tls.context import client_tls

    try:
        return client_tls(RealDisk(), security_config(client), RealClock())
    except ConfigError as error:
        raise OptionError(f"{PREFIX}{error.problems[0]}") from error


class BrokerConnection:
    """One blocking connection. Close it after any exception, because requests and responses may be out of step."""

    def __init__(self, host: str, port: int, client: ClientOptions) -> None:
        """Connects to a broker.

        Raises:
            OSError: the connection failed.
            OptionError: the keys of TLS or SASL are wrong, or the broker refused the login.
        """
        self._client_id = client.client_id
        self._peer = join_address(host, port)
        self._has_answered = False
        self._until_s = math.inf
        context, login = tls_context(client), login_of(client)
        self._tls_remedy = "SSL, or SASL_SSL if it demands a login" if login is None else "SASL_SSL"
        kinds, protocols = _OTHERWISE.get((context is not None, login is not None), ("", ""))
        self._hint = f"; if its listener uses {kinds}, set {PREFIX}security.protocol to {protocols}" if kinds else ""
        self._socket = socket.create_connection((host, port), timeout=client.connect_timeout_ms / 1000)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option, size in (
                (socket.SO_RCVBUF, client.receive_buffer_bytes),
                (socket.SO_SNDBUF, client.send_buffer_bytes),
            ):
                if size > 0:
                    self._socket.setsockopt(socket.SOL_SOCKET, option, size)
            if context is not None:
                self._socket = _secured(
                    context, self._socket, host, port, "PLAINTEXT" if login is None else "SASL_PLAINTEXT"
                )
            # The broker may hold a fetch for as long as it was asked to.
            self._socket.settimeout((client.request_timeout_ms + client.fetch_wait_ms) / 1000)
            if login is not None:
                self._until_s = authenticate(
                    client, login, join_address(host, port), self._socket.sendall, self._read_frame
                )
        except BaseException:
            self._socket.close()
            raise
        self._correlation_id = 0

    @property
    def is_outdated(self) -> bool:
        """Whether the broker will soon end the session of this login (``connections.max.reauth.ms``)."""
        return time.monotonic() >= self._until_s

    def close(self) -> None:
        """Closes the connection; idempotent."""
        self._socket.close()

    def send(self, request: Request, version: int) -> None:
        """Sends a request; responses arrive in the order of the requests."""
        self._correlation_id += 1
        self._socket.sendall(encode_request(request, version, self._correlation_id, self._client_id))

    def receive(self, response_class: type[R], version: int) -> R:
        """Reads the next response into a buffer of its own; ``records`` fields borrow from it."""
        frame = self._read_frame()
        try:
            _, message = decode_response(response_class, version, frame)
        except ProtocolError as error:
            raise ConnectionError(f"a response is not a {response_class.__name__}: {error}") from error
        return message

    def _read_frame(self) -> memoryview:
        head = bytes(self._read_exactly(4))
        if head.startswith(TLS_ALERT):
            raise ConnectionError(f"this listener speaks TLS: set {PREFIX}security.protocol to {self._tls_remedy}")
        size = int.from_bytes(head, "big", signed=True)
        if not 4 <= size <= FRAME_BYTES_MAX:
            raise ConnectionError(f"the answer is none of Kafka's protocol ({size} bytes): is this another service?")
        frame = self._read_exactly(size)
        self._has_answered = True
        return frame

    def _read_exactly(self, count: int) -> memoryview:
        view = memoryview(bytearray(count))
        filled = 0
        while filled < count:
            try:
                received = self._socket.recv_into(view[filled:])
            except OSError as error:
                # TLS 1.3 brokers look at the client's certificate when the client takes the handshake for finished.
                _check_alert(error, self._peer)
                raise
            if received == 0:
                hint = "" if self._has_answered else self._hint
                raise ConnectionResetError(f"the broker closed the connection{hint}")
            filled += received
        return view


def _secured(context: ssl.SSLContext, plain: socket.socket, host: str, port: int, otherwise: str) -> socket.socket:
    """Does the TLS handshake; ``otherwise`` is the protocol without TLS.

    Raises:
        OptionError: the certificates do not fit; another attempt would not help.
        OSError: the handshake failed for another reason.
    """
    import ssl

    from moldau.runtime.tls.context import certified_name

    no_tls = f"this listener does not speak TLS: set {PREFIX}security.protocol to {otherwise}, or use its TLS listener"
    try:
        return context.wrap_socket(plain, server_hostname=certified_name(host))
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == CERTIFICATE_EXPIRED:
            raise OptionError(
                f"{PREFIX}bootstrap.servers: the certificate of {join_address(host, port)} has expired; "
                "the broker needs a new one"
            ) from error
        raise OptionError(
            f"{PREFIX}ssl.truststore.location: the certificate of {join_address(host, port)} is not trusted "
            f"({error.verify_message}); name the PEM file with its signer, or check the host name"
        ) from error
    except ssl.SSLError as error:
        _check_alert(error, join_address(host, port))
        if error.reason in ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING"):
            raise ConnectionError(no_tls) from error
        raise
    except (ConnectionResetError, BrokenPipeError) as error:
        raise ConnectionError(no_tls) from error


def _check_alert(error: OSError, peer: str) -> None:
    """Refuses the keys of TLS if the broker ended the connection because of the client's certificate.

    Raises:
        OptionError: it did; another attempt would not help.
    """
    reason = getattr(error, "reason", None)  # of an SSLError
    if isinstance(reason, str) and "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        raise OptionError(
            f"{PREFIX}ssl.keystore.location: {peer} did not accept the certificate of this client, or got none "
            f"({reason}); name the PEM file with a certificate that the broker trusts, and its key"
        ) from error
