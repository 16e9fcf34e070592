# Records one by one into open batches: part of ``_codec.pyx``. ``pure.append`` is the twin in Python.

from cpython.unicode cimport PyUnicode_CheckExact

cdef extern from "Python.h":
    bint PyObject_GC_IsTracked(object)
    void PyObject_GC_UnTrack(void*)

cdef Py_ssize_t RECORD_OVERHEAD = 128
cdef Py_ssize_t NEARLY_FULL = 8  # EMPTY_RECORD_BYTES
cdef Py_ssize_t STICKY_OVERHEAD = 16


@cython.no_gc
cdef class RecordPlace:
    """The batch of a record and its number in it; see ``_codec.pyi``."""

    cdef readonly object _batch
    cdef readonly int64_t _index
    cdef readonly int64_t _timestamp

    def __init__(self, batch, int64_t index, int64_t timestamp):
        self._batch = batch
        self._index = index
        self._timestamp = timestamp


cdef class PendingRecord:
    """A record on its way to another thread; see ``_codec.pyi``."""

    cdef public object _owner
    cdef public object taken
    cdef public object intercepted
    cdef public object _error

    def __init__(self, owner):
        self._owner = owner


cdef class PartitionSlot:
    """The open batch of one partition; see ``_codec.pyi``."""

    cdef readonly object open_batch
    cdef RecordWriter open_writer
    cdef Py_ssize_t size_limit

    def open(self, batch, RecordWriter writer not None, Py_ssize_t size_limit):
        self.open_batch = batch
        self.open_writer = writer
        self.size_limit = size_limit

    def shut(self):
        self.open_batch = None
        self.open_writer = None


cdef class TopicRoute:
    """The partitions of one topic; see ``_codec.pyi``."""

    cdef readonly list queues
    cdef public PartitionSlot kept
    cdef public int64_t kept_bytes
    cdef public double kept_bytes_max
    cdef public int64_t sent

    def __init__(self, list queues not None):
        self.queues = queues
        self.kept = None
        self.kept_bytes = 0
        self.kept_bytes_max = 0.0
        self.sent = 0


@cython.final
cdef class RecordAppender:
    """Appends plain records to open batches; see ``_codec.pyi``."""

    cdef type place
    cdef Py_ssize_t record_bytes_max
    cdef Py_ssize_t interval
    cdef bint ignores_keys
    cdef bint is_custom
    cdef dict routes
    cdef object metadata
    cdef object now_ns
    cdef object thread
    cdef object caller
    cdef public object check
    cdef public bint is_open
    cdef public int64_t version
    cdef readonly Py_ssize_t left
    cdef bint is_due

    def __init__(
        self,
        type place not None,
        dict routes not None,
        *,
        Py_ssize_t record_bytes_max,
        Py_ssize_t interval,
        bint ignores_keys=False,
        bint is_custom=False,
    ):
        if not issubclass(place, RecordPlace):
            raise TypeError("place must be a RecordPlace")
        self.place = place
        self.routes = routes
        self.record_bytes_max = record_bytes_max
        self.interval = interval
        self.left = interval
        self.ignores_keys = ignores_keys
        self.is_custom = is_custom
        self.check = None
        self.is_open = False
        self.version = -1
        self.is_due = False

    def open(self, metadata, now_ns, thread, caller):
        self.metadata = metadata
        self.now_ns = now_ns
        self.thread = thread
        self.caller = caller
        self.is_open = True

    cdef bint is_ready(self) except -1:
        return self.is_open and self.thread() == self.caller.thread_id

    def append(self, topic, value, key, headers, partition, timestamp):
        if not self.is_ready():
            return None
        return self.write(topic, value, key, headers, partition, timestamp)

    cdef object write(self, topic, value, key, headers, partition, timestamp):
        cdef TopicRoute route
        cdef PartitionSlot slot
        cdef RecordWriter writer
        cdef RecordPlace placed
        cdef bint is_kept = False
        cdef int64_t moment
        cdef int64_t index
        cdef Py_ssize_t number
        cdef Py_ssize_t key_size = -1
        cdef Py_ssize_t value_size = -1
        cdef Py_ssize_t size
        if type(headers) is not tuple or len(<tuple>headers) or not PyUnicode_CheckExact(topic) or self.left <= 0:
            return None
        if key is not None:
            if not PyBytes_CheckExact(key):
                return None
            key_size = PyBytes_GET_SIZE(key)
        if value is not None:
            if not PyBytes_CheckExact(value):
                return None
            value_size = PyBytes_GET_SIZE(value)
        size = max(key_size, 0) + max(value_size, 0)
        if size + RECORD_OVERHEAD > self.record_bytes_max:
            return None
        found = self.routes.get(topic)
        if found is None or self.metadata.version != self.version:
            return None
        route = <TopicRoute?>found
        if not route.queues:
            return None
        if partition is not None:
            if type(partition) is not int:
                return None
            if partition < 0 or partition >= len(route.queues):
                return None
            number = partition
            slot = <PartitionSlot?>route.queues[number]
        elif self.is_custom:
            return None
        elif key is not None and not self.ignores_keys:
            number = (murmur2_of(<const uint8_t*>PyBytes_AS_STRING(key), key_size) & 0x7FFFFFFF) % <uint32_t>len(route.queues)
            slot = <PartitionSlot?>route.queues[number]
        else:
            slot = route.kept
            if slot is None or route.kept_bytes + size + STICKY_OVERHEAD >= route.kept_bytes_max:
                return None
            is_kept = True
        writer = slot.open_writer
        if writer is None or writer.buffer is None:
            return None
        if self.check is not None:
            self.check()
        if timestamp is None:
            moment = <int64_t>self.now_ns() // 1000000
        elif type(timestamp) is not int or timestamp < 0 or timestamp > INT64_MAX:
            return None
        else:
            moment = timestamp
        index = writer.write(moment, key, value, None, slot.size_limit - NEARLY_FULL, -1)
        if index < 0:
            return None
        route.sent += 1
        if is_kept:
            route.kept_bytes += size + STICKY_OVERHEAD
        self.left -= 1
        placed = <RecordPlace>self.place.__new__(self.place)
        if PyObject_GC_IsTracked(placed):
            PyObject_GC_UnTrack(<void*>placed)  # producers settle every batch, so no cycle stays
        placed._batch = slot.open_batch
        placed._index = index
        placed._timestamp = moment
        return placed

    def append_many(self, topic, list values not None, keys, partition, list places not None):
        cdef Py_ssize_t at = len(places)
        cdef Py_ssize_t count = len(values)
        cdef list named = keys
        if not self.is_ready():
            return
        while at < count:
            placed = self.write(topic, values[at], None if named is None else named[at], (), partition, None)
            if placed is None:
                return
            places.append(placed)
            at += 1

    def append_handed(self, popleft, Py_ssize_t count, int64_t now_ms):
        cdef Py_ssize_t taken = 0
        cdef bint is_open = self.is_ready()
        cdef tuple record
        cdef PendingRecord delivery
        while taken < count:
            record = <tuple?>popleft()
            taken += 1
            timestamp = record[5]
            delivery = <PendingRecord?>record[6]
            if not is_open or delivery.intercepted is not None:
                return taken, record
            if timestamp is None:
                timestamp = now_ms
            try:
                placed = self.write(record[0], record[1], record[2], record[3], record[4], timestamp)
            except Exception:  # the caller meets it again, and knows whose it is
                return taken, record
            if placed is None:
                return taken, record
            delivery.taken = placed
        return taken, None

    def counted(self):
        if self.left > 1:
            self.left -= 1
        else:
            self.left = self.interval
            self.is_due = True

    def take_turn(self):
        cdef bint was = self.is_due
        self.is_due = False
        return was
