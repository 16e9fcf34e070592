"""The classic groups of a partition as its consumer groups see them: a group id belongs to one kind at a time. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_broker.coordinator.group.core.group import GroupState
from moldau_broker.coordinator.group.core.records import group_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.protocol.messages.internal.group_metadata import GroupMetadataValue
    from moldau_broker.coordinator.group.core.rebalance import Rebalancer
    from moldau_broker.coordinator.runtime.effects import StateRecord


class ClassicSide:
    """Tells which classic groups are in use, and ends those that are not."""

    def __init__(self, rebalancer: Rebalancer, written: Mapping[str, GroupMetadataValue]) -> None:
        """Looks at the groups of ``rebalancer``; ``written`` are the last committed records of classic groups."""
        self._rebalancer = rebalancer
        self._written = written

    def has_members(self, group_id: str) -> bool:
        """Returns whether a classic group has members, or clients that are about to join it."""
        group = self._rebalancer.groups.get(group_id)
        return group is not None and (group.state is not GroupState.EMPTY or bool(group.pending_members))

    def end_records(self, group_id: str) -> tuple[StateRecord, ...]:
        """Drops an unused classic group, and returns its tombstone if the log has it."""
        group = self._rebalancer.groups.get(group_id)
        if group is not None:
            self._rebalancer.forget(group)
        return (group_record(group_id, None),) if group is not None or group_id in self._written else ()
