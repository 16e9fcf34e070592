"""Removes groups and offsets: OffsetDelete, DeleteGroups, and the expiry of offsets (KIP-211, KIP-496). Pure."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_groups import DeleteGroupsResponse
from moldau.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from moldau_broker.coordinator.group.core.group import Group, GroupState
from moldau_broker.coordinator.group.core.offsets.gone import BATCH_BYTES_MAX
from moldau_broker.coordinator.group.core.offsets.requests import delete_offsets
from moldau_broker.coordinator.group.core.records import group_record, offset_record
from moldau_broker.coordinator.group.core.responses import deletion_result
from moldau_broker.coordinator.runtime.pending import PartRemoved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
    from moldau.protocol.messages.internal.group_metadata import GroupMetadataValue
    from moldau.protocol.schema import Response
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.group.core.durable_groups import DurableGroup, DurableGroups
    from moldau_broker.coordinator.group.core.effect_queue import EffectQueue
    from moldau_broker.coordinator.group.core.offsets.committed import OffsetStore, TopicPartition
    from moldau_broker.coordinator.group.core.rebalance import Rebalancer
    from moldau_broker.coordinator.runtime.effects import Moment, StateRecord
    from moldau_broker.coordinator.runtime.ports import TopicNames

EXPIRY_TURN_MS: Final = 1
"""The pause between two turns of one round of the expiry, in which other work is done."""


class Removals:
    """Writes the tombstones of groups and offsets of one partition of ``__consumer_offsets``."""

    def __init__(
        self,
        config: GroupConfig,
        effects: EffectQueue,
        rebalancer: Rebalancer,
        durable: tuple[DurableGroups, ...],
        offsets: OffsetStore,
        written: Mapping[str, GroupMetadataValue],
        topics: TopicNames,
    ) -> None:
        """Removes from these parts of a core.

        Args:
            config: the group coordinator's configuration.
            effects: what the core's shell has to do.
            rebalancer: the classic groups.
            durable: the groups of the other protocols that commit offsets.
            offsets: the committed offsets of all groups.
            written: the last committed records of classic groups.
            topics: the topics at the moment of a call.
        """
        self._topics = topics
        self._config = config
        self._effects = effects
        self._rebalancer = rebalancer
        self._durable = durable
        self._offsets = offsets
        self._written_groups = written
        self._unseen: list[str] = []
        """Groups that the present round of the expiry has not looked at, the next one last."""

    def delete_offsets(self, request_id: int, request: OffsetDeleteRequest, moment: Moment) -> None:
        """Handles OffsetDelete."""
        group: Group | DurableGroup | None = self._rebalancer.groups.get(request.group_id)
        for groups in self._durable:
            group = groups.for_commits(request.group_id) or group
        code, records, response = delete_offsets(group, self._keys_of(request.group_id), request, self._topics)
        if code is not ErrorCode.NONE:
            self._effects.answer(request_id, OffsetDeleteResponse(error_code=code))
            return
        self._write(
            request_id,
            records,
            (),
            lambda failure: response if failure is ErrorCode.NONE else OffsetDeleteResponse(error_code=failure),
            moment,
        )

    def delete_groups(self, request_id: int, request: DeleteGroupsRequest, moment: Moment) -> None:
        """Handles DeleteGroups."""
        offsets: list[StateRecord] = []
        ends: list[StateRecord] = []
        codes: dict[str, ErrorCode] = {}
        ended: list[tuple[DurableGroups, str]] = []
        for group_id in request.groups_names:
            codes[group_id] = self._deletable(group_id)
            if codes[group_id] is ErrorCode.NONE:
                offsets += self._tombstones(group_id)
                groups = self._durable_of(group_id)
                if groups is None:
                    ends.append(group_record(group_id, None))
                else:
                    ends += groups.end_records(group_id)
                    ended.append((groups, group_id))
                group = self._rebalancer.groups.get(group_id)
                if group is not None:
                    self._rebalancer.forget(group)

        def respond(failure: ErrorCode) -> DeleteGroupsResponse:
            results = [
                deletion_result(name, failure if code is ErrorCode.NONE else code) for name, code in codes.items()
            ]
            return DeleteGroupsResponse(results=results)

        append_id = self._write(request_id, offsets, ends, respond, moment)
        for groups, group_id in ended:
            assert append_id is not None
            groups.deleting(group_id, append_id)

    def _write(
        self,
        request_id: int,
        offsets: Sequence[StateRecord],
        ends: Sequence[StateRecord],
        respond: Callable[[ErrorCode], Response],
        moment: Moment,
    ) -> int | None:
        """Writes what a request removes, and returns the id of the last write, whose outcome answers the request.

        Tombstones of offsets are divided into batches that the log takes; ``ends`` are in the last one. If an earlier
        one fails, so does the request, which can be repeated.
        """
        batches = list(_batches(offsets, len(offsets)))
        last = batches.pop() if batches else ()
        failures: list[ErrorCode] = []
        for batch in batches:
            self._effects.append(batch, PartRemoved(failures=failures), moment)
        return self._effects.reply_when_written(
            request_id, (*last, *ends), lambda code: respond(failures[0] if failures else code), moment
        )

    def _durable_of(self, group_id: str) -> DurableGroups | None:
        """Returns the groups among which the committed log has an id."""
        return next((groups for groups in self._durable if groups.get(group_id) is not None), None)

    def _deletable(self, group_id: str) -> ErrorCode:
        for groups in self._durable:
            code = groups.is_deletable(group_id)
            if code is not None:
                return code
        group = self._rebalancer.groups.get(group_id)
        if group is None:
            # If the log refused the last deletion of a group, it still holds the group.
            is_known = group_id in self._written_groups or self._keys_of(group_id)
            return ErrorCode.NONE if is_known else ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if group.state is GroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP

    def _tombstones(self, group_id: str) -> list[StateRecord]:
        """Returns tombstones for all offsets of a group, including pending ones, which precede them in the log."""
        return [offset_record(group_id, topic, partition, None) for topic, partition in self._keys_of(group_id)]

    def _keys_of(self, group_id: str) -> dict[TopicPartition, None]:
        """Returns the partitions with an offset of the group: committed, in an open transaction, or in flight."""
        keys = dict.fromkeys(self._offsets.keys(group_id))
        for record in self._effects.offsets_in_flight():
            if record.group_id == group_id and record.committed is not None:
                keys[record.topic, record.partition] = None
        return keys

    def expire(self, moment: Moment) -> int:
        """Writes tombstones for expired offsets and for groups that have no offsets left (KIP-211).

        One turn looks at ``expired_groups_max`` groups at most, because a partition may have very many.

        Returns:
            The milliseconds until the next turn.
        """
        if not self._unseen:
            self._unseen = self._known()
            self._unseen.reverse()
        records: list[StateRecord] = []
        limit = self._config.expired_batch_records_max
        # A tombstone would follow a commit in flight and delete it, and without one the record of a group in flight
        # would outlive the group: such groups wait for the next round.
        busy = self._effects.groups_in_flight()
        for _ in range(min(len(self._unseen), self._config.expired_groups_max)):
            if len(records) >= limit:
                break
            group_id = self._unseen.pop()
            if group_id in busy or any(groups.is_converting(group_id) for groups in self._durable):
                continue
            records += self._expired_of(group_id, moment)
        for batch in _batches(records, limit):
            self._effects.append(batch, None, moment)
        interval_ms = self._config.offsets_retention_check_interval_ms
        if len(records) >= limit:
            return min(interval_ms, self._config.expired_rounds_pause_ms)
        return EXPIRY_TURN_MS if self._unseen else interval_ms

    def _known(self) -> list[str]:
        """Returns all groups, in an order that the log determines."""
        every = (
            self._rebalancer.groups,
            self._offsets.group_ids(),
            self._written_groups,
            *(groups.committed for groups in self._durable),
        )
        return list(dict.fromkeys(chain.from_iterable(every)))

    def _expired_of(self, group_id: str, moment: Moment) -> list[StateRecord]:
        for groups in self._durable:
            found = groups.latest(group_id)
            if found is not None:
                return self._expired_of_durable(groups, found, moment)
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

    def _expired_of_durable(self, groups: DurableGroups, group: DurableGroup, moment: Moment) -> list[StateRecord]:
        """Returns tombstones for the expired offsets of topics that no member reads; may end an empty group."""
        group_id, read = group.group_id, frozenset(group.subscribed_topics())
        found = self._offsets.expired(group_id, moment.wall_ms, self._config.offsets_retention_ms, None)
        expired = [(topic, partition) for topic, partition in found if topic not in read]
        if self._is_all(group_id, expired) and not group.members:
            groups.give_way(group_id, moment)
        return [offset_record(group_id, topic, partition, None) for topic, partition in expired]

    def _is_all(self, group_id: str, keys: Sequence[TopicPartition]) -> bool:
        """Returns whether these are all offsets of a group."""
        return len(keys) == len(self._offsets.committed(group_id)) and not self._offsets.has_pending(group_id)


def _batches(records: Iterable[StateRecord], records_max: int) -> Iterator[tuple[StateRecord, ...]]:
    """Divides tombstones into batches, in order; group ids may be long, and the log refuses too large batches."""
    batch: list[StateRecord] = []
    size = 0
    for record in records:
        if batch and (len(batch) >= records_max or size + len(record.key) > BATCH_BYTES_MAX):
            yield tuple(batch)
            batch, size = [], 0
        batch.append(record)
        size += len(record.key)
    if batch:
        yield tuple(batch)
