"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete against the state of one partition. Pure."""

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
from moldau_broker.coordinator.group import Group, GroupState
from moldau_broker.coordinator.group_records import CommittedOffset, offset_record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
    from moldau_broker.coordinator.effects import Moment, StateRecord
    from moldau_broker.coordinator.group_config import GroupConfig
    from moldau_broker.coordinator.membership import Membership
    from moldau_broker.coordinator.offsets import OffsetStore
    from moldau_broker.coordinator.ports import TopicNames

NO_OFFSET = -1
_INT64_MAX = (1 << 63) - 1
_STRING_BYTES_MAX = 32767


def check_commit(
    membership: Membership, request: OffsetCommitRequest | TxnOffsetCommitRequest, moment: Moment
) -> ErrorCode:
    """Whether the sender may commit for the group now: a member of the current generation, or nobody is (KIP-447,
    KIP-345).

    A commit of a live member counts as a heartbeat.
    """
    transactional = not isinstance(request, OffsetCommitRequest)
    if transactional and not request.group_id:
        return ErrorCode.INVALID_GROUP_ID  # plain commits of the group "" are allowed for the sake of old tools
    generation = (
        request.generation_id_or_member_epoch if isinstance(request, OffsetCommitRequest) else request.generation_id
    )
    group = membership.groups.get(request.group_id)
    if group is None:
        return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
    anonymous = generation < 0 and not request.member_id and request.group_instance_id is None
    if anonymous:
        # Before KIP-447 transactional producers said nothing about the member they serve.
        idle = group.state is GroupState.EMPTY
        return ErrorCode.NONE if idle or transactional else ErrorCode.UNKNOWN_MEMBER_ID
    code, member = membership.find_member(group, request.member_id, request.group_instance_id)
    if member is None:
        return code
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE and not transactional:
        # In a transaction a valid generation is enough: its producer could only abort, and has no part in the group.
        return ErrorCode.REBALANCE_IN_PROGRESS
    membership.renew_session(group, member, moment)
    return ErrorCode.NONE


def commit_records(
    request: OffsetCommitRequest | TxnOffsetCommitRequest,
    config: GroupConfig,
    topics: TopicNames,
    moment: Moment,
) -> tuple[tuple[StateRecord, ...], list[list[ErrorCode]]]:
    """The records of a commit, and one code for each partition; partitions with an error have no record.

    A topic without a name came by an id that nobody knows.
    """
    retention = request.retention_time_ms if isinstance(request, OffsetCommitRequest) else -1
    expire_ms = min(moment.wall_ms + retention, _INT64_MAX) if retention >= 0 else -1
    records: list[StateRecord] = []
    codes: list[list[ErrorCode]] = []
    for topic in request.topics:
        topic_codes: list[ErrorCode] = []
        for part in topic.partitions:
            metadata = part.committed_metadata or ""
            if len(metadata.encode()) > min(config.offset_metadata_bytes_max, _STRING_BYTES_MAX):
                topic_codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            elif not topic.name:
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


def failed_codes(codes: Sequence[Sequence[ErrorCode]], code: ErrorCode) -> list[list[ErrorCode]]:
    """The codes of a commit whose write failed: what was fine now is ``code``."""
    return [[code if known is ErrorCode.NONE else known for known in topic] for topic in codes]


def fetch_offsets(
    store: OffsetStore,
    request: OffsetFetchRequestGroup,
    require_stable: bool,
    is_gone: Callable[[str, CommittedOffset], bool],
) -> OffsetFetchResponseGroup:
    """The committed offsets of a group: of the partitions asked for, or of all for null topics.

    ``is_gone`` says of an offset whether it is of a topic that was deleted; then it is not told, though its tombstone
    may not be written yet.
    """
    group_id = request.group_id
    committed = store.committed(group_id)

    def is_unstable(name: str, partition: int) -> bool:
        pending = store.pending(group_id, name, partition) if require_stable else ()
        return any(not is_gone(name, each) for each in pending)

    wanted: list[tuple[str, list[int]]] = []
    if request.topics is None:
        by_topic: dict[str, list[int]] = {}
        keys = [key for key, found in committed.items() if is_unstable(*key) or not is_gone(key[0], found)]
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
            elif found is not None and not is_gone(name, found):
                answer.committed_offset = found.offset
                answer.committed_leader_epoch = found.leader_epoch
                answer.metadata = found.metadata
            answers.append(answer)
        topics.append(OffsetFetchResponseTopics(name=name, partitions=answers))
    return OffsetFetchResponseGroup(group_id=group_id, topics=topics)


def delete_offsets(
    group: Group | None, store: OffsetStore, request: OffsetDeleteRequest
) -> tuple[ErrorCode, tuple[StateRecord, ...], OffsetDeleteResponse]:
    """Tombstones for offsets that nobody reads (KIP-496); a code other than NONE refuses the whole request."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID, (), OffsetDeleteResponse()
    committed = store.committed(request.group_id)
    if group is None and not committed:
        return ErrorCode.GROUP_ID_NOT_FOUND, (), OffsetDeleteResponse()
    if group is not None and group.state is not GroupState.EMPTY and group.protocol_type != "consumer":
        return ErrorCode.NON_EMPTY_GROUP, (), OffsetDeleteResponse()
    records: list[StateRecord] = []
    topics: list[OffsetDeleteResponseTopic] = []
    for topic in request.topics:
        subscribed = group is not None and group.is_subscribed(topic.name)
        code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
        partitions: list[OffsetDeleteResponsePartition] = []
        for part in topic.partitions:
            if not subscribed and (topic.name, part.partition_index) in committed:
                records.append(offset_record(request.group_id, topic.name, part.partition_index, None))
            partitions.append(OffsetDeleteResponsePartition(partition_index=part.partition_index, error_code=code))
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    return ErrorCode.NONE, tuple(records), OffsetDeleteResponse(topics=topics)
