"""ShareGroupDescribe: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class ShareGroupDescribeRequest(Request, api_key=77, versions="1", flexible="0+"):
    """Describe share groups (KIP-932)."""

    group_ids: Sequence[str] = field.string_array("0+")
    include_authorized_operations: bool = field.boolean("0+")


class TopicPartitions(Struct):
    """An element of ``topic_partitions`` in ``Assignment``."""

    topic_id: UUID = field.uuid("0+")
    topic_name: str = field.string("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class Assignment(Struct):
    """The value of ``assignment`` in ``Member``."""

    topic_partitions: Sequence[TopicPartitions] = field.array(TopicPartitions, "0+")


class Member(Struct):
    """An element of ``members`` in ``DescribedGroup``."""

    member_id: str = field.string("0+")
    rack_id: str | None = field.string("0+", nullable="0+", default=None)
    member_epoch: int = field.int32("0+")
    client_id: str = field.string("0+")
    client_host: str = field.string("0+")
    subscribed_topic_names: Sequence[str] = field.string_array("0+")
    assignment: Assignment = field.struct(Assignment, "0+")


class DescribedGroup(Struct):
    """An element of ``groups`` in ``ShareGroupDescribeResponse``."""

    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)
    group_id: str = field.string("0+")
    group_state: str = field.string("0+")
    group_epoch: int = field.int32("0+")
    assignment_epoch: int = field.int32("0+")
    assignor_name: str = field.string("0+")
    members: Sequence[Member] = field.array(Member, "0+")
    authorized_operations: int = field.int32("0+", default=-2147483648)


class ShareGroupDescribeResponse(Response, api_key=77, versions="1", flexible="0+"):
    """Epochs, members and assignments of each group."""

    throttle_time_ms: int = field.int32("0+")
    groups: Sequence[DescribedGroup] = field.array(DescribedGroup, "0+")
