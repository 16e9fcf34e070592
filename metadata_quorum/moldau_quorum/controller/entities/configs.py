"""Decisions about configurations: topics, brokers, and the default of all brokers (KIP-226, KIP-339)."""

from __future__ import annotations

from collections import Counter
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
from moldau_quorum.controller.cluster.features import check_queue
from moldau_quorum.controller.context import (
    MIN_INSYNC_REPLICAS,
    SLICE_RECORDS,
    UNCLEAN_LEADER_ELECTION,
    Context,
    DecisionView,
    RefusedError,
    Result,
)
from moldau_quorum.controller.entities.config_checks import check_broker_config, check_plain_config, check_topic_config
from moldau_quorum.controller.entities.config_kinds import (
    OVERRIDE_KINDS,
    check_elements,
    check_known,
    check_resource,
    default_layer,
    schema_of,
)
from moldau_quorum.controller.partitions import refresh_eligible
from moldau_quorum.controller.walks import elect_leaderless, with_last
from moldau_quorum.metadata.image import RESOURCE_BROKER, RESOURCE_GROUP, RESOURCE_TOPIC, MetadataImage
from moldau_quorum.metadata.records import ConfigRecord, MetadataRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
CONFIG_VALUE_MAX: Final = 32_767
"""Maximum length of a value in bytes; the wire format cannot describe a longer one."""
RESOURCES_PER_REQUEST_MAX: Final = 10_000
"""Number of resources that one request may change; the controller decides nothing else meanwhile."""
SLICE_LENGTH: Final = 256 * 1024
"""Characters of values after which a slice of changes ends: some hundred long values exceed the bound of one entry."""
CHECK_RECORDS: Final = 5
"""Records whose replay takes as long as the check of a topic's values. A broker's may be checked with all topics."""
RESOURCES_PER_TURN: Final = 20
"""Resources that are described between two checkpoints; each takes some hundred microseconds."""
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
    """Names and values in order of precedence, the effective one first; values in the units of their names."""


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
            chain.append((synonym.name, dynamic, ConfigSource.DYNAMIC_DEFAULT_BROKER))
    chain += [
        (synonym.name, static.text(synonym.name), ConfigSource.STATIC_BROKER)
        for synonym in key.synonyms
        if static.is_set(synonym.name)
    ]
    default = default_layer(key, [name for name, _, _ in chain])
    if default is not None:
        chain.append((*default, ConfigSource.DEFAULT))
    name, text, layer = chain[0] if chain else (key.name, _default_text(key), ConfigSource.DEFAULT)
    unit = next((synonym for synonym in key.synonyms if synonym.name == name), None)
    value = text if unit is None else unit.converted(text)
    return EffectiveValue(name=key.name, value=value, source=layer, synonyms=tuple(chain))


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
        if resource_type == RESOURCE_GROUP:
            check_queue(before, after, image)
    else:
        check_broker_config(name, before, after, _changed_keys(before, after, named), image, context)


def _changed_keys(before: Mapping[str, str], after: Mapping[str, str], named: Iterable[str]) -> dict[str, None]:
    """Returns the keys that a request names or changes."""
    keys = dict.fromkeys(named)
    keys.update(dict.fromkeys(key for key in [*before, *after] if before.get(key) != after.get(key)))
    return keys


def _records(resource_type: int, name: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[ConfigRecord]:
    changes = {key: after.get(key) for key in [*before, *after] if before.get(key) != after.get(key)}
    return [
        ConfigRecord(resource_type=resource_type, resource_name=name, name=key, value=changes[key])
        for key in sorted(changes)
    ]


class _Checks:
    """Checks the resources of a request, each on the image with the changes of the earlier ones.

    The values of all other resources are checked against those of brokers, and only the values of brokers against those
    of others. So the image is renewed only for and after changes of brokers, because that takes as long as a decision,
    and resources that change alike are checked once.
    """

    def __init__(self, image: MetadataImage, context: Context) -> None:
        self._image = image
        self._context = context
        self._changes: list[MetadataRecord] = []
        self._changes_brokers = False
        self._valid: set[tuple[object, ...]] = set()

    def check(
        self,
        resource_type: int,
        name: str,
        before: Mapping[str, str],
        after: Mapping[str, str],
        named: Iterable[str],
    ) -> int:
        """Checks the result of a change; returns the work that this was, in records.

        Raises:
            RefusedError: it is not valid.
        """
        is_broker = resource_type == RESOURCE_BROKER
        if self._changes and (is_broker or self._changes_brokers):
            image = self._image
            self._image = image.apply(self._changes, offset=image.offset, epoch=image.epoch).image
            self._changes, self._changes_brokers = [], False
            self._valid.clear()
        alike = (resource_type, tuple(before.items()), tuple(after.items()))
        if not is_broker and alike in self._valid:
            return 1
        _check_values(resource_type, name, before, after, named, self._image, self._context)
        self._valid.add(alike)
        return SLICE_RECORDS if is_broker else CHECK_RECORDS

    def add(self, changes: Iterable[MetadataRecord], resource_type: int) -> None:
        """Adds the changes of a resource."""
        self._changes += changes
        self._changes_brokers = self._changes_brokers or resource_type == RESOURCE_BROKER


def _change_each(
    resources: Sequence[ResourceT],
    change: Callable[[int, Mapping[str, str], ResourceT], tuple[Mapping[str, str], Iterable[str]]],
    note: Callable[[Outcome], None],
    view: DecisionView,
    *,
    validate_only: bool,
) -> Iterator[list[MetadataRecord]]:
    """Yields the changes of the configurations of whole resources; each succeeds or fails as a whole.

    ``change`` returns the values of a resource after the request, and the keys that the request names. ``note`` takes
    the outcome of each resource.
    """
    records: list[MetadataRecord] = []
    named_times = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    checks = _Checks(view.image, view.context)
    work = length = 0
    allows_unclean = False
    for resource in resources:
        if work >= SLICE_RECORDS or length >= SLICE_LENGTH:
            yield records if validate_only else _with_eligible(records, view)
            records, work, length = [], 0, 0
            if not validate_only:
                checks = _Checks(view.image, view.context)
        kind, name = resource.resource_type, resource.resource_name
        work += 1 + len(resource.configs)
        code, message = ErrorCode.NONE, None
        try:
            if named_times[kind, name] > 1:  # no order between them is certain, so none is done
                raise RefusedError(ErrorCode.INVALID_REQUEST, "the resource appears twice in the request")
            check_resource(kind, name, view.image, is_change=True)
            _check_count(len(resource.configs))
            before = view.image.config(kind, name)
            after, named = change(kind, before, resource)
            work += checks.check(kind, name, before, after, named)
            changes = _records(kind, name, before, after)
            checks.add(changes, kind)
            if not validate_only:
                records += changes
            length += sum(len(each.value or "") for each in changes)
            allows_unclean = allows_unclean or any(each.name == UNCLEAN_LEADER_ELECTION for each in changes)
        except RefusedError as refusal:
            code, message = refusal.code, refusal.message
            work += CHECK_RECORDS  # a text that names what is wrong takes as long
        note(Outcome(kind, name, code, message))
    if validate_only:
        return
    yield _with_eligible(records, view)
    if allows_unclean:
        yield from with_last(elect_leaderless(view))


def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, image: MetadataImage, context: Context
) -> Result[IncrementalAlterConfigsResponse]:
    """Changes single values; each resource succeeds or fails as a whole."""
    too_many = too_many_resources(len(request.resources))
    if too_many is not None:
        return Result(
            response=refusal_of(IncrementalAlterConfigsResponse, request, ErrorCode.POLICY_VIOLATION, too_many)
        )
    responses: list[IncrementalResponse] = []

    def altered(
        kind: int, before: Mapping[str, str], resource: IncrementalResource
    ) -> tuple[Mapping[str, str], Iterable[str]]:
        after = apply_operations(kind, before, resource.configs)
        return after, (config.name for config in resource.configs)

    def note(outcome: Outcome) -> None:
        kind, name, code, message = outcome
        responses.append(
            IncrementalResponse(error_code=code, error_message=message, resource_type=kind, resource_name=name)
        )

    return Result(
        response=IncrementalAlterConfigsResponse(responses=responses),
        steps=lambda view: _change_each(request.resources, altered, note, view, validate_only=request.validate_only),
    )


def apply_operations(
    resource_type: int, before: Mapping[str, str], operations: Sequence[AlterableConfig]
) -> dict[str, str]:
    """Returns the values of a resource after the operations of IncrementalAlterConfigs.

    Raises:
        RefusedError: an operation is not possible.
    """
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
            check_elements(schema, name, value)
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
    responses: list[FullResponse] = []

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
            check_elements(schema_of(kind), config.name, config.value)
            after[config.name] = config.value
        return after, after

    def note(outcome: Outcome) -> None:
        kind, name, code, message = outcome
        responses.append(FullResponse(error_code=code, error_message=message, resource_type=kind, resource_name=name))

    return Result(
        response=AlterConfigsResponse(responses=responses),
        steps=lambda view: _change_each(request.resources, replaced, note, view, validate_only=request.validate_only),
    )


def _with_eligible(records: list[MetadataRecord], view: DecisionView) -> list[MetadataRecord]:
    """Returns configuration records, followed by the changes of eligible leader replicas that they lead to.

    A lower ``min.insync.replicas`` may remove such replicas: these changes are in the same command, because a leader
    may apply the value at once.
    """
    image = view.image
    topics: dict[str, None] = {}
    for record in records:
        if isinstance(record, ConfigRecord) and record.name == MIN_INSYNC_REPLICAS:
            names = [record.resource_name] if record.resource_type == RESOURCE_TOPIC else list(image.topics_by_name)
            topics.update(dict.fromkeys(names))
    if not topics:
        return records
    after = image.apply(records, offset=image.offset, epoch=image.epoch).image
    return [*records, *refresh_eligible(after, view.context, topics)]


def describe_configs(
    request: DescribeConfigsRequest, image: MetadataImage, context: Context
) -> Result[DescribeConfigsResponse]:
    """Returns values with their sources and synonyms; for a broker, those that the quorum knows (dynamic values).

    Only the broker itself knows its static values; the controller's static values stand in for them here.
    """
    results: list[DescribeConfigsResult] = []
    return Result(
        response=DescribeConfigsResponse(results=results), steps=lambda view: _describe_each(request, view, results)
    )


def _describe_each(
    request: DescribeConfigsRequest, view: DecisionView, results: list[DescribeConfigsResult]
) -> Iterator[list[MetadataRecord]]:
    for number, resource in enumerate(merged_resources(request.resources), start=1):
        if number % RESOURCES_PER_TURN == 0:
            yield []
        try:
            values = _describe(resource, view.image, view.context)
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


def merged_resources(resources: Iterable[DescribeConfigsResource]) -> list[DescribeConfigsResource]:
    """Returns each resource once, with all keys that the request names; None, or no key, means every key."""
    wanted: dict[tuple[int, str], dict[str, None] | None] = {}
    for resource in resources:
        name, keys = (resource.resource_type, resource.resource_name), resource.configuration_keys
        known = wanted.setdefault(name, {})
        if not keys:
            wanted[name] = None
        elif known is not None:
            known.update(dict.fromkeys(keys))
    return [
        DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None if keys is None else list(keys)
        )
        for (kind, name), keys in wanted.items()
    ]


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
