"""Declarations of configuration keys, and their parsing into a typed, immutable ``Config``.

Theory of operation: a ``ConfigKey`` declares name, type, default, allowed values, and whether it may change at run
time. A ``ConfigSchema`` is a set of keys with the checks that span several of them. ``ConfigSchema.parse`` takes texts
or typed values, reports all problems in one ``ConfigError`` (key, value, allowed values, the nearest known key), and
returns a ``Config``. Names and defaults are Kafka's; a key that only Moldau has is marked ``is_own``. Pure: this module
reads no file and no environment variable.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.runtime.config.nearest import nearest_names
from moldau.values import Portable, is_text, list_elements

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Value = bool | int | float | str | tuple[str, ...] | Callable[[], object] | None
"""A parsed value; ``None`` only for a key whose default is ``None``, a function only for a secret."""

NOT_UTF_8 = "must be UTF-8 text; its source, such as an environment variable, has another encoding"
"""The fault of a secret in which Python keeps a byte as half of a surrogate pair."""
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class ConfigType(enum.IntEnum):
    """Type of a value; the numbers are those of DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class DynamicScope(enum.Enum):
    """How a broker key can be changed while the broker runs (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class ConfigSource(enum.IntEnum):
    """Where a value comes from; the numbers are those of DescribeConfigs (KIP-226)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    DYNAMIC_CLIENT_METRICS = 7
    DYNAMIC_GROUP = 8


class _Required(enum.Enum):
    REQUIRED = enum.auto()


REQUIRED = _Required.REQUIRED
"""Marks a key without default: parsing fails where it is missing."""

_PROVIDERS = "config.providers"
_RANGES = {
    ConfigType.INT: (-(2**31), INT_MAX),
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.LONG: (-(2**63), LONG_MAX),
}
_NUMBERS = {ConfigType.INT, ConfigType.SHORT, ConfigType.LONG, ConfigType.DOUBLE}


class ConfigError(Portable, ValueError):
    """A configuration cannot be used. ``problems`` lists every reason, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    """A broker key that a topic key falls back to; ``factor`` converts its unit (hours to milliseconds ...)."""

    name: str
    factor: int = 1

    def converted(self, text: str | None) -> str | None:
        """Returns a value of the broker key, as text, in the unit of the topic key."""
        if self.factor == 1 or text is None or int(text) < 0:
            return text
        return str(min(int(text) * self.factor, LONG_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementForm:
    """The form of a list's elements: a regular expression for all of an element, and the same in words."""

    pattern: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One key. ``minimum`` and ``maximum`` are inclusive; ``choices`` bounds a string, or each element of a list."""

    name: str
    type: ConfigType
    default: Value | _Required
    doc: str
    group: str = "General"
    minimum: float | None = None
    maximum: float | None = None
    excluded: tuple[int, ...] = ()  # numbers between minimum and maximum that are not allowed
    choices: tuple[str, ...] = ()
    element: ElementForm | None = None  # of a list without choices
    ignores_case: bool = False  # of choices; the value keeps the spelling of the choice
    dynamic: DynamicScope = DynamicScope.READ_ONLY
    synonyms: tuple[Synonym, ...] = ()  # of a topic key, the first that is set wins
    is_own: bool = False  # Kafka has no such key, or another default
    takes_function: bool = False  # of a secret: a program may give a function that returns it
    has_effect: bool = True  # False: accepted so that files written for Kafka work

    @property
    def is_sensitive(self) -> bool:
        """Whether the value must never be shown."""
        return self.type is ConfigType.PASSWORD

    def allowed(self) -> str:
        """Describes the allowed values in words."""
        if self.choices:
            empty = ", or empty" if "" in self.choices else ""
            named = ", ".join(choice for choice in self.choices if choice) + empty
            return ("a list of " if self.type is ConfigType.LIST else "one of ") + named
        if self.type is ConfigType.BOOLEAN:
            return "true or false"
        if self.type not in _NUMBERS:
            of = "" if self.element is None else f" of {self.element.words}"
            return f"a comma-separated list{of}" if self.type is ConfigType.LIST else "a string"
        lows, highs = self._bounds()
        low = max(lows, default=None)
        high = min(highs, default=None)
        kind = "a number" if self.type is ConfigType.DOUBLE else "an integer"
        if low is None and high is None:
            return kind
        if high is None:
            return f"{kind} of at least {low}"
        if low is None:
            return f"{kind} of at most {high}"
        but = "".join(f", but not {number}" for number in self.excluded)
        return f"{kind} from {low} to {high}{but}"

    def _bounds(self) -> tuple[list[float], list[float]]:
        low, high = _RANGES.get(self.type, (None, None))
        lows = [bound for bound in (low, self.minimum) if bound is not None]
        highs = [bound for bound in (high, self.maximum) if bound is not None]
        return lows, highs

    def parse(self, raw: object) -> Value:
        """Returns the typed value of ``raw``, which is text or a value of the type.

        Raises:
            ValueError: the value is not allowed; the text says which values are.
        """
        try:
            value = self._convert(raw)
        except (ValueError, OverflowError):
            raise ValueError(f"must be {self.allowed()}") from None
        if value is None:
            return None
        if self.type is ConfigType.LIST:
            assert isinstance(value, tuple)
            if self.element and not all(re.fullmatch(self.element.pattern, element) for element in value):
                raise ValueError(f"must be {self.allowed()}")
            return tuple(self._choose(element) for element in value)
        if isinstance(value, str):
            if self.is_sensitive and not is_text(value):
                raise ValueError(NOT_UTF_8)
            return self._choose(value)
        if isinstance(value, int | float) and self.type in _NUMBERS:
            lows, highs = self._bounds()
            if any(value < bound for bound in lows) or any(value > bound for bound in highs):
                raise ValueError(f"must be {self.allowed()}")
            if value in self.excluded:
                raise ValueError(f"must be {self.allowed()}")
        return value

    def _choose(self, value: str) -> str:
        if not self.choices or value in self.choices:
            return value
        if self.ignores_case:
            for choice in self.choices:
                if choice.lower() == value.lower():
                    return choice
        nearest = nearest_names(self.choices).find(value)
        raise ValueError(f"must be {self.allowed()}" + (f"; did you mean {nearest}?" if nearest else ""))

    def _convert(self, raw: object) -> Value:
        if raw is None:
            if self.default is not None:
                raise ValueError
            return None
        match self.type:
            case ConfigType.BOOLEAN:
                if isinstance(raw, bool):
                    return raw
                text = str(raw).strip().lower()
                if text not in ("true", "false"):
                    raise ValueError
                return text == "true"
            case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
                if isinstance(raw, bool) or (isinstance(raw, float) and not raw.is_integer()):
                    raise ValueError
                return int(raw) if isinstance(raw, int | float) else int(_numeral(raw))
            case ConfigType.DOUBLE:
                if isinstance(raw, bool):
                    raise ValueError
                number = float(_numeral(raw))
                if math.isnan(number):
                    raise ValueError
                return number
            case ConfigType.LIST:
                if isinstance(raw, str):
                    return list_elements(raw)
                if isinstance(raw, list | tuple):
                    return tuple(str(element) for element in raw)
                raise ValueError
            case ConfigType.PASSWORD if self.takes_function and callable(raw):
                return raw
            case _:
                if isinstance(raw, bool):
                    return "true" if raw else "false"
                as_path = getattr(raw, "__fspath__", None)
                if self.type is ConfigType.STRING and as_path is not None:
                    raw = as_path()
                if not isinstance(raw, str | int | float):
                    raise ValueError
                return str(raw).strip() if self.type is not ConfigType.PASSWORD else str(raw)

    def format(self, value: Value) -> str | None:
        """Returns the value as text, as DescribeConfigs shows it."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)


def _numeral(raw: object) -> str:
    """Returns a value as text for ``int`` and ``float``, which take "1_000"; Kafka refuses that."""
    text = str(raw)
    if "_" in text:
        raise ValueError
    return text


class Config:
    """Typed values of every key of a schema. Immutable; ``with_values`` makes changed copies.

    The ``get_`` methods raise ``KeyError`` for an undeclared name and ``TypeError`` for the wrong type or a value of
    None: both are mistakes of the caller, not of the user. Use ``get_str_or_none`` for a text whose default is None.
    """

    __slots__ = ("_set", "_values", "schema")

    def __init__(self, schema: ConfigSchema, values: Mapping[str, Value], explicit: Mapping[str, Value]) -> None:
        self.schema = schema
        self._values = dict(values)
        self._set = dict(explicit)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={self.text(name, hide=True)!r}" for name in sorted(self._set))
        return f"Config({self.schema.name}: {shown})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Config):
            return NotImplemented
        return self.schema is other.schema and self._values == other._values and self._set == other._set

    def __hash__(self) -> int:
        return hash((self.schema.name, tuple(sorted(self._set))))

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def get(self, name: str) -> Value:
        """Returns the value, of any type."""
        return self._values[name]

    def is_set(self, name: str) -> bool:
        """Returns whether the value was given, and is not the default."""
        return name in self._set

    def explicit(self) -> dict[str, Value]:
        """Returns the values that were given."""
        return dict(self._set)

    def text(self, name: str, *, hide: bool = False) -> str | None:
        """Returns the value as text; ``hide`` shows sensitive ones as ``[hidden]``."""
        key = self.schema.key(name)
        value = self._values[name]
        if hide and key.is_sensitive and value is not None:
            return "[hidden]"
        return key.format(value)

    def get_int(self, name: str) -> int:
        """Returns the value of an integer key."""
        value = self._values[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}, not an integer")
        return value

    def get_bool(self, name: str) -> bool:
        """Returns the value of a boolean key."""
        value = self._values[name]
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}, not a boolean")
        return value

    def get_double(self, name: str) -> float:
        """Returns the value of a key for a number."""
        value = self._values[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name} is {value!r}, not a number")
        return float(value)

    def get_str(self, name: str) -> str:
        """Returns the value of a text key."""
        value = self._values[name]
        if not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}, not a string")
        return value

    def get_str_or_none(self, name: str) -> str | None:
        """Returns the value of a text key, None if it has none."""
        return None if self._values[name] is None else self.get_str(name)

    def get_list(self, name: str) -> tuple[str, ...]:
        """Returns the value of a list key."""
        value = self._values[name]
        if not isinstance(value, tuple):
            raise TypeError(f"{name} is {value!r}, not a list")
        return value

    def with_values(self, changes: Mapping[str, object]) -> Config:
        """Returns a copy with ``changes`` on top, checked again.

        Raises:
            ConfigError: the configuration cannot be used.
        """
        merged: dict[str, object] = dict(self._set)
        merged.update(changes)
        return self.schema.parse(merged)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSchema:
    """A set of keys, with the checks that span several of them (each returns problems, one line each)."""

    name: str
    keys: Mapping[str, ConfigKey]
    checks: tuple[Callable[[Config], list[str]], ...] = ()
    listener_prefix: str | None = field(default=None)  # "listener.name.": a known key may follow prefix, name and dot
    unserved: Mapping[str, ConfigKey] = field(default_factory=dict)  # Kafka's keys that are accepted, without effect
    unserved_prefixes: tuple[str, ...] = ()  # and what begins like this
    foreign: Mapping[str, str] = field(default_factory=dict)  # keys of other clients, with the clients that have them
    refused: Mapping[str, str] = field(default_factory=dict)  # Kafka's keys that are not accepted, with the reason

    @staticmethod
    def of(
        name: str,
        keys: Sequence[ConfigKey],
        checks: tuple[Callable[[Config], list[str]], ...] = (),
        listener_prefix: str | None = None,
        unserved: Sequence[ConfigKey] = (),
        unserved_prefixes: tuple[str, ...] = (),
        foreign: Mapping[str, Sequence[ConfigKey]] | None = None,
        refused: Mapping[str, str] | None = None,
    ) -> ConfigSchema:
        """Builds a schema; two keys of one name are a mistake. ``foreign`` has the keys of other clients, by client."""
        table: dict[str, ConfigKey] = {}
        for key in (*keys, *unserved):
            assert key.name not in table, f"{key.name} is declared twice"
            table[key.name] = key
        return ConfigSchema(
            name=name,
            keys={key.name: key for key in keys},
            checks=checks,
            listener_prefix=listener_prefix,
            unserved={key.name: key for key in unserved},
            unserved_prefixes=unserved_prefixes,
            foreign={key.name: owner for owner, others in (foreign or {}).items() for key in others},
            refused=refused or {},
        )

    def key(self, name: str) -> ConfigKey:
        """Returns the declaration of ``name``, which may carry a listener prefix.

        Raises:
            KeyError: the name is unknown.
        """
        key = self._plain_key(name)
        if key is None:
            key = self._key_of_listener(name)
        if key is None:
            raise KeyError(name)
        return key

    def is_unserved(self, name: str) -> bool:
        """Returns whether ``name`` is a key of Kafka that is accepted without effect."""
        try:
            return self.key(name).name not in self.keys
        except KeyError:
            return False

    def _plain_key(self, name: str) -> ConfigKey | None:
        key = self.keys.get(name) or self.unserved.get(name)
        if key is None and name.startswith(self.unserved_prefixes) and name not in self.unserved_prefixes:
            # Nothing says whether the value is a secret, so it is hidden like one.
            return ConfigKey(
                name=name, type=ConfigType.PASSWORD, default=None, doc="A key of a plugin of Kafka.", has_effect=False
            )
        return key

    def _key_of_listener(self, name: str) -> ConfigKey | None:
        prefix = self.listener_prefix
        if prefix is None or not name.startswith(prefix):
            return None
        # listener.name.<listener>.<key> or listener.name.<listener>.<sasl mechanism>.<key>; nodes look only for
        # listeners and mechanisms in lower case, as in Kafka.
        rest = name[len(prefix) :].split(".", 1)
        if len(rest) == 2 and rest[0] == rest[0].lower():
            key = self._plain_key(rest[1])
            if key is not None:
                return key
            mechanism, _, plain = rest[1].partition(".")
            has_own = plain.startswith("sasl.") or plain == "connections.max.reauth.ms"
            if has_own and mechanism and mechanism == mechanism.lower():
                return self._plain_key(plain)
        return None

    def nearest(self, name: str) -> str | None:
        """Returns the known key that looks most like ``name``, None where nothing does."""
        return nearest_names((*self.keys, *self.unserved)).find(name)

    def unknown(self, name: str) -> str:
        """Says that ``name`` is unknown, with its owner, or with the nearest known key; or why it is not served."""
        if name in self.refused:
            return f"{name}: a {self.name} configuration key of Kafka that Moldau does not serve: {self.refused[name]}"
        if name == _PROVIDERS or name.startswith(f"{_PROVIDERS}."):
            return (
                f"{name}: leave it out: ${{env:NAME}}, ${{file:PATH:KEY}} and ${{dir:DIRECTORY:FILE}} need no "
                f"declaration, and Moldau serves no other configuration providers of Kafka"
            )
        if name in self.foreign:
            return f"{name}: unknown {self.name} configuration key; {self.foreign[name]}s have it"
        nearest = self.nearest(name) if self._key_of_listener(name.lower()) is None else name.lower()
        return f"{name}: unknown {self.name} configuration key" + (f"; did you mean {nearest}?" if nearest else "")

    def parse_value(self, name: str, raw: object) -> Value:
        """Parses one value.

        Raises:
            ConfigError: the configuration cannot be used.
        """
        try:
            key = self.key(name)
        except KeyError:
            raise ConfigError([self.unknown(name)]) from None
        try:
            return key.parse(raw)
        except ValueError as error:
            shown = "[hidden]" if key.is_sensitive else repr(raw)
            raise ConfigError([f"{name} = {shown}: {error}"]) from None

    def parse(self, given: Mapping[str, object]) -> Config:
        """Parses ``given``; missing keys take their defaults.

        Raises:
            ConfigError: names every problem.
        """
        problems: list[str] = []
        explicit: dict[str, Value] = {}
        for name, raw in given.items():
            try:
                explicit[name] = self.parse_value(name, raw)
            except ConfigError as error:
                problems.extend(error.problems)
        values: dict[str, Value] = {}
        for name, key in self.keys.items():
            if name in explicit:
                values[name] = explicit[name]
            elif key.default is not REQUIRED:
                values[name] = key.default
            elif name not in given:
                problems.append(f"{name}: missing {self.name} configuration key; it must be {key.allowed()}")
        for name, value in explicit.items():
            values.setdefault(name, value)
        if problems:
            raise ConfigError(problems)
        config = Config(self, values, explicit)
        for check in self.checks:
            # Later checks may build on what earlier ones found right.
            problems.extend(check(config))
            if problems:
                break
        if problems:
            raise ConfigError(problems)
        return config
