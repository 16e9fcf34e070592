"""Records of a group of the new consumer protocol in ``__consumer_offsets`` (KIP-848).

The 16-bit version before the key gives the type of the record: 3 to 8, and 16.
"""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Data, Struct
from moldau.values import Buffer


class ConsumerGroupMetadataKey(Data, versions="3"):
    """Key of a group's epoch."""

    group_id: str = field.string("3")


class ConsumerGroupMetadataValue(Data, versions="0", flexible="0+"):
    """A group's epoch; a null value deletes the group."""

    epoch: int = field.int32("0+")
    metadata_hash: int = field.int64("0+", tag=0)


class ConsumerGroupMemberMetadataKey(Data, versions="5"):
    """Key of a member's subscription."""

    group_id: str = field.string("5")
    member_id: str = field.string("5")


class ClassicProtocol(Struct):
    """An element of ``supported_protocols`` in ``ClassicMemberMetadata``."""

    name: str = field.string("0+")
    metadata: Buffer = field.binary("0+")


class ClassicMemberMetadata(Struct):
    """The value of ``classic_member_metadata`` in ``ConsumerGroupMemberMetadataValue``."""

    session_timeout_ms: int = field.int32("0+")
    supported_protocols: Sequence[ClassicProtocol] = field.array(ClassicProtocol, "0+")


class ConsumerGroupMemberMetadataValue(Data, versions="0", flexible="0+"):
    """A member's subscription; a null value removes the member."""

    instance_id: str | None = field.string("0+", nullable="0+")
    rack_id: str | None = field.string("0+", nullable="0+")
    client_id: str = field.string("0+")
    client_host: str = field.string("0+")
    subscribed_topic_names: Sequence[str] = field.string_array("0+")
    subscribed_topic_regex: str | None = field.string("0+", nullable="0+")
    rebalance_timeout_ms: int = field.int32("0+", default=-1)
    server_assignor: str | None = field.string("0+", nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = field.struct(
        ClassicMemberMetadata, "0+", nullable="0+", tag=0
    )


class ConsumerGroupTargetAssignmentMetadataKey(Data, versions="6"):
    """Key of the epoch of a group's target assignment."""

    group_id: str = field.string("6")


class ConsumerGroupTargetAssignmentMetadataValue(Data, versions="0", flexible="0+"):
    """The epoch of a group's target assignment."""

    assignment_epoch: int = field.int32("0+")
    assignment_timestamp: int = field.int64("0+", tag=0)


class ConsumerGroupTargetAssignmentMemberKey(Data, versions="7"):
    """Key of a member's target assignment."""

    group_id: str = field.string("7")
    member_id: str = field.string("7")


class TargetTopicPartition(Struct):
    """An element of ``topic_partitions`` in ``ConsumerGroupTargetAssignmentMemberValue``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class ConsumerGroupTargetAssignmentMemberValue(Data, versions="0", flexible="0+"):
    """A member's target assignment."""

    topic_partitions: Sequence[TargetTopicPartition] = field.array(TargetTopicPartition, "0+")


class ConsumerGroupCurrentMemberAssignmentKey(Data, versions="8"):
    """Key of a member's partitions."""

    group_id: str = field.string("8")
    member_id: str = field.string("8")


class TopicPartitions(Struct):
    """An element of ``assigned_partitions`` in ``ConsumerGroupCurrentMemberAssignmentValue``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class ConsumerGroupCurrentMemberAssignmentValue(Data, versions="0", flexible="0+"):
    """The partitions that a member owns, and those that it must still release."""

    member_epoch: int = field.int32("0+")
    previous_member_epoch: int = field.int32("0+")
    state: int = field.int8("0+")
    assigned_partitions: Sequence[TopicPartitions] = field.array(TopicPartitions, "0+")
    partitions_pending_revocation: Sequence[TopicPartitions] = field.array(TopicPartitions, "0+")


class ConsumerGroupRegularExpressionKey(Data, versions="16"):
    """Key of the topics that match a regular expression to which members of a group subscribe."""

    group_id: str = field.string("16")
    regular_expression: str = field.string("16")


class ConsumerGroupRegularExpressionValue(Data, versions="0", flexible="0+"):
    """The topics that matched a regular expression, and the metadata and the time of that look."""

    topics: Sequence[str] = field.string_array("0+")
    version: int = field.int64("0+")
    timestamp: int = field.int64("0+")
