"""Rows to encode, in plain Python: the twin of ``_codec_rows.pxi``. ``_codec.pyi`` has the signatures."""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from moldau.records.columns import BinaryColumn

    Buffer = bytes | bytearray | memoryview

_MASK = 0xFFFFFFFFFFFFFFFF
_FACTOR = 0x9E3779B97F4A7C15
_START = 0x243F6A8885A308D3


def murmur2(data: Buffer) -> int:
    """See ``_codec.pyi``."""
    raw = bytes(data)
    size = len(raw)
    mask = 0xFFFFFFFF
    factor = 0x5BD1E995
    hashed = 0x9747B28C ^ size
    whole = size & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(raw[at : at + 4], "little") * factor & mask
        word = (word ^ word >> 24) * factor & mask
        hashed = hashed * factor & mask ^ word
    if size > whole:
        hashed = (hashed ^ int.from_bytes(raw[whole:], "little")) * factor & mask
    hashed = (hashed ^ hashed >> 13) * factor & mask
    return hashed ^ hashed >> 15


def _mix(state: int, number: int) -> int:
    state = (state ^ number & _MASK) * _FACTOR & _MASK
    return state ^ state >> 29


def _numbers(name: str, kind: str, buffer: Buffer, count: int) -> array[int]:
    found = array(kind)
    needed = found.itemsize * count
    view = memoryview(buffer).cast("B")
    if view.nbytes < needed:
        raise ValueError(f"{name}: {view.nbytes} bytes, {needed} needed")
    found.frombytes(view[:needed])
    return found


def _check_offsets(name: str, offsets: array[int], end: int) -> None:
    is_wrong = offsets[0] < 0 or any(after < before for before, after in pairwise(offsets))
    if is_wrong or offsets[-1] > end:
        raise ValueError(f"{name}: offsets do not ascend from 0 or more to at most {end}")


def _fields(name: str, given: BinaryColumn | None, length: int) -> list[bytes | None]:
    """Returns the values of a column; a column that is not there is null in each row."""
    if given is None:
        return [None] * length
    if given.length != length:
        raise ValueError(f"{name}: {given.length} rows, {length} needed")
    offsets = _numbers(name, "i", given.offsets, length + 1)
    data = memoryview(given.data).cast("B")
    _check_offsets(name, offsets, data.nbytes)
    valid: Buffer | None = None
    if given.null_count:
        valid = memoryview(given.validity).cast("B")
        if valid.nbytes < (length + 7) >> 3:
            raise ValueError(f"{name}: {valid.nbytes} bytes, {(length + 7) >> 3} needed")
    return [
        bytes(data[offsets[row] : offsets[row + 1]]) if valid is None or valid[row >> 3] >> (row & 7) & 1 else None
        for row in range(length)
    ]


@final
class RowColumns:
    """Rows to encode; see ``_codec.pyi``."""

    __slots__ = ("headers", "keys", "length", "timestamps", "values")

    def __init__(
        self,
        length: int,
        keys: BinaryColumn | None = None,
        values: BinaryColumn | None = None,
        timestamps: Buffer | None = None,
        header_offsets: Buffer | None = None,
        header_keys: BinaryColumn | None = None,
        header_values: BinaryColumn | None = None,
    ) -> None:
        if length < 0:
            raise ValueError("length must not be negative")
        self.length = length
        self.keys = _fields("keys", keys, length)
        self.values = _fields("values", values, length)
        self.timestamps = None if timestamps is None else _numbers("timestamps", "q", timestamps, length)
        self.headers: list[list[tuple[bytes, bytes | None]]] | None = None
        if header_offsets is not None:
            if header_keys is None or header_values is None:
                raise ValueError("header_offsets need header_keys and header_values")
            bounds = _numbers("header_offsets", "i", header_offsets, length + 1)
            _check_offsets("header_offsets", bounds, min(header_keys.length, header_values.length))
            if header_keys.null_count:
                raise ValueError("header_keys: a header key must not be null")
            names = _fields("header_keys", header_keys, header_keys.length)
            fields = _fields("header_values", header_values, header_values.length)
            pairs = [(name or b"", field) for name, field in zip(names, fields, strict=False)]
            self.headers = [pairs[bounds[row] : bounds[row + 1]] for row in range(length)]

    def size_bound(self, row: int) -> int:
        """Returns an upper bound of the size of a batch of this row alone, uncompressed."""
        if not 0 <= row < self.length:
            raise IndexError(f"row {row} of {self.length}")
        key, value = self.keys[row], self.values[row]
        return 97 + len(key or b"") + len(value or b"") + self._headers_bytes(row)

    def timestamp(self, row: int) -> int:
        """Returns the timestamp of a row; -1 if it has none."""
        if not 0 <= row < self.length:
            raise IndexError(f"row {row} of {self.length}")
        return -1 if self.timestamps is None else max(self.timestamps[row], -1)

    def largest_bound(self) -> int:
        """Returns the greatest ``size_bound`` of a row; 0 without rows."""
        return max(map(self.size_bound, range(self.length)), default=0)

    def _headers_bytes(self, row: int) -> int:
        if self.headers is None:
            return 1
        total = _varint_size(len(self.headers[row]))
        for name, field in self.headers[row]:
            total += _varint_size(len(name)) + len(name)
            total += 1 if field is None else _varint_size(len(field)) + len(field)
        return total

    def partitions_by_key(self, count: int) -> bytes:
        """Returns the partition of each row (int32) as Kafka's default partitioner computes it; -1 without a key."""
        if count < 1:
            raise ValueError(f"{count} partitions")
        return array("i", [-1 if key is None else (murmur2(key) & 0x7FFFFFFF) % count for key in self.keys]).tobytes()

    def fingerprint(self) -> int:
        """Returns a sum of 64 bits over hashes of the rows; it does not depend on their order."""
        total = 0
        for row in range(self.length):
            state = _mix_field(_mix_field(_START, self.keys[row]), self.values[row])
            if self.timestamps is not None:
                state = _mix(state, self.timestamps[row])
            for name, field in () if self.headers is None else self.headers[row]:
                state = _mix_field(_mix_field(state, name), field)
            total += state
        return total & _MASK


def _varint_size(number: int) -> int:
    return max((number << 1).bit_length() + 6, 7) // 7


def _mix_field(state: int, field: bytes | None) -> int:
    state = _mix(state, 0 if field is None else len(field) + 1)
    return _mix(state, murmur2(field)) if field else state


def group_rows(partitions: Buffer, count: int) -> list[tuple[int, bytes]]:
    """See ``_codec.pyi``."""
    if count < 1:
        raise ValueError(f"{count} partitions")
    view = memoryview(partitions).cast("B")
    if view.nbytes % 4:
        raise ValueError(f"partitions: {view.nbytes} bytes are no int32 numbers")
    groups: dict[int, array[int]] = {}
    for row, partition in enumerate(_numbers("partitions", "i", view, view.nbytes // 4)):
        if not -1 <= partition < count:
            raise ValueError(f"row {row}: partition {partition}, there are 0 to {count - 1}")
        groups.setdefault(partition, array("i")).append(row)
    return [(partition, groups[partition].tobytes()) for partition in sorted(groups)]
