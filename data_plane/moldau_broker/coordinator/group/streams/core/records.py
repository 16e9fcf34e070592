"""The records of streams groups in ``__consumer_offsets``, in Kafka's own formats (KIP-1071).

| key version | record | change |
|---|---|---|
| 17 | StreamsGroupMetadata | `StreamsEpoch` |
| 18 | StreamsGroupPartitionMetadata | none: replaced by the hash in record 17 before Kafka 4.1 |
| 19 | StreamsGroupMemberMetadata | `StreamsMetadata` |
| 20 | StreamsGroupTargetAssignmentMetadata | `StreamsTargetEpoch` |
| 21 | StreamsGroupTargetAssignmentMember | `StreamsTarget` |
| 22 | StreamsGroupCurrentMemberAssignment | `StreamsCurrent` |
| 23 | StreamsGroupTopology | `StreamsTopology` |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.codec import DecodeError, decode
from moldau.protocol.messages.internal import streams_group as stored
from moldau_broker.coordinator.group.streams.core.state import (
    Endpoint,
    MemberState,
    StreamsChange,
    StreamsCurrent,
    StreamsEpoch,
    StreamsMember,
    StreamsMetadata,
    StreamsTarget,
    StreamsTargetEpoch,
    StreamsTopology,
    TaskSets,
)
from moldau_broker.coordinator.group.streams.core.topology import by_subtopology, tasks_of, topology_of
from moldau_broker.coordinator.runtime.versioned import FIELDS_AT, decode_versioned, state_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from moldau.protocol.schema import Data
    from moldau.values import Buffer
    from moldau_broker.coordinator.group.streams.core.topology import InternalTopic, Task, Tasks, Topology
    from moldau_broker.coordinator.runtime.effects import StateRecord

_EPOCH_UNKNOWN = 0
"""The assignment epoch of a task whose record has none: every later epoch may commit."""

EPOCH, METADATA, TARGET_EPOCH, TARGET, CURRENT, TOPOLOGY = 17, 19, 20, 21, 22, 23
KEY_VERSIONS = frozenset({EPOCH, METADATA, TARGET_EPOCH, TARGET, CURRENT, TOPOLOGY})
"""Versions of keys that `parse_change` understands."""


def change_record(change: StreamsChange) -> StateRecord:
    """Returns the record of a change."""
    return state_record(*_messages(change))


def _messages(change: StreamsChange) -> tuple[Data, Data | None]:
    group_id = change.group_id
    if isinstance(change, StreamsEpoch):
        return stored.StreamsGroupMetadataKey(group_id=group_id), None if change.epoch is None else _epoch(change)
    if isinstance(change, StreamsTargetEpoch):
        epoch = change.epoch
        return stored.StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), (
            None
            if epoch is None
            else stored.StreamsGroupTargetAssignmentMetadataValue(
                assignment_epoch=epoch, assignment_timestamp=change.assigned_ms
            )
        )
    if isinstance(change, StreamsTopology):
        topology = change.topology
        return stored.StreamsGroupTopologyKey(group_id=group_id), None if topology is None else _topology(topology)
    member_id = change.member_id
    if isinstance(change, StreamsTarget):
        return stored.StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), (
            None if change.tasks is None else _target(change.tasks)
        )
    member = change.member
    if isinstance(change, StreamsMetadata):
        return stored.StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id), (
            None if member is None else _metadata(member)
        )
    return stored.StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), (
        None if member is None else _current(member)
    )


def _epoch(change: StreamsEpoch) -> stored.StreamsGroupMetadataValue:
    assert change.epoch is not None
    return stored.StreamsGroupMetadataValue(
        epoch=change.epoch,
        metadata_hash=change.metadata_hash,
        validated_topology_epoch=change.validated_epoch,
        last_assignment_configs=[stored.LastAssignmentConfig(key=key, value=value) for key, value in change.configs],
    )


def _topology(topology: Topology) -> stored.StreamsGroupTopologyValue:
    return stored.StreamsGroupTopologyValue(
        epoch=topology.epoch,
        subtopologies=[
            stored.Subtopology(
                subtopology_id=part.subtopology_id,
                source_topics=list(part.sources),
                state_changelog_topics=_topics(part.changelogs),
                repartition_sink_topics=list(part.repartition_sinks),
                repartition_source_topics=_topics(part.repartition_sources),
                copartition_groups=[
                    stored.CopartitionGroup(source_topics=list(sources), repartition_source_topics=list(repartition))
                    for sources, repartition in part.copartitioned
                ],
            )
            for part in topology.subtopologies
        ],
    )


def _topics(topics: Iterable[InternalTopic]) -> list[stored.TopicInfo]:
    return [
        stored.TopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=[stored.TopicConfig(key=key, value=value) for key, value in topic.configs],
        )
        for topic in topics
    ]


def _target(tasks: TaskSets) -> stored.StreamsGroupTargetAssignmentMemberValue:
    active, standby, warmup = (
        [stored.TargetTaskIds(subtopology_id=part, partitions=found) for part, found in by_subtopology(kind).items()]
        for kind in tasks.kinds
    )
    return stored.StreamsGroupTargetAssignmentMemberValue(
        active_tasks=active, standby_tasks=standby, warmup_tasks=warmup
    )


def _metadata(member: StreamsMember) -> stored.StreamsGroupMemberMetadataValue:
    endpoint = member.endpoint
    return stored.StreamsGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else stored.Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=[stored.KeyValue(key=key, value=value) for key, value in member.tags],
    )


def _current(member: StreamsMember) -> stored.StreamsGroupCurrentMemberAssignmentValue:
    return stored.StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        active_tasks=_with_epochs(member.assigned.active, member.since),
        standby_tasks=_tasks(member.assigned.standby),
        warmup_tasks=_tasks(member.assigned.warmup),
        active_tasks_pending_revocation=_with_epochs(member.revoking.active, member.since),
        standby_tasks_pending_revocation=_tasks(member.revoking.standby),
        warmup_tasks_pending_revocation=_tasks(member.revoking.warmup),
    )


def _tasks(tasks: Tasks) -> list[stored.TaskIds]:
    return [stored.TaskIds(subtopology_id=part, partitions=found) for part, found in by_subtopology(tasks).items()]


def _with_epochs(tasks: Tasks, since: Mapping[Task, int]) -> list[stored.TaskIds]:
    return [
        stored.TaskIds(
            subtopology_id=part, partitions=found, assignment_epochs=[since[part, partition] for partition in found]
        )
        for part, found in by_subtopology(tasks).items()
    ]


def parse_change(version: int, key: Buffer, value: Buffer | None) -> StreamsChange:
    """Parses a record whose key has one of `KEY_VERSIONS`.

    Raises:
        DecodeError: the record is malformed.
    """
    if version == EPOCH:
        group_id = decode(stored.StreamsGroupMetadataKey, version, key, FIELDS_AT).group_id
        return _parse_epoch(group_id, value)
    if version == TARGET_EPOCH:
        group_id = decode(stored.StreamsGroupTargetAssignmentMetadataKey, version, key, FIELDS_AT).group_id
        found = None if value is None else decode_versioned(stored.StreamsGroupTargetAssignmentMetadataValue, value)
        if found is None:
            return StreamsTargetEpoch(group_id=group_id, epoch=None)
        return StreamsTargetEpoch(
            group_id=group_id, epoch=found.assignment_epoch, assigned_ms=found.assignment_timestamp
        )
    if version == TOPOLOGY:
        group_id = decode(stored.StreamsGroupTopologyKey, version, key, FIELDS_AT).group_id
        topology = None if value is None else topology_of(decode_versioned(stored.StreamsGroupTopologyValue, value))
        return StreamsTopology(group_id=group_id, topology=topology)
    if version == TARGET:
        target = decode(stored.StreamsGroupTargetAssignmentMemberKey, version, key, FIELDS_AT)
        tasks = None if value is None else _parse_target(value)
        return StreamsTarget(group_id=target.group_id, member_id=target.member_id, tasks=tasks)
    if version == METADATA:
        name = decode(stored.StreamsGroupMemberMetadataKey, version, key, FIELDS_AT)
        member = None if value is None else _parse_metadata(name.member_id, value)
        return StreamsMetadata(group_id=name.group_id, member_id=name.member_id, member=member)
    assert version == CURRENT, f"records of streams groups have no key version {version}"
    current = decode(stored.StreamsGroupCurrentMemberAssignmentKey, version, key, FIELDS_AT)
    state = None if value is None else _parse_current(current.member_id, value)
    return StreamsCurrent(group_id=current.group_id, member_id=current.member_id, member=state)


def _parse_epoch(group_id: str, value: Buffer | None) -> StreamsEpoch:
    if value is None:
        return StreamsEpoch(group_id=group_id, epoch=None)
    found = decode_versioned(stored.StreamsGroupMetadataValue, value)
    return StreamsEpoch(
        group_id=group_id,
        epoch=found.epoch,
        metadata_hash=found.metadata_hash,
        validated_epoch=found.validated_topology_epoch,
        configs=tuple(sorted((config.key, config.value) for config in found.last_assignment_configs or ())),
    )


def _parse_target(value: Buffer) -> TaskSets:
    found = decode_versioned(stored.StreamsGroupTargetAssignmentMemberValue, value)
    return TaskSets(
        active=tasks_of(found.active_tasks), standby=tasks_of(found.standby_tasks), warmup=tasks_of(found.warmup_tasks)
    )


def _parse_metadata(member_id: str, value: Buffer) -> StreamsMember:
    found = decode_versioned(stored.StreamsGroupMemberMetadataValue, value)
    endpoint = found.user_endpoint
    return StreamsMember(
        member_id=member_id,
        instance_id=found.instance_id,
        rack_id=found.rack_id,
        client_id=found.client_id,
        client_host=found.client_host,
        rebalance_timeout_ms=found.rebalance_timeout_ms,
        topology_epoch=found.topology_epoch,
        process_id=found.process_id,
        endpoint=None if endpoint is None else Endpoint(host=endpoint.host, port=endpoint.port),
        tags=tuple(sorted((tag.key, tag.value) for tag in found.client_tags)),
    )


def _parse_current(member_id: str, value: Buffer) -> StreamsMember:
    found = decode_versioned(stored.StreamsGroupCurrentMemberAssignmentValue, value)
    known = found.state in (MemberState.STABLE, MemberState.UNREVOKED_TASKS, MemberState.UNRELEASED_TASKS)
    return StreamsMember(
        member_id=member_id,
        epoch=found.member_epoch,
        previous_epoch=found.previous_member_epoch,
        state=MemberState(found.state) if known else MemberState.UNKNOWN,
        assigned=TaskSets(
            active=tasks_of(found.active_tasks),
            standby=tasks_of(found.standby_tasks),
            warmup=tasks_of(found.warmup_tasks),
        ),
        revoking=TaskSets(
            active=tasks_of(found.active_tasks_pending_revocation),
            standby=tasks_of(found.standby_tasks_pending_revocation),
            warmup=tasks_of(found.warmup_tasks_pending_revocation),
        ),
        since={**_epochs_of(found.active_tasks), **_epochs_of(found.active_tasks_pending_revocation)},
    )


def _epochs_of(entries: Sequence[stored.TaskIds]) -> dict[Task, int]:
    epochs: dict[Task, int] = {}
    for entry in entries:
        since = entry.assignment_epochs or [_EPOCH_UNKNOWN] * len(entry.partitions)
        if len(since) != len(entry.partitions):
            raise DecodeError(f"{len(entry.partitions)} tasks have {len(since)} assignment epochs")
        epochs.update({(entry.subtopology_id, n): epoch for n, epoch in zip(entry.partitions, since, strict=True)})
    return epochs
