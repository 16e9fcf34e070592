"""DeleteAcls: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class DeleteAclsFilter(Struct):
    """An element of ``filters`` in ``DeleteAclsRequest``."""

    resource_type_filter: int = field.int8("0+")
    resource_name_filter: str | None = field.string("0+", nullable="0+")
    pattern_type_filter: int = field.int8("1+", default=3)
    principal_filter: str | None = field.string("0+", nullable="0+")
    host_filter: str | None = field.string("0+", nullable="0+")
    operation: int = field.int8("0+")
    permission_type: int = field.int8("0+")


class DeleteAclsRequest(Request, api_key=31, versions="1-3", flexible="2+"):
    """Delete access control entries by filters (KIP-140)."""

    filters: Sequence[DeleteAclsFilter] = field.array(DeleteAclsFilter, "0+")


class DeleteAclsMatchingAcl(Struct):
    """An element of ``matching_acls`` in ``DeleteAclsFilterResult``."""

    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")
    resource_type: int = field.int8("0+")
    resource_name: str = field.string("0+")
    pattern_type: int = field.int8("1+", default=3)
    principal: str = field.string("0+")
    host: str = field.string("0+")
    operation: int = field.int8("0+")
    permission_type: int = field.int8("0+")


class DeleteAclsFilterResult(Struct):
    """An element of ``filter_results`` in ``DeleteAclsResponse``."""

    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")
    matching_acls: Sequence[DeleteAclsMatchingAcl] = field.array(DeleteAclsMatchingAcl, "0+")


class DeleteAclsResponse(Response, api_key=31, versions="1-3", flexible="2+"):
    """The entries deleted by each filter."""

    throttle_time_ms: int = field.int32("0+")
    filter_results: Sequence[DeleteAclsFilterResult] = field.array(DeleteAclsFilterResult, "0+")
