"""Checks of the effective configuration that a change would produce.

A broker layers its own file, the dynamic default of all brokers, its own dynamic values and a topic's overrides. Each
layer may be valid by itself while the result is not, so these functions check the result: for the topic that changes,
and for all topics if a default changes. The controller's own file stands in for the brokers' files. A value that was
invalid before (nodes ignore such values) does not block a change that touches other keys.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.runtime.config import (
    ALL_LOG_DIRS,
    BROKER_CONFIG,
    CLIENT_METRICS_CONFIG,
    CORDONED_LOG_DIRS,
    TOPIC_CONFIG,
    TOPIC_SYNONYMS,
    Config,
    ConfigError,
    DynamicScope,
    group_config,
    tiered_topic_problems,
    topic_defaults,
    usable_topic_config,
    with_dynamic,
)
from moldau_quorum.controller.context import MIN_INSYNC_REPLICAS, Context, RefusedError, elr_enabled
from moldau_quorum.metadata.image import RESOURCE_BROKER, RESOURCE_GROUP, MetadataImage
from moldau_quorum.metadata.internal_topics import INTERNAL_TOPICS
from moldau_quorum.metadata.records import METADATA_LEVEL_CORDONS, METADATA_LEVEL_TIERED, METADATA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OF_LISTENERS: Final = ("max.connections", "max.connection.creation.rate")
"""Besides the keys of TLS and SASL, those that brokers look up for each listener.

As in Kafka a file may set them to 0 and a change at run time may not: no client could take it back.
"""

REMOTE_STORAGE: Final = "remote.storage.enable"
DELETE_ON_DISABLE: Final = "remote.log.delete.on.disable"

Items = tuple[tuple[str, str], ...]
"""Sorted pairs of key and value: a mapping that can be hashed and cached."""


@lru_cache(maxsize=128)
def _layered(static: Config, default: Items, own: Items) -> tuple[Config, dict[str, str]]:
    return with_dynamic(static, dict(default), dict(own))


def _relevant(values: Mapping[str, str]) -> Items:
    """Returns those of a broker's dynamic values that topics fall back to."""
    return tuple(sorted((name, value) for name, value in values.items() if name in TOPIC_SYNONYMS))


def _node_wide(values: Mapping[str, str]) -> Items:
    """Returns the values that can be checked without the broker's file.

    Values for single brokers (certificates) depend on other keys in that file.
    """
    kept: list[tuple[str, str]] = []
    for name, value in sorted(values.items()):
        try:
            scope = BROKER_CONFIG.key(name).dynamic
        except KeyError:
            continue
        if scope is not DynamicScope.PER_BROKER:
            kept.append((name, value))
    return tuple(kept)


def _own_layers(image: MetadataImage) -> list[Mapping[str, str]]:
    """Returns the dynamic values of each broker, preceded by the empty values of a broker that has none."""
    return [{}, *(image.config(RESOURCE_BROKER, str(broker_id)) for broker_id in sorted(image.brokers))]


def _topic_faults(config: Config, overrides: Mapping[str, str], context: Context) -> dict[str, str]:
    """Returns the faults of a topic's effective values, by key, with those of tiered storage."""
    static = context.settings.broker_config
    effective, faults = usable_topic_config(config, overrides, topic_defaults(static))
    is_system_enabled = static.get_bool("remote.log.storage.system.enable")
    return {**tiered_topic_problems(effective, is_system_enabled=is_system_enabled), **faults}


def is_tiered(overrides: Mapping[str, str]) -> bool:
    """Returns whether a topic with these overrides is tiered."""
    return _is_on(REMOTE_STORAGE, overrides)


def check_tiered_topic(topic: str, before: Mapping[str, str], after: Mapping[str, str], image: MetadataImage) -> None:
    """Checks that a topic may become tiered, or no longer be tiered (KIP-405, KIP-950).

    Raises:
        RefusedError: INVALID_CONFIG.
    """
    if is_tiered(after):
        if not is_tiered(before) and image.metadata_level < METADATA_LEVEL_TIERED:
            raise RefusedError(
                ErrorCode.INVALID_CONFIG,
                f"{REMOTE_STORAGE} = true: needs {METADATA_VERSION} {METADATA_LEVEL_TIERED}; the cluster is at "
                f"{image.metadata_level}",
            )
        if topic in INTERNAL_TOPICS:
            raise RefusedError(ErrorCode.INVALID_CONFIG, f"{REMOTE_STORAGE} = true: {topic!r} is an internal topic")
    elif is_tiered(before) and not _is_on(DELETE_ON_DISABLE, after):
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"topic {topic!r}: {REMOTE_STORAGE} = false deletes all remote segments, and needs {DELETE_ON_DISABLE} = "
            f"true in the same change; remote.log.copy.disable = true ends only the copies",
        )


def _is_on(key: str, overrides: Mapping[str, str]) -> bool:
    value = overrides.get(key)
    if value is None:
        return False
    try:
        return TOPIC_CONFIG.parse_value(key, value) is True
    except ConfigError:
        return False  # reported where the values are parsed


def check_topic_config(
    overrides: Mapping[str, str],
    image: MetadataImage,
    context: Context,
    *,
    topic: str | None = None,
    before: Mapping[str, str] | None = None,
) -> None:
    """Checks that a topic can have these overrides on every broker.

    ``topic`` and ``before`` are its name and its present overrides if the topic exists already.

    Raises:
        RefusedError: INVALID_CONFIG.
    """
    if topic is not None:
        check_tiered_topic(topic, before or {}, overrides, image)
    default = _relevant(image.config(RESOURCE_BROKER, ""))
    for own in dict.fromkeys(map(_relevant, _own_layers(image))):
        config, _ = _layered(context.settings.broker_config, default, own)
        faults = _topic_faults(config, overrides, context)
        if not faults:
            continue
        known = {} if before is None else _topic_faults(config, before, context)
        changed = {} if before is None else {key: None for key in overrides if overrides[key] != before.get(key)}
        new = [reason for key, reason in faults.items() if key not in known or key in changed]
        if new:
            at = "" if topic is None else f"topic {topic!r}: "
            raise RefusedError(ErrorCode.INVALID_CONFIG, at + "\n".join(dict.fromkeys(new)))


def check_plain_config(resource_type: int, values: Mapping[str, str], context: Context) -> None:
    """Checks that a group or a client metrics subscription can have these values.

    Raises:
        RefusedError: INVALID_CONFIG.
    """
    try:
        if resource_type == RESOURCE_GROUP:
            group_config(context.settings.broker_config, values)
        else:
            CLIENT_METRICS_CONFIG.parse(values)
    except ConfigError as error:
        raise RefusedError(ErrorCode.INVALID_CONFIG, str(error)) from error


def check_broker_config(
    name: str,
    before: Mapping[str, str],
    after: Mapping[str, str],
    changed: Iterable[str],
    image: MetadataImage,
    context: Context,
) -> None:
    """Checks that a broker, or all brokers if ``name`` is empty, can change from ``before`` to ``after``.

    ``changed`` holds the keys that the request names or changes.

    Raises:
        RefusedError: INVALID_REQUEST if the key cannot be changed while brokers run, or only for single brokers;
            INVALID_CONFIG in all other cases.
    """
    changed = dict.fromkeys(changed)
    if MIN_INSYNC_REPLICAS in changed:
        _check_min_insync(name, after, image)
    for key_name in changed:
        _check_key(name, key_name, after.get(key_name))
    if CORDONED_LOG_DIRS in changed and CORDONED_LOG_DIRS in after:
        _check_cordons(before, after[CORDONED_LOG_DIRS], image, context)
    named = {key for key in changed if key in after}
    static = context.settings.broker_config
    default = image.config(RESOURCE_BROKER, "")
    for own in [before] if name else _own_layers(image):
        _, known = _layered(static, _node_wide(default), _node_wide(own))
        _, faults = _layered(static, _node_wide(default if name else after), _node_wide(after if name else own))
        new = [reason for key, reason in faults.items() if key in named or key not in known]
        if new:
            raise RefusedError(ErrorCode.INVALID_CONFIG, "\n".join(dict.fromkeys(new)))
    if not TOPIC_SYNONYMS.isdisjoint(changed):
        _check_topics(name, before, after, [key for key in changed if key in TOPIC_SYNONYMS], image, context)


def _check_key(broker: str, name: str, value: str | None) -> None:
    if value is None:
        return  # any key may be removed, even an unknown one, and one that is not set
    try:
        key = BROKER_CONFIG.key(name)
    except KeyError:
        raise RefusedError(ErrorCode.INVALID_CONFIG, BROKER_CONFIG.unknown(name)) from None
    if key.name != name and key.name not in OF_LISTENERS and not key.name.startswith(("ssl.", "sasl.")):
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"{name}: {key.name} cannot be set for a single listener")
    if key.dynamic is DynamicScope.READ_ONLY:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{name} cannot be changed while brokers run")
    if key.dynamic is DynamicScope.PER_BROKER and not broker:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{name} is set for each broker, not for all at once")
    try:
        parsed = BROKER_CONFIG.parse_value(name, value)
    except ConfigError as error:
        raise RefusedError(ErrorCode.INVALID_CONFIG, str(error)) from error
    if key.name in OF_LISTENERS and parsed == 0:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"{name} = 0 would admit no connection: while brokers run it is at least 1, and only a file may say 0",
        )


def _check_cordons(before: Mapping[str, str], value: str, image: MetadataImage, context: Context) -> None:
    """Checks a change of the cordoned log directories of one broker (KIP-1066).

    Only the broker knows its directories, and checks the names that it forwards. A client that asks a controller can
    therefore only take names away.
    """
    key = BROKER_CONFIG.key(CORDONED_LOG_DIRS)
    if not image.records_cordons:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"{CORDONED_LOG_DIRS} needs {METADATA_VERSION} {METADATA_LEVEL_CORDONS}; the cluster is at "
            f"{image.metadata_level}",
        )
    wanted, present = key.parse(value), key.parse(before.get(CORDONED_LOG_DIRS, ""))
    assert isinstance(wanted, tuple)
    assert isinstance(present, tuple)
    if ALL_LOG_DIRS in wanted and len(wanted) > 1:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"{CORDONED_LOG_DIRS} = {value!r}: {ALL_LOG_DIRS} stands for all log directories, and must stand alone",
        )
    new = [path for path in wanted if path not in present]
    if new and not context.is_forwarded:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"a controller does not know the log directories of a broker: ask the broker itself to cordon {new[0]}",
        )


def _check_topics(
    name: str,
    before: Mapping[str, str],
    after: Mapping[str, str],
    changed: list[str],
    image: MetadataImage,
    context: Context,
) -> None:
    """Checks that a change of defaults makes no topic's values invalid; checks equal overrides only once."""
    by_overrides: dict[Items, str] = {(): ""}
    for topic in sorted(image.topics_by_name):
        by_overrides.setdefault(tuple(sorted(image.topic_config(topic).items())), topic)
    static = context.settings.broker_config
    default = _relevant(image.config(RESOURCE_BROKER, ""))
    layers = [before] if name else _own_layers(image)
    for own in dict.fromkeys(map(_relevant, layers)):
        now, _ = _layered(static, default, own)
        then, _ = _layered(static, default if name else _relevant(after), _relevant(after) if name else own)
        if then == now:
            continue
        for overrides, topic in by_overrides.items():
            faults = _topic_faults(then, dict(overrides), context)
            if not faults:
                continue
            known = _topic_faults(now, dict(overrides), context)
            new = [reason for key, reason in faults.items() if key not in known]
            if new:
                values = ", ".join(f"{key} = {after.get(key)!r}" for key in changed)
                raise RefusedError(
                    ErrorCode.INVALID_CONFIG,
                    f"{values} is not valid for topic {topic!r}: " + "\n".join(dict.fromkeys(new)),
                )


def _check_min_insync(name: str, values: Mapping[str, str], image: MetadataImage) -> None:
    """Checks that all nodes keep one ``min.insync.replicas`` for each topic, as KIP-966 needs.

    If a leader acknowledged records by a lower value than the controller's, eligible replicas could lack them.
    """
    if not elr_enabled(image):
        return
    if name:
        if MIN_INSYNC_REPLICAS not in values:
            return  # an earlier version may have let it stay
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"{MIN_INSYNC_REPLICAS} cannot differ between brokers: set it for a topic or for all brokers",
        )
    if MIN_INSYNC_REPLICAS not in values:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"{MIN_INSYNC_REPLICAS} of all brokers cannot be removed while there are eligible leader replicas",
        )
