"""JoinGroup: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct
from moldau.values import Buffer


class JoinGroupRequestProtocol(Struct):
    """An element of ``protocols`` in ``JoinGroupRequest``."""

    name: str = field.string("0+")
    metadata: Buffer = field.binary("0+")


class JoinGroupRequest(Request, api_key=11, versions="0-9", flexible="6+"):
    """Enter a classic group or rejoin it (KIP-394 member id first, KIP-345 static members, KIP-800 reason)."""

    group_id: str = field.string("0+")
    session_timeout_ms: int = field.int32("0+")
    rebalance_timeout_ms: int = field.int32("1+", default=-1)
    member_id: str = field.string("0+")
    group_instance_id: str | None = field.string("5+", nullable="5+", default=None)
    protocol_type: str = field.string("0+")
    protocols: Sequence[JoinGroupRequestProtocol] = field.array(JoinGroupRequestProtocol, "0+")
    reason: str | None = field.string("8+", nullable="8+", default=None)


class JoinGroupResponseMember(Struct):
    """An element of ``members`` in ``JoinGroupResponse``."""

    member_id: str = field.string("0+")
    group_instance_id: str | None = field.string("5+", nullable="5+", default=None)
    metadata: Buffer = field.binary("0+")


class JoinGroupResponse(Response, api_key=11, versions="0-9", flexible="6+"):
    """The generation; for the leader also the members with their metadata."""

    throttle_time_ms: int = field.int32("2+")
    error_code: int = field.int16("0+")
    generation_id: int = field.int32("0+", default=-1)
    protocol_type: str | None = field.string("7+", nullable="7+", default=None)
    protocol_name: str | None = field.string("0+", nullable="7+")
    leader: str = field.string("0+")
    skip_assignment: bool = field.boolean("9+")
    member_id: str = field.string("0+")
    members: Sequence[JoinGroupResponseMember] = field.array(JoinGroupResponseMember, "0+")
