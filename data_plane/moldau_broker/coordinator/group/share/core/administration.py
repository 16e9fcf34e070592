"""Decides on AlterShareGroupOffsets, DeleteShareGroupOffsets and the deletion of share groups. Pure (KIP-932).

Each takes two steps. The first checks the request and marks the share-partitions in the group's state partitions; then
the share coordinator changes their states. The second step follows its answer. Only groups without members are changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from moldau.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from moldau.values import ZERO_UUID
from moldau_broker.coordinator.group.core.responses import deletion_result
from moldau_broker.coordinator.group.share.core.state import ShareEpoch, ShareStates, ShareTargetEpoch
from moldau_broker.coordinator.group.share.core.state_partitions import (
    ByTopic,
    to_delete,
    topic_ids_of,
    with_beginning,
    with_deleting,
    without_topics,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from moldau.protocol.schema import Response
    from moldau_broker.coordinator.group.consumer.core.catalogue import Catalogue
    from moldau_broker.coordinator.group.share.core.state import ShareDraft

AdminRequest = AlterShareGroupOffsetsRequest | DeleteShareGroupOffsetsRequest | DeleteGroupsRequest
Codes = dict[tuple["UUID", int], ErrorCode]
"""The share coordinator's answer for each share-partition."""
NO_STATE = "There is no offset information to delete."


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A request to the share coordinator; ``offsets`` are the new start offsets, if states begin."""

    partitions: ByTopic
    offsets: Mapping[tuple[UUID, int], int] = field(default_factory=dict)


def check_empty(draft: ShareDraft) -> None:
    """Checks that a group has no members.

    Raises:
        KafkaError: NON_EMPTY_GROUP.
    """
    if draft.group.members:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")


def check_exists(draft: ShareDraft) -> None:
    """Checks that there is such a group.

    Raises:
        KafkaError: GROUP_ID_NOT_FOUND.
    """
    if not draft.group.exists:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {draft.group.group_id} not found.")


# Offsets are altered


def plan_alter(draft: ShareDraft, request: AlterShareGroupOffsetsRequest, catalogue: Catalogue) -> Plan | None:
    """Marks the share-partitions whose start offsets are set; None if no named partition exists.

    The group epoch grows, and with it the state epoch: it fences writes of leaders that know the old offset only.

    Raises:
        KafkaError: NON_EMPTY_GROUP.
    """
    check_empty(draft)
    offsets: dict[tuple[UUID, int], int] = {}
    for topic in request.topics:
        topic_id = catalogue.topic_id(topic.topic_name)
        for entry in topic.partitions:
            exists = catalogue.has_partition(topic.topic_name, entry.partition_index)
            if topic_id is not None and exists and entry.start_offset >= 0:
                offsets[topic_id, entry.partition_index] = entry.start_offset
    if not offsets:
        return None
    partitions: ByTopic = {}
    for topic_id, number in offsets:
        partitions[topic_id] = partitions.get(topic_id, frozenset()) | {number}
    draft.raise_epoch()
    states = with_beginning(draft.group.states, partitions, catalogue)
    draft.add(ShareStates(group_id=draft.group.group_id, partitions=states))
    return Plan(partitions=partitions, offsets=offsets)


def altered(
    request: AlterShareGroupOffsetsRequest, codes: Codes, catalogue: Catalogue
) -> AlterShareGroupOffsetsResponse:
    """Returns the answer with one code for each partition."""
    topics: list[AlterShareGroupOffsetsResponseTopic] = []
    for topic in request.topics:
        topic_id = catalogue.topic_id(topic.topic_name)
        parts: list[AlterShareGroupOffsetsResponsePartition] = []
        for entry in topic.partitions:
            message: str | None = None
            if topic_id is None or not catalogue.has_partition(topic.topic_name, entry.partition_index):
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif entry.start_offset < 0:
                code, message = ErrorCode.INVALID_REQUEST, f"start offset {entry.start_offset} is negative"
            else:
                code = codes.get((topic_id, entry.partition_index), ErrorCode.UNKNOWN_SERVER_ERROR)
            parts.append(
                AlterShareGroupOffsetsResponsePartition(
                    partition_index=entry.partition_index, error_code=code, error_message=message
                )
            )
        topics.append(
            AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name, topic_id=topic_id or ZERO_UUID, partitions=parts
            )
        )
    return AlterShareGroupOffsetsResponse(responses=topics)


# Offsets are deleted


def plan_delete_offsets(
    draft: ShareDraft, request: DeleteShareGroupOffsetsRequest, catalogue: Catalogue
) -> Plan | None:
    """Marks the topics whose states are deleted; None if the group has state in none of them.

    Raises:
        KafkaError: GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP.
    """
    group = draft.group
    check_exists(draft)
    check_empty(draft)
    wanted = {catalogue.topic_id(topic.topic_name) for topic in request.topics}
    topic_ids = [topic_id for topic_id in sorted(topic_ids_of(group.states)) if topic_id in wanted]
    return _plan_deletion(draft, topic_ids, catalogue)


def _plan_deletion(draft: ShareDraft, topic_ids: list[UUID], catalogue: Catalogue) -> Plan | None:
    partitions = to_delete(draft.group.states, topic_ids, catalogue)
    if not partitions:
        return None
    states = with_deleting(draft.group.states, frozenset(topic_ids))
    if states != draft.group.states:
        draft.add(ShareStates(group_id=draft.group.group_id, partitions=states))
    return Plan(partitions=partitions)


def finish_deletion(draft: ShareDraft, codes: Codes) -> dict[UUID, ErrorCode]:
    """Forgets the topics whose states are deleted; returns a code for each topic.

    A topic that does not exist any more is done with: its share coordinator deletes its states by itself.
    """
    found: dict[UUID, ErrorCode] = {}
    for (topic_id, _), code in sorted(codes.items()):
        done = code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if found.get(topic_id, ErrorCode.NONE) is ErrorCode.NONE:
            found[topic_id] = ErrorCode.NONE if done else code
    gone = {topic_id for topic_id, code in found.items() if code is ErrorCode.NONE}
    # A topic that has begun again since is not being deleted any more.
    gone &= set(draft.group.states.deleting)
    if gone:
        states = without_topics(draft.group.states, gone)
        draft.add(ShareStates(group_id=draft.group.group_id, partitions=states))
    return found


def offsets_deleted(
    request: DeleteShareGroupOffsetsRequest, codes: Mapping[UUID, ErrorCode], catalogue: Catalogue
) -> DeleteShareGroupOffsetsResponse:
    """Returns the answer with one code for each topic."""
    topics: list[DeleteShareGroupOffsetsResponseTopic] = []
    for topic in request.topics:
        topic_id = catalogue.topic_id(topic.topic_name)
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        if topic_id is not None and topic_id in codes:
            code = codes[topic_id]
        elif topic_id is not None:
            message = NO_STATE
        topics.append(
            DeleteShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name, topic_id=topic_id or ZERO_UUID, error_code=code, error_message=message
            )
        )
    return DeleteShareGroupOffsetsResponse(responses=topics)


# The group is deleted


def plan_delete_group(draft: ShareDraft, catalogue: Catalogue) -> Plan | None:
    """Marks all topics of a group that is deleted; None if the group has no state and can end at once.

    Raises:
        KafkaError: GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP.
    """
    check_exists(draft)
    check_empty(draft)
    return _plan_deletion(draft, sorted(topic_ids_of(draft.group.states)), catalogue)


def end_group(draft: ShareDraft) -> None:
    """Ends a group without members."""
    group_id = draft.group.group_id
    draft.add(ShareStates(group_id=group_id, partitions=None))
    draft.add(ShareTargetEpoch(group_id=group_id, epoch=None))
    draft.add(ShareEpoch(group_id=group_id, epoch=None))


def group_deleted(group_id: str, code: ErrorCode) -> Response:
    """Returns the answer to DeleteGroups for one group."""
    return DeleteGroupsResponse(results=[deletion_result(group_id, code)])
