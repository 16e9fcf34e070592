"""Checks of batches that a leader is handed, as Kafka's LogValidator and Log do them. Pure: bytes in, bytes out.

A batch passes without a look at its records where that is possible: its CRC and header are checked, and uncompressed
records are walked (in C, where the extension is built). Records are decoded only where the topic demands it: keys on
a compacted topic, a lower bound of timestamps, another codec than the producer's.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from moldau.protocol.errors import ErrorCode
from moldau.records import (
    BATCH_HEADER_BYTES,
    IMPLEMENTATION,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    BatchBuilder,
    BatchHeader,
    Compression,
    CorruptRecordError,
    TimestampType,
    decode_records,
    set_max_timestamp,
    walk_batch,
)
from moldau.records.codec import walk_records
from moldau_broker.log.batches import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    parse,
    unpack_header,
)
from moldau_broker.log.errors import LogError
from moldau_broker.log.values import AppendOrigin, RecordError

if TYPE_CHECKING:
    from moldau.records import Record
    from moldau_broker.log.config import LogConfig

LOG_APPEND_TIME: Final = "LogAppendTime"
_LONG_MAX = (1 << 63) - 1
_WALK_IS_CHEAP = IMPLEMENTATION != "python"
_put_base_offset = struct.Struct(">q").pack_into
_put_leader_epoch = struct.Struct(">i").pack_into


def topic_codec(compression_type: str) -> Compression:
    """Codec that ``compression.type`` names (not ``producer``)."""
    return Compression.NONE if compression_type == "uncompressed" else Compression.from_config_name(compression_type)


def assign(buffer: memoryview | bytearray, base_offset: int, leader_epoch: int) -> None:
    """Writes what the leader assigns; the CRC does not cover it."""
    _put_base_offset(buffer, 0, base_offset)
    _put_leader_epoch(buffer, 12, leader_epoch)


def validate_batch(
    records: memoryview, config: LogConfig, origin: AppendOrigin, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    """Checks the one batch that ``records`` must be, and makes of it what the topic wants to store.

    Returns the bytes to store and their header: the given buffer, patched in place, where it is writable and its
    codec is kept, else a copy. Raises ``LogError`` with CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE,
    RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE or UNSUPPORTED_FOR_MESSAGE_FORMAT.
    """
    header = check_header(records, origin)
    size = header.batch_length + LOG_OVERHEAD_BYTES
    if size > config.max_message_bytes:
        raise LogError(
            ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {size} bytes, max.message.bytes is {config.max_message_bytes}"
        )
    if size > config.segment_bytes:
        raise LogError(
            ErrorCode.RECORD_LIST_TOO_LARGE, f"the batch has {size} bytes, segment.bytes is {config.segment_bytes}"
        )
    if crc32c(records[CRC_START:]) != header.crc:
        raise LogError(ErrorCode.CORRUPT_MESSAGE, "the CRC-32C of the batch does not match its bytes")
    attributes = header.attributes
    if attributes & CONTROL_BIT:
        return _writable(records), header
    check_timestamps(records, header, config, now_ms)
    if config.compact:
        check_keys(records, header)
    elif not attributes & COMPRESSION_MASK and _WALK_IS_CHEAP:
        _walk(records, header)
    wanted = config.compression_type
    if wanted != "producer" and topic_codec(wanted) != attributes & COMPRESSION_MASK:
        return recompress(records, header, config, now_ms)
    buffer = _writable(records)
    if config.message_timestamp_type == LOG_APPEND_TIME:
        set_max_timestamp(buffer, 0, now_ms, TimestampType.LOG_APPEND_TIME)
        header = parse(buffer)
    return buffer, header


def _writable(records: memoryview) -> memoryview:
    return memoryview(bytearray(records)) if records.readonly else records


def check_header(records: memoryview, origin: AppendOrigin) -> BatchHeader:
    """Checks that ``records`` is exactly one batch with a header that makes sense."""
    length = len(records)
    if length < BATCH_HEADER_BYTES:
        raise LogError(
            ErrorCode.CORRUPT_MESSAGE, f"{length} bytes are less than a batch header of {BATCH_HEADER_BYTES}"
        )
    header = BatchHeader._make(unpack_header(records))
    if header.magic != MAGIC:
        code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT if header.magic in (0, 1) else ErrorCode.CORRUPT_MESSAGE
        raise LogError(code, f"magic {header.magic}, only record batches of magic {MAGIC} are accepted")
    size = header.batch_length + LOG_OVERHEAD_BYTES
    if size != length:
        if BATCH_HEADER_BYTES <= size < length:
            raise LogError(ErrorCode.INVALID_RECORD, "a partition's records must be exactly one batch")
        raise LogError(ErrorCode.CORRUPT_MESSAGE, f"the batch says it has {size} bytes, {length} were sent")
    count = header.record_count
    if count <= 0 or header.last_offset_delta != count - 1:
        raise LogError(
            ErrorCode.INVALID_RECORD,
            f"{count} records cannot have last offset delta {header.last_offset_delta}, expected {count - 1}",
        )
    attributes = header.attributes
    if attributes & COMPRESSION_MASK > Compression.ZSTD:
        raise LogError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"codec {attributes & COMPRESSION_MASK} is unknown, 0 to 4 are known",
        )
    if origin is AppendOrigin.CLIENT:
        if attributes & CONTROL_BIT:
            raise LogError(ErrorCode.INVALID_RECORD, "clients may not write control records")
        if attributes & DELETE_HORIZON_BIT:
            raise LogError(ErrorCode.INVALID_RECORD, "clients may not set the delete horizon flag")
        if attributes & TIMESTAMP_TYPE_BIT:
            raise LogError(ErrorCode.INVALID_TIMESTAMP, "clients must send timestamps of type CreateTime")
        if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
            raise LogError(
                ErrorCode.INVALID_RECORD,
                f"producer {header.producer_id} sent epoch {header.producer_epoch}, sequence {header.base_sequence}",
            )
        if attributes & TRANSACTIONAL_BIT and header.producer_id < 0:
            raise LogError(ErrorCode.INVALID_RECORD, "a transactional batch needs a producer id")
    return header


def check_timestamps(records: memoryview, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """``message.timestamp.before.max.ms`` and ``after.max.ms``; both do not concern LogAppendTime."""
    if config.message_timestamp_type == LOG_APPEND_TIME:
        return
    before, after = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    latest = header.max_timestamp
    if latest > now_ms + after:
        raise LogError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {latest} is more than message.timestamp.after.max.ms {after} after {now_ms}",
        )
    if before != _LONG_MAX and latest >= 0:
        earliest = now_ms - before
        if latest < earliest or header.base_timestamp < earliest or header.record_count > 1:
            bad = tuple(
                RecordError(batch_index=index, message=f"timestamp {record.timestamp} is before {earliest}")
                for index, record in enumerate(_decode(records, header))
                if 0 <= record.timestamp < earliest
            )
            if bad:
                raise LogError(
                    ErrorCode.INVALID_TIMESTAMP,
                    f"{len(bad)} records are more than message.timestamp.before.max.ms {before} before {now_ms}",
                    record_errors=bad,
                )


def check_keys(records: memoryview, header: BatchHeader) -> None:
    """Every record of a compacted topic needs a key."""
    if _walk(records, header):
        bad = tuple(
            RecordError(batch_index=index, message="a record of a compacted topic needs a key")
            for index, record in enumerate(_decode(records, header))
            if record.key is None
        )
        raise LogError(
            ErrorCode.INVALID_RECORD, f"{len(bad)} records have no key, the topic is compacted", record_errors=bad
        )


def _walk(records: memoryview, header: BatchHeader) -> int:
    """Checks the structure of all records; returns how many have no key."""
    count = header.record_count
    try:
        if header.attributes & COMPRESSION_MASK:
            summary = walk_batch(records, 0, header)
            first, last, null_keys = summary.first_offset_delta, summary.last_offset_delta, summary.null_key_count
        else:
            first, last, _, _, _, null_keys = walk_records(records, BATCH_HEADER_BYTES, len(records), count)
    except CorruptRecordError as error:
        raise LogError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if first != 0 or last != count - 1:
        raise LogError(ErrorCode.INVALID_RECORD, "the offset deltas of a produced batch must be 0, 1, 2 ...")
    return null_keys


def _decode(records: memoryview, header: BatchHeader) -> list[Record]:
    try:
        return decode_records(records, 0, header)
    except CorruptRecordError as error:
        raise LogError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error


def recompress(
    records: memoryview, header: BatchHeader, config: LogConfig, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    """The batch in the codec of ``compression.type``; offsets, timestamps and producer fields stay."""
    append_time = config.message_timestamp_type == LOG_APPEND_TIME
    builder = BatchBuilder(
        (1 << 31) - 1,
        compression=topic_codec(config.compression_type),
        compression_level=config.compression_level,
        is_transactional=header.is_transactional,
        timestamp_type=TimestampType.LOG_APPEND_TIME if append_time else TimestampType.CREATE_TIME,
        initial_capacity=len(records),
    )
    for record in _decode(records, header):
        builder.append(record.timestamp, record.key, record.value, record.headers)
    built = builder.build(
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        append_timestamp=now_ms if append_time else None,
    )
    if len(built) > config.max_message_bytes:
        raise LogError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"as {config.compression_type} the batch has {len(built)} bytes, max.message.bytes is "
            f"{config.max_message_bytes}",
        )
    return memoryview(built), parse(built)
