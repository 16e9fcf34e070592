"""ConsumerGroupHeartbeat: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class ConsumerGroupHeartbeatRequestTopicPartitions(Struct):
    """An element of ``topic_partitions`` in ``ConsumerGroupHeartbeatRequest``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class ConsumerGroupHeartbeatRequest(Request, api_key=68, versions="0-1", flexible="0+"):
    """Join, leave or keep alive a member of a group whose assignment the broker computes (KIP-848)."""

    group_id: str = field.string("0+")
    member_id: str = field.string("0+")
    member_epoch: int = field.int32("0+")
    instance_id: str | None = field.string("0+", nullable="0+", default=None)
    rack_id: str | None = field.string("0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = field.int32("0+", default=-1)
    subscribed_topic_names: Sequence[str] | None = field.string_array("0+", nullable="0+", default=None)
    subscribed_topic_regex: str | None = field.string("1+", nullable="1+", default=None)
    server_assignor: str | None = field.string("0+", nullable="0+", default=None)
    topic_partitions: Sequence[ConsumerGroupHeartbeatRequestTopicPartitions] | None = field.array(
        ConsumerGroupHeartbeatRequestTopicPartitions, "0+", nullable="0+", default=None
    )


class ConsumerGroupHeartbeatResponseTopicPartitions(Struct):
    """An element of ``topic_partitions`` in ``Assignment``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class Assignment(Struct):
    """The value of ``assignment`` in ``ConsumerGroupHeartbeatResponse``."""

    topic_partitions: Sequence[ConsumerGroupHeartbeatResponseTopicPartitions] = field.array(
        ConsumerGroupHeartbeatResponseTopicPartitions, "0+"
    )


class ConsumerGroupHeartbeatResponse(Response, api_key=68, versions="0-1", flexible="0+"):
    """The member epoch and, when it changed, the assignment."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)
    member_id: str | None = field.string("0+", nullable="0+", default=None)
    member_epoch: int = field.int32("0+")
    heartbeat_interval_ms: int = field.int32("0+")
    assignment: Assignment | None = field.struct(Assignment, "0+", nullable="0+")
