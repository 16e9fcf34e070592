"""The plan of a consumer's fetches: the partitions, the time and the wait of each request to a broker. Pure.

Theory of operation: the consumer sends one request at a time to each broker on its main connection. While that request
names every partition that the consumer reads there, the broker holds it until records arrive (a long poll). A request
leaves out partitions whose buffers are full. Such a partition would have to wait for the end of a long poll that began
without it, so the consumer then uses none: it fetches the others without a wait, at once as long as they have records,
and every ``IDLE_POLL_MS`` otherwise. If a partition becomes ready during a long poll (after a seek, a resume or an
assignment), the consumer fetches it on a second connection, without a wait. So no partition with records waits for one
without.

Prefetched records are bounded in bytes, with an equal share for each broker. A request asks for no more than fits into
the rest of the broker's share. Only a single larger batch, or one answer on the second connection (``partition_bytes``
for each of its partitions), exceeds the bound.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.consumer.core.fetch_session import FetchSession, SessionRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau.cluster.metadata import TopicPartition
    from moldau.consumer.core.positions import PartitionPosition

IDLE_POLL_MS = 50.0
"""Interval of fetches from partitions without records while another partition's buffer is full."""


class Lane(enum.Enum):
    """The two connections to a broker that a fetch may use."""

    MAIN = "all partitions, in a session"
    LATE = "partitions that a long poll under way does not name"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """The bounds of a consumer's fetches, from its configuration; times in milliseconds."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_bytes: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFetch:
    """One request. ``asked`` holds, of each partition, its position with the generation and the offset of the request.

    An answer counts only where they are still the same.
    """

    node_id: int
    lane: Lane
    asked: Mapping[TopicPartition, tuple[PartitionPosition, int, int]]
    max_wait_ms: int
    max_bytes: int
    from_follower: frozenset[TopicPartition] = frozenset()
    """The partitions that are read here because their leader named this broker: it may be behind the leader."""

    @property
    def positions(self) -> list[PartitionPosition]:
        """The partitions that the fetch names."""
        return [position for position, _, _ in self.asked.values()]

    def covers(self, position: PartitionPosition) -> bool:
        """Returns whether the partition is asked for at the offset where it is to be fetched."""
        return self.asked.get(position.partition) == (position, position.generation, position.fetch_offset)


class NodeFetches:
    """The requests in flight to one broker."""

    __slots__ = ("answered_at_ms", "session", "under_way")

    def __init__(self) -> None:
        self.session = FetchSession()
        self.under_way: dict[Lane, PlannedFetch] = {}
        self.answered_at_ms = -math.inf  # the last request of the main lane


class FetchPlan:
    """Plans the fetches of one consumer."""

    def __init__(self, limits: FetchLimits) -> None:
        self._limits = limits
        self._nodes: dict[int, NodeFetches] = {}

    def session(self, node_id: int) -> FetchSession:
        """Returns the session with a broker."""
        return self._node(node_id).session

    def _node(self, node_id: int) -> NodeFetches:
        return self._nodes.setdefault(node_id, NodeFetches())

    def next_fetch(
        self, node_id: int, positions: Sequence[PartitionPosition], nodes: int, now_ms: float
    ) -> PlannedFetch | float:
        """Returns the next request for a broker, else the time at which to look again (infinity: after a change).

        ``positions`` are all partitions that are to be fetched from it, also those that are paused or full; ``nodes``
        is the number of brokers that have any. The request counts as under way until ``ended``.
        """
        node = self._node(node_id)
        if Lane.LATE in node.under_way:
            return math.inf  # it comes back without a wait, and then its partitions can be part of the next long poll
        main = node.under_way.get(Lane.MAIN)
        if main is not None and main.max_wait_ms == 0:
            return math.inf
        limits = self._limits
        wanted = [each for each in positions if each.wants_fetch(now_ms, limits.partition_bytes)]
        if not wanted:
            return math.inf
        if main is not None:
            late = [each for each in wanted if not each.is_idle and not main.covers(each)]
            if not late:
                return math.inf
            return self._planned(node_id, Lane.LATE, late, 0, limits.partition_bytes * len(late))
        room = self._room(positions, nodes)
        if room <= 0:
            return math.inf
        wait_ms = limits.max_wait_ms
        if any(each.is_full(now_ms, limits.partition_bytes) for each in positions):
            wait_ms = 0
            next_ms = node.answered_at_ms + IDLE_POLL_MS
            if now_ms < next_ms and all(each.is_idle for each in wanted):
                return next_ms
        return self._planned(node_id, Lane.MAIN, wanted, wait_ms, room)

    def _room(self, positions: Sequence[PartitionPosition], nodes: int) -> int:
        """Returns how many bytes a request may ask for; 0 while the buffers are too full for a request.

        If they are too full, it drops the chunks of paused partitions, which the application does not take.
        """
        share = max(self._limits.buffer_bytes // nodes, 1)
        enough = min(self._limits.partition_bytes, share // 2)
        for paused in [False, True]:
            buffered = sum(each.buffered_bytes for each in positions)
            if share - buffered >= enough:
                return max(share - buffered, 1)
            if not paused:
                for each in positions:
                    if each.is_paused:
                        each.drop_chunks()
        return 0

    def _planned(
        self, node_id: int, lane: Lane, wanted: Sequence[PartitionPosition], wait_ms: int, room: int
    ) -> PlannedFetch:
        planned = PlannedFetch(
            node_id=node_id,
            lane=lane,
            asked={each.partition: (each, each.generation, each.fetch_offset) for each in wanted},
            max_wait_ms=wait_ms,
            max_bytes=min(self._limits.max_bytes, room),
            from_follower=frozenset(each.partition for each in wanted if each.preferred_replica == node_id),
        )
        self._node(node_id).under_way[lane] = planned
        return planned

    def ended(self, planned: PlannedFetch, now_ms: float) -> None:
        """Notes the end of a request: it failed, or its chunks have been added."""
        node = self._node(planned.node_id)
        del node.under_way[planned.lane]
        if planned.lane is Lane.MAIN:
            node.answered_at_ms = now_ms

    def given_up(self, planned: PlannedFetch) -> None:
        """Notes that a request was not sent for lack of a connection."""
        del self._node(planned.node_id).under_way[planned.lane]

    def farewells(self) -> dict[int, SessionRequest]:
        """Returns the last request for each broker that keeps a session, also those with a request in flight."""
        found = {node_id: node.session.final_request() for node_id, node in self._nodes.items()}
        return {node_id: farewell for node_id, farewell in found.items() if farewell is not None}

    def forget_nodes(self, known: Mapping[int, object]) -> dict[int, SessionRequest]:
        """Forgets brokers from which nothing is fetched any more and that have no request in flight.

        Returns the last request for each of them that still keeps a session.
        """
        farewells: dict[int, SessionRequest] = {}
        for node_id in [each for each, node in self._nodes.items() if each not in known and not node.under_way]:
            farewell = self._nodes.pop(node_id).session.final_request()
            if farewell is not None:
                farewells[node_id] = farewell
        return farewells
