"""Checks what a StreamsGroupHeartbeat says on its own, before any group is looked at. Pure (KIP-1071).

Warm-up tasks and regular expressions for source topics are refused. Reports of restored offsets, with which members of
Kafka 4.4 join, are accepted and not used: they decide on warm-up tasks only. Stricter than Kafka is the check of
indexes and names inside a topology, which later code relies on.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_broker.coordinator.group.core.member_checks import check_texts
from moldau_broker.coordinator.group.streams.core.state import JOIN_EPOCH, LEAVE_STATIC_EPOCH
from moldau_quorum.controller.context import RefusedError
from moldau_quorum.controller.topic_names import check_topic_name
from moldau_quorum.metadata.internal_topics import INTERNAL_TOPICS

if TYPE_CHECKING:
    from moldau.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest, Subtopology, Topology


def check_request(request: StreamsGroupHeartbeatRequest) -> None:
    """Checks a request.

    Raises:
        KafkaError: INVALID_REQUEST or STREAMS_INVALID_TOPOLOGY.
    """
    _check_support(request)
    check_texts(
        MemberId=request.member_id,
        GroupId=request.group_id,
        InstanceId=request.instance_id,
        RackId=request.rack_id,
    )
    reports = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if request.member_epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        for kind, tasks in zip(("ActiveTasks", "StandbyTasks", "WarmupTasks"), reports, strict=True):
            if tasks:
                raise _invalid(f"{kind} must be empty when (re-)joining.")
        if request.topology is None:
            raise _invalid("Topology must be non-null when (re-)joining.")
        _check_topology(request.topology)
    elif request.topology is not None:
        raise _invalid("Topology can only be provided when (re-)joining.")
    if request.member_epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    if request.member_epoch < LEAVE_STATIC_EPOCH:
        raise _invalid(f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -2.")
    if any(tasks is not None for tasks in reports) and any(tasks is None for tasks in reports):
        raise _invalid("If one task-type is non-null, all must be non-null.")
    if request.rebalance_timeout_ms < -1:
        raise _invalid(f"RebalanceTimeoutMs is {request.rebalance_timeout_ms}.")


def _check_support(request: StreamsGroupHeartbeatRequest) -> None:
    if request.warmup_tasks:
        raise _invalid("WarmupTasks are not supported yet.")
    if request.topology is not None and any(part.source_topic_regex for part in request.topology.subtopologies):
        raise _invalid("Regular expressions for source topics are not supported yet.")


def _check_topology(topology: Topology) -> None:
    if topology.epoch < 0:
        raise _wrong(f"Topology epoch {topology.epoch} is negative.")
    repeated = [name for name, n in Counter(part.subtopology_id for part in topology.subtopologies).items() if n > 1]
    if repeated:
        raise _wrong(f"Subtopology {repeated[0]} is there more than once.")
    for part in topology.subtopologies:
        _check_subtopology(part)


def _check_subtopology(part: Subtopology) -> None:
    internal = (*part.repartition_source_topics, *part.state_changelog_topics)
    names = [*part.source_topics, *part.repartition_sink_topics, *(topic.name for topic in internal)]
    for name in names:
        if name in INTERNAL_TOPICS:
            raise _wrong(f"Use of Kafka internal topics {name} in a Kafka Streams topology is prohibited.")
        try:
            check_topic_name(name)
        except RefusedError as refusal:
            raise _wrong(f"Topic names {name} are not valid topic names: {refusal.message}") from refusal
    for topic in part.state_changelog_topics:
        if topic.partitions:
            raise _wrong(
                f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                f"{topic.partitions}."
            )
    for topic in internal:
        if topic.partitions < 0 or topic.replication_factor < -1:
            raise _wrong(f"Topic {topic.name} has a negative number of partitions or replicas.")
    for group in part.copartition_groups:
        if group.source_topic_regex:
            raise _invalid("Regular expressions for source topics are not supported yet.")
        for indexes, topics in (
            (group.source_topics, part.source_topics),
            (group.repartition_source_topics, part.repartition_source_topics),
        ):
            if any(not 0 <= index < len(topics) for index in indexes):
                raise _wrong(
                    f"A co-partition group of subtopology {part.subtopology_id} names a topic that is not there."
                )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _wrong(message: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)
