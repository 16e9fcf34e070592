"""DescribeAcls: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class DescribeAclsRequest(Request, api_key=29, versions="1-3", flexible="2+"):
    """Find access control entries by a filter (KIP-140, KIP-290 patterns)."""

    resource_type_filter: int = field.int8("0+")
    resource_name_filter: str | None = field.string("0+", nullable="0+")
    pattern_type_filter: int = field.int8("1+", default=3)
    principal_filter: str | None = field.string("0+", nullable="0+")
    host_filter: str | None = field.string("0+", nullable="0+")
    operation: int = field.int8("0+")
    permission_type: int = field.int8("0+")


class AclDescription(Struct):
    """An element of ``acls`` in ``DescribeAclsResource``."""

    principal: str = field.string("0+")
    host: str = field.string("0+")
    operation: int = field.int8("0+")
    permission_type: int = field.int8("0+")


class DescribeAclsResource(Struct):
    """An element of ``resources`` in ``DescribeAclsResponse``."""

    resource_type: int = field.int8("0+")
    resource_name: str = field.string("0+")
    pattern_type: int = field.int8("1+", default=3)
    acls: Sequence[AclDescription] = field.array(AclDescription, "0+")


class DescribeAclsResponse(Response, api_key=29, versions="1-3", flexible="2+"):
    """The entries that match."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")
    resources: Sequence[DescribeAclsResource] = field.array(DescribeAclsResource, "0+")
