"""The loops over records of a batch (format v2, KIP-98) in plain Python: the twin of ``_codec.pyx``.

It serves where the extension was not built, and tests hold both equal on any input, error texts included. Signatures
and documentation are in ``_codec.pyi``.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, final

from moldau.records.columns import BinaryColumn, Columns
from moldau.records.errors import InvalidRecordError, corrupt_record
from moldau.records.pure.append import PartitionSlot, PendingRecord, RecordAppender, RecordPlace, TopicRoute
from moldau.records.pure.rows import RowColumns, group_rows, murmur2
from moldau.records.pure.walk import RecordWalker
from moldau.records.pure.wire import (
    INT32_MAX,
    OFFSET,
    RANGE,
    TRAILING,
    Broken,
    Parsed,
    fits,
    parse_record,
    read_varint,
    read_varlong,
    view_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeAlias

    Buffer: TypeAlias = bytes | bytearray | memoryview
    Header: TypeAlias = tuple[str, bytes | None]

__all__ = [
    "IMPLEMENTATION",
    "ColumnBuilder",
    "PartitionSlot",
    "PendingRecord",
    "Record",
    "RecordAppender",
    "RecordPlace",
    "RecordWalker",
    "RecordWriter",
    "RowColumns",
    "TopicRoute",
    "decode_records",
    "find_timestamp",
    "group_rows",
    "murmur2",
]

IMPLEMENTATION = "python"


@final
class Record:
    """One record; see ``_codec.pyi``."""

    __slots__ = ("_headers", "_key", "_offset", "_timestamp", "_value")

    def __init__(
        self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: Iterable[Header] = ()
    ) -> None:
        self._offset = offset
        self._timestamp = timestamp
        self._key = key
        self._value = value
        self._headers = tuple(headers)

    @property
    def offset(self) -> int:
        """Offset in the partition."""
        return self._offset

    @property
    def timestamp(self) -> int:
        """Time in milliseconds."""
        return self._timestamp

    @property
    def key(self) -> bytes | None:
        """The key, or None."""
        return self._key

    @property
    def value(self) -> bytes | None:
        """The value, or None."""
        return self._value

    @property
    def headers(self) -> tuple[Header, ...]:
        """Pairs of name and value, in order."""
        return self._headers

    def _fields(self) -> tuple[int, int, bytes | None, bytes | None, tuple[Header, ...]]:
        return (self._offset, self._timestamp, self._key, self._value, self._headers)

    def __repr__(self) -> str:
        return (
            f"Record(offset={self._offset!r}, timestamp={self._timestamp!r}, key={self._key!r}, "
            f"value={self._value!r}, headers={self._headers!r})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __reduce__(self) -> tuple[type[Record], tuple[int, int, bytes | None, bytes | None, tuple[Header, ...]]]:
        return (Record, self._fields())


def _read_headers(data: memoryview, at: int, end: int, count: int) -> tuple[Header, ...]:
    headers: list[Header] = []
    for _ in range(count):
        size, at = read_varint(data, at, end)
        name = str(data[at : at + size], "utf-8", "replace")
        size, at = read_varint(data, at + size, end)
        headers.append((name, None if size < 0 else bytes(data[at : at + size])))
        at += max(size, 0)
    return tuple(headers)


def _parse_all(
    data: memoryview, start: int, end: int, count: int, base_offset: int, base_timestamp: int, last_offset_delta: int
) -> list[Parsed]:
    records: list[Parsed] = []
    at = start
    previous = -1
    for index in range(count):
        try:
            record = parse_record(data, at, end)
        except Broken as broken:
            raise corrupt_record(broken.reason, index) from None
        if record[1] <= previous or record[1] > last_offset_delta:
            raise corrupt_record(OFFSET, index)
        if not fits(base_offset + record[1]) or not fits(base_timestamp + record[0]):
            raise corrupt_record(RANGE, index)
        previous = record[1]
        at = record[8]
        records.append(record)
    if at != end:
        raise corrupt_record(TRAILING, count)
    return records


def decode_records(
    buffer: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_timestamp: int | None,
    last_offset_delta: int,
    first_offset: int,
) -> list[Record]:
    """See ``_codec.pyi``."""
    data = view_of(buffer, start, end)
    records: list[Record] = []
    for parsed in _parse_all(data, start, end, count, base_offset, base_timestamp, last_offset_delta):
        timestamp_delta, offset_delta, key_at, key_size, value_at, value_size, headers_at, header_count, record_end = (
            parsed
        )
        if base_offset + offset_delta < first_offset:
            continue
        records.append(
            Record(
                base_offset + offset_delta,
                base_timestamp + timestamp_delta if append_timestamp is None else append_timestamp,
                None if key_size < 0 else bytes(data[key_at : key_at + key_size]),
                None if value_size < 0 else bytes(data[value_at : value_at + value_size]),
                _read_headers(data, headers_at, record_end, header_count) if header_count else (),
            )
        )
    return records


def find_timestamp(
    buffer: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_timestamp: int | None,
    timestamp: int,
    first_offset: int,
) -> tuple[int, int] | None:
    """See ``_codec.pyi``."""
    data = view_of(buffer, start, end)
    at = start
    for index in range(count):
        try:
            timestamp_delta, offset_delta, _, _, _, _, _, _, at = parse_record(data, at, end)
        except Broken as broken:
            raise corrupt_record(broken.reason, index) from None
        if not fits(base_offset + offset_delta) or not fits(base_timestamp + timestamp_delta):
            raise corrupt_record(RANGE, index)
        found = base_timestamp + timestamp_delta if append_timestamp is None else append_timestamp
        if found >= timestamp and base_offset + offset_delta >= first_offset:
            return base_offset + offset_delta, found
    return None


def _encode_varint(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    if raw < 0x80:
        return bytes((raw,))
    encoded = bytearray()
    while raw >= 0x80:
        encoded.append(raw & 0x7F | 0x80)
        raw >>= 7
    encoded.append(raw)
    return bytes(encoded)


def _encode_field(field: Buffer | None) -> bytes:
    if field is None:
        return b"\x01"
    if type(field) is not bytes:
        field = bytes(memoryview(field))
    return _encode_varint(len(field)) + field


def _check_int64(name: str, number: int) -> None:
    if not fits(number):
        raise OverflowError(f"{name} {number} does not fit 64 bits")


@final
class RecordWriter:
    """Encodes records one after the other; see ``_codec.pyi``."""

    __slots__ = ("_buffer", "_is_base_fixed", "base_timestamp", "count", "last_offset_delta", "max_timestamp", "size")

    def __init__(self, reserved: int = 0, capacity: int = 1024, base_timestamp: int | None = None) -> None:
        if reserved < 0 or capacity < 0:
            raise ValueError("reserved and capacity must not be negative")
        self._buffer: bytearray | None = bytearray(reserved)
        self.size = reserved
        self.count = 0
        self.last_offset_delta = -1
        self._is_base_fixed = base_timestamp is not None
        self.base_timestamp = -1 if base_timestamp is None else base_timestamp
        self.max_timestamp = -1

    def _bytes(self) -> bytearray:
        if self._buffer is None:
            raise ValueError("the writer's bytes have been taken")
        return self._buffer

    def append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]] = (),
        size_limit: int = INT32_MAX,
        offset_delta: int = -1,
    ) -> int:
        """Encodes one record; returns its offset delta, or None if it does not fit."""
        self._bytes()
        _check_int64("timestamp", timestamp)
        _check_int64("offset delta", offset_delta)
        if offset_delta < 0:
            offset_delta = self.last_offset_delta + 1
        elif offset_delta <= self.last_offset_delta:
            raise ValueError(f"offset delta {offset_delta} is not above {self.last_offset_delta}")
        if offset_delta > INT32_MAX:
            raise ValueError(f"offset delta {offset_delta} does not fit 32 bits")
        named = []
        for name, field in headers:
            if not isinstance(name, str):
                raise InvalidRecordError(f"a header key must be a str, not {type(name).__name__}")
            named.append((str.encode(name), field))
        return self._append(timestamp, key, value, named, size_limit, offset_delta)

    def _append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[bytes, Buffer | None]],
        size_limit: int,
        offset_delta: int = -1,
    ) -> int:
        buffer = self._bytes()
        if offset_delta < 0:
            offset_delta = self.last_offset_delta + 1
        base = timestamp if self.count == 0 and not self._is_base_fixed else self.base_timestamp
        delta = timestamp - base
        if not fits(delta):
            raise InvalidRecordError(f"timestamp {timestamp} is too far from {base}, the first of its batch")
        parts = [b"\0", _encode_varint(delta), _encode_varint(offset_delta), _encode_field(key), _encode_field(value)]
        parts.append(_encode_varint(len(headers)))
        for name, field in headers:
            parts.append(_encode_field(name))
            parts.append(_encode_field(field))
        body = b"".join(parts)
        if len(body) > INT32_MAX:
            raise InvalidRecordError(f"a record of {len(body)} bytes does not fit 32 bits")
        size = _encode_varint(len(body))
        total = len(buffer) + len(size) + len(body)
        if self.count > 0 and total > size_limit:
            return -1
        if total > INT32_MAX:
            raise InvalidRecordError(f"a batch of {total} bytes does not fit 32 bits")
        buffer += size
        buffer += body
        self.size = total
        if self.count == 0:
            self.base_timestamp = base
            self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.count += 1
        self.last_offset_delta = offset_delta
        return offset_delta

    def append_rows(
        self, columns: RowColumns, rows: Buffer, start: int, timestamp: int, size_limit: int = INT32_MAX
    ) -> int:
        """Encodes rows in the order in which ``rows`` (int32 each) names them, from its element ``start`` on.

        Returns how many were taken before the next one would exceed ``size_limit`` bytes; the first record of a batch
        is taken at any size. ``timestamp`` is that of rows without one.

        Raises:
            InvalidRecordError: A row cannot be encoded; the rows before it were taken.
            IndexError: A number names no row.
            ValueError: ``rows`` is no array of int32.
        """
        self._bytes()
        numbers = array("i")
        view = memoryview(rows).cast("B")
        numbers.frombytes(view[: view.nbytes // 4 * 4])
        if not 0 <= start <= len(numbers):
            raise ValueError(f"start {start} is not within {len(numbers)} rows")
        for index in range(start, len(numbers)):
            row = numbers[index]
            if not 0 <= row < columns.length:
                raise IndexError(f"row {row} of {columns.length}")
            moment = timestamp
            if columns.timestamps is not None and columns.timestamps[row] >= 0:
                moment = columns.timestamps[row]
            if self.last_offset_delta >= INT32_MAX:
                return index - start
            headers = [] if columns.headers is None else columns.headers[row]
            if self._append(moment, columns.keys[row], columns.values[row], headers, size_limit) < 0:
                return index - start
        return len(numbers) - start

    def copy(
        self,
        buffer: Buffer,
        start: int,
        end: int,
        count: int,
        keep: bytes,
        base_timestamp: int,
        append_timestamp: int | None,
    ) -> int:
        """Copies encoded records; returns their number."""
        target = self._bytes()
        if len(keep) != count:
            raise ValueError(f"{len(keep)} marks for {count} records")
        copied = 0
        with view_of(buffer, start, end) as data:
            at = start
            for index in range(count):
                begin = at
                try:
                    record = parse_record(data, at, end)
                except Broken as broken:
                    raise corrupt_record(broken.reason, index) from None
                at = record[8]
                if not keep[index]:
                    continue
                if record[1] <= self.last_offset_delta:
                    raise corrupt_record(OFFSET, index)
                timestamp = base_timestamp + record[0] if append_timestamp is None else append_timestamp
                if not fits(timestamp):
                    raise corrupt_record(RANGE, index)
                base = timestamp if self.count == 0 and not self._is_base_fixed else self.base_timestamp
                delta = timestamp - base
                if not fits(delta):
                    raise InvalidRecordError(f"timestamp {timestamp} is too far from {base}, the first of its batch")
                _, rest_at = read_varint(data, begin, end)
                _, rest_at = read_varlong(data, rest_at + 1, end)
                body = b"\0" + _encode_varint(delta) + bytes(data[rest_at:at])
                size = _encode_varint(len(body))
                total = len(target) + len(size) + len(body)
                if total > INT32_MAX:
                    raise InvalidRecordError(f"a batch of {total} bytes does not fit 32 bits")
                target += size
                target += body
                self.size = total
                if self.count == 0:
                    self.base_timestamp = base
                    self.max_timestamp = timestamp
                elif timestamp > self.max_timestamp:
                    self.max_timestamp = timestamp
                self.count += 1
                self.last_offset_delta = record[1]
                copied += 1
            if at != end:
                raise corrupt_record(TRAILING, count)
        return copied

    def take(self) -> bytearray:
        """Hands the bytes over; the writer cannot be used afterwards."""
        buffer = self._bytes()
        self._buffer = None
        return buffer


class _BinaryBuilder:
    """Rows of one binary column."""

    __slots__ = ("data", "offsets", "present")

    def __init__(self) -> None:
        self.data = bytearray()
        self.offsets = array("i", [0])
        self.present = bytearray()

    def push(self, field: Buffer | None) -> None:
        self.present.append(field is not None)
        if field is not None:
            self.data += field
        self.offsets.append(len(self.data))

    def finish(self) -> BinaryColumn:
        length = len(self.present)
        validity = bytearray((length + 7) // 8)
        for index, is_present in enumerate(self.present):
            validity[index >> 3] |= is_present << (index & 7)
        return BinaryColumn(
            length=length,
            null_count=length - sum(self.present),
            validity=bytes(validity),
            offsets=self.offsets.tobytes(),
            data=bytes(self.data),
        )


@final
class ColumnBuilder:
    """Decodes batches into columns; see ``_codec.pyi``."""

    __slots__ = (
        "_header_keys",
        "_header_offsets",
        "_header_values",
        "_keys",
        "_offsets",
        "_timestamps",
        "_values",
    )

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._offsets = array("q")
        self._timestamps = array("q")
        self._keys = _BinaryBuilder()
        self._values = _BinaryBuilder()
        self._header_offsets = array("i", [0])
        self._header_keys = _BinaryBuilder()
        self._header_values = _BinaryBuilder()

    @property
    def length(self) -> int:
        """Number of rows."""
        return len(self._offsets)

    @property
    def size_bytes(self) -> int:
        """Approximate size of the columns in bytes."""
        binary = (self._keys, self._values, self._header_keys, self._header_values)
        return self.length * 16 + sum(len(column.data) for column in binary)

    def append(
        self,
        buffer: Buffer,
        start: int,
        end: int,
        count: int,
        base_offset: int,
        base_timestamp: int,
        append_timestamp: int | None,
        last_offset_delta: int,
        first_offset: int,
        end_offset: int,
    ) -> int:
        """Adds the records with ``first_offset`` <= offset < ``end_offset``; returns their number."""
        data = view_of(buffer, start, end)
        before = self.length
        records = _parse_all(data, start, end, count, base_offset, base_timestamp, last_offset_delta)
        extra = end - start
        largest = max(len(self._keys.data), len(self._values.data), len(self._header_values.data))
        if max(largest + extra, len(self._header_keys.data) + 3 * extra) > INT32_MAX:
            raise OverflowError("a column holds at most 2 GiB; finish it sooner")
        for parsed in records:
            timestamp_delta, offset_delta, key_at, key_size, value_at, value_size, headers_at, header_count, ends = (
                parsed
            )
            offset = base_offset + offset_delta
            if offset < first_offset:
                continue
            if offset >= end_offset:
                break
            self._offsets.append(offset)
            self._timestamps.append(base_timestamp + timestamp_delta if append_timestamp is None else append_timestamp)
            self._keys.push(None if key_size < 0 else data[key_at : key_at + key_size])
            self._values.push(None if value_size < 0 else data[value_at : value_at + value_size])
            for name, field in _read_headers(data, headers_at, ends, header_count):
                self._header_keys.push(name.encode())
                self._header_values.push(field)
            self._header_offsets.append(len(self._header_keys.present))
        return self.length - before

    def finish(self) -> Columns:
        """Returns the columns and starts over."""
        columns = Columns(
            length=self.length,
            offsets=self._offsets.tobytes(),
            timestamps=self._timestamps.tobytes(),
            keys=self._keys.finish(),
            values=self._values.finish(),
            header_offsets=self._header_offsets.tobytes(),
            header_keys=self._header_keys.finish(),
            header_values=self._header_values.finish(),
        )
        self._clear()
        return columns
