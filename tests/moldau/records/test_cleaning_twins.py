"""Goal: the cleaner's loops do what a dictionary of keys would do, and the same in Cython and in Python.

Method: random batches with gaps, null keys, tombstones and tables that are too small, damaged bytes; both twins, their
tables compared byte by byte, and a naive model.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_128_digest

from moldau.records import (
    BatchBuilder,
    Compression,
    CorruptRecordError,
    InvalidRecordError,
    decode_records,
    parse_batch_header,
    uncompressed_records,
)
from moldau.records.pure import cleaning as pure_cleaning
from moldau.records.pure import codec as pure_codec
from support.proof import examples

cython = pytest.importorskip("moldau.records._cleaning", reason="the extension was not built")
codec = pytest.importorskip("moldau.records._codec", reason="the extension was not built")

KEY = st.none() | st.integers(0, 12).map(lambda number: b"key-%d" % number) | st.binary(max_size=3)
ROW = st.tuples(
    st.integers(0, 3000),
    KEY,
    st.none() | st.binary(max_size=20),
    st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
    st.integers(0, 3),  # gap before it
)
ROWS = st.lists(ROW, min_size=1, max_size=15)
TABLE = st.integers(2, 30).map(lambda slots: slots * 24)


def encoded(rows, base_offset: int, **batch) -> bytes:
    builder = BatchBuilder(1 << 20, **batch)
    delta = -1
    for timestamp, key, value, headers, gap in rows:
        delta += 1 + gap
        builder.append(timestamp, key, value, headers, offset_delta=delta)
    return bytes(builder.build(base_offset=base_offset))


def outcome(function, *args):
    try:
        return function(*args)
    except (CorruptRecordError, InvalidRecordError, ValueError) as error:
        return type(error).__name__, str(error)


def both(name, *args, table):
    """Calls both twins on tables of their own; returns what both gave and the table they left."""
    tables = [bytearray(table), bytearray(table)]
    results = [
        outcome(getattr(module, name), *args[:-1], tables[index], *args[-1])
        for index, module in enumerate((cython, pure_cleaning))
    ]
    assert results[0] == results[1]
    assert tables[0] == tables[1]
    return results[0], tables[0]


@given(batches=st.lists(ROWS, min_size=1, max_size=4), size=TABLE, first=st.integers(0, 30), data=st.data())
@settings(max_examples=examples(300))
def test_keys_and_records_match_a_dictionary_model(batches, size, first, data) -> None:
    """Keys are mapped and records selected as a dictionary does it."""
    table, used, last = bytearray(size), 0, {}
    used_max = data.draw(st.integers(1, size // 24 - 1))
    base, complete, written = 0, True, []
    for rows in batches:
        batch = encoded(rows, base)
        header = parse_batch_header(batch, 0)
        written.append((batch, header))
        where = uncompressed_records(batch, 0, header)
        count, deltas = header.record_count, header.last_offset_delta
        (used, _, complete), table = both("map_keys", *where, count, base, deltas, first, (used, used_max), table=table)
        room = True
        for record in decode_records(batch, 0, header):
            if room and record.key is not None and record.offset >= first:
                room = record.key in last or len(last) < used_max
                if room:
                    last[record.key] = record.offset
        assert (used, complete) == (len(last), room)
        if not complete:
            break
        base = header.last_offset + 1
    for key, offset in last.items():
        assert xxh3_128_digest(key) + (offset + 1).to_bytes(8, "big") in bytes(table)
    latest = data.draw(st.integers(-1, base))
    keeps_tombstones = data.draw(st.booleans())
    for batch, header in written:
        where = uncompressed_records(batch, 0, header)
        args = (header.record_count, header.base_offset, header.last_offset_delta, latest, keeps_tombstones)
        (keep, kept, has_tombstone, _), _ = both("select_records", *where, *args, (), table=table)
        records = decode_records(batch, 0, header)
        stays = [
            record.offset > latest
            or (
                record.key is not None
                and last.get(record.key, -1) <= record.offset
                and (keeps_tombstones or record.value is not None)
            )
            for record in records
        ]
        assert (list(map(bool, keep)), kept) == (stays, sum(stays))
        assert has_tombstone == any(record.value is None for record, stay in zip(records, stays, strict=True) if stay)


@given(rows=ROWS, keep=st.data(), horizon=st.none() | st.integers(0, 5000), append_time=st.none() | st.integers(0, 99))
@settings(max_examples=examples(300))
def test_copied_records_equal_freshly_written_ones(rows, keep, horizon, append_time) -> None:
    """The copied records are the kept ones, with the bytes of freshly written records."""
    source = encoded(rows, 7)
    header = parse_batch_header(source, 0)
    marks = bytes(keep.draw(st.lists(st.integers(0, 1), min_size=len(rows), max_size=len(rows))))
    data, start, end = uncompressed_records(source, 0, header)
    made = []
    for module in (codec, pure_codec):
        writer = module.RecordWriter(5, 0, horizon)
        assert writer.copy(data, start, end, len(rows), marks, header.base_timestamp, append_time) == sum(marks)
        facts = (writer.size, writer.count, writer.last_offset_delta, writer.base_timestamp, writer.max_timestamp)
        made.append((facts, bytes(writer.take())))
    assert made[0] == made[1]
    copied = codec.RecordWriter(5, 0, horizon)
    for record, mark in zip(decode_records(source, 0, header), marks, strict=True):
        if mark:
            timestamp = record.timestamp if append_time is None else append_time
            copied.append(timestamp, record.key, record.value, record.headers, 1 << 30, record.offset - 7)
    facts = (copied.size, copied.count, copied.last_offset_delta, copied.base_timestamp, copied.max_timestamp)
    assert made[0] == (facts, bytes(copied.take()))


@given(
    rows=ROWS,
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), max_size=3),
    cut=st.integers(0, 20),
    base=st.sampled_from([0, 100, 2**63 - 3]),
    base_timestamp=st.sampled_from([0, 2**63 - 2, -(2**63)]),
    count_off=st.integers(-1, 1),
)
@settings(max_examples=examples(400))
def test_damaged_bytes_give_one_answer_or_one_error(rows, flips, cut, base, base_timestamp, count_off) -> None:
    source = bytearray(encoded(rows, 0))
    header = parse_batch_header(source, 0)
    body = source[61:]
    for at, flip in flips:
        body[at % len(body)] ^= flip
    body = bytes(body[: len(body) - cut] if cut < 10 and cut < len(body) else body)
    count, deltas = header.record_count + count_off, header.last_offset_delta
    _, table = both("map_keys", body, 0, len(body), count, base, deltas, 0, (0, 9), table=bytes(240))
    both("select_records", body, 0, len(body), count, base, deltas, min(base + 5, 2**63 - 1), False, (), table=table)
    marks = bytes(index % 2 for index in range(max(count, 0)))
    copies = []
    for module in (codec, pure_codec):
        writer = module.RecordWriter(0, 0)
        copies.append(outcome(writer.copy, body, 0, len(body), count, marks, base_timestamp, None))
        copies.append((writer.count, writer.last_offset_delta, bytes(writer.take())))
    assert copies[:2] == copies[2:]


@pytest.mark.parametrize("module", [cython, pure_cleaning])
def test_invalid_arguments_are_refused(module) -> None:
    for table in (bytearray(24), bytearray(50)):
        with pytest.raises(ValueError, match="a table of"):
            module.map_keys(b"", 0, 0, 0, 0, 0, 0, table, 0, 1)
        with pytest.raises(ValueError, match="a table of"):
            module.select_records(b"", 0, 0, 0, 0, 0, 0, True, table)
    with pytest.raises(ValueError, match="does not lie within"):
        module.map_keys(b"abc", 2, 9, 1, 0, 0, 0, bytearray(48), 0, 1)


@pytest.mark.parametrize("module", [codec, pure_codec])
def test_a_copy_needs_a_mark_for_each_record_and_rising_offsets(module) -> None:
    source = encoded([(1, b"k", b"v", [], 0)] * 2, 0, compression=Compression.NONE)
    writer = module.RecordWriter()
    with pytest.raises(ValueError, match="1 marks for 2 records"):
        writer.copy(source, 61, len(source), 2, b"\1", 1, None)
    assert writer.copy(source, 61, len(source), 2, b"\1\1", 1, None) == 2
    with pytest.raises(CorruptRecordError, match="offset delta"):
        writer.copy(source, 61, len(source), 2, b"\1\1", 1, None)
    writer.take()
    with pytest.raises(ValueError, match="have been taken"):
        writer.copy(source, 61, len(source), 2, b"\0\0", 1, None)
