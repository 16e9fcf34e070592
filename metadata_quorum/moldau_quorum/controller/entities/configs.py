"""Decisions about configurations: topics, brokers, and the default of all brokers (KIP-226, KIP-339)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from moldau.protocol.messages.alter_configs import AlterConfigsResource as FullResource
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
from moldau.protocol.messages.incremental_alter_configs import AlterConfigsResource as IncrementalResource
from moldau.protocol.messages.incremental_alter_configs import AlterConfigsResourceResponse as IncrementalResponse
from moldau.protocol.refusals import refusal_of
from moldau.runtime.config import (
    BROKER_CONFIG,
    TOPIC_CONFIG,
    ConfigKey,
    ConfigSchema,
    ConfigSource,
    ConfigType,
    DynamicScope,
)
from moldau.values import list_elements
from moldau_quorum.controller.context import (
    MIN_INSYNC_REPLICAS,
    UNCLEAN_LEADER_ELECTION,
    Context,
    DecisionView,
    RefusedError,
    Result,
)
from moldau_quorum.controller.entities.config_checks import check_broker_config, check_plain_config, check_topic_config
from moldau_quorum.controller.entities.config_kinds import OVERRIDE_KINDS, check_known, check_resource, schema_of
from moldau_quorum.controller.partitions import refresh_eligible
from moldau_quorum.controller.walks import elect_leaderless
from moldau_quorum.metadata.image import RESOURCE_BROKER, RESOURCE_TOPIC, MetadataImage
from moldau_quorum.metadata.records import ConfigRecord, MetadataRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
CONFIG_VALUE_MAX: Final = 32_767
"""Maximum length of a value in bytes; the wire format cannot describe a longer one."""
RESOURCES_PER_REQUEST_MAX: Final = 10_000
"""Number of resources that one request may change; the controller decides nothing else meanwhile."""
CONFIGS_PER_RESOURCE_MAX: Final = 1_000
"""Number of keys that one request may name for one resource; there are some hundreds."""
ResourceT = TypeVar("ResourceT", FullResource, IncrementalResource)


class Outcome(NamedTuple):
    """The result of a change of one resource."""

    resource_type: int
    resource_name: str
    code: ErrorCode
    message: str | None


_OVERRIDE_SOURCES: Final = frozenset(kind.source for kind in OVERRIDE_KINDS.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveValue:
    """One effective value and its source."""

    name: str
    value: str | None
    source: ConfigSource
    synonyms: tuple[tuple[str, str | None, ConfigSource], ...] = ()
    """Names and values in order of precedence, the effective one first."""


def topic_values(overrides: Mapping[str, str], image: MetadataImage, context: Context) -> list[EffectiveValue]:
    """Returns all values of a topic with the given overrides, sorted by name."""
    return override_values(RESOURCE_TOPIC, overrides, image, context)


def override_values(
    resource_type: int, overrides: Mapping[str, str], image: MetadataImage, context: Context
) -> list[EffectiveValue]:
    """Returns all values of a resource of ``OVERRIDE_KINDS`` with the given overrides, sorted by name."""
    kind = OVERRIDE_KINDS[resource_type]
    return [_override_value(key, kind.source, overrides, image, context) for _, key in sorted(kind.schema.keys.items())]


def _override_value(
    key: ConfigKey, source: ConfigSource, overrides: Mapping[str, str], image: MetadataImage, context: Context
) -> EffectiveValue:
    chain: list[tuple[str, str | None, ConfigSource]] = []
    if key.name in overrides:
        chain.append((key.name, overrides[key.name], source))
    static = context.settings.broker_config
    for synonym in key.synonyms:
        dynamic = image.config(RESOURCE_BROKER, "").get(synonym.name)
        if dynamic is not None:
            chain.append((synonym.name, synonym.converted(dynamic), ConfigSource.DYNAMIC_DEFAULT_BROKER))
    chain += [
        (synonym.name, synonym.converted(static.text(synonym.name)), ConfigSource.STATIC_BROKER)
        for synonym in key.synonyms
        if static.is_set(synonym.name)
    ]
    chain.append((key.name, _default_text(key), ConfigSource.DEFAULT))
    first = chain[0]
    return EffectiveValue(name=key.name, value=first[1], source=first[2], synonyms=tuple(chain))


def _default_text(key: ConfigKey) -> str | None:
    try:
        return key.format(key.parse(key.default))
    except ValueError:
        return None  # a key without a default


def _check_values(
    resource_type: int,
    name: str,
    before: Mapping[str, str],
    after: Mapping[str, str],
    named: Iterable[str],
    image: MetadataImage,
    context: Context,
) -> None:
    """Checks the result of a change; faults of keys that it does not touch do not block it."""
    if resource_type == RESOURCE_TOPIC:
        check_topic_config(after, image, context, topic=name, before=before)
    elif resource_type in OVERRIDE_KINDS:
        check_plain_config(resource_type, after, context)
    else:
        check_broker_config(name, before, after, _changed_keys(before, after, named), image, context)


def _changed_keys(before: Mapping[str, str], after: Mapping[str, str], named: Iterable[str]) -> dict[str, None]:
    """Returns the keys that a request names or changes."""
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


def _change_each(
    resources: Sequence[ResourceT],
    change: Callable[[int, Mapping[str, str], ResourceT], tuple[Mapping[str, str], Iterable[str]]],
    image: MetadataImage,
    context: Context,
) -> tuple[list[MetadataRecord], list[Outcome]]:
    """Changes the configurations of resources; each succeeds or fails as a whole.

    ``change`` returns the values of a resource after the request, and the keys that the request names. Returns the
    records of all changes, and the outcome of each resource.
    """
    records: list[MetadataRecord] = []
    outcomes: list[Outcome] = []
    seen: dict[tuple[int, str], None] = {}
    present = image  # includes the changes of earlier resources
    for resource in resources:
        kind, name = resource.resource_type, resource.resource_name
        code, message = ErrorCode.NONE, None
        try:
            if (kind, name) in seen:
                raise RefusedError(ErrorCode.INVALID_REQUEST, "the resource appears twice in the request")
            seen[kind, name] = None
            check_resource(kind, name, image)
            _check_count(len(resource.configs))
            before = image.config(kind, name)
            after, named = change(kind, before, resource)
            _check_values(kind, name, before, after, named, present, context)
            more = _records(kind, name, before, after)
            records += more
            if more:
                present = present.apply(more, offset=present.offset, epoch=present.epoch).image
        except RefusedError as refusal:
            code, message = refusal.code, refusal.message
        outcomes.append(Outcome(kind, name, code, message))
    return records, outcomes


def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, image: MetadataImage, context: Context
) -> Result[IncrementalAlterConfigsResponse]:
    """Changes single values; each resource succeeds or fails as a whole."""
    too_many = too_many_resources(len(request.resources))
    if too_many is not None:
        return Result(
            response=refusal_of(IncrementalAlterConfigsResponse, request, ErrorCode.POLICY_VIOLATION, too_many)
        )

    def altered(
        kind: int, before: Mapping[str, str], resource: IncrementalResource
    ) -> tuple[Mapping[str, str], Iterable[str]]:
        after = _apply_operations(kind, before, resource.configs, context)
        return after, (config.name for config in resource.configs)

    records, outcomes = _change_each(request.resources, altered, image, context)
    responses = [
        IncrementalResponse(error_code=code, error_message=message, resource_type=kind, resource_name=name)
        for kind, name, code, message in outcomes
    ]
    return Result(
        response=IncrementalAlterConfigsResponse(responses=responses),
        steps=None if request.validate_only else lambda view: with_consequences(records, view),
    )


def _apply_operations(
    resource_type: int, before: Mapping[str, str], operations: Sequence[AlterableConfig], context: Context
) -> dict[str, str]:
    after = dict(before)
    schema = schema_of(resource_type)
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
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"{name} has no value")
        check_known(schema, name, before)
        if operation.config_operation == SET:
            value = operation.value
        elif operation.config_operation in (APPEND, SUBTRACT):
            value = _change_list(schema, name, after.get(name), operation.config_operation, operation.value)
        else:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"operation {operation.config_operation} is unknown")
        if len(value.encode()) > CONFIG_VALUE_MAX:
            raise RefusedError(ErrorCode.INVALID_CONFIG, f"the value of {name} would be longer than {CONFIG_VALUE_MAX}")
        after[name] = value
    return after


def _check_count(count: int) -> None:
    if count > CONFIGS_PER_RESOURCE_MAX:
        message = f"a request names at most {CONFIGS_PER_RESOURCE_MAX} keys of one resource, not {count}"
        raise RefusedError(ErrorCode.POLICY_VIOLATION, message)


def too_many_resources(count: int) -> str | None:
    """Returns why a request cannot change so many resources; None if it can."""
    if count <= RESOURCES_PER_REQUEST_MAX:
        return None
    return f"a request changes at most {RESOURCES_PER_REQUEST_MAX} resources, not {count}: split it"


def _change_list(schema: ConfigSchema, name: str, present: str | None, operation: int, value: str) -> str:
    key = schema.key(name)
    if key.type is not ConfigType.LIST:
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"{name} is not a list: nothing can be appended or subtracted")
    text = (_default_text(key) or "") if present is None else present
    elements = dict.fromkeys(list_elements(text))
    for part in value.split(","):
        element = part.strip()
        if operation == APPEND and element:
            elements[element] = None
        else:
            elements.pop(element, None)
    return ",".join(elements)


def alter_configs(request: AlterConfigsRequest, image: MetadataImage, context: Context) -> Result[AlterConfigsResponse]:
    """Replaces whole configurations (KIP-133)."""
    too_many = too_many_resources(len(request.resources))
    if too_many is not None:
        return Result(response=refusal_of(AlterConfigsResponse, request, ErrorCode.POLICY_VIOLATION, too_many))

    def replaced(
        kind: int, before: Mapping[str, str], resource: FullResource
    ) -> tuple[Mapping[str, str], Iterable[str]]:
        after: dict[str, str] = {}
        for config in resource.configs:
            if config.value is None:
                raise RefusedError(ErrorCode.INVALID_REQUEST, f"{config.name} has no value")
            if config.name in after:
                raise RefusedError(ErrorCode.INVALID_REQUEST, f"{config.name} appears twice for one resource")
            check_known(schema_of(kind), config.name, before)
            after[config.name] = config.value
        return after, after

    records, outcomes = _change_each(request.resources, replaced, image, context)
    responses = [
        FullResponse(error_code=code, error_message=message, resource_type=kind, resource_name=name)
        for kind, name, code, message in outcomes
    ]
    return Result(
        response=AlterConfigsResponse(responses=responses),
        steps=None if request.validate_only else lambda view: with_consequences(records, view),
    )


def with_consequences(records: list[MetadataRecord], view: DecisionView) -> Iterator[list[MetadataRecord]]:
    """Yields configuration records, followed by the changes of partitions that they lead to.

    A lower ``min.insync.replicas`` may remove eligible leader replicas: these changes are in the same command, because
    a leader may apply the value at once. Newly allowed unclean elections may give leaderless partitions a leader.
    """
    image, context = view.image, view.context
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
        yield records
        return
    after = image.apply(records, offset=image.offset, epoch=image.epoch).image
    more = refresh_eligible(after, context, topics)
    if not unclean:
        yield [*records, *more]
        return
    if more:
        after = after.apply(more, offset=image.offset, epoch=image.epoch).image
    ahead = DecisionView(image=after, context=context)  # the first slice is decided as if its records were replayed
    elections = elect_leaderless(ahead, first=[*records, *more])
    while True:
        try:
            elected = next(elections)
        except StopIteration as end:
            yield end.value
            return
        yield elected
        ahead.image = view.image


def describe_configs(
    request: DescribeConfigsRequest, image: MetadataImage, context: Context
) -> Result[DescribeConfigsResponse]:
    """Returns values with their sources and synonyms; for a broker, those that the quorum knows (dynamic values).

    Only the broker itself knows its static values; the controller's static values stand in for them here.
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
        schema = schema_of(resource.resource_type)
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
    check_resource(kind, name, image)
    if kind in OVERRIDE_KINDS:
        values = override_values(kind, image.config(kind, name), image, context)
    else:
        values = broker_values(name, image, context)
    if resource.configuration_keys:
        wanted = dict.fromkeys(resource.configuration_keys)
        values = [value for value in values if value.name in wanted]
    return values


def broker_values(name: str, image: MetadataImage, context: Context) -> list[EffectiveValue]:
    """Returns all values of a broker, or the dynamic defaults of all brokers if ``name`` is empty, sorted by name."""
    own = image.config(RESOURCE_BROKER, name) if name else {}
    default = image.config(RESOURCE_BROKER, "")
    static = context.settings.broker_config
    values: list[EffectiveValue] = []
    for key_name in sorted({*BROKER_CONFIG.keys, *own, *default, *(static.explicit() if name else ())}):
        try:
            key = BROKER_CONFIG.key(key_name)
        except KeyError:
            continue  # a key of another version of Moldau
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
        read_only=value.source not in _OVERRIDE_SOURCES
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
