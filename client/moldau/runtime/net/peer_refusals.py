"""Reports about peers that refuse a node's login or certificate, or whose certificate the node refuses.

Nodes connect again and again, and an unreachable peer is nothing unusual. A refusal is: it lasts until an operator
changes a configuration, a credential or a certificate. The first one is a warning, and one more follows each
``REMIND_MS``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau.runtime.tls.errors import TlsHandshakeCutError, TlsHandshakeError
from moldau.values import join_address

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Clock
    from moldau.runtime.telemetry.log import EventLogger

REMIND_MS: Final = 60_000.0


def is_refusal(error: object) -> bool:
    """Returns whether another attempt to connect ends the same until an operator acts."""
    if isinstance(error, TlsHandshakeError):
        return not isinstance(error, TlsHandshakeCutError)
    return isinstance(error, SaslAuthenticationError)


class PeerRefusals:
    """The refusals of one peer."""

    __slots__ = ("_attempts", "_clock", "_due_ms", "_logger", "_peer")

    def __init__(self, clock: Clock, logger: EventLogger, peer: int) -> None:
        """``peer`` is the node's id."""
        self._clock = clock
        self._logger = logger
        self._peer = peer
        self._attempts = 0
        self._due_ms = -math.inf

    def failed(self, error: object, address: tuple[str, int]) -> bool:
        """Takes the error of an attempt to connect; returns whether it is a refusal, which is logged if that is due."""
        if not is_refusal(error):
            return False
        self._attempts += 1
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + REMIND_MS
            host, port = address
            self._logger.warning(
                "peer-unusable", peer=self._peer, address=join_address(host, port), error=error, attempts=self._attempts
            )
        return True

    def connected(self) -> None:
        """Notes that a connection is open."""
        if self._attempts:
            self._logger.info("peer-usable", peer=self._peer, attempts=self._attempts)
            self._attempts, self._due_ms = 0, -math.inf
