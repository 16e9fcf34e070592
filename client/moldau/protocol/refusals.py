"""Responses in which a whole request, or some of its entries, failed with one error code.

`refusal` answers a whole request: not the controller, coordinator loading, not authorized, too large. `divide` refuses
single entries (topics, groups, resources) and leaves the others to be served; `join` puts both answers together.

The shape of a refusal follows from the message tables. Kafka puts the code into the response itself where it has a
field for it, and into each entry of the request otherwise (topic, partition, group, resource); ``CODE_AT_BOTH`` names
the responses that carry it at both levels. An entry of a response names its entry of the request: their fields with
one *role* in ``ROLES`` hold the same value. A plan per API and version keeps what was derived.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.field import FieldSpec
from moldau.protocol.schema import Request, Response, Struct
from moldau.protocol.versions import VERSION_MAX

Q = TypeVar("Q", bound=Request)
R = TypeVar("R", bound=Response)
Entry = Struct | str | int
"""An entry of a request's array: a struct, or the bare name or index."""

CODE_FIELDS: Final = ("error_code", "partition_error_code")
MESSAGE_FIELD: Final = "error_message"
THROTTLE_FIELD: Final = "throttle_time_ms"

ROLES: Final[Mapping[str, str]] = {
    "name": "name",
    "topic": "name",
    "topic_name": "name",
    "user": "name",
    "index": "partition",
    "partition": "partition",
    "partition_index": "partition",
    "partition_id": "partition",
    **{
        name: name
        for name in (
            "topic_id",
            "group_id",
            "transactional_id",
            "producer_id",
            "resource_type",
            "resource_name",
            "entity",
            "key",
        )
    },
}
"""The role of a field in its entry. Requests and responses name the same thing differently."""

CODE_AT_BOTH: Final[Mapping[int, int]] = {
    ApiKey.FETCH: 12,
    ApiKey.METADATA: VERSION_MAX,
    ApiKey.ELECT_LEADERS: VERSION_MAX,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: VERSION_MAX,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: VERSION_MAX,
}
"""APIs whose entries carry the code too, although the response has a code of its own, and the last such version."""

SOURCES: Final[Mapping[tuple[int, str], tuple[str, ...]]] = {
    (ApiKey.FETCH, "responses"): ("topics",),  # not the forgotten topics
    (ApiKey.ALTER_REPLICA_LOG_DIRS, "results"): ("dirs", "topics"),
    (ApiKey.CREATE_ACLS, "results"): ("creations",),  # these two name nothing: the order decides
    (ApiKey.DELETE_ACLS, "filter_results"): ("filters",),
}
"""Path to the request's entries, where roles do not show it: API and array of the response."""

VALUES: Final[Mapping[int, Mapping[str, object]]] = {
    ApiKey.PRODUCE: {"base_offset": -1},
    ApiKey.FETCH: {"high_watermark": -1},
    ApiKey.OFFSET_FETCH: {"committed_offset": -1},
    ApiKey.FIND_COORDINATOR: {"node_id": -1, "port": -1},
    ApiKey.JOIN_GROUP: {"protocol_name": None},
    ApiKey.CREATE_TOPICS: {"configs": None},
    ApiKey.DELETE_RECORDS: {"low_watermark": -1},
    ApiKey.INIT_PRODUCER_ID: {"producer_epoch": -1},
    ApiKey.DESCRIBE_CLIENT_QUOTAS: {"entries": None},
}
"""Values besides the code that differ from the field's default in a refusal; null only in versions that allow it."""

ECHOED: Final[Mapping[int, tuple[str, ...]]] = {ApiKey.FETCH: ("session_id",)}
"""Fields of the request itself that its refusal repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """How one struct of a response is filled."""

    struct: type[Struct]
    code_field: str | None
    message_field: str | None
    values: tuple[tuple[str, object], ...]
    arrays: tuple["_Array", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Entries of a request that an array of the response answers."""

    path: tuple[str, ...]
    """Names of nested arrays, the outermost first."""
    echoes: tuple[tuple[str, str | None, bool], ...]
    """Field of the response's entry, and that of the request's (None stands for the entry itself), and whether the
    former may be null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Array:
    """An array of a response, and where its entries come from."""

    field: str
    sources: tuple[_Source, ...]
    level: _Level


class Division(NamedTuple, Generic[Q]):
    """A request of which some entries are refused."""

    remainder: Q | None
    """The request with the other entries; None if there are none."""
    refused: Response | None
    """The response to the refused entries; None if there are none."""


def refusal(
    request: Request,
    code: ErrorCode,
    message: str | None = None,
    *,
    version: int | None = None,
    throttle_time_ms: int = 0,
) -> Response:
    """Returns the response to a request that failed as a whole.

    ``version`` is that of the request. None fills each level that carries the code in any version; the encoder drops
    the fields that its version lacks. A Produce with ``acks=0`` gets no response, not even a refusal: the caller knows.

    An entry that the request names twice is answered once.
    """
    response = _fill(_plan(request.__api_key__, version, whole=True), request, code, message)
    assert isinstance(response, Response)
    for field in ECHOED.get(request.__api_key__, ()):
        setattr(response, field, getattr(request, field))
    if throttle_time_ms and THROTTLE_FIELD in response.__fields__:
        setattr(response, THROTTLE_FIELD, throttle_time_ms)
    return response


def has_code(struct: Struct, code: ErrorCode | None = None) -> bool:
    """Returns whether an error code, or this one, is in a response or in an entry of it."""
    for field in struct.__fields__:
        value = getattr(struct, field)
        if field in CODE_FIELDS and (value != ErrorCode.NONE if code is None else value == code):
            return True
        if isinstance(value, list | tuple) and any(isinstance(part, Struct) and has_code(part, code) for part in value):
            return True
    return False


def refusal_of(
    response_class: type[R],
    request: Request,
    code: ErrorCode,
    message: str | None = None,
    *,
    version: int | None = None,
) -> R:
    """Returns `refusal` with the type that the caller knows."""
    response = refusal(request, code, message, version=version)
    assert isinstance(response, response_class)
    return response


def divide(
    request: Q, code_of: Callable[[Entry], ErrorCode], message: str | None = None, *, version: int | None = None
) -> Division[Q]:
    """Separates the outermost entries of a request that ``code_of`` refuses; NONE leaves an entry to be served.

    An entry is what the request's array holds: a struct, or the bare name.

    Raises:
        ValueError: the request has no entries, or its response does not name them.
    """
    level = _plan(request.__api_key__, version, whole=False)
    sources = [source for array in level.arrays for source in array.sources]
    if not sources or any(not source.echoes or len(source.path) > 1 for source in sources):
        raise ValueError(f"{type(request).__name__} has no entries that could be refused one by one")
    remainder, refused = copy(request), copy(request)
    for field in dict.fromkeys(source.path[0] for source in sources):
        entries: Sequence[Entry] = getattr(request, field) or ()
        if not entries:
            continue  # null (all topics) or empty: nothing that could be refused
        setattr(remainder, field, [entry for entry in entries if code_of(entry) is ErrorCode.NONE])
        setattr(refused, field, [entry for entry in entries if code_of(entry) is not ErrorCode.NONE])
    if not _has_entries(level, refused):
        return Division(request, None)
    answers = {array.field: _entries(array, refused, code_of, message) for array in level.arrays}
    response = level.struct(**{**dict(level.values), **answers})
    assert isinstance(response, Response)
    return Division(remainder if _has_entries(level, remainder) else None, response)


def join(response: R, refused: R, *, version: int | None = None) -> R:
    """Returns the response to a divided request: the served entries, then the refused ones."""
    for array in _plan(response.__api_key__, version, whole=False).arrays:
        setattr(response, array.field, [*(getattr(response, array.field) or ()), *getattr(refused, array.field)])
    return response


def _has_entries(level: _Level, request: Request) -> bool:
    return any(getattr(request, source.path[0]) for array in level.arrays for source in array.sources)


def _fill(level: _Level, entry: Entry, code: ErrorCode, message: str | None) -> Struct:
    """Returns a struct of the response for a request, or for one of its entries."""
    values: dict[str, Any] = dict(level.values)
    if level.code_field is not None:
        values[level.code_field] = code
    if level.message_field is not None and message is not None:
        values[level.message_field] = message
    for array in level.arrays:
        values[array.field] = _entries(array, entry, lambda _: code, message)
    return level.struct(**values)


def _entries(array: _Array, parent: Entry, code_of: Callable[[Entry], ErrorCode], message: str | None) -> list[Struct]:
    """Returns the answers to the entries of the request that an array of the response holds."""
    found: list[Struct] = []
    seen: set[Hashable] = set()
    for source in array.sources:
        for part in _at(parent, source.path):
            answer = _fill(array.level, part, code_of(part), message)
            for field, origin, may_be_null in source.echoes:
                value = part if origin is None else getattr(part, origin)
                value = "" if value is None and not may_be_null else value
                setattr(answer, field, _echo(value, array.level.struct.__fields__[field].struct))
            if array.level.code_field is not None and source.echoes:
                name = tuple(getattr(answer, field) for field, _, _ in source.echoes)
                if all(isinstance(value, Hashable) for value in name):
                    if name in seen:
                        continue
                    seen.add(name)
            found.append(answer)
    return found


def _at(parent: Entry, path: tuple[str, ...]) -> Iterator[Entry]:
    parts: Sequence[Entry] = getattr(parent, path[0]) or ()
    if len(path) == 1:
        yield from parts
        return
    for part in parts:
        yield from _at(part, path[1:])


def _echo(value: object, struct: type[Struct] | None) -> object:
    """Returns a value of the request as a response holds it, whose field is an array of ``struct`` unless None."""
    if struct is None:
        return value
    assert isinstance(value, Sequence)
    return [struct(**{name: getattr(part, name) for name in struct.__fields__}) for part in value]


# --- plans


@cache
def _plan(api_key: int, version: int | None, *, whole: bool) -> _Level:
    """Returns how the response to a request is filled; ``whole`` if the request failed as a whole."""
    api = APIS[api_key]
    has_code = _is_present(api.response.__fields__.get("error_code"), version)
    every_version = version is not None or _is_always_present(api.response.__fields__.get("error_code"), api_key)
    at_both = api_key in CODE_AT_BOTH and (version is None or version <= CODE_AT_BOTH[api_key])
    descends = not whole or not (has_code and every_version) or at_both
    return _level(api_key, api.response, api.request, version, own=has_code and whole, descends=descends, is_top=True)


def _level(
    api_key: int,
    struct: type[Struct],
    request: type[Struct] | None,
    version: int | None,
    *,
    own: bool,
    descends: bool,
    is_top: bool = False,
) -> _Level:
    specs = struct.__fields__
    values = tuple(
        (field, value)
        for field, value in VALUES.get(api_key, {}).items()
        if field in specs and (value is not None or _is_nullable(specs[field], api_key, version))
    )
    message_field = MESSAGE_FIELD if own and MESSAGE_FIELD in specs else None
    if message_field is not None and _is_nullable(specs[message_field], api_key, version):
        values = (*values, (message_field, None))  # for an empty text, clients would show no reason at all
    arrays: list[_Array] = []
    for field, spec in specs.items() if descends and request is not None else ():
        if not spec.is_array or spec.struct is None or not _is_present(spec, version):
            continue
        if _code_field(spec.struct, version) is None and not _codes_below(spec.struct, version):
            continue
        assert request is not None
        part, sources = _sources(api_key, field, spec.struct, request, version, is_top=is_top)
        if not sources:
            continue
        has_code = _code_field(spec.struct, version) is not None
        arrays.append(
            _Array(
                field=field,
                sources=sources,
                level=_level(api_key, spec.struct, part, version, own=has_code, descends=not has_code),
            )
        )
    return _Level(
        struct=struct,
        code_field=_code_field(struct, version) if own else None,
        message_field=message_field,
        values=values,
        arrays=tuple(arrays),
    )


def _sources(
    api_key: int, field: str, struct: type[Struct], request: type[Struct], version: int | None, *, is_top: bool
) -> tuple[type[Struct] | None, tuple[_Source, ...]]:
    """Returns the struct of the request's entries that an array answers, if they are structs, and where they are."""
    known = SOURCES.get((api_key, field)) if is_top else None
    if known is not None:
        spec = request.__fields__[known[0]]
        for name in known[1:]:
            assert spec.struct is not None
            spec = spec.struct.__fields__[name]
        return spec.struct, (_Source(path=known, echoes=_echoes(struct, spec, version)),)
    found: list[_Source] = []
    part: type[Struct] | None = None
    for name, spec in request.__fields__.items():
        echoes = _echoes(struct, spec, version) if spec.is_array else ()
        if echoes:
            found.append(_Source(path=(name,), echoes=echoes))
            part = part or spec.struct
    return part, tuple(found)


def _echoes(struct: type[Struct], entries: FieldSpec, version: int | None) -> tuple[tuple[str, str | None, bool], ...]:
    """Returns the pairs of fields that name the same thing in an entry of the response and in one of the request."""
    roles = {name: ROLES[name] for name in struct.__fields__ if name in ROLES}
    if entries.struct is None:
        same = [name for name in roles if struct.__fields__[name].kind == entries.kind]
        return ((same[0], None, False),) if len(same) == 1 else ()
    return tuple(
        (name, origin, _repeats_null(struct.__fields__[name], spec, version))
        for name, role in roles.items()
        for origin, spec in entries.struct.__fields__.items()
        if ROLES.get(origin) == role and spec.kind == struct.__fields__[name].kind
    )


def _code_field(struct: type[Struct], version: int | None) -> str | None:
    return next((name for name in CODE_FIELDS if _is_present(struct.__fields__.get(name), version)), None)


def _codes_below(struct: type[Struct], version: int | None) -> bool:
    return any(
        _code_field(spec.struct, version) is not None or _codes_below(spec.struct, version)
        for spec in struct.__fields__.values()
        if spec.is_array and spec.struct is not None and _is_present(spec, version)
    )


def _is_present(spec: FieldSpec | None, version: int | None) -> bool:
    return spec is not None and (version is None or version in spec.versions)


def _is_always_present(spec: FieldSpec | None, api_key: int) -> bool:
    versions = APIS[api_key].versions
    return spec is not None and versions.first in spec.versions and versions.last in spec.versions


def _is_nullable(spec: FieldSpec, api_key: int, version: int | None) -> bool:
    """Returns whether a field may be null: in the version, or in each version that has the field."""
    if version is not None:
        return version in spec.nullable
    versions = APIS[api_key].versions
    return all(each in spec.nullable for each in range(versions.first, versions.last + 1) if each in spec.versions)


def _repeats_null(answer: FieldSpec, asked: FieldSpec, version: int | None) -> bool:
    """Returns whether a response can repeat a null of the request, in the version or in each that allows the null."""
    return answer.nullable.first <= asked.nullable.first if version is None else version in answer.nullable
