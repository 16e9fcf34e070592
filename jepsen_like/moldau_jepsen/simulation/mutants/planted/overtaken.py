"""Bugs that show only where an answer comes so late that others have overtaken it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_broker.server.data_path.fetch_query import TOPIC_IDS
from moldau_broker.server.data_path.transaction_checks import TransactionChecks

if TYPE_CHECKING:
    from moldau.protocol.hot import ProduceRequestView
    from moldau_broker.server.data_path.transaction_checks import Verified
    from moldau_jepsen.planted_bug import Patch


def markers_counted_late() -> list[Patch]:
    """A leader counts the markers of a partition after its question, so it misses those that came meanwhile."""
    original = TransactionChecks.verify

    async def verify(self: TransactionChecks, request: ProduceRequestView, version: int) -> Verified:
        lookup = self._replicas.by_raw_id if version >= TOPIC_IDS else self._replicas.by_raw_name
        answers = await original(self, request, version)
        return {key: (code, lookup[key].ends_seen) for key, (code, _) in answers.items() if key in lookup}

    return [(TransactionChecks, "verify", verify)]
