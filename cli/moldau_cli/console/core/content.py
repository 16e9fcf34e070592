"""Shows the bytes of a key or value: as text, JSON or hexadecimal. Pure.

Records come from any producer, so their content is hostile input. These functions return plain text, and the page only
ever makes text nodes of it.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau_cli.output import Json

PREVIEW_BYTES: Final = 1024
WHOLE_BYTES: Final = 256 * 1024
_HEX_COLUMNS = 16
_HIDDEN = re.compile("[\\0-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\u202d\u202e]")
"""Control characters apart from tabs and line ends, and the two that turn the direction of what follows."""
_INDENT = "  "
_INDENTED_LEVELS_MAX = 20
"""Deeper levels are not indented further: a record of 256 KiB could become hundreds of megabytes of blanks."""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^\s\[\]{}:,"]+')


def is_text(content: bytes, *, is_whole: bool = True) -> bool:
    """Returns whether bytes are UTF-8 without control characters apart from tabs and line ends.

    Blanks of any script and characters that join others, as in emoji, are text. The last character of bytes that are
    not whole may be cut off.
    """
    try:
        text = _decoded(content, "strict", is_whole=is_whole)
    except UnicodeDecodeError:
        return False
    return not _HIDDEN.search(text)


def _decoded(content: bytes, errors: str, *, is_whole: bool) -> str:
    return codecs.getincrementaldecoder("utf-8")(errors).decode(content, final=is_whole)


def hex_dump(content: bytes) -> str:
    """Returns lines of sixteen bytes with their position and their printable characters, as ``xxd`` prints them."""
    lines = []
    for start in range(0, len(content), _HEX_COLUMNS):
        row = content[start : start + _HEX_COLUMNS]
        pairs = " ".join(f"{byte:02x}" for byte in row)
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {pairs:<{_HEX_COLUMNS * 3 - 1}}  {shown}")
    return "\n".join(lines)


def indented_json(content: bytes) -> str | None:
    """Returns a JSON object or array with indentation; None if the bytes are something else.

    Only blanks change: numbers keep their digits, and repeated names stay. Depth is bounded by the parser's recursion
    limit.
    """
    if content[:1] not in (b"{", b"["):
        return None
    try:
        text = content.decode("utf-8")
        json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return _indented(_TOKEN.findall(text))


def _indented(tokens: Sequence[str]) -> str:
    """Returns the tokens of valid JSON, one member or element a line."""
    parts: list[str] = []
    depth = 0
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        if token in "]}":
            depth -= 1
            if parts[-1] not in ("{", "["):
                parts.append("\n" + _INDENT * min(depth, _INDENTED_LEVELS_MAX))
        parts.append(": " if token == ":" else token)
        if token in "{[":
            depth += 1
        if token == "," or (token in "{[" and following not in ("]", "}")):
            parts.append("\n" + _INDENT * min(depth, _INDENTED_LEVELS_MAX))
    return "".join(parts)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def shown(content: bytes | None, *, bytes_max: int = PREVIEW_BYTES) -> Mapping[str, Json] | None:
    """Returns the views of a key or value; None for null.

    ``best`` names the view to show first. At most ``bytes_max`` bytes are shown, and JSON only if it is whole.
    """
    if content is None:
        return None
    head = content[:bytes_max]
    cut = len(content) > bytes_max
    text = _decoded(head, "replace", is_whole=not cut)
    as_json = None if cut else indented_json(content)
    readable = is_text(head, is_whole=not cut)
    best = "json" if as_json is not None else "text" if readable else "hex"
    return {"bytes": len(content), "cut": cut, "best": best, "text": text, "json": as_json, "hex": hex_dump(head)}


def entered(text: str | None, form: str) -> bytes | None:
    """Returns the bytes that a user entered as ``text``, ``json`` or ``hex``; None stays null.

    Raises:
        ValueError: the text is not of that form.
    """
    if text is None:
        return None
    if form == "hex":
        try:
            return bytes.fromhex(text)
        except ValueError:
            raise ValueError("expected pairs of hexadecimal digits, such as 00 ff 7a") from None
    if form == "json":
        try:
            json.loads(text, parse_constant=_refuse_constant)
        except ValueError as error:
            raise ValueError(f"not JSON: {error}") from None
        except RecursionError:
            raise ValueError("not JSON: nested too deeply") from None
    elif form != "text":
        raise ValueError(f"unknown form {form!r:.40}; known are text, json and hex")
    return text.encode()
