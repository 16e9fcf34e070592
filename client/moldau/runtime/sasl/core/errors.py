"""The error of an authentication; apart from the exchange itself, which most clients do not load. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import KafkaError

if TYPE_CHECKING:
    from moldau.protocol.errors import ErrorCode


class SaslAuthenticationError(KafkaError, ConnectionError):
    """Reports that a server and this client do not agree on an authentication; a repetition would fail too."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        """``message`` names the server, the mechanism and the remedy, and no secret."""
        super().__init__(code, message)
