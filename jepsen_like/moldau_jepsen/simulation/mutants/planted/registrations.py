"""Bugs in what the controller decides about brokers and about replicas that may not have their data."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from moldau_broker.replication.replica import Replica
from moldau_quorum.controller import partitions, walks
from moldau_quorum.controller.cluster import brokers
from moldau_quorum.controller.cluster.sessions import BrokerSessions
from moldau_quorum.controller.partition_change import PartitionChange
from moldau_quorum.metadata.image import BrokerImage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.values import BrokerId
    from moldau_broker.replication.follower_progress import FollowerProgress
    from moldau_jepsen.planted_bug import Patch
    from moldau_quorum.controller.cluster.sessions import Session
    from moldau_quorum.controller.context import DecisionView
    from moldau_quorum.metadata.image import MetadataImage, PartitionImage


def elr_ignored() -> list[Patch]:
    """A replica that leaves a small ISR is forgotten."""
    return [(PartitionChange, "_eligible", lambda self, replicas, isr: ())]


def eligible_without_data() -> list[Patch]:
    """A broker that crashed is treated as one that stopped in order: it may have lost what it had."""

    def brokers_gone(view: DecisionView, gone: dict[BrokerId, None], *, lost_state: bool = False) -> walks.Slices:
        return walks.brokers_gone(view, gone, lost_state=False)

    return [(brokers, "brokers_gone", brokers_gone)]


def fenced_broker_may_lead() -> list[Patch]:
    """A fenced broker may lead and join."""
    return [(BrokerImage, "active", property(lambda self: not self.in_controlled_shutdown))]


def session_timeout_ignored() -> list[Patch]:
    """Sessions last for an hour, whatever is configured."""
    original = BrokerSessions.touch

    def touch(
        self: BrokerSessions,
        broker_id: BrokerId,
        broker_epoch: int,
        now_ms: float,
        *,
        connection: object | None,
        metadata_offset: int = -1,
        is_caught_up: bool = False,
    ) -> Session:
        session = original(
            self,
            broker_id,
            broker_epoch,
            now_ms,
            connection=connection,
            metadata_offset=metadata_offset,
            is_caught_up=is_caught_up,
        )
        session.deadline_ms = now_ms + 3_600_000
        return session

    return [(BrokerSessions, "touch", touch)]


def stale_broker_epoch_joins() -> list[Patch]:
    """The broker epoch under which a replica was seen is not compared with its registration (KIP-903)."""
    original = partitions._check_eligible

    def check_eligible(
        partition: PartitionImage, isr: tuple[BrokerId, ...], epochs: dict[int, int], image: MetadataImage
    ) -> None:
        original(partition, isr, {}, image)

    def eligible(
        self: Replica, broker_id: BrokerId, follower: FollowerProgress, registered: Mapping[BrokerId, int]
    ) -> bool:
        return broker_id in registered

    return [(partitions, "_check_eligible", check_eligible), (Replica, "_eligible", eligible)]


def last_known_leader_too_early() -> list[Patch]:
    """The last known leader is taken though others are eligible."""
    original = PartitionChange._elect

    def elect(self: PartitionChange, replicas: tuple[BrokerId, ...], isr: tuple[BrokerId, ...]) -> object:
        elected = original(self, replicas, isr)
        if elected.leader >= 0 or isr:
            return elected
        for replica in replicas:
            if self.acceptable(replica):
                return dataclasses.replace(elected, leader=replica, unclean=True)
        return elected

    return [(PartitionChange, "_elect", elect)]


def silence_on_an_open_connection() -> list[Patch]:
    """A session is over only when the connection of its heartbeats is; a silent broker with an open one stays."""

    def expired(self: BrokerSessions, now_ms: float) -> list[int]:
        return sorted(
            broker
            for broker, session in self._sessions.items()
            if session.connection is None and session.deadline_ms <= now_ms
        )

    def next_deadline_ms(self: BrokerSessions) -> float | None:
        return min(
            (session.deadline_ms for session in self._sessions.values() if session.connection is None), default=None
        )

    return [(BrokerSessions, "expired", expired), (BrokerSessions, "next_deadline_ms", next_deadline_ms)]
