# cython: language_level=3
"""How a record is read and written byte by byte: shared by the extension modules, compiled into each.

A record is: length varint, attributes int8, timestamp delta varlong, offset delta varint, key (varint length, -1 = null), value (likewise),
header count varint, headers (key length varint, key, value length varint, value). Varints are zigzag. Nothing here allocates
before the length that asks for it has been checked against the bytes that are there.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint64_t

cdef enum:
    REASON_NONE = 0
    REASON_VARINT = 1
    REASON_LENGTH = 2
    REASON_KEY = 3
    REASON_VALUE = 4
    REASON_HEADER_COUNT = 5
    REASON_HEADER_KEY = 6
    REASON_HEADER_VALUE = 7
    REASON_END = 8
    REASON_OFFSET = 9
    REASON_RANGE = 10
    REASON_TRAILING = 11
    REASON_SEQUENCE = 12
    REASON_COUNT = 13

cdef struct Parsed:
    int64_t timestamp_delta
    int64_t offset_delta
    Py_ssize_t key_at
    Py_ssize_t key_size  # -1 is null
    Py_ssize_t value_at
    Py_ssize_t value_size  # -1 is null
    Py_ssize_t headers_at
    Py_ssize_t header_count
    Py_ssize_t end


cdef inline int read_varlong(const uint8_t* data, Py_ssize_t* at, Py_ssize_t end, int64_t* out) noexcept nogil:
    cdef uint64_t raw = 0
    cdef int shift = 0
    cdef Py_ssize_t position = at[0]
    cdef uint8_t byte
    while True:
        if position >= end:
            return -1
        byte = data[position]
        position += 1
        if shift == 63 and byte > 1:
            return -1
        raw |= (<uint64_t>(byte & 0x7F)) << shift
        if byte < 0x80:
            break
        shift += 7
    at[0] = position
    out[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
    return 0


cdef inline int read_varint(const uint8_t* data, Py_ssize_t* at, Py_ssize_t end, int64_t* out) noexcept nogil:
    cdef uint64_t raw
    cdef int shift = 7
    cdef Py_ssize_t position = at[0]
    cdef uint8_t byte
    if position >= end:
        return -1
    byte = data[position]
    position += 1
    raw = byte & 0x7F
    while byte >= 0x80:
        if position >= end:
            return -1
        byte = data[position]
        position += 1
        if shift == 28 and byte > 0x0F:
            return -1
        raw |= (<uint64_t>(byte & 0x7F)) << shift
        shift += 7
    at[0] = position
    out[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
    return 0


cdef inline int parse_headers(const uint8_t* data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t count) noexcept nogil:
    cdef int64_t size = 0
    while count > 0:
        count -= 1
        if read_varint(data, &at, end, &size) < 0:
            return REASON_VARINT
        if size < 0 or size > end - at:
            return REASON_HEADER_KEY
        at += size
        if read_varint(data, &at, end, &size) < 0:
            return REASON_VARINT
        if size < -1 or size > end - at:
            return REASON_HEADER_VALUE
        if size > 0:
            at += size
    if at != end:
        return REASON_END
    return REASON_NONE


cdef inline int parse_body(const uint8_t* data, Py_ssize_t at, Py_ssize_t end, Parsed* record) noexcept nogil:
    """What follows a record's length, up to where it says that the record ends."""
    cdef int64_t number
    record.end = end
    if at >= end:
        return REASON_END
    at += 1
    if read_varlong(data, &at, end, &record.timestamp_delta) < 0:
        return REASON_VARINT
    if read_varint(data, &at, end, &record.offset_delta) < 0:
        return REASON_VARINT
    if read_varint(data, &at, end, &number) < 0:
        return REASON_VARINT
    if number < -1 or number > end - at:
        return REASON_KEY
    record.key_at = at
    record.key_size = number
    if number > 0:
        at += number
    if read_varint(data, &at, end, &number) < 0:
        return REASON_VARINT
    if number < -1 or number > end - at:
        return REASON_VALUE
    record.value_at = at
    record.value_size = number
    if number > 0:
        at += number
    if read_varint(data, &at, end, &number) < 0:
        return REASON_VARINT
    if number < 0 or number > (end - at) // 2:
        return REASON_HEADER_COUNT
    record.headers_at = at
    record.header_count = number
    if number == 0:
        if at != end:
            return REASON_END
        return REASON_NONE
    return parse_headers(data, at, end, number)


cdef inline int parse_record(const uint8_t* data, Py_ssize_t at, Py_ssize_t end, Parsed* record) noexcept nogil:
    cdef int64_t number
    if read_varint(data, &at, end, &number) < 0:
        return REASON_VARINT
    if number < 0 or number > end - at:
        return REASON_LENGTH
    return parse_body(data, at, at + number, record)


cdef inline bint sum_overflows(int64_t a, int64_t b) noexcept nogil:
    if b >= 0:
        return a > INT64_MAX - b
    return a < INT64_MIN - b


cdef inline void check_range(Py_buffer* view, Py_ssize_t start, Py_ssize_t end) except *:
    if start < 0 or start > end or end > view.len:
        raise ValueError(f"range {start}..{end} does not lie within {view.len} bytes")


cdef inline int varint_size(uint64_t raw) noexcept nogil:
    cdef int size = 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size


cdef inline uint64_t zigzag(int64_t number) noexcept nogil:
    return (<uint64_t>number << 1) ^ (<uint64_t>0 - (<uint64_t>number >> 63))


cdef inline Py_ssize_t write_varint(uint8_t* data, Py_ssize_t at, uint64_t raw) noexcept nogil:
    while raw >= 0x80:
        data[at] = <uint8_t>(raw & 0x7F) | 0x80
        at += 1
        raw >>= 7
    data[at] = <uint8_t>raw
    return at + 1
