"""Serves OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete from the state of one partition. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from moldau_broker.coordinator.group.core.group import Group, GroupState
from moldau_broker.coordinator.group.core.records import CommittedOffset, offset_record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.group.core.durable_groups import DurableGroup
    from moldau_broker.coordinator.group.core.membership import Membership
    from moldau_broker.coordinator.group.core.offsets.committed import FullKey, OffsetStore, TopicPartition
    from moldau_broker.coordinator.runtime.effects import Moment, StateRecord
    from moldau_broker.coordinator.runtime.ports import TopicNames

NO_OFFSET = -1
_INT64_MAX = (1 << 63) - 1
_STRING_BYTES_MAX = 32767
_COMMITS_BY_ID_FROM, _TXN_COMMITS_BY_ID_FROM = 10, 6


def names_by_id(request: OffsetCommitRequest | TxnOffsetCommitRequest, version: int) -> bool:
    """Returns whether a commit names topics by id; an earlier version names them by name."""
    first = _COMMITS_BY_ID_FROM if isinstance(request, OffsetCommitRequest) else _TXN_COMMITS_BY_ID_FROM
    return version >= first


def check_commit(
    membership: Membership, request: OffsetCommitRequest | TxnOffsetCommitRequest, moment: Moment
) -> ErrorCode:
    """Checks whether the sender may commit for the group now (KIP-447, KIP-345).

    A member of the current generation may commit, and any sender without a generation while the group has no members.
    A commit of a member counts as a heartbeat, except in a transaction, where the sender is a producer.
    """
    transactional = not isinstance(request, OffsetCommitRequest)
    if transactional and not request.group_id:
        return ErrorCode.INVALID_GROUP_ID  # old tools use plain commits of the group ""
    generation = (
        request.generation_id_or_member_epoch if isinstance(request, OffsetCommitRequest) else request.generation_id
    )
    group = membership.groups.get(request.group_id)
    if group is None:
        return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
    if generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if generation < 0 and not request.member_id and request.group_instance_id is None:
        # Before KIP-447 transactional producers did not name their group member.
        return ErrorCode.NONE if transactional else ErrorCode.UNKNOWN_MEMBER_ID
    code, member = membership.find_member(group, request.member_id, request.group_instance_id)
    if member is None:
        return code
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE and not transactional:
        # In a transaction a valid generation is enough: its producer takes no part in the group and could only abort.
        return ErrorCode.REBALANCE_IN_PROGRESS
    if not transactional:
        membership.renew_session(group, member, moment)
    return ErrorCode.NONE


def commit_records(
    request: OffsetCommitRequest | TxnOffsetCommitRequest,
    version: int,
    config: GroupConfig,
    topics: TopicNames,
    moment: Moment,
) -> tuple[tuple[StateRecord, ...], list[list[ErrorCode]]]:
    """Returns the records of a commit and one code for each partition; partitions with an error have no record.

    Where a version names topics by id, a topic without a name is one with an unknown id.
    """
    retention = request.retention_time_ms if isinstance(request, OffsetCommitRequest) else -1
    expire_ms = min(moment.wall_ms + retention, _INT64_MAX) if retention >= 0 else -1
    records: list[StateRecord] = []
    codes: list[list[ErrorCode]] = []
    for topic in request.topics:
        topic_codes: list[ErrorCode] = []
        for part in topic.partitions:
            metadata = part.committed_metadata or ""
            if _java_length(metadata) > config.offset_metadata_bytes_max or len(metadata.encode()) > _STRING_BYTES_MAX:
                topic_codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            elif not topic.name and names_by_id(request, version):
                topic_codes.append(ErrorCode.UNKNOWN_TOPIC_ID)
            elif not topics.has_partition(topic.name, part.partition_index):
                topic_codes.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                committed = CommittedOffset(
                    offset=part.committed_offset,
                    leader_epoch=part.committed_leader_epoch,
                    metadata=metadata,
                    commit_ms=moment.wall_ms,
                    expire_ms=expire_ms,
                    topic_id=topics.topic_id(topic.name),
                )
                records.append(offset_record(request.group_id, topic.name, part.partition_index, committed))
                topic_codes.append(ErrorCode.NONE)
        codes.append(topic_codes)
    return tuple(records), codes


def _java_length(text: str) -> int:
    """Returns what Kafka compares with ``offset.metadata.max.bytes``: the UTF-16 units of a text, not its bytes."""
    return len(text.encode("utf-16-le")) // 2


def failed_codes(codes: Sequence[Sequence[ErrorCode]], code: ErrorCode) -> list[list[ErrorCode]]:
    """Returns the codes of a commit whose write failed: ``code`` replaces NONE."""
    return [[code if known is ErrorCode.NONE else known for known in topic] for topic in codes]


def fetch_offsets(
    store: OffsetStore,
    request: OffsetFetchRequestGroup,
    require_stable: bool,
    is_gone: Callable[[FullKey, CommittedOffset], bool],
) -> OffsetFetchResponseGroup:
    """Returns the committed offsets of a group for the requested partitions, or for all if the topics are null.

    ``is_gone`` returns whether the topic of an offset is deleted. Such an offset is left out, even before its tombstone
    is written.
    """
    group_id = request.group_id
    committed = store.committed(group_id)

    def is_unstable(name: str, partition: int) -> bool:
        pending = store.pending(group_id, name, partition) if require_stable else ()
        return any(not is_gone((group_id, name, partition), each) for each in pending)

    wanted: list[tuple[str, list[int]]] = []
    if request.topics is None:
        by_topic: dict[str, list[int]] = {}
        keys = [key for key, found in committed.items() if is_unstable(*key) or not is_gone((group_id, *key), found)]
        keys += [key for key in store.pending_keys(group_id) if key not in committed and is_unstable(*key)]
        for name, partition in sorted(keys):
            by_topic.setdefault(name, []).append(partition)
        wanted = list(by_topic.items())
    else:
        wanted = [(topic.name, list(topic.partition_indexes)) for topic in request.topics]
    topics: list[OffsetFetchResponseTopics] = []
    for name, partitions in wanted:
        answers: list[OffsetFetchResponsePartitions] = []
        for partition in partitions:
            answer = OffsetFetchResponsePartitions(partition_index=partition, committed_offset=NO_OFFSET)
            found = committed.get((name, partition))
            if is_unstable(name, partition):
                answer.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
            elif found is not None and not is_gone((group_id, name, partition), found):
                answer.committed_offset = found.offset
                answer.committed_leader_epoch = found.leader_epoch
                answer.metadata = found.metadata
            answers.append(answer)
        topics.append(OffsetFetchResponseTopics(name=name, partitions=answers))
    return OffsetFetchResponseGroup(group_id=group_id, topics=topics)


def delete_offsets(
    group: Group | DurableGroup | None,
    keys: Collection[TopicPartition],
    request: OffsetDeleteRequest,
    topics: TopicNames,
) -> tuple[ErrorCode, tuple[StateRecord, ...], OffsetDeleteResponse]:
    """Returns tombstones for offsets of topics that no member reads (KIP-496).

    A code other than NONE refuses the whole request. ``keys`` are the partitions with an offset of the group:
    committed, in an open transaction or in flight; the tombstone deletes all of them. Partitions that do not
    exist are refused with UNKNOWN_TOPIC_OR_PARTITION, as by Kafka's brokers.
    """
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID, (), OffsetDeleteResponse()
    if group is None and not keys:
        return ErrorCode.GROUP_ID_NOT_FOUND, (), OffsetDeleteResponse()
    if isinstance(group, Group) and group.state is not GroupState.EMPTY and group.protocol_type != "consumer":
        return ErrorCode.NON_EMPTY_GROUP, (), OffsetDeleteResponse()
    read: frozenset[str] | None = frozenset()
    if group is not None:
        read = group.subscription() if isinstance(group, Group) else frozenset(group.subscribed_topics())
    records: list[StateRecord] = []
    answered: list[OffsetDeleteResponseTopic] = []
    for topic in request.topics:
        subscribed = read is None or topic.name in read
        partitions: list[OffsetDeleteResponsePartition] = []
        for part in topic.partitions:
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
            if not topics.has_partition(topic.name, part.partition_index):
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if code is ErrorCode.NONE and (topic.name, part.partition_index) in keys:
                records.append(offset_record(request.group_id, topic.name, part.partition_index, None))
            partitions.append(OffsetDeleteResponsePartition(partition_index=part.partition_index, error_code=code))
        answered.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    return ErrorCode.NONE, tuple(records), OffsetDeleteResponse(topics=answered)
