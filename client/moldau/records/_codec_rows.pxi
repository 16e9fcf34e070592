# Part of _codec.pyx, which includes it: rows to encode, in Arrow's layout, and what is computed of them without an object per row.

cdef struct BinaryRows:
    const int32_t* offsets
    const uint8_t* data
    const uint8_t* validity  # NULL: no row is null


cdef inline Py_ssize_t row_at(const BinaryRows* column, Py_ssize_t row) noexcept nogil:
    return column.offsets[row]


cdef inline Py_ssize_t row_bytes(const BinaryRows* column, Py_ssize_t row) noexcept nogil:
    """Returns the size of a value; -1 for a null or a column that is not there."""
    if column.offsets == NULL:
        return -1
    if column.validity != NULL and not (column.validity[row >> 3] >> (row & 7)) & 1:
        return -1
    return column.offsets[row + 1] - column.offsets[row]


cdef inline uint32_t murmur2_of(const uint8_t* raw, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t at = 0
    cdef uint32_t hashed = <uint32_t>0x9747B28C ^ <uint32_t>size
    cdef uint32_t word
    while size - at >= 4:
        word = raw[at] | (<uint32_t>raw[at + 1] << 8) | (<uint32_t>raw[at + 2] << 16) | (<uint32_t>raw[at + 3] << 24)
        word *= <uint32_t>0x5BD1E995
        word ^= word >> 24
        word *= <uint32_t>0x5BD1E995
        hashed *= <uint32_t>0x5BD1E995
        hashed ^= word
        at += 4
    if size - at == 3:
        hashed ^= <uint32_t>raw[at + 2] << 16
    if size - at >= 2:
        hashed ^= <uint32_t>raw[at + 1] << 8
    if size - at >= 1:
        hashed ^= raw[at]
        hashed *= <uint32_t>0x5BD1E995
    hashed ^= hashed >> 13
    hashed *= <uint32_t>0x5BD1E995
    hashed ^= hashed >> 15
    return hashed


cdef inline uint64_t mix(uint64_t state, uint64_t number) noexcept nogil:
    state = (state ^ number) * <uint64_t>0x9E3779B97F4A7C15
    return state ^ (state >> 29)


@cython.final
cdef class RowColumns:
    """Rows to encode; see ``_codec.pyi``."""

    cdef readonly Py_ssize_t length
    cdef Py_buffer views[14]
    cdef int view_count
    cdef BinaryRows keys
    cdef BinaryRows values
    cdef BinaryRows header_keys
    cdef BinaryRows header_values
    cdef const int64_t* timestamps
    cdef const int32_t* header_offsets

    def __init__(
        self, Py_ssize_t length, keys=None, values=None, timestamps=None, header_offsets=None, header_keys=None, header_values=None
    ):
        cdef Py_ssize_t children = 0
        if length < 0:
            raise ValueError("length must not be negative")
        if self.view_count:
            raise ValueError("rows are set up once")
        self.length = length
        self.set_binary(&self.keys, "keys", keys, length)
        self.set_binary(&self.values, "values", values, length)
        if timestamps is not None:
            self.timestamps = <const int64_t*>self.hold("timestamps", timestamps, 8 * length)
        if header_offsets is not None:
            if header_keys is None or header_values is None:
                raise ValueError("header_offsets need header_keys and header_values")
            self.header_offsets = <const int32_t*>self.hold("header_offsets", header_offsets, 4 * (length + 1))
            children = min(header_keys.length, header_values.length)
            check_offsets("header_offsets", self.header_offsets, length, children)
            if header_keys.null_count:
                raise ValueError("header_keys: a header key must not be null")
            self.set_binary(&self.header_keys, "header_keys", header_keys, header_keys.length)
            self.set_binary(&self.header_values, "header_values", header_values, header_values.length)

    def __dealloc__(self):
        cdef int index
        for index in range(self.view_count):
            PyBuffer_Release(&self.views[index])

    cdef const uint8_t* hold(self, str name, buffer, Py_ssize_t least) except? NULL:
        cdef Py_buffer* view = &self.views[self.view_count]
        PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE)
        self.view_count += 1
        if view.len < least:
            raise ValueError(f"{name}: {view.len} bytes, {least} needed")
        return <const uint8_t*>view.buf

    cdef int set_binary(self, BinaryRows* column, str name, given, Py_ssize_t length) except -1:
        if given is None:
            return 0
        if given.length != length:
            raise ValueError(f"{name}: {given.length} rows, {length} needed")
        column.offsets = <const int32_t*>self.hold(name, given.offsets, 4 * (length + 1))
        column.data = self.hold(name, given.data, 0)
        check_offsets(name, column.offsets, length, self.views[self.view_count - 1].len)
        if given.null_count:
            column.validity = self.hold(name, given.validity, (length + 7) >> 3)
        return 0

    cdef Py_ssize_t headers_bytes(self, Py_ssize_t row) noexcept nogil:
        """Returns the encoded size of a row's headers, their count included."""
        cdef Py_ssize_t at
        cdef Py_ssize_t size
        cdef Py_ssize_t total
        if self.header_offsets == NULL:
            return 1
        total = varint_size(zigzag(self.header_offsets[row + 1] - self.header_offsets[row]))
        for at in range(self.header_offsets[row], self.header_offsets[row + 1]):
            size = row_bytes(&self.header_keys, at)
            total += varint_size(zigzag(size)) + size
            size = row_bytes(&self.header_values, at)
            total += varint_size(zigzag(size)) + (size if size > 0 else 0)
        return total

    cdef Py_ssize_t bound(self, Py_ssize_t row) noexcept nogil:
        return 97 + max(row_bytes(&self.keys, row), 0) + max(row_bytes(&self.values, row), 0) + self.headers_bytes(row)

    def size_bound(self, Py_ssize_t row):
        if not 0 <= row < self.length:
            raise IndexError(f"row {row} of {self.length}")
        return self.bound(row)

    def timestamp(self, Py_ssize_t row):
        if not 0 <= row < self.length:
            raise IndexError(f"row {row} of {self.length}")
        return -1 if self.timestamps == NULL else max(self.timestamps[row], -1)

    def largest_bound(self):
        cdef Py_ssize_t row
        cdef Py_ssize_t largest = 0
        with nogil:
            for row in range(self.length):
                largest = max(largest, self.bound(row))
        return largest

    def partitions_by_key(self, int32_t count):
        cdef Py_ssize_t row
        cdef Py_ssize_t size
        cdef bytes made = PyBytes_FromStringAndSize(NULL, 4 * self.length)
        cdef int32_t* chosen = <int32_t*>PyBytes_AS_STRING(made)
        if count < 1:
            raise ValueError(f"{count} partitions")
        with nogil:
            for row in range(self.length):
                size = row_bytes(&self.keys, row)
                if size < 0:
                    chosen[row] = -1
                else:
                    chosen[row] = <int32_t>((murmur2_of(self.keys.data + row_at(&self.keys, row), size) & 0x7FFFFFFF) % <uint32_t>count)
        return made

    def fingerprint(self):
        cdef Py_ssize_t row
        cdef Py_ssize_t size
        cdef Py_ssize_t at
        cdef uint64_t total = 0
        cdef uint64_t state
        with nogil:
            for row in range(self.length):
                state = mix_field(&self.keys, row, <uint64_t>0x243F6A8885A308D3)
                state = mix_field(&self.values, row, state)
                if self.timestamps != NULL:
                    state = mix(state, <uint64_t>self.timestamps[row])
                if self.header_offsets != NULL:
                    for at in range(self.header_offsets[row], self.header_offsets[row + 1]):
                        state = mix_field(&self.header_keys, at, state)
                        state = mix_field(&self.header_values, at, state)
                total += state
        return total


cdef inline uint64_t mix_field(const BinaryRows* column, Py_ssize_t row, uint64_t state) noexcept nogil:
    cdef Py_ssize_t size = row_bytes(column, row)
    state = mix(state, <uint64_t>(size + 1))
    if size > 0:
        state = mix(state, murmur2_of(column.data + row_at(column, row), size))
    return state


cdef inline Py_ssize_t copy_row(
    uint8_t* data, Py_ssize_t at, const BinaryRows* column, Py_ssize_t row, Py_ssize_t size
) noexcept nogil:
    at = write_varint(data, at, zigzag(size))
    if size > 0:
        memcpy(data + at, column.data + row_at(column, row), size)
        at += size
    return at


cdef int check_offsets(str name, const int32_t* offsets, Py_ssize_t length, Py_ssize_t end) except -1:
    cdef Py_ssize_t row
    cdef bint is_wrong = offsets[0] < 0
    with nogil:
        for row in range(length):
            is_wrong |= offsets[row + 1] < offsets[row]
    if is_wrong or offsets[length] > end:
        raise ValueError(f"{name}: offsets do not ascend from 0 or more to at most {end}")
    return 0


def group_rows(partitions, Py_ssize_t count):
    cdef Py_buffer view
    cdef Py_ssize_t length
    cdef Py_ssize_t row
    cdef Py_ssize_t group
    cdef const int32_t* chosen
    cdef Vector counts
    cdef int32_t wrong = 0
    cdef bint is_wrong = False
    cdef list groups = []
    cdef bytes rows
    if count < 1:
        raise ValueError(f"{count} partitions")
    counts.data = NULL
    counts.size = counts.capacity = 0
    PyObject_GetBuffer(partitions, &view, PyBUF_SIMPLE)
    try:
        if view.len % 4:
            raise ValueError(f"partitions: {view.len} bytes are no int32 numbers")
        length = view.len // 4
        chosen = <const int32_t*>view.buf
        # Per group -1..count-1: how many rows it has, then where its next row goes.
        reserve(&counts, 8 * (count + 1))
        memset(counts.data, 0, 8 * (count + 1))
        for row in range(length):
            if not -1 <= chosen[row] < count:
                is_wrong = True
                wrong = chosen[row]
                break
            (<int64_t*>counts.data)[chosen[row] + 1] += 1
        if is_wrong:
            raise ValueError(f"row {row}: partition {wrong}, there are 0 to {count - 1}")
        for group in range(count + 1):
            if (<int64_t*>counts.data)[group]:
                rows = PyBytes_FromStringAndSize(NULL, 4 * (<int64_t*>counts.data)[group])
                groups.append((group - 1, rows))
                (<int64_t*>counts.data)[group] = <int64_t><Py_ssize_t>PyBytes_AS_STRING(rows)
        for row in range(length):
            group = chosen[row] + 1
            (<int32_t*><Py_ssize_t>(<int64_t*>counts.data)[group])[0] = <int32_t>row
            (<int64_t*>counts.data)[group] += 4
        return groups
    finally:
        free(counts.data)
        PyBuffer_Release(&view)
