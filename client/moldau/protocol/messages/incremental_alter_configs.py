"""IncrementalAlterConfigs: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class AlterableConfig(Struct):
    """An element of ``configs`` in ``AlterConfigsResource``."""

    name: str = field.string("0+")
    config_operation: int = field.int8("0+")
    value: str | None = field.string("0+", nullable="0+")


class AlterConfigsResource(Struct):
    """An element of ``resources`` in ``IncrementalAlterConfigsRequest``."""

    resource_type: int = field.int8("0+")
    resource_name: str = field.string("0+")
    configs: Sequence[AlterableConfig] = field.array(AlterableConfig, "0+")


class IncrementalAlterConfigsRequest(Request, api_key=44, versions="0-1", flexible="1+"):
    """Set, delete, append to or subtract from single configuration values (KIP-339)."""

    resources: Sequence[AlterConfigsResource] = field.array(AlterConfigsResource, "0+")
    validate_only: bool = field.boolean("0+")


class AlterConfigsResourceResponse(Struct):
    """An element of ``responses`` in ``IncrementalAlterConfigsResponse``."""

    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")
    resource_type: int = field.int8("0+")
    resource_name: str = field.string("0+")


class IncrementalAlterConfigsResponse(Response, api_key=44, versions="0-1", flexible="1+"):
    """One outcome for each resource."""

    throttle_time_ms: int = field.int32("0+")
    responses: Sequence[AlterConfigsResourceResponse] = field.array(AlterConfigsResourceResponse, "0+")
