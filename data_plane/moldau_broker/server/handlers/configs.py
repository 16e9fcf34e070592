"""DescribeConfigs: every key of a topic or of this broker, where its value comes from, and what it falls back to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from moldau.runtime.config import (
    BROKER_CONFIG,
    REQUIRED,
    TOPIC_CONFIG,
    ConfigKey,
    ConfigSource,
    DynamicScope,
)
from moldau_quorum.image import RESOURCE_BROKER, RESOURCE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau_broker.server.context import BrokerContext, Call

_DEFAULT_BROKER = ""
Layer = tuple[ConfigSource, str, str | None]
"""Source, key and value of one place where a value can come from."""


def handle_describe_configs(
    context: BrokerContext, request: DescribeConfigsRequest, call: Call
) -> DescribeConfigsResponse:
    """DescribeConfigs of topics and of this broker; others' configurations must be asked of them."""
    results: list[DescribeConfigsResult] = []
    for resource in request.resources:
        try:
            configs = _describe(context, resource, request)
        except KafkaError as error:
            results.append(
                DescribeConfigsResult(
                    error_code=error.code,
                    error_message=error.message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
            continue
        results.append(
            DescribeConfigsResult(
                resource_type=resource.resource_type, resource_name=resource.resource_name, configs=configs
            )
        )
    return DescribeConfigsResponse(results=results)


def _describe(
    context: BrokerContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    name = resource.resource_name
    image = context.metadata.image
    if resource.resource_type == RESOURCE_TOPIC:
        if name not in image.topics_by_name:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        overrides = image.topic_config(name)
        described = _topic(context, overrides)
    elif resource.resource_type == RESOURCE_BROKER:
        if name not in (_DEFAULT_BROKER, str(context.broker_id)):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"this is broker {context.broker_id}: ask broker {name!r} for its configuration",
            )
        described = _broker(context, name)
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"resource type {resource.resource_type} has no configuration here")
    wanted = None if resource.configuration_keys is None else set(resource.configuration_keys)
    return [
        _result(key, layers, request, read_only=read_only)
        for key, layers, read_only in described
        if wanted is None or key.name in wanted
    ]


def _text(key: ConfigKey, value: str) -> str | None:
    """The value as all values are shown; as it is where it cannot be used."""
    try:
        return key.format(key.parse(value))
    except ValueError:
        return value


def _topic(context: BrokerContext, overrides: Mapping[str, str]) -> Iterable[tuple[ConfigKey, list[Layer], bool]]:
    for key in TOPIC_CONFIG.keys.values():
        layers: list[Layer] = []
        if key.name in overrides:
            layers.append((ConfigSource.DYNAMIC_TOPIC, key.name, _text(key, overrides[key.name])))
        for synonym in key.synonyms:
            layers += [layer for layer in _broker_layers(context, synonym.name) if layer[0] is not ConfigSource.DEFAULT]
        if key.default is not REQUIRED:
            layers.append((ConfigSource.DEFAULT, key.name, key.format(key.default)))
        yield key, layers, False


def _broker(context: BrokerContext, name: str) -> Iterable[tuple[ConfigKey, list[Layer], bool]]:
    # Keys of single listeners (listener.name.inside.ssl.client.auth) exist where somebody has set them.
    for key_name in dict.fromkeys((*BROKER_CONFIG.keys, *context.static_config, *context.config)):
        key = BROKER_CONFIG.key(key_name)
        layers = _broker_layers(context, key_name)
        if name == _DEFAULT_BROKER:
            layers = [layer for layer in layers if layer[0] is ConfigSource.DYNAMIC_DEFAULT_BROKER]
            if not layers:
                continue
        yield replace(key, name=key_name), layers, key.dynamic is DynamicScope.READ_ONLY


def _broker_layers(context: BrokerContext, name: str) -> list[Layer]:
    """Where a broker key gets its value from, the one in force first; what is left out is not in force."""
    image = context.metadata.image
    left_out = context.dynamic.left_out
    layers: list[Layer] = []
    broker = str(context.broker_id)
    own = image.config(RESOURCE_BROKER, broker)
    if name in own and (broker, name) not in left_out:
        layers.append((ConfigSource.DYNAMIC_BROKER, name, own[name]))
    default = image.config(RESOURCE_BROKER, _DEFAULT_BROKER)
    if name in default and (_DEFAULT_BROKER, name) not in left_out:
        layers.append((ConfigSource.DYNAMIC_DEFAULT_BROKER, name, default[name]))
    key = BROKER_CONFIG.key(name)
    if context.static_config.is_set(name):
        layers.append((ConfigSource.STATIC_BROKER, name, context.static_config.text(name)))
    if key.name != name:
        layers += _broker_layers(context, key.name)  # what a listener has no value of its own for
    elif key.default is not REQUIRED:
        layers.append((ConfigSource.DEFAULT, name, key.format(key.default)))
    return layers


def _result(
    key: ConfigKey, layers: list[Layer], request: DescribeConfigsRequest, *, read_only: bool
) -> DescribeConfigsResourceResult:
    source, _, value = layers[0]
    return DescribeConfigsResourceResult(
        name=key.name,
        value=None if key.is_sensitive else value,
        read_only=read_only,
        config_source=source,
        is_sensitive=key.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(
                name=layer_name, value=None if key.is_sensitive else layer_value, source=layer_source
            )
            for layer_source, layer_name, layer_value in layers
        ]
        if request.include_synonyms
        else [],
        config_type=key.type,
        documentation=key.doc if request.include_documentation else None,
    )
