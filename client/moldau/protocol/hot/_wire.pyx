# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Produce and Fetch as clients usually send them, in typed Cython; see ``_wire.pyi``.

Each function returns None for whatever it leaves to the general readers and writers in Python: other encodings, tagged
fields, texts that are not ASCII, and everything malformed. So rules and errors stand in one place, and a build without
this module differs in speed alone.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef Py_ssize_t STRING_BYTES_MAX = 32767
cdef enum:
    BATCH_BYTES_MIN = 61
    ATTRIBUTES_AT = 22  # the low byte of the attributes of a batch
    UNUSUAL = 0x17  # compressed, or transactional
cdef object new_tuple = tuple.__new__
cdef object NO_RECORDS = memoryview(b"")

cdef inline int16_t int16_at(const uint8_t* at) noexcept nogil:
    return <int16_t>((<uint16_t>at[0] << 8) | at[1])


cdef inline int32_t int32_at(const uint8_t* at) noexcept nogil:
    return <int32_t>((<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3])


cdef inline int64_t int64_at(const uint8_t* at) noexcept nogil:
    return <int64_t>((<uint64_t><uint32_t>int32_at(at) << 32) | <uint32_t>int32_at(at + 4))


cdef inline Py_ssize_t uvarint_at(const uint8_t* data, Py_ssize_t* at, Py_ssize_t end) noexcept nogil:
    """Returns an unsigned varint of at most four bytes and moves ``at``; -1 for anything else."""
    cdef Py_ssize_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at[0] < end and shift < 28:
        byte = data[at[0]]
        at[0] += 1
        value |= (<Py_ssize_t>(byte & 0x7F)) << shift
        if byte < 0x80:
            return value
        shift += 7
    return -1


cdef inline bint is_ascii(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t index
    for index in range(size):
        if data[index] >= 0x80:
            return False
    return True


cdef object topic_at(const uint8_t* data, Py_ssize_t* at, Py_ssize_t end, bint topic_ids):
    """Returns the raw topic and moves ``at``; None if it is left to the general reader."""
    cdef Py_ssize_t size
    cdef Py_ssize_t begin
    if topic_ids:
        size = 16
    else:
        size = uvarint_at(data, at, end) - 1
        if size < 0 or size > STRING_BYTES_MAX:
            return None
    begin = at[0]
    if size > end - begin or (not topic_ids and not is_ascii(data + begin, size)):
        return None
    at[0] = begin + size
    return PyBytes_FromStringAndSize(<const char*>data + begin, size)


def read_produce(frame, Py_ssize_t position, bint topic_ids, Py_ssize_t entries_max, make):
    cdef Py_buffer view
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        return read_produce_body(frame, <const uint8_t*>view.buf, view.len, position, topic_ids, entries_max, make)
    finally:
        PyBuffer_Release(&view)


cdef object read_produce_body(
    object frame, const uint8_t* data, Py_ssize_t end, Py_ssize_t at, bint topic_ids, Py_ssize_t entries_max, object make
):
    cdef Py_ssize_t size
    cdef Py_ssize_t topic_count
    cdef Py_ssize_t count
    cdef Py_ssize_t entries
    cdef int32_t index
    cdef int16_t acks
    cdef int32_t timeout_ms
    cdef object transactional_id = None
    cdef list topics = []
    cdef list partitions
    if at < 0:
        return None
    size = uvarint_at(data, &at, end)
    if size < 0:
        return None
    if size > 0:
        size -= 1
        if size > STRING_BYTES_MAX or size > end - at or not is_ascii(data + at, size):
            return None
        transactional_id = PyUnicode_DecodeASCII(<const char*>data + at, size, NULL)
        at += size
    if end - at < 6:
        return None
    acks = int16_at(data + at)
    timeout_ms = int32_at(data + at + 2)
    at += 6
    topic_count = uvarint_at(data, &at, end) - 1
    if topic_count < 0 or topic_count > entries_max:
        return None
    entries = topic_count
    while topic_count > 0:
        topic_count -= 1
        topic = topic_at(data, &at, end, topic_ids)
        if topic is None:
            return None
        count = uvarint_at(data, &at, end) - 1
        entries += count
        if count < 0 or entries > entries_max:
            return None
        partitions = []
        while count > 0:
            count -= 1
            if end - at < 4:
                return None
            index = int32_at(data + at)
            at += 4
            size = uvarint_at(data, &at, end) - 1
            if size < -1 or size > end - at:
                return None
            if size < 0:
                partitions.append((index, NO_RECORDS))
            else:
                partitions.append((index, frame[at : at + size]))
                at += size
            if at >= end or data[at]:
                return None
            at += 1
        if at >= end or data[at]:
            return None
        at += 1
        topics.append((topic, partitions))
    if at >= end or data[at]:
        return None
    return new_tuple(make, (transactional_id, acks, timeout_ms, topics))


def read_one_produce(frame, bint topic_ids):
    cdef Py_buffer view
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        return read_one_produce_frame(frame, <const uint8_t*>view.buf, view.len, topic_ids)
    finally:
        PyBuffer_Release(&view)


cdef object read_one_produce_frame(object frame, const uint8_t* data, Py_ssize_t end, bint topic_ids):
    cdef Py_ssize_t at = 10
    cdef Py_ssize_t size
    cdef const uint8_t* head
    cdef int32_t index
    if end < 10:
        return None
    size = int16_at(data + 8)
    if size > 0:
        at += size
    # No tagged fields of the header, no transactional id; then acks and timeout; one topic.
    if end - at < 10 or data[at] or data[at + 1] or data[at + 8] != 2:
        return None
    head = data + at + 2
    at += 9
    topic = topic_at(data, &at, end, topic_ids)
    if topic is None or end - at < 6 or data[at] != 2:
        return None
    index = int32_at(data + at + 1)
    at += 5
    size = uvarint_at(data, &at, end) - 1
    # The records end three empty sections of tagged fields before the end of the frame.
    if size < BATCH_BYTES_MIN or end - at != size + 3 or data[end - 1] or data[end - 2] or data[end - 3]:
        return None
    if data[at + ATTRIBUTES_AT] & UNUSUAL:
        return None
    return (int32_at(data + 4), int16_at(head), int32_at(head + 2), (topic, index), frame[at : at + size])


def read_fetch(frame, Py_ssize_t position, int version, Py_ssize_t entries_max, make, make_partition, no_directory, int64_t no_watermark):
    cdef Py_buffer view
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        return read_fetch_body(
            <const uint8_t*>view.buf, view.len, position, version, entries_max, make, make_partition, no_directory, no_watermark
        )
    finally:
        PyBuffer_Release(&view)


cdef object read_fetch_body(
    const uint8_t* data,
    Py_ssize_t end,
    Py_ssize_t at,
    int version,
    Py_ssize_t entries_max,
    object make,
    object make_partition,
    object no_directory,
    object no_watermark,
):
    cdef Py_ssize_t count
    cdef Py_ssize_t topic_count
    cdef Py_ssize_t size
    cdef Py_ssize_t left = entries_max
    cdef int32_t replica_id = -1
    cdef int64_t replica_epoch = -1
    cdef bint topic_ids = version >= 13
    cdef const uint8_t* head
    cdef const uint8_t* each
    cdef list topics = []
    cdef list forgotten = []
    cdef list partitions
    if at < 0 or end - at < (21 if version >= 15 else 25):
        return None
    if version < 15:
        replica_id = int32_at(data + at)
        at += 4
    head = data + at
    at += 21
    topic_count = uvarint_at(data, &at, end) - 1
    left -= topic_count
    if topic_count < 0 or left < 0:
        return None
    while topic_count > 0:
        topic_count -= 1
        topic = topic_at(data, &at, end, topic_ids)
        if topic is None:
            return None
        count = uvarint_at(data, &at, end) - 1
        left -= count
        if count < 0 or left < 0:
            return None
        partitions = []
        while count > 0:
            count -= 1
            if end - at < 33 or data[at + 32]:
                return None
            each = data + at
            at += 33
            partitions.append(
                new_tuple(
                    make_partition,
                    (
                        int32_at(each),
                        int32_at(each + 4),
                        int64_at(each + 8),
                        int32_at(each + 16),
                        int64_at(each + 20),
                        int32_at(each + 28),
                        no_directory,
                        no_watermark,
                    ),
                )
            )
        if at >= end or data[at]:
            return None
        at += 1
        topics.append((topic, partitions))
    topic_count = uvarint_at(data, &at, end) - 1
    left -= topic_count
    if topic_count < 0 or left < 0:
        return None
    while topic_count > 0:
        topic_count -= 1
        topic = topic_at(data, &at, end, topic_ids)
        if topic is None:
            return None
        count = uvarint_at(data, &at, end) - 1
        left -= count
        if count < 0 or left < 0 or 4 * count > end - at:
            return None
        numbers = tuple([int32_at(data + at + 4 * size) for size in range(count)])
        at += 4 * count
        if at >= end or data[at]:
            return None
        at += 1
        forgotten.append((topic, numbers))
    size = uvarint_at(data, &at, end) - 1
    if size < 0 or size > STRING_BYTES_MAX or size > end - at or not is_ascii(data + at, size):
        return None
    rack_id = PyUnicode_DecodeASCII(<const char*>data + at, size, NULL)
    at += size
    if at >= end:
        return None
    if data[at]:
        # The one tagged field of a follower: its id and epoch, as Kafka's brokers and ours write it.
        if version < 15 or end - at < 16 or data[at] != 1 or data[at + 1] != 1 or data[at + 2] != 13 or data[at + 15]:
            return None
        replica_id = int32_at(data + at + 3)
        replica_epoch = int64_at(data + at + 7)
    return new_tuple(
        make,
        (
            replica_id,
            replica_epoch,
            int32_at(head),
            int32_at(head + 4),
            int32_at(head + 8),
            <int8_t>head[12],
            int32_at(head + 13),
            int32_at(head + 17),
            topics,
            forgotten,
            rack_id,
            None,
        ),
    )


def read_fetch_answer(frame, Py_ssize_t position, make, make_partition):
    cdef Py_buffer view
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        return read_answer_body(frame, <const uint8_t*>view.buf, view.len, position, make, make_partition)
    finally:
        PyBuffer_Release(&view)


cdef object read_answer_body(
    object frame, const uint8_t* data, Py_ssize_t end, Py_ssize_t at, object make, object make_partition
):
    cdef const uint8_t* head
    cdef const uint8_t* each
    cdef Py_ssize_t topic_count
    cdef Py_ssize_t count
    cdef Py_ssize_t size
    cdef list partitions = []
    if at < 0 or end - at < 10:
        return None
    head = data + at
    at += 10
    topic_count = uvarint_at(data, &at, end) - 1
    if topic_count < 0:
        return None
    while topic_count > 0:
        topic_count -= 1
        if end - at < 16:
            return None
        topic = PyBytes_FromStringAndSize(<const char*>data + at, 16)
        at += 16
        count = uvarint_at(data, &at, end) - 1
        if count < 0:
            return None
        while count > 0:
            count -= 1
            # Index, error, three offsets; no aborted transactions (null or none); a preferred replica.
            if end - at < 35 or data[at + 30] > 1:
                return None
            each = data + at
            at += 35
            size = uvarint_at(data, &at, end) - 1
            if size < -1 or size > end - at:
                return None
            records = NO_RECORDS
            if size > 0:
                records = frame[at : at + size]
                at += size
            if at >= end or data[at]:
                return None
            at += 1
            partitions.append(
                new_tuple(
                    make_partition,
                    (
                        topic,
                        int32_at(each),
                        int16_at(each + 4),
                        int64_at(each + 6),
                        int64_at(each + 22),
                        records,
                        -1,
                        -1,
                    ),
                )
            )
        if at >= end or data[at]:
            return None
        at += 1
    if end - at != 1 or data[at]:
        return None
    return new_tuple(make, (int32_at(head), int16_at(head + 4), int32_at(head + 6), partitions))


cdef inline uint8_t* put_int16(uint8_t* at, int16_t value) noexcept nogil:
    at[0] = <uint8_t>(<uint16_t>value >> 8)
    at[1] = <uint8_t>value
    return at + 2


cdef inline uint8_t* put_int32(uint8_t* at, int32_t value) noexcept nogil:
    at[0] = <uint8_t>(<uint32_t>value >> 24)
    at[1] = <uint8_t>(<uint32_t>value >> 16)
    at[2] = <uint8_t>(<uint32_t>value >> 8)
    at[3] = <uint8_t>value
    return at + 4


cdef inline uint8_t* put_int64(uint8_t* at, int64_t value) noexcept nogil:
    return put_int32(put_int32(at, <int32_t>(<uint64_t>value >> 32)), <int32_t><uint32_t>value)


cdef inline uint8_t* put_uvarint(uint8_t* at, uint32_t value) noexcept nogil:
    while value >= 0x80:
        at[0] = <uint8_t>(value & 0x7F) | 0x80
        at += 1
        value >>= 7
    at[0] = <uint8_t>value
    return at + 1


def write_produce(int version, int32_t correlation_id, topics, int32_t throttle_time_ms):
    cdef Py_ssize_t size = 10 + 5
    cdef uint8_t* at
    cdef uint8_t* begin
    cdef bint topic_ids = version >= 13
    cdef bytes topic
    for topic, results in topics:
        if topic_ids and PyBytes_GET_SIZE(topic) != 16:
            return None
        size += PyBytes_GET_SIZE(topic) + 11 + 33 * len(results)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, size)
    begin = <uint8_t*>PyBytes_AS_STRING(out)
    at = put_int32(begin + 4, correlation_id)
    at[0] = 0
    at = put_uvarint(at + 1, <uint32_t>(len(topics) + 1))
    for topic, results in topics:
        if not topic_ids:
            at = put_uvarint(at, <uint32_t>(PyBytes_GET_SIZE(topic) + 1))
        memcpy(at, PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))
        at = put_uvarint(at + PyBytes_GET_SIZE(topic), <uint32_t>(len(results) + 1))
        for result in results:
            if (<tuple>result)[5] or (<tuple>result)[6] is not None or <int32_t>(<tuple>result)[7] >= 0:
                return None  # errors of records, a message, a hint
            at = put_int16(put_int32(at, (<tuple>result)[0]), (<tuple>result)[1])
            at = put_int64(put_int64(put_int64(at, (<tuple>result)[2]), (<tuple>result)[3]), (<tuple>result)[4])
            at[0] = 1
            at[1] = at[2] = 0
            at += 3
        at[0] = 0
        at += 1
    at = put_int32(at, throttle_time_ms)
    at[0] = 0
    size = at + 1 - begin
    put_int32(begin, <int32_t>(size - 4))
    return PyBytes_FromStringAndSize(<const char*>begin, size)


def write_fetch(int version, int32_t correlation_id, topics, int32_t throttle_time_ms, int16_t error_code, int32_t session_id):
    cdef Py_ssize_t size = 4 + 4 + 1 + 10 + 5 + 1
    cdef int64_t records_bytes = 0
    cdef uint8_t* at
    cdef uint8_t* begin
    cdef uint8_t* first
    cdef bint topic_ids = version >= 13
    cdef bytes topic
    cdef list cuts = []
    cdef list answer = []
    cdef Py_ssize_t offset
    cdef Py_ssize_t length
    cdef int32_t records_size
    for topic, results in topics:
        if topic_ids and PyBytes_GET_SIZE(topic) != 16:
            return None
        size += PyBytes_GET_SIZE(topic) + 11 + 50 * len(results)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, size)
    begin = first = <uint8_t*>PyBytes_AS_STRING(out)
    at = put_int32(begin + 4, correlation_id)
    at[0] = 0
    at = put_int32(at + 1, throttle_time_ms)
    at = put_int32(put_int16(at, error_code), session_id)
    at = put_uvarint(at, <uint32_t>(len(topics) + 1))
    for topic, results in topics:
        if not topic_ids:
            at = put_uvarint(at, <uint32_t>(PyBytes_GET_SIZE(topic) + 1))
        memcpy(at, PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))
        at = put_uvarint(at + PyBytes_GET_SIZE(topic), <uint32_t>(len(results) + 1))
        for result in results:
            if (<tuple>result)[9] is not None or (<tuple>result)[10] is not None or (<tuple>result)[11] is not None:
                return None  # a diverging epoch, a hint, a snapshot
            aborted = (<tuple>result)[7]
            if aborted:
                return None
            at = put_int16(put_int32(at, (<tuple>result)[0]), (<tuple>result)[1])
            at = put_int64(put_int64(put_int64(at, (<tuple>result)[2]), (<tuple>result)[3]), (<tuple>result)[4])
            at[0] = 0 if aborted is None else 1
            at = put_int32(at + 1, (<tuple>result)[8])
            records_size = (<tuple>result)[5]
            at = put_uvarint(at, <uint32_t>records_size + 1)
            if records_size:
                records_bytes += records_size
                cuts.append((begin - first, at - begin, (<tuple>result)[6]))
                begin = at
            at[0] = 0
            at += 1
        at[0] = 0
        at += 1
    at[0] = 0
    at += 1
    if at - first + records_bytes - 4 > 0x7FFFFFFF:
        return None
    put_int32(first, <int32_t>(at - first + records_bytes - 4))
    for offset, length, records in cuts:
        answer.append(PyBytes_FromStringAndSize(<const char*>first + offset, length))
        answer.extend(records)
    answer.append(PyBytes_FromStringAndSize(<const char*>begin, at - begin))
    return answer
