"""The record loops exist twice, in Cython and in Python: both must do the same on any input, error texts included.

``test_codec_contract`` says what that is, for each of them.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.records import CorruptRecordError, InvalidRecordError
from moldau.records.columns import Columns
from moldau.records.pure import codec as pure_codec
from support.proof import examples

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
    """Returns the result or the error of a call, in a form that compares across the twins."""
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


def walk(module, data, count, cuts, *args):
    """Returns the findings of a walker that receives pieces of the sizes ``cuts`` in turn, repeatedly."""
    walker = module.RecordWalker(count, *args)
    try:
        at = number = 0
        while at < len(data):
            size = cuts[number % len(cuts)]
            walker.feed(data[at : at + size])
            at, number = at + size, number + 1
        walker.finish()
    except CorruptRecordError as error:
        return str(error)
    return (walker.count, walker.max_timestamp, walker.keyless_count, walker.mistimed_count, walker.faults)


def walk_both(data, count, cuts, *args):
    """Both twins must find the same, and the same as in one piece."""
    whole = walk(cython, data, count, [len(data) + 1], *args)
    assert walk(pure_codec, data, count, [len(data) + 1], *args) == whole
    assert walk(cython, data, count, cuts, *args) == whole
    assert walk(pure_codec, data, count, cuts, *args) == whole
    return whole


def both(name, *args):
    results = [outcome(getattr(module, name), *args) for module in (cython, pure_codec)]
    assert results[0] == results[1]
    return results[0]


@given(records=RECORDS, gaps=st.lists(st.integers(0, 3), max_size=3))
def test_encodings_are_equal_and_decode_to_their_input(records, gaps):
    spread = [record[0] for record in records]
    if records and not -(2**63) <= max(spread) - spread[0] < 2**63 > spread[0] - min(spread):
        return
    (encoded, facts), (twin, twin_facts) = write(cython, records, gaps), write(pure_codec, records, gaps)
    assert encoded == twin
    assert facts == twin_facts
    base = spread[0] if spread else -1
    decoded = both("decode_records", encoded, 3, len(encoded), len(records), 5, base, None, 2**31 - 1, 0)
    assert [row[1:] for row in decoded] == [tuple(record) for record in records]


@given(data=st.binary(max_size=120), count=st.integers(-1, 6), last_delta=st.integers(0, 8))
@settings(max_examples=examples(400))
def test_random_bytes_give_the_same_answer_or_the_same_error(data, count, last_delta):
    both("decode_records", data, 0, len(data), count, 10, 1000, None, last_delta, 0)
    walk_both(data, count, [3])
    both("find_timestamp", data, 0, len(data), count, 10, 1000, None, 1001, last_delta)
    args = (data, count, 10, 1000, last_delta, 0, 2**63 - 1)
    assert columns(cython, *args) == columns(pure_codec, *args)


FLIPS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=3)
"""Places and changes of bytes. Sound records have tests of their own."""


@given(
    records=st.lists(RECORD.map(lambda r: (abs(r[0]) % 1000, *r[1:])), min_size=1, max_size=6),
    flips=FLIPS,
    cut=st.integers(0, 20),
    window=st.tuples(st.integers(0, 8), st.integers(0, 8)),
)
@settings(max_examples=examples(300))
def test_damaged_records_give_the_same_answer_or_the_same_error(records, flips, cut, window):
    encoded = bytearray(write(cython, records)[0][3:])
    for at, byte in flips:
        encoded[at % len(encoded)] ^= byte
    data = bytes(encoded[: max(len(encoded) - cut, 0)] if cut < 10 else encoded)
    count = len(records)
    both("decode_records", data, 0, len(data), count, 100, 7, None, count, 100 + window[0])
    both("decode_records", data, 0, len(data), count, 100, 7, 77, count, 0)
    both("decode_records", data, 0, len(data), count, 2**63 - 3, 2**63 - 1, None, count, 0)
    walk_both(data, count, [3])
    both("find_timestamp", data, 0, len(data), count, 100, 7, None, 500, 100 + window[0])
    args = (data, count, 100, 7, count, 100 + window[0], 100 + window[1])
    assert columns(cython, *args) == columns(pure_codec, *args)


@given(
    records=st.lists(RECORD.map(lambda r: (abs(r[0]) % 1000, *r[1:])), max_size=8),
    cuts=st.lists(st.integers(1, 50), min_size=1, max_size=4),
    order=st.tuples(st.integers(-1, 1000), st.integers(-1, 1000)),
    needs_keys=st.booleans(),
)
@settings(max_examples=examples(300))
def test_sound_records_walk_alike_in_any_pieces(records, cuts, order, needs_keys):
    """The walker finds what a look at the records says."""
    encoded = write(cython, records)[0][3:]
    base = records[0][0] if records else 7
    found = walk_both(encoded, len(records), cuts, base, *order, needs_keys, 3)
    mistimed = [r[0] != -1 and not order[0] <= r[0] <= order[1] for r in records]
    keyless = [r[1] is None for r in records]
    faults = [
        (index, keyless[index], record[0] if mistimed[index] else None)
        for index, record in enumerate(records)
        if mistimed[index] or (needs_keys and keyless[index])
    ]
    greatest = max((r[0] for r in records), default=-1)
    assert found == (len(records), greatest, sum(keyless), sum(mistimed), faults[:3])


@given(
    records=st.lists(RECORD.map(lambda r: (abs(r[0]) % 1000, *r[1:])), min_size=1, max_size=6),
    flips=FLIPS,
    cut=st.integers(0, 20),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    more=st.sampled_from([0, 0, 0, 0, 1, -1, -9]),
)
@settings(max_examples=examples(400))
def test_damaged_records_walk_alike_in_any_pieces(records, flips, cut, cuts, more):
    """The walker accepts no batch that the decoder refuses, and refuses only what is damaged or not dense."""
    count = max(-1, len(records) + more)  # with another number than that of the records, little else is looked at
    encoded = bytearray(write(cython, records)[0][3:])
    for at, byte in flips:
        encoded[at % len(encoded)] ^= byte
    data = bytes(encoded[: max(len(encoded) - cut, 0)] if cut < 10 else encoded)
    found = walk_both(data, count, cuts, 7)
    decoded = outcome(pure_codec.decode_records, data, 0, len(data), count, 0, 7, None, 2**31 - 1, 0)
    if isinstance(found, tuple):
        assert isinstance(decoded, list)
        assert len(decoded) == max(count, 0)
    elif isinstance(decoded, list):
        assert [record[0] for record in decoded] != list(range(count))


@given(st.binary(max_size=70))
def test_murmur2_is_equal(data):
    assert cython.murmur2(data) == pure_codec.murmur2(data)
