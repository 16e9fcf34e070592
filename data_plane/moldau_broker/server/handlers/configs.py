"""DescribeConfigs and ListConfigResources (KIP-1142).

DescribeConfigs returns the keys of a resource, each with its value, the source of the value, and its fallbacks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from moldau.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from moldau.protocol.refusals import refusal_of
from moldau.runtime.config import (
    BROKER_CONFIG,
    REQUIRED,
    ConfigKey,
    ConfigSource,
    DynamicScope,
)
from moldau_quorum.controller.context import RefusedError
from moldau_quorum.controller.entities.config_kinds import OVERRIDE_KINDS, check_resource, default_layer
from moldau_quorum.controller.entities.configs import RESOURCES_PER_TURN, merged_resources
from moldau_quorum.metadata.image import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau.runtime.config import Config
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.handlers.context import Call
    from moldau_broker.server.lifecycle.dynamic_config import DynamicConfig
    from moldau_quorum.controller.entities.config_kinds import OverrideKind
    from moldau_quorum.controller.entities.loggers import NodeLoggers
    from moldau_quorum.metadata.image import MetadataImage

_LISTED = (RESOURCE_TOPIC, RESOURCE_BROKER, RESOURCE_BROKER_LOGGER, RESOURCE_CLIENT_METRICS, RESOURCE_GROUP)
_DEFAULT_BROKER = ""
Layer = tuple[ConfigSource, str, str | None]
"""Source, key and value of one layer of configuration."""
_Described = tuple[ConfigKey, str | None, list[Layer], bool]
"""A key, its value, its layers, and whether the key is read-only.

The layer in force comes first; there is none for a default without a broker key.
"""


class ConfigsContext(Protocol):
    """The parts of a broker needed for describing configurations."""

    @property
    def broker_id(self) -> int: ...
    @property
    def loggers(self) -> NodeLoggers: ...
    @property
    def config(self) -> Config: ...
    @property
    def static_config(self) -> Config: ...
    @property
    def dynamic(self) -> DynamicConfig: ...
    @property
    def metadata(self) -> MetadataCache: ...


async def handle_describe_configs(
    context: ConfigsContext, request: DescribeConfigsRequest, call: Call
) -> DescribeConfigsResponse:
    """Describes topics, groups, client metrics, and this broker; other brokers describe themselves.

    A resource that is named more than once is answered once, because a broker's description takes megabytes. Other
    tasks run between the resources.
    """
    results: list[DescribeConfigsResult] = []
    for number, resource in enumerate(merged_resources(request.resources), start=1):
        if number % RESOURCES_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
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


def handle_list_config_resources(
    context: ConfigsContext, request: ListConfigResourcesRequest, call: Call
) -> ListConfigResourcesResponse:
    """Lists all topics and brokers, and the groups and metrics subscriptions that have a configuration.

    Version 0 lists subscriptions only; an empty list of types means all.
    """
    wanted = [RESOURCE_CLIENT_METRICS] if call.version == 0 else list(dict.fromkeys(request.resource_types))
    if any(kind not in _LISTED for kind in wanted):
        return refusal_of(ListConfigResourcesResponse, request, ErrorCode.UNSUPPORTED_VERSION, version=call.version)
    image = context.metadata.image
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in wanted or _LISTED
            for name in _resource_names(image, kind)
        ]
    )


def _resource_names(image: MetadataImage, kind: int) -> list[str]:
    if kind == RESOURCE_TOPIC:
        return sorted(image.topics_by_name)
    if kind in (RESOURCE_BROKER, RESOURCE_BROKER_LOGGER):
        return [str(broker_id) for broker_id in sorted(image.brokers)]
    return sorted(name for resource_type, name in image.configs if resource_type == kind)


def _describe(
    context: ConfigsContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    name = resource.resource_name
    image = context.metadata.image
    if resource.resource_type == RESOURCE_BROKER_LOGGER:
        return context.loggers.describe(name, resource.configuration_keys)
    if resource.resource_type in OVERRIDE_KINDS:
        try:
            check_resource(resource.resource_type, name, image)
        except RefusedError as refusal:
            raise KafkaError(refusal.code, refusal.message) from refusal
        kind = OVERRIDE_KINDS[resource.resource_type]
        described = _overridable(context, kind, image.config(resource.resource_type, name))
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
        _result(key, value, layers, request, read_only=read_only)
        for key, value, layers, read_only in described
        if wanted is None or key.name in wanted
    ]


def _text(key: ConfigKey, value: str) -> str | None:
    """Returns the value in canonical form; unchanged if it cannot be parsed."""
    try:
        return key.format(key.parse(value))
    except ValueError:
        return value


def _overridable(context: ConfigsContext, kind: OverrideKind, overrides: Mapping[str, str]) -> Iterable[_Described]:
    for key in kind.schema.keys.values():
        layers: list[Layer] = []
        values: list[str | None] = []  # of the layers, in the unit of the key
        if key.name in overrides:
            layers.append((kind.source, key.name, _text(key, overrides[key.name])))
            values.append(layers[0][2])
        for synonym in key.synonyms:
            found = [layer for layer in _broker_layers(context, synonym.name) if layer[0] is not ConfigSource.DEFAULT]
            layers += found
            values += [synonym.converted(text) for _, _, text in found]
        if key.default is not REQUIRED:
            default = default_layer(key, [name for _, name, _ in layers])
            if kind.source is ConfigSource.DYNAMIC_GROUP and not key.synonyms:
                default = key.name, key.format(key.default)  # in Kafka such a key of groups is its own synonym
            layers += [] if default is None else [(ConfigSource.DEFAULT, *default)]
            values.append(key.format(key.default))
        yield key, values[0], layers, False


def _broker(context: ConfigsContext, name: str) -> Iterable[_Described]:
    # Keys of single listeners (listener.name.inside.ssl.client.auth) exist only where they are set.
    for key_name in dict.fromkeys((*BROKER_CONFIG.keys, *context.static_config, *context.config)):
        key = BROKER_CONFIG.key(key_name)
        layers = _broker_layers(context, key_name)
        if name == _DEFAULT_BROKER:
            # The key of a listener falls back to the plain key; only the one that is set is a default.
            layers = [layer for layer in layers if layer[:2] == (ConfigSource.DYNAMIC_DEFAULT_BROKER, key_name)]
            if not layers:
                continue
        yield replace(key, name=key_name), layers[0][2], layers, key.dynamic is DynamicScope.READ_ONLY


def _broker_layers(context: ConfigsContext, name: str) -> list[Layer]:
    """Returns the layers of a broker key, the one in force first, without values that were left out."""
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
        layers += _broker_layers(context, key.name)  # the fallback of a listener's key
    elif key.default is not REQUIRED:
        layers.append((ConfigSource.DEFAULT, name, key.format(key.default)))
    return layers


def _result(
    key: ConfigKey, value: str | None, layers: list[Layer], request: DescribeConfigsRequest, *, read_only: bool
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=key.name,
        value=None if key.is_sensitive else value,
        read_only=read_only,
        config_source=layers[0][0] if layers else ConfigSource.DEFAULT,
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
