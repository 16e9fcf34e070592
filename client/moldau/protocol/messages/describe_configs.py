"""DescribeConfigs: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class DescribeConfigsResource(Struct):
    """An element of ``resources`` in ``DescribeConfigsRequest``."""

    resource_type: int = field.int8("0+")
    resource_name: str = field.string("0+")
    configuration_keys: Sequence[str] | None = field.string_array("0+", nullable="0+")


class DescribeConfigsRequest(Request, api_key=32, versions="1-4", flexible="4+"):
    """Read configurations of topics, brokers and groups (KIP-133, KIP-226 synonyms)."""

    resources: Sequence[DescribeConfigsResource] = field.array(DescribeConfigsResource, "0+")
    include_synonyms: bool = field.boolean("1+")
    include_documentation: bool = field.boolean("3+")


class DescribeConfigsSynonym(Struct):
    """An element of ``synonyms`` in ``DescribeConfigsResourceResult``."""

    name: str = field.string("1+")
    value: str | None = field.string("1+", nullable="0+")
    source: int = field.int8("1+")


class DescribeConfigsResourceResult(Struct):
    """An element of ``configs`` in ``DescribeConfigsResult``."""

    name: str = field.string("0+")
    value: str | None = field.string("0+", nullable="0+")
    read_only: bool = field.boolean("0+")
    config_source: int = field.int8("1+", default=-1)
    is_sensitive: bool = field.boolean("0+")
    synonyms: Sequence[DescribeConfigsSynonym] = field.array(DescribeConfigsSynonym, "1+")
    config_type: int = field.int8("3+")
    documentation: str | None = field.string("3+", nullable="0+")


class DescribeConfigsResult(Struct):
    """An element of ``results`` in ``DescribeConfigsResponse``."""

    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")
    resource_type: int = field.int8("0+")
    resource_name: str = field.string("0+")
    configs: Sequence[DescribeConfigsResourceResult] = field.array(DescribeConfigsResourceResult, "0+")


class DescribeConfigsResponse(Response, api_key=32, versions="1-4", flexible="4+"):
    """Values with their sources and synonyms."""

    throttle_time_ms: int = field.int32("0+")
    results: Sequence[DescribeConfigsResult] = field.array(DescribeConfigsResult, "0+")
