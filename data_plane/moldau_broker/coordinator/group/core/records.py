"""Records of ``__consumer_offsets`` in Kafka's own formats: a 16-bit version, then the fields.

A key of version 0 or 1 belongs to a committed offset, a key of version 2 to a classic group; the keys of consumer
groups are in ``consumer.core.records``, those of share groups in ``share.core.records`` and those of streams groups in
``streams.core.records``. Committed offsets are written in version 4, which includes the topic id, or in version 1 if
the commit has its own expiry; classic groups in version 3. All versions are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.protocol.codec import decode
from moldau.protocol.messages.internal.group_metadata import GroupMetadataKey, GroupMetadataValue
from moldau.protocol.messages.internal.offset_commit import OffsetCommitKey, OffsetCommitValue
from moldau.values import ZERO_UUID
from moldau_broker.coordinator.group.consumer.core.records import KEY_VERSIONS, parse_change
from moldau_broker.coordinator.group.share.core.records import KEY_VERSIONS as SHARE_KEY_VERSIONS
from moldau_broker.coordinator.group.share.core.records import parse_change as parse_share_change
from moldau_broker.coordinator.group.streams.core.records import KEY_VERSIONS as STREAMS_KEY_VERSIONS
from moldau_broker.coordinator.group.streams.core.records import parse_change as parse_streams_change
from moldau_broker.coordinator.runtime.effects import StateRecord
from moldau_broker.coordinator.runtime.versioned import FIELDS_AT, decode_versioned, encode_versioned, versioned_key

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.values import Buffer
    from moldau_broker.coordinator.group.consumer.core.state import Change
    from moldau_broker.coordinator.group.share.core.state import ShareChange
    from moldau_broker.coordinator.group.streams.core.state import StreamsChange

_OFFSET_KEY_VERSION = 1
_GROUP_KEY_VERSION = 2
_GROUP_VALUE_VERSION = 3
_OFFSET_VALUE_VERSION = 4
_OFFSET_VALUE_VERSION_NAMED = 3
_OFFSET_VALUE_VERSION_EXPIRING = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """A committed offset: the next offset to read.

    Times are Unix milliseconds. With ``expire_ms`` -1 the retention applies. ``topic_id`` is None if the record has
    none.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = -1
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRecord:
    """The record of one partition's offset; ``committed`` is None for a tombstone."""

    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """The record of a group; ``value`` is None for a tombstone."""

    group_id: str
    value: GroupMetadataValue | None


def offset_record(group_id: str, topic: str, partition: int, committed: CommittedOffset | None) -> StateRecord:
    """Returns the record of a committed offset, or its tombstone."""
    key = encode_versioned(OffsetCommitKey(group=group_id, topic=topic, partition=partition), _OFFSET_KEY_VERSION)
    if committed is None:
        return StateRecord(key, None)
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_ms,
        expire_timestamp=committed.expire_ms,
        topic_id=committed.topic_id or ZERO_UUID,
    )
    if committed.expire_ms != -1:
        return StateRecord(key, encode_versioned(value, _OFFSET_VALUE_VERSION_EXPIRING))
    is_named = committed.topic_id is None
    return StateRecord(key, encode_versioned(value, _OFFSET_VALUE_VERSION_NAMED if is_named else _OFFSET_VALUE_VERSION))


def group_record(group_id: str, value: GroupMetadataValue | None) -> StateRecord:
    """Returns the record of a group's generation, or its tombstone."""
    key = encode_versioned(GroupMetadataKey(group=group_id), _GROUP_KEY_VERSION)
    return StateRecord(key, None if value is None else encode_versioned(value, _GROUP_VALUE_VERSION))


def parse_record(
    key: Buffer | None, value: Buffer | None
) -> OffsetRecord | GroupRecord | Change | ShareChange | StreamsChange | None:
    """Parses a record; returns None for an unknown kind, which a newer coordinator may have written.

    Raises:
        DecodeError: a record of a known kind is malformed.
    """
    version, key = versioned_key(key, "group")
    if version in (0, 1):
        offset_key = decode(OffsetCommitKey, version, key, FIELDS_AT)
        committed = None if value is None else _parse_committed(value)
        return OffsetRecord(
            group_id=offset_key.group, topic=offset_key.topic, partition=offset_key.partition, committed=committed
        )
    if version in KEY_VERSIONS:
        return parse_change(version, key, value)
    if version in SHARE_KEY_VERSIONS:
        return parse_share_change(version, key, value)
    if version in STREAMS_KEY_VERSIONS:
        return parse_streams_change(version, key, value)
    if version == _GROUP_KEY_VERSION:
        group_id = decode(GroupMetadataKey, version, key, FIELDS_AT).group
        return GroupRecord(group_id=group_id, value=None if value is None else _parse_group(value))
    return None


def _parse_committed(value: Buffer) -> CommittedOffset:
    message = decode_versioned(OffsetCommitValue, value)
    return CommittedOffset(
        offset=message.offset,
        leader_epoch=message.leader_epoch,
        metadata=message.metadata,
        commit_ms=message.commit_timestamp,
        expire_ms=message.expire_timestamp,
        topic_id=None if message.topic_id == ZERO_UUID else message.topic_id,
    )


def _parse_group(value: Buffer) -> GroupMetadataValue:
    message = decode_versioned(GroupMetadataValue, value)
    for member in message.members:
        member.subscription = bytes(member.subscription)
        member.assignment = bytes(member.assignment)
    return message
