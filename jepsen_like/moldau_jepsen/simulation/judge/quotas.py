"""Tells the judge of quotas what each broker knows, whenever that changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.checkers.quotas import limit_of

if TYPE_CHECKING:
    from moldau_broker.server.lifecycle.broker import Broker
    from moldau_jepsen.checkers.quotas import Account, QuotaVerdict
    from moldau_jepsen.cluster.simulated import SimulatedCluster

ANONYMOUS_USER = "ANONYMOUS"
"""The user of a client without a login."""


class QuotaWatch:
    """Compares each broker's quotas after each step, by identity."""

    def __init__(self, cluster: SimulatedCluster, verdict: QuotaVerdict, metered: list[tuple[str, str]]) -> None:
        """``metered`` lists client ids, each with the key of a quota."""
        self._cluster = cluster
        self._verdict = verdict
        self._metered = metered
        self._known: dict[int, tuple[Broker, object]] = {}

    def turn_ended(self) -> None:
        """Passes on what has changed."""
        brokers = self._cluster.brokers
        for broker_id in self._cluster.broker_ids:
            broker = brokers.get(broker_id)
            known = self._known.get(broker_id)
            if broker is None:
                if known is not None:
                    del self._known[broker_id]
                    for account in self._accounts(broker_id):
                        self._verdict.down(account)
                continue
            quotas = broker.metadata.image.quotas
            if known is not None and known[0] is broker and known[1] is quotas:
                continue
            self._known[broker_id] = broker, quotas
            now_ms = self._cluster.machines[broker_id].clock.monotonic_ms()
            for (client_id, key), account in zip(self._metered, self._accounts(broker_id), strict=True):
                limit = limit_of(quotas, key, ANONYMOUS_USER, client_id)
                self._verdict.knows(account, limit, now_ms, is_new=known is None or known[0] is not broker)

    def _accounts(self, broker_id: int) -> list[Account]:
        return [self._verdict.account(broker_id, client_id, key) for client_id, key in self._metered]
