"""Errors of TLS connections, and the look of TLS on a wire; apart from TLS itself, which most clients do not load."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.values import Buffer

TLS_HANDSHAKE = 0x16
TLS_ALERT = 0x15
"""First bytes of the only records with which a peer that speaks TLS can begin (RFC 8446 section 5.1)."""


class TlsHandshakeError(ConnectionError):
    """The peers do not agree on certificate, protocol version or the use of TLS. A retry ends the same."""

    def __str__(self) -> str:
        """Returns the text alone: the number of the system's error says nothing about TLS."""
        return self.strerror or super().__str__()


class TlsMismatchError(TlsHandshakeError):
    """Only one of the peers uses TLS."""


class TlsHandshakeCutError(TlsHandshakeError):
    """The peer closed the connection during the handshake; it may be too busy, or not use TLS."""


def looks_like_tls(data: Buffer) -> bool:
    """Returns whether ``data``, the first bytes of a stream, open a TLS handshake or are an alert.

    As the size of a Kafka frame they would stand for more than 350 MB.
    """
    return len(data) >= 2 and data[0] in (TLS_HANDSHAKE, TLS_ALERT) and data[1] == 3
