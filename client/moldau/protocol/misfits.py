"""Names the value of a message that its field cannot hold, for the error of an encoder. Pure.

The compiled encoders pack neighbouring numbers with one call of ``struct``, whose error names none of them. Only a
failed message is searched, so the search costs the others nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.schema import Message, Struct
from moldau.values import is_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau.protocol.field import FieldSpec

_RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
_SHOWN_CHARACTERS_MAX = 60


def misfit(message: Message, version: int) -> str:
    """Returns a sentence about the first number or text that does not fit; empty if all of them do.

    The sentence has the name of the field, the entries that hold it, its value, and the range that is allowed.
    """
    return next(_misfits(message, version, ""), "")


def _misfits(struct: Struct, version: int, owner: str) -> Iterator[str]:
    for key, spec in struct.__fields__.items():
        if version not in spec.versions:
            continue
        value = getattr(struct, key)
        if value is None:
            continue
        if not spec.is_array:
            yield from _of_value(spec, value, version, key, owner)
            continue
        for index, each in enumerate(value):
            yield from _of_value(spec, each, version, _entry(key, index, each), owner)


def _of_value(spec: FieldSpec, value: object, version: int, name: str, owner: str) -> Iterator[str]:
    if isinstance(value, Struct):
        yield from _misfits(value, version, f" of {name}{owner}")
    elif spec.kind in _RANGES:
        low, high = _RANGES[spec.kind]
        if not hasattr(value, "__index__"):
            yield f"{name}{owner} is {_shown(value)}, which is no integer"
        elif not low <= value.__index__() <= high:
            yield f"{name}{owner} is {_shown(value)}; it must be between {low} and {high}"
    elif spec.kind == "float64" and not hasattr(value, "__float__"):
        yield f"{name}{owner} is {_shown(value)}, which is no number"
    elif isinstance(value, str) and not is_text(value):
        yield f"{name}{owner} is {_shown(value)}, which is not valid Unicode"


def _entry(key: str, index: int, entry: object) -> str:
    """Returns the name of an entry of an array, by its own name if it has one."""
    if isinstance(entry, Struct):
        for field, spec in entry.__fields__.items():
            value = getattr(entry, field)
            if spec.kind == "string" and isinstance(value, str) and value:
                return f"{key} {_shown(value)}"
    return f"{key}[{index}]"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "..."
