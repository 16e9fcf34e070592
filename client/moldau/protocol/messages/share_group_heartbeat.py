"""ShareGroupHeartbeat: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class ShareGroupHeartbeatRequest(Request, api_key=76, versions="1", flexible="0+"):
    """Join, leave or keep alive a member of a share group (KIP-932)."""

    group_id: str = field.string("0+")
    member_id: str = field.string("0+")
    member_epoch: int = field.int32("0+")
    rack_id: str | None = field.string("0+", nullable="0+", default=None)
    subscribed_topic_names: Sequence[str] | None = field.string_array("0+", nullable="0+", default=None)


class TopicPartitions(Struct):
    """An element of ``topic_partitions`` in ``Assignment``."""

    topic_id: UUID = field.uuid("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class Assignment(Struct):
    """The value of ``assignment`` in ``ShareGroupHeartbeatResponse``."""

    topic_partitions: Sequence[TopicPartitions] = field.array(TopicPartitions, "0+")


class ShareGroupHeartbeatResponse(Response, api_key=76, versions="1", flexible="0+"):
    """The member epoch and, when it changed, the assignment."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)
    member_id: str | None = field.string("0+", nullable="0+", default=None)
    member_epoch: int = field.int32("0+")
    heartbeat_interval_ms: int = field.int32("0+")
    assignment: Assignment | None = field.struct(Assignment, "0+", nullable="0+")
