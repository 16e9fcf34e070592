"""Builds the answers of StreamsGroupDescribe, the entries of ListGroups, and what runs at which endpoint. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import streams_group_describe as described_by
from moldau.protocol.messages.streams_group_heartbeat import Endpoint, EndpointToPartitions, TopicPartition
from moldau_broker.coordinator.group.streams.core.state import ASSIGNOR, EMPTY_TASKS, StreamsGroupState
from moldau_broker.coordinator.group.streams.core.topology import by_subtopology

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moldau_broker.coordinator.group.consumer.core.catalogue import Catalogue
    from moldau_broker.coordinator.group.streams.core.internal_topics import Configured, ConfiguredSubtopology
    from moldau_broker.coordinator.group.streams.core.state import StreamsGroup, StreamsMember, TaskSets
    from moldau_broker.coordinator.group.streams.core.topology import InternalTopic, Subtopology, Tasks

_NOT_STORED = 1
"""The status of a topology's description that was asked for: no broker of Moldau keeps one."""


def described(
    group_id: str, group: StreamsGroup | None, configured: Configured | None, *, is_other: bool, wants_description: bool
) -> described_by.DescribedGroup:
    """Returns one group of a StreamsGroupDescribe answer.

    Args:
        group_id: the group.
        group: its committed state; None if it is no streams group.
        configured: its topology on the present topics; None if that is not known.
        is_other: whether a group of another type has the id.
        wants_description: whether the client asks for the description of the topology (KIP-1331).
    """
    if group is None:
        why = f"Group {group_id} is not a streams group." if is_other else f"Group {group_id} not found."
        return described_by.DescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=why,
            group_state=StreamsGroupState.DEAD.value,
        )
    return described_by.DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        topology=_topology(group, configured),
        members=[
            _member(member, group.targets.get(member_id, EMPTY_TASKS))
            for member_id, member in sorted(group.members.items())
        ],
        topology_description_status=_NOT_STORED if wants_description else 0,
        assignor_name=ASSIGNOR,
    )


def _topology(group: StreamsGroup, configured: Configured | None) -> described_by.Topology | None:
    if group.topology is None:
        return None
    parts: Sequence[Subtopology] | Sequence[ConfiguredSubtopology] = group.topology.subtopologies
    if configured is not None and configured.is_ready:
        parts = list(configured.subtopologies.values())
    return described_by.Topology(
        epoch=group.topology.epoch,
        subtopologies=[
            described_by.Subtopology(
                subtopology_id=part.subtopology_id,
                source_topics=sorted(part.sources),
                repartition_sink_topics=sorted(part.repartition_sinks),
                state_changelog_topics=_topics(part.changelogs),
                repartition_source_topics=_topics(part.repartition_sources),
            )
            for part in parts
        ],
    )


def _topics(topics: Iterable[InternalTopic]) -> list[described_by.TopicInfo]:
    return [
        described_by.TopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=[described_by.KeyValue(key=key, value=value) for key, value in topic.configs],
        )
        for topic in sorted(topics, key=lambda each: each.name)
    ]


def _member(member: StreamsMember, target: TaskSets) -> described_by.Member:
    endpoint = member.endpoint
    return described_by.Member(
        member_id=member.member_id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else described_by.Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=[described_by.KeyValue(key=key, value=value) for key, value in member.tags],
        assignment=_assignment(member.assigned),
        target_assignment=_assignment(target),
    )


def _assignment(tasks: TaskSets) -> described_by.Assignment:
    active, standby, warmup = map(_task_ids, tasks.kinds)
    return described_by.Assignment(active_tasks=active, standby_tasks=standby, warmup_tasks=warmup)


def _task_ids(tasks: Tasks) -> list[described_by.TaskIds]:
    return [
        described_by.TaskIds(subtopology_id=part, partitions=numbers) for part, numbers in by_subtopology(tasks).items()
    ]


def endpoint_partitions(
    group: StreamsGroup, configured: Configured, catalogue: Catalogue
) -> list[EndpointToPartitions]:
    """Returns which partitions are read behind the endpoints of members, for interactive queries."""
    return [
        EndpointToPartitions(
            user_endpoint=Endpoint(host=member.endpoint.host, port=member.endpoint.port),
            active_partitions=_partitions(member.assigned.active, configured, catalogue),
            standby_partitions=_partitions(member.assigned.standby, configured, catalogue),
        )
        for _, member in sorted(group.members.items())
        if member.endpoint is not None
    ]


def _partitions(tasks: Tasks, configured: Configured, catalogue: Catalogue) -> list[TopicPartition]:
    """Returns the input partitions of tasks; an input may have fewer partitions than its subtopology has tasks."""
    found: list[TopicPartition] = []
    for subtopology_id, numbers in by_subtopology(tasks).items():
        part = configured.subtopologies.get(subtopology_id)
        if part is None:
            continue
        for name in sorted({*part.sources, *(topic.name for topic in part.repartition_sources)}):
            count = catalogue.partition_count(name)
            found.append(TopicPartition(topic=name, partitions=[number for number in numbers if number < count]))
    return found
