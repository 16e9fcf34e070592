"""ListConfigResources: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class ListConfigResourcesRequest(Request, api_key=74, versions="0-1", flexible="0+"):
    """List resources that have configurations (KIP-714, KIP-1142)."""

    resource_types: Sequence[int] = field.int8_array("1+")


class ConfigResource(Struct):
    """An element of ``config_resources`` in ``ListConfigResourcesResponse``."""

    resource_name: str = field.string("0+")
    resource_type: int = field.int8("1+", default=16)


class ListConfigResourcesResponse(Response, api_key=74, versions="0-1", flexible="0+"):
    """The resources."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    config_resources: Sequence[ConfigResource] = field.array(ConfigResource, "0+")
