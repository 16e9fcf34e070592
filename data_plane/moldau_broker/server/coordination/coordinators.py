"""Builds the coordinators of a broker, and the parts that write and check markers.

The state of a coordinator is in the partitions of an internal topic, and a broker coordinates the partitions that it
leads. ``leadership_changed`` reports a partition that was won or lost to the coordinator whose state it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.coordinator.group.coordinator import GroupCoordinator
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.group.streams.core.state import STREAMS_TYPE
from moldau_broker.coordinator.regexes import compile_regex
from moldau_broker.coordinator.share.coordinator import ShareCoordinator
from moldau_broker.coordinator.share.core.config import ShareConfig
from moldau_broker.coordinator.transaction.coordinator import TransactionCoordinator
from moldau_broker.coordinator.transaction.core.config import TransactionConfig
from moldau_broker.server.coordination.catalogue import ImageCatalogue
from moldau_broker.server.coordination.internal_log import InternalTopicLog
from moldau_broker.server.coordination.marker_checks import MarkerChecks
from moldau_broker.server.coordination.share_states import ShareStateClient
from moldau_broker.server.coordination.transaction_verifier import TransactionVerifier
from moldau_broker.server.coordination.transactions import TransactionMarkers
from moldau_quorum.controller.cluster.features import (
    GROUP_VERSION,
    SHARE_VERSION,
    STREAMS_VERSION,
    TRANSACTION_VERSION,
)
from moldau_quorum.metadata.internal_topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Environment
    from moldau.values import BrokerId
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.coordination.producer_ids import ProducerIds
    from moldau_broker.server.coordination.transactions import Peers
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_manager import ReplicaManager


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinators:
    """The coordinators of one broker, connected with each other; none of them runs yet."""

    groups: GroupCoordinator
    transactions: TransactionCoordinator
    shares: ShareCoordinator
    share_states: ShareStateClient
    """Asks the share coordinators of the cluster."""
    markers: TransactionMarkers
    """Writes the transaction coordinator's decisions to the partitions."""
    verifier: TransactionVerifier
    """Asks before a transactional batch is appended (KIP-890)."""
    marker_checks: MarkerChecks
    """Checks markers that arrive over a connection."""

    def leadership_changed(self, partition: Partition, leads: bool) -> None:
        """Loads or unloads the state in a partition of an internal topic; ignores other topics."""
        coordinator: GroupCoordinator | TransactionCoordinator | ShareCoordinator
        if partition.key.topic == OFFSETS_TOPIC:
            coordinator = self.groups
        elif partition.key.topic == TRANSACTIONS_TOPIC:
            coordinator = self.transactions
        elif partition.key.topic == SHARE_STATE_TOPIC:
            coordinator = self.shares
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
    broker_id: BrokerId,
    metadata: MetadataCache,
    replicas: ReplicaManager,
    peers: Peers,
    producer_ids: ProducerIds,
) -> Coordinators:
    """Builds the coordinators on the logs of ``replicas``."""

    def partition_count(topic_name: str) -> int:
        topic = metadata.image.topics_by_name.get(topic_name)
        return 0 if topic is None else len(topic.partitions)

    catalogue = ImageCatalogue(metadata, broker_id)
    group_config = GroupConfig.of(config)

    def serves_consumers() -> bool:
        return "consumer" in group_config.protocols and metadata.image.features.get(GROUP_VERSION, 0) >= 1

    def serves_shares() -> bool:
        return metadata.image.features.get(SHARE_VERSION, 0) >= 1

    def serves_streams() -> bool:
        return STREAMS_TYPE in group_config.protocols and metadata.image.features.get(STREAMS_VERSION, 0) >= 1

    def transaction_level() -> int:
        return metadata.image.features.get(TRANSACTION_VERSION, 0)

    markers = TransactionMarkers(broker_id, metadata, replicas, peers)
    verifier = TransactionVerifier(
        broker_id,
        metadata,
        peers,
        environment.clock,
        retry_ms=config.get_int("add.partitions.to.txn.retry.backoff.ms"),
        retry_max_ms=config.get_int("add.partitions.to.txn.retry.backoff.max.ms"),
    )
    shares = ShareCoordinator(
        environment=environment,
        log=InternalTopicLog(SHARE_STATE_TOPIC, replicas, metadata),
        topics=catalogue,
        config=ShareConfig.of(config),
        partition_count=lambda: partition_count(SHARE_STATE_TOPIC),
        logger=EventLogger("moldau.broker.shares", node=broker_id),
    )
    share_states = ShareStateClient(broker_id, metadata, replicas, peers, shares)
    groups = GroupCoordinator(
        environment=environment,
        log=InternalTopicLog(OFFSETS_TOPIC, replicas, metadata),
        catalogue=catalogue,
        config=group_config,
        partition_count=lambda: partition_count(OFFSETS_TOPIC),
        compile_regex=compile_regex,
        share_states=share_states,
        serves_consumers=serves_consumers,
        serves_shares=serves_shares,
        serves_streams=serves_streams,
        logger=EventLogger("moldau.broker.groups", node=broker_id),
    )
    transactions = TransactionCoordinator(
        environment=environment,
        log=InternalTopicLog(TRANSACTIONS_TOPIC, replicas, metadata),
        topics=catalogue,
        markers=markers,
        producer_ids=producer_ids,
        config=TransactionConfig.of(config),
        partition_count=lambda: partition_count(TRANSACTIONS_TOPIC),
        offsets_partition_count=lambda: partition_count(OFFSETS_TOPIC),
        level=transaction_level,
        logger=EventLogger("moldau.broker.transactions", node=broker_id),
    )
    markers.connect(groups)
    verifier.connect(transactions)
    return Coordinators(
        groups=groups,
        transactions=transactions,
        shares=shares,
        share_states=share_states,
        markers=markers,
        verifier=verifier,
        marker_checks=MarkerChecks(metadata, replicas, verifier),
    )
