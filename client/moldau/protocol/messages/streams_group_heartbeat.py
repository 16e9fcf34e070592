"""StreamsGroupHeartbeat: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


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


class CopartitionGroup(Struct):
    """An element of ``copartition_groups`` in ``Subtopology``."""

    source_topics: Sequence[int] = field.int16_array("0+")
    source_topic_regex: Sequence[int] = field.int16_array("0+")
    repartition_source_topics: Sequence[int] = field.int16_array("0+")


class Subtopology(Struct):
    """An element of ``subtopologies`` in ``Topology``."""

    subtopology_id: str = field.string("0+")
    source_topics: Sequence[str] = field.string_array("0+")
    source_topic_regex: Sequence[str] = field.string_array("0+")
    state_changelog_topics: Sequence[TopicInfo] = field.array(TopicInfo, "0+")
    repartition_sink_topics: Sequence[str] = field.string_array("0+")
    repartition_source_topics: Sequence[TopicInfo] = field.array(TopicInfo, "0+")
    copartition_groups: Sequence[CopartitionGroup] = field.array(CopartitionGroup, "0+")


class Topology(Struct):
    """The value of ``topology`` in ``StreamsGroupHeartbeatRequest``."""

    epoch: int = field.int32("0+")
    subtopologies: Sequence[Subtopology] = field.array(Subtopology, "0+")


class TaskIds(Struct):
    """An element of ``active_tasks`` in ``StreamsGroupHeartbeatRequest``."""

    subtopology_id: str = field.string("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class Endpoint(Struct):
    """The value of ``user_endpoint`` in ``StreamsGroupHeartbeatRequest``."""

    host: str = field.string("0+")
    port: int = field.uint16("0+")


class TaskOffset(Struct):
    """An element of ``task_offsets`` in ``StreamsGroupHeartbeatRequest``."""

    subtopology_id: str = field.string("0+")
    partition: int = field.int32("0+")
    offset: int = field.int64("0+")


class StreamsGroupHeartbeatRequest(Request, api_key=88, versions="0-1", flexible="0+"):
    """Join, leave or keep alive a member of a streams group (KIP-1071)."""

    group_id: str = field.string("0+")
    member_id: str = field.string("0+")
    member_epoch: int = field.int32("0+")
    endpoint_information_epoch: int = field.int32("0+")
    instance_id: str | None = field.string("0+", nullable="0+", default=None)
    rack_id: str | None = field.string("0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = field.int32("0+", default=-1)
    topology: Topology | None = field.struct(Topology, "0+", nullable="0+")
    active_tasks: Sequence[TaskIds] | None = field.array(TaskIds, "0+", nullable="0+", default=None)
    standby_tasks: Sequence[TaskIds] | None = field.array(TaskIds, "0+", nullable="0+", default=None)
    warmup_tasks: Sequence[TaskIds] | None = field.array(TaskIds, "0+", nullable="0+", default=None)
    process_id: str | None = field.string("0+", nullable="0+", default=None)
    user_endpoint: Endpoint | None = field.struct(Endpoint, "0+", nullable="0+")
    client_tags: Sequence[KeyValue] | None = field.array(KeyValue, "0+", nullable="0+", default=None)
    task_offsets: Sequence[TaskOffset] | None = field.array(TaskOffset, "0+", nullable="0+", default=None)
    task_end_offsets: Sequence[TaskOffset] | None = field.array(TaskOffset, "0+", nullable="0+", default=None)
    shutdown_application: bool = field.boolean("0+")


class Status(Struct):
    """An element of ``status`` in ``StreamsGroupHeartbeatResponse``."""

    status_code: int = field.int8("0+")
    status_detail: str = field.string("0+")


class TopicPartition(Struct):
    """An element of ``active_partitions`` in ``EndpointToPartitions``."""

    topic: str = field.string("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class EndpointToPartitions(Struct):
    """An element of ``partitions_by_user_endpoint`` in ``StreamsGroupHeartbeatResponse``."""

    user_endpoint: Endpoint = field.struct(Endpoint, "0+")
    active_partitions: Sequence[TopicPartition] = field.array(TopicPartition, "0+")
    standby_partitions: Sequence[TopicPartition] = field.array(TopicPartition, "0+")


class StreamsGroupHeartbeatResponse(Response, api_key=88, versions="0-1", flexible="0+"):
    """The member epoch, what is wrong with the group and, when they changed, the tasks."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)
    member_id: str = field.string("0+")
    member_epoch: int = field.int32("0+")
    heartbeat_interval_ms: int = field.int32("0+")
    acceptable_recovery_lag_legacy: int = field.int32("0")
    task_offset_interval_ms: int = field.int32("0+")
    acceptable_recovery_lag: int = field.int64("1+", default=-1)
    status: Sequence[Status] | None = field.array(Status, "0+", nullable="0+")
    active_tasks: Sequence[TaskIds] | None = field.array(TaskIds, "0+", nullable="0+", default=None)
    standby_tasks: Sequence[TaskIds] | None = field.array(TaskIds, "0+", nullable="0+", default=None)
    warmup_tasks: Sequence[TaskIds] | None = field.array(TaskIds, "0+", nullable="0+", default=None)
    topology_description_required: bool = field.boolean("1+")
    endpoint_information_epoch: int = field.int32("0+")
    partitions_by_user_endpoint: Sequence[EndpointToPartitions] | None = field.array(
        EndpointToPartitions, "0+", nullable="0+", default=None
    )
