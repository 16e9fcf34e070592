"""Checks of the arguments that an application passes to a client, before their use. Pure.

Each function takes the name of the public call first, returns the argument in the form that the client works with, and
raises ``TypeError`` (``ValueError`` for a value out of range) with a text that names the call, the parameter and what
to pass. A str is iterable, so a list of names is checked for that first: ``subscribe("flights")`` would otherwise mean
seven topics of one letter.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar, cast, runtime_checkable

from moldau.cluster.metadata import TopicPartition
from moldau.cluster.troubles import check_topic_names
from moldau.runtime.config import Config, ConfigError
from moldau.values import Buffer, is_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.config import ConfigSchema

V = TypeVar("V")

Header = tuple[str, Buffer | None]

_SHOWN_CHARACTERS_MAX = 60
INT16_BITS = 15
INT64_BITS = 63
INT32_BITS = 31
_PAIR = 'a (topic, partition) pair such as ("flights", 0)'
_PAIRS = 'a list of (topic, partition) pairs such as [("flights", 0)]'


class ArgumentError(Exception):
    """Reports that an argument of a call is wrong. The text after the name of the call is ``reason``."""

    @property
    def reason(self) -> str:
        """The text without the name of the call."""
        return str(self).partition(": ")[2] or str(self)


class ArgumentTypeError(ArgumentError, TypeError):
    """Reports an argument of another type."""


class ArgumentValueError(ArgumentError, ValueError):
    """Reports an argument of the right type that is not allowed."""


def is_coroutine_function(function: object) -> bool:
    """Returns whether a call of a function, or of an object, makes a coroutine, which does nothing unless awaited."""
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def check_no_coroutine(name: str, function: object) -> None:
    """Refuses a function whose call a client does not await; ``name`` is the client's and its own.

    Raises:
        TypeError: it is a coroutine function.
    """
    if is_coroutine_function(function):
        raise TypeError(f"{name} is a coroutine function, which a client does not await; write it with def")


def shown(value: object) -> str:
    """Returns the type and the shortened text of a wrong argument."""
    text = shortened(value)
    return text if value is None else f"{type(value).__name__} {text}"


def shortened(value: object) -> str:
    """Returns at most ``_SHOWN_CHARACTERS_MAX`` characters of how Python writes a value."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "..."


def refuse(call: str, name: str, wanted: str, value: object, hint: str = "") -> NoReturn:
    """Refuses an argument; ``hint`` follows the text and says how to convert it.

    Raises:
        TypeError: always.
    """
    raise ArgumentTypeError(f"{call}: {name} must be {wanted}, not {shown(value)}{hint}")


def configuration(kind: str, config: object, schema: ConfigSchema) -> Config:
    """Returns the parsed configuration of a client.

    Raises:
        ConfigError: a key is unknown, or a value is not allowed.
        TypeError: the configuration is no mapping with string keys.
    """
    if not isinstance(config, Config):
        if not isinstance(config, Mapping):
            refuse(kind, "config", 'a mapping such as {"bootstrap.servers": "127.0.0.1:9092"}', config)
        return schema.parse(config)
    if config.schema is not schema:
        article = "an" if kind[0] in "AEIOU" else "a"
        raise ConfigError([f"{article} {kind} cannot use a {config.schema.name} configuration"])
    return config


# --- single values


def text(call: str, name: str, value: object) -> str:
    """Returns a name: a str that is not empty."""
    if not isinstance(value, str):
        hint = f"; decode it: {value.decode('utf-8', 'replace')!r}" if isinstance(value, bytes) else ""
        refuse(call, name, 'a str such as "flights"', value, hint)
    if not value:
        raise ArgumentValueError(f"{call}: {name} is empty")
    return value


def _index(call: str, name: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        refuse(call, name, "an int", value)


def integer(call: str, name: str, value: object, *, bits: int = INT32_BITS) -> int:
    """Returns an integer; ``bits`` is the size of the field that carries it in a request, without the sign.

    Raises:
        ValueError: it does not fit.
    """
    number = _index(call, name, value)
    if not -1 << bits <= number < 1 << bits:
        raise ArgumentValueError(f"{call}: {name} must be between -2**{bits} and 2**{bits} - 1, not {number}")
    return number


def offset(call: str, value: object, name: str = "offset") -> int:
    """Returns an offset.

    Raises:
        ValueError: it is negative, or above 2**63 - 1.
    """
    number = _index(call, name, value)
    if number < 0:
        raise ArgumentValueError(f"{call}: {name} {number} is negative")
    return _within(call, f"{name} {number}", number, INT64_BITS)


def _within(call: str, shown_number: str, number: int, bits: int) -> int:
    """Returns a number that its field in a request can hold."""
    if number >= 1 << bits:
        raise ArgumentValueError(f"{call}: {shown_number} is above 2**{bits} - 1")
    return number


def timestamp(call: str, value: object, name: str = "timestamp") -> int:
    """Returns a time in milliseconds since the Unix epoch.

    Raises:
        ValueError: it does not fit into 64 bits.
    """
    if hasattr(value, "__index__"):
        return integer(call, name, value, bits=INT64_BITS)
    hint = ""
    if isinstance(value, float):
        hint = "; pass int(...)"
    elif hasattr(value, "timestamp"):
        hint = "; pass int(when.timestamp() * 1000)"
    refuse(call, name, "an int in milliseconds since the Unix epoch", value, hint)


def times(call: str, name: str, given: object) -> dict[TopicPartition, int]:
    """Returns the time in milliseconds for each partition."""
    pairs = by_partition(call, name, given, "1700000000000")
    return {pair: timestamp(call, each, f"the time of {pair}") for pair, each in pairs}


def at_least(call: str, name: str, value: object, least: int, *, bits: int | None = None) -> int:
    """Returns a whole number; ``bits`` is the size of the field that carries it in a request, without the sign.

    Raises:
        ValueError: it is below ``least``, or does not fit.
    """
    number = _index(call, name, value)
    if number < least:
        raise ArgumentValueError(f"{call}: {name} must be {least} or more, not {number}")
    return number if bits is None else _within(call, f"{name} {number}", number, bits)


def pattern(call: str, value: object) -> None:
    """Checks a regular expression."""
    expression = text(call, "pattern", value)
    try:
        re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        raise ArgumentValueError(f"{call}: pattern {value!r} is no regular expression: {error}") from error


def milliseconds(call: str, value: object, name: str = "timeout_ms") -> float:
    """Returns a duration.

    Raises:
        ValueError: it is negative, or NaN.
    """
    if isinstance(value, bool) or not (isinstance(value, float) or hasattr(value, "__index__")):
        refuse(call, name, "a number of milliseconds", value, "; math.inf waits without end" if value is None else "")
    number: float = value if isinstance(value, float) else operator.index(value)
    if number != number:  # NaN
        raise ArgumentValueError(f"{call}: {name} is not a number")
    if number < 0:
        raise ArgumentValueError(f"{call}: {name} must be 0 or more, not {number}")
    return number


def time_limit(call: str, value: object, default_ms: float) -> float:
    """Returns the time limit of a call in milliseconds; without one (None) it is ``default_ms``."""
    return default_ms if value is None else milliseconds(call, value)


# --- several values


def elements(call: str, name: str, wanted: str, values: object) -> list[object]:
    """Returns the elements of an iterable that is not a text; ``wanted`` describes them for the error."""
    if isinstance(values, str | bytes | bytearray | memoryview):
        refuse(call, name, wanted, values)
    if not isinstance(values, Iterable):
        refuse(call, name, wanted, values)
    return list(values)


def texts(call: str, name: str, values: object) -> list[str]:
    """Returns names."""
    wanted = 'a list of str such as ["flights"]'
    if isinstance(values, str):
        refuse(call, name, wanted, values, f"; pass [{shortened(values)}]")
    names = elements(call, name, wanted, values)
    if "" in names:
        raise ArgumentValueError(f"{call}: one of {name} is empty")
    return [text(call, f"each of {name}", each) for each in names]


def integers(call: str, name: str, values: object, *, bits: int = INT32_BITS) -> list[int]:
    """Returns whole numbers, as ``integer`` does."""
    given = elements(call, name, "a list of int", values)
    return [integer(call, f"each of {name}", each, bits=bits) for each in given]


def instances(call: str, name: str, values: object, kind: type[V], example: str) -> list[V]:
    """Returns values of one class; ``example`` shows how to make one."""
    found: list[V] = []
    for each in elements(call, name, f"a list of {kind.__name__} such as [{example}]", values):
        if not isinstance(each, kind):
            refuse(call, f"each of {name}", f"a {kind.__name__} such as {example}", each)
        found.append(each)
    return found


def mapping(call: str, name: str, given: object, example: str) -> Mapping[str, object]:
    """Returns a mapping whose keys are names."""
    if not isinstance(given, Mapping):
        refuse(call, name, f"a mapping such as {example}", given)
    for key in given:
        text(call, f"each key of {name}", key)
    return given


def partition(call: str, value: object, name: str = "partition") -> TopicPartition:
    """Returns a partition of a topic.

    Raises:
        ValueError: its number is negative, or above 2**31 - 1.
    """
    if not isinstance(value, tuple | list) or len(value) != 2:
        refuse(call, name, _PAIR, value)
    topic, number = value
    if not isinstance(topic, str) or not topic:
        refuse(call, name, _PAIR, value)
    try:
        number = operator.index(number)
    except TypeError:
        refuse(call, name, _PAIR, value)
    if number < 0:
        raise ArgumentValueError(f"{call}: partition {number} of {topic} is negative")
    return TopicPartition(topic, _within(call, f"partition {number} of {topic}", number, INT32_BITS))


def partitions(call: str, values: object) -> list[TopicPartition]:
    """Returns partitions of topics."""
    found = elements(call, "partitions", _PAIRS, values)
    if isinstance(values, tuple) and len(values) == 2 and isinstance(values[0], str):
        refuse(call, "partitions", _PAIRS, values, f"; pass [{tuple(values)!r}]")
    return [partition(call, each, "each of partitions") for each in found]


def by_partition(call: str, name: str, given: object, value: str) -> list[tuple[TopicPartition, object]]:
    """Returns the value of each partition in a mapping; ``value`` is an example for the error."""
    if not isinstance(given, Mapping):
        refuse(call, name, f'a mapping such as {{("flights", 0): {value}}}', given)
    return [(partition(call, pair, f"each key of {name}"), each) for pair, each in given.items()]


def replicas(call: str, name: str, given: object) -> dict[tuple[str, int, int], str]:
    """Returns a text for each replica: topic, partition and broker."""
    if not isinstance(given, Mapping):
        refuse(call, name, 'a mapping such as {("flights", 0, 1): "/data/2"}', given)
    found: dict[tuple[str, int, int], str] = {}
    for key, value in given.items():
        if not isinstance(key, tuple) or len(key) != 3:
            refuse(call, f"each key of {name}", 'a (topic, partition, broker) triple such as ("flights", 0, 1)', key)
        topic, number = partition(call, key[:2], f"each key of {name}")
        found[topic, number, at_least(call, "broker", key[2], 0, bits=INT32_BITS)] = text_or_empty(
            call, f"the path of {key}", value
        )
    return found


def text_or_empty(call: str, name: str, value: object) -> str:
    """Returns a str, which may be empty."""
    return "" if value == "" else text(call, name, value)


@runtime_checkable
class Committable(Protocol):
    """The attributes of ``CommittedOffset``."""

    @property
    def offset(self) -> int:
        """Offset of the next record to read."""
        ...

    @property
    def leader_epoch(self) -> int:
        """Leader epoch of the record before it; -1 if unknown."""
        ...

    @property
    def metadata(self) -> str:
        """A text of the application."""
        ...


def committed_offsets(call: str, given: object) -> list[tuple[TopicPartition, int, int, str]]:
    """Returns partition, offset, leader epoch and metadata of each offset to commit.

    Raises:
        InvalidTopicError: a name is not a valid topic name.
        TypeError: a partition, an offset or its metadata is of a wrong type.
        ValueError: a request cannot hold a number or the metadata.
    """
    found = []
    for pair, each in by_partition(call, "offsets", given, "42"):
        check_topic_names([pair.topic])
        if isinstance(each, Committable):
            epoch = integer(call, f"the leader epoch of {pair}", each.leader_epoch)
            found.append((pair, offset(call, each.offset), epoch, _metadata(call, pair, each.metadata)))
        elif hasattr(each, "__index__"):
            found.append((pair, offset(call, each), -1, ""))
        else:
            refuse(call, f"the offset of {pair}", "an int or a CommittedOffset", each)
    return found


def _metadata(call: str, pair: TopicPartition, given: object) -> str:
    metadata = text_or_empty(call, f"the metadata of {pair}", "" if given is None else given)
    if not is_text(metadata):
        raise ArgumentValueError(f"{call}: the metadata of {pair} must be valid Unicode, not {shortened(metadata)}")
    return metadata


# --- records


def _buffer(call: str, name: str, value: object) -> None:
    if value is None or isinstance(value, bytes | bytearray):
        return
    if isinstance(value, memoryview):
        if value.itemsize != 1 or value.ndim != 1 or not value.c_contiguous:
            raise ArgumentValueError(
                f"{call}: {name} is a memoryview that is no plain run of bytes; pass {name}.tobytes()"
            )
        return
    hint = ""
    if isinstance(value, str):
        hint = f"; pass {shortened(value)}.encode()"
    refuse(call, name, "bytes or None", value, hint)


def batch(call: str, value: object) -> None:
    """Checks an encoded record batch: a buffer that is a plain run of bytes."""
    if value is None:
        refuse(call, "batch", "bytes", value)
    _buffer(call, "batch", value)


def partitions_of_rows(call: str, value: object, rows: int) -> None:
    """Checks the partitions of rows: a buffer of an int32 for each.

    Raises:
        ValueError: it has another length.
    """
    if value is None:
        return
    wanted = 'a buffer of int32 such as array("i", [0, 1]).tobytes()'
    try:
        size = memoryview(value).nbytes  # type: ignore[arg-type]
    except TypeError:
        refuse(call, "partitions", wanted, value)
    if size != rows * 4:
        raise ArgumentValueError(f"{call}: partitions has {size} bytes; {rows} rows need {rows * 4}, an int32 for each")


def headers(call: str, given: object) -> Sequence[Header]:
    """Returns headers of a record as a sequence, with its elements unchecked; consumes an iterator."""
    if isinstance(given, tuple | list):
        return given
    wanted = 'a list of (name, value) pairs such as [("trace", b"1")]'
    if isinstance(given, Mapping):
        refuse(call, "headers", wanted, given, "; pass list(headers.items())")
    return cast("list[Header]", elements(call, "headers", wanted, () if given is None else given))


def record(
    call: str,
    topic: object,
    value: object,
    key: object,
    given: object,
    partition_number: object,
    timestamp_ms: object,
) -> tuple[Sequence[Header], int | None, int | None]:
    """Checks a record to send; returns its headers, partition and timestamp."""
    text(call, "topic", topic)
    _buffer(call, "value", value)
    _buffer(call, "key", key)
    found = headers(call, given)
    for each in found:
        if not isinstance(each, tuple | list) or len(each) != 2:
            refuse(call, "each of headers", 'a (name, value) pair such as ("trace", b"1")', each)
        name, content = each
        if not isinstance(name, str):
            refuse(call, "each header's name", "a str", name)
        if not is_text(name):
            why = f"must be valid Unicode, not {name!r} (surrogates not allowed)"
            raise ArgumentValueError(f"{call}: each header's name {why}")
        _buffer(call, f"value of header {name!r}", content)
    if partition_number is not None:
        partition_number = integer(call, "partition", partition_number)
    if timestamp_ms is not None:
        timestamp_ms = timestamp(call, timestamp_ms)
    return found, partition_number, timestamp_ms
