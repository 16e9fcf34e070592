"""Signatures and documentation of the record loops; ``_codec.pyx`` and ``pure.codec`` both obey them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, final

from typing_extensions import TypeVar

from moldau.records.columns import BinaryColumn, Columns

IMPLEMENTATION: str

Buffer = bytes | bytearray | memoryview
Header = tuple[str, bytes | None]

_K = TypeVar("_K", default=bytes)
_V = TypeVar("_V", default=bytes)
_P = TypeVar("_P", bound="RecordPlace")

@final
class Record(Generic[_K, _V]):
    """One record of a batch. Immutable; key, value and header values are copies, ``None`` is Kafka's null.

    Only annotations may name the types of key and value; they differ from bytes where a consumer has deserializers.
    """

    def __init__(
        self, offset: int, timestamp: int, key: _K | None, value: _V | None, headers: Iterable[Header] = ()
    ) -> None: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int:
        """Milliseconds since the Unix epoch; -1 where the producer gave none."""

    @property
    def key(self) -> _K | None: ...
    @property
    def value(self) -> _V | None: ...
    @property
    def headers(self) -> tuple[Header, ...]: ...

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
    """Decodes the ``count`` records in ``buffer[start:end]`` (uncompressed) and returns those from ``first_offset`` on.

    ``append_timestamp`` replaces the timestamps where it is not None (LogAppendTime). The whole range is validated;
    offset deltas must ascend strictly and end at most at ``last_offset_delta``. Raises ``CorruptRecordError``.
    """

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
    """Returns offset and timestamp of the first of the ``count`` records in ``buffer[start:end]`` (uncompressed) that
    has ``timestamp`` or a later one, and an offset from ``first_offset`` on; None if there is none.

    The other arguments are those of ``decode_records``. The interpreter's lock is released meanwhile. Raises
    ``CorruptRecordError`` for damage before that record.
    """

@final
class RecordWalker:
    """Checks the ``count`` records of one batch without making objects, from pieces of any sizes.

    Its memory does not depend on the records. A record must be well formed, its offset delta must be its number in the
    batch, and its timestamp must fit 64 bits. The outcome does not depend on how the bytes are cut into pieces.
    """

    def __init__(
        self,
        count: int,
        base_timestamp: int = 0,
        earliest: int = -9223372036854775808,
        latest: int = 9223372036854775807,
        needs_keys: bool = False,
        faults_max: int = 0,
    ) -> None:
        """``earliest`` and ``latest`` are the least and greatest timestamps in order, besides -1, which means none.

        ``needs_keys`` makes a missing key a fault. Of the faulty records the first ``faults_max`` are noted.
        """

    @property
    def count(self) -> int:
        """Records so far."""

    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp so far; -1 when there is no record."""

    @property
    def keyless_count(self) -> int:
        """Records without a key so far."""

    @property
    def mistimed_count(self) -> int:
        """Records so far whose timestamp is not between ``earliest`` and ``latest``."""

    @property
    def faults(self) -> list[tuple[int, bool, int | None]]:
        """The first ``faults_max`` faulty records: number, whether the key is missing, timestamp if that is out of
        order.
        """

    def feed(self, piece: Buffer) -> None:
        """Walks on through the next bytes. Raises ``CorruptRecordError``, and again in each later call."""

    def finish(self) -> None:
        """Raises ``CorruptRecordError`` where the bytes ended too early."""

@final
class RecordWriter:
    """Encodes records one after the other into one growing buffer, after ``reserved`` zero bytes (room for a batch
    header).
    """

    def __init__(self, reserved: int = 0, capacity: int = 1024, base_timestamp: int | None = None) -> None: ...
    @property
    def size(self) -> int:
        """Bytes so far, the reserved ones included."""

    @property
    def count(self) -> int: ...
    @property
    def last_offset_delta(self) -> int:
        """Of the last record; -1 when there is none."""

    @property
    def base_timestamp(self) -> int:
        """What timestamp deltas count from: as given, or the first record's timestamp; -1 when there is neither."""

    @property
    def max_timestamp(self) -> int: ...
    def append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]] = (),
        size_limit: int = 2147483647,
        offset_delta: int = -1,
    ) -> int:
        """Encodes one record (its buffers are copied) and returns its offset delta.

        Returns -1 and changes nothing if the buffer would grow beyond ``size_limit`` bytes; the first record is taken
        at any size. ``offset_delta`` -1 means one after the last. Raises ``InvalidRecordError`` (header key no str,
        more than 2 GiB), ``ValueError`` (offset delta not ascending).
        """

    def append_rows(
        self, columns: RowColumns, rows: Buffer, start: int, timestamp: int, size_limit: int = 2147483647
    ) -> int:
        """Encodes rows in the order in which ``rows`` (int32 each) names them, from its element ``start`` on.

        Returns how many were taken before the next one would exceed ``size_limit`` bytes; the first record of a batch
        is taken at any size. ``timestamp`` is that of rows without one.

        Raises:
            InvalidRecordError: A row cannot be encoded; the rows before it were taken.
            IndexError: A number names no row.
            ValueError: ``rows`` is no array of int32.
        """

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
        """Copies those of the ``count`` records in ``buffer[start:end]`` (uncompressed) with a byte not 0 in ``keep``.

        Offset deltas stay, timestamps too (``base_timestamp`` and ``append_timestamp`` as for ``decode_records``).
        Returns how many were copied. Raises ``CorruptRecordError`` (those before it have been copied then),
        ``InvalidRecordError``, ``ValueError`` (``keep`` has another length).
        """

    def take(self) -> bytearray:
        """Returns the buffer without copying it; the writer is used up."""

class RecordPlace:
    """The batch of a record, its number in the batch, and its timestamp: the base of the producer's deliveries."""

    _batch: Any
    _index: int
    _timestamp: int
    def __init__(self, batch: object, index: int, timestamp: int) -> None: ...

class PendingRecord:
    """A record on its way to another thread: the base of the deliveries of blocking and asyncio producers."""

    _owner: Any
    taken: Any
    """The record's place, once the other thread has taken it."""
    intercepted: Any
    """The record as interceptors saw it, None without any; the caller must append such a record."""
    _error: Any
    def __init__(self, owner: object) -> None: ...

class PartitionSlot:
    """The open batch of one partition: the base of the producer's queues."""

    open_batch: Any
    """The batch that takes the next records, None without one."""

    def open(self, batch: object, writer: RecordWriter, size_limit: int) -> None:
        """Sets the batch that takes the next records, its writer, and the bytes to which it may grow.

        The slot takes no more records when the writer's bytes are taken.
        """

    def shut(self) -> None:
        """Removes the batch."""

class TopicRoute:
    """The partitions of one topic: the base of the producer's topics.

    ``kept`` takes the records without a key until ``kept_bytes`` reaches ``kept_bytes_max``; None while the caller must
    choose. ``sent`` counts records.
    """

    queues: list[Any]
    kept: Any
    kept_bytes: int
    kept_bytes_max: float
    sent: int
    def __init__(self, queues: list[Any]) -> None: ...

class _Versioned(Protocol):
    version: int

class _Threaded(Protocol):
    thread_id: int

@final
class RecordAppender(Generic[_P]):
    """Appends records without headers to batches that are open and do not become full: most records of a producer.

    All others are left to the caller: ``append`` then changes nothing and returns None. So each check and each error
    exists once, with the caller. ``counted`` tells of a record that the caller appended. The caller is asked for one
    record of ``interval`` at least, and ``take_turn`` then says once that the interval is over.
    """

    check: Callable[[], object] | None
    """Called before a record is appended; its exception refuses the record."""
    is_open: bool
    version: int
    """The version of the metadata that the routes agree with."""

    def __init__(
        self,
        place: type[_P],
        routes: Mapping[str, TopicRoute],
        *,
        record_bytes_max: int,
        interval: int,
        ignores_keys: bool = False,
        is_custom: bool = False,
    ) -> None:
        """``place`` is the class to return, ``routes`` are the topics by name.

        Records of more than about ``record_bytes_max`` bytes are left to the caller. ``ignores_keys`` chooses no
        partition by key, ``is_custom`` none at all.
        """

    @property
    def left(self) -> int:
        """Records until the interval is over."""

    def open(
        self, metadata: _Versioned, now_ns: Callable[[], int], thread: Callable[[], int], caller: _Threaded
    ) -> None:
        """Begins to take records while ``thread()`` is ``caller.thread_id``.

        ``now_ns`` is the timestamp of records without one, in nanoseconds.
        """

    def append(
        self, topic: object, value: object, key: object, headers: object, partition: object, timestamp: object
    ) -> _P | None:
        """Appends a record and returns its place; None if the caller must append it.

        Raises:
            InvalidRecordError: the timestamp is too far from that of the batch's first record.
        """

    def append_many(
        self, topic: object, values: list[Any], keys: list[Any] | None, partition: object, places: list[_P]
    ) -> None:
        """Appends the records from number ``len(places)`` on, and their places, until the caller must append one."""

    def append_handed(self, popleft: Callable[[], Any], count: int, now_ms: int) -> tuple[int, Any]:
        """Takes up to ``count`` records from a queue, and sets ``taken`` of their deliveries to their places.

        Records are (topic, value, key, headers, partition, timestamp, delivery). Returns the number taken, and the last
        of them if the caller must append it, else None.
        """

    def counted(self) -> None:
        """Counts a record that the caller appended."""

    def take_turn(self) -> bool:
        """Returns whether the interval is over, once."""

@final
class ColumnBuilder:
    """Decodes batches of one partition into columns (see ``moldau.records.columns``)."""

    def __init__(self) -> None: ...
    @property
    def length(self) -> int: ...
    @property
    def size_bytes(self) -> int:
        """Bytes of offsets, timestamps, keys, values and headers held."""

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
        """Adds the records with ``first_offset`` <= offset < ``end_offset`` and returns their number.

        Raises ``CorruptRecordError``, and ``OverflowError`` when a column could exceed 2 GiB (finish, then try again);
        the columns are then as before.
        """

    def finish(self) -> Columns:
        """Returns the columns and starts again, empty."""

@final
class RowColumns:
    """Rows to encode, as columns in Arrow's layout; the buffers are borrowed and must not change.

    Every offset is checked once, here. A column that is not given is null in each row. ``timestamps`` are int64
    milliseconds; a negative one means that the row has none. The headers of row i are the rows from
    ``header_offsets[i]`` to ``header_offsets[i + 1]`` of ``header_keys`` and ``header_values``.
    """

    def __init__(
        self,
        length: int,
        keys: BinaryColumn | None = None,
        values: BinaryColumn | None = None,
        timestamps: Buffer | None = None,
        header_offsets: Buffer | None = None,
        header_keys: BinaryColumn | None = None,
        header_values: BinaryColumn | None = None,
    ) -> None:
        """Raises ``ValueError``: a buffer is too short, offsets do not ascend, a header key is null."""

    @property
    def length(self) -> int: ...
    def size_bound(self, row: int) -> int:
        """Returns an upper bound of the size of a batch of this row alone, uncompressed."""

    def timestamp(self, row: int) -> int:
        """Returns the timestamp of a row; -1 if it has none."""

    def largest_bound(self) -> int:
        """Returns the greatest ``size_bound`` of a row; 0 without rows."""

    def partitions_by_key(self, count: int) -> bytes:
        """Returns the partition of each row (int32) as Kafka's default partitioner computes it; -1 without a key."""

    def fingerprint(self) -> int:
        """Returns a sum of 64 bits over hashes of the rows; it does not depend on their order."""

def group_rows(partitions: Buffer, count: int) -> list[tuple[int, bytes]]:
    """Returns for each partition that occurs, ascending, its rows (int32 each, ascending).

    ``partitions`` holds an int32 for each row: -1 for rows without a partition, else 0 to ``count`` - 1. Raises
    ``ValueError``.
    """

def murmur2(data: Buffer) -> int:
    """Returns the 32-bit murmur2 hash, unsigned, with the seed that Kafka's default partitioner uses."""
