# Part of _codec.pyx, which includes it: the columns of a batch, built record by record in memory that grows (Arrow's layout).
# Included, not imported: the compiler sees one module, and the loops over records call into it without a detour.

cdef struct Vector:
    uint8_t* data
    Py_ssize_t size
    Py_ssize_t capacity


cdef int reserve(Vector* vector, Py_ssize_t more) except -1:
    cdef Py_ssize_t capacity
    cdef uint8_t* data
    if vector.size + more <= vector.capacity:
        return 0
    capacity = max(vector.size + more, 2 * vector.capacity, 256)
    data = <uint8_t*>realloc(vector.data, capacity)
    if data == NULL:
        raise MemoryError()
    vector.data = data
    vector.capacity = capacity
    return 0


cdef inline int push_int32(Vector* vector, int32_t number) except -1:
    reserve(vector, 4)
    memcpy(vector.data + vector.size, &number, 4)
    vector.size += 4
    return 0


cdef inline int push_int64(Vector* vector, int64_t number) except -1:
    reserve(vector, 8)
    memcpy(vector.data + vector.size, &number, 8)
    vector.size += 8
    return 0


cdef struct BinaryVector:
    Vector offsets
    Vector data
    Vector validity
    Py_ssize_t length
    Py_ssize_t null_count


cdef int push_binary(BinaryVector* column, const uint8_t* data, Py_ssize_t size) except -1:
    cdef Py_ssize_t bit = column.length & 7
    if column.length == 0:
        push_int32(&column.offsets, 0)
    if bit == 0:
        reserve(&column.validity, 1)
        column.validity.data[column.validity.size] = 0
        column.validity.size += 1
    if size < 0:
        column.null_count += 1
    else:
        if column.data.size + size > INT32_LIMIT:
            raise OverflowError("a column holds at most 2 GiB; finish it sooner")
        column.validity.data[column.validity.size - 1] |= <uint8_t>(1 << bit)
        if size > 0:
            reserve(&column.data, size)
            memcpy(column.data.data + column.data.size, data, size)
            column.data.size += size
    column.length += 1
    push_int32(&column.offsets, <int32_t>column.data.size)
    return 0


cdef bytes take_vector(Vector* vector):
    cdef bytes taken = PyBytes_FromStringAndSize(<const char*>vector.data, vector.size)
    vector.size = 0
    return taken


cdef object take_binary(BinaryVector* column):
    if column.length == 0:
        push_int32(&column.offsets, 0)
    taken = BinaryColumn(
        length=column.length,
        null_count=column.null_count,
        validity=take_vector(&column.validity),
        offsets=take_vector(&column.offsets),
        data=take_vector(&column.data),
    )
    column.length = 0
    column.null_count = 0
    return taken


cdef void free_binary(BinaryVector* column) noexcept:
    free(column.offsets.data)
    free(column.data.data)
    free(column.validity.data)


@cython.final
cdef class ColumnBuilder:
    """Decodes batches into columns; see ``_codec.pyi``."""

    cdef Vector offsets
    cdef Vector timestamps
    cdef Vector header_offsets
    cdef BinaryVector keys
    cdef BinaryVector values
    cdef BinaryVector header_keys
    cdef BinaryVector header_values
    cdef readonly Py_ssize_t length

    def __dealloc__(self):
        free(self.offsets.data)
        free(self.timestamps.data)
        free(self.header_offsets.data)
        free_binary(&self.keys)
        free_binary(&self.values)
        free_binary(&self.header_keys)
        free_binary(&self.header_values)

    @property
    def size_bytes(self):
        return (
            self.length * 16
            + self.keys.data.size
            + self.values.data.size
            + self.header_keys.data.size
            + self.header_values.data.size
        )

    cdef int push_headers(self, const uint8_t* data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t count) except -1:
        cdef int64_t size = 0
        cdef Py_ssize_t index
        cdef uint8_t seen
        cdef bytes name
        while count > 0:
            count -= 1
            read_varint(data, &at, end, &size)
            seen = 0
            for index in range(at, at + size):
                seen |= data[index]
            if seen < 0x80:
                push_binary(&self.header_keys, data + at, size)
            else:
                name = PyUnicode_DecodeUTF8(<const char*>data + at, size, "replace").encode()
                push_binary(&self.header_keys, <const uint8_t*>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
            at += size
            read_varint(data, &at, end, &size)
            push_binary(&self.header_values, data + at, size)
            if size > 0:
                at += size
        return 0

    def append(
        self,
        buffer,
        Py_ssize_t start,
        Py_ssize_t end,
        Py_ssize_t count,
        int64_t base_offset,
        int64_t base_timestamp,
        append_timestamp,
        int64_t last_offset_delta,
        int64_t first_offset,
        int64_t end_offset,
    ):
        cdef Py_buffer view
        cdef const uint8_t* data
        cdef Py_ssize_t at = start
        cdef Py_ssize_t index = 0
        cdef Py_ssize_t before = self.length
        cdef int64_t previous = -1
        cdef int64_t offset
        cdef int64_t fixed_timestamp = 0
        cdef bint is_fixed = append_timestamp is not None
        cdef Parsed parsed
        cdef int reason
        if is_fixed:
            fixed_timestamp = append_timestamp
        # The first walk finds corruption before any row is added, so a failed append leaves the columns as they were.
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
                if sum_overflows(base_offset, parsed.offset_delta) or sum_overflows(
                    base_timestamp, parsed.timestamp_delta
                ):
                    raise corrupt_record(REASON_RANGE, index)
                previous = parsed.offset_delta
                at = parsed.end
                index += 1
            if at != end:
                raise corrupt_record(REASON_TRAILING, count)
            if (
                self.keys.data.size + (end - start) > INT32_LIMIT
                or self.values.data.size + (end - start) > INT32_LIMIT
                or self.header_keys.data.size + 3 * (end - start) > INT32_LIMIT
                or self.header_values.data.size + (end - start) > INT32_LIMIT
            ):
                raise OverflowError("a column holds at most 2 GiB; finish it sooner")
            at = start
            for index in range(count):
                parse_record(data, at, end, &parsed)
                at = parsed.end
                offset = base_offset + parsed.offset_delta
                if offset < first_offset:
                    continue
                if offset >= end_offset:
                    break
                if self.length == 0:
                    push_int32(&self.header_offsets, 0)
                push_int64(&self.offsets, offset)
                push_int64(&self.timestamps, fixed_timestamp if is_fixed else base_timestamp + parsed.timestamp_delta)
                push_binary(&self.keys, data + parsed.key_at, parsed.key_size)
                push_binary(&self.values, data + parsed.value_at, parsed.value_size)
                if parsed.header_count > 0:
                    self.push_headers(data, parsed.headers_at, parsed.end, parsed.header_count)
                push_int32(&self.header_offsets, <int32_t>self.header_keys.length)
                self.length += 1
            return self.length - before
        finally:
            PyBuffer_Release(&view)

    def finish(self):
        cdef Py_ssize_t length = self.length
        if length == 0:
            push_int32(&self.header_offsets, 0)
        self.length = 0
        return Columns(
            length=length,
            offsets=take_vector(&self.offsets),
            timestamps=take_vector(&self.timestamps),
            keys=take_binary(&self.keys),
            values=take_binary(&self.values),
            header_offsets=take_vector(&self.header_offsets),
            header_keys=take_binary(&self.header_keys),
            header_values=take_binary(&self.header_values),
        )
