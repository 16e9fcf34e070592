"""Goal: both implementations accept only records that other decoders accept, and all decode them alike.

Method: batches of random records, some of them damaged with a valid CRC, go to both implementations, to the leader's
checks and to kafka-python as an oracle. The oracle is more lenient: it does not count records, and Python's slices
tolerate truncated fields. It also reads the attributes of a record, one byte in Kafka's format, as a varint. So, where
the attributes are below 128, it must decode every accepted batch to the same records, and each batch that it refuses
must be refused here.
"""

import struct
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moldau.records import (
    BATCH_HEADER_BYTES,
    Compression,
    CorruptRecordError,
    codec,
    compress,
    encode_batch,
    parse_batch_header,
    renew_crc,
    uncompressed_records,
)
from moldau.records.pure import codec as pure_codec
from moldau.records.pure.wire import read_varint
from moldau_broker.log.config import LogConfig
from moldau_broker.log.errors import LogError
from moldau_broker.log.partition.validator import validate_batch
from moldau_broker.log.values import AppendOrigin
from support.proof import examples

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of the oracle's own making
    from kafka.record.default_records import DefaultRecordBatch

NOW = 1_700_000_000_000
RECORD = st.tuples(
    st.integers(NOW - 5000, NOW),
    st.none() | st.binary(max_size=12),
    st.none() | st.binary(max_size=40),
    st.lists(st.tuples(st.text("abcdé", max_size=4), st.none() | st.binary(max_size=4)), max_size=2).map(tuple),
)
RECORDS = st.lists(RECORD, min_size=1, max_size=6)
EDIT = st.tuples(st.sampled_from(["flip", "cut", "repeat", "insert"]), st.integers(0, 10_000), st.binary(max_size=4))
CODEC = st.sampled_from([Compression.NONE, Compression.GZIP, Compression.LZ4, Compression.ZSTD, Compression.SNAPPY])


def edited(payload: bytes, edits) -> bytes:
    """The records with some of their bytes changed, removed, doubled or added."""
    data = bytearray(payload)
    for kind, place, extra in edits:
        at = place % (len(data) + 1)
        if kind == "flip" and data:
            data[at % len(data)] ^= 1 + place % 255
        elif kind == "cut":
            del data[at : at + 1 + place % 9]
        elif kind == "repeat":
            data[at:at] = data[at : at + 20]
        else:
            data[at:at] = extra
    return bytes(data)


def packed(records, compression, edits, count) -> bytearray:
    """A batch with a right CRC whose header counts ``count`` records, and whose records were edited."""
    plain = encode_batch(records)
    payload = edited(plain[BATCH_HEADER_BYTES:], edits)
    batch = bytearray(plain[:BATCH_HEADER_BYTES]) + compress(compression, payload)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, compression)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    renew_crc(batch, 0)
    return batch


def accepted(batch) -> bool:
    try:
        validate_batch(memoryview(bytearray(batch)), LogConfig(), AppendOrigin.CLIENT, NOW)
    except LogError:
        return False
    return True


def rows(module, batch):
    """Returns the records that one of the twins reads, None where it refuses the batch."""
    header = parse_batch_header(batch)

    try:
        data, start, end = uncompressed_records(batch, 0, header)
        found = module.decode_records(
            data, start, end, header.record_count, 0, header.base_timestamp, None, header.last_offset_delta, 0
        )
    except CorruptRecordError:
        return None
    return [(r.offset, r.timestamp, r.key, r.value, [(name, value) for name, value in r.headers]) for r in found]


def oracle(batch):
    """Returns the records that kafka-python reads; None where it fails."""
    try:
        return [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in DefaultRecordBatch(bytes(batch))]
    except Exception:  # noqa: BLE001 - the oracle raises what comes from its codecs, struct and str, undocumented
        return None


def record_attributes(batch) -> list[int]:
    """The attributes of each record of an accepted batch: the byte after the record's length."""
    header = parse_batch_header(batch)
    data, at, end = uncompressed_records(batch, 0, header)
    found = []
    while at < end:
        length, at = read_varint(data, at, end)
        found.append(data[at])
        at += length
    return found


@given(records=RECORDS, compression=CODEC, edits=st.lists(EDIT, max_size=2), more=st.integers(-2, 2))
@example(records=[(NOW, b"k", b"v", ())] * 2, compression=Compression.NONE, edits=[("flip", 2167, b"")], more=0)
@settings(max_examples=examples(800))
def test_accepted_batches_read_alike_in_all_decoders(records, compression, edits, more) -> None:
    count = max(1, len(records) + more)
    batch = packed(records, compression, edits, count)
    ours, twins = rows(codec, batch), rows(pure_codec, batch)
    assert ours == twins
    if not accepted(batch):
        return
    assert ours is not None
    assert [row[0] for row in ours] == list(range(count))
    if any(attributes >= 128 for attributes in record_attributes(batch)):
        return  # the oracle takes the byte after it for a part of the attributes
    if any("\ufffd" in name for row in ours for name, _ in row[4]):
        return  # a header key that is no UTF-8 is replaced here, as Java does, and refused by the oracle
    assert oracle(batch) == ours


@given(records=RECORDS, compression=CODEC)
@settings(max_examples=examples(200))
def test_sound_batches_are_accepted(records, compression) -> None:
    batch = packed(records, compression, (), len(records))
    assert accepted(batch)
    assert [row[1:] for row in rows(codec, batch)] == [(*record[:3], list(record[3])) for record in records]


@pytest.mark.parametrize("count", [0, 1, 2, 4, 2**31 - 1])
@pytest.mark.parametrize("compression", list(Compression))
def test_a_false_count_is_never_accepted(compression, count) -> None:
    """The oracle accepts a smaller count."""
    records = [(NOW, b"k", b"v", ())] * 3
    if count:
        assert not accepted(packed(records, compression, (), count))
    batch = packed(records, compression, (), max(count, 1))
    if count == 0:
        struct.pack_into(">i", batch, 57, 0)
        renew_crc(batch, 0)
        assert not accepted(batch)
