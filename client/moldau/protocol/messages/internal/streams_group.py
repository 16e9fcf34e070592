"""Records of a streams group in ``__consumer_offsets`` (KIP-1071).

The 16-bit version before the key gives the type of the record: 17, and 19 to 23.
"""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Data, Struct


class StreamsGroupMetadataKey(Data, versions="17"):
    """Key of a group's epoch."""

    group_id: str = field.string("17")


class LastAssignmentConfig(Struct):
    """An element of ``last_assignment_configs`` in ``StreamsGroupMetadataValue``."""

    key: str = field.string("0+")
    value: str = field.string("0+")


class StreamsGroupMetadataValue(Data, versions="0", flexible="0+"):
    """A group's epoch; a null value deletes the group."""

    epoch: int = field.int32("0+")
    metadata_hash: int = field.int64("0+")
    validated_topology_epoch: int = field.int32("0+", default=-1, tag=0)
    last_assignment_configs: Sequence[LastAssignmentConfig] | None = field.array(
        LastAssignmentConfig, "0+", nullable="0+", default=None, tag=1
    )
    stored_description_topology_epoch: int = field.int32("0+", default=-1, tag=2)
    failed_description_topology_epoch: int = field.int32("0+", default=-1, tag=3)


class StreamsGroupMemberMetadataKey(Data, versions="19"):
    """Key of what a member says of itself."""

    group_id: str = field.string("19")
    member_id: str = field.string("19")


class Endpoint(Struct):
    """The value of ``user_endpoint`` in ``StreamsGroupMemberMetadataValue``."""

    host: str = field.string("0+")
    port: int = field.uint16("0+")


class KeyValue(Struct):
    """An element of ``client_tags`` in ``StreamsGroupMemberMetadataValue``."""

    key: str = field.string("0+")
    value: str = field.string("0+")


class StreamsGroupMemberMetadataValue(Data, versions="0", flexible="0+"):
    """A member's description of itself; a null value removes the member."""

    instance_id: str | None = field.string("0+", nullable="0+")
    rack_id: str | None = field.string("0+", nullable="0+")
    client_id: str = field.string("0+")
    client_host: str = field.string("0+")
    rebalance_timeout_ms: int = field.int32("0+", default=-1)
    topology_epoch: int = field.int32("0+")
    process_id: str = field.string("0+")
    user_endpoint: Endpoint | None = field.struct(Endpoint, "0+", nullable="0+")
    client_tags: Sequence[KeyValue] = field.array(KeyValue, "0+")


class StreamsGroupTargetAssignmentMetadataKey(Data, versions="20"):
    """Key of the epoch of a group's target assignment."""

    group_id: str = field.string("20")


class StreamsGroupTargetAssignmentMetadataValue(Data, versions="0", flexible="0+"):
    """The epoch of a group's target assignment."""

    assignment_epoch: int = field.int32("0+")
    assignment_timestamp: int = field.int64("0+", tag=0)


class StreamsGroupTargetAssignmentMemberKey(Data, versions="21"):
    """Key of a member's target assignment."""

    group_id: str = field.string("21")
    member_id: str = field.string("21")


class TargetTaskIds(Struct):
    """An element of ``active_tasks`` in ``StreamsGroupTargetAssignmentMemberValue``."""

    subtopology_id: str = field.string("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class StreamsGroupTargetAssignmentMemberValue(Data, versions="0", flexible="0+"):
    """A member's target assignment."""

    active_tasks: Sequence[TargetTaskIds] = field.array(TargetTaskIds, "0+")
    standby_tasks: Sequence[TargetTaskIds] = field.array(TargetTaskIds, "0+")
    warmup_tasks: Sequence[TargetTaskIds] = field.array(TargetTaskIds, "0+")


class StreamsGroupCurrentMemberAssignmentKey(Data, versions="22"):
    """Key of a member's tasks."""

    group_id: str = field.string("22")
    member_id: str = field.string("22")


class TaskIds(Struct):
    """An element of ``active_tasks`` in ``StreamsGroupCurrentMemberAssignmentValue``."""

    subtopology_id: str = field.string("0+")
    partitions: Sequence[int] = field.int32_array("0+")
    assignment_epochs: Sequence[int] | None = field.int32_array("0+", nullable="0+", default=None, tag=0)


class StreamsGroupCurrentMemberAssignmentValue(Data, versions="0", flexible="0+"):
    """A member's epochs, state and tasks."""

    member_epoch: int = field.int32("0+")
    previous_member_epoch: int = field.int32("0+")
    state: int = field.int8("0+")
    active_tasks: Sequence[TaskIds] = field.array(TaskIds, "0+")
    standby_tasks: Sequence[TaskIds] = field.array(TaskIds, "0+")
    warmup_tasks: Sequence[TaskIds] = field.array(TaskIds, "0+")
    active_tasks_pending_revocation: Sequence[TaskIds] = field.array(TaskIds, "0+")
    standby_tasks_pending_revocation: Sequence[TaskIds] = field.array(TaskIds, "0+")
    warmup_tasks_pending_revocation: Sequence[TaskIds] = field.array(TaskIds, "0+")


class StreamsGroupTopologyKey(Data, versions="23"):
    """Key of a group's topology."""

    group_id: str = field.string("23")


class TopicConfig(Struct):
    """An element of ``topic_configs`` in ``TopicInfo``."""

    key: str = field.string("0+")
    value: str = field.string("0+")


class TopicInfo(Struct):
    """An element of ``state_changelog_topics`` in ``Subtopology``."""

    name: str = field.string("0+")
    partitions: int = field.int32("0+")
    replication_factor: int = field.int16("0+")
    topic_configs: Sequence[TopicConfig] = field.array(TopicConfig, "0+")


class CopartitionGroup(Struct):
    """An element of ``copartition_groups`` in ``Subtopology``."""

    source_topics: Sequence[int] = field.int16_array("0+")
    source_topic_regex: Sequence[int] = field.int16_array("0+")
    repartition_source_topics: Sequence[int] = field.int16_array("0+")


class Subtopology(Struct):
    """An element of ``subtopologies`` in ``StreamsGroupTopologyValue``."""

    subtopology_id: str = field.string("0+")
    source_topics: Sequence[str] = field.string_array("0+")
    source_topic_regex: Sequence[str] = field.string_array("0+")
    state_changelog_topics: Sequence[TopicInfo] = field.array(TopicInfo, "0+")
    repartition_sink_topics: Sequence[str] = field.string_array("0+")
    repartition_source_topics: Sequence[TopicInfo] = field.array(TopicInfo, "0+")
    copartition_groups: Sequence[CopartitionGroup] = field.array(CopartitionGroup, "0+")


class StreamsGroupTopologyValue(Data, versions="0", flexible="0+"):
    """A group's topology."""

    epoch: int = field.int32("0+")
    subtopologies: Sequence[Subtopology] = field.array(Subtopology, "0+")
