"""Record batches, format v2 (KIP-98): header, CRC, encoding, decoding, patching in place.

Layout, big-endian, 61 bytes of header::

    0   base offset int64               not covered by the CRC: the leader patches it
    8   batch length int32              bytes after this field
    12  partition leader epoch int32    not covered by the CRC: the leader patches it
    16  magic int8                      2
    17  crc uint32                      CRC-32C of everything from byte 21 on
    21  attributes int16                bits 0-2 compression, 3 timestamp type, 4 transactional,
                                        5 control, 6 delete horizon
    23  last offset delta int32
    27  base timestamp int64
    35  max timestamp int64
    43  producer id int64               -1: none
    51  producer epoch int16
    53  base sequence int32
    57  record count int32
    61  records (compressed as one blob)

The broker keeps batches opaque: it parses the header, checks the CRC, patches offset and leader epoch, and stores the
bytes. Only clients, validation of compressed or compacted topics, and the cleaner look at records.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, NamedTuple

from moldau.records import codec
from moldau.records.checksum import crc32c
from moldau.records.compression import DECOMPRESSED_BYTES_MAX, Compression, compress, decompress
from moldau.records.errors import CorruptRecordError, InvalidRecordError, UnsupportedMagicError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from moldau.records.codec import ColumnBuilder, Record, RecordWriter
    from moldau.values import Buffer

MutableBuffer = bytearray | memoryview

MAGIC = 2
LOG_OVERHEAD_BYTES = 12
"""Bytes of base offset and batch length, which the batch length does not count."""
BATCH_HEADER_BYTES = 61
EMPTY_RECORD_BYTES = 8
"""A batch that has fewer bytes left takes not even an empty record."""
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
SEQUENCE_MAX = 2**31 - 1

_HEADER = struct.Struct(">qiibIhiqqqhiI")
_LENGTH = struct.Struct(">i")
_CRC_AT = 17
_CRC_FROM = 21
_INT64_MAX = 2**63 - 1
_COMPRESSION_MASK = 0x07
_TIMESTAMP_TYPE_BIT = 0x08
_TRANSACTIONAL_BIT = 0x10
_CONTROL_BIT = 0x20
_DELETE_HORIZON_BIT = 0x40


class TimestampType(enum.IntEnum):
    """The origin of a batch's timestamps: the producer or the broker."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The parsed header of one batch.

    Offsets of the first and last record are as of the time of the append: compaction may have removed those records.
    """

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.batch_length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        """Offset of the last record (inclusive)."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset after the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        """The codec.

        Raises:
            CorruptRecordError: the number is not assigned to a codec.
        """
        number = self.attributes & _COMPRESSION_MASK
        if number > Compression.ZSTD:
            raise CorruptRecordError(f"unknown compression codec {number} in the attributes of a batch")
        return Compression(number)

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether the producer or the broker set the timestamps."""
        return TimestampType.LOG_APPEND_TIME if self.attributes & _TIMESTAMP_TYPE_BIT else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds markers, which applications do not see."""
        return bool(self.attributes & _CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When the cleaner may drop tombstones and markers of this batch (KIP-534); None where it set none."""
        return self.base_timestamp if self.attributes & _DELETE_HORIZON_BIT else None

    @property
    def has_producer_id(self) -> bool:
        """Whether an idempotent producer wrote the batch."""
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; sequences wrap from 2^31 - 1 to 0. -1 where there is none."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return add_sequence(self.base_sequence, self.last_offset_delta)


def add_sequence(sequence: int, increment: int) -> int:
    """Returns ``sequence + increment``, wrapping from 2^31 - 1 to 0 (``increment`` may be negative)."""
    return (sequence + increment) & SEQUENCE_MAX


def parse_batch_header(buffer: Buffer, offset: int = 0) -> BatchHeader:
    """Parses the header at ``offset``, without its CRC and without looking whether the whole batch is there.

    Raises:
        CorruptRecordError: fewer than 61 bytes, impossible length, counts or offsets.
        UnsupportedMagicError: the message format is not 2.
    """
    try:
        header = BatchHeader._make(_HEADER.unpack_from(buffer, offset))
    except struct.error:
        magic_at = offset + 16
        if magic_at < len(buffer) and buffer[magic_at] in (0, 1):
            raise UnsupportedMagicError(
                f"message format {buffer[magic_at]}; only record batches (2) are supported"
            ) from None
        raise CorruptRecordError(
            f"{max(len(buffer) - offset, 0)} bytes are too few for the {BATCH_HEADER_BYTES} of a batch header"
        ) from None
    if header.magic != MAGIC:
        raise UnsupportedMagicError(f"message format {header.magic}; only record batches (2) are supported")
    if header.batch_length < BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES:
        raise CorruptRecordError(f"batch length {header.batch_length} is less than that of an empty batch")
    if header.last_offset_delta < 0:
        raise CorruptRecordError(f"last offset delta {header.last_offset_delta} is negative")
    if not 0 <= header.base_offset <= _INT64_MAX - 2**31:
        raise CorruptRecordError(f"base offset {header.base_offset} is out of range")
    if header.record_count > header.last_offset_delta + 1:
        raise CorruptRecordError(
            f"{header.record_count} records do not fit a last offset delta of {header.last_offset_delta}"
        )
    return header


def iterate_batches(buffer: Buffer, start: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yields (position, header) of each batch that is complete in ``buffer``.

    A partial batch at the end is left out (KIP-74). CRCs are not checked.

    Raises:
        CorruptRecordError: the bytes at a position cannot be a batch.
    """
    end = len(buffer)
    position = start
    while end - position >= LOG_OVERHEAD_BYTES:
        (length,) = _LENGTH.unpack_from(buffer, position + 8)
        if length > end - position - LOG_OVERHEAD_BYTES:
            return
        header = parse_batch_header(buffer, position)
        yield position, header
        position += length + LOG_OVERHEAD_BYTES


def batch_crc(buffer: Buffer, position: int, header: BatchHeader) -> int:
    """Computes the CRC-32C of the batch at ``position``, which must lie whole in ``buffer``."""
    end = position + header.batch_length + LOG_OVERHEAD_BYTES
    if end > len(buffer):
        raise CorruptRecordError(f"a batch of {header.size_bytes} bytes is cut at {len(buffer) - position}")
    return crc32c(memoryview(buffer)[position + _CRC_FROM : end])


def batch_crc_valid(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Returns whether the CRC in ``header`` is that of the bytes.

    Raises:
        CorruptRecordError: the batch is cut.
    """
    return batch_crc(buffer, position, header) == header.crc


def check_batch_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Checks that a batch is complete and its CRC is right.

    Raises:
        CorruptRecordError: it is cut, or the CRC differs.
    """
    computed = batch_crc(buffer, position, header)
    if computed != header.crc:
        raise CorruptRecordError(
            f"batch at offset {header.base_offset}: "
            f"its bytes have CRC {computed:#010x}, its header says {header.crc:#010x}"
        )


def set_base_offset(buffer: MutableBuffer, position: int, base_offset: int) -> None:
    """Patches the base offset of the batch at ``position``; the CRC stays right."""
    struct.pack_into(">q", buffer, position, base_offset)


def set_partition_leader_epoch(buffer: MutableBuffer, position: int, epoch: int) -> None:
    """Patches the leader epoch of the batch at ``position``; the CRC stays right."""
    struct.pack_into(">i", buffer, position + 12, epoch)


def set_max_timestamp(
    buffer: MutableBuffer, position: int, max_timestamp: int, timestamp_type: TimestampType = TimestampType.CREATE_TIME
) -> None:
    """Patches timestamp type and max timestamp, and renews the CRC.

    With LOG_APPEND_TIME the max timestamp is the time of all records.
    """
    (attributes,) = struct.unpack_from(">h", buffer, position + 21)
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        attributes |= _TIMESTAMP_TYPE_BIT
    else:
        attributes &= ~_TIMESTAMP_TYPE_BIT
    struct.pack_into(">h", buffer, position + 21, attributes)
    struct.pack_into(">q", buffer, position + 35, max_timestamp)
    renew_crc(buffer, position)


def set_producer_state(
    buffer: MutableBuffer,
    position: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    *,
    is_transactional: bool,
) -> None:
    """Patches the fields of idempotence and transactions, and renews the CRC."""
    (attributes,) = struct.unpack_from(">h", buffer, position + 21)
    attributes = attributes | _TRANSACTIONAL_BIT if is_transactional else attributes & ~_TRANSACTIONAL_BIT
    struct.pack_into(">h", buffer, position + 21, attributes)
    struct.pack_into(">qhi", buffer, position + 43, producer_id, producer_epoch, base_sequence)
    renew_crc(buffer, position)


def renew_crc(buffer: MutableBuffer, position: int) -> None:
    """Computes and writes the CRC of the batch at ``position``, which must lie whole in ``buffer``."""
    (length,) = _LENGTH.unpack_from(buffer, position + 8)
    end = position + LOG_OVERHEAD_BYTES + length
    assert end - position >= BATCH_HEADER_BYTES
    assert end <= len(buffer)
    with memoryview(buffer) as view, view[position + _CRC_FROM : end] as covered:
        crc = crc32c(covered)
    struct.pack_into(">I", buffer, position + _CRC_AT, crc)


def uncompressed_records(
    buffer: Buffer, position: int, header: BatchHeader, max_decompressed_bytes: int = DECOMPRESSED_BYTES_MAX
) -> tuple[Buffer, int, int]:
    """Returns (buffer, start, end) of the batch's records, decompressed if need be; not copied if not.

    Raises:
        CorruptRecordError: cut, damaged, more than ``max_decompressed_bytes``.
    """
    end = position + header.batch_length + LOG_OVERHEAD_BYTES
    if end > len(buffer):
        raise CorruptRecordError(f"a batch of {header.size_bytes} bytes is cut at {len(buffer) - position}")
    start = position + BATCH_HEADER_BYTES
    compression = header.compression
    if compression is Compression.NONE or header.record_count == 0:
        return buffer, start, end
    records = decompress(compression, memoryview(buffer)[start:end], max_decompressed_bytes)
    return records, 0, len(records)


def _append_timestamp(header: BatchHeader) -> int | None:
    return header.max_timestamp if header.attributes & _TIMESTAMP_TYPE_BIT else None


def decode_records(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    *,
    first_offset: int = 0,
    max_decompressed_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> list[Record]:
    """Decodes the records of the batch at ``position`` with offsets from ``first_offset`` on.

    The CRC is not checked here.

    Raises:
        CorruptRecordError: the batch or a record is damaged.
    """
    data, start, end = uncompressed_records(buffer, position, header, max_decompressed_bytes)
    return codec.decode_records(
        data,
        start,
        end,
        header.record_count,
        header.base_offset,
        header.base_timestamp,
        _append_timestamp(header),
        header.last_offset_delta,
        first_offset,
    )


def find_timestamp(
    data: Buffer, start: int, end: int, header: BatchHeader, timestamp: int, first_offset: int
) -> tuple[int, int] | None:
    """Returns offset and timestamp of the batch's first record at or after ``timestamp`` and ``first_offset``.

    ``data[start:end]`` holds its records (``uncompressed_records``).

    Raises:
        CorruptRecordError: the bytes are damaged.
    """
    return codec.find_timestamp(
        data,
        start,
        end,
        header.record_count,
        header.base_offset,
        header.base_timestamp,
        _append_timestamp(header),
        timestamp,
        first_offset,
    )


def decode_columns(
    builder: ColumnBuilder,
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    *,
    first_offset: int = 0,
    end_offset: int = _INT64_MAX,
    max_decompressed_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> int:
    """Adds the records with ``first_offset`` <= offset < ``end_offset`` to ``builder``; returns their number.

    Raises:
        CorruptRecordError: the batch or a record is damaged.
        OverflowError: the builder must be finished first.
    """
    data, start, end = uncompressed_records(buffer, position, header, max_decompressed_bytes)
    return builder.append(
        data,
        start,
        end,
        header.record_count,
        header.base_offset,
        header.base_timestamp,
        _append_timestamp(header),
        header.last_offset_delta,
        first_offset,
        end_offset,
    )


class BatchBuilder:
    """Builds one batch record by record, bounded in size.

    Invariant: ``size_bytes`` (before compression) stays at most ``size_limit`` unless the first record alone is larger.
    After ``build`` the builder takes no more records.
    """

    __slots__ = ("_attributes", "_compression", "_level", "_size_limit", "_writer")

    def __init__(
        self,
        size_limit: int,
        *,
        compression: Compression = Compression.NONE,
        compression_level: int | None = None,
        is_transactional: bool = False,
        is_control: bool = False,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
        delete_horizon_ms: int | None = None,
        initial_capacity: int = 1024,
    ) -> None:
        # With a delete horizon the base timestamp field holds it, and the deltas of the records count from it.
        self._writer = codec.RecordWriter(BATCH_HEADER_BYTES, min(size_limit, initial_capacity), delete_horizon_ms)
        self._size_limit = size_limit
        self._compression = compression
        self._level = compression_level
        self._attributes = (
            compression
            | (_TIMESTAMP_TYPE_BIT if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
            | (_TRANSACTIONAL_BIT if is_transactional else 0)
            | (_CONTROL_BIT if is_control else 0)
            | (0 if delete_horizon_ms is None else _DELETE_HORIZON_BIT)
        )

    @property
    def record_count(self) -> int:
        """Number of records so far."""
        return self._writer.count

    @property
    def size_bytes(self) -> int:
        """Bytes of header and records so far, uncompressed."""
        return self._writer.size

    @property
    def writer(self) -> RecordWriter:
        """The writer of the records, for hot loops that pass ``size_limit`` themselves."""
        return self._writer

    @property
    def size_limit(self) -> int:
        """Bytes that the batch may have, uncompressed."""
        return self._size_limit

    @property
    def is_full(self) -> bool:
        """Whether not even an empty record would fit."""
        return self._writer.count > 0 and self._writer.size + EMPTY_RECORD_BYTES > self._size_limit

    def append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]] = (),
        *,
        offset_delta: int = -1,
    ) -> int | None:
        """Copies one record in; returns its offset delta, or None if it does not fit.

        Raises:
            InvalidRecordError: no batch can hold the record.
        """
        delta = self._writer.append(timestamp, key, value, headers, self._size_limit, offset_delta)
        return None if delta < 0 else delta

    def copy(self, data: Buffer, start: int, end: int, header: BatchHeader, keep: bytes) -> int:
        """Copies those records of a batch whose byte in ``keep`` is not 0, with their offset deltas; returns how many.

        ``data[start:end]`` holds the records of ``header``'s batch (``uncompressed_records``).

        Raises:
            CorruptRecordError: the bytes are damaged.
            InvalidRecordError: a record cannot be encoded.
        """
        return self._writer.copy(
            data, start, end, header.record_count, keep, header.base_timestamp, _append_timestamp(header)
        )

    def build(
        self,
        *,
        base_offset: int = 0,
        partition_leader_epoch: int = NO_LEADER_EPOCH,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        last_offset_delta: int | None = None,
        append_timestamp: int | None = None,
    ) -> bytearray:
        """Returns the finished batch; once only.

        ``last_offset_delta`` may lie beyond the last record (the cleaner keeps the offsets of batches). Producer
        fields can be set later with ``set_producer_state``. ``append_timestamp`` goes with LOG_APPEND_TIME.
        """
        writer = self._writer
        count = writer.count
        last_delta = writer.last_offset_delta if last_offset_delta is None else last_offset_delta
        if last_delta < max(writer.last_offset_delta, 0):
            raise InvalidRecordError(
                f"last offset delta {last_delta} is below that of the last record, or the batch is empty"
            )
        max_timestamp = writer.max_timestamp if append_timestamp is None else append_timestamp
        buffer = writer.take()
        if self._compression is not Compression.NONE and count > 0:
            with memoryview(buffer) as view, view[BATCH_HEADER_BYTES:] as raw:
                packed = compress(self._compression, raw, self._level)
            buffer[BATCH_HEADER_BYTES:] = packed
        _HEADER.pack_into(
            buffer,
            0,
            base_offset,
            len(buffer) - LOG_OVERHEAD_BYTES,
            partition_leader_epoch,
            MAGIC,
            0,
            self._attributes,
            last_delta,
            writer.base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        )
        renew_crc(buffer, 0)
        return buffer


def encode_batch(
    records: Iterable[tuple[int, Buffer | None, Buffer | None, Iterable[tuple[str, Buffer | None]]]],
    *,
    compression: Compression = Compression.NONE,
    compression_level: int | None = None,
    base_offset: int = 0,
    partition_leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytes:
    """Encodes (timestamp, key, value, headers) records as one batch with offsets from ``base_offset`` on.

    Raises:
        InvalidRecordError: there are no records, or one that no batch can hold.
    """
    builder = BatchBuilder(
        2**31 - 1,
        compression=compression,
        compression_level=compression_level,
        is_transactional=is_transactional,
        is_control=is_control,
    )
    for timestamp, key, value, headers in records:
        builder.append(timestamp, key, value, headers)
    return bytes(
        builder.build(
            base_offset=base_offset,
            partition_leader_epoch=partition_leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
    )
