"""Builds the answers of DescribeGroups and ListGroups. Pure.

A group that only has offsets, also offsets of an open transaction, is shown as Empty, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from moldau.protocol.messages.list_groups import ListedGroup
from moldau_broker.coordinator.group.core.group import Group, GroupState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from enum import Enum

    from moldau.protocol.messages.list_groups import ListGroupsRequest

CONSUMER_TYPE = "consumer"
"""The type of KIP-848's groups."""
_NOT_FOUND_FROM = 6
"""The first version of DescribeGroups with an error for unknown groups."""


class Listable(Protocol):
    """A group of a type other than classic."""

    group_id: str

    @property
    def state(self) -> Enum:
        """The state that clients see."""
        ...


def state_of(group: Group | None, has_offsets: bool) -> GroupState:
    """Returns the state of a group; a group without members is Empty if it has offsets, else Dead."""
    if group is not None:
        return group.state
    return GroupState.EMPTY if has_offsets else GroupState.DEAD


def described(group_id: str, group: Group | None, has_offsets: bool, version: int) -> DescribedGroup:
    """Returns one group of a DescribeGroups answer."""
    state = state_of(group, has_offsets)
    if state is GroupState.DEAD:
        return _absent(group_id, version, f"Group {group_id} not found.")
    if group is None:
        return DescribedGroup(group_id=group_id, group_state=state.value)
    stable = group.state is GroupState.STABLE
    members = [
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol_name) if stable else b"",
            member_assignment=member.assignment,  # during a rebalance, that of the generation before
        )
        for member in group.members.values()
    ]
    return DescribedGroup(
        group_id=group_id,
        group_state=state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if stable else "",
        members=members,
    )


def not_classic(group_id: str, version: int) -> DescribedGroup:
    """Returns the description of a group of another kind, which DescribeGroups does not show."""
    return _absent(group_id, version, f"Group {group_id} is not a classic group.")


def _absent(group_id: str, version: int, message: str) -> DescribedGroup:
    """Returns the description of a group that is Dead; older clients know no error for that."""
    found = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
    if version >= _NOT_FOUND_FROM:
        found.error_code, found.error_message = ErrorCode.GROUP_ID_NOT_FOUND, message
    return found


def listed(request: ListGroupsRequest, groups: Mapping[str, Group], with_offsets: Iterable[str]) -> list[ListedGroup]:
    """Returns the classic groups that pass the filters; ``with_offsets`` adds group ids."""
    passes = _filter(request, "classic")
    found: list[ListedGroup] = []
    for group_id in sorted({*groups, *with_offsets}):
        group = groups.get(group_id)
        state = state_of(group, has_offsets=True).value
        if passes(state):
            protocol_type = (group.protocol_type or "") if group is not None else ""
            found.append(
                ListedGroup(group_id=group_id, protocol_type=protocol_type, group_state=state, group_type="classic")
            )
    return found


def listed_of_type(request: ListGroupsRequest, groups: Iterable[Listable], group_type: str) -> list[ListedGroup]:
    """Returns the groups of a type other than classic that pass the filters."""
    passes = _filter(request, group_type)
    return [
        ListedGroup(
            group_id=group.group_id, protocol_type=group_type, group_state=group.state.value, group_type=group_type
        )
        for group in groups
        if passes(group.state.value)
    ]


def _filter(request: ListGroupsRequest, group_type: str) -> Callable[[str], bool]:
    """Returns whether the filters let groups of a type pass, by their state; filters ignore case as in Kafka."""
    states = {name.lower() for name in request.states_filter}
    types = {name.lower() for name in request.types_filter}
    takes_type = not types or group_type in types
    return lambda state: takes_type and (not states or state.lower() in states)
