"""Summarizes the local replicas for metrics. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau_broker.server.replicas.partition import Partition


LATE_TRANSACTION_MS: Final = 300_000
"""Time beyond ``transaction.max.timeout.ms`` after which an open transaction is late, as in Kafka (KIP-664)."""


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
    late_transactions: int
    """Led partitions with an open transaction whose producer has been silent for too long."""
    producer_ids: int
    """Producer ids that the logs of all replicas remember."""


def replica_statistics(
    partitions: Iterable[Partition], now_ms: float, transaction_timeout_max_ms: int
) -> ReplicaStatistics:
    """Looks at each replica once. ``now_ms`` is the broker's wall clock."""
    late_before_ms = now_ms - transaction_timeout_max_ms - LATE_TRANSACTION_MS
    count = leaders = under_replicated = under_min = at_min = reassigning = lag = late = producers = 0
    for partition in partitions:
        count += 1
        producer_state = partition.log.producer_state
        producers += len(producer_state)
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
        oldest_ms = producer_state.oldest_open_ms()
        late += oldest_ms is not None and oldest_ms < late_before_ms
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
        late_transactions=late,
        producer_ids=producers,
    )
