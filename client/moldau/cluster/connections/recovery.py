"""Decides when a client starts again at ``bootstrap.servers`` (KIP-899, KIP-1102, KIP-1242). Pure.

Theory of operation: a client remembers the brokers of the last Metadata answer. They may all be gone, or their
addresses may lead to another cluster since. With ``metadata.recovery.strategy=rebootstrap`` a client then forgets the
brokers, closes its connections and resolves ``bootstrap.servers`` again. Three events cause it: no Metadata answer for
``metadata.recovery.rebootstrap.trigger.ms``, the error REBOOTSTRAP_REQUIRED, and a Metadata answer of another cluster.
Whenever no known broker answers, the client tries the bootstrap servers too; that alone cuts no working connection.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from moldau.runtime.net.peers import ExpectedPeer

if TYPE_CHECKING:
    from moldau.runtime.config import Config

ATTEMPT_MS_MIN = 1_000.0
"""A Metadata request gets at least this time before ``metadata.recovery.rebootstrap.trigger.ms`` cuts it."""


class Recovery:
    """The recovery strategy of one client.

    ``generation`` counts how often the client started again; a connection that was opened under an older generation
    belongs to forgotten metadata.
    """

    __slots__ = ("_checks_cluster", "_left", "_since_ms", "_trigger_ms", "generation", "is_enabled")

    def __init__(self, *, is_enabled: bool, checks_cluster: bool, trigger_ms: int) -> None:
        """Takes the three configuration values; ``checks_cluster`` has no effect unless ``is_enabled``."""
        self.is_enabled = is_enabled
        self.generation = 0
        self._checks_cluster = is_enabled and checks_cluster
        self._trigger_ms = trigger_ms
        self._since_ms = math.inf  # of the first Metadata request without an answer
        self._left: str | None = None  # the cluster id that was forgotten

    @classmethod
    def of(cls, config: Config) -> Recovery:
        """Reads the configuration of a client."""
        return cls(
            is_enabled=config.get_str("metadata.recovery.strategy") == "rebootstrap",
            checks_cluster=config.get_bool("metadata.cluster.check.enable"),
            trigger_ms=config.get_int("metadata.recovery.rebootstrap.trigger.ms"),
        )

    # --- Metadata requests

    def asked(self, now_ms: float) -> float:
        """Notes a Metadata request; returns how long it may stay without an answer, in milliseconds."""
        self._since_ms = min(self._since_ms, now_ms)
        if not self.is_enabled:
            return math.inf
        return max(self._since_ms + self._trigger_ms - now_ms, ATTEMPT_MS_MIN)

    def is_due(self, now_ms: float) -> bool:
        """Returns whether the client has waited for metadata long enough to start again."""
        return self.is_enabled and now_ms >= self._since_ms + self._trigger_ms

    def answered(self, cluster_id: str | None) -> str | None:
        """Notes an accepted Metadata answer; returns the id of the former cluster if this is another one."""
        self._since_ms = math.inf
        left, self._left = self._left, None
        return left if left is not None and cluster_id is not None and left != cluster_id else None

    @property
    def awaits_answer(self) -> bool:
        """Whether the client has left a cluster, and does not know yet whether it comes back to it."""
        return self._left is not None

    # --- clusters

    def expected(self, cluster_id: str | None, node_id: int) -> ExpectedPeer | None:
        """Returns what to send in ApiVersions to a node; None where the client knows neither cluster nor node."""
        if not self._checks_cluster or cluster_id is None or node_id < 0:
            return None
        return ExpectedPeer(cluster_id, node_id)

    def is_foreign(self, known: str | None, answered: str | None) -> bool:
        """Returns whether a Metadata answer comes from another cluster than the one that the client works with."""
        return self._checks_cluster and None not in (known, answered) and known != answered

    def begun(self, cluster_id: str | None, now_ms: float) -> None:
        """Notes that the client starts again, and which cluster it leaves."""
        self.generation += 1
        self._left = cluster_id or self._left
        if self._since_ms != math.inf:
            self._since_ms = now_ms
