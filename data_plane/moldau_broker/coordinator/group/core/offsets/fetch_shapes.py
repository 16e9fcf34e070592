"""Translates between the three forms of OffsetFetch and the one that the coordinator uses. Pure.

Versions 1 to 7 name one group, 8 and 9 many groups, and 10 names topics by id. The coordinator uses a list of groups
with topics by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from moldau.values import ZERO_UUID

if TYPE_CHECKING:
    from uuid import UUID

    from moldau_broker.coordinator.runtime.ports import TopicNames

_GROUPS_FROM = 8
_TOPIC_IDS_FROM = 10


def without_repetitions(request: OffsetFetchRequest) -> OffsetFetchRequest:
    """Returns the request with each group, topic and partition once.

    A partition takes four bytes in the request and up to some thousands in the answer (its metadata), so repetitions
    could make the answer a thousand times larger than the request.
    """
    topics: list[OffsetFetchRequestTopic] | None = None
    if request.topics is not None:
        indexes: dict[str, dict[int, None]] = {}
        for topic in request.topics:
            indexes.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        topics = [OffsetFetchRequestTopic(name=name, partition_indexes=list(found)) for name, found in indexes.items()]
    whole: dict[tuple[str, bool], OffsetFetchRequestGroup] = {}
    parts: dict[tuple[str, bool], dict[tuple[str, UUID], dict[int, None]]] = {}
    for group in request.groups:
        key = (group.group_id, group.topics is None)
        whole.setdefault(key, group)
        wanted = parts.setdefault(key, {})
        for each in group.topics or ():
            wanted.setdefault((each.name, each.topic_id), {}).update(dict.fromkeys(each.partition_indexes))
    return OffsetFetchRequest(
        group_id=request.group_id,
        topics=topics,
        groups=[
            OffsetFetchRequestGroup(
                group_id=group.group_id,
                member_id=group.member_id,
                member_epoch=group.member_epoch,
                topics=None
                if group.topics is None
                else [
                    OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=list(found))
                    for (name, topic_id), found in parts[key].items()
                ],
            )
            for key, group in whole.items()
        ],
        require_stable=request.require_stable,
    )


def groups_of(request: OffsetFetchRequest, version: int, names: TopicNames) -> list[OffsetFetchRequestGroup]:
    """Returns the groups of a request, with topics by name; leaves out topics with unknown ids."""
    if version < _GROUPS_FROM:
        topics = None
        if request.topics is not None:
            topics = [
                OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                for topic in request.topics
            ]
        return [OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)]
    if version < _TOPIC_IDS_FROM:
        return list(request.groups)
    groups: list[OffsetFetchRequestGroup] = []
    for group in request.groups:
        known: list[OffsetFetchRequestTopics] | None = None
        if group.topics is not None:
            named = [(names.topic_name(topic.topic_id), topic) for topic in group.topics]
            known = [
                OffsetFetchRequestTopics(name=name, partition_indexes=topic.partition_indexes)
                for name, topic in named
                if name is not None
            ]
        groups.append(
            OffsetFetchRequestGroup(
                group_id=group.group_id, member_id=group.member_id, member_epoch=group.member_epoch, topics=known
            )
        )
    return groups


def response_of(
    request: OffsetFetchRequest, version: int, groups: list[OffsetFetchResponseGroup], names: TopicNames
) -> OffsetFetchResponse:
    """Returns the answer in the form of the version; ``groups`` are in the order of `groups_of`."""
    if version < _GROUPS_FROM:
        return _single(request, version, groups[0])
    if version < _TOPIC_IDS_FROM:
        return OffsetFetchResponse(groups=groups)
    for asked, answer in zip(request.groups, groups, strict=True):
        if answer.error_code == ErrorCode.NONE:
            answer.topics = _with_ids(asked, answer, names)
    return OffsetFetchResponse(groups=groups)


def _with_ids(
    asked: OffsetFetchRequestGroup, answer: OffsetFetchResponseGroup, names: TopicNames
) -> list[OffsetFetchResponseTopics]:
    topics: list[OffsetFetchResponseTopics] = []
    for topic in answer.topics:
        topic_id = names.topic_id(topic.name)
        if topic_id is not None:
            topics.append(OffsetFetchResponseTopics(topic_id=topic_id, partitions=topic.partitions))
    for wanted in asked.topics or ():
        if names.topic_name(wanted.topic_id) is None or wanted.topic_id == ZERO_UUID:
            unknown = [
                OffsetFetchResponsePartitions(
                    partition_index=partition, committed_offset=-1, error_code=ErrorCode.UNKNOWN_TOPIC_ID
                )
                for partition in wanted.partition_indexes
            ]
            topics.append(OffsetFetchResponseTopics(topic_id=wanted.topic_id, partitions=unknown))
    return topics


def _single(request: OffsetFetchRequest, version: int, group: OffsetFetchResponseGroup) -> OffsetFetchResponse:
    if group.error_code != ErrorCode.NONE:
        if version >= 2:
            return OffsetFetchResponse(error_code=group.error_code)
        # Version 1 has no top-level error code, so each partition gets it.
        refused = [
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=partition, committed_offset=-1, error_code=group.error_code
                    )
                    for partition in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
        return OffsetFetchResponse(topics=refused)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=part.partition_index,
                        committed_offset=part.committed_offset,
                        committed_leader_epoch=part.committed_leader_epoch,
                        metadata=part.metadata,
                        error_code=part.error_code,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in group.topics
        ]
    )
