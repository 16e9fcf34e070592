"""Decides when a broker may lose its page cache, and which brokers must live until the loss is repaired.

Under the default flush policy an acknowledged record may live in page caches alone, on all in-sync replicas. One of
them may lose it, as long as another keeps it: KIP-966 takes a broker that comes back after an unclean stop out of ISR
and ELR, and it fetches again what it lost. The promise does not cover two such losses at once, and the controller
cannot tell a broker that lost its page cache from one whose process was killed: both come back unclean, both leave the
ELR, and when none is left, the last known leader leads, whatever it has lost. So from the loss on until every
partition has a leader that does not count on what was lost, no other broker may die uncleanly; and a loss has to wait
while another replica that the metadata count on is down, or back and not yet registered: that was one unclean stop
already.

The same rule says when the disk of a broker may be replaced by an empty one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from moldau_jepsen.cluster.simulated import SimulatedCluster
    from moldau_quorum.metadata.image import MetadataImage, PartitionImage

NO_LEADER = -1
MIN_ISR = "min.insync.replicas"


class Safekeeping:
    """Knows which brokers must live. Invariant: at most one loss is not repaired."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        """Starts without a loss."""
        self._cluster = cluster
        self._lost: tuple[int, UUID] | None = None
        """The broker that lost something, and its registration then."""
        self._endangered: dict[int, int] = {}
        self.rotten: dict[int, None] = {}
        """Brokers that hold damaged records: what only they have besides counts as lost."""

    # --- nodes that may die

    def endanger(self, node_id: int) -> None:
        """Notes that a fault may end the node's process uncleanly at any time, until ``secure``."""
        self._endangered[node_id] = self._endangered.get(node_id, 0) + 1

    def secure(self, node_id: int) -> None:
        """Notes that such a fault is over."""
        left = self._endangered.get(node_id, 0) - 1
        if left > 0:
            self._endangered[node_id] = left
        else:
            self._endangered.pop(node_id, None)

    def needs(self, node_id: int) -> bool:
        """Returns whether the node must live: it is a broker, and another one has lost records."""
        lost = self._not_made_good(self._cluster.newest_image())
        return lost is not None and node_id != lost and node_id in self._cluster.broker_ids

    def _not_made_good(self, image: MetadataImage | None) -> int | None:
        """Returns the broker whose lost records only others hold; None if there is none."""
        if self._lost is None:
            return None
        if image is not None and not any(self._counts_on_lost(partition, image) for partition in _partitions(image)):
            self._lost = None
            return None
        return self._lost[0]

    def _counts_on_lost(self, partition: PartitionImage, image: MetadataImage) -> bool:
        """Returns whether the broker could still become leader of the partition without its lost records."""
        assert self._lost is not None
        broker_id, incarnation_id = self._lost
        if broker_id not in partition.replicas:
            return False
        if partition.leader == NO_LEADER:
            return True
        broker = image.brokers.get(broker_id)
        if broker is None or broker.incarnation_id != incarnation_id:
            return False
        # While its session lasts, the life that lost something may yet join: what it had fetched before may be decided.
        return not broker.fenced or partition.leader == broker_id or broker_id in partition.isr

    # --- nodes that may lose what they have

    def refusal(self, broker_id: int) -> str:
        """Returns why the broker may lose nothing now; empty if it may."""
        image = self._cluster.newest_image()
        if image is None:
            return "there is no controller"
        alone = self._alone(broker_id, image)
        if alone:
            return alone
        for partition in _partitions(image):
            holders, concerned = _concerned(partition)
            for holder in holders:
                if broker_id in concerned and holder != broker_id and not self._lives_as_registered(holder, image):
                    return f"broker {holder} has ended, and the metadata count on what it had"
        return ""

    def _alone(self, broker_id: int, image: MetadataImage) -> str:
        """Returns why no other broker holds this broker's records safely; empty if one does."""
        cluster = self._cluster
        if int(str(cluster.settings(broker_id)[MIN_ISR])) < 2:
            return f"{MIN_ISR} is less than 2"
        lost = self._not_made_good(image)
        if lost is not None:
            return f"broker {lost} has yet to make good what it lost"
        others = [other for other in cluster.broker_ids if other != broker_id]
        for other in others:
            if other in self._endangered or cluster.offline_directories(other):
                return f"broker {other} may die"
        keepers = [
            other
            for other in others
            # One that is being stopped in order leaves the in-sync sets as it goes.
            if other not in self.rotten and not cluster.is_stopping(other) and self._lives_as_registered(other, image)
        ]
        for partition in _partitions(image):
            holders, concerned = _concerned(partition)
            if broker_id in concerned and not any(keeper in holders for keeper in keepers):
                return "a partition has no other in-sync replica"
        return ""

    def can_do_without(self, broker_id: int) -> bool:
        """Returns whether other brokers that run hold every acknowledged record, and may lead every partition."""
        image = self._cluster.newest_image()
        if image is None:
            return False
        if self._not_made_good(image) == broker_id:
            # The others must live and hold what it lost, but it may be alone in sync in a topic that was made since.
            return not any(_leads_alone(broker_id, partition) for partition in _partitions(image))
        return not self._alone(broker_id, image)

    def lose(self, broker_id: int) -> None:
        """Notes that the broker lost records, with its power or its disk; ``refusal`` must have been empty."""
        assert not self.refusal(broker_id), self.refusal(broker_id)
        image = self._cluster.newest_image()
        assert image is not None, "without an image it is not allowed"
        self._lost = (broker_id, image.brokers[broker_id].incarnation_id)

    def _lives_as_registered(self, broker_id: int, image: MetadataImage) -> bool:
        """Returns whether the broker runs under its registered epoch: a new epoch begins outside ISR and ELR."""
        broker = self._cluster.brokers.get(broker_id)
        registered = image.brokers.get(broker_id)
        return (
            broker is not None
            and broker.is_built
            and registered is not None
            and broker.context.incarnation_id == registered.incarnation_id
        )


def _concerned(partition: PartitionImage) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the brokers that have every committed record of a partition, and all that may become its leader."""
    holders = (*partition.isr, *partition.elr)
    return holders, (*holders, *partition.last_known_elr, partition.leader)


def _leads_alone(broker_id: int, partition: PartitionImage) -> bool:
    """Returns whether no other broker may lead a partition."""
    holders, _ = _concerned(partition)
    return set(holders or partition.last_known_elr) == {broker_id}


def _partitions(image: MetadataImage) -> Iterator[PartitionImage]:
    for topic in image.topics_by_name.values():
        yield from topic.partitions.values()
