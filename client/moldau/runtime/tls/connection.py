"""TLS over any ``Connection``, with OpenSSL working on memory only.

Ciphertext moves through the wrapped connection's non-blocking calls, so that the same code runs on sockets and in
simulation. Bytes that were encrypted but not taken by the transport yet are not reported as sent. The caller offers
them again (as OpenSSL requires), the pending ciphertext leaves first, and then they are reported. So no background task
has to flush.

``close_notify`` announces the end of the stream. A stream that ends without it was cut, by a dead peer or an attacker
on the path (RFC 8446 section 6.1), which counts as a reset. Therefore this end omits it when it closes with unread
bytes."""

from __future__ import annotations

import contextlib
import errno
import ssl
from typing import TYPE_CHECKING, cast

import trio

from moldau.runtime.tls.errors import (
    TLS_ALERT,
    TLS_HANDSHAKE,
    TlsHandshakeCutError,
    TlsHandshakeError,
    TlsMismatchError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.runtime.ports.environment import Connection, File
    from moldau.values import Buffer

CIPHERTEXT_BYTES = 32 * 1024
"""Ciphertext received in one call; a TLS record has at most 16 KiB of content."""

CIPHERTEXT_RECEIVES_MAX = 2
"""Receives of one call that yield no content; one completes any record that the transport has.

A peer may send messages of TLS itself (KeyUpdate, RFC 8446 section 4.6.3) without end, some thousand to a receive. One
call must not handle them for as long as they come, because nothing else runs meanwhile.
"""

PLAINTEXT_BYTES_MAX = 64 * 1024
"""Plaintext encrypted in one call: bounds the ciphertext that waits for the transport."""


PLAINTEXT_ALERT = b"\x15\x03\x03\x00\x02\x02\x0a"
"""A fatal alert, unexpected_message, sent to a peer without TLS, as Kafka's brokers do.

A client with TLS reads the reason in it; as the size of a Kafka frame it is beyond every limit.
"""


UNKNOWN_SIGNERS = frozenset((18, 19, 20, 21))
"""OpenSSL's codes for a certificate whose signer is not trusted (``X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT`` ...)."""

CERTIFICATE_DEMANDED = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
CERTIFICATE_ALERTS = frozenset(
    (
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_UNKNOWN_CA",
        CERTIFICATE_DEMANDED,
    )
)
"""Alerts of a server that refuses the client's certificate.

With TLS 1.3 they come after the client's handshake has ended (RFC 8446 section 4.4), as the answer to its first bytes.
"""


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = "; is its signer in ssl.truststore.location?" if error.verify_code in UNKNOWN_SIGNERS else ""
        return f"{error.reason}: {error.verify_message}{remedy}"
    return error.reason or str(error)


class TlsConnection:
    """One end of a TLS stream; the ``Connection`` port. Call ``handshake`` before anything else.

    Invariant: ``_unreported`` bytes at the head of what the caller offers next are in ``_ciphertext`` already.
    """

    def __init__(
        self,
        connection: Connection,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
        scratch: bytearray | None = None,
    ) -> None:
        """Takes over ``connection``. ``server_hostname`` is what the server's certificate is checked against.

        ``scratch`` of ``CIPHERTEXT_BYTES`` is filled and emptied within a call: connections of one event loop share it.
        """
        self._connection = connection
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._received = bytearray(CIPHERTEXT_BYTES) if scratch is None else scratch
        self._plaintext = b""  # decrypted by ``wait_readable``, not yet taken
        self._ciphertext = memoryview(b"")  # not yet taken by the transport
        self._unreported = 0
        self._ended = False
        self._broken: str | None = None  # why nothing comes and goes any more
        self._broken_class: type[ConnectionError] = ConnectionResetError
        self._closed = False
        self._peer_certificate: dict[str, object] | None = None

    @property
    def peer_address(self) -> tuple[str, int]:
        """Host and port of the other end."""
        return self._connection.peer_address

    @property
    def local_address(self) -> tuple[str, int]:
        """Host and port of this end."""
        return self._connection.local_address

    @property
    def peer_certificate(self) -> dict[str, object] | None:
        """The verified certificate of the peer as ``ssl.SSLObject.getpeercert`` gives it; None without one.

        At a server the subject has numbers for the types that RFC 2253 does not name (``moldau.runtime.tls.subject``).
        """
        return self._peer_certificate

    async def handshake(self, heard_peer: Callable[[], None] = lambda: None) -> None:
        """Agrees on keys with the peer. The caller bounds its time.

        ``heard_peer`` is called whenever bytes arrive.

        Raises:
            TlsHandshakeError: the handshake failed.
            ConnectionError: the peer closed the connection.
        """
        heard = False
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                await self._receive_ciphertext()
                if self._ended and not heard and self._tls.server_side:
                    # A peer that checked whether the port is open.
                    raise ConnectionResetError(errno.ECONNRESET, "the peer left without a word") from None
                if self._ended:
                    raise TlsHandshakeCutError(errno.EPROTO, "the peer left during the TLS handshake") from None
                if not heard and self._received[0] not in (TLS_HANDSHAKE, TLS_ALERT):
                    if self._tls.server_side:
                        await self._connection.send_all((PLAINTEXT_ALERT,))
                    raise TlsMismatchError(errno.EPROTO, "the peer does not speak TLS") from None
                heard = True
                heard_peer()
            except ssl.SSLError as error:
                await self._flush()  # the alert that gives the peer the reason
                raise TlsHandshakeError(errno.EPROTO, f"TLS handshake failed: {_reason(error)}") from error
        await self._flush()
        self._peer_certificate = dict(self._tls.getpeercert() or {}) or None
        encoded = self._tls.getpeercert(binary_form=True) if self._tls.server_side else None
        if self._peer_certificate is not None and encoded is not None:
            from moldau.runtime.tls.subject import subject_of

            try:
                self._peer_certificate["subject"] = subject_of(encoded)
            except (IndexError, ValueError) as error:
                raise TlsHandshakeError(errno.EPROTO, "the subject of the peer's certificate is malformed") from error

    async def _receive_ciphertext(self) -> None:
        while True:
            try:
                self._take_ciphertext()
            except BlockingIOError:
                await self._connection.wait_readable()
            else:
                return

    def _take_ciphertext(self) -> None:
        """Takes the bytes that have arrived.

        Raises:
            BlockingIOError: nothing has arrived.
        """
        count = self._connection.receive_into_nowait(memoryview(self._received))
        if count == 0:
            self._ended = True
            self._incoming.write_eof()
        else:
            self._incoming.write(memoryview(self._received)[:count])

    async def _flush(self) -> None:
        self._collect_ciphertext()
        if self._ciphertext:
            pending, self._ciphertext = self._ciphertext, memoryview(b"")
            await self._connection.send_all((pending,))

    def _collect_ciphertext(self) -> None:
        if self._outgoing.pending:
            fresh = self._outgoing.read()
            self._ciphertext = memoryview(self._ciphertext.tobytes() + fresh if self._ciphertext else fresh)

    def _flush_nowait(self) -> None:
        """Hands the encrypted bytes to the transport.

        Raises:
            BlockingIOError: the transport did not take everything.
        """
        self._collect_ciphertext()
        while self._ciphertext:
            self._ciphertext = self._ciphertext[self._connection.send_nowait((self._ciphertext,)) :]

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionAbortedError(errno.ECONNABORTED, "this end of the connection was closed")
        if self._broken is not None:
            raise self._broken_error()

    def _broken_error(self) -> ConnectionError:
        code = errno.ECONNRESET if self._broken_class is ConnectionResetError else errno.EPROTO
        return self._broken_class(code, self._broken)

    def _decrypt_into(self, buffer: memoryview) -> int:
        """Reads decrypted bytes into ``buffer`` and returns their number, 0 at the end of the stream.

        Raises:
            ssl.SSLWantReadError: no whole record has arrived.
            TlsHandshakeError: the server refuses this client's certificate.
            ConnectionResetError: the stream was cut, or is no TLS.
        """
        try:
            return cast("int", self._tls.read(len(buffer), cast("bytearray", buffer)))
        except ssl.SSLZeroReturnError:
            self._ended = True
            return 0
        except ssl.SSLWantReadError:
            if not self._ended:
                raise
            self._broken = "the TLS stream was cut"
        except ssl.SSLEOFError:
            self._broken = "the TLS stream was cut"
        except ssl.SSLError as error:
            # Not every Python has an exception of its own for what OpenSSL 3 reports of a stream that was cut.
            is_cut = error.reason == "UNEXPECTED_EOF_WHILE_READING"
            self._broken = "the TLS stream was cut" if is_cut else f"the TLS stream is broken: {_reason(error)}"
            if error.reason in CERTIFICATE_ALERTS and not self._tls.server_side:
                verb = "demands" if error.reason == CERTIFICATE_DEMANDED else "refuses"
                self._broken = f"the listener {verb} a certificate (ssl.keystore.location): {error.reason}"
                self._broken_class = TlsHandshakeError
        raise self._broken_error()

    def receive_into_nowait(self, buffer: memoryview) -> int:
        """See ``Connection.receive_into_nowait``."""
        self._check_open()
        if self._plaintext:
            count = min(len(buffer), len(self._plaintext))
            buffer[:count] = self._plaintext[:count]
            self._plaintext = self._plaintext[count:]
            return count
        if len(buffer) == 0:
            return 0
        for _ in range(CIPHERTEXT_RECEIVES_MAX):
            try:
                return self._decrypt_into(buffer)
            except ssl.SSLWantReadError:
                self._take_ciphertext()
        try:
            return self._decrypt_into(buffer)
        except ssl.SSLWantReadError:  # so whatever is left has yet to be received: a wait for it ends
            raise BlockingIOError(errno.EAGAIN, "nothing but messages of TLS has arrived") from None

    async def wait_readable(self) -> None:
        """See ``Connection.wait_readable``."""
        self._check_open()
        waited = False
        while not self._plaintext:
            buffer = bytearray(16 * 1024)
            try:
                count = self.receive_into_nowait(memoryview(buffer))
            except BlockingIOError:
                await self._connection.wait_readable()
                waited = True
                continue
            except (ConnectionResetError, TlsHandshakeError):
                break  # the next call says so
            if count == 0:
                break
            self._plaintext = bytes(memoryview(buffer)[:count])
        if not waited:
            await trio.lowlevel.checkpoint()

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        """See ``Connection.send_nowait``."""
        self._check_open()
        offered = sum(len(buffer) for buffer in buffers)
        if not self._unreported:
            room = PLAINTEXT_BYTES_MAX
            for buffer in buffers:
                chunk = memoryview(buffer)[:room]
                if chunk:
                    self._encrypt(chunk)
                    room -= len(chunk)
                if room == 0:
                    break
            self._unreported = PLAINTEXT_BYTES_MAX - room
        self._flush_nowait()
        return self._report(offered)

    def _encrypt(self, chunk: memoryview) -> None:
        try:
            self._tls.write(chunk)
        except ssl.SSLError as error:
            self._broken = f"the TLS stream is broken: {_reason(error)}"
            raise ConnectionResetError(errno.ECONNRESET, self._broken) from error

    def _report(self, offered: int) -> int:
        count = min(self._unreported, offered)
        self._unreported -= count
        return count

    async def wait_writable(self) -> None:
        """See ``Connection.wait_writable``."""
        self._check_open()
        while True:
            await self._connection.wait_writable()
            try:
                self._flush_nowait()
            except BlockingIOError:
                continue
            return

    def send_file_nowait(self, file: File, position: int, count: int) -> int:
        """See ``Connection.send_file_nowait``: the bytes are read, for they must be encrypted."""
        self._check_open()
        if self._unreported:
            self._flush_nowait()
            return self._report(count)
        data = file.read(position, min(count, PLAINTEXT_BYTES_MAX))
        if not data:
            raise EOFError(f"{file.path}: no content at position {position}")
        return self.send_nowait((data,))

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """See ``Connection.send_all``."""
        pending = memoryview(b"".join(buffers))
        while pending:
            try:
                pending = pending[self.send_nowait((pending,)) :]
            except BlockingIOError:
                await self.wait_writable()

    def close(self) -> None:
        """See ``Connection.close``.

        Sends close_notify if nothing is unread and the transport takes it at once.
        """
        if self._closed:
            return
        self._closed = True
        unread = bool(self._plaintext) or self._tls.pending() > 0
        with contextlib.suppress(ssl.SSLError, ValueError):  # the answer to the goodbye is not waited for
            if not unread:
                self._tls.unwrap()
        with contextlib.suppress(OSError):  # the peer is gone or takes no more: the end of the stream means the same
            self._flush_nowait()
        self._connection.close()

    def abort(self) -> None:
        """See ``Connection.abort``; without a goodbye."""
        if not self._closed:
            self._closed = True
            self._connection.abort()
