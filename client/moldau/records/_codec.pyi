"""Signatures and documentation of the record loops; ``_codec.pyx`` and ``_codec_py.py`` both obey them."""

from collections.abc import Iterable
from typing import final

from moldau.records.columns import Columns

IMPLEMENTATION: str

Buffer = bytes | bytearray | memoryview
Header = tuple[str, bytes | None]

@final
class Record:
    """One record of a batch. Immutable; key, value and header values are copies, ``None`` is Kafka's null."""

    def __init__(
        self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: Iterable[Header] = ()
    ) -> None: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int:
        """Milliseconds since the Unix epoch; -1 where the producer gave none."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
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

def walk_records(buffer: Buffer, start: int, end: int, count: int) -> tuple[int, int, int, int, int, int]:
    """Validates the ``count`` records in ``buffer[start:end]`` (uncompressed) without making objects.

    Returns (first offset delta, last offset delta, least timestamp delta, greatest timestamp delta, offset delta of the
    first record with the greatest timestamp, number of records without a key); (-1, -1, 0, 0, 0, 0) for no records.
    Offset deltas are dense exactly if first is 0 and last is count - 1. Raises ``CorruptRecordError``.
    """

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
        """Returns the columns and starts anew, empty."""

def murmur2(data: Buffer) -> int:
    """Returns the 32-bit murmur2 hash, unsigned, with the seed that Kafka's default partitioner uses."""
