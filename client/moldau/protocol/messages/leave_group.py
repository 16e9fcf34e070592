"""LeaveGroup: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class MemberIdentity(Struct):
    """An element of ``members`` in ``LeaveGroupRequest``."""

    member_id: str = field.string("3+")
    group_instance_id: str | None = field.string("3+", nullable="3+", default=None)
    reason: str | None = field.string("5+", nullable="5+", default=None)


class LeaveGroupRequest(Request, api_key=13, versions="0-5", flexible="4+"):
    """Leave a group, one member or a batch (KIP-345)."""

    group_id: str = field.string("0+")
    member_id: str = field.string("0-2")
    members: Sequence[MemberIdentity] = field.array(MemberIdentity, "3+")


class MemberResponse(Struct):
    """An element of ``members`` in ``LeaveGroupResponse``."""

    member_id: str = field.string("3+")
    group_instance_id: str | None = field.string("3+", nullable="3+")
    error_code: int = field.int16("3+")


class LeaveGroupResponse(Response, api_key=13, versions="0-5", flexible="4+"):
    """One error code for each member."""

    throttle_time_ms: int = field.int32("1+")
    error_code: int = field.int16("0+")
    members: Sequence[MemberResponse] = field.array(MemberResponse, "3+")
