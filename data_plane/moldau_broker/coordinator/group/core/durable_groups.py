"""The questions that the classic protocol asks of groups whose members are in the log. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.protocol.errors import ErrorCode
    from moldau_broker.coordinator.runtime.effects import Moment, StateRecord


class DurableGroup(Protocol):
    """A group whose members are in the log."""

    @property
    def group_id(self) -> str: ...
    @property
    def members(self) -> Mapping[str, object]: ...
    def subscribed_topics(self) -> tuple[str, ...]:
        """Returns the names of all topics that members read, sorted."""
        ...


class DurableGroups(Protocol):
    """The groups of one protocol whose members are in the log: consumer groups, streams groups."""

    @property
    def committed(self) -> Mapping[str, DurableGroup]:
        """The groups that the committed log contains, by id."""
        ...

    def get(self, group_id: str) -> DurableGroup | None:
        """Returns a group as the committed log has it."""
        ...

    def latest(self, group_id: str) -> DurableGroup | None:
        """Returns a group with the changes of its write in flight."""
        ...

    def is_converting(self, group_id: str) -> bool:
        """Returns whether a write in flight ends a group and begins a classic one."""
        ...

    def for_commits(self, group_id: str) -> DurableGroup | None:
        """Returns the group by which commits are checked."""
        ...

    def is_deletable(self, group_id: str) -> ErrorCode | None:
        """Returns whether a group can be deleted now; None if it is none of these."""
        ...

    def give_way(self, group_id: str, moment: Moment) -> ErrorCode:
        """Writes the end of a group without members, so that its id is free."""
        ...

    def end_records(self, group_id: str) -> tuple[StateRecord, ...]:
        """Takes an empty, idle group for a deletion and returns its tombstones; `deleting` follows."""
        ...

    def deleting(self, group_id: str, append_id: int) -> None:
        """Names the write that contains the records of `end_records`."""
        ...
