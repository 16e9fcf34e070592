"""Names the nodes of a simulated cluster that recovery leaves out at first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

    from moldau_quorum.metadata.image import PartitionImage, TopicImage

NO_LEADER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """The nodes that are not healed yet."""

    nodes: tuple[int, ...] = ()
    cut: bool = False
    """Whether they run but are cut off; otherwise they are down."""
    earlier_topics: frozenset[UUID] | None = None
    """The ids of the topics that were there when the nodes were chosen, which the core serves; None for all topics."""

    def __contains__(self, node_id: int) -> bool:
        """Returns whether a node is outside."""
        return node_id in self.nodes

    def alone_hold(self, topic: TopicImage, partition: PartitionImage) -> bool:
        """Returns whether a new partition waits for these nodes: no other one may lead it.

        A broker outside is in service until its session ends. If the brokers of the core are fenced meanwhile, it is
        the only in-sync replica of a topic that a client creates then, as in Kafka.
        """
        if self.earlier_topics is None or topic.topic_id in self.earlier_topics:
            return False
        may_lead = (*partition.isr, *partition.elr) or partition.last_known_elr
        return partition.leader == NO_LEADER and bool(may_lead) and all(replica in self for replica in may_lead)


NONE_OUTSIDE = Outside()
