"""The coordinators of a broker, put together: groups, transactions, and what carries a decision to the partitions.

Each lives on the partitions of an internal topic: a broker coordinates what it leads there. ``leadership_changed``
hands a partition that was won or lost to the coordinator whose state it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.runtime.log import EventLogger
from moldau_broker.coordinator.group_config import GroupConfig
from moldau_broker.coordinator.shell import GroupCoordinator
from moldau_broker.coordinator.transaction_config import TransactionConfig
from moldau_broker.coordinator.transaction_shell import TransactionCoordinator
from moldau_broker.server.internal_log import ImageTopicNames, InternalTopicLog
from moldau_broker.server.topic_creation import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from moldau_broker.server.transactions import TransactionMarkers, TransactionVerifier

if TYPE_CHECKING:
    from moldau.runtime.config import Config
    from moldau.runtime.environment import Environment
    from moldau_broker.server.metadata_cache import MetadataCache
    from moldau_broker.server.partition import Partition
    from moldau_broker.server.producer_ids import ProducerIds
    from moldau_broker.server.replica_manager import ReplicaManager
    from moldau_broker.server.transactions import Peers


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinators:
    """The coordinators of one broker, connected with each other; none of them runs yet."""

    groups: GroupCoordinator
    transactions: TransactionCoordinator
    markers: TransactionMarkers
    """Writes what the transaction coordinator decided to the partitions."""
    verifier: TransactionVerifier
    """Asks before a transactional batch is appended (KIP-890)."""

    def leadership_changed(self, partition: Partition, leads: bool) -> None:
        """Takes over or gives up the state that a partition of an internal topic holds; ignores any other topic."""
        coordinator: GroupCoordinator | TransactionCoordinator
        if partition.key.topic == OFFSETS_TOPIC:
            coordinator = self.groups
        elif partition.key.topic == TRANSACTIONS_TOPIC:
            coordinator = self.transactions
        else:
            return
        leader_epoch = partition.replica.state.leader_epoch
        if leads:
            coordinator.become_leader(partition.key.partition, leader_epoch)
        else:
            coordinator.resign(partition.key.partition, leader_epoch)


def build_coordinators(
    environment: Environment,
    config: Config,
    broker_id: int,
    metadata: MetadataCache,
    replicas: ReplicaManager,
    peers: Peers,
    producer_ids: ProducerIds,
) -> Coordinators:
    """Builds the coordinators on the logs that ``replicas`` has."""

    def partition_count(topic_name: str) -> int:
        topic = metadata.image.topics_by_name.get(topic_name)
        return 0 if topic is None else len(topic.partitions)

    topics = ImageTopicNames(metadata)
    markers = TransactionMarkers(broker_id, metadata, replicas, peers)
    verifier = TransactionVerifier(broker_id, metadata, peers)
    groups = GroupCoordinator(
        environment=environment,
        log=InternalTopicLog(OFFSETS_TOPIC, replicas, metadata),
        topics=topics,
        config=GroupConfig.of(config),
        partition_count=lambda: partition_count(OFFSETS_TOPIC),
        logger=EventLogger("moldau.broker.groups", node=broker_id),
    )
    transactions = TransactionCoordinator(
        environment=environment,
        log=InternalTopicLog(TRANSACTIONS_TOPIC, replicas, metadata),
        topics=topics,
        markers=markers,
        producer_ids=producer_ids,
        config=TransactionConfig.of(config),
        partition_count=lambda: partition_count(TRANSACTIONS_TOPIC),
        offsets_partition_count=lambda: partition_count(OFFSETS_TOPIC),
        logger=EventLogger("moldau.broker.transactions", node=broker_id),
    )
    markers.connect(groups)
    verifier.connect(transactions)
    return Coordinators(groups=groups, transactions=transactions, markers=markers, verifier=verifier)
