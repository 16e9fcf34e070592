# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The log cleaner's loops over the records of a batch, in typed Cython.

``pure.cleaning`` is the twin in Python, equal on every input; ``_cleaning.pyi`` holds the signatures of both and their
documentation, also of the table of keys that they work on.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from moldau.records._wire cimport (
    REASON_NONE,
    REASON_OFFSET,
    REASON_RANGE,
    REASON_TRAILING,
    Parsed,
    check_range,
    parse_record,
    sum_overflows,
)

from xxhash import xxh3_128_digest

from moldau.records.errors import corrupt_record

cdef enum:
    ENTRY_BYTES = 24
    HASH_BYTES = 16
    JUMPS = 32


cdef inline uint64_t big_endian(const uint8_t* data) noexcept nogil:
    cdef uint64_t number = 0
    cdef int index
    for index in range(8):
        number = (number << 8) | data[index]
    return number


cdef struct Found:
    uint8_t* entry  # of the key, or the empty one where it belongs
    bint known
    Py_ssize_t probes


cdef inline Found find(uint8_t* table, uint64_t slots, const uint8_t* digest) noexcept nogil:
    cdef Found found
    cdef uint64_t slot = big_endian(digest) % slots
    cdef uint64_t step = 1 + big_endian(digest + 8) % (slots - 1)
    cdef uint64_t used
    found.probes = 0
    while True:
        found.entry = table + slot * ENTRY_BYTES
        used = big_endian(found.entry + HASH_BYTES)
        if used == 0 or memcmp(found.entry, digest, HASH_BYTES) == 0:
            found.known = used != 0
            return found
        found.probes += 1
        slot = (slot + (step if found.probes <= JUMPS else 1)) % slots


cdef inline bytes digest_of(const uint8_t* data, Parsed* record):
    return xxh3_128_digest(PyBytes_FromStringAndSize(<const char*>data + record.key_at, record.key_size))


cdef inline int check_record(Parsed* record, int64_t previous, int64_t last_offset_delta, int64_t base_offset) noexcept nogil:
    if record.offset_delta <= previous or record.offset_delta > last_offset_delta:
        return REASON_OFFSET
    if sum_overflows(base_offset, record.offset_delta):
        return REASON_RANGE
    return REASON_NONE


cdef inline Py_ssize_t slots_of(Py_buffer* table) except -1:
    if table.len < 2 * ENTRY_BYTES or table.len % ENTRY_BYTES != 0:
        raise ValueError(f"a table of {table.len} bytes")
    return table.len // ENTRY_BYTES


def map_keys(
    buffer,
    Py_ssize_t start,
    Py_ssize_t end,
    Py_ssize_t count,
    int64_t base_offset,
    int64_t last_offset_delta,
    int64_t first_offset,
    table,
    Py_ssize_t used,
    Py_ssize_t used_max,
):
    cdef Py_buffer view
    cdef Py_buffer slots_view
    cdef const uint8_t* data
    cdef Py_ssize_t slots
    cdef Py_ssize_t at = start
    cdef Py_ssize_t index = 0
    cdef Py_ssize_t probes = 0
    cdef int64_t previous = -1
    cdef uint64_t number
    cdef int shift
    cdef Parsed parsed
    cdef Found found
    cdef bytes digest
    cdef int reason
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(table, &slots_view, PyBUF_WRITABLE)
        try:
            check_range(&view, start, end)
            slots = slots_of(&slots_view)
            data = <const uint8_t*>view.buf
            while index < count:
                reason = parse_record(data, at, end, &parsed)
                if reason == REASON_NONE:
                    reason = check_record(&parsed, previous, last_offset_delta, base_offset)
                if reason != REASON_NONE:
                    raise corrupt_record(reason, index)
                previous = parsed.offset_delta
                at = parsed.end
                index += 1
                if parsed.key_size < 0 or base_offset + previous < first_offset:
                    continue
                digest = digest_of(data, &parsed)
                found = find(<uint8_t*>slots_view.buf, slots, <const uint8_t*>PyBytes_AS_STRING(digest))
                probes += found.probes
                if not found.known:
                    if used >= used_max:
                        return (used, probes, False)
                    memcpy(found.entry, PyBytes_AS_STRING(digest), HASH_BYTES)
                    used += 1
                number = <uint64_t>(base_offset + previous) + 1
                for shift in range(8):
                    found.entry[HASH_BYTES + shift] = <uint8_t>(number >> (56 - 8 * shift))
            if at != end:
                raise corrupt_record(REASON_TRAILING, count)
            return (used, probes, True)
        finally:
            PyBuffer_Release(&slots_view)
    finally:
        PyBuffer_Release(&view)


def select_records(
    buffer,
    Py_ssize_t start,
    Py_ssize_t end,
    Py_ssize_t count,
    int64_t base_offset,
    int64_t last_offset_delta,
    int64_t latest_offset,
    bint keeps_tombstones,
    table,
):
    cdef Py_buffer view
    cdef Py_buffer slots_view
    cdef const uint8_t* data
    cdef Py_ssize_t slots
    cdef Py_ssize_t at = start
    cdef Py_ssize_t index = 0
    cdef Py_ssize_t kept = 0
    cdef Py_ssize_t probes = 0
    cdef bint has_tombstone = False
    cdef bint stays
    cdef int64_t previous = -1
    cdef int64_t offset
    cdef Parsed parsed
    cdef Found found
    cdef bytes digest
    cdef int reason
    cdef bytes keep
    cdef uint8_t* marks
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(table, &slots_view, PyBUF_SIMPLE)
        try:
            check_range(&view, start, end)
            slots = slots_of(&slots_view)
            data = <const uint8_t*>view.buf
            if count < 0 or count > end - start:
                raise corrupt_record(REASON_TRAILING, count)
            keep = PyBytes_FromStringAndSize(NULL, count)
            marks = <uint8_t*>PyBytes_AS_STRING(keep)
            while index < count:
                reason = parse_record(data, at, end, &parsed)
                if reason == REASON_NONE:
                    reason = check_record(&parsed, previous, last_offset_delta, base_offset)
                if reason != REASON_NONE:
                    raise corrupt_record(reason, index)
                previous = parsed.offset_delta
                offset = base_offset + previous
                at = parsed.end
                if offset > latest_offset:
                    stays = True
                elif parsed.key_size < 0 or (parsed.value_size < 0 and not keeps_tombstones):
                    stays = False
                else:
                    digest = digest_of(data, &parsed)
                    found = find(<uint8_t*>slots_view.buf, slots, <const uint8_t*>PyBytes_AS_STRING(digest))
                    probes += found.probes
                    stays = not found.known or big_endian(found.entry + HASH_BYTES) <= <uint64_t>offset + 1
                marks[index] = stays
                if stays:
                    kept += 1
                    if parsed.value_size < 0:
                        has_tombstone = True
                index += 1
            if at != end:
                raise corrupt_record(REASON_TRAILING, count)
            return (keep, kept, has_tombstone, probes)
        finally:
            PyBuffer_Release(&slots_view)
    finally:
        PyBuffer_Release(&view)
