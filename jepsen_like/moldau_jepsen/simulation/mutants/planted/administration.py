"""Bugs in what administrators and members do to the offsets of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.consumer.group import GroupClient
from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.group.core import group_core, removals
from moldau_broker.coordinator.group.core.group import Group
from moldau_broker.coordinator.group.core.offsets.requests import check_commit, delete_offsets
from moldau_broker.coordinator.group.core.removals import Removals

if TYPE_CHECKING:
    from collections.abc import Collection

    from moldau.cluster.metadata import TopicPartition
    from moldau.consumer.group import AskedCommit
    from moldau.protocol.errors import KafkaError
    from moldau.protocol.messages.offset_commit import OffsetCommitRequest
    from moldau.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
    from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
    from moldau_broker.coordinator.group.core.durable_groups import DurableGroup
    from moldau_broker.coordinator.group.core.membership import Membership
    from moldau_broker.coordinator.runtime.effects import Moment, StateRecord
    from moldau_broker.coordinator.runtime.ports import TopicNames
    from moldau_jepsen.planted_bug import Patch


def error_hidden_by_next_partition() -> list[Patch]:
    """A commit of the client reports the code of the last partition only."""
    original = GroupClient._commit_once

    async def commit_once(
        self: GroupClient, asked: AskedCommit, deadline_ms: float
    ) -> tuple[ErrorCode, dict[TopicPartition, KafkaError]]:
        code, refused = await original(self, asked, deadline_ms)
        if refused and list(asked.offsets)[-1] not in refused:
            return ErrorCode.NONE, {}
        return code, refused

    return [(GroupClient, "_commit_once", commit_once)]


def group_deleted_with_members() -> list[Patch]:
    """A group is deleted although it has members."""
    original = Removals._deletable

    def deletable(self: Removals, group_id: str) -> ErrorCode:
        code = original(self, group_id)
        return ErrorCode.NONE if code is ErrorCode.NON_EMPTY_GROUP and group_id in self._rebalancer.groups else code

    return [(Removals, "_deletable", deletable)]


def offsets_deleted_while_read() -> list[Patch]:
    """Offsets of topics that members read are deleted."""
    return [(Group, "subscription", lambda self: frozenset())]


def deleted_offsets_kept() -> list[Patch]:
    """An OffsetDelete for several partitions deletes the offset of the first one only."""

    def delete(
        group: Group | DurableGroup | None,
        keys: Collection[tuple[str, int]],
        request: OffsetDeleteRequest,
        topics: TopicNames,
    ) -> tuple[ErrorCode, tuple[StateRecord, ...], OffsetDeleteResponse]:
        code, records, response = delete_offsets(group, keys, request, topics)
        return code, records[:1], response

    return [(removals, "delete_offsets", delete)]


def any_generation_commits() -> list[Patch]:
    """A member may commit for a generation before its present one."""

    def check(
        membership: Membership, request: OffsetCommitRequest | TxnOffsetCommitRequest, moment: Moment
    ) -> ErrorCode:
        code = check_commit(membership, request, moment)
        return ErrorCode.NONE if code is ErrorCode.ILLEGAL_GENERATION else code

    return [(group_core, "check_commit", check)]


def reset_with_members() -> list[Patch]:
    """A commit that names no member is accepted while the group has members."""

    def check(
        membership: Membership, request: OffsetCommitRequest | TxnOffsetCommitRequest, moment: Moment
    ) -> ErrorCode:
        return check_commit(membership, request, moment) if request.member_id else ErrorCode.NONE

    return [(group_core, "check_commit", check)]
