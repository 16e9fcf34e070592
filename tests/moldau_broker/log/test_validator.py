"""Goal: a leader takes in what Kafka's LogValidator takes in, and nothing else.

Method: one batch per rule, errors first.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from log_model import make_batch
from moldau.protocol.errors import ErrorCode
from moldau.records import (
    BATCH_HEADER_BYTES,
    Compression,
    TimestampType,
    batch_crc_valid,
    decode_records,
    encode_end_txn_marker,
    parse_batch_header,
    renew_crc,
)
from moldau_broker.log.config import LogConfig
from moldau_broker.log.errors import LogError
from moldau_broker.log.validator import validate_batch
from moldau_broker.log.values import AppendOrigin

NOW = 1_000_000_000
ROWS = [(NOW, b"a", b"1"), (NOW + 5, b"b", None), (NOW - 7, b"c", b"3")]
PLAIN = LogConfig()


def refuse(batch, code, config=PLAIN, origin=AppendOrigin.CLIENT) -> LogError:
    with pytest.raises(LogError) as caught:
        validate_batch(memoryview(batch), config, origin, NOW)
    assert caught.value.code == code, caught.value
    return caught.value


def patched(batch, position, layout, value):
    struct.pack_into(layout, batch, position, value)
    renew_crc(batch, 0)
    return batch


@pytest.mark.parametrize("codec", list(Compression))
def test_a_sound_batch_passes_as_it_is(codec) -> None:
    batch = make_batch(ROWS, codec=codec)
    sent = bytes(batch)
    buffer, header = validate_batch(memoryview(batch), PLAIN, AppendOrigin.CLIENT, NOW)
    assert bytes(buffer) == sent
    assert header.record_count == 3
    assert buffer.obj is batch, "a writable buffer is not copied"
    copy, _ = validate_batch(memoryview(sent), PLAIN, AppendOrigin.CLIENT, NOW)
    assert not copy.readonly


@pytest.mark.parametrize("codec", list(Compression))
def test_a_flipped_bit_is_noticed(codec) -> None:
    for position in range(16, len(make_batch(ROWS, codec=codec))):
        batch = make_batch(ROWS, codec=codec)
        batch[position] ^= 0x10
        with pytest.raises(LogError) as caught:
            validate_batch(memoryview(batch), PLAIN, AppendOrigin.CLIENT, NOW)
        assert caught.value.code in (
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.INVALID_RECORD,
            ErrorCode.INVALID_TIMESTAMP,
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        )


def test_sizes() -> None:
    batch = make_batch(ROWS)
    refuse(batch[: BATCH_HEADER_BYTES - 1], ErrorCode.CORRUPT_MESSAGE)
    refuse(batch[:-1], ErrorCode.CORRUPT_MESSAGE)
    refuse(batch + make_batch(ROWS), ErrorCode.INVALID_RECORD)
    refuse(batch, ErrorCode.MESSAGE_TOO_LARGE, LogConfig(max_message_bytes=len(batch) - 1))
    validate_batch(memoryview(batch), LogConfig(max_message_bytes=len(batch)), AppendOrigin.CLIENT, NOW)
    refuse(batch, ErrorCode.RECORD_LIST_TOO_LARGE, LogConfig(segment_bytes=len(batch) - 1))


def test_header_fields() -> None:
    refuse(patched(make_batch(ROWS), 16, ">b", 1), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    refuse(patched(make_batch(ROWS), 16, ">b", 3), ErrorCode.CORRUPT_MESSAGE)
    refuse(patched(make_batch(ROWS), 57, ">i", 4), ErrorCode.INVALID_RECORD)
    refuse(patched(make_batch(ROWS), 57, ">i", 0), ErrorCode.INVALID_RECORD)
    refuse(patched(make_batch(ROWS), 23, ">i", 5), ErrorCode.INVALID_RECORD)
    refuse(patched(make_batch(ROWS), 21, ">h", 7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    refuse(patched(make_batch(ROWS), 21, ">h", 0x20), ErrorCode.INVALID_RECORD)
    refuse(patched(make_batch(ROWS), 21, ">h", 0x40), ErrorCode.INVALID_RECORD)
    refuse(patched(make_batch(ROWS), 21, ">h", 0x08), ErrorCode.INVALID_TIMESTAMP)
    refuse(patched(make_batch(ROWS), 21, ">h", 0x10), ErrorCode.INVALID_RECORD)
    refuse(patched(make_batch(ROWS, producer=(5, 0, 0)), 53, ">i", -1), ErrorCode.INVALID_RECORD)


def test_record_count_that_the_records_do_not_bear_out() -> None:
    batch = make_batch(ROWS)
    struct.pack_into(">i", batch, 57, 2)
    refuse(patched(batch, 23, ">i", 1), ErrorCode.CORRUPT_MESSAGE)


def test_only_coordinators_write_markers() -> None:
    marker = encode_end_txn_marker(commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=NOW)
    refuse(bytearray(marker), ErrorCode.INVALID_RECORD)
    validate_batch(memoryview(bytearray(marker)), PLAIN, AppendOrigin.COORDINATOR, NOW)


def test_timestamps() -> None:
    refuse(make_batch([(NOW + 3_600_001, None, b"")]), ErrorCode.INVALID_TIMESTAMP)
    validate_batch(memoryview(make_batch([(NOW + 3_600_000, None, b"")])), PLAIN, AppendOrigin.CLIENT, NOW)
    strict = LogConfig(message_timestamp_before_max_ms=10)
    error = refuse(make_batch([(NOW, b"", b""), (NOW - 11, b"", b"")]), ErrorCode.INVALID_TIMESTAMP, strict)
    assert [entry.batch_index for entry in error.record_errors] == [1]
    validate_batch(memoryview(make_batch([(NOW - 10, b"", b"")])), strict, AppendOrigin.CLIENT, NOW)


@pytest.mark.parametrize("codec", list(Compression))
def test_log_append_time(codec) -> None:
    config = LogConfig(message_timestamp_type="LogAppendTime")
    batch = make_batch([(5, b"k", b"v"), (NOW * 9, b"k", b"v")], codec=codec)
    buffer, header = validate_batch(memoryview(batch), config, AppendOrigin.CLIENT, NOW)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert batch_crc_valid(buffer, 0, header)
    assert [record.timestamp for record in decode_records(buffer, 0, header)] == [NOW, NOW]


@pytest.mark.parametrize("codec", list(Compression))
def test_a_compacted_topic_needs_keys(codec) -> None:
    rows = [(NOW, b"k", b"v"), (NOW, None, b"v"), (NOW, b"k", b"v"), (NOW, None, b"v")]
    error = refuse(make_batch(rows, codec=codec), ErrorCode.INVALID_RECORD, LogConfig(compact=True))
    assert [entry.batch_index for entry in error.record_errors] == [1, 3]
    validate_batch(memoryview(make_batch(rows, codec=codec)), PLAIN, AppendOrigin.CLIENT, NOW)


def test_damage_inside_a_compressed_batch_of_a_compacted_topic() -> None:
    batch = make_batch(ROWS, codec=Compression.LZ4)
    batch[BATCH_HEADER_BYTES] ^= 1
    renew_crc(batch, 0)
    refuse(batch, ErrorCode.CORRUPT_MESSAGE, LogConfig(compact=True))


@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("append_time", [False, True])
def test_compression_type(wanted: str, codec, append_time: bool) -> None:
    kind = "LogAppendTime" if append_time else "CreateTime"
    config = LogConfig(compression_type=wanted, message_timestamp_type=kind)
    batch = make_batch(ROWS, codec=codec, producer=(9, 1, 77), transactional=True)
    buffer, header = validate_batch(memoryview(batch), config, AppendOrigin.CLIENT, NOW)
    assert header == parse_batch_header(buffer)
    assert batch_crc_valid(buffer, 0, header)
    assert header.compression.config_name == ("none" if wanted == "uncompressed" else wanted)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.is_transactional) == (
        9,
        1,
        77,
        True,
    )
    records = decode_records(buffer, 0, header)
    assert [(record.key, record.value) for record in records] == [(key, value) for _, key, value in ROWS]
    assert [record.timestamp for record in records] == [NOW if append_time else row[0] for row in ROWS]
    assert header.max_timestamp == (NOW if append_time else NOW + 5)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(LogError):
        validate_batch(memoryview(data), LogConfig(compact=True), AppendOrigin.CLIENT, NOW)
