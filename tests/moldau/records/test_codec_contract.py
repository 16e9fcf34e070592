"""The contract of the record loops (``_codec.pyi``), with one suite for both implementations."""

import importlib
from enum import StrEnum

import pytest

from moldau.records import CorruptRecordError, InvalidRecordError
from moldau.records.pure import codec as pure_codec


@pytest.fixture(params=["cython", "python"])
def module(request):
    """One of the twins; the one in Cython only where it was built and is not switched off."""
    if request.param == "python":
        return pure_codec
    try:
        return importlib.import_module("moldau.records._codec")
    except ImportError:
        pytest.skip("the extension is not there")


def write(module, *records):
    """Encodes records of timestamp, key and value."""
    writer = module.RecordWriter()
    for timestamp, key, value in records:
        writer.append(timestamp, key, value)
    return writer.take()


def walked(module, data, count, base_timestamp=0, **options):
    walker = module.RecordWalker(count, base_timestamp, **options)
    walker.feed(data)
    walker.finish()
    return walker


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


def test_writer_keeps_its_bound_and_refuses_bad_values(module):
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
    last = module.decode_records(data, 61, len(data), 3, 0, 10, None, 9, 9)
    assert [(r.offset, r.key, r.value) for r in last] == [(9, b"k", b"alue")]


class Name(StrEnum):
    TRACE = "trace"


def test_header_keys_may_be_members_of_an_enumeration(module):
    writer = module.RecordWriter()
    writer.append(10, None, b"", ((Name.TRACE, b"1"),))
    (record,) = module.decode_records(writer.take(), 0, writer.size, 1, 0, 10, None, 0, 0)
    assert record.headers == (("trace", b"1"),)


def test_ranges_outside_of_the_buffer_are_refused(module):
    for start, end in ((-1, 2), (3, 2), (0, 11)):
        with pytest.raises(ValueError, match="does not lie within 10 bytes"):
            module.decode_records(bytes(10), start, end, 1, 0, 0, None, 1, 0)
        with pytest.raises(ValueError, match="does not lie within 10 bytes"):
            module.RecordWriter().copy(bytes(10), start, end, 1, b"\1", 0, None)


def test_header_keys_that_are_not_utf8_are_replaced_as_java_does(module):
    record = bytes([0, 0, 0, 1, 1, 2, 4, 0xFF, 0x61, 2, 0x62])
    data = bytes([2 * len(record)]) + record
    assert module.decode_records(data, 0, len(data), 1, 0, 0, None, 0, 0)[0].headers == (("\ufffda", b"b"),)
    builder = module.ColumnBuilder()
    builder.append(data, 0, len(data), 1, 0, 0, None, 0, 0, 10)
    assert builder.finish().header_keys.data == "\ufffda".encode()


# The life of a writer


def test_a_new_writer_has_nothing_but_its_room(module):
    """Nothing is written yet, and what deltas count from is what was given."""
    writer = module.RecordWriter(61, 16, 500)
    assert (writer.size, writer.count, writer.last_offset_delta) == (61, 0, -1)
    assert (writer.base_timestamp, writer.max_timestamp) == (500, -1)
    assert module.RecordWriter().base_timestamp == -1
    assert writer.take() == bytearray(61)
    with pytest.raises(ValueError, match="must not be negative"):
        module.RecordWriter(-1)


def test_a_writer_grows_with_what_it_takes(module):
    writer = module.RecordWriter(3, 0)
    for number in range(500):
        assert writer.append(10 + number, b"k", b"v" * number) == number
        assert writer.count == number + 1
    assert (writer.base_timestamp, writer.max_timestamp, writer.last_offset_delta) == (10, 509, 499)
    size = writer.size
    data = writer.take()
    assert type(data) is bytearray
    assert len(data) == size
    assert len(module.decode_records(data, 3, size, 500, 0, 10, None, 499, 0)) == 500


def test_a_writer_reports_its_size_after_take(module):
    """A producer asks for the size of a batch that it has built."""
    writer = module.RecordWriter(61)
    writer.append(10, b"k", b"v")
    writer.append(12, None, b"v")
    facts = (writer.size, writer.count, writer.last_offset_delta, writer.base_timestamp, writer.max_timestamp)
    data = writer.take()
    assert len(data) == writer.size
    assert facts == (
        writer.size,
        writer.count,
        writer.last_offset_delta,
        writer.base_timestamp,
        writer.max_timestamp,
    )
    assert facts[1:] == (2, 1, 10, 12)


def test_a_writer_that_gave_its_bytes_takes_no_more(module):
    writer = module.RecordWriter(61)
    writer.append(10, b"k", b"v")
    data = writer.take()
    with pytest.raises(ValueError, match="the writer's bytes have been taken"):
        writer.append(10, None, None)
    with pytest.raises(ValueError, match="the writer's bytes have been taken"):
        writer.copy(data, 61, len(data), 1, b"\1", 0, None)
    with pytest.raises(ValueError, match="the writer's bytes have been taken"):
        writer.take()
    assert (writer.count, writer.size) == (1, len(data))


def test_a_refused_record_changes_nothing(module):
    writer = module.RecordWriter(0, 16)
    writer.append(10, b"k", b"v")
    before = (writer.size, writer.count, writer.max_timestamp)
    assert writer.append(99, b"k", b"v" * 100, (), writer.size + 1) == -1
    with pytest.raises(InvalidRecordError, match="too far"):
        writer.append(-(2**63), b"k", b"v")
    with pytest.raises(InvalidRecordError, match="header key"):
        writer.append(99, b"k", b"v", ((1, b""),))
    with pytest.raises(OverflowError):
        writer.append(2**63, b"k", b"v")
    assert (writer.size, writer.count, writer.max_timestamp) == before


def test_a_writer_copies_what_is_to_be_kept(module):
    """The cleaner's way: records keep offsets and timestamps, and the writer goes on as after ``append``."""
    source = write(module, (100, b"a", b"1"), (90, b"b", b"2"), (130, b"c", None))
    writer = module.RecordWriter(2, 0)
    assert writer.copy(source, 0, len(source), 3, b"\1\0\1", 100, None) == 2
    assert (writer.count, writer.last_offset_delta, writer.base_timestamp, writer.max_timestamp) == (2, 2, 100, 130)
    size = writer.size
    data = writer.take()
    assert len(data) == size
    kept = module.decode_records(data, 2, size, 2, 0, 100, None, 2, 0)
    assert [(r.offset, r.timestamp, r.key, r.value) for r in kept] == [(0, 100, b"a", b"1"), (2, 130, b"c", None)]
    with pytest.raises(ValueError, match="2 marks for 3 records"):
        module.RecordWriter().copy(source, 0, len(source), 3, b"\1\0", 100, None)


# The walk over a batch's records


def walked_in_pieces(module, record, size):
    walker = module.RecordWalker(1)
    for at in range(0, len(record), size):
        walker.feed(record[at : at + size])
    walker.finish()


def test_a_walk_finds_what_the_records_have(module):
    data = write(module, (100, b"a", b"1"), (90, None, b"2"), (130, b"c", None), (-1, None, b"4"))
    walker = walked(module, data, 4, 100, earliest=95, latest=120, needs_keys=True, faults_max=10)
    assert (walker.count, walker.max_timestamp, walker.keyless_count, walker.mistimed_count) == (4, 130, 2, 2)
    assert walker.faults == [(1, True, 90), (2, False, 130), (3, True, None)]
    assert walked(module, data, 4, 100, earliest=95, faults_max=1).faults == [(1, True, 90)]
    assert walked(module, data, 4, 100).faults == []


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        (2, "record 2 of the batch: bytes are left after the last record"),
        (4, "record 3 of the batch: the batch ends before it, but its header counts it"),
        (2**31 - 1, "record 3 of the batch: the batch ends before it, but its header counts it"),
        (0, "record 0 of the batch: bytes are left after the last record"),
        (-1, "record 0 of the batch: bytes are left after the last record"),
    ],
)
def test_a_false_number_of_records_is_found(module, count, reason):
    data = write(module, (1, b"a", b"1"), (2, b"b", b"2"), (3, b"c", b"3"))
    with pytest.raises(CorruptRecordError, match=reason):
        walked(module, data, count)


def test_a_gap_between_offsets_is_found(module):
    writer = module.RecordWriter()
    writer.append(1, b"a", b"1")
    writer.append(1, b"b", b"2", (), 2**31 - 1, 2)
    with pytest.raises(CorruptRecordError, match="record 1 of the batch: its offset delta is not its number"):
        walked(module, writer.take(), 2)


def test_a_timestamp_beyond_64_bits_is_found(module):
    data = write(module, (0, b"a", b"1"), (2, b"b", b"2"))
    with pytest.raises(CorruptRecordError, match="record 1 of the batch: its timestamp or offset does not fit"):
        walked(module, data, 2, 2**63 - 2)


def test_a_walk_that_failed_stays_failed(module):
    data = write(module, (1, b"a", b"1"))
    walker = module.RecordWalker(1)
    for piece in (b"\xff" * 6, data):
        with pytest.raises(CorruptRecordError, match="record 0 of the batch: a varint"):
            walker.feed(piece)
    with pytest.raises(CorruptRecordError, match="record 0 of the batch: a varint"):
        walker.finish()


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"\x01", "the record length is negative"),
        (b"\x00", "its fields do not end where its length says"),
        (b"\x02\x00", "a varint"),
        (b"\x0a\x00\x00\x00\x03\x00", "the key length is below -1"),
        (b"\x0a\x00\x00\x00\x04\x00", "the key length is below -1 or exceeds the record"),
        (b"\x0a\x00\x00\x00\x01\x03", "the value length is below -1"),
        (b"\x0c\x00\x00\x00\x01\x01\x02", "the header count is negative or exceeds"),
        (b"\x0c\x00\x00\x00\x01\x01\x01", "the header count is negative"),
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", "its fields do not end where its length says"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", "a header key length is negative"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x00\x03", "a header value length is below -1"),
        (b"\x12\x00\x00\x00\x01\x01\x02\x00\x01\x00", "its fields do not end where its length says"),
        (b"\x80\x80\x80\x80\x10", "a varint"),
        (b"\x1a\x00" + b"\x80" * 9 + b"\x02\x00", "a varint"),
        (b"\x40\x00\x00", "the record length is negative or exceeds the bytes of the batch"),
    ],
)
def test_each_damage_has_its_reason_in_any_pieces(module, record, reason):
    for size in (len(record), 1, 2):
        with pytest.raises(CorruptRecordError, match=f"record 0 of the batch: {reason}"):
            walked_in_pieces(module, record, size)


# The search by time


def searched(module, data, count, timestamp, first_offset=0, append_timestamp=None, base_timestamp=100):
    return module.find_timestamp(
        data, 0, len(data), count, 50, base_timestamp, append_timestamp, timestamp, first_offset
    )


def test_the_first_record_at_or_after_a_time_is_found(module):
    writer = module.RecordWriter()
    for timestamp, delta in ((100, 0), (300, 2), (200, 5), (300, 7)):
        writer.append(timestamp, None, b"v", (), 2**31 - 1, delta)
    data = writer.take()
    assert searched(module, data, 4, 100) == (50, 100)
    assert searched(module, data, 4, 101) == (52, 300)
    assert searched(module, data, 4, 101, 53) == (55, 200)
    assert searched(module, data, 4, 201, 53) == (57, 300)
    assert searched(module, data, 4, 301) is None
    assert searched(module, data, 4, 100, 58) is None
    assert searched(module, data, 4, 400, 51, 400) == (52, 400)
    assert searched(module, data, 4, 401, 0, 400) is None


def test_damage_before_what_is_searched_is_found(module):
    data = write(module, (100, b"a", b"1"), (200, b"b", b"2"))
    assert searched(module, data[:-1], 2, 100) == (50, 100)
    with pytest.raises(CorruptRecordError, match="record 1 of the batch: the record length"):
        searched(module, data[:-1], 2, 150)
    with pytest.raises(CorruptRecordError, match="record 1 of the batch: its timestamp or offset"):
        searched(module, data, 2, 2**63 - 1, base_timestamp=2**63 - 50)


def test_offset_deltas_of_a_batch_ascend(module):
    writer = module.RecordWriter()
    assert writer.append(1, None, b"x", offset_delta=0) == 0
    for delta in (0, 3):
        with pytest.raises(ValueError, match=f"offset delta {delta} is not above {delta}"):
            writer.append(1, None, b"y", offset_delta=delta)
        assert writer.append(1, None, b"z", offset_delta=delta + 3) == delta + 3
