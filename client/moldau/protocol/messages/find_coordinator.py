"""FindCoordinator: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class FindCoordinatorRequest(Request, api_key=10, versions="0-6", flexible="3+"):
    """Find the broker that coordinates groups or transactional ids (KIP-699 batches)."""

    key: str = field.string("0-3")
    key_type: int = field.int8("1+")
    coordinator_keys: Sequence[str] = field.string_array("4+")


class Coordinator(Struct):
    """An element of ``coordinators`` in ``FindCoordinatorResponse``."""

    key: str = field.string("4+")
    node_id: int = field.int32("4+")
    host: str = field.string("4+")
    port: int = field.int32("4+")
    error_code: int = field.int16("4+")
    error_message: str | None = field.string("4+", nullable="4+")


class FindCoordinatorResponse(Response, api_key=10, versions="0-6", flexible="3+"):
    """The coordinators found."""

    throttle_time_ms: int = field.int32("1+")
    error_code: int = field.int16("0-3")
    error_message: str | None = field.string("1-3", nullable="1-3")
    node_id: int = field.int32("0-3")
    host: str = field.string("0-3")
    port: int = field.int32("0-3")
    coordinators: Sequence[Coordinator] = field.array(Coordinator, "4+")
