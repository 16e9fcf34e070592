"""The types of resources that have a configuration in the metadata: their keys, sources and valid names.

Topics, groups and client metrics subscriptions override the brokers' values; a broker's dynamic values override its own
file. Logger levels are not in the metadata: each broker changes its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.runtime.config import (
    BROKER_CONFIG,
    CLIENT_METRICS_CONFIG,
    GROUP_CONFIG,
    REQUIRED,
    TOPIC_CONFIG,
    ConfigSchema,
    ConfigSource,
    ConfigType,
)
from moldau_quorum.controller.context import RefusedError
from moldau_quorum.controller.topic_names import check_topic_name
from moldau_quorum.metadata.image import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    MetadataImage,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from moldau.runtime.config import ConfigKey

NODE_ID_DIGITS_MAX: Final = 10
IP_OVERRIDES: Final = "max.connections.per.ip.overrides"
"""A list whose empty elements count for nothing in Kafka, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideKind:
    """A type of resource whose keys fall back to keys of brokers."""

    schema: ConfigSchema
    source: ConfigSource
    """The source of values that are set for the resource itself."""


OVERRIDE_KINDS: Final[Mapping[int, OverrideKind]] = {
    RESOURCE_TOPIC: OverrideKind(schema=TOPIC_CONFIG, source=ConfigSource.DYNAMIC_TOPIC),
    RESOURCE_GROUP: OverrideKind(schema=GROUP_CONFIG, source=ConfigSource.DYNAMIC_GROUP),
    RESOURCE_CLIENT_METRICS: OverrideKind(schema=CLIENT_METRICS_CONFIG, source=ConfigSource.DYNAMIC_CLIENT_METRICS),
}


def default_layer(key: ConfigKey, shown: Collection[str]) -> tuple[str, str | None] | None:
    """Returns name and value of the broker key whose default is that of a key.

    None if the key falls back to none, or first to one without a default, such as ``log.retention.ms``: Kafka shows the
    default of another one then only if the first is ``shown``, because it is set.
    """
    for synonym in key.synonyms:
        fallback = BROKER_CONFIG.key(synonym.name)
        if fallback.default is not None and fallback.default is not REQUIRED:
            return fallback.name, fallback.format(fallback.default)
        if key.synonyms[0].name not in shown:
            break
    return None


def schema_of(resource_type: int) -> ConfigSchema:
    """Returns the schema of a type of resource.

    Raises:
        RefusedError: the configuration of this type is not in the metadata.
    """
    if resource_type == RESOURCE_BROKER:
        return BROKER_CONFIG
    if resource_type in OVERRIDE_KINDS:
        return OVERRIDE_KINDS[resource_type].schema
    if resource_type == RESOURCE_BROKER_LOGGER:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "levels of loggers are changed at their node, key by key")
    raise RefusedError(
        ErrorCode.INVALID_REQUEST,
        f"resources of type {resource_type} have no configuration; "
        "2 is topic, 4 broker, 8 broker logger, 16 client metrics, 32 group",
    )


def check_resource(resource_type: int, name: str, image: MetadataImage, *, is_change: bool = False) -> None:
    """Checks that a resource can have a configuration in the metadata.

    A topic without a name is refused as a bad one when it is described, and as the default of all topics, which does
    not exist, when it is to change, as in Kafka.

    Raises:
        RefusedError: it cannot.
    """
    schema_of(resource_type)
    if resource_type == RESOURCE_TOPIC and name not in image.topics_by_name:
        if is_change and not name:
            raise RefusedError(ErrorCode.INVALID_REQUEST, "the name of the topic is empty; there is no default of all")
        check_topic_name(name)
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
    if resource_type == RESOURCE_BROKER and name:
        _check_node(name, image)
    if resource_type in (RESOURCE_GROUP, RESOURCE_CLIENT_METRICS) and not name:
        what = "group" if resource_type == RESOURCE_GROUP else "client metrics subscription"
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"the name of the {what} is empty; there is no default of all")


def _check_node(name: str, image: MetadataImage) -> None:
    if len(name) > NODE_ID_DIGITS_MAX or not (name.isascii() and name.isdecimal()) or name != str(int(name)):
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{name!r} is no broker id")
    is_known = int(name) in image.brokers or int(name) in image.controllers
    if not is_known and not image.config(RESOURCE_BROKER, name):
        raise RefusedError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"no node with id {name} is registered")


def check_elements(schema: ConfigSchema, name: str, value: str) -> None:
    """Checks that a list that is set has no empty elements; values that were stored before keep theirs.

    Raises:
        RefusedError: INVALID_CONFIG.
    """
    if name == IP_OVERRIDES or not value.strip() or all(element.strip() for element in value.split(",")):
        return
    try:
        key = schema.key(name)
    except KeyError:
        return  # refused as unknown, or kept from another version
    if key.type is ConfigType.LIST:
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"{name} = {value!r}: an element of the list is empty")


def check_known(schema: ConfigSchema, name: str, before: Mapping[str, str]) -> None:
    """Checks that a key is known or is set already.

    The check comes before all others, so that the search for the nearest known key runs at most once per resource.

    Raises:
        RefusedError: INVALID_CONFIG.
    """
    try:
        schema.key(name)
    except KeyError:
        if name not in before:
            raise RefusedError(ErrorCode.INVALID_CONFIG, schema.unknown(name)) from None
