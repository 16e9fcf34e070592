"""AlterConfigs: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class AlterableConfig(Struct):
    """An element of ``configs`` in ``AlterConfigsResource``."""

    name: str = field.string("0+")
    value: str | None = field.string("0+", nullable="0+")


class AlterConfigsResource(Struct):
    """An element of ``resources`` in ``AlterConfigsRequest``."""

    resource_type: int = field.int8("0+")
    resource_name: str = field.string("0+")
    configs: Sequence[AlterableConfig] = field.array(AlterableConfig, "0+")


class AlterConfigsRequest(Request, api_key=33, versions="0-2", flexible="2+"):
    """Replace whole configurations (KIP-133)."""

    resources: Sequence[AlterConfigsResource] = field.array(AlterConfigsResource, "0+")
    validate_only: bool = field.boolean("0+")


class AlterConfigsResourceResponse(Struct):
    """An element of ``responses`` in ``AlterConfigsResponse``."""

    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")
    resource_type: int = field.int8("0+")
    resource_name: str = field.string("0+")


class AlterConfigsResponse(Response, api_key=33, versions="0-2", flexible="2+"):
    """One outcome for each resource."""

    throttle_time_ms: int = field.int32("0+")
    responses: Sequence[AlterConfigsResourceResponse] = field.array(AlterConfigsResourceResponse, "0+")
