"""UpdateRaftVoter: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class Listener(Struct):
    """An element of ``listeners`` in ``UpdateRaftVoterRequest``."""

    name: str = field.string("0+")
    host: str = field.string("0+")
    port: int = field.uint16("0+")


class KRaftVersionFeature(Struct):
    """The value of ``kraft_version_feature`` in ``UpdateRaftVoterRequest``."""

    min_supported_version: int = field.int16("0+")
    max_supported_version: int = field.int16("0+")


class UpdateRaftVoterRequest(Request, api_key=82, versions="0", flexible="0+"):
    """A voter reports its endpoints to the leader of the quorum (KIP-853)."""

    cluster_id: str | None = field.string("0+", nullable="0+")
    current_leader_epoch: int = field.int32("0+")
    voter_id: int = field.int32("0+")
    voter_directory_id: UUID = field.uuid("0+")
    listeners: Sequence[Listener] = field.array(Listener, "0+")
    kraft_version_feature: KRaftVersionFeature = field.struct(KRaftVersionFeature, "0+")


class CurrentLeader(Struct):
    """The value of ``current_leader`` in ``UpdateRaftVoterResponse``."""

    leader_id: int = field.int32("0+", default=-1)
    leader_epoch: int = field.int32("0+", default=-1)
    host: str = field.string("0+")
    port: int = field.int32("0+")


class UpdateRaftVoterResponse(Response, api_key=82, versions="0", flexible="0+"):
    """The outcome and the leader known."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    current_leader: CurrentLeader = field.struct(CurrentLeader, "0+", tag=0)
