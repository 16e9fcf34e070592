"""Bugs of client quotas on brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_broker.server.quotas import broker_quotas
from moldau_broker.server.quotas.broker_quotas import BrokerQuotas, ClientAccount
from moldau_broker.server.quotas.toll import Toll
from moldau_quorum.quotas import precedence
from moldau_quorum.quotas.client_quotas import ClientQuotas

if TYPE_CHECKING:
    from moldau.runtime.sasl.core.identity import Identity
    from moldau_jepsen.planted_bug import Patch
    from moldau_quorum.quotas.precedence import Limit


def pause_not_enforced() -> list[Patch]:
    """An answer names the pause, but the broker goes on reading the connection."""
    return [(BrokerQuotas, "pause", lambda self, throttle, pause_ms: None)]


def first_limits_kept() -> list[Patch]:
    """A connection keeps the limits that it found first."""
    original = ClientAccount.toll

    def toll(self: ClientAccount, identity: Identity, client_id: bytes) -> Toll | None:
        if self._index is not None:
            self._index = self._quotas.index
        return original(self, identity, client_id)

    return [(broker_quotas.ClientAccount, "toll", toll)]


def least_specific_first() -> list[Patch]:
    """The least specific of the levels that set a quota wins."""
    return [(precedence, "LEVELS", tuple(reversed(precedence.LEVELS)))]


def fetches_uncharged() -> list[Patch]:
    """Fetches count against no quota of bytes."""
    return [(Toll, "due_for_fetch", lambda self, fetched: 0)]


def pause_in_wrong_unit() -> list[Patch]:
    """A pause is ten times as long as the limit demands."""
    original = ClientQuotas.charge

    def charge(self: ClientQuotas, limit: Limit, amount: float, now_ms: float) -> int:
        return 10 * original(self, limit, amount, now_ms)

    return [(ClientQuotas, "charge", charge)]


def removed_quota_kept() -> list[Patch]:
    """A removed quota goes on limiting its client."""
    original = BrokerQuotas.follow

    def follow(self: BrokerQuotas, delta: object) -> None:
        before = self.index
        original(self, delta)  # type: ignore[arg-type]
        if sum(self.index.uses.values()) < sum(before.uses.values()):
            self.index = before
            self.is_active = True

    return [(BrokerQuotas, "follow", follow)]
