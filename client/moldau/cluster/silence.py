"""Decides when a request to a silent broker is given up because another broker has taken over its work. Pure.

A broker that was cut off answers nothing, on connections that look healthy. Its client would wait for
``request.timeout.ms``, although the other brokers have known another leader for a long time. So when a request has no
answer for a while, the client asks other brokers who leads. If one of the request's partitions has a leader of a newer
epoch on another broker, the client cuts the connection: the requests on it end as if the connection had broken, and are
sent again to the new leader. That is as safe as the timeout: the old leader can acknowledge nothing with ``acks=all``
any more, and a batch of an idempotent producer that it did replicate is recognised.

A request to the coordinator of a group or transactional id is given up in the same way, when another broker says that
it or a third one is the coordinator now. A coordinator may hold a request for minutes while a group rebalances, so the
question is repeated less and less often. It does no harm: a coordinator that is still the coordinator is not given up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.cluster.metadata import ClusterMetadata, TopicPartition

PATIENCE_MS: Final = 1_000.0
"""Time without an answer after which other brokers are asked who leads."""
ASK_INTERVAL_MS: Final = 500.0
"""Time between two such questions."""
COORDINATOR_ASK_INTERVAL_MS_MAX: Final = 5_000.0
"""Longest time between two questions about a coordinator: a quarter of the request's age, up to this bound."""

CoordinatorKey: TypeAlias = "tuple[str, int]"
"""A group or transactional id, and the key type of FindCoordinator."""

K = TypeVar("K")


@dataclass(slots=True, eq=False)
class Awaited(Generic[K]):
    """A request without an answer. ``eq=False``: each is itself alone."""

    key: K
    """The connection or the call that is given up with the request."""
    node_id: int
    leaders: Sequence[tuple[TopicPartition, int]]
    """Its partitions, each with the leader epoch that the client knew when it sent the request."""
    due_ms: float
    """From then on the broker counts as silent."""
    ask_ms: float
    """Time of the next question to other brokers."""
    coordinator: CoordinatorKey | None = None
    """Set if the broker was asked as a coordinator; then ``leaders`` is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look(Generic[K]):
    """The decisions about silent brokers at one time."""

    cut: Sequence[K]
    """Keys of the requests to give up."""
    doubted: Sequence[int]
    """Silent nodes: other brokers are to be asked for metadata now."""
    lookups: Sequence[CoordinatorKey]
    """Coordinators that are silent: other brokers are to be asked, and ``found`` takes the answer."""
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

    def asked(self, key: K, node_id: int, coordinator: CoordinatorKey, now_ms: float) -> Awaited[K]:
        """Adds a request to a coordinator, and returns its entry."""
        due_ms = now_ms + PATIENCE_MS
        awaited = Awaited(key, node_id, (), due_ms, due_ms, coordinator)
        self._awaited[awaited] = None
        return awaited

    def found(self, coordinator: CoordinatorKey, node_id: int, now_ms: float) -> list[K]:
        """Takes the answer about a coordinator; returns the keys to give up, and removes their requests."""
        moved = [
            awaited
            for awaited in self._awaited
            if awaited.coordinator == coordinator and awaited.node_id != node_id and awaited.due_ms <= now_ms
        ]
        for awaited in moved:
            del self._awaited[awaited]
        return [awaited.key for awaited in moved]

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
        lookups: dict[CoordinatorKey, None] = {}
        for awaited in due:
            if awaited.key in cut or awaited.ask_ms > now_ms:
                continue
            awaited.ask_ms = now_ms + ASK_INTERVAL_MS
            if awaited.coordinator is None:
                doubted[awaited.node_id] = None
            else:
                lookups[awaited.coordinator] = None
                age_ms = now_ms - awaited.due_ms + PATIENCE_MS
                awaited.ask_ms = now_ms + min(max(ASK_INTERVAL_MS, age_ms / 4), COORDINATOR_ASK_INTERVAL_MS_MAX)
        next_ms = min((awaited.ask_ms for awaited in self._awaited), default=math.inf)
        return Look(cut=list(cut), doubted=list(doubted), lookups=list(lookups), next_ms=next_ms)


def _has_moved(awaited: Awaited[K], metadata: ClusterMetadata) -> bool:
    """Returns whether another broker leads one of the partitions since the request was sent."""
    for partition, epoch in awaited.leaders:
        leader = metadata.leader(partition)
        if leader is not None and leader[0] != awaited.node_id and leader[1] > epoch:
            return True
    return False
