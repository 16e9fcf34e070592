"""What a request handler may use: the broker's parts, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

    from moldau.runtime.config import Config
    from moldau.runtime.environment import Environment
    from moldau_broker.coordinator.shell import GroupCoordinator
    from moldau_broker.coordinator.transaction_shell import TransactionCoordinator
    from moldau_broker.log.manager import LogManager
    from moldau_broker.replication.fetch_session import FetchSessionCache
    from moldau_broker.server.dynamic_config import DynamicConfig
    from moldau_broker.server.metadata_cache import MetadataCache
    from moldau_broker.server.partition import Partition
    from moldau_broker.server.producer_ids import ProducerIds
    from moldau_broker.server.replica_directories import ReplicaDirectories
    from moldau_broker.server.replica_manager import ReplicaManager
    from moldau_broker.server.topic_creation import TopicCreation
    from moldau_broker.server.transactions import TransactionMarkers, TransactionVerifier
    from moldau_quorum.broker_session import ControllerClient, MetadataFollower


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, beside its message."""

    version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    listener_name: str


@dataclass(slots=True, kw_only=True)
class BrokerContext:
    """The parts of a broker. ``config`` is replaced when dynamic configuration changes, by what ``dynamic`` has."""

    environment: Environment
    config: Config
    static_config: Config
    dynamic: DynamicConfig
    broker_id: int
    incarnation_id: uuid.UUID
    metadata: MetadataCache
    follower: MetadataFollower
    controller: ControllerClient
    logs: LogManager
    replicas: ReplicaManager
    directories: ReplicaDirectories
    features: Mapping[str, tuple[int, int]]  # lowest and highest levels that this broker supports
    sessions: FetchSessionCache
    producer_ids: ProducerIds
    topic_creation: TopicCreation
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    markers: TransactionMarkers
    verifier: TransactionVerifier

    def leader(self, topic: str, partition: int, current_leader_epoch: int = -1) -> Partition:
        """The local replica of a partition that is led here.

        Raises ``KafkaError`` with the code that tells a client where to look instead.
        """
        found = self.replicas.partitions.get((topic, partition))
        if found is None:
            if self.directories.is_offline(topic, partition):
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
            known = self.metadata.partition(topic, partition) is not None
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        error = found.check_access(current_leader_epoch, leader_only=True)
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
        return found
