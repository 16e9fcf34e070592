"""The parts of a broker that replicas call, as protocols, and the topic configuration that they obey."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from moldau_broker.log.config import LogConfig
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.values import TopicPartition
    from moldau_broker.server.replicas.partition import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The part of a topic's configuration that replicas use."""

    log: LogConfig
    min_insync_replicas: int
    leader_throttled: tuple[str, ...] = ()  # leader.replication.throttled.replicas
    follower_throttled: tuple[str, ...] = ()  # follower.replication.throttled.replicas


class LeadershipListener(Protocol):
    """Receives changes of leadership (coordinators)."""

    def __call__(self, partition: Partition, leads: bool) -> None:
        """Reports that the replica applied new state; ``leads``: whether it leads in its present leader epoch."""
        ...


class Following(Protocol):
    """Fetches from leaders (``replica_fetcher.ReplicaFetchers``)."""

    def follow(self, partition: Partition) -> None:
        """Follows the leader of a new leader epoch; the partition may have no leader."""
        ...

    def unfollow(self, key: TopicPartition) -> None:
        """Stops following a partition that this broker leads, or no longer holds."""
        ...

    def policy_changed(self, partition: Partition) -> None:
        """Reports that the flush policy of the partition's topic may have changed."""
        ...


class SyncRequest(Protocol):
    """Syncs logs outside the event loop (``log_tasks.LogSyncs``)."""

    def __call__(self, log: PartitionLog) -> None:
        """Asks for a sync of everything written to ``log`` so far; any number of requests may share one sync."""
        ...
