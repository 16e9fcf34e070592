"""Summarizes the local replicas for metrics. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau_broker.server.replicas.partition import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatistics:
    """The state of all local replicas at one instant; Kafka's ``ReplicaManager`` metrics."""

    partitions: int
    leaders: int
    under_replicated: int
    under_min_isr: int
    at_min_isr: int
    reassigning: int
    lag_max: int
    """The most records that a replica of a partition led here lacks."""


def replica_statistics(partitions: Iterable[Partition]) -> ReplicaStatistics:
    """Looks at each replica once."""
    count = leaders = under_replicated = under_min = at_min = reassigning = lag = 0
    for partition in partitions:
        count += 1
        replica = partition.replica
        if not partition.is_leader:
            continue
        leaders += 1
        state = replica.state
        isr = len(state.isr)
        adding = [broker for broker in state.adding_replicas if broker in state.replicas]
        under_replicated += isr < len(state.replicas) - len(adding)
        reassigning += bool(state.adding_replicas or state.removing_replicas)
        under_min += isr < replica.effective_min_isr
        at_min += isr == replica.effective_min_isr
        for broker_id in state.replicas:
            follower = replica.follower(broker_id)
            if follower is not None and follower.log_end_offset >= 0:
                lag = max(lag, replica.log_end_offset - follower.log_end_offset)
    return ReplicaStatistics(
        partitions=count,
        leaders=leaders,
        under_replicated=under_replicated,
        under_min_isr=under_min,
        at_min_isr=at_min,
        reassigning=reassigning,
        lag_max=lag,
    )
