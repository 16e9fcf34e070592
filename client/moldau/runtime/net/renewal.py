"""Re-authentication of a client's connection (KIP-368), between its other requests.

When a session nears its end, the next request is held back, the exchange runs over the same connection, and then all
requests that were held back meanwhile leave in their order. No task is needed: the answers of the exchange arrive among
the others. While a later token is fetched, requests go on; if it does not come in time, the one at hand serves for as
long as it lives (``connections.max.reauth.ms`` may end many sessions meanwhile).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.runtime.net.pending import PendingResponse
from moldau.runtime.sasl.core.client import Send
from moldau.runtime.sasl.core.errors import SaslAuthenticationError

if TYPE_CHECKING:
    from moldau.runtime.net.rpc import RpcConnection
    from moldau.runtime.sasl.network import Authenticated
    from moldau.values import Buffer

LATE: Final = 1 / 3
"""Part of the time between the due renewal and the end of a session that is kept for one with the token at hand."""


class Renewal:
    """The re-authentication of one connection. Invariant: ``held`` is empty unless one is under way."""

    __slots__ = ("_authenticated", "awaited", "held")

    def __init__(self, authenticated: Authenticated) -> None:
        self._authenticated = authenticated
        self.awaited: RenewalAnswer | None = None  # the answer that the exchange waits for
        # Requests; None: one that gets no answer.
        self.held: list[tuple[PendingResponse[object] | None, tuple[Buffer, ...]]] = []

    @property
    def is_under_way(self) -> bool:
        """Whether requests must wait."""
        return self.awaited is not None

    @property
    def is_due(self) -> bool:
        """Whether the session nears its end."""
        return self._authenticated.clock.monotonic_ms() >= self._authenticated.again_at_ms

    @property
    def is_over(self) -> bool:
        """Whether the session has ended."""
        return self._authenticated.clock.monotonic_ms() >= self._authenticated.expires_at_ms

    @property
    def is_lost(self) -> bool:
        """Whether the session has ended, and no token for another one is at hand."""
        if not self.is_over or self.is_under_way or not self._authenticated.login.needs_fetch:
            return False
        return not self._authenticated.login.outlives(self._authenticated.expires_at_ms)

    def begin(self, correlation_id: int) -> Send | None:
        """Returns the first request; None if a token must be fetched first. The fetch begins then.

        Raises:
            SaslAuthenticationError: the login cannot be used.
        """
        authenticated = self._authenticated
        exchange = authenticated.login.exchange_nowait()
        if exchange is None:
            authenticated.login.begin_fetch()
            end_ms = authenticated.expires_at_ms
            is_late = end_ms - authenticated.clock.monotonic_ms() <= LATE * (end_ms - authenticated.again_at_ms)
            if is_late and authenticated.login.outlives(end_ms):
                exchange = authenticated.login.exchange_at_hand()
        return None if exchange is None else authenticated.session.start_again(exchange, correlation_id)

    def await_answer(self, connection: RpcConnection, correlation_id: int) -> RenewalAnswer:
        """Returns the answer to a request of the exchange, which is about to be sent."""
        self.awaited = answer = RenewalAnswer(connection, correlation_id, self)
        return answer

    def receive(self, frame: memoryview, correlation_id: int) -> Send | None:
        """Takes an answer; returns the next request, None at the end.

        Raises:
            SaslAuthenticationError: the server refused.
        """
        self.awaited = None
        try:
            step = self._authenticated.session.receive(frame, correlation_id)
        except SaslAuthenticationError:
            self._authenticated.login.refused()
            raise
        if isinstance(step, Send):
            return step
        self._authenticated.done(step.lifetime_ms)
        return None


class RenewalAnswer(PendingResponse[object]):
    """An answer of the exchange. No task waits for it alone: those that wait for held requests do."""

    __slots__ = ("_renewal",)

    def __init__(self, connection: RpcConnection, correlation_id: int, renewal: Renewal) -> None:
        """Made by ``Renewal.await_answer``."""
        super().__init__(connection, correlation_id, lambda frame: frame)
        self._renewal = renewal

    @property
    def is_overdue(self) -> bool:
        """Whether the time of a held request is over whose wait was cancelled."""
        return any(pending is not None and pending.is_overdue for pending, _ in self._renewal.held)
