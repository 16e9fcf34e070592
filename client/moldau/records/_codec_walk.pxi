# The check of a batch's records, piece by piece: a part of ``_codec.pyx``.
#
# A record that lies whole in a piece is parsed in place. One that spans pieces goes through ``resume``, which keeps its state
# between bytes, so that no record is ever copied and the memory does not depend on the size of the records.

cdef enum:
    AT_LENGTH = 0
    AT_ATTRIBUTES = 1
    AT_TIMESTAMP = 2
    AT_OFFSET = 3
    AT_KEY = 4
    AT_VALUE = 5
    AT_HEADERS = 6
    AT_HEADER_KEY = 7
    AT_HEADER_VALUE = 8
    AT_END = 9


@cython.final
cdef class RecordWalker:
    """Checks the records of a batch, piece by piece; see ``_codec.pyi``."""

    cdef readonly Py_ssize_t count
    cdef readonly int64_t max_timestamp
    cdef readonly Py_ssize_t keyless_count
    cdef readonly Py_ssize_t mistimed_count
    cdef readonly list faults
    cdef Py_ssize_t expected
    cdef int64_t base_timestamp
    cdef int64_t earliest
    cdef int64_t latest
    cdef bint needs_keys
    cdef Py_ssize_t faults_max
    cdef int reason
    cdef int phase
    cdef int shift
    cdef uint64_t raw
    cdef Py_ssize_t left
    cdef Py_ssize_t skip
    cdef Py_ssize_t headers_left
    cdef Parsed parsed

    def __init__(
        self,
        Py_ssize_t count,
        int64_t base_timestamp=0,
        int64_t earliest=INT64_MIN,
        int64_t latest=INT64_MAX,
        bint needs_keys=False,
        Py_ssize_t faults_max=0,
    ):
        self.expected = count
        self.base_timestamp = base_timestamp
        self.earliest = earliest
        self.latest = latest
        self.needs_keys = needs_keys
        self.faults_max = faults_max
        self.count = 0
        self.max_timestamp = -1
        self.keyless_count = 0
        self.mistimed_count = 0
        self.faults = []
        self.reason = REASON_NONE
        self.phase = AT_LENGTH
        self.shift = 0
        self.raw = 0
        self.left = 0
        self.skip = 0

    def feed(self, piece):
        cdef Py_buffer view
        PyObject_GetBuffer(piece, &view, PyBUF_SIMPLE)
        try:
            if self.reason == REASON_NONE:
                self.reason = self.walk(<const uint8_t*>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        if self.reason != REASON_NONE:
            raise corrupt_record(self.reason, self.count)

    def finish(self):
        if self.reason == REASON_NONE:
            if self.phase != AT_LENGTH:
                self.reason = REASON_LENGTH
            elif self.shift > 0:
                self.reason = REASON_VARINT
            elif self.count < self.expected:
                self.reason = REASON_COUNT
        if self.reason != REASON_NONE:
            raise corrupt_record(self.reason, self.count)

    cdef int walk(self, const uint8_t* data, Py_ssize_t end) except -1:
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t body
        cdef int64_t size
        cdef Parsed parsed
        cdef int reason
        while at < end:
            if self.phase == AT_LENGTH and self.shift == 0:
                if self.count >= self.expected:
                    return REASON_TRAILING
                body = at
                if read_varint(data, &body, end, &size) == 0 and 0 <= size <= end - body:
                    reason = parse_body(data, body, body + size, &parsed)
                    if reason == REASON_NONE:
                        reason = self.take(&parsed)
                    if reason != REASON_NONE:
                        return reason
                    at = parsed.end
                    continue
            at = self.resume(data, at, end)
            if at < 0:
                return <int>-at
            if self.phase == AT_END and self.skip == 0:
                self.phase = AT_LENGTH
                reason = self.take(&self.parsed)
                if reason != REASON_NONE:
                    return reason
        return REASON_NONE

    cdef inline int take(self, Parsed* record) except -1:
        """Counts a record; returns the reason if it does not fit the batch."""
        cdef int64_t timestamp
        cdef bint is_keyless = record.key_size < 0
        cdef bint is_mistimed
        if record.offset_delta != self.count:
            return REASON_SEQUENCE
        if sum_overflows(self.base_timestamp, record.timestamp_delta):
            return REASON_RANGE
        timestamp = self.base_timestamp + record.timestamp_delta
        if self.count == 0 or timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        is_mistimed = timestamp != -1 and (timestamp < self.earliest or timestamp > self.latest)
        self.keyless_count += is_keyless
        self.mistimed_count += is_mistimed
        if (is_mistimed or (is_keyless and self.needs_keys)) and len(self.faults) < self.faults_max:
            self.faults.append((self.count, bool(is_keyless), timestamp if is_mistimed else None))
        self.count += 1
        return REASON_NONE

    cdef Py_ssize_t resume(self, const uint8_t* data, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
        """Takes bytes of a record that does not lie whole in the piece, up to its end or that of the piece.

        Returns where it stopped, or a reason with a minus sign.
        """
        cdef Py_ssize_t taken
        cdef uint8_t byte
        cdef int64_t number
        cdef int reason
        while at < end:
            if self.skip > 0:
                taken = min(self.skip, end - at)
                at += taken
                self.skip -= taken
                self.left -= taken
            else:
                byte = data[at]
                at += 1
                if self.phase != AT_LENGTH:
                    self.left -= 1
                if self.phase == AT_ATTRIBUTES:
                    self.phase = AT_TIMESTAMP
                else:
                    if self.phase == AT_TIMESTAMP:
                        if self.shift == 63 and byte > 1:
                            return -REASON_VARINT
                    elif self.shift == 28 and byte > 0x0F:
                        return -REASON_VARINT
                    self.raw |= (<uint64_t>(byte & 0x7F)) << self.shift
                    if byte >= 0x80:
                        self.shift += 7
                    else:
                        number = <int64_t>((self.raw >> 1) ^ (0 - (self.raw & 1)))
                        self.raw = 0
                        self.shift = 0
                        reason = self.number_read(number)
                        if reason != REASON_NONE:
                            return -reason
            if self.skip == 0:
                if self.phase == AT_END:
                    break
                if self.left == 0 and self.phase != AT_LENGTH:
                    return -REASON_VARINT
        return at

    cdef int number_read(self, int64_t number) noexcept nogil:
        """Takes the next number of the record in progress, in the order of ``parse_record``."""
        if self.phase == AT_LENGTH:
            if number < 0:
                return REASON_LENGTH
            if number == 0:
                return REASON_END
            self.left = number
            self.phase = AT_ATTRIBUTES
        elif self.phase == AT_TIMESTAMP:
            self.parsed.timestamp_delta = number
            self.phase = AT_OFFSET
        elif self.phase == AT_OFFSET:
            self.parsed.offset_delta = number
            self.phase = AT_KEY
        elif self.phase == AT_KEY:
            if number < -1 or number > self.left:
                return REASON_KEY
            self.parsed.key_size = number
            self.skip = max(number, 0)
            self.phase = AT_VALUE
        elif self.phase == AT_VALUE:
            if number < -1 or number > self.left:
                return REASON_VALUE
            self.skip = max(number, 0)
            self.phase = AT_HEADERS
        elif self.phase == AT_HEADERS:
            if number < 0 or number > self.left // 2:
                return REASON_HEADER_COUNT
            if number == 0 and self.left != 0:
                return REASON_END
            self.headers_left = number
            self.phase = AT_HEADER_KEY if number else AT_END
        elif self.phase == AT_HEADER_KEY:
            if number < 0 or number > self.left:
                return REASON_HEADER_KEY
            self.skip = number
            self.phase = AT_HEADER_VALUE
        else:
            if number < -1 or number > self.left:
                return REASON_HEADER_VALUE
            self.skip = max(number, 0)
            self.headers_left -= 1
            if self.headers_left > 0:
                self.phase = AT_HEADER_KEY
            elif self.left != self.skip:
                return REASON_END
            else:
                self.phase = AT_END
        return REASON_NONE
