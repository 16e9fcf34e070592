"""Arrow batches become rows to encode: slices, nulls and headers included; errors of rows name the column."""

import datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest
import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import BatchBuilder, decode_records, group_rows, parse_batch_header
from pyspark_moldau.errors import SinkError
from pyspark_moldau.sink.core.sink_options import parse_sink_options
from pyspark_moldau.sink.rows import RowError, split_topics, to_columns
from pyspark_moldau.sink.task import RowWriter

HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
ROWS = [
    {"key": None, "value": "a", "headers": None, "timestamp": NOON},
    {"key": b"k", "value": None, "headers": [], "timestamp": None},
    {"key": b"", "value": "", "headers": [{"key": "h", "value": None}, {"key": "i", "value": b"1"}], "timestamp": NOON},
    {"key": b"z", "value": "long" * 9, "headers": [{"key": "h", "value": b"2"}], "timestamp": NOON},
]
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.string()),
        ("headers", pa.list_(HEADER)),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


def encoded(batch):
    """Returns the records that a reader of the encoded batch gets."""
    columns, partitions = to_columns(batch)
    assert partitions is None
    builder = BatchBuilder(10_000)
    ((_, rows),) = group_rows(bytes(b"\xff" * 4 * batch.num_rows), 1)
    assert builder.writer.append_rows(columns, rows, 0, 5) == batch.num_rows
    data = bytes(builder.build())
    return [
        (record.timestamp, record.key, record.value, record.headers)
        for record in decode_records(data, 0, parse_batch_header(data))
    ]


def expected(row):
    stamp = 5 if row["timestamp"] is None else int(row["timestamp"].timestamp() * 1000)
    value = None if row["value"] is None else row["value"].encode()
    return stamp, row["key"], value, tuple((each["key"], each["value"]) for each in row["headers"] or ())


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_slices_hold_their_own_rows(first, count):
    batch = pa.RecordBatch.from_pylist(ROWS * 3, schema=SCHEMA).slice(first, count)
    assert encoded(batch) == [expected(row) for row in (ROWS * 3)[first : first + count]]


def test_topics_are_separated():
    rows = [{"topic": name, "value": str(number)} for number, name in enumerate("abacb")]
    batch = pa.RecordBatch.from_pylist(rows)
    found = {topic: part.column(1).to_pylist() for topic, part in split_topics(batch, None)}
    assert found == {"a": ["0", "2"], "b": ["1", "4"], "c": ["3"]}
    assert [topic for topic, _ in split_topics(batch, "option")] == ["option"]


def test_wrong_rows_are_refused_by_column():
    topics = pa.RecordBatch.from_pylist([{"topic": "a", "value": "1"}, {"topic": None, "value": "2"}])
    with pytest.raises(RowError, match="column topic: null in row 1"):
        list(split_topics(topics, None))
    unnamed = pa.RecordBatch.from_pylist([{"topic": "a", "value": "1"}, {"topic": "", "value": "2"}])
    with pytest.raises(RowError, match="column topic: a row has an empty text; set the option topic"):
        list(split_topics(unnamed, None))
    partitions = pa.record_batch({"value": pa.array(["1"]), "partition": pa.array([-2], pa.int32())})
    with pytest.raises(RowError, match="column partition: -2 is negative"):
        to_columns(partitions)
    unnamed = pa.record_batch({"headers": pa.array([[{"key": None, "value": b"1"}]], pa.list_(HEADER))})
    with pytest.raises(RowError, match="column headers: the key of a header is null"):
        to_columns(unnamed)


def test_times_before_1970_are_refused():
    """Records have none, and the time of writing would be another one."""
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    millisecond = datetime.timedelta(milliseconds=1)

    def rows(*moments):
        return pa.record_batch({"value": ["1"] * len(moments), "timestamp": pa.array(moments, SCHEMA[3].type)})

    with pytest.raises(RowError, match="column timestamp: -2 ms is before 1970"):
        to_columns(rows(NOON, None, epoch - 2 * millisecond))
    for part in (0.5, 1.5):  # rounded, the first would be 1970 itself, and the second a record without a timestamp
        with pytest.raises(RowError, match=f"column timestamp: -{part} ms is before 1970"):
            to_columns(rows(NOON, epoch - part * millisecond))
    # The source shows a record without a timestamp as the moment before 1970, and its copy has none either.
    assert [record[0] for record in encoded(rows(None, epoch - millisecond, epoch))] == [5, 5, 0]


def test_partitions_may_be_null():
    batch = pa.record_batch({"value": pa.array(["1", "2"]), "partition": pa.array([None, 3], pa.int32())})
    _, partitions = to_columns(batch)
    assert list(memoryview(partitions).cast("i")) == [-1, 3]


def fingerprint_of(*blocks):
    """Returns the fingerprint of a task's blocks, which are lists of topics and values."""
    options = parse_sink_options({"kafka.bootstrap.servers": "h:1"}, streaming=True)

    async def send_columns(topic, columns, *, partitions):
        await trio.lowlevel.checkpoint()
        return []

    async def main():
        writer = RowWriter(options, SimpleNamespace(send_columns=send_columns))
        for rows in blocks:
            topics, values = zip(*rows, strict=True)
            await writer.write(pa.record_batch({"topic": topics, "value": values}), fingerprints=True)
        return writer.fingerprint

    return trio.run(main)


def test_a_fingerprint_has_the_topic_of_each_row():
    """A replay with the same rows in other topics may not replace a lost transaction."""
    rows = [("x", "1"), ("y", "2")]
    assert fingerprint_of(rows) == fingerprint_of(rows[:1], rows[1:]) == fingerprint_of(rows[::-1])
    assert fingerprint_of(rows) != fingerprint_of([("y", "1"), ("x", "2")])
    assert fingerprint_of(rows) != fingerprint_of([("x", "1"), ("x", "2")])


class Refused:
    """The delivery of a row that the broker refuses; ``is_done`` says whether that is known."""

    topic = "t"

    def __init__(self, *, is_done):
        self.is_done = is_done

    def result(self):
        raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)


@pytest.mark.parametrize("is_done", [True, False], ids=["early", "late"])
def test_a_refused_row_fails_the_write(monkeypatch, is_done):
    """Deliveries are looked at in between if there are many, and those that are not done then at the end."""
    monkeypatch.setattr("pyspark_moldau.sink.task.UNDELIVERED_MAX", 1)
    deliveries = [Refused(is_done=is_done), SimpleNamespace(is_done=True, topic="t", result=lambda: None)]

    async def send_columns(topic, columns, *, partitions):
        await trio.lowlevel.checkpoint()
        return [deliveries.pop(0)]

    async def main():
        options = parse_sink_options({"kafka.bootstrap.servers": "h:1", "topic": "t"}, streaming=True)
        writer = RowWriter(options, SimpleNamespace(send_columns=send_columns, flush=trio.lowlevel.checkpoint))
        for value in ("1", "2"):
            await writer.write(pa.record_batch({"value": [value]}), fingerprints=False)
        await writer.finish()

    with pytest.raises(SinkError, match="NOT_ENOUGH_REPLICAS"):
        trio.run(main)
