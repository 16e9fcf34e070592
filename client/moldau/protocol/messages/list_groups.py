"""ListGroups: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class ListGroupsRequest(Request, api_key=16, versions="0-5", flexible="3+"):
    """List the groups that a broker coordinates (KIP-518 states, KIP-848 types)."""

    states_filter: Sequence[str] = field.string_array("4+")
    types_filter: Sequence[str] = field.string_array("5+")


class ListedGroup(Struct):
    """An element of ``groups`` in ``ListGroupsResponse``."""

    group_id: str = field.string("0+")
    protocol_type: str = field.string("0+")
    group_state: str = field.string("4+")
    group_type: str = field.string("5+")


class ListGroupsResponse(Response, api_key=16, versions="0-5", flexible="3+"):
    """Groups with their state and type."""

    throttle_time_ms: int = field.int32("1+")
    error_code: int = field.int16("0+")
    groups: Sequence[ListedGroup] = field.array(ListedGroup, "0+")
