"""DeleteGroups: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class DeleteGroupsRequest(Request, api_key=42, versions="0-3", flexible="2+"):
    """Delete empty groups with their offsets (KIP-229)."""

    groups_names: Sequence[str] = field.string_array("0+")


class DeletableGroupResult(Struct):
    """An element of ``results`` in ``DeleteGroupsResponse``."""

    group_id: str = field.string("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("3+", nullable="3+", default=None)


class DeleteGroupsResponse(Response, api_key=42, versions="0-3", flexible="2+"):
    """One error code for each group."""

    throttle_time_ms: int = field.int32("0+")
    results: Sequence[DeletableGroupResult] = field.array(DeletableGroupResult, "0+")
