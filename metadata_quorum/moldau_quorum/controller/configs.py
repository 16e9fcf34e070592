"""Decisions about configurations: topics, brokers, and the default of all brokers (KIP-226, KIP-339)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from moldau.protocol.messages.alter_configs import AlterConfigsResourceResponse as FullResponse
from moldau.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from moldau.protocol.messages.incremental_alter_configs import AlterConfigsResourceResponse as IncrementalResponse
from moldau.runtime.config import (
    BROKER_CONFIG,
    TOPIC_CONFIG,
    ConfigKey,
    ConfigSchema,
    ConfigSource,
    ConfigType,
    DynamicScope,
)
from moldau_quorum.controller.config_checks import check_broker_config, check_topic_config
from moldau_quorum.controller.context import (
    MIN_INSYNC_REPLICAS,
    UNCLEAN_LEADER_ELECTION,
    Context,
    RefusedError,
    Result,
)
from moldau_quorum.controller.partitions import elect_leaderless, refresh_eligible
from moldau_quorum.image import RESOURCE_BROKER, RESOURCE_TOPIC, MetadataImage
from moldau_quorum.records import ConfigRecord, MetadataRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
RESOURCE_GROUP: Final = 32
RESOURCE_CLIENT_METRICS: Final = 16
CONFIG_VALUE_MAX: Final = 32_767


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveValue:
    """One value as it is in force, with where it comes from."""

    name: str
    value: str | None
    source: ConfigSource
    synonyms: tuple[tuple[str, str | None, ConfigSource], ...] = ()
    """Names and values that would apply one after the other, the present one first."""


def topic_values(overrides: Mapping[str, str], image: MetadataImage, context: Context) -> list[EffectiveValue]:
    """All values of a topic with the given overrides, sorted by name."""
    return [_topic_value(key, overrides, image, context) for _, key in sorted(TOPIC_CONFIG.keys.items())]


def _topic_value(
    key: ConfigKey, overrides: Mapping[str, str], image: MetadataImage, context: Context
) -> EffectiveValue:
    chain: list[tuple[str, str | None, ConfigSource]] = []
    if key.name in overrides:
        chain.append((key.name, overrides[key.name], ConfigSource.DYNAMIC_TOPIC))
    static = context.settings.broker_config
    for synonym in key.synonyms:
        dynamic = image.config(RESOURCE_BROKER, "").get(synonym.name)
        if dynamic is not None:
            chain.append((synonym.name, _scaled(dynamic, synonym.factor), ConfigSource.DYNAMIC_DEFAULT_BROKER))
    for synonym in key.synonyms:
        if static.is_set(synonym.name):
            text = static.text(synonym.name)
            chain.append((synonym.name, _scaled(text, synonym.factor), ConfigSource.STATIC_BROKER))
    chain.append((key.name, _default_text(key), ConfigSource.DEFAULT))
    first = chain[0]
    return EffectiveValue(name=key.name, value=first[1], source=first[2], synonyms=tuple(chain))


def _scaled(text: str | None, factor: int) -> str | None:
    if factor == 1 or text is None or int(text) < 0:
        return text
    return str(int(text) * factor)


def _default_text(key: ConfigKey) -> str | None:
    try:
        return key.format(key.parse(key.default))
    except ValueError:
        return None  # a key without a default


def _schema(resource_type: int) -> ConfigSchema:
    if resource_type == RESOURCE_TOPIC:
        return TOPIC_CONFIG
    if resource_type == RESOURCE_BROKER:
        return BROKER_CONFIG
    raise RefusedError(
        ErrorCode.INVALID_REQUEST, f"resources of type {resource_type} have no configuration here; 2 is topic, 4 broker"
    )


def _check_resource(resource_type: int, name: str, image: MetadataImage) -> None:
    _schema(resource_type)
    if resource_type == RESOURCE_TOPIC and name not in image.topics_by_name:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
    if resource_type == RESOURCE_BROKER and name and not (name.isascii() and name.isdecimal()):
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{name!r} is no broker id")


def _check_values(
    resource_type: int,
    name: str,
    before: Mapping[str, str],
    after: Mapping[str, str],
    named: Iterable[str],
    image: MetadataImage,
    context: Context,
) -> None:
    """Checks the outcome of a change; keys that the change does not touch are not held against it."""
    if resource_type == RESOURCE_TOPIC:
        check_topic_config(after, image, context, topic=name, before=before)
    else:
        check_broker_config(name, before, after, _changed_keys(before, after, named), image, context)


def _changed_keys(before: Mapping[str, str], after: Mapping[str, str], named: Iterable[str]) -> dict[str, None]:
    """The keys that a request names or changes."""
    keys = dict.fromkeys(named)
    keys.update(dict.fromkeys(key for key in [*before, *after] if before.get(key) != after.get(key)))
    return keys


def _records(
    resource_type: int, name: str, before: Mapping[str, str], after: Mapping[str, str]
) -> list[MetadataRecord]:
    changes = {key: after.get(key) for key in [*before, *after] if before.get(key) != after.get(key)}
    return [
        ConfigRecord(resource_type=resource_type, resource_name=name, name=key, value=changes[key])
        for key in sorted(changes)
    ]


def _take_over(records: list[MetadataRecord], more: list[MetadataRecord], image: MetadataImage) -> MetadataImage:
    """Adds the records of one resource; returns the image that the next one is judged by."""
    records.extend(more)
    return image.apply(more, offset=image.offset, epoch=image.epoch).image if more else image


def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, image: MetadataImage, context: Context
) -> Result[IncrementalAlterConfigsResponse]:
    """Changes single values; each resource succeeds or fails as a whole."""
    records: list[MetadataRecord] = []
    responses: list[IncrementalResponse] = []
    seen: dict[tuple[int, str], None] = {}
    present = image  # with what the resources before have changed
    for resource in request.resources:
        kind, name = resource.resource_type, resource.resource_name
        code, message = ErrorCode.NONE, None
        try:
            if (kind, name) in seen:
                raise RefusedError(ErrorCode.INVALID_REQUEST, "the resource appears twice in the request")
            seen[kind, name] = None
            _check_resource(kind, name, image)
            before = image.config(kind, name)
            after = _apply_operations(kind, before, resource.configs, context)
            _check_values(kind, name, before, after, (config.name for config in resource.configs), present, context)
            present = _take_over(records, _records(kind, name, before, after), present)
        except RefusedError as refusal:
            code, message = refusal.code, refusal.message
        responses.append(
            IncrementalResponse(error_code=code, error_message=message, resource_type=kind, resource_name=name)
        )
    records.extend(consequences(records, image, context))
    return Result(
        records=() if request.validate_only else tuple(records),
        response=IncrementalAlterConfigsResponse(responses=responses),
    )


def _apply_operations(
    resource_type: int, before: Mapping[str, str], operations: Sequence[AlterableConfig], context: Context
) -> dict[str, str]:
    after = dict(before)
    schema = _schema(resource_type)
    seen: dict[str, None] = {}
    for operation in operations:
        name = operation.name
        if name in seen:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"{name} appears twice for one resource")
        seen[name] = None
        if operation.config_operation == DELETE:
            after.pop(name, None)
            continue
        if operation.value is None:
            raise RefusedError(ErrorCode.INVALID_CONFIG, f"{name} has no value")
        if len(operation.value) > CONFIG_VALUE_MAX:
            raise RefusedError(ErrorCode.INVALID_CONFIG, f"the value of {name} is longer than {CONFIG_VALUE_MAX}")
        if operation.config_operation == SET:
            after[name] = operation.value
        elif operation.config_operation in (APPEND, SUBTRACT):
            after[name] = _change_list(schema, name, after.get(name), operation.config_operation, operation.value)
        else:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"operation {operation.config_operation} is unknown")
    return after


def _change_list(schema: ConfigSchema, name: str, present: str | None, operation: int, value: str) -> str:
    try:
        key = schema.key(name)
    except KeyError:
        raise RefusedError(ErrorCode.INVALID_CONFIG, schema.unknown(name)) from None
    if key.type is not ConfigType.LIST:
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"{name} is no list: nothing can be appended or subtracted")
    text = (_default_text(key) or "") if present is None else present
    elements = dict.fromkeys(part.strip() for part in text.split(",") if part.strip())
    for part in value.split(","):
        element = part.strip()
        if operation == APPEND and element:
            elements[element] = None
        else:
            elements.pop(element, None)
    return ",".join(elements)


def alter_configs(request: AlterConfigsRequest, image: MetadataImage, context: Context) -> Result[AlterConfigsResponse]:
    """Replaces whole configurations (KIP-133)."""
    records: list[MetadataRecord] = []
    responses: list[FullResponse] = []
    seen: dict[tuple[int, str], None] = {}
    present = image  # with what the resources before have changed
    for resource in request.resources:
        kind, name = resource.resource_type, resource.resource_name
        code, message = ErrorCode.NONE, None
        try:
            if (kind, name) in seen:
                raise RefusedError(ErrorCode.INVALID_REQUEST, "the resource appears twice in the request")
            seen[kind, name] = None
            _check_resource(kind, name, image)
            before = image.config(kind, name)
            after = {config.name: config.value for config in resource.configs if config.value is not None}
            _check_values(kind, name, before, after, after, present, context)
            present = _take_over(records, _records(kind, name, before, after), present)
        except RefusedError as refusal:
            code, message = refusal.code, refusal.message
        responses.append(FullResponse(error_code=code, error_message=message, resource_type=kind, resource_name=name))
    records.extend(consequences(records, image, context))
    return Result(
        records=() if request.validate_only else tuple(records), response=AlterConfigsResponse(responses=responses)
    )


def consequences(records: list[MetadataRecord], image: MetadataImage, context: Context) -> list[MetadataRecord]:
    """What follows for partitions, in the same command, when safety-relevant values change.

    A lower ``min.insync.replicas`` ends the promise of eligible leader replicas; a newly allowed unclean election may
    give leaderless partitions a leader.
    """
    topics: dict[str, None] = {}
    unclean = False
    for record in records:
        if not isinstance(record, ConfigRecord):
            continue
        if record.name == MIN_INSYNC_REPLICAS:
            names = [record.resource_name] if record.resource_type == RESOURCE_TOPIC else list(image.topics_by_name)
            topics.update(dict.fromkeys(names))
        if record.name == UNCLEAN_LEADER_ELECTION:
            unclean = True
    if not topics and not unclean:
        return []
    after = image.apply(records, offset=image.offset, epoch=image.epoch).image
    more = refresh_eligible(after, context, topics)
    if unclean:
        if more:
            after = after.apply(more, offset=image.offset, epoch=image.epoch).image
        more.extend(elect_leaderless(after, context))
    return more


def describe_configs(
    request: DescribeConfigsRequest, image: MetadataImage, context: Context
) -> Result[DescribeConfigsResponse]:
    """Reads values with their sources and synonyms; of a broker, what the quorum knows (its dynamic values).

    A broker answers for its own static values; the controller's static values stand in for those of the others.
    """
    results: list[DescribeConfigsResult] = []
    for resource in request.resources:
        try:
            values = _describe(resource, image, context)
        except RefusedError as refusal:
            results.append(
                DescribeConfigsResult(
                    error_code=refusal.code,
                    error_message=refusal.message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
            continue
        schema = _schema(resource.resource_type)
        results.append(
            DescribeConfigsResult(
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=[_described(schema.key(value.name), value, request) for value in values],
            )
        )
    return Result(response=DescribeConfigsResponse(results=results))


def _describe(resource: DescribeConfigsResource, image: MetadataImage, context: Context) -> list[EffectiveValue]:
    kind, name = resource.resource_type, resource.resource_name
    _check_resource(kind, name, image)
    if kind == RESOURCE_TOPIC:
        values = topic_values(image.config(kind, name), image, context)
    else:
        values = broker_values(name, image, context)
    if resource.configuration_keys:
        wanted = dict.fromkeys(resource.configuration_keys)
        values = [value for value in values if value.name in wanted]
    return values


def broker_values(name: str, image: MetadataImage, context: Context) -> list[EffectiveValue]:
    """All values of a broker, or with an empty name the dynamic defaults of all brokers, sorted by name."""
    own = image.config(RESOURCE_BROKER, name) if name else {}
    default = image.config(RESOURCE_BROKER, "")
    static = context.settings.broker_config
    values: list[EffectiveValue] = []
    for key_name, key in sorted(BROKER_CONFIG.keys.items()):
        chain: list[tuple[str, str | None, ConfigSource]] = []
        if key_name in own:
            chain.append((key_name, own[key_name], ConfigSource.DYNAMIC_BROKER))
        if key_name in default:
            chain.append((key_name, default[key_name], ConfigSource.DYNAMIC_DEFAULT_BROKER))
        if not name and not chain:
            continue
        if name and static.is_set(key_name):
            chain.append((key_name, static.text(key_name), ConfigSource.STATIC_BROKER))
        chain.append((key_name, _default_text(key), ConfigSource.DEFAULT))
        values.append(EffectiveValue(name=key_name, value=chain[0][1], source=chain[0][2], synonyms=tuple(chain)))
    return values


def _described(key: ConfigKey, value: EffectiveValue, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    hidden = key.is_sensitive
    synonyms = value.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=value.name,
        value=None if hidden else value.value,
        read_only=value.source is not ConfigSource.DYNAMIC_TOPIC
        and key.name in BROKER_CONFIG.keys
        and key.name not in TOPIC_CONFIG.keys
        and key.dynamic is DynamicScope.READ_ONLY,
        config_source=value.source,
        is_sensitive=hidden,
        synonyms=[
            DescribeConfigsSynonym(name=name, value=None if hidden else text, source=source)
            for name, text, source in synonyms
        ],
        config_type=int(key.type),
        documentation=key.doc if request.include_documentation else None,
    )
