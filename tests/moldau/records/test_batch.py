"""Record batches as a whole: header, CRC, patches, compression, control records, and hostile bytes."""

import struct
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.records import (
    BATCH_HEADER_BYTES,
    BatchBuilder,
    ColumnBuilder,
    Compression,
    ControlRecordType,
    CorruptRecordError,
    InvalidRecordError,
    RecordWalker,
    TimestampType,
    UnsupportedMagicError,
    add_sequence,
    batch_crc_valid,
    check_batch_crc,
    control_record_type,
    decode_columns,
    decode_records,
    encode_batch,
    encode_end_txn_marker,
    iterate_batches,
    parse_batch_header,
    parse_end_txn_marker,
    set_base_offset,
    set_max_timestamp,
    set_partition_leader_epoch,
    set_producer_state,
    uncompressed_records,
)
from support.proof import examples

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of the oracle's own making
    from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder


def walk_batch(batch, position, header, max_decompressed_bytes=1_000_000) -> RecordWalker:
    """Walks the records of a batch in one piece."""
    data, start, end = uncompressed_records(batch, position, header, max_decompressed_bytes)
    walker = RecordWalker(header.record_count, header.base_timestamp)
    walker.feed(memoryview(data)[start:end])
    walker.finish()
    return walker


RECORDS = [
    (1_700_000_000_000 + i, None if i % 3 else b"k%d" % i, None if i % 11 == 0 else b"value " * i, ())
    for i in range(50)
]

# One record laid out by hand after KIP-98: key "k", value "v", header h=x, timestamp 1700000000000.
GOLDEN = bytes.fromhex(
    "0000000000000000"  # base offset
    "0000003e"  # batch length
    "ffffffff"  # leader epoch
    "02"  # magic
    "00000000"  # crc, set by the test
    "0000"  # attributes
    "00000000"  # last offset delta
    "0000018bcfe56800"  # base timestamp
    "0000018bcfe56800"  # max timestamp
    "ffffffffffffffff"  # producer id
    "ffff"  # producer epoch
    "ffffffff"  # base sequence
    "00000001"  # record count
    "18"  # record length 12
    "00"  # attributes
    "00"  # timestamp delta
    "00"  # offset delta
    "026b"  # key
    "0276"  # value
    "02"  # one header
    "0268"  # h
    "0278"  # x
)


def test_layout_is_kafkas():
    """The bytes field by field as KIP-98 lays them out; only the CRC is computed."""
    batch = encode_batch([(1_700_000_000_000, b"k", b"v", [("h", b"x")])])
    assert len(batch) == len(GOLDEN)
    assert batch[:17] == GOLDEN[:17]
    assert batch[21:] == GOLDEN[21:]
    oracle = DefaultRecordBatch(batch)
    assert oracle.validate_crc()
    record = next(iter(oracle))
    assert (record.key, record.value, record.headers, record.timestamp) == (
        b"k",
        b"v",
        [("h", b"x")],
        1_700_000_000_000,
    )


@pytest.mark.parametrize("codec", list(Compression))
def test_every_codec_round_trips(codec):
    batch = encode_batch(RECORDS, compression=codec, base_offset=77, producer_id=9, producer_epoch=2, base_sequence=5)
    header = parse_batch_header(batch)
    assert header.size_bytes == len(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (77, 126, 127)
    assert (header.compression, header.record_count, header.last_sequence) == (codec, 50, 54)
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert header.has_producer_id
    assert not header.is_control
    assert not header.is_transactional
    assert batch_crc_valid(batch, 0, header)
    decoded = decode_records(batch, 0, header)
    assert [(r.timestamp, r.key, r.value, r.headers) for r in decoded] == RECORDS
    assert [r.offset for r in decoded] == list(range(77, 127))
    assert [r.offset for r in decode_records(batch, 0, header, first_offset=120)] == list(range(120, 127))
    walker = walk_batch(batch, 0, header)
    assert (walker.count, walker.max_timestamp) == (50, 1_700_000_000_049)
    assert walker.keyless_count == sum(key is None for _, key, _, _ in RECORDS)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_kafka_python_reads_our_batches_and_we_read_its(codec):
    batch = encode_batch(RECORDS, compression=codec)
    assert [(r.timestamp, r.key, r.value) for r in DefaultRecordBatch(batch)] == [r[:3] for r in RECORDS]
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=int(codec),
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1_000_000,
    )
    for offset, (timestamp, key, value, headers) in enumerate(RECORDS):
        builder.append(offset, timestamp, key, value, list(headers))
    theirs = bytes(builder.build())
    header = parse_batch_header(theirs)
    check_batch_crc(theirs, 0, header)
    assert [(r.timestamp, r.key, r.value, r.headers) for r in decode_records(theirs, 0, header)] == RECORDS


def test_patches_keep_or_renew_the_crc():
    batch = bytearray(b"pad") + encode_batch(RECORDS)
    set_base_offset(batch, 3, 1234)
    set_partition_leader_epoch(batch, 3, 56)
    header = parse_batch_header(batch, 3)
    assert (header.base_offset, header.partition_leader_epoch) == (1234, 56)
    assert batch_crc_valid(batch, 3, header), "offset and leader epoch lie outside of the CRC"
    set_producer_state(batch, 3, 11, 3, 2**31 - 10, is_transactional=True)
    set_max_timestamp(batch, 3, 99, TimestampType.LOG_APPEND_TIME)
    header = parse_batch_header(batch, 3)
    check_batch_crc(batch, 3, header)
    assert (header.producer_id, header.producer_epoch, header.is_transactional) == (11, 3, True)
    assert header.last_sequence == 39, "sequences wrap"
    assert {record.timestamp for record in decode_records(batch, 3, header)} == {99}
    set_max_timestamp(batch, 3, 1_700_000_000_049)
    header = parse_batch_header(batch, 3)
    assert [r.timestamp for r in decode_records(batch, 3, header)] == [r[0] for r in RECORDS]


@pytest.mark.parametrize(
    ("start", "step", "expected"), [(0, 1, 1), (2**31 - 1, 1, 0), (2**31 - 1, 5, 4), (0, -1, 2**31 - 1)]
)
def test_sequences_wrap(start, step, expected):
    assert add_sequence(start, step) == expected


def test_builder_is_bounded_and_keeps_gaps():
    builder = BatchBuilder(200)
    assert builder.append(1, None, b"x" * 100) == 0
    assert builder.append(1, None, b"x" * 100) is None
    assert builder.append(2, None, b"y", offset_delta=7) == 7
    assert not builder.is_full
    batch = builder.build(base_offset=10, last_offset_delta=9, partition_leader_epoch=4)
    header = parse_batch_header(batch)
    assert (header.last_offset_delta, header.record_count, header.partition_leader_epoch) == (9, 2, 4)
    assert [r.offset for r in decode_records(batch, 0, header)] == [10, 17]
    with pytest.raises(CorruptRecordError, match="record 1 of the batch: its offset delta is not its number"):
        walk_batch(batch, 0, header)
    with pytest.raises(InvalidRecordError, match="empty"):
        BatchBuilder(100).build()
    second = BatchBuilder(1000)
    second.append(1, None, None)
    second.append(1, None, None)
    with pytest.raises(InvalidRecordError, match="below"):
        second.build(last_offset_delta=0)


def test_a_base_offset_leaves_room_for_all_offsets_of_a_batch():
    """The largest offset of a batch has 32 bits more; it must fit 64."""
    batch = bytearray(encode_batch([(1, None, b"x", ())]))
    bound = 2**63 - 1 - 2**31
    struct.pack_into(">q", batch, 0, bound)
    assert parse_batch_header(batch).base_offset == bound
    for base in (bound + 1, 2**63 - 1, -1):
        struct.pack_into(">q", batch, 0, base)
        with pytest.raises(CorruptRecordError, match=f"base offset {base} is out of range"):
            parse_batch_header(batch)


def test_batch_without_records_stands_for_removed_ones():
    """The cleaner keeps an empty batch for a producer's last sequence."""
    batch = BatchBuilder(100, compression=Compression.GZIP).build(base_offset=5, last_offset_delta=3, producer_id=1)
    header = parse_batch_header(batch)
    assert (header.record_count, header.next_offset, decode_records(batch, 0, header)) == (0, 9, [])
    assert walk_batch(batch, 0, header).count == 0


def test_delete_horizon_keeps_timestamps():
    builder = BatchBuilder(1000, delete_horizon_ms=5_000)
    builder.append(1_000, b"k", None)
    builder.append(9_000, b"k", None)
    batch = builder.build()
    header = parse_batch_header(batch)
    assert header.delete_horizon_ms == 5_000
    assert [r.timestamp for r in decode_records(batch, 0, header)] == [1_000, 9_000]
    assert header.max_timestamp == 9_000
    assert parse_batch_header(encode_batch(RECORDS)).delete_horizon_ms is None


@pytest.mark.parametrize("commit", [True, False])
def test_transaction_markers(commit):
    batch = encode_end_txn_marker(
        commit=commit, producer_id=7, producer_epoch=3, coordinator_epoch=12, timestamp=1, base_offset=40
    )
    header = parse_batch_header(batch)
    check_batch_crc(batch, 0, header)
    assert (header.is_control, header.is_transactional, header.producer_id, header.base_sequence) == (True, True, 7, -1)
    (record,) = decode_records(batch, 0, header)
    marker = parse_end_txn_marker(record)
    assert (marker.is_commit, marker.coordinator_epoch) == (commit, 12)
    assert control_record_type(record) is (ControlRecordType.COMMIT if commit else ControlRecordType.ABORT)


def test_damaged_and_unknown_control_records():
    def control(key, value):
        batch = encode_batch([(0, key, value, ())], is_control=True)
        return decode_records(batch, 0, parse_batch_header(batch))[0]

    assert control_record_type(control(struct.pack(">hh", 0, 99), b"")) is None
    for key, value in ((None, b""), (b"\0", b""), (struct.pack(">hh", -1, 0), b"")):
        with pytest.raises(CorruptRecordError):
            control_record_type(control(key, value))
    for key, value in (
        (struct.pack(">hh", 0, 2), b"\0" * 6),
        (struct.pack(">hh", 0, 1), None),
        (struct.pack(">hh", 0, 1), b"\0"),
        (struct.pack(">hh", 0, 1), b"\xff" * 6),
    ):
        with pytest.raises(CorruptRecordError):
            parse_end_txn_marker(control(key, value))


def test_iteration_stops_at_a_partial_batch():
    first, second = encode_batch(RECORDS[:5]), encode_batch(RECORDS[5:], base_offset=5)
    whole = first + second
    for cut in range(len(first), len(whole)):
        assert [at for at, _ in iterate_batches(whole[:cut])] == [0]
    assert [(at, h.base_offset) for at, h in iterate_batches(whole)] == [(0, 0), (len(first), 5)]
    assert list(iterate_batches(whole, len(first))) == list(iterate_batches(whole))[1:]


@pytest.mark.parametrize(
    ("at", "value", "error"),
    [
        (8, struct.pack(">i", 48), "batch length 48"),
        (8, struct.pack(">i", -1), "batch length -1"),
        (16, b"\x01", "message format 1"),
        (16, b"\x03", "message format 3"),
        (0, struct.pack(">q", -1), "base offset -1"),
        (0, struct.pack(">q", 2**63 - 1), "base offset"),
        (23, struct.pack(">i", -1), "last offset delta -1"),
        (57, struct.pack(">i", -1), "records do not fit"),
        (57, struct.pack(">i", 51), "51 records do not fit"),
    ],
)
def test_impossible_headers_are_refused(at, value, error):
    batch = bytearray(encode_batch(RECORDS))
    batch[at : at + len(value)] = value
    with pytest.raises(CorruptRecordError, match=error):
        parse_batch_header(batch)


def test_old_message_sets_differ_from_short_bytes():
    with pytest.raises(CorruptRecordError, match="10 bytes are too few"):
        parse_batch_header(bytes(10))
    with pytest.raises(UnsupportedMagicError, match="message format 1"):
        parse_batch_header(bytes(16) + b"\x01" + bytes(20))


def test_a_flipped_bit_anywhere_is_noticed():
    batch = encode_batch(RECORDS[:4])
    for at in range(21, len(batch)):
        damaged = bytearray(batch)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises(CorruptRecordError):
            check_batch_crc(damaged, 0, parse_batch_header(damaged))


def test_cut_batches_are_refused():
    batch = encode_batch(RECORDS)
    header = parse_batch_header(batch)
    for function in (batch_crc_valid, decode_records, walk_batch):
        with pytest.raises(CorruptRecordError, match="is cut at"):
            function(batch[:-1], 0, header)


@given(
    codec=st.sampled_from(list(Compression)),
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 30),
)
@settings(max_examples=examples(300))
def test_hostile_batches_raise_nothing_but_corruption(codec, flips, cut):
    """Damage is applied behind the CRC's back, as an attacker would."""
    batch = bytearray(encode_batch(RECORDS[:8], compression=codec))
    for at, byte in flips:
        batch[at % len(batch)] ^= byte
    del batch[len(batch) - cut :]
    try:
        for position, header in iterate_batches(batch):
            walk_batch(batch, position, header, max_decompressed_bytes=10_000)
            decode_records(batch, position, header, max_decompressed_bytes=10_000)
            decode_columns(ColumnBuilder(), batch, position, header, max_decompressed_bytes=10_000)
    except CorruptRecordError:
        return
    except OverflowError as error:
        pytest.fail(f"small batches never fill a column: {error}")


def test_columns_are_arrow_arrays_without_a_copy_of_our_own():
    import pyarrow as pa

    builder = ColumnBuilder()
    for codec in (Compression.NONE, Compression.ZSTD):
        batch = encode_batch(
            [
                (i, b"k" if i % 2 else None, b"v" * i, [("h", b"1"), ("\u00e9", None)] if i == 3 else ())
                for i in range(10)
            ],
            compression=codec,
            base_offset=builder.length,
        )
        decode_columns(builder, batch, 0, parse_batch_header(batch), first_offset=builder.length + 1)
    columns = builder.finish()

    def array(column, kind):
        return pa.Array.from_buffers(
            kind,
            column.length,
            [pa.py_buffer(column.validity), pa.py_buffer(column.offsets), pa.py_buffer(column.data)],
            column.null_count,
        )

    keys, values = array(columns.keys, pa.binary()), array(columns.values, pa.binary())
    keys.validate(full=True)
    assert keys.to_pylist() == [b"k" if i % 2 else None for i in range(1, 10)] * 2
    assert values.to_pylist() == [b"v" * i for i in range(1, 10)] * 2
    names = array(columns.header_keys, pa.string())
    names.validate(full=True)
    assert names.to_pylist() == ["h", "\u00e9"] * 2
    assert array(columns.header_values, pa.binary()).to_pylist() == [b"1", None] * 2
    starts = struct.unpack(f"{columns.length + 1}i", columns.header_offsets)
    assert starts == (0, 0, 0, *[2] * 9, *[4] * 7)
    assert len(columns.offsets) == len(columns.timestamps) == 8 * columns.length
    assert len(GOLDEN) == BATCH_HEADER_BYTES + 13
