"""AddRaftVoter: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class Listener(Struct):
    """An element of ``listeners`` in ``AddRaftVoterRequest``."""

    name: str = field.string("0+")
    host: str = field.string("0+")
    port: int = field.uint16("0+")


class AddRaftVoterRequest(Request, api_key=80, versions="0-1", flexible="0+"):
    """Add a voter to the metadata quorum (KIP-853)."""

    cluster_id: str | None = field.string("0+", nullable="0+")
    timeout_ms: int = field.int32("0+")
    voter_id: int = field.int32("0+")
    voter_directory_id: UUID = field.uuid("0+")
    listeners: Sequence[Listener] = field.array(Listener, "0+")
    ack_when_committed: bool = field.boolean("1+", default=True)


class AddRaftVoterResponse(Response, api_key=80, versions="0-1", flexible="0+"):
    """The outcome."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")
