"""CreateAcls: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class AclCreation(Struct):
    """An element of ``creations`` in ``CreateAclsRequest``."""

    resource_type: int = field.int8("0+")
    resource_name: str = field.string("0+")
    resource_pattern_type: int = field.int8("1+", default=3)
    principal: str = field.string("0+")
    host: str = field.string("0+")
    operation: int = field.int8("0+")
    permission_type: int = field.int8("0+")


class CreateAclsRequest(Request, api_key=30, versions="1-3", flexible="2+"):
    """Create access control entries (KIP-140)."""

    creations: Sequence[AclCreation] = field.array(AclCreation, "0+")


class AclCreationResult(Struct):
    """An element of ``results`` in ``CreateAclsResponse``."""

    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")


class CreateAclsResponse(Response, api_key=30, versions="1-3", flexible="2+"):
    """One outcome for each entry."""

    throttle_time_ms: int = field.int32("0+")
    results: Sequence[AclCreationResult] = field.array(AclCreationResult, "0+")
