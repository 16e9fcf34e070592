"""Dynamic configuration values (KIP-226): the choice of usable values, and the fallback for the others.

The controller refuses values that do not fit, but a node must not rely on it: its own file may differ from the
controller's, or an older version may have accepted a value. So these functions do not raise. They leave out only the
unusable value, keep the previous one in its place, and apply all others. Both sides use the same functions: the
controller refuses the values that a node would leave out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.runtime.config.declaration import Config, ConfigError, ConfigSchema, DynamicScope, Value
from moldau.runtime.config.schemas import BROKER_CONFIG, TOPIC_CONFIG, topic_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

TOPIC_SYNONYMS = frozenset(synonym.name for key in TOPIC_CONFIG.keys.values() for synonym in key.synonyms)
"""Broker keys that topics fall back to."""


def with_dynamic(base: Config, *layers: Mapping[str, str]) -> tuple[Config, dict[str, str]]:
    """Returns a node's configuration with ``layers`` on top, the last one topmost, and why values are left out, by key.

    ``base`` must be valid. In place of a value that is left out, that of the layer below applies.
    """
    left_out: dict[str, str] = {}
    for changes in layers:
        base, reasons = _with_layer(base, changes)
        left_out.update(reasons)
    return base, left_out


def _with_layer(base: Config, changes: Mapping[str, str]) -> tuple[Config, dict[str, str]]:
    if not changes:
        return base, {}
    left_out: dict[str, str] = {}
    given: dict[str, object] = dict(base.explicit())
    for name, value in changes.items():
        if is_read_only(name):
            left_out[name] = f"{name} cannot be changed while nodes run"
        else:
            given[name] = value
    config, faults = _parse_what_fits(base.schema, given, base.explicit())
    return config, {**left_out, **faults}


def is_read_only(name: str) -> bool:
    """Returns whether a key of nodes exists and cannot be changed while they run."""
    try:
        return BROKER_CONFIG.key(name).dynamic is DynamicScope.READ_ONLY
    except KeyError:
        return False  # parsing reports the unknown key


def usable_topic_config(
    broker: Config, overrides: Mapping[str, str], fallback: Mapping[str, Value]
) -> tuple[Config, dict[str, str]]:
    """Returns the configuration of a topic as ``topic_config`` does, and the reasons for omitted values, by key.

    ``fallback`` must be valid (the values of ``topic_defaults``, or the ``explicit`` ones of an earlier result), and
    replaces omitted values.
    """
    return _parse_what_fits(TOPIC_CONFIG, {**topic_defaults(broker), **overrides}, fallback)


def _parse_what_fits(
    schema: ConfigSchema, given: Mapping[str, object], fallback: Mapping[str, Value]
) -> tuple[Config, dict[str, str]]:
    left_out: dict[str, str] = {}
    wanted: dict[str, object] = {}
    for name, raw in given.items():
        try:
            wanted[name] = schema.parse_value(name, raw)
        except ConfigError as error:
            left_out[name] = str(error)
            _take(name, wanted, fallback)
    try:
        return schema.parse(wanted), left_out
    except ConfigError as error:
        reason = str(error)
    # Each value is valid, but some do not fit together. If leaving out a single one helps, only that one is left out.
    differing = sorted(name for name in wanted if name not in fallback or wanted[name] != fallback[name])
    for name in differing:
        without = dict(wanted)
        _take(name, without, fallback)
        try:
            return schema.parse(without), {**left_out, name: reason}
        except ConfigError:
            continue  # it was not at fault, or not alone
    fitting: dict[str, object] = dict(fallback)
    for name in differing:
        try:
            schema.parse({**fitting, name: wanted[name]})
        except ConfigError as error:
            left_out[name] = str(error)
        else:
            fitting[name] = wanted[name]
    return schema.parse(fitting), left_out


def _take(name: str, values: dict[str, object], fallback: Mapping[str, Value]) -> None:
    """Gives ``name`` the value that it has in ``fallback``, or none."""
    if name in fallback:
        values[name] = fallback[name]
    else:
        values.pop(name, None)
