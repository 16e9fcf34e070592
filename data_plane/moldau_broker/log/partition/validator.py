"""Checks of batches that a leader appends, as in Kafka's LogValidator and Log. The module is pure: bytes in, bytes out.

The CRC and the header of every batch are checked, and its records are walked: their number, offsets, lengths, keys and
timestamps must agree with the header and the topic. Records in their producer's codec are stored unchanged. If the
topic has another codec, their bytes are recompressed; they are never decoded into objects.

Compressed records are decompressed piece by piece, up to ``max.message.uncompressed.bytes``. That may take long, so
``BatchValidation`` does it in steps between which a broker can serve others; ``validate_batch`` does all of it at once.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.records import (
    BATCH_HEADER_BYTES,
    IMPLEMENTATION,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    Compression,
    CorruptRecordError,
    OversizedRecordsError,
    RecordWalker,
    TimestampType,
    renew_crc,
    set_max_timestamp,
)
from moldau.records.checksum import crc32c
from moldau.records.decompression import WHOLE_BYTES_MAX, LongStep, StreamCompressor, pieces
from moldau.records.plain import check_plain_batch
from moldau_broker.log.errors import LogError
from moldau_broker.log.files.batches import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    parse,
    unpack_header,
)
from moldau_broker.log.values import AppendOrigin, RecordError

if TYPE_CHECKING:
    from collections.abc import Generator

    from moldau_broker.log.config import LogConfig

LOG_APPEND_TIME: Final = "LogAppendTime"
WALK_IS_CHEAP = IMPLEMENTATION != "python"
"""Whether walking records is cheap compared with reading them; pure Python takes microseconds for each."""
PIECE_BYTES = 64 * 1024 if WALK_IS_CHEAP else 8 * 1024
"""Records that are walked in one step."""

_INT64_MAX = (1 << 63) - 1
_INT64_MIN = -(1 << 63)
_FAULTS_MAX = 100
"""Records of a batch that are reported one by one; their total is in the message."""
_STEP_COST = 2048
"""The cost of a step besides its bytes, so that empty pieces are not free."""
_COMPRESSING_COST = 8
"""The cost factor of a byte that is recompressed."""
_CRC_BYTES_PER_COST = 16
_put_length = struct.Struct(">i").pack_into
_put_attributes = struct.Struct(">h").pack_into
_LENGTH_AT, _ATTRIBUTES_AT = 8, 21
LEADER_EPOCH_AT = 12
"""Where a batch has its leader epoch; like the base offset before it, the CRC does not cover it."""


def topic_codec(compression_type: str) -> Compression:
    """Returns the codec that ``compression.type`` names (not ``producer``)."""
    return Compression.NONE if compression_type == "uncompressed" else Compression.from_config_name(compression_type)


def validate_batch(
    records: memoryview, config: LogConfig, origin: AppendOrigin, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    """Checks that ``records`` is one valid batch, and converts it to the form that the topic stores.

    Returns the bytes to store and their header: the given buffer, patched in place, if it is writable and its codec is
    kept, else a copy.

    Raises:
        LogError: CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP,
            UNSUPPORTED_COMPRESSION_TYPE or UNSUPPORTED_FOR_MESSAGE_FORMAT.
    """
    if config.stores_as_sent and origin is AppendOrigin.CLIENT and not records.readonly:
        # As ``_timestamps_in_order``: the earliest has 64 bits after 1970.
        earliest = now_ms - config.message_timestamp_before_max_ms
        latest = now_ms + config.message_timestamp_after_max_ms
        if latest > _INT64_MAX:
            latest = _INT64_MAX
        plain = check_plain_batch(
            records, BatchHeader, crc32c, config.batch_bytes_max, earliest, latest, config.compact
        )
        if plain is not None:
            return records, plain
    header = check_batch(records, config, origin)
    if header.attributes & CONTROL_BIT:
        return _writable(records), header
    if header.attributes & COMPRESSION_MASK or _wanted_codec(header, config) is not Compression.NONE:
        validation = BatchValidation(records, config, origin, now_ms)
        for step in validation.steps():
            if isinstance(step, LongStep):
                step.run()
        return validation.result(now_ms)
    walker = _walker(header, config, now_ms)
    try:
        walker.feed(records[BATCH_HEADER_BYTES:])
        walker.finish()
    except CorruptRecordError as error:
        raise LogError(ErrorCode.INVALID_RECORD, str(error)) from error
    _check_faults(walker, config, now_ms)
    return _settled(_writable(records), header, walker.max_timestamp, config, now_ms)


class BatchValidation:
    """Validates a batch in steps, as ``validate_batch`` does at once.

    ``records`` must not change before ``result`` was called. The topic's settings are those of the beginning.
    """

    __slots__ = (
        "_config",
        "_error",
        "_header",
        "_max_timestamp",
        "_now_ms",
        "_origin",
        "_records",
        "_stored",
        "cost",
        "unpacked_bytes",
    )

    def __init__(self, records: memoryview, config: LogConfig, origin: AppendOrigin, now_ms: int) -> None:
        self._records = records
        self._config = config
        self._origin = origin
        self._now_ms = now_ms
        self._header: BatchHeader | None = None  # None until all checks have passed
        self._stored: bytearray | None = None  # the batch in the topic's codec, if it differs from the producer's
        self._max_timestamp = -1
        self._error: LogError | None = None
        self.cost = 0
        """The cost of the steps since the last call of ``steps``, about the number of bytes walked."""
        self.unpacked_bytes = 0
        """Bytes of records that these steps have decompressed."""

    @property
    def size(self) -> int:
        """Bytes of the received batch."""
        return len(self._records)

    def steps(
        self, *, bytes_left: int = _INT64_MAX, whole_bytes_max: int = WHOLE_BYTES_MAX
    ) -> Generator[LongStep | None, None, None]:
        """Starts over with the first check, and yields after each step, which takes a fraction of a millisecond.

        A ``LongStep`` must be run before the next step. The decompressed records may have at most ``bytes_left`` bytes,
        and no more than the topic's limit. ``whole_bytes_max`` is passed to ``decompression.pieces``.
        """
        self._header = self._stored = self._error = None
        self.cost = self.unpacked_bytes = 0
        try:
            yield from self._steps(bytes_left, whole_bytes_max)
        except LogError as error:
            self._error = error

    def _steps(self, bytes_left: int, whole_bytes_max: int) -> Generator[LongStep | None, None, None]:
        records, config = self._records, self._config
        header = check_batch(records, config, self._origin)
        self.cost += len(records) // _CRC_BYTES_PER_COST
        yield None
        if header.attributes & CONTROL_BIT:
            self._header = header
            return
        codec = Compression(header.attributes & COMPRESSION_MASK)
        wanted = _wanted_codec(header, config)
        stored = compressor = None
        if wanted is not codec:
            stored = bytearray(records[:BATCH_HEADER_BYTES])
            compressor = StreamCompressor(wanted, config.compression_level)
        walker = _walker(header, config, self._now_ms)
        limit = len(records)
        if codec is not Compression.NONE:
            limit = min(config.max_message_uncompressed_bytes, bytes_left)
        try:
            source = records[BATCH_HEADER_BYTES:]
            as_java = stored is None  # consumers get these bytes
            for piece in pieces(codec, source, limit, PIECE_BYTES, whole_bytes_max, as_java_reads=as_java):
                if isinstance(piece, LongStep):
                    yield piece
                    continue
                walker.feed(piece)
                self.cost += len(piece) + _STEP_COST
                if codec is not Compression.NONE:
                    self.unpacked_bytes += len(piece)
                if stored is not None and compressor is not None:
                    self.cost += len(piece) * _COMPRESSING_COST
                    stored += compressor.add(piece)
                    _check_recompressed(stored, config)
                yield None
            walker.finish()
        except OversizedRecordsError as error:
            raise _oversized(config, bytes_left) from error
        except CorruptRecordError as error:
            raise LogError(ErrorCode.INVALID_RECORD, str(error)) from error
        _check_faults(walker, config, self._now_ms)
        if stored is not None and compressor is not None:
            stored += compressor.finish()
            _check_recompressed(stored, config)
            _put_length(stored, _LENGTH_AT, len(stored) - LOG_OVERHEAD_BYTES)
            _put_attributes(stored, _ATTRIBUTES_AT, header.attributes & ~COMPRESSION_MASK | wanted)
            renew_crc(stored, 0)
        self._stored = stored
        self._header = header
        self._max_timestamp = walker.max_timestamp

    def result(self, now_ms: int) -> tuple[memoryview, BatchHeader]:
        """Returns as ``validate_batch``, after all steps were run; ``now_ms`` is the log append time."""
        if self._error is not None:
            raise self._error
        header = self._header
        assert header is not None, "the validation has not ended"
        if header.attributes & CONTROL_BIT:
            return _writable(self._records), header
        if self._stored is not None:
            return _settled(memoryview(self._stored), parse(self._stored), self._max_timestamp, self._config, now_ms)
        return _settled(_writable(self._records), header, self._max_timestamp, self._config, now_ms)


def _wanted_codec(header: BatchHeader, config: LogConfig) -> Compression:
    """Returns the codec in which the topic stores the batch."""
    if config.compression_type == "producer":
        return Compression(header.attributes & COMPRESSION_MASK)
    return topic_codec(config.compression_type)


def _writable(records: memoryview) -> memoryview:
    return memoryview(bytearray(records)) if records.readonly else records


def _settled(
    buffer: memoryview, header: BatchHeader, max_timestamp: int, config: LogConfig, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    """Sets the batch's timestamp: the append time, or the largest timestamp of its records."""
    if config.message_timestamp_type == LOG_APPEND_TIME:
        set_max_timestamp(buffer, 0, now_ms, TimestampType.LOG_APPEND_TIME)
        return buffer, parse(buffer)
    if header.max_timestamp != max_timestamp:
        set_max_timestamp(buffer, 0, max_timestamp, TimestampType.CREATE_TIME)
        return buffer, parse(buffer)
    return buffer, header


def check_batch(records: memoryview, config: LogConfig, origin: AppendOrigin) -> BatchHeader:
    """Checks header, size and CRC of a batch; returns the header."""
    header = check_header(records, origin)
    size = header.batch_length + LOG_OVERHEAD_BYTES
    if size > config.max_message_bytes:
        raise LogError(
            ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {size} bytes, max.message.bytes is {config.max_message_bytes}"
        )
    # A batch that is recompressed has its stored size checked, by ``_check_recompressed``.
    if size > config.segment_bytes and _wanted_codec(header, config) == header.attributes & COMPRESSION_MASK:
        raise LogError(
            ErrorCode.RECORD_LIST_TOO_LARGE, f"the batch has {size} bytes, segment.bytes is {config.segment_bytes}"
        )
    if crc32c(records[CRC_START:]) != header.crc:
        raise LogError(ErrorCode.CORRUPT_MESSAGE, "the CRC-32C of the batch does not match its bytes")
    return header


def check_header(records: memoryview, origin: AppendOrigin) -> BatchHeader:
    """Checks that ``records`` is exactly one batch with a valid header; returns the header."""
    length = len(records)
    if not length:  # clients send a damaged batch again, but there is none
        raise LogError(ErrorCode.INVALID_RECORD, "a partition's records must be one batch, not none")
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
        raise LogError(ErrorCode.CORRUPT_MESSAGE, f"the header gives {size} bytes, {length} were sent")
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
        if header.base_offset:  # brokers assign offsets: another base is a sign of a confused client
            raise LogError(ErrorCode.INVALID_RECORD, f"the base offset of a batch must be 0, not {header.base_offset}")
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


def _walker(header: BatchHeader, config: LogConfig, now_ms: int) -> RecordWalker:
    """Returns the checker of the records.

    Timestamps are limited by ``message.timestamp.before.max.ms`` and ``after.max.ms``, except with LogAppendTime.
    """
    earliest, latest = _INT64_MIN, _INT64_MAX
    if config.message_timestamp_type != LOG_APPEND_TIME:
        earliest, latest = _timestamps_in_order(config, now_ms)
    return RecordWalker(header.record_count, header.base_timestamp, earliest, latest, config.compact, _FAULTS_MAX)


def _timestamps_in_order(config: LogConfig, now_ms: int) -> tuple[int, int]:
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    if earliest < _INT64_MIN:
        earliest = _INT64_MIN
    if latest > _INT64_MAX:
        latest = _INT64_MAX
    return earliest, latest


def _check_faults(walker: RecordWalker, config: LogConfig, now_ms: int) -> None:
    """Refuses timestamps out of range, and records without a key if the topic is compacted."""
    needs_keys = config.compact and walker.keyless_count > 0
    if not needs_keys and not walker.mistimed_count:
        return
    earliest, latest = _timestamps_in_order(config, now_ms)
    errors = []
    for index, is_keyless, timestamp in walker.faults:
        if needs_keys and is_keyless:
            errors.append(RecordError(batch_index=index, message="a record of a compacted topic needs a key"))
        elif timestamp is not None:
            message = f"timestamp {timestamp} is not between {earliest} and {latest}"
            errors.append(RecordError(batch_index=index, message=message))
    if walker.mistimed_count:
        code, reason = (
            ErrorCode.INVALID_TIMESTAMP,
            f"{walker.mistimed_count} records are out of message.timestamp.before.max.ms "
            f"{config.message_timestamp_before_max_ms} and after.max.ms {config.message_timestamp_after_max_ms}",
        )
    else:
        code, reason = ErrorCode.INVALID_RECORD, f"{walker.keyless_count} records have no key, the topic is compacted"
    raise LogError(code, reason, record_errors=tuple(errors))


def _check_recompressed(stored: bytearray, config: LogConfig) -> None:
    if len(stored) > config.max_message_bytes:
        raise LogError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"as {config.compression_type} the batch has more than max.message.bytes {config.max_message_bytes} bytes",
        )
    if len(stored) > config.segment_bytes:
        raise LogError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"as {config.compression_type} the batch has more than segment.bytes {config.segment_bytes} bytes",
        )


def _oversized(config: LogConfig, bytes_left: int) -> LogError:
    limit = config.max_message_uncompressed_bytes
    if bytes_left < limit:
        return LogError(
            ErrorCode.MESSAGE_TOO_LARGE,
            "the batches of the request decompress to more than request.max.uncompressed.bytes",
        )
    return LogError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the records decompress to more than {limit} bytes (max.message.uncompressed.bytes)",
    )
