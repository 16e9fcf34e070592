"""StreamsGroupDescribe: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class StreamsGroupDescribeRequest(Request, api_key=89, versions="0-1", flexible="0+"):
    """Describe streams groups (KIP-1071)."""

    group_ids: Sequence[str] = field.string_array("0+")
    include_authorized_operations: bool = field.boolean("0+")
    include_topology_description: bool = field.boolean("1+")


class KeyValue(Struct):
    """An element of ``topic_configs`` in ``TopicInfo``."""

    key: str = field.string("0+")
    value: str = field.string("0+")


class TopicInfo(Struct):
    """An element of ``state_changelog_topics`` in ``Subtopology``."""

    name: str = field.string("0+")
    partitions: int = field.int32("0+")
    replication_factor: int = field.int16("0+")
    topic_configs: Sequence[KeyValue] = field.array(KeyValue, "0+")


class Subtopology(Struct):
    """An element of ``subtopologies`` in ``Topology``."""

    subtopology_id: str = field.string("0+")
    source_topics: Sequence[str] = field.string_array("0+")
    repartition_sink_topics: Sequence[str] = field.string_array("0+")
    state_changelog_topics: Sequence[TopicInfo] = field.array(TopicInfo, "0+")
    repartition_source_topics: Sequence[TopicInfo] = field.array(TopicInfo, "0+")


class Topology(Struct):
    """The value of ``topology`` in ``DescribedGroup``."""

    epoch: int = field.int32("0+")
    subtopologies: Sequence[Subtopology] | None = field.array(Subtopology, "0+", nullable="0+", default=None)


class Endpoint(Struct):
    """The value of ``user_endpoint`` in ``Member``."""

    host: str = field.string("0+")
    port: int = field.uint16("0+")


class TaskOffset(Struct):
    """An element of ``task_offsets`` in ``Member``."""

    subtopology_id: str = field.string("0+")
    partition: int = field.int32("0+")
    offset: int = field.int64("0+")


class TaskIds(Struct):
    """An element of ``active_tasks`` in ``Assignment``."""

    subtopology_id: str = field.string("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class Assignment(Struct):
    """The value of ``assignment`` in ``Member``."""

    active_tasks: Sequence[TaskIds] = field.array(TaskIds, "0+")
    standby_tasks: Sequence[TaskIds] = field.array(TaskIds, "0+")
    warmup_tasks: Sequence[TaskIds] = field.array(TaskIds, "0+")


class Member(Struct):
    """An element of ``members`` in ``DescribedGroup``."""

    member_id: str = field.string("0+")
    member_epoch: int = field.int32("0+")
    instance_id: str | None = field.string("0+", nullable="0+", default=None)
    rack_id: str | None = field.string("0+", nullable="0+", default=None)
    client_id: str = field.string("0+")
    client_host: str = field.string("0+")
    topology_epoch: int = field.int32("0+")
    process_id: str = field.string("0+")
    user_endpoint: Endpoint | None = field.struct(Endpoint, "0+", nullable="0+")
    client_tags: Sequence[KeyValue] = field.array(KeyValue, "0+")
    task_offsets: Sequence[TaskOffset] = field.array(TaskOffset, "0+")
    task_end_offsets: Sequence[TaskOffset] = field.array(TaskOffset, "0+")
    assignment: Assignment = field.struct(Assignment, "0+")
    target_assignment: Assignment = field.struct(Assignment, "0+")
    is_classic: bool = field.boolean("0+")


class TopologyDescriptionNode(Struct):
    """An element of ``nodes`` in ``TopologyDescriptionSubtopology``."""

    name: str = field.string("1+")
    node_type: int = field.int8("1+")
    source_topics: Sequence[str] = field.string_array("1+")
    sink_topic: str | None = field.string("1+", nullable="1+", default=None)
    stores: Sequence[str] = field.string_array("1+")
    successors: Sequence[str] = field.string_array("1+")


class TopologyDescriptionSubtopology(Struct):
    """An element of ``subtopologies`` in ``TopologyDescription``."""

    subtopology_id: str = field.string("1+")
    nodes: Sequence[TopologyDescriptionNode] = field.array(TopologyDescriptionNode, "1+")


class TopologyDescriptionGlobalStore(Struct):
    """An element of ``global_stores`` in ``TopologyDescription``."""

    source: TopologyDescriptionNode = field.struct(TopologyDescriptionNode, "1+")
    processor: TopologyDescriptionNode = field.struct(TopologyDescriptionNode, "1+")


class TopologyDescription(Struct):
    """The value of ``topology_description`` in ``DescribedGroup``."""

    subtopologies: Sequence[TopologyDescriptionSubtopology] = field.array(TopologyDescriptionSubtopology, "1+")
    global_stores: Sequence[TopologyDescriptionGlobalStore] = field.array(TopologyDescriptionGlobalStore, "1+")


class DescribedGroup(Struct):
    """An element of ``groups`` in ``StreamsGroupDescribeResponse``."""

    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)
    group_id: str = field.string("0+")
    group_state: str = field.string("0+")
    group_epoch: int = field.int32("0+")
    assignment_epoch: int = field.int32("0+")
    topology: Topology | None = field.struct(Topology, "0+", nullable="0+")
    members: Sequence[Member] = field.array(Member, "0+")
    authorized_operations: int = field.int32("0+", default=-2147483648)
    topology_description: TopologyDescription | None = field.struct(TopologyDescription, "1+", nullable="1+")
    topology_description_status: int = field.int8("1+")
    assignor_name: str | None = field.string("1+", nullable="1+", default=None)


class StreamsGroupDescribeResponse(Response, api_key=89, versions="0-1", flexible="0+"):
    """Epochs, topology, members and tasks of each group."""

    throttle_time_ms: int = field.int32("0+")
    groups: Sequence[DescribedGroup] = field.array(DescribedGroup, "0+")
