"""Words of the command line that several commands read."""

from __future__ import annotations

import math
import re
import warnings
from typing import TYPE_CHECKING, Final

from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

BROKER_OPTIONS: Final = ("-b", "--bootstrap-server")
BROKER_IDS: Final = "expected different broker ids such as 1,2,3"


NUMBER_MAX: Final = 2**63 - 1
"""No offset, time or id of the protocol is greater."""


def is_number(text: str) -> bool:
    """Returns whether a text is a number from 0 to ``NUMBER_MAX``; Python converts no text of thousands of digits."""
    return text.isdecimal() and len(text) <= len(str(NUMBER_MAX)) and int(text) <= NUMBER_MAX


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: "1 broker", "2,000 brokers"."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def absent_partition(topic: str, known: Iterable[int], number: int) -> str:
    """Returns the text of an error: a topic has these partitions, and not the one that the user named."""
    return f"topic {topic} has {partition_ranges(known)}, not {number}"


def partition_ranges(numbers: Iterable[int]) -> str:
    """Returns partitions in words: "no partition", "partition 0", "partitions 0 to 3", "partitions 0 to 3, 5"."""
    ranges: list[range] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1].stop == number:
            ranges[-1] = range(ranges[-1].start, number + 1)
        else:
            ranges.append(range(number, number + 1))
    texts = [str(one.start) if len(one) == 1 else f"{one.start} to {one.stop - 1}" for one in ranges]
    count = sum(map(len, ranges))
    return f"partition{'s' * (count > 1)} {', '.join(texts)}" if count else "no partition"


def a_number(value: float | None) -> float | None:
    """Returns the value of an option with fractions, as a callback of typer: no range leaves NaN out."""
    import typer

    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan is not a number")
    return value


def brokers_last(arguments: Sequence[str]) -> list[str]:
    """Moves ``-b`` before the command, where kcat and rpk have it, behind the command that takes it."""
    first = arguments[0] if arguments else ""
    count = 2 if first in BROKER_OPTIONS else 1
    if first.partition("=")[0] not in BROKER_OPTIONS:
        return list(arguments)
    moved, rest = list(arguments[:count]), list(arguments[count:])
    end = rest.index("--") if "--" in rest else len(rest)
    return rest[:end] + moved + rest[end:]


def expression_of(text: str, option: str) -> re.Pattern[str]:
    """Compiles the regular expression of an option; Python's remarks about its form, such as ``[[``, are left out.

    Raises:
        UsageError: it is none, or Python cannot hold it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{option}: {text!r} is not a regular expression: {error}") from error


def refuse_principal(option: str, name: str) -> None:
    """Refuses a principal such as ``User:alice`` where a name is expected: it would be the name of another user.

    Raises:
        UsageError: the name begins with ``User:``.
    """
    kind, colon, rest = name.partition(":")
    if colon and kind.lower() == "user":
        raise UsageError(f"{option}: expected a name without {kind}:, such as {rest or 'alice'}, not {name!r}")


def address_of(text: str, source: str) -> tuple[str, int]:
    """Parses ``HOST:PORT``; ``source`` says where the text comes from, in front of the error.

    Raises:
        UsageError: it has another form, or there is no such port.
    """
    from moldau.runtime.config import parse_address

    try:
        return parse_address(text)
    except ValueError as error:
        raise UsageError(f"{source}expected HOST:PORT, not {text!r} ({error})") from error


def parse_settings(pairs: list[str], option: str, *, may_repeat: bool = True) -> dict[str, str]:
    """Parses the ``KEY=VALUE`` words of an option; the last one of a key counts.

    Raises:
        UsageError: a word has no ``=`` or no key, or is not UTF-8, or a key is there twice and must not be.
    """
    settings: dict[str, str] = {}
    for pair in pairs:
        if pair.encode("utf-8", "replace").decode("utf-8") != pair:
            raise UsageError(f"{option}: {pair!r} is not UTF-8")
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{option}: expected KEY=VALUE, not {pair!r}")
        if not may_repeat and key.strip() in settings:
            raise UsageError(f"{option}: {key.strip()} is given twice")
        settings[key.strip()] = value.strip()
    return settings


def split_settings(texts: Iterable[str], is_key: Callable[[str], bool]) -> list[str]:
    """Divides ``KEY=VALUE,KEY=VALUE`` into its settings, as Kafka's ``kafka-configs`` does.

    A comma ends a value if a known key and ``=`` follow; others belong to the value, as in ``cleanup.policy=compact,
    delete``. Brackets around a whole value, which may hold what looks like a key, are removed: ``[a=1,b=2]``.
    """
    settings: list[str] = []
    for text in texts:
        parts: list[str] = []
        for part in text.split(","):
            key, equals, _ = part.partition("=")
            if parts and (_is_open(parts[-1]) or not equals or not is_key(key.strip())):
                parts[-1] += f",{part}"
            else:
                parts.append(part)
        settings += map(_without_brackets, parts)
    return settings


def _is_open(setting: str) -> bool:
    """Returns whether a value begins with a bracket that has not ended yet."""
    value = setting.partition("=")[2].strip()
    return value.startswith("[") and "]" not in value


def _without_brackets(setting: str) -> str:
    key, equals, value = setting.partition("=")
    inner = value.strip()
    if inner.startswith("[") and inner.endswith("]") and not {"[", "]"} & set(inner[1:-1]):
        return f"{key}{equals}{inner[1:-1]}"
    return setting


def parse_ids(text: str, expected: str, *, may_be_empty: bool = False) -> list[int]:
    """Parses the ids of different nodes, such as ``1,2,3``.

    Raises:
        UsageError: a word is not a number, or a node is named twice; it names what was ``expected``.
    """
    if may_be_empty and not text.strip():
        return []
    words = [word.strip() for word in text.split(",")]
    if not all(map(is_number, words)) or len(set(words)) != len(words):
        raise UsageError(f"{expected}, not {text!r}")
    return [int(word) for word in words]
