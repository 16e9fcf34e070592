"""Rows to encode from columns: both implementations write what ``append`` writes, and refuse bad buffers."""

import importlib
import struct
from array import array
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.records.columns import BinaryColumn
from moldau.records.pure import codec as pure_codec
from support.proof import examples

FIELD = st.none() | st.binary(max_size=30)
HEADERS = st.lists(st.tuples(st.text(max_size=5), FIELD), max_size=3)
ROW = st.tuples(st.integers(-1, 5000), FIELD, FIELD, HEADERS)


@pytest.fixture(params=["cython", "python"])
def module(request):
    """One of the twins; the one in Cython only where it was built and is not switched off."""
    return implementation(request.param)


def implementation(name):
    if name == "python":
        return pure_codec
    try:
        return importlib.import_module("moldau.records._codec")
    except ImportError:
        pytest.skip("the extension is not there")


def column(fields, shift=0):
    """A binary column; its offsets begin at ``shift``."""
    validity = bytearray((len(fields) + 7) // 8)
    offsets, data = array("i", [shift]), bytearray(b"x" * shift)
    for index, field in enumerate(fields):
        validity[index >> 3] |= (field is not None) << (index & 7)
        data += field or b""
        offsets.append(len(data))
    return BinaryColumn(
        length=len(fields),
        null_count=fields.count(None),
        validity=bytes(validity),
        offsets=offsets.tobytes(),
        data=bytes(data),
    )


def rows_of(module, rows, shift=0):
    pairs = [pair for row in rows for pair in row[3]]
    bounds = array("i", [0])
    for row in rows:
        bounds.append(bounds[-1] + len(row[3]))
    return module.RowColumns(
        len(rows),
        column([row[1] for row in rows], shift),
        column([row[2] for row in rows], shift),
        array("q", [row[0] for row in rows]).tobytes(),
        bounds.tobytes(),
        column([name.encode() for name, _ in pairs]),
        column([field for _, field in pairs]),
    )


def numbers(data):
    return list(array("i", data))


@pytest.mark.parametrize("name", ["cython", "python"])
@settings(max_examples=examples(150), deadline=None)
@given(rows=st.lists(ROW, min_size=1, max_size=12), limit=st.integers(10, 400), shift=st.integers(0, 3))
def test_rows_are_encoded_as_single_records(name, rows, limit, shift):
    """``append_rows`` stops where ``append`` stops, and both have then written the same bytes."""
    module = implementation(name)
    order = list(reversed(range(len(rows))))
    by_rows, by_record = module.RecordWriter(5), module.RecordWriter(5)
    taken = by_rows.append_rows(rows_of(module, rows, shift), array("i", order).tobytes(), 0, 77, limit)
    written = 0
    for row in order:
        timestamp, key, value, headers = rows[row]
        if by_record.append(77 if timestamp < 0 else timestamp, key, value, headers, limit) < 0:
            break
        written += 1
    assert taken == written >= 1
    assert (by_rows.count, by_rows.base_timestamp, by_rows.max_timestamp, by_rows.last_offset_delta) == (
        by_record.count,
        by_record.base_timestamp,
        by_record.max_timestamp,
        by_record.last_offset_delta,
    )
    assert by_rows.take() == by_record.take()


@settings(max_examples=examples(150), deadline=None)
@given(rows=st.lists(ROW, max_size=12), count=st.integers(1, 9))
def test_twins_agree_on_rows(rows, count):
    """Partitions, fingerprints, bounds and groups are equal in both implementations."""
    compiled = implementation("cython")
    one, other = rows_of(compiled, rows), rows_of(pure_codec, rows)
    assert one.fingerprint() == other.fingerprint()
    assert one.partitions_by_key(count) == other.partitions_by_key(count)
    assert [one.size_bound(row) for row in range(len(rows))] == [other.size_bound(row) for row in range(len(rows))]
    assert [one.timestamp(row) for row in range(len(rows))] == [other.timestamp(row) for row in range(len(rows))]
    assert one.largest_bound() == other.largest_bound()
    chosen = one.partitions_by_key(count)
    assert compiled.group_rows(chosen, count) == pure_codec.group_rows(chosen, count)


def test_a_fingerprint_ignores_order_and_slices(module):
    """The fingerprint is the same for another order of the rows, and adds up over parts; another row changes it."""
    rows = [(5, b"k", b"v", [("h", b"1")]), (-1, None, b"", []), (7, b"", None, [("h", None)])]
    whole = rows_of(module, rows).fingerprint()
    assert rows_of(module, rows[::-1]).fingerprint() == whole
    parts = [rows_of(module, [row]).fingerprint() for row in rows]
    assert sum(parts) & 0xFFFFFFFFFFFFFFFF == whole
    assert len({whole, *parts}) == 4
    for changed in ((5, b"k", b"w", [("h", b"1")]), (5, None, b"v", [("h", b"1")]), (5, b"k", b"v", [("h", None)])):
        assert rows_of(module, [changed, *rows[1:]]).fingerprint() != whole


def test_rows_are_grouped_by_partition(module):
    groups = module.group_rows(array("i", [2, -1, 0, 2, -1]).tobytes(), 3)
    assert [(partition, numbers(rows)) for partition, rows in groups] == [(-1, [1, 4]), (0, [2]), (2, [0, 3])]
    with pytest.raises(ValueError, match="row 1: partition 3, there are 0 to 2"):
        module.group_rows(array("i", [0, 3]).tobytes(), 3)


def test_wrong_buffers_are_refused(module):
    """Offsets out of range would read foreign memory, so each is refused before any row is read."""
    good = column([b"ab", b"c"])
    for offsets in ([0, 2, 9], [0, 3, 2], [-1, 2, 3]):
        bad = BinaryColumn(
            length=2, null_count=0, validity=b"\3", offsets=array("i", offsets).tobytes(), data=good.data
        )
        with pytest.raises(ValueError, match="values: offsets do not ascend"):
            module.RowColumns(2, None, bad)
    for count, needed in ((8, 1), (9, 2), (17, 3)):
        nulls = column([None] * count)
        module.RowColumns(count, nulls)
        short = replace(nulls, validity=bytes(needed - 1))
        with pytest.raises(ValueError, match=f"values: {needed - 1} bytes, {needed} needed"):
            module.RowColumns(count, None, short)
    with pytest.raises(ValueError, match="keys: 2 rows, 3 needed"):
        module.RowColumns(3, good)
    with pytest.raises(ValueError, match="timestamps: 8 bytes, 16 needed"):
        module.RowColumns(2, good, good, struct.pack("=q", 1))
    with pytest.raises(ValueError, match="a header key must not be null"):
        module.RowColumns(1, None, None, None, array("i", [0, 1]).tobytes(), column([None]), column([b"x"]))
    writer = module.RecordWriter()
    with pytest.raises(IndexError, match="row 2 of 2"):
        writer.append_rows(module.RowColumns(2, good, good), array("i", [2]).tobytes(), 0, 0)
