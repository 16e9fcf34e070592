"""Columns of binary fields, as Arrow lays them out."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from moldau.records import BinaryColumn, RowColumns

if TYPE_CHECKING:
    from collections.abc import Sequence


def column(fields: Sequence[bytes | None]) -> BinaryColumn:
    offsets, data, validity = array("i", [0]), bytearray(), bytearray((len(fields) + 7) // 8)
    for index, field in enumerate(fields):
        data += field or b""
        validity[index >> 3] |= (field is not None) << (index & 7)
        offsets.append(len(data))
    return BinaryColumn(
        length=len(fields),
        null_count=fields.count(None),
        validity=bytes(validity),
        offsets=offsets.tobytes(),
        data=bytes(data),
    )


def rows(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> RowColumns:
    return RowColumns(len(values), None if keys is None else column(keys), column(values))
