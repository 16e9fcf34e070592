"""DescribeGroups: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct
from moldau.values import Buffer


class DescribeGroupsRequest(Request, api_key=15, versions="0-6", flexible="5+"):
    """Describe classic groups (KIP-430 authorized operations)."""

    groups: Sequence[str] = field.string_array("0+")
    include_authorized_operations: bool = field.boolean("3+")


class DescribedGroupMember(Struct):
    """An element of ``members`` in ``DescribedGroup``."""

    member_id: str = field.string("0+")
    group_instance_id: str | None = field.string("4+", nullable="4+", default=None)
    client_id: str = field.string("0+")
    client_host: str = field.string("0+")
    member_metadata: Buffer = field.binary("0+")
    member_assignment: Buffer = field.binary("0+")


class DescribedGroup(Struct):
    """An element of ``groups`` in ``DescribeGroupsResponse``."""

    error_code: int = field.int16("0+")
    error_message: str | None = field.string("6+", nullable="6+", default=None)
    group_id: str = field.string("0+")
    group_state: str = field.string("0+")
    protocol_type: str = field.string("0+")
    protocol_data: str = field.string("0+")
    members: Sequence[DescribedGroupMember] = field.array(DescribedGroupMember, "0+")
    authorized_operations: int = field.int32("3+", default=-2147483648)


class DescribeGroupsResponse(Response, api_key=15, versions="0-6", flexible="5+"):
    """State, protocol and members of each group."""

    throttle_time_ms: int = field.int32("1+")
    groups: Sequence[DescribedGroup] = field.array(DescribedGroup, "0+")
