"""Decides when a request to a silent broker is given up because another broker leads its partitions. Pure.

A broker that was cut off answers nothing, on connections that look healthy. Its client would wait for
``request.timeout.ms``, although the other brokers have known another leader for a long time. So when a request has no
answer for a while, the client asks other brokers who leads. If one of the request's partitions has a leader of a newer
epoch on another broker, the client cuts the connection: the requests on it end as if the connection had broken, and are
sent again to the new leader. That is as safe as the timeout: the old leader can acknowledge nothing with ``acks=all``
any more, and a batch of an idempotent producer that it did replicate is recognised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.cluster.metadata import ClusterMetadata, TopicPartition

PATIENCE_MS: Final = 1_000.0
"""Time without an answer after which other brokers are asked who leads."""
ASK_INTERVAL_MS: Final = 500.0
"""Time between two such questions."""

K = TypeVar("K")


@dataclass(slots=True, eq=False)
class Awaited(Generic[K]):
    """A request without an answer. ``eq=False``: each is itself alone."""

    key: K
    """Names its connection."""
    node_id: int
    leaders: Sequence[tuple[TopicPartition, int]]
    """Its partitions, each with the leader epoch that the client knew when it sent the request."""
    due_ms: float
    """From then on the broker counts as silent."""
    ask_ms: float
    """Time of the next question to other brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look(Generic[K]):
    """The decisions about silent brokers at one time."""

    cut: Sequence[K]
    """Connections to close."""
    doubted: Sequence[int]
    """Silent nodes: other brokers are to be asked for metadata now."""
    next_ms: float
    """When to look again; changed metadata are a reason too. Infinite without requests."""


class Silence(Generic[K]):
    """The requests without an answer of one client, in the order in which they were sent."""

    def __init__(self) -> None:
        self._awaited: dict[Awaited[K], None] = {}

    def __len__(self) -> int:
        """Counts the requests."""
        return len(self._awaited)

    def sent(
        self, key: K, node_id: int, leaders: Sequence[tuple[TopicPartition, int]], now_ms: float, wait_ms: float = 0.0
    ) -> Awaited[K]:
        """Adds a request that the broker may answer after ``wait_ms`` without being silent, and returns its entry."""
        due_ms = now_ms + wait_ms + PATIENCE_MS
        awaited = Awaited(key, node_id, leaders, due_ms, due_ms)
        self._awaited[awaited] = None
        return awaited

    def ended(self, awaited: Awaited[K]) -> None:
        """Removes a request that has an answer or has failed."""
        self._awaited.pop(awaited, None)

    def look(self, now_ms: float, metadata: ClusterMetadata) -> Look[K]:
        """Decides on the requests that are due; removes those whose connection is to be cut."""
        due = [awaited for awaited in self._awaited if awaited.due_ms <= now_ms]
        cut = dict.fromkeys(awaited.key for awaited in due if _has_moved(awaited, metadata))
        for awaited in [awaited for awaited in self._awaited if awaited.key in cut]:
            del self._awaited[awaited]
        doubted: dict[int, None] = {}
        for awaited in due:
            if awaited.key not in cut and awaited.ask_ms <= now_ms:
                doubted[awaited.node_id] = None
                awaited.ask_ms = now_ms + ASK_INTERVAL_MS
        next_ms = min((awaited.ask_ms for awaited in self._awaited), default=math.inf)
        return Look(cut=list(cut), doubted=list(doubted), next_ms=next_ms)


def _has_moved(awaited: Awaited[K], metadata: ClusterMetadata) -> bool:
    """Returns whether another broker leads one of the partitions since the request was sent."""
    for partition, epoch in awaited.leaders:
        leader = metadata.leader(partition)
        if leader is not None and leader[0] != awaited.node_id and leader[1] > epoch:
            return True
    return False
