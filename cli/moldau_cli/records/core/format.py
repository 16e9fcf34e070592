r"""Format strings with kcat's tokens, such as ``%t [%p] at %o: key %k: %s\n``. Pure.

| token | meaning |
|---|---|
| ``%s``, ``%S`` | value, and its length in bytes (-1 for null) |
| ``%R`` | length of the value as a signed integer of four bytes, the most significant byte first |
| ``%k``, ``%K`` | key, and its length in bytes (-1 for null) |
| ``%T`` | timestamp in milliseconds since the Unix epoch |
| ``%h`` | headers as ``name=value``, with commas between them |
| ``%t``, ``%p``, ``%o`` | topic, partition and offset |
| ``%%`` | a per cent sign |
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from moldau_cli.errors import UsageError
from moldau_cli.records.core.escapes import unescape
from moldau_cli.records.core.values import text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_cli.records.core.values import Headers, Row

    Part = bytes | Callable[[Row], bytes]
    Writer = Callable[[Row], bytes]

_TOKEN: Final = re.compile(r"%(.?)", re.DOTALL)


def parse_format(text: str, null: bytes = b"") -> Writer:
    """Returns a function that writes a record in a format; ``null`` stands for null keys, values and headers.

    Raises:
        UsageError: the format has an unknown token, or ends in a single ``%``.
    """
    tokens = _tokens(null)
    parts: list[Part] = []
    at = 0
    for found in _TOKEN.finditer(text):
        parts.append(unescape(text[at : found.start()]))
        name = found.group(1)
        if name == "%":
            parts.append(b"%")
        elif name in tokens:
            parts.append(tokens[name])
        else:
            known = " ".join(f"%{each}" for each in tokens)
            raise UsageError(f"--format: unknown token %{name}; known are {known} and %%")
        at = found.end()
    parts.append(unescape(text[at:]))
    used = [part for part in parts if part]

    def write(row: Row) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(row) for part in used)

    return write


def _tokens(null: bytes) -> dict[str, Callable[[Row], bytes]]:
    return {
        "s": lambda row: text_of(row.value, null),
        "S": lambda row: b"%d" % _length(row.value.raw),
        "R": lambda row: _length(row.value.raw).to_bytes(4, "big", signed=True),
        "k": lambda row: text_of(row.key, null),
        "K": lambda row: b"%d" % _length(row.key.raw),
        "T": lambda row: b"%d" % row.timestamp,
        "h": lambda row: headers_text(row.headers, null),
        "t": lambda row: row.topic.encode(),
        "p": lambda row: b"%d" % row.partition,
        "o": lambda row: b"%d" % row.offset,
    }


def headers_text(headers: Headers, null: bytes = b"") -> bytes:
    """Returns headers as ``name=value``, with commas between them."""
    return b",".join(name.encode() + b"=" + (null if value is None else value) for name, value in headers)


def _length(raw: bytes | None) -> int:
    return -1 if raw is None else len(raw)
