"""The quota on changes of partitions, which the active controller enforces (KIP-599).

Versions of requests that know THROTTLING_QUOTA_EXCEEDED are refused while the bucket of their group is below zero.
Older versions are carried out; their clients pause for the time that the answer names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.protocol.api import ApiKey
from moldau_quorum.quotas.ledger import Ledger
from moldau_quorum.quotas.precedence import CONTROLLER_MUTATION_RATE, Limit, QuotaIndex
from moldau_quorum.quotas.token_bucket import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau_quorum.quotas.rate import Windows

STRICT_SINCE: Final[Mapping[int, int]] = {ApiKey.CREATE_TOPICS: 6, ApiKey.CREATE_PARTITIONS: 3, ApiKey.DELETE_TOPICS: 5}
"""The first version of each request whose clients understand THROTTLING_QUOTA_EXCEEDED."""


class MutationAllowance:
    """The changes that one request may still make."""

    __slots__ = ("_bucket", "_limit", "_strict", "_throttle_ms", "_throttled_at_ms")

    def __init__(self, bucket: TokenBucket, limit: Limit, *, strict: bool) -> None:
        """``strict``: changes are refused while the bucket is below zero."""
        self._bucket = bucket
        self._limit = limit
        self._strict = strict
        self._throttle_ms = 0
        self._throttled_at_ms = 0.0

    def charge(self, partitions: int, now_ms: float) -> bool:
        """Takes the tokens of a change; returns False if it must not be made."""
        rate = self._limit.value
        if not self._strict:
            self._bucket.take(partitions, rate, now_ms)
        self._throttle_ms, self._throttled_at_ms = self._bucket.throttle_ms(rate, now_ms), now_ms
        if not self._strict:
            return True
        if self._throttle_ms:
            return False
        self._bucket.take(partitions, rate, now_ms)
        return True

    def throttle_ms(self, now_ms: float) -> int:
        """Returns for how long the client must pause."""
        return max(0, int(self._throttle_ms - (now_ms - self._throttled_at_ms)))


class MutationQuotas:
    """The buckets of a controller. They are soft state: a new active controller begins with full ones."""

    __slots__ = ("_ledger",)

    def __init__(self, windows: Windows) -> None:
        """``windows`` are those of ``controller.quota.window.*``."""
        self._ledger: Ledger[TokenBucket] = Ledger(lambda: TokenBucket(windows))

    def allowance(
        self, index: QuotaIndex, user: str, client_id: str, *, api_key: int, version: int, now_ms: float
    ) -> MutationAllowance | None:
        """Returns what a request may change; None if its API or its client has no such quota."""
        strict_since = STRICT_SINCE.get(api_key)
        if strict_since is None:
            return None
        limit = index.limit(CONTROLLER_MUTATION_RATE, user, client_id)
        if limit is None:
            return None
        bucket = self._ledger.sensor(limit.group, now_ms)
        return MutationAllowance(bucket, limit, strict=version >= strict_since)
