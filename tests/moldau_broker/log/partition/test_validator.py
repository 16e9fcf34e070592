"""Goal: a leader accepts the same batches as Kafka's LogValidator.

Method: one batch per rule, errors first.
"""

from __future__ import annotations

import importlib.util
import struct
import tracemalloc

import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.protocol.errors import ErrorCode
from moldau.records import (
    BATCH_HEADER_BYTES,
    IMPLEMENTATION,
    BatchBuilder,
    Compression,
    TimestampType,
    batch_crc_valid,
    compress,
    decode_records,
    encode_end_txn_marker,
    parse_batch_header,
    renew_crc,
)
from moldau.records.decompression import LongStep
from moldau.records.plain import check_plain_batch
from moldau_broker.log.config import LogConfig
from moldau_broker.log.errors import LogError
from moldau_broker.log.partition import validator
from moldau_broker.log.partition.validator import PIECE_BYTES, BatchValidation, validate_batch
from moldau_broker.log.values import AppendOrigin
from support.log.model import make_batch
from support.proof import examples

NOW = 1_000_000_000
ROWS = [(NOW, b"a", b"1"), (NOW + 5, b"b", None), (NOW - 7, b"c", b"3")]
PLAIN = LogConfig()
TIMED = LogConfig(message_timestamp_before_max_ms=6, message_timestamp_after_max_ms=6)


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


def test_the_check_in_one_pass_agrees_with_the_steps(monkeypatch) -> None:
    """Sound and damaged batches have the same outcome with the short cut as without it, error texts included."""
    sound = make_batch(ROWS)
    cases = [bytes(sound), sound[:-1], sound + b"x", patched(make_batch(ROWS), 57, ">i", 4)]
    for position in range(len(sound)):
        for bit in (0x01, 0x80):
            damaged = bytearray(sound)
            damaged[position] ^= bit
            cases.append(bytes(damaged))
            if position >= 21:
                renew_crc(damaged, 0)
                cases.append(bytes(damaged))
    configs = (PLAIN, LogConfig(compact=True), LogConfig(max_message_bytes=len(sound) - 1), TIMED)

    def outcomes() -> list[object]:
        found: list[object] = []
        for case in cases:
            for config in configs:
                batch = bytearray(case)
                try:
                    buffer, header = validate_batch(memoryview(batch), config, AppendOrigin.CLIENT, NOW)
                except LogError as error:
                    found.append((error.code, error.message, error.record_errors))
                else:
                    found.append((bytes(buffer), header, buffer.obj is batch))
        return found

    taken: list[object] = []

    def noted(*arguments: object) -> object:
        taken.append(check_plain_batch(*arguments))  # type: ignore[arg-type]
        return taken[-1]

    monkeypatch.setattr(validator, "check_plain_batch", noted)
    in_one_pass = outcomes()
    is_built = importlib.util.find_spec("moldau.records._plain") is not None
    assert IMPLEMENTATION == "python" or not is_built or taken[0] is not None, "a usual batch takes the short cut"
    monkeypatch.setattr(validator, "check_plain_batch", lambda *_: None)
    assert in_one_pass == outcomes()


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


def test_a_batch_that_grows_when_recompressed_fits_a_segment() -> None:
    rows = [(NOW, b"a", bytes(5_000))]
    batch = make_batch(rows, codec=Compression.GZIP)
    grown = len(make_batch(rows))
    fits = LogConfig(compression_type="uncompressed", segment_bytes=grown)
    assert len(validate_batch(memoryview(batch), fits, AppendOrigin.CLIENT, NOW)[0]) == grown
    tight = LogConfig(compression_type="uncompressed", segment_bytes=grown - 1)
    refuse(batch, ErrorCode.RECORD_LIST_TOO_LARGE, tight)
    both = LogConfig(compression_type="uncompressed", segment_bytes=grown - 1, max_message_bytes=grown - 1)
    refuse(batch, ErrorCode.MESSAGE_TOO_LARGE, both)


def test_a_batch_that_shrinks_when_recompressed_fits_a_segment() -> None:
    """Its size as it was sent counts for max.message.bytes only, as in Kafka."""
    batch = make_batch([(NOW, b"a", bytes(5_000))])
    small = LogConfig(compression_type="zstd", segment_bytes=1024)
    assert len(validate_batch(memoryview(batch), small, AppendOrigin.CLIENT, NOW)[0]) < 1024


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


def recounted(batch, count):
    """The batch with another number of records in its header."""
    struct.pack_into(">i", batch, 57, count)
    return patched(batch, 23, ">i", count - 1)


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("count", [1, 2, 4, 2**31 - 1])
def test_a_false_record_count_is_refused(codec, count) -> None:
    """The log end offset moves by the count: a lie would make a gap of up to 2^31 offsets."""
    error = refuse(recounted(make_batch(ROWS, codec=codec), count), ErrorCode.INVALID_RECORD)
    assert "bytes are left after the last record" in error.message or "its header counts it" in error.message


def repacked(payload, codec, count):
    """A batch with a right CRC whose records are ``payload``, compressed by ``codec``."""
    batch = make_batch(ROWS, codec=codec)
    batch[BATCH_HEADER_BYTES:] = compress(codec, payload)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    return recounted(batch, count)


@pytest.mark.parametrize("codec", list(Compression))
def test_garbage_as_records_is_refused(codec) -> None:
    good = bytes(make_batch(ROWS)[BATCH_HEADER_BYTES:])
    for garbage in (b"", b"\0", b"garbage" * 20, good[:-1], good + b"\0", good[3:], good * 2):
        refuse(repacked(garbage, codec, 3), ErrorCode.INVALID_RECORD)
    validate_batch(memoryview(repacked(good, codec, 3)), PLAIN, AppendOrigin.CLIENT, NOW)


def test_no_batch_at_all_is_not_worth_a_retry() -> None:
    """Kafka's clients repeat a request that met CORRUPT_MESSAGE, until their delivery times out."""
    assert not ErrorCode.INVALID_RECORD.retriable
    refuse(b"", ErrorCode.INVALID_RECORD)
    refuse(bytes(make_batch(ROWS))[:60], ErrorCode.CORRUPT_MESSAGE)


@pytest.mark.parametrize("codec", list(Compression))
def test_gaps_between_offsets_are_refused(codec) -> None:
    builder = BatchBuilder(10_000, compression=codec)
    builder.append(NOW, b"a", b"1")
    builder.append(NOW, b"b", b"2", offset_delta=2)
    batch = patched(builder.build(), 23, ">i", 1)
    assert "offset delta is not its number" in refuse(batch, ErrorCode.INVALID_RECORD).message


@pytest.mark.parametrize("codec", list(Compression))
def test_a_false_greatest_timestamp_is_corrected(codec) -> None:
    """As in Kafka: look-ups by time and retention depend on it."""
    for lie in (NOW + 1000, 0, -1, 2**62):
        batch = patched(make_batch(ROWS, codec=codec), 35, ">q", lie)
        buffer, header = validate_batch(memoryview(batch), PLAIN, AppendOrigin.CLIENT, NOW)
        assert header == parse_batch_header(buffer)
        assert header.max_timestamp == NOW + 5
        assert batch_crc_valid(buffer, 0, header)


@pytest.mark.parametrize("codec", list(Compression))
def test_records_beyond_the_time_limits_are_found(codec) -> None:
    """The header's timestamps do not hide a record."""
    late = make_batch([(NOW, b"k", b""), (NOW + 3_600_001, b"k", b"")], codec=codec)
    error = refuse(patched(late, 35, ">q", NOW), ErrorCode.INVALID_TIMESTAMP)
    assert [entry.batch_index for entry in error.record_errors] == [1]
    many = make_batch([(NOW - 11, b"k", b"")] * 300, codec=codec)
    error = refuse(many, ErrorCode.INVALID_TIMESTAMP, LogConfig(message_timestamp_before_max_ms=10))
    assert "300 records" in error.message
    assert len(error.record_errors) == 100


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec is not Compression.NONE])
@pytest.mark.parametrize("compression_type", ["producer", "gzip", "uncompressed"])
def test_records_that_unpack_beyond_the_bound_are_refused(codec, compression_type) -> None:
    batch = make_batch([(NOW, b"k", bytes(5000))] * 40, codec=codec)
    size = len(make_batch([(NOW, b"k", bytes(5000))] * 40)) - BATCH_HEADER_BYTES
    tight = LogConfig(max_message_uncompressed_bytes=size - 1, compression_type=compression_type, compact=True)
    assert "max.message.uncompressed.bytes" in refuse(batch, ErrorCode.MESSAGE_TOO_LARGE, tight).message
    enough = LogConfig(max_message_uncompressed_bytes=size, compression_type=compression_type)
    validate_batch(memoryview(batch), enough, AppendOrigin.CLIENT, NOW)


def test_a_bomb_is_refused_without_its_memory() -> None:
    """64 MiB of zeros are no records, so little of them is unpacked."""
    bomb = repacked(bytes(64 * 1024 * 1024), Compression.GZIP, 3)
    tracemalloc.start()
    try:
        refuse(bomb, ErrorCode.INVALID_RECORD)
        assert tracemalloc.get_traced_memory()[1] < 2 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_steps_of_a_validation_are_short_and_agree() -> None:
    """In steps a batch has the same outcome as at once, and no step takes in more than a piece."""
    rows = [(NOW, b"k%d" % number, bytes(1000)) for number in range(400)]
    for codec in Compression:
        for config in (PLAIN, LogConfig(compression_type="zstd"), LogConfig(compression_type="uncompressed")):
            batch = memoryview(make_batch(rows, codec=codec))
            validation = BatchValidation(batch, config, AppendOrigin.CLIENT, NOW)
            cost, count = 0, 0
            for step in validation.steps(whole_bytes_max=1000):
                if isinstance(step, LongStep):
                    step.run()
                assert validation.cost - cost <= 9 * PIECE_BYTES + 2048
                cost, count = validation.cost, count + 1
            assert count > 6
            assert bytes(validation.result(NOW)[0]) == bytes(validate_batch(batch, config, AppendOrigin.CLIENT, NOW)[0])


def test_a_validation_may_begin_again() -> None:
    batch = memoryview(make_batch([(NOW, b"k", bytes(1000))] * 400, codec=Compression.LZ4))
    validation = BatchValidation(batch, PLAIN, AppendOrigin.CLIENT, NOW)
    started = validation.steps()
    next(started)
    next(started)
    started.close()
    for _ in validation.steps():
        pass
    assert bytes(validation.result(NOW)[0]) == bytes(batch)
    for _ in validation.steps(bytes_left=1000):
        pass
    with pytest.raises(LogError, match=r"request\.max\.uncompressed\.bytes"):
        validation.result(NOW)


def test_a_client_leaves_the_offset_to_the_broker() -> None:
    """As in Kafka: a batch with a base of its own comes from a confused client. The CRC does not cover the base."""
    batch = make_batch(ROWS)
    struct.pack_into(">q", batch, 0, 5)
    assert "the base offset of a batch must be 0, not 5" in refuse(batch, ErrorCode.INVALID_RECORD).message


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
    refuse(batch, ErrorCode.INVALID_RECORD, LogConfig(compact=True))
    refuse(batch, ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize(
    ("text", "frames"),
    [
        ("depend on each other", lambda data: lz4.frame.compress(data * 9, block_linked=True, block_size=4)),
        (
            "the first of its frames",
            lambda data: compress(Compression.LZ4, data[:9]) + compress(Compression.LZ4, data[9:]),
        ),
    ],
    ids=["linked blocks", "two frames"],
)
def test_lz4_that_java_cannot_read_is_refused(text, frames) -> None:
    """As by Kafka: each Java consumer would fail at such a batch."""
    plain = make_batch([(NOW, b"k", bytes(10_000))])
    batch = plain[:BATCH_HEADER_BYTES] + frames(bytes(plain[BATCH_HEADER_BYTES:]))
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    batch[22] |= Compression.LZ4
    renew_crc(batch, 0)
    assert text in refuse(batch, ErrorCode.INVALID_RECORD).message


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


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(LogError):
        validate_batch(memoryview(data), LogConfig(compact=True), AppendOrigin.CLIENT, NOW)
