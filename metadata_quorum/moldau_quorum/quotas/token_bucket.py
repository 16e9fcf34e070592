"""A bucket of tokens: how many partitions a client may still create or delete (KIP-599).

The bucket fills at the rate of the quota and holds what ``controller.quota.window.num`` windows allow. A request may
take more tokens than there are, as long as the bucket is not below zero: a topic with many partitions is created at
once, and the client then waits until the bucket has filled up again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from moldau_quorum.quotas.rate import PAUSE_MS_MAX

if TYPE_CHECKING:
    from moldau_quorum.quotas.rate import Windows


class TokenBucket:
    """Invariant: ``tokens`` is what the bucket held at ``_filled_ms``; None before its first use, when it is full."""

    __slots__ = ("_filled_ms", "_tokens", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens: float | None = None
        self._filled_ms = 0.0

    def tokens(self, rate: float, now_ms: float) -> float:
        """Returns the tokens at ``now_ms``; ``rate`` is in tokens per second."""
        full = rate * self._windows.kept_ms / 1_000.0
        held = full if self._tokens is None else self._tokens + rate * (now_ms - self._filled_ms) / 1_000.0
        self._tokens, self._filled_ms = min(full, held), now_ms
        return self._tokens

    def take(self, count: float, rate: float, now_ms: float) -> None:
        """Takes tokens, also those that are not there yet."""
        self._tokens = self.tokens(rate, now_ms) - count

    def throttle_ms(self, rate: float, now_ms: float) -> int:
        """Returns the time until the bucket is not below zero; 0 if it is not."""
        return math.ceil(min(max(0.0, -self.tokens(rate, now_ms)) / rate * 1_000.0, PAUSE_MS_MAX))
