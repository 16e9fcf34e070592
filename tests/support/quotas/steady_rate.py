"""A client that sends as fast as its pauses let it."""

from __future__ import annotations

import pytest

from moldau_quorum.quotas.client_quotas import ClientQuotas
from moldau_quorum.quotas.precedence import PRODUCER_BYTE_RATE, Limit
from moldau_quorum.quotas.rate import Windows


def check_steady_rate(number: int, amount: int) -> None:
    """The rate between 20 and 120 s is within 10 % of the quota, whatever the size of the requests."""
    quotas, now, sent = ClientQuotas(Windows(number, 1_000.0)), 0.0, 0
    limit = Limit(PRODUCER_BYTE_RATE, 1_000.0, "alice", "app")
    while now < 120_000:
        sent += amount if now >= 20_000 else 0
        now += 5 + quotas.charge(limit, amount, now)
    assert sent / 100 == pytest.approx(1_000, rel=0.1)
