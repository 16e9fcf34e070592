"""Heartbeat: table of the request and of the response."""

from moldau.protocol import field
from moldau.protocol.schema import Request, Response


class HeartbeatRequest(Request, api_key=12, versions="0-4", flexible="4+"):
    """Keep the session of a group member alive."""

    group_id: str = field.string("0+")
    generation_id: int = field.int32("0+")
    member_id: str = field.string("0+")
    group_instance_id: str | None = field.string("3+", nullable="3+", default=None)


class HeartbeatResponse(Response, api_key=12, versions="0-4", flexible="4+"):
    """Whether the member still belongs to the generation or has to rejoin."""

    throttle_time_ms: int = field.int32("1+")
    error_code: int = field.int16("0+")
