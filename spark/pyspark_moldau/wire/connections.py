"""Blocking connections to brokers, with TLS where the ``kafka.security.protocol`` of the query says so."""

from __future__ import annotations

import socket
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

from moldau.protocol.codec import ProtocolError
from moldau.protocol.framing import decode_response, encode_request
from moldau.protocol.schema import Response
from moldau.runtime.config import ConfigError
from pyspark_moldau.client_options import PREFIX, OptionError, security_config

if TYPE_CHECKING:
    import ssl

    from moldau.protocol.schema import Request
    from pyspark_moldau.client_options import ClientOptions

FRAME_BYTES_MAX: Final = 512 * 1024 * 1024
TLS_ALERT: Final = b"\x15\x03"
"""How a TLS server answers what is no handshake; as a size it would be more than ``FRAME_BYTES_MAX``."""
SPOKEN: Final = ("PLAINTEXT", "SSL")

R = TypeVar("R", bound=Response)


@lru_cache(maxsize=16)
def tls_context(client: ClientOptions) -> ssl.SSLContext | None:
    """Returns what the connections of a query speak TLS with, None where they do not.

    Raises:
        OptionError: the configuration cannot be used; the text names the key.
    """
    if not client.security:
        return None
    from moldau.runtime.ports.real import RealDisk
    from moldau.runtime.tls.context import client_tls

    config = security_config(client)
    protocol = config.get_str("security.protocol")
    if protocol not in SPOKEN:
        raise OptionError(
            f"{PREFIX}security.protocol: this source speaks {' and '.join(SPOKEN)}, not {protocol}; "
            "give it a listener without SASL"
        )
    try:
        return client_tls(RealDisk(), config)
    except ConfigError as error:
        raise OptionError(f"{PREFIX}{error.problems[0]}") from error


class BrokerConnection:
    """One blocking connection. Close it after any exception, because requests and responses may be out of step."""

    def __init__(self, host: str, port: int, client: ClientOptions) -> None:
        """Connects to a broker.

        Raises:
            OSError: the connection failed.
            OptionError: the TLS keys are wrong.
        """
        self._client_id = client.client_id
        context = tls_context(client)
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
                self._socket = _secured(context, self._socket, host, port)
            # The broker may hold a fetch for as long as it was asked to.
            self._socket.settimeout((client.request_timeout_ms + client.fetch_wait_ms) / 1000)
        except BaseException:
            self._socket.close()
            raise
        self._correlation_id = 0

    def close(self) -> None:
        """Closes the connection; idempotent."""
        self._socket.close()

    def send(self, request: Request, version: int) -> None:
        """Sends a request; responses arrive in the order of the requests."""
        self._correlation_id += 1
        self._socket.sendall(encode_request(request, version, self._correlation_id, self._client_id))

    def receive(self, response_class: type[R], version: int) -> R:
        """Reads the next response into a buffer of its own; ``records`` fields borrow from it."""
        head = bytes(self._read_exactly(4))
        if head.startswith(TLS_ALERT):
            raise ConnectionError(f"this listener speaks TLS: set {PREFIX}security.protocol to SSL")
        size = int.from_bytes(head, "big", signed=True)
        if not 4 <= size <= FRAME_BYTES_MAX:
            raise ConnectionError(f"a response has {size} bytes; the limit is {FRAME_BYTES_MAX}")
        frame = self._read_exactly(size)
        try:
            _, message = decode_response(response_class, version, frame)
        except ProtocolError as error:
            raise ConnectionError(f"a response is not a {response_class.__name__}: {error}") from error
        return message

    def _read_exactly(self, count: int) -> memoryview:
        view = memoryview(bytearray(count))
        filled = 0
        while filled < count:
            received = self._socket.recv_into(view[filled:])
            if received == 0:
                raise ConnectionResetError("the broker closed the connection")
            filled += received
        return view


def _secured(context: ssl.SSLContext, plain: socket.socket, host: str, port: int) -> socket.socket:
    """Does the TLS handshake.

    Raises:
        OptionError: the certificates do not fit; another attempt would not help.
        OSError: the handshake failed for another reason.
    """
    import ssl

    try:
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise OptionError(
            f"{PREFIX}ssl.truststore.location: the certificate of {host}:{port} is not trusted "
            f"({error.verify_message}); name the PEM file with its signer, or check the host name"
        ) from error
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING"):
            raise ConnectionError(
                f"{host}:{port} does not speak TLS: set {PREFIX}security.protocol to PLAINTEXT, or use its TLS listener"
            ) from error
        raise
