"""Goal: each query of a job reads and writes what the job's file says, and goes on from a checkpoint of its own.

Method: sessions, readers and writers that note their calls; batches of Arrow for what runs in tasks.
"""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import types

from pyspark_moldau.jobs.config.cluster import ClusterKeys
from pyspark_moldau.jobs.config.job_config import PayloadConfig, SinkConfig, SourceConfig
from pyspark_moldau.jobs.errors import JobConfigError
from pyspark_moldau.jobs.queries import expressions, reading, writing
from pyspark_moldau.jobs.tables import QUERY_ID, TableWriter
from support.spark.memory_log import MemoryLog

JSON_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
JSON = PayloadConfig(format="json", schema=json.dumps(JSON_SCHEMA).encode(), dead_letter_topic="dead")
RAW = PayloadConfig()
KEYS = {"bootstrap.servers": "b:1", "acks": "all", "fetch.min.bytes": "1"}
SOURCE_KEYS = {"kafka.bootstrap.servers": "b:1", "kafka.fetch.min.bytes": "1"}
SINK_KEYS = {"kafka.bootstrap.servers": "b:1", "kafka.acks": "all"}


def config(**more):
    return SimpleNamespace(
        cluster=ClusterKeys(servers="b:1", keys=KEYS | more), checkpoint=Path("/state"), trigger="available-now"
    )


def source(*topics, payload=RAW, starting="earliest", **options):
    return SourceConfig(topics=topics, starting_offsets=starting, options=options, payload=payload)


def sink(**given):
    return SinkConfig(**({"path": None, "format": "", "partition_by": (), "topic": "", "key": "", "value": ""} | given))


class Noted:
    """Stands in for sessions, rows, readers and writers: each call and attribute goes into one list."""

    def __init__(self, calls=None, **known):
        self.calls = [] if calls is None else calls
        self.known = known

    def __getattr__(self, name):
        if name in self.known:
            return self.known[name]
        return Step(self, name)


class Step(Noted):
    def __init__(self, owner, name):
        super().__init__(owner.calls, **owner.known)
        self.name = name

    def __call__(self, *given, **named):
        self.calls.append((self.name, *given, *([named] if named else [])))
        return Noted(self.calls, **self.known)


@pytest.fixture
def log(monkeypatch):
    found = MemoryLog([("a", 0), ("a", 1), ("b", 0)])
    monkeypatch.setattr(reading, "connect_cluster", lambda client: found)
    return found


@pytest.mark.parametrize("payload", [RAW, JSON], ids=["raw", "json"])
def test_a_stream_reads_what_its_source_says(monkeypatch, payload):
    monkeypatch.setattr(reading, "_decoded", lambda frame, payload, **_: frame)
    session = Noted()
    given = source("a", "b", payload=payload, maxOffsetsPerTrigger="9")
    assert isinstance(reading.read_stream(session, config(), given), Noted)
    options = SOURCE_KEYS | {
        "maxOffsetsPerTrigger": "9",
        "subscribe": "a,b",
        "columns": "key,value,topic,partition,offset,timestamp",
        "startingOffsets": "earliest",
    }
    filtered = [("where", "_error is null"), ("select", *reading.COLUMNS)] if payload is JSON else []
    assert session.calls == [("format", "moldau"), ("options", options), ("load",), *filtered]


@pytest.mark.parametrize(("payload", "starting"), [(RAW, "latest"), (RAW, "earliest"), (JSON, "earliest")])
def test_only_two_queries_must_agree_on_a_start(monkeypatch, payload, starting):
    """One query alone, and two that read all, need no look at the cluster and no note."""
    monkeypatch.setattr(reading, "_decoded", lambda frame, payload, **_: frame)
    monkeypatch.setattr(reading, "connect_cluster", None)
    session = Noted()
    reading.read_stream(session, config(), source("a", payload=payload, starting=starting))
    assert session.calls[1][1]["startingOffsets"] == starting


@pytest.mark.parametrize("starts", [None, {}, {("a", 1): 7, ("c", 0): 5}], ids=str)
def test_a_batch_begins_at_its_starts(log, starts):
    """A partition that came since begins with its first record; a limit of micro-batches is none of a batch."""
    session = Noted()
    given = source("a", "b", starting="latest", maxOffsetsPerTrigger="9", maxRecordsPerPartition="3")
    reading.read_batch(session, config(), given, starts)
    options = SOURCE_KEYS | {"maxRecordsPerPartition": "3", "subscribe": "a,b", "columns": ",".join(reading.COLUMNS)}
    if starts:
        options["startingOffsets"] = json.dumps({"a": {"0": -2, "1": 7}, "b": {"0": -2}})
    assert session.calls == [("format", "moldau"), ("options", options), ("load",)]


def test_topic_ids_are_those_of_the_sources_topics(log):
    assert reading.topic_ids_of(config(), source("a", "gone")) == {"a": "id-1"}


@pytest.mark.parametrize("payload", [RAW, JSON], ids=["raw", "json"])
def test_only_decoded_values_have_dead_letters(monkeypatch, payload):
    seen = []
    monkeypatch.setattr(reading, "_decoded", lambda frame, payload, letter_bytes_max: seen.append(letter_bytes_max))
    monkeypatch.setattr(reading, "_letter_rows", lambda decoded: "letters")
    found = reading.read_dead_letters(Noted(), config(), source("a", payload=payload))
    assert (found, seen) == ((None, []) if payload is RAW else ("letters", [1_048_576 - reading.LETTER_ROOM]))


@pytest.mark.parametrize(
    ("keys", "size"),
    [
        ({}, 1_048_576),
        ({"max.request.size": "10000"}, 10_000),
        ({"max.request.size": "20000000", "buffer.memory": "9000000"}, 9_000_000),
        ({"max.request.size": "4096"}, 4096),
        ({"max.request.size": "100"}, 4096),
    ],
)
def test_a_dead_letter_leaves_room_for_its_headers(keys, size):
    assert reading._letter_bytes_max(config(**keys)) == size - reading.LETTER_ROOM


def test_a_value_has_the_type_of_its_schema():
    assert reading.value_type(RAW) == types.BinaryType()
    assert reading.value_type(JSON) == types.StructType([types.StructField("n", types.LongType())])
    with pytest.raises(JobConfigError, match=r"^\[source\.payload\] schema: the schema file is no JSON"):
        reading.value_type(PayloadConfig(format="json", schema=b"{"))


def test_decoded_records_have_the_columns_of_tasks():
    """Spark takes the columns of a batch by their names and their order."""
    frame = [types.StructField(name, types.BinaryType()) for name in ("key", "value")]
    frame.append(types.StructField("offset", types.LongType()))
    batch = pa.RecordBatch.from_pydict({"key": [b"k"], "value": [b"{}"], "offset": [5]})
    for letter_bytes_max in (None, 0, 100):
        rows = Noted(schema=types.StructType(frame))
        reading._decoded(rows, JSON, letter_bytes_max=letter_bytes_max)
        ((name, function, schema),) = rows.calls
        assert name == "mapInArrow"
        (found,) = function([batch])
        assert found.schema.names == schema.names
        assert schema["value"].dataType == reading.value_type(JSON)
        assert (schema["key"].dataType, schema["offset"].dataType) == (types.BinaryType(), types.LongType())
        assert {field.name for field in schema.fields} - {"key", "value", "offset"} == {
            *(reading.ERROR, reading.RAW),
            *(() if letter_bytes_max is None else (reading.VALUE_BYTES, reading.KEY_BYTES)),
        }
    raw = Noted()
    assert reading._decoded(raw, RAW) is raw


VALUES = {b'{"n": 7}': {"n": 7}, b"{}": {"n": None}, None: None, b"{": "not JSON", b'{"n": "x"}': "must be integer"}


@pytest.mark.parametrize("letter_bytes_max", [None, 100])
def test_only_a_value_that_does_not_fit_is_a_letter(letter_bytes_max):
    """Wherever it stands in its batch, and whatever stands beside it."""
    for values in itertools.chain(itertools.product(VALUES, repeat=2), [(), tuple(VALUES)]):
        keys = [b"%d" % number for number in range(len(values))]
        batch = pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
        found = list(reading._decode_batches(JSON, letter_bytes_max, iter([batch, batch])))
        assert len(found) == 2
        for each in found:
            rows = each.to_pylist()
            assert len(rows) == len(values)
            for key, value, row in zip(keys, values, rows, strict=True):
                is_wrong = isinstance(VALUES[value], str)
                assert row["key"] == key
                assert row["value"] == (None if is_wrong else VALUES[value])
                assert row[reading.RAW] == (value if is_wrong else None)
                assert (VALUES[value] in row[reading.ERROR]) if is_wrong else row[reading.ERROR] is None


ROWS = ("a", "b", "n")


@pytest.fixture
def starting(monkeypatch):
    """Replaces the start of a query by its arguments, and the rows of dead letters by the topics of their source."""
    monkeypatch.setattr(writing, "started", lambda *given: given)
    monkeypatch.setattr(
        writing,
        "read_dead_letters",
        lambda session, config, source: None if source.payload.format == "raw" else f"letters of {source.topics}",
    )
    monkeypatch.setattr(writing, "topic_writer", lambda rows, config, topic: Noted(known=(rows, topic)))


SOURCES = {
    "raw": {"source": source("a")},
    "json": {"source": source("a", payload=JSON)},
    "left": {"left": source("a", payload=JSON), "right": source("b")},
    "both": {"left": source("a", payload=JSON), "right": source("b", payload=JSON)},
}
QUERIES = {
    "raw": {},
    "json": {"dead-letters": ("a",)},
    "left": {"dead-letters-left": ("a",)},
    "both": {"dead-letters-left": ("a",), "dead-letters-right": ("b",)},
}


@pytest.mark.parametrize("sources", SOURCES)
@pytest.mark.parametrize("target", ["table", "topic", "changes"])
def test_each_query_has_a_name_and_checkpoint_of_its_own(starting, monkeypatch, sources, target):
    """They would take each other's records for read otherwise."""
    monkeypatch.setattr(writing, "to_records", lambda rows, sink: rows)
    monkeypatch.setattr(writing, "check_fields", lambda rows: None)
    rows = Noted(columns=ROWS)
    given = sink(path=Path("/t"), format="delta", partition_by=("a",)) if target == "table" else sink(topic="out")
    mode = "update" if target == "changes" else "append"
    conf = config()
    starts = writing.starts_of(None, conf, SOURCES[sources], rows, given, mode)
    assert list(starts) == ["main", *QUERIES[sources]]
    for name, start in starts.items():
        writer, *rest = start()
        assert rest == [name, conf, Path("/state") / name]
        if name != "main":
            assert writer.known["known"] == (f"letters of {QUERIES[sources][name]}", "dead")
        elif target == "topic":
            assert writer.known["known"] == (rows, "out")
            assert writer.calls == [("outputMode", "append")]
        else:
            (_, batches), mode_call = rows.calls
            assert mode_call == ("outputMode", mode)
            if target == "table":
                assert isinstance(batches, TableWriter)
                assert vars(batches) == {
                    "_path": Path("/t"),
                    "_format": "delta",
                    "_partition_by": ["a"],
                    "_checkpoint": Path("/state/main"),
                    "_has_newest": False,
                }
            else:
                options = SINK_KEYS | {"topic": "out", "deliveryGuarantee": "exactly-once"}
                options |= {"checkpointLocation": "/state/main"}
                assert isinstance(batches, writing.TopicWriter)
                assert vars(batches) == {"_options": options}


@pytest.mark.parametrize("batch", [0, 7])
def test_a_batch_of_changes_is_a_version_of_its_query(batch):
    """So that a batch which is given again is not written again."""
    context = SimpleNamespace(getLocalProperty=lambda name: "the id" if name == QUERY_ID else None)
    rows = Noted(sparkSession=SimpleNamespace(sparkContext=context))
    writing.TopicWriter(SINK_KEYS, "out", Path("state"))(rows, batch)
    options = {"topic": "out", "deliveryGuarantee": "exactly-once", "txnAppId": "the id", "txnVersion": str(batch)}
    options |= {"checkpointLocation": "state"}
    assert rows.calls == [("format", "moldau"), ("options", SINK_KEYS | options), ("mode", "append"), ("save",)]


@pytest.mark.parametrize("key", ["", "a"])
@pytest.mark.parametrize("value", ["", "b"])
def test_records_of_a_topic_have_key_and_value(key, value):
    rows = Noted()
    writing.to_records(rows, sink(topic="out", key=key, value=value))
    wanted = (f"cast({key or 'null'} as binary) as key", f"cast({value or 'to_json(struct(*))'} as binary) as value")
    assert rows.calls == [("selectExpr", *wanted)]


@pytest.mark.parametrize("error", [AnalysisException, ParseException])
def test_a_wrong_expression_is_named_with_its_place(error):
    def refused(*_):
        raise error("[UNRESOLVED] no column x\nmore")

    with pytest.raises(JobConfigError, match=r"^\[sink\] key or value: \[UNRESOLVED\] no column x$"):
        writing.to_records(SimpleNamespace(selectExpr=refused), sink(topic="out", key="x"))
    for text, line in (("\n  \n first \nsecond", "first"), ("", "wrong expression"), ("  \n", "wrong expression")):
        message = rf"^\[join\] an expression is wrong: {line}$"
        with pytest.raises(JobConfigError, match=message), expressions.checked_sql("[join]"):
            raise error(text)
    with pytest.raises(ValueError, match="another"), expressions.checked_sql("[join]"):
        raise ValueError("another")


@pytest.mark.parametrize(
    ("columns", "by", "table_format", "message"),
    [
        (ROWS, ("a", "x"), "parquet", r"^\[sink\] partition_by: no column x; there are a, b, n$"),
        (ROWS, ("a", "b", "n"), "parquet", r"^\[sink\] partition_by: names every column; leave one"),
        (("a", "A"), ("a",), "delta", r"^\[sink\] table: column A and a differ in case only"),
        (("a", "BATCH"), (), "parquet", r"^\[sink\] table: column BATCH: a Parquet table has a column batch"),
        (("a", "batch"), (), "delta", None),
        (ROWS, (), "parquet", None),
        (ROWS, ("a", "b"), "parquet", None),
    ],
)
def test_a_table_has_the_columns_of_its_partitions(columns, by, table_format, message):
    rows, given = SimpleNamespace(columns=columns), sink(path=Path("/t"), format=table_format, partition_by=by)
    if message is None:
        writing.check_partitions(rows, given)
        return
    with pytest.raises(JobConfigError, match=message):
        writing.check_partitions(rows, given)


def struct(*names):
    return types.StructType([types.StructField(name, types.StringType()) for name in names])


@pytest.mark.parametrize(
    "around",
    [
        lambda kind: kind,
        types.ArrayType,
        lambda kind: types.MapType(types.StringType(), kind),
        lambda kind: types.MapType(kind, types.StringType()),
        lambda kind: struct("a").add("b", kind),
    ],
)
def test_fields_that_spark_takes_for_one_are_refused(around):
    """A query wrote a Parquet table with both, and no further query could read it."""

    def check(*names, **settings):
        conf = {name.replace("_", "."): value for name, value in settings.items()}
        rows = SimpleNamespace(
            schema=struct("key").add("value", around(struct(*names))), sparkSession=SimpleNamespace(conf=conf)
        )
        writing.check_fields(rows)

    check("id", "i")
    check("id", "Id", spark_sql_caseSensitive="true")
    with pytest.raises(JobConfigError, match=r"^\[sink\] table: value.*\.id and value.*\.Id differ in case only"):
        check("id", "Id", spark_sql_caseSensitive="false")


def test_names_are_quoted_for_sql():
    assert expressions.aliased(["a", "x.y", "a`b", "``"]) == ["`a`", "`x.y`", "`a``b`", "``````"]


def test_names_of_all_tables_of_a_job_differ():
    section = SimpleNamespace(error=lambda key, text: JobConfigError(f"{key}: {text}"))
    expressions.check_names(section, ("w",), keys={"a": 1, "b": 1}, columns={"c": 1})
    for tables, message in (
        ({"keys": {"W": 1}}, "^keys.W: the job itself has a column of this name"),
        ({"keys": {"a": 1, "A": 1}}, "^keys.A: keys.a has"),
        ({"keys": {"a": 1}, "columns": {"b": 1, "A": 1}}, "^columns.A: keys.a has"),
    ):
        with pytest.raises(JobConfigError, match=message):
            expressions.check_names(section, ("w",), **tables)
