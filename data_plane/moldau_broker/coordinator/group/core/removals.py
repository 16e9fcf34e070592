"""Removes groups and offsets: OffsetDelete, DeleteGroups, and the expiry of offsets (KIP-211, KIP-496). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from moldau.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from moldau_broker.coordinator.group.core.group import Group, GroupState
from moldau_broker.coordinator.group.core.offset_requests import delete_offsets
from moldau_broker.coordinator.group.core.records import group_record, offset_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
    from moldau.protocol.messages.internal.group_metadata import GroupMetadataValue
    from moldau_broker.coordinator.group.consumer.core.groups import ConsumerGroups
    from moldau_broker.coordinator.group.consumer.core.state import ConsumerGroup
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.group.core.effect_queue import EffectQueue
    from moldau_broker.coordinator.group.core.offsets import OffsetStore, TopicPartition
    from moldau_broker.coordinator.group.core.rebalance import Rebalancer
    from moldau_broker.coordinator.runtime.effects import Moment, StateRecord
    from moldau_broker.coordinator.runtime.ports import TopicNames


class Removals:
    """Writes the tombstones of groups and offsets of one partition of ``__consumer_offsets``."""

    def __init__(
        self,
        config: GroupConfig,
        effects: EffectQueue,
        rebalancer: Rebalancer,
        consumers: ConsumerGroups,
        offsets: OffsetStore,
        written: Mapping[str, GroupMetadataValue],
        topics: TopicNames,
    ) -> None:
        """Removes from these parts of a core.

        Args:
            config: the group coordinator's configuration.
            effects: what the core's shell has to do.
            rebalancer: the classic groups.
            consumers: the groups of the consumer protocol.
            offsets: the committed offsets of all groups.
            written: the last committed records of classic groups.
            topics: the topics at the moment of a call.
        """
        self._topics = topics
        self._config = config
        self._effects = effects
        self._rebalancer = rebalancer
        self._consumers = consumers
        self._offsets = offsets
        self._written_groups = written

    def delete_offsets(self, request_id: int, request: OffsetDeleteRequest, moment: Moment) -> None:
        """Handles OffsetDelete."""
        group = self._consumers.for_commits(request.group_id) or self._rebalancer.groups.get(request.group_id)
        code, records, response = delete_offsets(group, self._keys_of(request.group_id), request, self._topics)
        if code is not ErrorCode.NONE:
            self._effects.answer(request_id, OffsetDeleteResponse(error_code=code))
            return
        self._effects.reply_when_written(
            request_id,
            records,
            lambda failure: response if failure is ErrorCode.NONE else OffsetDeleteResponse(error_code=failure),
            moment,
        )

    def delete_groups(self, request_id: int, request: DeleteGroupsRequest, moment: Moment) -> None:
        """Handles DeleteGroups."""
        records: list[StateRecord] = []
        codes: dict[str, ErrorCode] = {}
        consumers: list[str] = []
        for group_id in request.groups_names:
            codes[group_id] = self._deletable(group_id)
            if codes[group_id] is ErrorCode.NONE:
                records += self._tombstones(group_id)
                if self._consumers.get(group_id) is not None:
                    records += self._consumers.end_records(group_id)
                    consumers.append(group_id)
                group = self._rebalancer.groups.get(group_id)
                if group is not None:
                    self._rebalancer.forget(group)

        def respond(failure: ErrorCode) -> DeleteGroupsResponse:
            results = [
                DeletableGroupResult(group_id=name, error_code=failure if code is ErrorCode.NONE else code)
                for name, code in codes.items()
            ]
            return DeleteGroupsResponse(results=results)

        append_id = self._effects.reply_when_written(request_id, tuple(records), respond, moment)
        for group_id in consumers:
            assert append_id is not None
            self._consumers.deleting(group_id, append_id)

    def _deletable(self, group_id: str) -> ErrorCode:
        code = self._consumers.is_deletable(group_id)
        if code is not None:
            return code
        group = self._rebalancer.groups.get(group_id)
        if group is None:
            # If the log refused the last deletion of a group, it still holds the group.
            is_known = group_id in self._written_groups or self._keys_of(group_id)
            return ErrorCode.NONE if is_known else ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if group.state is GroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP

    def _tombstones(self, group_id: str) -> list[StateRecord]:
        """Returns tombstones for all records of a group, including pending ones, which precede them in the log."""
        records = [offset_record(group_id, topic, partition, None) for topic, partition in self._keys_of(group_id)]
        if self._consumers.get(group_id) is not None:
            return records
        return [*records, group_record(group_id, None)]

    def _keys_of(self, group_id: str) -> dict[TopicPartition, None]:
        """Returns the partitions with an offset of the group: committed, in an open transaction, or in flight."""
        keys = dict.fromkeys(self._offsets.keys(group_id))
        for record in self._effects.offsets_in_flight():
            if record.group_id == group_id and record.committed is not None:
                keys[record.topic, record.partition] = None
        return keys

    def expire(self, moment: Moment) -> None:
        """Writes tombstones for expired offsets and for groups that have no offsets left (KIP-211)."""
        records: list[StateRecord] = []
        limit = self._config.expired_batch_records_max
        # A tombstone would follow a commit in flight and delete it: such groups wait for the next round.
        busy = {record.group_id for record in self._effects.offsets_in_flight()}
        known = {
            *self._rebalancer.groups,
            *self._offsets.group_ids(),
            *self._written_groups,
            *self._consumers.committed,
        }
        for group_id in sorted(known):
            if len(records) >= limit:
                break
            if group_id in busy or self._consumers.is_converting(group_id):
                continue
            records += self._expired_of(group_id, moment)
        for first in range(0, len(records), limit):
            self._effects.append(tuple(records[first : first + limit]), None, moment)

    def _expired_of(self, group_id: str, moment: Moment) -> list[StateRecord]:
        consumers = self._consumers.latest(group_id)
        if consumers is not None:
            return self._expired_of_consumers(consumers, moment)
        group = self._rebalancer.groups.get(group_id)
        idle_since: int | None = None
        if group is not None and not group.is_simple:
            if group.state is not GroupState.EMPTY:
                return self._expired_unread(group, moment)
            idle_since = group.state_since_ms
        retention = self._config.offsets_retention_ms
        expired = list(self._offsets.expired(group_id, moment.wall_ms, retention, idle_since))
        records = [offset_record(group_id, topic, partition, None) for topic, partition in expired]
        if self._is_all(group_id, expired) and (
            group is None or (group.state is GroupState.EMPTY and not group.pending_members)
        ):
            if group_id in self._written_groups:
                records.append(group_record(group_id, None))
            if group is not None:
                self._rebalancer.forget(group)
        return records

    def _expired_unread(self, group: Group, moment: Moment) -> list[StateRecord]:
        """Returns tombstones for the expired offsets of a live consumer group, of topics that no member reads."""
        if group.protocol_type != "consumer" or group.state is not GroupState.STABLE:
            return []
        read = group.subscription()
        if read is None:
            return []
        expired = self._offsets.expired(group.group_id, moment.wall_ms, self._config.offsets_retention_ms, None)
        return [
            offset_record(group.group_id, topic, partition, None) for topic, partition in expired if topic not in read
        ]

    def _expired_of_consumers(self, group: ConsumerGroup, moment: Moment) -> list[StateRecord]:
        """Returns tombstones for the expired offsets of topics that no member reads; may end an empty group."""
        group_id, read = group.group_id, frozenset(group.subscribed_topics())
        found = self._offsets.expired(group_id, moment.wall_ms, self._config.offsets_retention_ms, None)
        expired = [(topic, partition) for topic, partition in found if topic not in read]
        if self._is_all(group_id, expired) and not group.members:
            self._consumers.give_way(group_id, moment)
        return [offset_record(group_id, topic, partition, None) for topic, partition in expired]

    def _is_all(self, group_id: str, keys: Sequence[TopicPartition]) -> bool:
        """Returns whether these are all offsets of a group."""
        return len(keys) == len(self._offsets.committed(group_id)) and not self._offsets.has_pending(group_id)
