"""Input of ``moldau produce``: bytes become lines, and lines become records. Pure.

Lines are those of Kafka's console producer (``parse.key``, ``parse.headers``, ``null.marker``) and kcat; JSON lines
have the keys that ``moldau consume --output jsonl`` writes.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field
from typing import Final

from moldau_cli.errors import UsageError
from moldau_cli.records.core.values import Headers, NewRecord, Raw

LINE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of one line; more is an input without the delimiter. No broker takes records of that size."""
NO_TIMESTAMP: Final = -1
"""The timestamp in Kafka's batches of a record that has none."""
_KNOWN: Final = frozenset(
    {"topic", "partition", "offset", "timestamp", "key", "key_base64", "value", "value_base64", "headers"}
)


class Splitter:
    """Cuts bytes into lines at a delimiter. Invariant: the rest has no delimiter."""

    def __init__(self, delimiter: bytes = b"\n") -> None:
        """Takes the delimiter; a line feed also ends a line with a carriage return before it."""
        assert delimiter, "a delimiter has at least one byte"
        self._delimiter = delimiter
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines that end in the data.

        Raises:
            UsageError: a line has more than ``LINE_BYTES_MAX`` bytes.
        """
        searched = max(0, len(self._rest) - len(self._delimiter) + 1)
        self._rest += data
        if self._rest.find(self._delimiter, searched) < 0:
            if len(self._rest) > LINE_BYTES_MAX:
                raise UsageError(f"a line has more than {LINE_BYTES_MAX} bytes; does the input have the delimiter?")
            return []
        *lines, rest = bytes(self._rest).split(self._delimiter)
        self._rest = bytearray(rest)
        return [self._stripped(line) for line in lines]

    def end(self) -> list[bytes]:
        """Returns the last line, if the input does not end in a delimiter."""
        rest, self._rest = bytes(self._rest), bytearray()
        return [self._stripped(rest)] if rest else []

    def _stripped(self, line: bytes) -> bytes:
        return line.removesuffix(b"\r") if self._delimiter == b"\n" else line


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRules:
    """How a line becomes a record.

    ``headers_delimiter`` ends the headers in front of the key; None if lines have none. Keys, values and header values
    that equal ``null`` are null; with ``tombstones`` empty values are null too. ``json_key`` and ``json_value`` say
    that the format of keys or values has JSON: a text in a document is a value then, and not the text of a value.
    """

    key_separator: bytes | None = None
    key: bytes | None = None
    headers: Headers = ()
    headers_delimiter: bytes | None = None
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    null: bytes | None = None
    tombstones: bool = False
    partition: int | None = None
    timestamp: int | None = None
    topic: str = field(default="")
    json_key: bool = False
    json_value: bool = False


def parse_line(line: bytes, rules: LineRules, origin: str) -> NewRecord:
    """Returns the record of a line.

    Raises:
        UsageError: the headers have another form.
    """
    headers = rules.headers
    if rules.headers_delimiter is not None:
        text, found, line = line.partition(rules.headers_delimiter)
        if not found:
            raise UsageError(f"{origin}: no delimiter {rules.headers_delimiter!r} behind the headers")
        headers = (*headers, *_headers(text, rules, origin))
    key, value = rules.key, line
    if rules.key_separator is not None and rules.key_separator in line:
        key, _, value = line.partition(rules.key_separator)
    return NewRecord(_or_null(key, rules), _value(value, rules), headers, rules.partition, rules.timestamp, origin)


def _headers(text: bytes, rules: LineRules, origin: str) -> Headers:
    found: list[tuple[str, bytes | None]] = []
    for pair in text.split(rules.headers_separator) if text and text != rules.null else ():
        name, separator, value = pair.partition(rules.headers_key_separator)
        if not separator:
            raise UsageError(f"{origin}: the header {pair!r} has no {rules.headers_key_separator!r}")
        try:
            found.append((name.decode("utf-8"), _or_null(value, rules)))
        except UnicodeDecodeError as error:
            raise UsageError(f"{origin}: the name of a header is not UTF-8: {name!r}") from error
    return tuple(found)


def _or_null(content: bytes | None, rules: LineRules) -> bytes | None:
    return None if content is not None and content == rules.null else content


def _value(value: bytes, rules: LineRules) -> bytes | None:
    return None if rules.tombstones and not value else _or_null(value, rules)


def parse_document(line: bytes, rules: LineRules, origin: str) -> NewRecord:
    """Returns the record of a line of JSON: an object with ``value``, ``key``, ``headers`` and more.

    Texts become their UTF-8, unless the format has JSON; other values of JSON stay as they are, for a serializer.
    Base64 holds the bytes of the record. ``offset`` is ignored.

    Raises:
        UsageError: the line is no such object, or names another topic.
    """
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{origin}: expected a JSON object with a value: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{origin}: expected a JSON object, not {type(document).__name__}")
    if unknown := sorted(document.keys() - _KNOWN):
        raise UsageError(f"{origin}: unknown key {unknown[0]!r}; known are {', '.join(sorted(_KNOWN))}")
    if not document.keys() & {"value", "value_base64"}:
        raise UsageError(f"{origin}: neither value nor value_base64 is there; null makes a tombstone")
    if rules.topic and document.get("topic", rules.topic) != rules.topic:
        raise UsageError(f"{origin}: topic {document['topic']!r} is not {rules.topic!r}")
    key = _content(document, "key", origin, rules.json_key) if document.keys() & {"key", "key_base64"} else rules.key
    return NewRecord(
        key,
        _content(document, "value", origin, rules.json_value),
        (*rules.headers, *_document_headers(document.get("headers"), origin)),
        _number(document, "partition", origin) if rules.partition is None else rules.partition,
        _timestamp(document, origin) if rules.timestamp is None else rules.timestamp,
        origin,
    )


def _content(document: dict[str, object], name: str, origin: str, is_json: bool) -> object:
    if f"{name}_base64" not in document:
        value = document[name]
        return value.encode("utf-8", "surrogatepass") if isinstance(value, str) and not is_json else value
    if name in document:
        raise UsageError(f"{origin}: {name} and {name}_base64 exclude each other")
    encoded = document[f"{name}_base64"]
    try:
        return Raw(base64.b64decode(encoded if isinstance(encoded, str) else "?", validate=True))
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"{origin}: {name}_base64 is no base64: {error}") from error


def _document_headers(given: object, origin: str) -> Headers:
    """Returns headers given as a list of objects with ``name`` and ``value``, or as one object."""
    if given is None:
        return ()
    entries: list[object] = list(given) if isinstance(given, list) else []
    if isinstance(given, dict):
        entries = [{"name": name, "value": value} for name, value in given.items()]
    elif not isinstance(given, list):
        raise UsageError(f"{origin}: headers must be a list or an object, not {type(given).__name__}")
    found: list[tuple[str, bytes | None]] = []
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise UsageError(f"{origin}: a header needs a name and a value, not {json.dumps(entry)}")
        value = _content(entry, "value", origin, False) if entry.keys() & {"value", "value_base64"} else None
        if value is not None and not isinstance(value, bytes):
            raise UsageError(f"{origin}: the value of header {entry['name']} must be text or null")
        found.append((entry["name"], value))
    return tuple(found)


def _timestamp(document: dict[str, object], origin: str) -> int | None:
    """Returns the timestamp; None also for a record that had none in the log."""
    return None if document.get("timestamp") == NO_TIMESTAMP else _number(document, "timestamp", origin)


def _number(document: dict[str, object], name: str, origin: str) -> int | None:
    value = document.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise UsageError(f"{origin}: {name} must be a number of at least 0, not {json.dumps(value)}")
    return value
