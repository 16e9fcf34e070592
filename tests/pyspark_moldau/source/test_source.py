"""Goal: the source plans and reads exactly the records between two checkpoints.

Method: its readers, called as Spark calls them, over a log in memory with real record batches; Spark does not run.
"""

import datetime
import os
import pickle
import types as types_module

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyspark_moldau import errors
from pyspark_moldau.errors import DataLossError
from pyspark_moldau.source import arrow, planning
from pyspark_moldau.source import data_source as source
from pyspark_moldau.source import stream as stream_module
from pyspark_moldau.source.core import columns
from pyspark_moldau.source.core.offsets import OffsetRange, from_checkpoint
from pyspark_moldau.source.core.options import OptionError, parse_options
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
    kinds = {
        "key": types.BinaryType(),
        "value": types.BinaryType(),
        "topic": types.StringType(),
        "partition": types.IntegerType(),
        "offset": types.LongType(),
        "timestamp": types.TimestampType(),
        "timestampType": types.IntegerType(),
        "headers": types.ArrayType(header),
    }
    fields = [types.StructField(name, kind) for name, kind in kinds.items()]
    assert to_arrow_schema(types.StructType(fields[:-1]), timezone="UTC", prefers_large_types=False) == arrow.SCHEMA
    assert to_arrow_schema(types.StructType(fields), timezone="UTC", prefers_large_types=False) == arrow.SCHEMA_HEADERS
    assert {name: kind.simpleString() for name, kind in kinds.items()} == columns.TYPES


def test_micro_batches_follow_each_other_without_gap_or_overlap(log):
    reader = stream(log)
    position = reader.initialOffset()
    assert position == {"t": {"0": 0, "1": 0}, "t#id-1": {}}
    seen = []
    for _ in range(20):
        end = reader.latestOffset(position, ReadMaxRows(4))
        seen += offsets_of(rows(reader, reader.partitions(position, end)))
        if end == position:
            break
        position = end
    assert from_checkpoint(position) == {("t", 0): 10, ("t", 1): 4}
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
    reader, limited = stream(log), stream(log, minOffsetsPerTrigger="5", maxOffsetsPerTrigger="5")
    for each in (reader, limited):
        each.prepareForTriggerAvailableNow()
        start = each.initialOffset()
    log.append(("t", 0), (1, b"late", b"late", ()))
    end = reader.latestOffset(start, ReadAllAvailable())
    assert from_checkpoint(end) == {("t", 0): 10, ("t", 1): 4}
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    for _ in range(5):
        start = limited.latestOffset(start, limited.getDefaultReadLimit())
    assert from_checkpoint(start) == from_checkpoint(end), "the last records are few, and nothing more is waited for"


def test_available_now_ends_where_a_restart_found_the_log(log):
    """A query that starts again may first repeat a micro-batch, during which the log grows."""
    reader = stream(log)
    reader.prepareForTriggerAvailableNow()
    end = {"t": {"0": 1, "1": 1}, "t#id-1": {}}
    reader.partitions({"t": {"0": 0, "1": 0}, "t#id-1": {}}, end)
    log.append(("t", 0), (1, b"late", b"late", ()))
    assert from_checkpoint(reader.latestOffset(end, ReadAllAvailable())) == {("t", 0): 10, ("t", 1): 4}


def test_the_driver_waits_for_a_first_answer_as_its_query_allows(log):
    """A new stream ends soon; one with a checkpoint survives an outage as it does while it runs."""
    new, known = stream(log), stream(log)
    new.prepareForTriggerAvailableNow()
    assert log.limits_ms == [], "whether the query is new is not known yet"
    start = new.initialOffset()
    assert log.limits_ms == [10_000]
    known.prepareForTriggerAvailableNow()
    known.partitions(start, known.latestOffset(start, ReadAllAvailable()))
    assert log.limits_ms == [10_000]
    batch(log).partitions()
    assert log.limits_ms == [10_000, 30_000]


def test_available_now_never_plans_past_the_end_of_a_log(log, monkeypatch):
    """The topic becomes another, shorter one after the end was seen, or is cut below it."""
    monkeypatch.setattr(planning, "SETTLE_S", 0.0)
    reader = stream(log, failOnDataLoss="false")
    reader.prepareForTriggerAvailableNow()
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    log.delete("t")
    log.create("t", 2, "id-2")
    log.append(("t", 0), *[(1, None, b"new", ())] * 3)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert from_checkpoint(end) == {("t", 0): 3, ("t", 1): 0}
    log.append(("t", 0), (1, None, b"later", ()))
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    cut = stream(log, failOnDataLoss="false")
    cut.prepareForTriggerAvailableNow()
    assert cut.latestOffset(end, ReadAllAvailable())["t"]["0"] == 4
    del log.records["t", 0][2:]
    assert from_checkpoint(cut.latestOffset(end, ReadAllAvailable())) == {("t", 0): 2, ("t", 1): 0}


@pytest.mark.parametrize("latest", ["latest", '{"t": {"0": -1, "1": -1}}'], ids=["latest", "by partition"])
@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxRows(3)])
def test_the_start_of_a_query_stays_where_it_was(log, limit, latest):
    """Spark asks for the start again when it runs the first micro-batch, and once more after a restart."""
    reader = stream(log, startingOffsets=latest)
    start = reader.initialOffset()
    log.append(("t", 0), (1, b"k", b"a", ()))
    log.append(("t", 1), (1, b"k", b"b", ()))
    end = reader.latestOffset(start, limit)
    log.append(("t", 0), (1, b"k", b"later", ()))
    assert reader.initialOffset() == start
    assert offsets_of(rows(reader, reader.partitions(reader.initialOffset(), end))) == [(0, 10), (1, 4)]
    restarted = stream(log, startingOffsets=latest)
    moved = restarted.initialOffset()
    assert from_checkpoint(moved) == {("t", 0): 12, ("t", 1): 5}
    assert offsets_of(rows(restarted, restarted.partitions(moved, end))) == [(0, 10), (1, 4)]
    following = restarted.latestOffset(end, limit)
    assert offsets_of(rows(restarted, restarted.partitions(end, following))) == [(0, 11)]
    assert following == {"t": {"0": 12, "1": 5}, "t#id-1": {}}
    assert restarted.latestOffset(following, limit) == following


def test_an_empty_first_micro_batch_knows_its_start(log):
    """Spark runs it too. If the user's sink fails in it, records come before the query starts again."""
    reader = stream(log, startingOffsets="latest")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end == {"t": {"0": 10, "1": 4}, "t#id-1": {}, "t#from:0=10,1=4": {}}
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    log.append(("t", 0), (1, b"k", b"a", ()))
    restarted = stream(log, startingOffsets="latest")
    assert restarted.partitions(restarted.initialOffset(), end) == []
    following = restarted.latestOffset(end, ReadAllAvailable())
    assert offsets_of(rows(restarted, restarted.partitions(end, following))) == [(0, 10)]


def test_the_earliest_start_of_a_query_is_no_later_one(log):
    """The query rests in its first micro-batch, whose records retention deletes meanwhile."""
    reader = stream(log)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(12))
    log.drop_before(("t", 0), 6)
    restarted = stream(log)
    with pytest.raises(DataLossError, match=r"records 0\.\.5 of t-0 are gone"):
        restarted.partitions(restarted.initialOffset(), end)


def test_a_query_that_started_without_partitions_knows_it(log):
    """Its pattern matches no topic at first; a topic that comes then is read from its beginning after a restart too."""
    given = {"kafka.bootstrap.servers": "h:1", "subscribePattern": "new.*", "startingOffsets": "latest"}

    def query():
        return source.MoldauStreamReader(parse_options(given, streaming=True), connect=lambda client: log)

    reader = query()
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    log.create("new", 1, "id-2")
    log.append(("new", 0), (1, b"k", b"a", ()))
    restarted = query()
    assert restarted.partitions(restarted.initialOffset(), end) == []
    following = restarted.latestOffset(end, ReadAllAvailable())
    assert offsets_of(rows(restarted, restarted.partitions(end, following))) == [(0, 0)]


def test_an_end_at_the_start_is_the_same_document(log):
    """Spark compares documents; the first micro-batch's end, which says more than offsets, is no exception."""
    reader = stream(log, startingOffsets="latest")
    start = reader.initialOffset()
    log.append(("t", 0), (1, b"k", b"a", ()))
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {"t": {"0": 11, "1": 4}, "t#id-1": {}, "t#from:0=10,1=4": {}}
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_a_partition_found_later_is_read_from_its_beginning(log):
    reader = stream(log, startingOffsets="latest")
    start = reader.initialOffset()
    log.records["t", 2] = []
    log.starts["t", 2] = 0
    log.append(("t", 2), (1, b"k", b"v", ()))
    end = reader.latestOffset(start, ReadMaxRows(100))
    assert offsets_of(rows(reader, reader.partitions(start, end))) == [(2, 0)]


def test_lost_records_of_a_later_partition_are_data_loss(log):
    """A query rests; the topic gets a partition, and retention deletes its first records."""
    reader = stream(log)
    position = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    log.records["t", 2] = []
    log.starts["t", 2] = 0
    log.append(("t", 2), *[(1, b"k", b"v", ())] * 5)
    log.drop_before(("t", 2), 3)
    end = reader.latestOffset(position, ReadAllAvailable())
    with pytest.raises(DataLossError, match=r"t-2 came while .* its records 0\.\.2 are gone .*; set failOnDataLoss"):
        reader.partitions(position, end)
    lenient = stream(log, failOnDataLoss="false")
    assert offsets_of(rows(lenient, lenient.partitions(position, end))) == [(2, 3), (2, 4)]


def test_lost_records_of_a_later_topic_are_data_loss(log):
    """A query of a pattern rests; a topic that fits it comes, and retention deletes its first records."""

    def query(**options):
        given = {"kafka.bootstrap.servers": "h:1", "subscribePattern": "[tu]"} | options
        return source.MoldauStreamReader(parse_options(given, streaming=True), connect=lambda client: log)

    reader = query(startingOffsets="earliest")
    position = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    log.create("u", 1, "id-2")
    log.append(("u", 0), *[(1, b"k", b"v", ())] * 5)
    log.drop_before(("u", 0), 3)
    end = reader.latestOffset(position, ReadAllAvailable())
    with pytest.raises(DataLossError, match=r"u-0 came while .* its records 0\.\.2 are gone"):
        reader.partitions(position, end)
    lenient = query(failOnDataLoss="false")
    assert offsets_of(rows(lenient, lenient.partitions(position, end))) == [(0, 3), (0, 4)]


def test_a_topic_that_is_named_in_addition_may_be_old(log):
    log.create("u", 1, "id-2")
    log.append(("u", 0), *[(1, b"k", b"v", ())] * 5)
    log.drop_before(("u", 0), 3)
    reader = stream(log, subscribe="t,u")
    position = {"t": {"0": 10, "1": 4}, "t#id-1": {}}
    end = reader.latestOffset(position, ReadAllAvailable())
    assert offsets_of(rows(reader, reader.partitions(position, end))) == [(0, 3), (0, 4)]


def test_minimum_of_tasks_is_reached_by_dividing_partitions(log):
    reader = stream(log, minPartitions="7")
    tasks = reader.partitions({"t": {"0": 0, "1": 0}}, {"t": {"0": 10, "1": 4}})
    assert len(tasks) == 7
    assert len(offsets_of(rows(reader, tasks))) == 14


def test_small_partitions_share_a_task(log):
    """A micro-batch of few records has one task with the rows of all partitions; ``minPartitions`` gives each one."""
    start, end = {"t": {"0": 0, "1": 0}}, {"t": {"0": 10, "1": 4}}
    for options, count in (({}, 1), ({"minPartitions": "2"}, 2), ({"maxRecordsPerPartition": "10"}, 2)):
        reader = stream(log, **options)
        tasks = reader.partitions(start, end)
        assert len(tasks) == count
        assert offsets_of(rows(reader, tasks)) == [(0, n) for n in range(10)] + [(1, n) for n in range(4)]


def test_the_reported_end_is_that_of_the_plan(log):
    """Spark asks for the end of the log right after each plan, and the source measures it once for both."""
    reader = stream(log, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    log.append(("t", 1), (3000, None, b"late", ()))
    assert reader.reportLatestOffset()["t"] == {"0": 10, "1": 4}
    assert reader.reportLatestOffset()["t"] == {"0": 10, "1": 5}


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
    monkeypatch.setattr(planning, "SETTLE_S", 0.0)
    reader = stream(log)
    start = {"t": {"0": 50, "1": 4}}
    end = reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLossError, match="t-0 ends at 10, before the position 50"):
        reader.partitions(start, end)


def test_a_repeated_batch_of_a_log_that_was_cut(log, monkeypatch):
    """A query that starts again repeats the batch that its checkpoint has, and the log has lost records meanwhile."""
    monkeypatch.setattr(planning, "SETTLE_S", 0.0)
    first = stream(log)
    start = {"t": {"0": 4, "1": 4}}
    end = first.latestOffset(start, ReadAllAvailable())
    assert len(rows(first, first.partitions(start, end))) == 6
    del log.records["t", 0][6:]
    log.forget_ends()
    with pytest.raises(
        DataLossError, match=r"t-0 was cut at offset 6: its records 6\.\.9 are gone; set failOnDataLoss"
    ):
        stream(log).partitions(start, end)
    lenient = stream(log, failOnDataLoss="false")
    assert offsets_of(rows(lenient, lenient.partitions(start, end))) == [(0, 4), (0, 5)]
    log.append(("t", 0), (9, b"k", b"after", ()))
    position = lenient.latestOffset(end, ReadAllAvailable())
    log.append(("t", 0), (9, b"k", b"later", ()))
    following = lenient.latestOffset(position, ReadAllAvailable())
    assert offsets_of(rows(lenient, lenient.partitions(position, following))) == [(0, 7)]


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
    reader = stream(log, startingOffsets=given)
    start = reader.initialOffset()
    with pytest.raises(OptionError, match=message):
        reader.latestOffset(start, ReadAllAvailable())


def test_ending_before_the_start_is_an_error(log):
    with pytest.raises(OptionError, match="t-0 ends at 1, before its start 3"):
        batch(log, startingOffsets='{"t": {"0": 3, "1": 0}}', endingOffsets='{"t": {"0": 1, "1": 0}}').partitions()


def test_readers_and_tasks_travel_to_other_processes():
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    reader = source.MoldauStreamReader(parse_options(given, streaming=True))
    assert isinstance(pickle.loads(pickle.dumps(reader)), source.MoldauStreamReader)
    task = source.InputRanges((OffsetRange(topic="t", partition=0, start=1, end=2),))
    assert pickle.loads(pickle.dumps(task)) == task


def test_record_batches_share_the_decoders_buffers(log):
    chunk = next(log.read(OffsetRange(topic="t", partition=0, start=0, end=3), fail_on_data_loss=True))
    made = arrow.to_record_batch(chunk.columns, "t", 0, chunk.timestamp_type, names=columns.USUAL)
    assert made.schema == arrow.SCHEMA
    assert made.column("value").buffers()[2].address == pa.py_buffer(chunk.columns.values.data).address
    made.validate(full=True)


def test_a_batch_without_records_has_no_rows(log):
    """Spark puts InputPartition(None) in the place of an empty list of partitions."""
    reader = batch(log, startingOffsets='{"t": {"0": 5, "1": 4}}', endingOffsets='{"t": {"0": 5, "1": 4}}')
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_an_ending_offset_past_the_end_is_an_error_at_once(log):
    past = '{"t": {"0": 500, "1": -1}}'
    with pytest.raises(OptionError, match=r"endingOffsets: t-0 ends at 10, and 500 was asked for; -1 means the end"):
        batch(log, endingOffsets=past).partitions()
    reader = batch(log, endingOffsets=past, failOnDataLoss="false")
    assert len(rows(reader, reader.partitions())) == 14
    with pytest.raises(OptionError, match=r"startingOffsets: t-0 ends at 10, before its start 500"):
        batch(log, startingOffsets='{"t": {"0": 500, "1": -2}}').partitions()


def test_a_time_means_the_end_in_a_partition_without_records(log):
    log.create("t2", 2, "id-2")
    log.append(("t2", 0), (1000, b"k", b"v", ()))
    assert from_checkpoint(stream(log, subscribe="t2", startingTimestamp="900").initialOffset()) == {
        ("t2", 0): 0,
        ("t2", 1): 0,
    }


def recreated(log):
    log.delete("t")
    log.create("t", 1, "id-2")
    log.append(("t", 0), *[(5000 + n, None, b"new", ()) for n in range(3)])


def test_a_topic_that_was_created_again_is_data_loss(log):
    reader = stream(log)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    recreated(log)
    with pytest.raises(DataLossError, match=r"t-1 was deleted|topic t was deleted and created again.*failOnDataLoss"):
        reader.latestOffset(start, ReadAllAvailable())


@pytest.mark.parametrize("records", [3, 30], ids=["shorter", "longer"])
def test_a_recreated_topic_is_read_from_its_beginning(log, monkeypatch, records):
    """Without failOnDataLoss the new topic is read from its beginning, whether it is shorter or longer."""
    monkeypatch.setattr(planning, "SETTLE_S", 0.0)
    reader = stream(log, failOnDataLoss="false")
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    log.delete("t")
    log.create("t", 1, "id-2")
    log.append(("t", 0), *[(5000 + n, None, b"new", ()) for n in range(records)])
    end = reader.latestOffset(start, ReadAllAvailable())
    assert offsets_of(rows(reader, reader.partitions(start, end))) == [(0, n) for n in range(records)]
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_a_planned_batch_of_a_topic_that_is_gone_is_data_loss(log):
    start, end = stream(log).initialOffset(), {"t": {"0": 10, "1": 4}, "t#id-1": {}}
    recreated(log)
    with pytest.raises(DataLossError, match="topic t was deleted and created again before its records"):
        stream(log).partitions(start, end)
    assert stream(log, failOnDataLoss="false").partitions(start, end) == []


def test_checkpoints_without_topic_ids_are_read(log):
    """Checkpoints of older versions, and of Spark's Kafka source, have no topic ids."""
    reader = stream(log)
    end = reader.latestOffset({"t": {"0": 9, "1": 4}}, ReadAllAvailable())
    assert offsets_of(rows(reader, reader.partitions({"t": {"0": 9, "1": 4}}, end))) == [(0, 9)]
    with pytest.raises(OptionError, match=r"checkpointLocation: .*not of the form.*give the query a check"):
        reader.latestOffset({"logOffset": 7}, ReadAllAvailable())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"subscribe": "u"},
            "t-0 is in the checkpoint, and the query does not name it; give a query of other topics a",
        ),
        ({"subscribe": None, "assign": '{"t": [1]}'}, "t-0 is in the checkpoint, and the query does not name it"),
        ({"subscribe": None, "subscribePattern": "u.*"}, "t-0 was deleted .*, or the query no longer names it"),
    ],
)
def test_a_checkpoint_of_other_topics_is_not_a_deletion(log, monkeypatch, changes, words):
    monkeypatch.setattr(planning, "SETTLE_S", 0.0)
    start = stream(log).initialOffset()
    log.create("u", 1, "id-u")
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"} | changes
    options = parse_options({key: value for key, value in given.items() if value is not None}, streaming=True)
    reader = source.MoldauStreamReader(options, connect=lambda client: log)
    with pytest.raises(DataLossError, match=words):
        reader.latestOffset(start, ReadAllAvailable())


def test_a_deleted_topic_ends_a_query_or_waits_for_it(log, monkeypatch):
    monkeypatch.setattr(planning, "SETTLE_S", 0.0)
    start = stream(log).initialOffset()
    log.delete("t")
    with pytest.raises(DataLossError, match="t-0 was deleted while the query read it; set failOn"):
        stream(log).latestOffset(start, ReadAllAvailable())
    reader = stream(log, failOnDataLoss="false")
    gone = reader.latestOffset(start, ReadAllAvailable())
    assert gone == {}
    log.create("t", 1, "id-2")
    log.append(("t", 0), (1, None, b"new", ()))
    end = reader.latestOffset(gone, ReadAllAvailable())
    assert offsets_of(rows(reader, reader.partitions(gone, end))) == [(0, 0)]


def test_a_misspelt_topic_is_refused_at_a_restart(log, monkeypatch):
    monkeypatch.setattr(planning, "SETTLE_S", 0.0)
    with pytest.raises(OptionError, match="subscribe: topic tt does not exist"):
        stream(log, subscribe="t,tt").latestOffset({"t": {"0": 0, "1": 0}}, ReadAllAvailable())


def test_few_records_wait_for_more_until_the_delay_is_over(log, monkeypatch):
    clock = types_module.SimpleNamespace(now=1000.0, monotonic=lambda: clock.now, sleep=None)
    monkeypatch.setattr(stream_module, "time", clock)
    reader = stream(log, minOffsetsPerTrigger="5", maxTriggerDelay="10s")
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(reader.initialOffset(), limit)
    assert from_checkpoint(first) == {("t", 0): 10, ("t", 1): 4}
    log.append(("t", 1), (1, b"k", b"v", ()))
    for _ in range(2):
        assert reader.latestOffset(first, limit) == first, "maxTriggerDelay counts from the last batch"
        clock.now += 5.5
    late = reader.latestOffset(first, limit)
    assert from_checkpoint(late)["t", 1] == 5
    log.append(("t", 0), *[(1, b"k", b"v", ())] * 5)
    assert from_checkpoint(reader.latestOffset(late, limit))["t", 0] == 15


def test_a_batch_may_be_limited_by_bytes(log):
    """With records of 100 bytes, 700 bytes are half of the 14 records."""
    reader = stream(log, maxBytesPerTrigger="700")
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert from_checkpoint(end) == {("t", 0): 5, ("t", 1): 2}
    tasks = stream(log, maxBytesPerPartition="300").partitions({"t": {"0": 0, "1": 0}}, {"t": {"0": 10, "1": 4}})
    assert len(tasks) == 4 + 2
    assert len(offsets_of(rows(reader, tasks))) == 14


def test_only_the_wanted_columns_are_made(log):
    reader = batch(log, columns="offset,value")
    found = rows(reader, reader.partitions())
    assert list(found[0]) == ["offset", "value"]
    made = source.DefaultSource({"kafka.bootstrap.servers": "h:1", "subscribe": "t", "columns": "value,offset"})
    assert made.schema() == "value binary, offset bigint"
    wanted = types.StructType([types.StructField("offset", types.LongType())])
    assert made.reader(wanted)._options.columns == ("offset",)
    wrong = types.StructType([types.StructField("value", types.StringType())])
    with pytest.raises(OptionError, match="schema: column value string is not one of the source's"):
        made.reader(wrong)


def filtered(log, *filters):
    reader = source.FilteringBatchReader(
        parse_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t"}, streaming=False), connect=lambda client: log
    )
    left = list(reader.pushFilters(list(filters)))
    return offsets_of(rows(reader, reader.partitions())), left


def test_filters_narrow_what_is_read(log):
    partition, offset, timestamp = ("partition",), ("offset",), ("timestamp",)
    assert filtered(log, EqualTo(partition, 1)) == ([(1, n) for n in range(4)], [])
    assert filtered(log, GreaterThanOrEqual(offset, 8), IsNotNull(offset)) == ([(0, 8), (0, 9)], [])
    assert filtered(log, LessThan(offset, 1), In(partition, (0, 7))) == ([(0, 0)], [])
    assert filtered(log, EqualTo(partition, 0), EqualTo(partition, 1)) == ([], [])
    some = In(offset, (2, 4))
    assert filtered(log, some) == ([(0, 2), (0, 3), (0, 4), (1, 2), (1, 3)], [some])
    since = GreaterThan(timestamp, datetime.datetime.fromtimestamp(2.002, datetime.UTC))
    assert filtered(log, since) == ([(1, 2), (1, 3)], [since])
    other = EqualTo(("value",), b"w1")
    assert len(filtered(log, other)[0]) == 14
    assert filtered(log, other)[1] == [other]


def test_errors_hide_the_traceback_in_sparks_workers_only(log, monkeypatch):
    monkeypatch.delenv(errors.HIDE_TRACEBACK, raising=False)
    wrong = source.DefaultSource({"kafka.bootstrap.servers": "h:1", "subscribe": "t", "bogus": "1"})
    with pytest.raises(OptionError):
        wrong.schema()
    assert errors.HIDE_TRACEBACK not in os.environ
    worker = types_module.SimpleNamespace(__spec__=types_module.SimpleNamespace(name="pyspark.daemon"))
    monkeypatch.setitem(errors.sys.modules, "__main__", worker)
    with pytest.raises(OptionError):
        wrong.schema()
    assert os.environ.pop(errors.HIDE_TRACEBACK) == "1"


CATALOG = {
    "new": {"option.subscribe": "t", "subscribe": "t", "provider": "moldau", "owner": "al"},
    "used": {},
    "used, at a place": {"path": "file:/data"},
}


@pytest.mark.parametrize("given", CATALOG.values(), ids=CATALOG)
def test_a_table_of_the_catalog_is_refused_with_what_works(given):
    """Spark gives its options to a Python source at its creation, with a prefix, and none when it is used."""
    made = source.DefaultSource(given)
    value = types.StructType([types.StructField("value", types.BinaryType())])
    stream = made.streamReader(value)
    for use in (made.schema, lambda: made.reader(value), lambda: made.writer(value, False), stream.initialOffset):
        with pytest.raises(OptionError, match=r"CREATE TEMPORARY VIEW \.\.\. USING moldau OPTIONS"):
            use()


def test_wrong_options_of_a_stream_come_at_its_first_use():
    """Spark hides an error that streamReader raises behind one of its own."""
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "endingOffsets": "latest"}
    made = source.DefaultSource(given)
    reader = made.streamReader(types.StructType([types.StructField("offset", types.LongType())]))
    for first in (reader.initialOffset, reader.getDefaultReadLimit, reader.prepareForTriggerAvailableNow):
        with pytest.raises(OptionError, match="endingOffsets is for batch queries"):
            first()
