"""BrokerHeartbeat: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response


class BrokerHeartbeatRequest(Request, api_key=63, versions="0-2", flexible="0+"):
    """A broker keeps its registration alive and asks to be fenced, unfenced or shut down (KIP-631)."""

    broker_id: int = field.int32("0+")
    broker_epoch: int = field.int64("0+", default=-1)
    current_metadata_offset: int = field.int64("0+")
    want_fence: bool = field.boolean("0+")
    want_shut_down: bool = field.boolean("0+")
    offline_log_dirs: Sequence[UUID] = field.uuid_array("1+", tag=0)
    cordoned_log_dirs: Sequence[UUID] | None = field.uuid_array("2+", nullable="2+", default=None, tag=1)


class BrokerHeartbeatResponse(Response, api_key=63, versions="0-2", flexible="0+"):
    """The state that the controller requests of the broker."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    is_caught_up: bool = field.boolean("0+")
    is_fenced: bool = field.boolean("0+", default=True)
    should_shut_down: bool = field.boolean("0+")
