r"""Escapes in delimiters and formats: ``\n``, ``\r``, ``\t``, ``\0``, ``\\`` and ``\xNN``, as kcat has them. Pure."""

from __future__ import annotations

import re
from typing import Final

_ESCAPE: Final = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|.)", re.DOTALL)
_SINGLE: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0"}


def unescape(text: str) -> bytes:
    """Returns the bytes of a text with escapes; an unknown escape is the character itself."""
    out, at = bytearray(), 0
    for found in _ESCAPE.finditer(text):
        out += text[at : found.start()].encode("utf-8", "surrogateescape")
        escape = found.group(1)
        if len(escape) > 1:
            out.append(int(escape[1:], 16))
        else:
            out += _SINGLE.get(escape) or escape.encode("utf-8", "surrogateescape")
        at = found.end()
    return bytes(out + text[at:].encode("utf-8", "surrogateescape"))
