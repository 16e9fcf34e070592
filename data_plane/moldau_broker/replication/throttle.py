"""Keeps the copying of replicas from crowding out everything else (KIP-73).

A bucket of one second's worth of bytes fills at the configured rate; whoever copies takes from it, and may overdraw it
by one answer. Only what a topic's ``leader.replication.throttled.replicas`` and
``follower.replication.throttled.replicas`` name is throttled, and of that only replicas outside the ISR: an in-sync
replica that is held back would hold back the producers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

UNLIMITED = float((1 << 63) - 1)


class ReplicationThrottle:
    """One broker's budget for one direction.

    Invariant: ``_tokens <= _rate``: a pause saves up at most one second's worth.
    """

    __slots__ = ("_rate", "_tokens", "_updated_ms")

    def __init__(self, rate: float, now_ms: float) -> None:
        """``rate`` in bytes per second; at least 1 is used."""
        self._rate = self._tokens = max(1.0, rate)
        self._updated_ms = now_ms

    @property
    def limited(self) -> bool:
        """Whether there is a limit at all."""
        return self._rate < UNLIMITED

    def set_rate(self, rate: float, now_ms: float) -> None:
        """Takes a changed configuration; what is overdrawn stays so."""
        self._fill(now_ms)
        self._rate = max(1.0, rate)
        self._tokens = min(self._tokens, self._rate)

    def allows(self, now_ms: float) -> bool:
        """Whether something may be copied now."""
        self._fill(now_ms)
        return self._tokens > 0

    def spend(self, count: int, now_ms: float) -> None:
        """``count`` bytes were copied."""
        self._fill(now_ms)
        self._tokens -= count

    def wait_ms(self, now_ms: float) -> float:
        """How long until something may be copied; 0 for at once."""
        self._fill(now_ms)
        return 0.0 if self._tokens > 0 else (1 - self._tokens) * 1000 / self._rate

    def _fill(self, now_ms: float) -> None:
        if now_ms > self._updated_ms:
            self._tokens = min(self._rate, self._tokens + (now_ms - self._updated_ms) * self._rate / 1000)
            self._updated_ms = now_ms


def is_throttled(replicas: Sequence[str], partition: int, broker_id: int) -> bool:
    """Whether a list of throttled replicas names one: ``*`` for all, else ``partition:broker``."""
    return "*" in replicas or f"{partition}:{broker_id}" in replicas
