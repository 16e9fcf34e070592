"""Words of the command line that several commands read."""

from __future__ import annotations

from typing import Final

from moldau_cli.errors import UsageError

BROKER_IDS: Final = "expected different broker ids such as 1,2,3"


NUMBER_MAX: Final = 2**63 - 1
"""No offset, time or id of the protocol is greater."""


def is_number(text: str) -> bool:
    """Returns whether a text is a number from 0 to ``NUMBER_MAX``; Python converts no text of thousands of digits."""
    return text.isdecimal() and len(text) <= len(str(NUMBER_MAX)) and int(text) <= NUMBER_MAX


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: "1 broker", "2 brokers"."""
    return f"{number} {noun if number == 1 else noun + 's'}"


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


def parse_settings(pairs: list[str], *, may_repeat: bool = True) -> dict[str, str]:
    """Parses ``KEY=VALUE`` words; the last one of a key counts.

    Raises:
        UsageError: a word has no ``=`` or no key, or a key is there twice and must not be.
    """
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"expected KEY=VALUE, not {pair!r}")
        if not may_repeat and key.strip() in settings:
            raise UsageError(f"{key.strip()} is given twice")
        settings[key.strip()] = value.strip()
    return settings


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
