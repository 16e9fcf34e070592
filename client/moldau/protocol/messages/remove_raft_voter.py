"""RemoveRaftVoter: table of the request and of the response."""

from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response


class RemoveRaftVoterRequest(Request, api_key=81, versions="0", flexible="0+"):
    """Remove a voter from the metadata quorum (KIP-853)."""

    cluster_id: str | None = field.string("0+", nullable="0+")
    voter_id: int = field.int32("0+")
    voter_directory_id: UUID = field.uuid("0+")


class RemoveRaftVoterResponse(Response, api_key=81, versions="0", flexible="0+"):
    """The outcome."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")
