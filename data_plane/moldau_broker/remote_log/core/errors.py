"""Errors of remote segments."""

from __future__ import annotations

from moldau.protocol.errors import ErrorCode
from moldau_broker.log.errors import LogError


class CorruptRemoteSegmentError(LogError):
    """Bytes of a remote object violate their format; a read of them is answered with CORRUPT_MESSAGE."""

    def __init__(self, name: str, position: int, reason: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"remote object {name}: byte {position}: {reason}")
        self.name = name
        self.position = position
        self.reason = reason
