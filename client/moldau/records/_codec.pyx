# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The loops over records of a batch (format v2, KIP-98), in typed Cython.

``pure.codec`` is the twin in Python, equal on every input; ``_codec.pyi`` holds the signatures of both and their documentation.
``_wire.pxd`` says what a record looks like. ``_codec_columns.pxi`` (columns), ``_codec_rows.pxi`` (rows to encode), ``_codec_append.pxi``
(records one by one) and ``_codec_walk.pxi`` (checks) are parts of this module.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from moldau.records._wire cimport (
    REASON_COUNT,
    REASON_END,
    REASON_HEADER_COUNT,
    REASON_HEADER_KEY,
    REASON_HEADER_VALUE,
    REASON_KEY,
    REASON_LENGTH,
    REASON_NONE,
    REASON_OFFSET,
    REASON_RANGE,
    REASON_SEQUENCE,
    REASON_TRAILING,
    REASON_VALUE,
    REASON_VARINT,
    Parsed,
    check_range,
    parse_body,
    parse_record,
    read_varint,
    read_varlong,
    sum_overflows,
    varint_size,
    write_varint,
    zigzag,
)

from moldau.records.columns import BinaryColumn, Columns
from moldau.records.errors import InvalidRecordError, corrupt_record

IMPLEMENTATION = "cython"

cdef int64_t INT32_LIMIT = 2147483647


@cython.freelist(1024)
@cython.no_gc
@cython.final
cdef class Record:
    """One record; see ``_codec.pyi``."""

    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly object key
    cdef readonly object value
    cdef readonly tuple headers

    def __init__(self, int64_t offset, int64_t timestamp, bytes key, bytes value, headers=()):
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = tuple(headers)

    def __repr__(self):
        return (
            f"Record(offset={self.offset!r}, timestamp={self.timestamp!r}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r})"
        )

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        cdef Record that = other
        return (
            self.offset == that.offset
            and self.timestamp == that.timestamp
            and self.key == that.key
            and self.value == that.value
            and self.headers == that.headers
        )

    def __hash__(self):
        return hash((self.offset, self.timestamp, self.key, self.value, self.headers))

    def __reduce__(self):
        return (Record, (self.offset, self.timestamp, self.key, self.value, self.headers))


cdef tuple read_headers(const uint8_t* data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t count):
    cdef int64_t size = 0
    cdef list headers = []
    cdef object key
    while count > 0:
        count -= 1
        read_varint(data, &at, end, &size)
        key = PyUnicode_DecodeUTF8(<const char*>data + at, size, "replace")
        at += size
        read_varint(data, &at, end, &size)
        if size < 0:
            headers.append((key, None))
        else:
            headers.append((key, PyBytes_FromStringAndSize(<const char*>data + at, size)))
            at += size
    return tuple(headers)


def decode_records(
    buffer,
    Py_ssize_t start,
    Py_ssize_t end,
    Py_ssize_t count,
    int64_t base_offset,
    int64_t base_timestamp,
    append_timestamp,
    int64_t last_offset_delta,
    int64_t first_offset,
):
    cdef Py_buffer view
    cdef const uint8_t* data
    cdef Py_ssize_t at = start
    cdef Py_ssize_t index = 0
    cdef int64_t previous = -1
    cdef int64_t fixed_timestamp = 0
    cdef bint is_fixed = append_timestamp is not None
    cdef Parsed parsed
    cdef int reason
    cdef Record record
    cdef list records = []
    if is_fixed:
        fixed_timestamp = append_timestamp
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        check_range(&view, start, end)
        data = <const uint8_t*>view.buf
        while index < count:
            reason = parse_record(data, at, end, &parsed)
            if reason != REASON_NONE:
                raise corrupt_record(reason, index)
            if parsed.offset_delta <= previous or parsed.offset_delta > last_offset_delta:
                raise corrupt_record(REASON_OFFSET, index)
            if sum_overflows(base_offset, parsed.offset_delta) or sum_overflows(base_timestamp, parsed.timestamp_delta):
                raise corrupt_record(REASON_RANGE, index)
            previous = parsed.offset_delta
            at = parsed.end
            index += 1
            if base_offset + previous < first_offset:
                continue
            record = Record.__new__(Record)
            record.offset = base_offset + previous
            record.timestamp = fixed_timestamp if is_fixed else base_timestamp + parsed.timestamp_delta
            if parsed.key_size >= 0:
                record.key = PyBytes_FromStringAndSize(<const char*>data + parsed.key_at, parsed.key_size)
            if parsed.value_size >= 0:
                record.value = PyBytes_FromStringAndSize(<const char*>data + parsed.value_at, parsed.value_size)
            if parsed.header_count == 0:
                record.headers = ()
            else:
                record.headers = read_headers(data, parsed.headers_at, parsed.end, parsed.header_count)
            records.append(record)
        if at != end:
            raise corrupt_record(REASON_TRAILING, count)
        return records
    finally:
        PyBuffer_Release(&view)


def find_timestamp(
    buffer,
    Py_ssize_t start,
    Py_ssize_t end,
    Py_ssize_t count,
    int64_t base_offset,
    int64_t base_timestamp,
    append_timestamp,
    int64_t timestamp,
    int64_t first_offset,
):
    cdef Py_buffer view
    cdef const uint8_t* data
    cdef Py_ssize_t at = start
    cdef Py_ssize_t index = 0
    cdef int64_t fixed_timestamp = 0
    cdef int64_t found = 0
    cdef bint is_fixed = append_timestamp is not None
    cdef bint is_found = False
    cdef Parsed parsed
    cdef int reason = REASON_NONE
    if is_fixed:
        fixed_timestamp = append_timestamp
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        check_range(&view, start, end)
        data = <const uint8_t*>view.buf
        with nogil:
            while index < count:
                reason = parse_record(data, at, end, &parsed)
                if reason == REASON_NONE and (
                    sum_overflows(base_offset, parsed.offset_delta)
                    or sum_overflows(base_timestamp, parsed.timestamp_delta)
                ):
                    reason = REASON_RANGE
                if reason != REASON_NONE:
                    break
                found = fixed_timestamp if is_fixed else base_timestamp + parsed.timestamp_delta
                if found >= timestamp and base_offset + parsed.offset_delta >= first_offset:
                    is_found = True
                    break
                at = parsed.end
                index += 1
        if reason != REASON_NONE:
            raise corrupt_record(reason, index)
        return (base_offset + parsed.offset_delta, found) if is_found else None
    finally:
        PyBuffer_Release(&view)


cdef inline Py_ssize_t field_size(object field) except -2:
    if field is None:
        return -1
    if PyBytes_CheckExact(field):
        return PyBytes_GET_SIZE(field)
    return memoryview(field).nbytes


cdef Py_ssize_t copy_field(uint8_t* data, Py_ssize_t at, object field, Py_ssize_t size) except -1:
    cdef Py_buffer view
    at = write_varint(data, at, zigzag(size))
    if size <= 0:
        return at
    if PyBytes_CheckExact(field):
        memcpy(data + at, PyBytes_AS_STRING(field), size)
        return at + size
    PyObject_GetBuffer(field, &view, PyBUF_SIMPLE)
    try:
        if view.len != size:
            raise BufferError("a buffer changed its size while it was encoded")
        memcpy(data + at, view.buf, size)
    finally:
        PyBuffer_Release(&view)
    return at + size


cdef list prepare_headers(headers):
    cdef list prepared = []
    for name, value in headers:
        if not isinstance(name, str):
            raise InvalidRecordError(f"a header key must be a str, not {type(name).__name__}")
        prepared.append((str.encode(name), value))
    return prepared


cdef inline Py_ssize_t headers_size(list headers) except -1:
    cdef Py_ssize_t total = varint_size(zigzag(len(headers)))
    cdef Py_ssize_t size
    for name, value in headers:
        size = PyBytes_GET_SIZE(name)
        total += varint_size(zigzag(size)) + size
        size = field_size(value)
        total += varint_size(zigzag(size)) + (size if size > 0 else 0)
    return total


include "_codec_columns.pxi"
include "_codec_rows.pxi"


@cython.final
cdef class RecordWriter:
    """Encodes records one after the other; see ``_codec.pyi``."""

    cdef object buffer
    cdef Py_ssize_t at
    cdef Py_ssize_t capacity
    cdef readonly Py_ssize_t count
    cdef readonly int64_t last_offset_delta
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef bint is_base_fixed

    def __init__(self, Py_ssize_t reserved=0, Py_ssize_t capacity=1024, base_timestamp=None):
        if reserved < 0 or capacity < 0:
            raise ValueError("reserved and capacity must not be negative")
        self.capacity = reserved + capacity
        self.buffer = bytearray(self.capacity)
        self.at = reserved
        self.count = 0
        self.last_offset_delta = -1
        self.is_base_fixed = base_timestamp is not None
        self.base_timestamp = -1 if base_timestamp is None else base_timestamp
        self.max_timestamp = -1

    @property
    def size(self):
        return self.at

    def append(self, int64_t timestamp, key, value, headers=(), Py_ssize_t size_limit=INT32_LIMIT, int64_t offset_delta=-1):
        return self.write(timestamp, key, value, headers, size_limit, offset_delta)

    cdef int64_t write(
        self, int64_t timestamp, key, value, headers, Py_ssize_t size_limit, int64_t offset_delta
    ) except? -2:
        cdef Py_ssize_t key_size = field_size(key)
        cdef Py_ssize_t value_size = field_size(value)
        cdef list prepared = None
        cdef Py_ssize_t body
        cdef Py_ssize_t total
        cdef int64_t delta
        cdef uint8_t* data
        cdef Py_ssize_t at
        cdef int64_t base = self.base_timestamp
        if self.buffer is None:
            raise ValueError("the writer's bytes have been taken")
        if offset_delta < 0:
            offset_delta = self.last_offset_delta + 1
        elif offset_delta <= self.last_offset_delta:
            raise ValueError(f"offset delta {offset_delta} is not above {self.last_offset_delta}")
        if offset_delta > INT32_LIMIT:
            raise ValueError(f"offset delta {offset_delta} does not fit 32 bits")
        if self.count == 0 and not self.is_base_fixed:
            base = timestamp
        delta = <int64_t>(<uint64_t>timestamp - <uint64_t>base)
        if (timestamp >= base) != (delta >= 0):
            raise InvalidRecordError(f"timestamp {timestamp} is too far from {base}, the first of its batch")
        body = (
            1
            + varint_size(zigzag(delta))
            + varint_size(zigzag(offset_delta))
            + varint_size(zigzag(key_size))
            + (key_size if key_size > 0 else 0)
            + varint_size(zigzag(value_size))
            + (value_size if value_size > 0 else 0)
        )
        if headers:
            prepared = prepare_headers(headers)
            body += headers_size(prepared)
        else:
            body += 1
        if body > INT32_LIMIT:
            raise InvalidRecordError(f"a record of {body} bytes does not fit 32 bits")
        total = varint_size(zigzag(body)) + body
        if self.count > 0 and self.at + total > size_limit:
            return -1
        if self.at + total > INT32_LIMIT:
            raise InvalidRecordError(f"a batch of {self.at + total} bytes does not fit 32 bits")
        if self.at + total > self.capacity:
            self.capacity = max(self.at + total, min(2 * self.capacity, INT32_LIMIT))
            PyByteArray_Resize(self.buffer, self.capacity)
        data = <uint8_t*>PyByteArray_AS_STRING(self.buffer)
        at = write_varint(data, self.at, zigzag(body))
        data[at] = 0
        at = write_varint(data, at + 1, zigzag(delta))
        at = write_varint(data, at, zigzag(offset_delta))
        at = copy_field(data, at, key, key_size)
        at = copy_field(data, at, value, value_size)
        if prepared is None:
            data[at] = 0
            at += 1
        else:
            at = write_varint(data, at, zigzag(len(prepared)))
            for name, field in prepared:
                at = copy_field(data, at, name, PyBytes_GET_SIZE(name))
                at = copy_field(data, at, field, field_size(field))
        if self.count == 0:
            self.base_timestamp = base
            self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.at = at
        self.count += 1
        self.last_offset_delta = offset_delta
        return offset_delta

    def append_rows(self, RowColumns columns not None, rows, Py_ssize_t start, int64_t timestamp, Py_ssize_t size_limit=INT32_LIMIT):
        cdef Py_buffer view
        cdef const int32_t* numbers
        cdef Py_ssize_t count
        cdef Py_ssize_t index
        cdef Py_ssize_t row
        cdef Py_ssize_t child
        cdef Py_ssize_t body
        cdef Py_ssize_t total
        cdef Py_ssize_t key_size
        cdef Py_ssize_t value_size
        cdef Py_ssize_t size
        cdef Py_ssize_t at
        cdef int64_t moment
        cdef int64_t base
        cdef int64_t delta
        cdef uint8_t* data
        if self.buffer is None:
            raise ValueError("the writer's bytes have been taken")
        PyObject_GetBuffer(rows, &view, PyBUF_SIMPLE)
        try:
            numbers = <const int32_t*>view.buf
            count = view.len // 4
            if not 0 <= start <= count:
                raise ValueError(f"start {start} is not within {count} rows")
            data = <uint8_t*>PyByteArray_AS_STRING(self.buffer)
            for index in range(start, count):
                row = numbers[index]
                if not 0 <= row < columns.length:
                    raise IndexError(f"row {row} of {columns.length}")
                moment = timestamp
                if columns.timestamps != NULL and columns.timestamps[row] >= 0:
                    moment = columns.timestamps[row]
                base = moment if self.count == 0 and not self.is_base_fixed else self.base_timestamp
                delta = <int64_t>(<uint64_t>moment - <uint64_t>base)
                if (moment >= base) != (delta >= 0):
                    raise InvalidRecordError(f"timestamp {moment} is too far from {base}, the first of its batch")
                if self.last_offset_delta >= INT32_LIMIT:
                    return index - start
                key_size = row_bytes(&columns.keys, row)
                value_size = row_bytes(&columns.values, row)
                body = (
                    1
                    + varint_size(zigzag(delta))
                    + varint_size(zigzag(self.last_offset_delta + 1))
                    + varint_size(zigzag(key_size))
                    + (key_size if key_size > 0 else 0)
                    + varint_size(zigzag(value_size))
                    + (value_size if value_size > 0 else 0)
                    + columns.headers_bytes(row)
                )
                total = varint_size(zigzag(body)) + body
                if self.count > 0 and self.at + total > size_limit:
                    return index - start
                if body > INT32_LIMIT or self.at + total > INT32_LIMIT:
                    raise InvalidRecordError(f"a batch of {self.at + total} bytes does not fit 32 bits")
                if self.at + total > self.capacity:
                    self.capacity = max(self.at + total, min(2 * self.capacity, INT32_LIMIT))
                    PyByteArray_Resize(self.buffer, self.capacity)
                    data = <uint8_t*>PyByteArray_AS_STRING(self.buffer)
                at = write_varint(data, self.at, zigzag(body))
                data[at] = 0
                at = write_varint(data, at + 1, zigzag(delta))
                at = write_varint(data, at, zigzag(self.last_offset_delta + 1))
                at = copy_row(data, at, &columns.keys, row, key_size)
                at = copy_row(data, at, &columns.values, row, value_size)
                if columns.header_offsets == NULL:
                    data[at] = 0
                    at += 1
                else:
                    at = write_varint(data, at, zigzag(columns.header_offsets[row + 1] - columns.header_offsets[row]))
                    for child in range(columns.header_offsets[row], columns.header_offsets[row + 1]):
                        at = copy_row(data, at, &columns.header_keys, child, row_bytes(&columns.header_keys, child))
                        at = copy_row(data, at, &columns.header_values, child, row_bytes(&columns.header_values, child))
                if self.count == 0:
                    self.base_timestamp = base
                    self.max_timestamp = moment
                elif moment > self.max_timestamp:
                    self.max_timestamp = moment
                self.at = at
                self.count += 1
                self.last_offset_delta += 1
            return count - start
        finally:
            PyBuffer_Release(&view)

    def copy(
        self,
        buffer,
        Py_ssize_t start,
        Py_ssize_t end,
        Py_ssize_t count,
        bytes keep not None,
        int64_t base_timestamp,
        append_timestamp,
    ):
        cdef Py_buffer view
        cdef const uint8_t* source
        cdef uint8_t* data
        cdef Py_ssize_t position = start
        cdef Py_ssize_t index = 0
        cdef Py_ssize_t rest_at
        cdef Py_ssize_t body
        cdef Py_ssize_t total
        cdef Py_ssize_t at
        cdef Py_ssize_t copied = 0
        cdef int64_t number
        cdef int64_t base
        cdef int64_t delta
        cdef int64_t timestamp = 0
        cdef bint is_fixed = append_timestamp is not None
        cdef Parsed parsed
        cdef int reason
        if self.buffer is None:
            raise ValueError("the writer's bytes have been taken")
        cdef const uint8_t* marks = <const uint8_t*>PyBytes_AS_STRING(keep)
        if PyBytes_GET_SIZE(keep) != count:
            raise ValueError(f"{PyBytes_GET_SIZE(keep)} marks for {count} records")
        if is_fixed:
            timestamp = append_timestamp
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            check_range(&view, start, end)
            source = <const uint8_t*>view.buf
            while index < count:
                reason = parse_record(source, position, end, &parsed)
                if reason != REASON_NONE:
                    raise corrupt_record(reason, index)
                if not marks[index]:
                    position = parsed.end
                    index += 1
                    continue
                if parsed.offset_delta <= self.last_offset_delta:
                    raise corrupt_record(REASON_OFFSET, index)
                if not is_fixed:
                    if sum_overflows(base_timestamp, parsed.timestamp_delta):
                        raise corrupt_record(REASON_RANGE, index)
                    timestamp = base_timestamp + parsed.timestamp_delta
                base = timestamp if self.count == 0 and not self.is_base_fixed else self.base_timestamp
                delta = <int64_t>(<uint64_t>timestamp - <uint64_t>base)
                if (timestamp >= base) != (delta >= 0):
                    raise InvalidRecordError(f"timestamp {timestamp} is too far from {base}, the first of its batch")
                # All from the offset delta on stays as it is.
                rest_at = position
                read_varint(source, &rest_at, end, &number)
                rest_at += 1
                read_varlong(source, &rest_at, end, &number)
                body = 1 + varint_size(zigzag(delta)) + (parsed.end - rest_at)
                total = varint_size(zigzag(body)) + body
                if self.at + total > INT32_LIMIT:
                    raise InvalidRecordError(f"a batch of {self.at + total} bytes does not fit 32 bits")
                if self.at + total > self.capacity:
                    self.capacity = max(self.at + total, min(2 * self.capacity, INT32_LIMIT))
                    PyByteArray_Resize(self.buffer, self.capacity)
                data = <uint8_t*>PyByteArray_AS_STRING(self.buffer)
                at = write_varint(data, self.at, zigzag(body))
                data[at] = 0
                at = write_varint(data, at + 1, zigzag(delta))
                memcpy(data + at, source + rest_at, parsed.end - rest_at)
                if self.count == 0:
                    self.base_timestamp = base
                    self.max_timestamp = timestamp
                elif timestamp > self.max_timestamp:
                    self.max_timestamp = timestamp
                self.at = at + parsed.end - rest_at
                self.count += 1
                self.last_offset_delta = parsed.offset_delta
                copied += 1
                position = parsed.end
                index += 1
            if position != end:
                raise corrupt_record(REASON_TRAILING, count)
            return copied
        finally:
            PyBuffer_Release(&view)

    def take(self):
        if self.buffer is None:
            raise ValueError("the writer's bytes have been taken")
        buffer = self.buffer
        self.buffer = None
        PyByteArray_Resize(buffer, self.at)
        return buffer


include "_codec_append.pxi"
include "_codec_walk.pxi"


def murmur2(data):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return murmur2_of(<const uint8_t*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
