"""Limits the rate at which replicas are copied, so that other traffic keeps its share (KIP-73).

A token bucket, with room for one second's worth of bytes, fills at the configured rate. A copy takes tokens from it and
may overdraw it by one answer. Only replicas that a topic's ``leader.replication.throttled.replicas`` and
``follower.replication.throttled.replicas`` name are throttled, and of those only replicas outside the ISR: a delayed
in-sync replica would delay the producers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.values import BrokerId

UNLIMITED = float((1 << 63) - 1)


class ReplicationThrottle:
    """One broker's budget for one direction.

    Invariant: ``_tokens <= _rate``, so a pause saves up at most one second's worth.
    """

    __slots__ = ("_rate", "_tokens", "_updated_ms")

    def __init__(self, rate: float, now_ms: float) -> None:
        """Starts with a full bucket; ``rate`` is in bytes per second, at least 1."""
        self._rate = self._tokens = max(1.0, rate)
        self._updated_ms = now_ms

    def set_rate(self, rate: float, now_ms: float) -> None:
        """Applies a changed rate; an overdraft stays."""
        self._fill(now_ms)
        self._rate = max(1.0, rate)
        self._tokens = min(self._tokens, self._rate)

    def allows(self, now_ms: float) -> bool:
        """Returns whether bytes may be copied now."""
        self._fill(now_ms)
        return self._tokens > 0

    def spend(self, count: int, now_ms: float) -> None:
        """Takes ``count`` copied bytes from the bucket."""
        self._fill(now_ms)
        self._tokens -= count

    def wait_ms(self, now_ms: float) -> float:
        """Returns the time until bytes may be copied; 0 if they may be copied now."""
        self._fill(now_ms)
        return 0.0 if self._tokens > 0 else (1 - self._tokens) * 1000 / self._rate

    def _fill(self, now_ms: float) -> None:
        if now_ms > self._updated_ms:
            self._tokens = min(self._rate, self._tokens + (now_ms - self._updated_ms) * self._rate / 1000)
            self._updated_ms = now_ms


def is_throttled(replicas: Sequence[str], partition: int, broker_id: BrokerId) -> bool:
    """Returns whether a list of throttled replicas contains one: ``*`` for all, else ``partition:broker``."""
    return "*" in replicas or f"{partition}:{broker_id}" in replicas
