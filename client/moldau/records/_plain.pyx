# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The check of a batch as producers usually send it, in one pass, in typed Cython; see ``_plain.pyi``."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from moldau.records._wire cimport REASON_NONE, Parsed, parse_body, read_varint, sum_overflows

cdef enum:
    HEADER_BYTES = 61
    TRANSACTIONAL = 0x10

cdef object new_tuple = tuple.__new__


cdef inline uint64_t big_endian(const uint8_t* at, int size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int index
    for index in range(size):
        value = (value << 8) | at[index]
    return value


def check_plain_batch(records, make, checksum, Py_ssize_t size_max, int64_t earliest, int64_t latest, bint needs_keys):
    cdef Py_buffer view
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        return plain_batch(records, <const uint8_t*>view.buf, view.len, make, checksum, size_max, earliest, latest, needs_keys)
    finally:
        PyBuffer_Release(&view)


cdef object plain_batch(
    object records,
    const uint8_t* data,
    Py_ssize_t size,
    object make,
    object checksum,
    Py_ssize_t size_max,
    int64_t earliest,
    int64_t latest,
    bint needs_keys,
):
    cdef int64_t attributes
    cdef int64_t count
    cdef int64_t base_timestamp
    cdef int64_t max_timestamp
    cdef int64_t producer_id
    cdef int16_t producer_epoch
    cdef int32_t base_sequence
    cdef uint32_t crc
    if size < HEADER_BYTES or size > size_max or <int64_t>big_endian(data + 8, 4) + 12 != size or data[16] != 2 or big_endian(data, 8):
        return None
    attributes = big_endian(data + 21, 2)
    count = <int32_t>big_endian(data + 57, 4)
    if attributes & ~TRANSACTIONAL or count <= 0 or <int32_t>big_endian(data + 23, 4) != count - 1:
        return None
    base_timestamp = <int64_t>big_endian(data + 27, 8)
    max_timestamp = <int64_t>big_endian(data + 35, 8)
    producer_id = <int64_t>big_endian(data + 43, 8)
    producer_epoch = <int16_t>big_endian(data + 51, 2)
    base_sequence = <int32_t>big_endian(data + 53, 4)
    if producer_id >= 0:
        if base_sequence < 0 or producer_epoch < 0:
            return None
    elif attributes:
        return None  # a transaction without a producer id
    crc = <uint32_t>big_endian(data + 17, 4)
    if <uint32_t>checksum(records[21:]) != crc:
        return None
    if not are_sound(data, size, count, base_timestamp, max_timestamp, earliest, latest, needs_keys):
        return None
    return new_tuple(
        make,
        (
            <int64_t>big_endian(data, 8),
            size - 12,
            <int32_t>big_endian(data + 12, 4),
            2,
            crc,
            attributes,
            count - 1,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        ),
    )


cdef bint are_sound(
    const uint8_t* data,
    Py_ssize_t end,
    int64_t count,
    int64_t base_timestamp,
    int64_t max_timestamp,
    int64_t earliest,
    int64_t latest,
    bint needs_keys,
) noexcept nogil:
    """Whether the records are well formed, in order and in time, as many as announced, and as old as announced."""
    cdef Py_ssize_t at = HEADER_BYTES
    cdef int64_t number = 0
    cdef int64_t size
    cdef int64_t timestamp
    cdef int64_t greatest = 0
    cdef Parsed parsed
    while at < end:
        if number >= count or read_varint(data, &at, end, &size) != 0 or size < 0 or size > end - at:
            return False
        if parse_body(data, at, at + size, &parsed) != REASON_NONE or parsed.offset_delta != number:
            return False
        if sum_overflows(base_timestamp, parsed.timestamp_delta) or (needs_keys and parsed.key_size < 0):
            return False
        timestamp = base_timestamp + parsed.timestamp_delta
        if timestamp != -1 and (timestamp < earliest or timestamp > latest):
            return False
        if number == 0 or timestamp > greatest:
            greatest = timestamp
        number += 1
        at = parsed.end
    return number == count and greatest == max_timestamp
