"""Goal: the source plans and reads exactly the records between two checkpoints.

Method: its readers, called as Spark calls them, over a log in memory with real record batches; Spark does not run.
"""

import datetime
import pickle

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyspark_moldau import arrow, source
from pyspark_moldau.options import OptionError, parse_options
from pyspark_moldau.reader import DataLossError
from support.spark.memory_log import MemoryLog


@pytest.fixture
def log():
    made = MemoryLog([("t", 0), ("t", 1)])
    made.append(("t", 0), *[(1000 + n, b"k%d" % n, b"v%d" % n, ()) for n in range(10)])
    made.append(("t", 1), *[(2000 + n, None, b"w%d" % n, ()) for n in range(4)])
    return made


def stream(log, **options):
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "startingOffsets": "earliest"} | options
    return source.MoldauStreamReader(parse_options(given, streaming=True), connect=lambda client: log)


def batch(log, **options):
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"} | options
    return source.MoldauBatchReader(parse_options(given, streaming=False), connect=lambda client: log)


def rows(reader, partitions):
    return [row for one in partitions for part in reader.read(one) for row in part.to_pylist()]


def offsets_of(found):
    return sorted((row["partition"], row["offset"]) for row in found)


def test_the_arrow_schema_equals_sparks_schema_of_the_columns():
    """The Arrow schema is exactly the one that Spark derives from the columns."""
    header = types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
    columns = {
        "key": types.BinaryType(),
        "value": types.BinaryType(),
        "topic": types.StringType(),
        "partition": types.IntegerType(),
        "offset": types.LongType(),
        "timestamp": types.TimestampType(),
        "timestampType": types.IntegerType(),
        "headers": types.ArrayType(header),
    }
    fields = [types.StructField(name, kind) for name, kind in columns.items()]
    assert to_arrow_schema(types.StructType(fields[:-1]), timezone="UTC", prefers_large_types=False) == arrow.SCHEMA
    assert to_arrow_schema(types.StructType(fields), timezone="UTC", prefers_large_types=False) == arrow.SCHEMA_HEADERS
    assert [name for name in columns if f"{name} " in arrow.DDL_HEADERS] == list(columns)


def test_micro_batches_follow_each_other_without_gap_or_overlap(log):
    reader = stream(log)
    position = reader.initialOffset()
    assert position == {"t": {"0": 0, "1": 0}}
    seen = []
    for _ in range(20):
        end = reader.latestOffset(position, ReadMaxRows(4))
        seen += offsets_of(rows(reader, reader.partitions(position, end)))
        if end == position:
            break
        position = end
    assert position == {"t": {"0": 10, "1": 4}}
    assert sorted(seen) == [(0, n) for n in range(10)] + [(1, n) for n in range(4)]
    assert len(seen) == len(set(seen))


def test_rows_carry_all_columns(log):
    log.append(("t", 1), (5, b"", None, [("h", b"1"), ("h", None)]))
    reader = stream(log, includeHeaders="true")
    found = rows(reader, reader.partitions({"t": {"0": 10, "1": 3}}, {"t": {"0": 10, "1": 5}}))
    moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    common = {"topic": "t", "partition": 1, "timestampType": 0}
    assert found[0] == common | {
        "key": None,
        "value": b"w3",
        "offset": 3,
        "timestamp": moment + datetime.timedelta(milliseconds=2003),
        "headers": None,
    }
    assert found[1] == common | {
        "key": b"",
        "value": None,
        "offset": 4,
        "timestamp": moment + datetime.timedelta(milliseconds=5),
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
    }


def test_available_now_ends_at_the_end_it_saw_first(log):
    reader = stream(log)
    reader.prepareForTriggerAvailableNow()
    log.append(("t", 0), (1, b"late", b"late", ()))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end == {"t": {"0": 10, "1": 4}}
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_a_partition_found_later_is_read_from_its_beginning(log):
    reader = stream(log, startingOffsets="latest")
    start = reader.initialOffset()
    log.records["t", 2] = []
    log.starts["t", 2] = 0
    log.append(("t", 2), (1, b"k", b"v", ()))
    end = reader.latestOffset(start, ReadMaxRows(100))
    assert offsets_of(rows(reader, reader.partitions(start, end))) == [(2, 0)]


def test_minimum_of_tasks_is_reached_by_dividing_partitions(log):
    reader = stream(log, minPartitions="7")
    tasks = reader.partitions({"t": {"0": 0, "1": 0}}, {"t": {"0": 10, "1": 4}})
    assert len(tasks) == 7
    assert len(offsets_of(rows(reader, tasks))) == 14


def test_lost_records_end_the_query_or_are_skipped_as_asked(log):
    log.drop_before(("t", 0), 6)
    start, end = {"t": {"0": 2, "1": 4}}, {"t": {"0": 10, "1": 4}}
    with pytest.raises(DataLossError, match=r"records 2\.\.5 of t-0 are gone .*failOnDataLoss"):
        stream(log).partitions(start, end)
    reader = stream(log, failOnDataLoss="false")
    assert offsets_of(rows(reader, reader.partitions(start, end))) == [(0, n) for n in range(6, 10)]


def test_a_topic_that_disappears_is_data_loss(log):
    with pytest.raises(DataLossError, match="t-1 is gone"):
        stream(log).partitions({"t": {"0": 0, "1": 0}}, {"t": {"0": 10}})


def test_a_log_that_was_cut_below_the_position_is_data_loss(log, monkeypatch):
    monkeypatch.setattr(source, "SETTLE_S", 0.0)
    reader = stream(log)
    start = {"t": {"0": 50, "1": 4}}
    end = reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLossError, match="t-0 ends at 10, before the position 50"):
        reader.partitions(start, end)


def test_batch_reads_everything_or_between_given_offsets(log):
    """A batch query reads from earliest to latest by default, or between the given offsets."""
    reader = batch(log)
    assert len(rows(reader, reader.partitions())) == 14
    reader = batch(log, startingOffsets='{"t": {"0": 3, "1": -2}}', endingOffsets='{"t": {"0": 5, "1": -1}}')
    assert offsets_of(rows(reader, reader.partitions())) == [(0, 3), (0, 4), (1, 0), (1, 1), (1, 2), (1, 3)]


def test_batch_between_timestamps(log):
    reader = batch(log, startingTimestamp="1008", endingTimestamp="2002")
    assert offsets_of(rows(reader, reader.partitions())) == [(0, 8), (0, 9), (1, 0), (1, 1)]


def test_a_start_after_the_last_record_is_an_error_by_default(log):
    """A starting timestamp after the last record is an error unless the strategy is latest."""
    with pytest.raises(OptionError, match="no record of t-0 is that late"):
        batch(log, startingTimestamp="2001").partitions()
    reader = batch(log, startingTimestamp="2001", startingOffsetsByTimestampStrategy="latest")
    assert offsets_of(rows(reader, reader.partitions())) == [(1, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ('{"t": {"0": 1}}', "leaves out a partition: t-1"),
        ('{"t": {"0": 1, "1": 0, "2": 0}}', "names a partition that is not subscribed: t-2"),
    ],
)
def test_offsets_must_name_exactly_the_subscribed_partitions(log, given, message):
    with pytest.raises(OptionError, match=message):
        stream(log, startingOffsets=given).initialOffset()


def test_ending_before_the_start_is_an_error(log):
    with pytest.raises(OptionError, match="t-0 ends at 1, before its start 3"):
        batch(log, startingOffsets='{"t": {"0": 3, "1": 0}}', endingOffsets='{"t": {"0": 1, "1": 0}}').partitions()


def test_readers_and_tasks_travel_to_other_processes():
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    reader = source.MoldauStreamReader(parse_options(given, streaming=True))
    assert isinstance(pickle.loads(pickle.dumps(reader)), source.MoldauStreamReader)
    task = source.InputRange(source.OffsetRange(topic="t", partition=0, start=1, end=2))
    assert pickle.loads(pickle.dumps(task)) == task


def test_record_batches_share_the_decoders_buffers(log):
    chunk = next(log.read(source.OffsetRange(topic="t", partition=0, start=0, end=3), fail_on_data_loss=True))
    made = arrow.to_record_batch(chunk.columns, "t", 0, chunk.timestamp_type, headers=False)
    assert made.schema == arrow.SCHEMA
    assert made.column("value").buffers()[2].address == pa.py_buffer(chunk.columns.values.data).address
    made.validate(full=True)
