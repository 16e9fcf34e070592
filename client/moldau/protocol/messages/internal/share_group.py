"""Records of a share group in ``__consumer_offsets`` (KIP-932).

The 16-bit version before the key gives the type of the record: 10 to 15.
"""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Data, Struct


class ShareGroupMemberMetadataKey(Data, versions="10"):
    """Key of a member's subscription."""

    group_id: str = field.string("10")
    member_id: str = field.string("10")


class ShareGroupMemberMetadataValue(Data, versions="0", flexible="0+"):
    """A member's subscription; a null value removes the member."""

    rack_id: str | None = field.string("0+", nullable="0+")
    client_id: str = field.string("0+")
    client_host: str = field.string("0+")
    subscribed_topic_names: Sequence[str] = field.string_array("0+")


class ShareGroupMetadataKey(Data, versions="11"):
    """Key of a group's epoch."""

    group_id: str = field.string("11")


class ShareGroupMetadataValue(Data, versions="0", flexible="0+"):
    """A group's epoch; a null value deletes the group."""

    epoch: int = field.int32("0+")
    metadata_hash: int = field.int64("0+")


class ShareGroupTargetAssignmentMetadataKey(Data, versions="12"):
    """Key of the epoch of a group's target assignment."""

    group_id: str = field.string("12")


class ShareGroupTargetAssignmentMetadataValue(Data, versions="0", flexible="0+"):
    """The epoch of a group's target assignment."""

    assignment_epoch: int = field.int32("0+")
    assignment_timestamp: int = field.int64("0+", tag=0)


class ShareGroupTargetAssignmentMemberKey(Data, versions="13"):
    """Key of a member's target assignment."""

    group_id: str = field.string("13")
    member_id: str = field.string("13")


class TargetTopicPartition(Struct):
    """An element of ``topic_partitions`` in ``ShareGroupTargetAssignmentMemberValue``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class ShareGroupTargetAssignmentMemberValue(Data, versions="0", flexible="0+"):
    """A member's target assignment."""

    topic_partitions: Sequence[TargetTopicPartition] = field.array(TargetTopicPartition, "0+")


class ShareGroupCurrentMemberAssignmentKey(Data, versions="14"):
    """Key of a member's partitions."""

    group_id: str = field.string("14")
    member_id: str = field.string("14")


class TopicPartitions(Struct):
    """An element of ``assigned_partitions`` in ``ShareGroupCurrentMemberAssignmentValue``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class ShareGroupCurrentMemberAssignmentValue(Data, versions="0", flexible="0+"):
    """The partitions that a member may read."""

    member_epoch: int = field.int32("0+")
    previous_member_epoch: int = field.int32("0+")
    state: int = field.int8("0+")
    assigned_partitions: Sequence[TopicPartitions] = field.array(TopicPartitions, "0+")


class ShareGroupStatePartitionMetadataKey(Data, versions="15"):
    """Key of the share-partitions whose state a group has begun or is about to delete."""

    group_id: str = field.string("15")


class TopicPartitionsInfo(Struct):
    """An element of ``initializing_topics`` and of ``initialized_topics``."""

    topic_id: UUID = field.uuid("0+")
    topic_name: str = field.string("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class TopicInfo(Struct):
    """An element of ``deleting_topics``."""

    topic_id: UUID = field.uuid("0+")
    topic_name: str = field.string("0+")


class ShareGroupStatePartitionMetadataValue(Data, versions="0", flexible="0+"):
    """The share-partitions of a group, by how far the share coordinator is with their state."""

    initializing_topics: Sequence[TopicPartitionsInfo] = field.array(TopicPartitionsInfo, "0+")
    initialized_topics: Sequence[TopicPartitionsInfo] = field.array(TopicPartitionsInfo, "0+")
    deleting_topics: Sequence[TopicInfo] = field.array(TopicInfo, "0+")
