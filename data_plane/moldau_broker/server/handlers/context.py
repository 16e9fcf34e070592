"""The parts of a broker that request handlers use; each handler module names those that it needs as a Protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.telemetry.log_levels import PROCESS_LOG_LEVELS
from moldau.values import LeaderEpoch
from moldau_broker.server.data_path.record_checks import CheckLanes
from moldau_quorum.authorization.principals import address_bytes, principal_bytes
from moldau_quorum.broker_side.controller_client import ForwardedClient
from moldau_quorum.controller.entities.loggers import NodeLoggers

if TYPE_CHECKING:
    import uuid
    from collections.abc import Awaitable, Callable, Mapping

    from moldau.protocol.schema import Response
    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.sasl.core.identity import Identity
    from moldau.values import BrokerId
    from moldau_broker.coordinator.group.coordinator import GroupCoordinator
    from moldau_broker.coordinator.share.coordinator import ShareCoordinator
    from moldau_broker.coordinator.transaction.coordinator import TransactionCoordinator
    from moldau_broker.log.directories.manager import LogManager
    from moldau_broker.replication.fetch_session import FetchSessionCache
    from moldau_broker.server.client_metrics.manager import ClientMetrics
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.cluster_metadata.topic_creation import TopicCreation
    from moldau_broker.server.coordination.marker_checks import MarkerChecks
    from moldau_broker.server.coordination.producer_ids import ProducerIds
    from moldau_broker.server.coordination.share_states import ShareStateClient
    from moldau_broker.server.coordination.transaction_verifier import TransactionVerifier
    from moldau_broker.server.coordination.transactions import TransactionMarkers
    from moldau_broker.server.lifecycle.dynamic_config import DynamicConfig
    from moldau_broker.server.quotas.broker_quotas import BrokerQuotas
    from moldau_broker.server.remote_log.manager import RemoteLogManager
    from moldau_broker.server.remote_reading.parts import RemoteReading
    from moldau_broker.server.remote_reading.reader import RemoteReader
    from moldau_broker.server.remote_reading.reads import RemoteReads
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_directories import ReplicaDirectories
    from moldau_broker.server.replicas.replica_manager import ReplicaManager
    from moldau_broker.server.share.share_partition_manager import SharePartitionManager
    from moldau_quorum.authorization.authorizer import Authorizer
    from moldau_quorum.authorization.checks import Verdict
    from moldau_quorum.broker_side.controller_client import ControllerClient
    from moldau_quorum.broker_side.metadata_follower import MetadataFollower


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The header of one request, and where it came from."""

    version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    client_port: int = 0
    software: tuple[str, str] = ("", "")
    """Name and version of the client's library, if its ApiVersions request had them."""

    listener_name: str
    identity: Identity
    """Principal, mechanism, address and listener of the peer."""

    fetch_bytes_max: int | None = None
    """The most bytes that a ShareFetch may return by the client's quota; None if that is not limited."""

    verdict: Verdict | None = None
    """The part of the request that authorization left, and the completion of the answer; None if it left all."""

    @property
    def forwarded(self) -> ForwardedClient:
        """The client, as the controller learns of it when the request is forwarded."""
        return ForwardedClient(principal_bytes(self.identity), address_bytes(self.identity), self.client_id)


@dataclass(frozen=True, slots=True)
class LongAnswer:
    """The result of a handler that has to compute for long; ``finish`` runs once and completes it."""

    finish: Callable[[], Awaitable[Response]]


@dataclass(slots=True, kw_only=True)
class BrokerContext:
    """The parts of a broker; a change of dynamic configuration replaces ``config`` by that of ``dynamic``."""

    environment: Environment
    config: Config
    static_config: Config
    dynamic: DynamicConfig
    broker_id: BrokerId
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
    shares: ShareCoordinator
    share_states: ShareStateClient
    markers: TransactionMarkers
    verifier: TransactionVerifier
    marker_checks: MarkerChecks
    quotas: BrokerQuotas
    share_partitions: SharePartitionManager
    client_metrics: ClientMetrics | None = None  # None without the extra ``telemetry``
    authorizer: Authorizer | None = None  # None: everyone may do everything
    remote_log: RemoteLogManager | None = None  # None without tiered storage
    remote_reading: RemoteReading | None = None  # None without tiered storage
    checks: CheckLanes = field(default_factory=CheckLanes)

    @property
    def loggers(self) -> NodeLoggers:
        """The loggers of this process."""
        return NodeLoggers("broker", self.broker_id, PROCESS_LOG_LEVELS)

    @property
    def remote_parts(self) -> tuple[RemoteLogManager | RemoteReads, ...]:
        """The parts of tiered storage that run tasks."""
        parts = self.remote_log, None if self.remote_reading is None else self.remote_reading.reads
        return tuple(part for part in parts if part is not None)

    @property
    def remote_reader(self) -> RemoteReader | None:
        """The reader of remote segments; None without tiered storage."""
        return None if self.remote_reading is None else self.remote_reading.reader

    def leader(self, topic: str, partition: int, current_leader_epoch: int = -1) -> Partition:
        """Returns the local replica of a partition that this broker leads.

        Raises:
            KafkaError: this broker does not lead it; the code makes a client refresh its metadata if that can help.
        """
        return self._replica(topic, partition, current_leader_epoch, leader_only=True)

    def replica(self, topic: str, partition: int) -> Partition:
        """Returns the local replica of a partition, which may be a follower.

        Raises:
            KafkaError: this broker has none; the code makes a client refresh its metadata if that can help.
        """
        return self._replica(topic, partition, -1, leader_only=False)

    def _replica(self, topic: str, partition: int, current_leader_epoch: int, *, leader_only: bool) -> Partition:
        found = self.replicas.partitions.get((topic, partition))
        if found is None:
            if self.directories.is_offline(topic, partition):
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
            known = self.metadata.partition(topic, partition) is not None
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        error = found.check_access(LeaderEpoch(current_leader_epoch), leader_only=leader_only)
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
        return found
