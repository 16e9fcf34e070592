"""SyncGroup: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct
from moldau.values import Buffer


class SyncGroupRequestAssignment(Struct):
    """An element of ``assignments`` in ``SyncGroupRequest``."""

    member_id: str = field.string("0+")
    assignment: Buffer = field.binary("0+")


class SyncGroupRequest(Request, api_key=14, versions="0-5", flexible="4+"):
    """Ask for the assignment of a member; the leader brings the assignments of all (KIP-559 protocol)."""

    group_id: str = field.string("0+")
    generation_id: int = field.int32("0+")
    member_id: str = field.string("0+")
    group_instance_id: str | None = field.string("3+", nullable="3+", default=None)
    protocol_type: str | None = field.string("5+", nullable="5+", default=None)
    protocol_name: str | None = field.string("5+", nullable="5+", default=None)
    assignments: Sequence[SyncGroupRequestAssignment] = field.array(SyncGroupRequestAssignment, "0+")


class SyncGroupResponse(Response, api_key=14, versions="0-5", flexible="4+"):
    """The assignment of the member."""

    throttle_time_ms: int = field.int32("1+")
    error_code: int = field.int16("0+")
    protocol_type: str | None = field.string("5+", nullable="5+", default=None)
    protocol_name: str | None = field.string("5+", nullable="5+", default=None)
    assignment: Buffer = field.binary("0+")
