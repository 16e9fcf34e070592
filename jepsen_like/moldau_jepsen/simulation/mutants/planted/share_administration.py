"""Bugs in what administrators do to share groups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau_broker.coordinator.group.share.core import administration
from moldau_broker.coordinator.group.share.core.administration import check_empty, check_exists
from moldau_broker.coordinator.group.share.core.state_partitions import to_delete
from moldau_broker.coordinator.share.core import decisions
from moldau_broker.coordinator.share.core.batches import combine
from moldau_broker.coordinator.share.core.state import Snapshot
from moldau_broker.server.share.share_partition_manager import SharePartitionManager

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from moldau_broker.coordinator.group.consumer.core.catalogue import Catalogue
    from moldau_broker.coordinator.group.share.core.administration import Plan
    from moldau_broker.coordinator.group.share.core.state import ShareDraft, StatePartitions
    from moldau_broker.coordinator.group.share.core.state_partitions import ByTopic
    from moldau_broker.coordinator.share.core.requests import Initialize, KeyAnswer
    from moldau_broker.coordinator.share.core.state import Change, SharePartitionKey, ShareState
    from moldau_broker.server.share.led_partition import LedPartition
    from moldau_jepsen.planted_bug import Patch


def altered_state_keeps_deliveries() -> list[Patch]:
    """Setting a start offset keeps the delivery states and counts of the records behind it."""
    original = decisions._initialize

    def initialize(
        ask: Initialize, key: SharePartitionKey, state: ShareState | None, wall_ms: int
    ) -> tuple[KeyAnswer, Change | None]:
        answer, change = original(ask, key, state, wall_ms)
        if state is None or not isinstance(change, Snapshot) or change.state is None:
            return answer, change
        kept = combine(state.batches, change.state.start_offset)
        return answer, replace(change, state=replace(change.state, batches=kept))

    return [(decisions, "_initialize", initialize)]


def share_group_deleted_with_states() -> list[Patch]:
    """The deletion of a share group leaves the states of its share-partitions."""

    def plan(draft: ShareDraft, catalogue: Catalogue) -> Plan | None:
        check_exists(draft)
        check_empty(draft)
        return None

    return [(administration, "plan_delete_group", plan)]


def first_partition_deleted_only() -> list[Patch]:
    """A deletion of offsets deletes the state of the first partition of each topic only."""

    def first(states: StatePartitions, topic_ids: Collection[UUID], catalogue: Catalogue) -> ByTopic:
        return {each: frozenset({min(numbers)}) for each, numbers in to_delete(states, topic_ids, catalogue).items()}

    return [(administration, "to_delete", first)]


def share_offsets_altered_with_members() -> list[Patch]:
    """Offsets of a share group are set and deleted while it has members."""
    return [(administration, "check_empty", lambda draft: None)]


def share_partition_kept_without_members() -> list[Patch]:
    """A leader keeps its state of a share-partition when no member of the group is left."""

    def leave(self: SharePartitionManager, led: LedPartition) -> None:
        """Does nothing."""

    return [(SharePartitionManager, "_leave", leave)]
