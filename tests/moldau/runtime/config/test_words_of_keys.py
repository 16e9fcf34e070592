"""Goal: each key takes exactly the values that its error and docs/config.md name.

Method: the words of every key of every schema are read again, and values at, inside and beyond each bound are parsed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from moldau.runtime.config import (
    ADMIN_CONFIG,
    BROKER_CONFIG,
    CLIENT_METRICS_CONFIG,
    CONSUMER_CONFIG,
    GROUP_CONFIG,
    MIRROR_CONFIG,
    PRODUCER_CONFIG,
    REGISTRY_CONFIG,
    SERIALIZER_CONFIG,
    SHARE_CONSUMER_CONFIG,
    TOPIC_CONFIG,
    ConfigError,
    ConfigKey,
    ConfigType,
)

if TYPE_CHECKING:
    from moldau.runtime.config import ConfigSchema

SCHEMAS = [
    *(ADMIN_CONFIG, BROKER_CONFIG, CLIENT_METRICS_CONFIG, CONSUMER_CONFIG, GROUP_CONFIG, MIRROR_CONFIG),
    *(PRODUCER_CONFIG, REGISTRY_CONFIG, SERIALIZER_CONFIG, SHARE_CONSUMER_CONFIG, TOPIC_CONFIG),
]
RANGE = re.compile(
    r"(?P<kind>an integer|a number)(?: from (?P<low>\S+) to (?P<high>[^\s,]+))?"
    r"(?: of at least (?P<least>\S+))?(?: of at most (?P<most>\S+))?(?P<but>(?:, but not \S+)*)"
)
INTEGERS = (ConfigType.INT, ConfigType.SHORT, ConfigType.LONG)


def takes(schema: ConfigSchema, key: ConfigKey, raw: object) -> bool:
    try:
        schema.parse_value(key.name, raw)
    except ConfigError as error:
        (problem,) = error.problems
        assert key.allowed() in problem
        return False
    return True


def of_types(*types: ConfigType) -> list[tuple[ConfigSchema, ConfigKey]]:
    return [(schema, key) for schema in SCHEMAS for key in schema.keys.values() if key.type in types]


def ids(each: object) -> str:
    return str(getattr(each, "name", ""))


@pytest.mark.parametrize(("schema", "key"), of_types(*INTEGERS, ConfigType.DOUBLE), ids=ids)
def test_numbers_have_the_bounds_that_are_named(schema: ConfigSchema, key: ConfigKey) -> None:
    said = RANGE.fullmatch(key.allowed())
    assert said is not None, key.allowed()
    is_integer = key.type in INTEGERS
    assert said["kind"] == ("an integer" if is_integer else "a number")
    read = int if is_integer else float
    step = 1 if is_integer else 1e-6
    low, high = (read(text) if text else None for text in (said["low"] or said["least"], said["high"] or said["most"]))
    excluded = [int(text) for text in re.findall(r"but not (\S+?)(?=,|$)", said["but"])]
    assert all(not takes(schema, key, number) for number in excluded)
    assert not is_integer or None not in (low, high), "texts of a bounded size"
    for bound, outwards in ((low, -step), (high, step)):
        if bound is None:
            assert takes(schema, key, outwards * 1e30)
            continue
        for raw in (bound, str(bound), f" {bound} "):
            assert takes(schema, key, raw)
        assert not takes(schema, key, bound + outwards)
        assert not takes(schema, key, str(bound + outwards))
        inside = bound - outwards
        assert takes(schema, key, inside) is (inside not in excluded and (low is None or high is None or low < high))
    some = key.parse(low if low is not None else 1)
    for raw in (True, "", "x", "1_0", "0x1", "nan", None if key.default is not None else "none", [some], b"1"):
        assert not takes(schema, key, raw), raw
    if is_integer:
        assert not takes(schema, key, f"{some}.5")
        assert type(some) is int
    else:
        assert type(some) is float


@pytest.mark.parametrize(("schema", "key"), of_types(ConfigType.BOOLEAN), ids=ids)
def test_switches_are_true_or_false(schema: ConfigSchema, key: ConfigKey) -> None:
    assert key.allowed() == "true or false"
    for raw, value in ((True, True), (False, False), ("true", True), (" False ", False), ("TRUE", True)):
        assert schema.parse_value(key.name, raw) is value
    for raw in ("yes", "1", "", 0, 1, "truee", [True]):
        assert not takes(schema, key, raw)


@pytest.mark.parametrize(
    ("schema", "key"), [pair for pair in of_types(ConfigType.STRING, ConfigType.LIST) if pair[1].choices], ids=ids
)
def test_choices_are_those_that_are_named(schema: ConfigSchema, key: ConfigKey) -> None:
    is_list = key.type is ConfigType.LIST
    words = key.allowed().removeprefix("a list of " if is_list else "one of ").removesuffix(", or empty")
    assert words.split(", ") == [choice for choice in key.choices if choice]
    assert (not is_list and takes(schema, key, "")) is ("" in key.choices and not is_list)
    for choice in words.split(", "):
        assert schema.parse_value(key.name, choice) == ((choice,) if is_list else choice)
        other = choice.swapcase()
        if other not in key.choices:
            assert takes(schema, key, other) is key.ignores_case
            if key.ignores_case:
                assert schema.parse_value(key.name, other) == ((choice,) if is_list else choice)
        assert not takes(schema, key, f"{choice}x")
    if is_list:
        assert schema.parse_value(key.name, list(key.choices)) == key.choices
        assert not takes(schema, key, [*key.choices, "other"])
