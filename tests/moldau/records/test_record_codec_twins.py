"""The record loops exist twice, in Cython and in Python: both must do the same on any input, error texts included."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.records import CorruptRecordError, InvalidRecordError, _codec_py
from moldau.records.columns import Columns

cython = pytest.importorskip("moldau.records._codec", reason="the extension was not built")

HEADER = st.tuples(st.text(max_size=6), st.none() | st.binary(max_size=6))
RECORD = st.tuples(
    st.integers(-(2**62), 2**62) | st.integers(0, 2000),
    st.none() | st.binary(max_size=40),
    st.none() | st.binary(max_size=200),
    st.lists(HEADER, max_size=3).map(tuple),
)
RECORDS = st.lists(RECORD, max_size=12)


def write(module, records, gaps=()):
    writer = module.RecordWriter(3, 0)
    delta = -1
    for index, (timestamp, key, value, headers) in enumerate(records):
        delta += 1 + (gaps[index % len(gaps)] if gaps else 0)
        assert writer.append(timestamp, key, value, headers, 2**31 - 1, delta) == delta
    facts = (writer.size, writer.count, writer.last_offset_delta, writer.base_timestamp, writer.max_timestamp)
    return bytes(writer.take()), facts


def outcome(function, *args):
    """What a call returned or raised, in a form that compares across the twins."""
    try:
        result = function(*args)
    except (CorruptRecordError, InvalidRecordError, ValueError, OverflowError) as error:
        return type(error).__name__, str(error)
    if isinstance(result, list):
        return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in result]
    return result


def columns(module, data, count, base_offset, base_timestamp, last_delta, first, end) -> Columns | tuple[str, str]:
    builder = module.ColumnBuilder()
    try:
        added = builder.append(data, 0, len(data), count, base_offset, base_timestamp, None, last_delta, first, end)
    except CorruptRecordError as error:
        assert builder.length == 0
        return "CorruptRecordError", str(error)
    assert added == builder.length
    size = builder.size_bytes
    finished = builder.finish()
    assert (builder.length, finished.length) == (0, added)
    return (finished, size)


def both(name, *args):
    results = [outcome(getattr(module, name), *args) for module in (cython, _codec_py)]
    assert results[0] == results[1]
    return results[0]


@given(records=RECORDS, gaps=st.lists(st.integers(0, 3), max_size=3))
def test_encoding_is_equal_and_decodes_to_what_went_in(records, gaps):
    spread = [record[0] for record in records]
    if records and not -(2**63) <= max(spread) - spread[0] < 2**63 > spread[0] - min(spread):
        return
    (encoded, facts), (twin, twin_facts) = write(cython, records, gaps), write(_codec_py, records, gaps)
    assert encoded == twin
    assert facts == twin_facts
    base = spread[0] if spread else -1
    decoded = both("decode_records", encoded, 3, len(encoded), len(records), 5, base, None, 2**31 - 1, 0)
    assert [row[1:] for row in decoded] == [tuple(record) for record in records]
    assert both("walk_records", encoded, 3, len(encoded), len(records))[5] == sum(r[1] is None for r in records)


@given(data=st.binary(max_size=120), count=st.integers(-1, 6), last_delta=st.integers(0, 8))
@settings(max_examples=400)
def test_random_bytes_give_the_same_answer_or_the_same_error(data, count, last_delta):
    both("decode_records", data, 0, len(data), count, 10, 1000, None, last_delta, 0)
    both("walk_records", data, 0, len(data), count)
    args = (data, count, 10, 1000, last_delta, 0, 2**63 - 1)
    assert columns(cython, *args) == columns(_codec_py, *args)


@given(
    records=st.lists(RECORD.map(lambda r: (abs(r[0]) % 1000, *r[1:])), min_size=1, max_size=6),
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 20),
    window=st.tuples(st.integers(0, 8), st.integers(0, 8)),
)
@settings(max_examples=300)
def test_damaged_records_give_the_same_answer_or_the_same_error(records, flips, cut, window):
    encoded = bytearray(write(cython, records)[0][3:])
    for at, byte in flips:
        encoded[at % len(encoded)] ^= byte
    data = bytes(encoded[: max(len(encoded) - cut, 0)] if cut < 10 else encoded)
    count = len(records)
    both("decode_records", data, 0, len(data), count, 100, 7, None, count, 100 + window[0])
    both("decode_records", data, 0, len(data), count, 100, 7, 77, count, 0)
    both("decode_records", data, 0, len(data), count, 2**63 - 3, 2**63 - 1, None, count, 0)
    both("walk_records", data, 0, len(data), count)
    args = (data, count, 100, 7, count, 100 + window[0], 100 + window[1])
    assert columns(cython, *args) == columns(_codec_py, *args)


@given(st.binary(max_size=70))
def test_murmur2_is_equal(data):
    assert cython.murmur2(data) == _codec_py.murmur2(data)


@pytest.mark.parametrize("module", [cython, _codec_py])
def test_record_is_a_value(module):
    record = module.Record(1, 2, b"k", None, [("h", b"v")])
    assert record == module.Record(1, 2, b"k", None, (("h", b"v"),))
    assert record != module.Record(1, 2, b"k", b"", (("h", b"v"),))
    assert hash(record) == hash(module.Record(1, 2, b"k", None, (("h", b"v"),)))
    assert repr(record) == "Record(offset=1, timestamp=2, key=b'k', value=None, headers=(('h', b'v'),))"
    kind, args = record.__reduce__()
    assert kind(*args) == record
    with pytest.raises(AttributeError):
        record.offset = 3


@pytest.mark.parametrize("module", [cython, _codec_py])
def test_writer_keeps_its_bound_and_refuses_what_cannot_be(module):
    writer = module.RecordWriter(61, 16)
    assert writer.append(10, None, b"x" * 500, (), 100) == 0, "the first record is taken at any size"
    size = writer.size
    assert writer.append(10, None, b"", (), size) == -1
    assert writer.append(10, None, b"", (), size + 7) == 1
    assert writer.size == size + 7
    with pytest.raises(InvalidRecordError, match="header key must be a str"):
        writer.append(10, None, b"", ((b"bytes", b""),))
    with pytest.raises(ValueError, match="offset delta 1 is not above 1"):
        writer.append(10, None, b"", (), 2**31 - 1, 1)
    assert writer.append(10, bytearray(b"k"), memoryview(b"value")[1:], (), 2**31 - 1, 9) == 9
    assert (writer.count, writer.last_offset_delta) == (3, 9)
    data = writer.take()
    with pytest.raises(ValueError, match="taken"):
        writer.append(10, None, None)
    last = module.decode_records(data, 61, len(data), 3, 0, 10, None, 9, 9)
    assert [(r.offset, r.key, r.value) for r in last] == [(9, b"k", b"alue")]


@pytest.mark.parametrize("module", [cython, _codec_py])
def test_ranges_outside_of_the_buffer_are_refused(module):
    for start, end in ((-1, 2), (3, 2), (0, 11)):
        with pytest.raises(ValueError, match="does not lie within 10 bytes"):
            module.decode_records(bytes(10), start, end, 1, 0, 0, None, 1, 0)
        with pytest.raises(ValueError, match="does not lie within 10 bytes"):
            module.walk_records(bytes(10), start, end, 1)


@pytest.mark.parametrize("module", [cython, _codec_py])
def test_header_keys_that_are_not_utf8_are_replaced_as_java_does(module):
    record = bytes([0, 0, 0, 1, 1, 2, 4, 0xFF, 0x61, 2, 0x62])
    data = bytes([2 * len(record)]) + record
    assert module.decode_records(data, 0, len(data), 1, 0, 0, None, 0, 0)[0].headers == (("\ufffda", b"b"),)
    finished = columns(module, data, 1, 0, 0, 0, 0, 10)[0]
    assert finished.header_keys.data == "\ufffda".encode()
