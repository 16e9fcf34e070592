"""Values come out of sessions as they went in, also those that pandas takes for null or Python has no time for."""

import datetime
import math
import pickle
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import functions, types

from pyspark_moldau.jobs.queries.session_values import (
    DATE,
    DOUBLE,
    PLAIN,
    TIME,
    WHOLE,
    Form,
    Nested,
    carrier_of,
    read,
    summary_of,
)
from pyspark_moldau.jobs.sessions import TIME as EVENT_TIME
from pyspark_moldau.jobs.sessions import checked_text, sessions_of, with_checked_times
from pyspark_moldau.session.java import find_java
from support.spark.shared import patiently, shared_session

FAR_US = 1_767_225_600_000_000_000  # milliseconds of 2026 taken for microseconds, in the year 57971
FUNCTIONS = ("first", "last", "min", "max", "count", "list")


def with_spark(test):
    ignored = pytest.mark.filterwarnings("ignore")  # pyspark and py4j leave sockets to the garbage collector
    skipped = pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found")
    return pytest.mark.spark(pytest.mark.processes(skipped(ignored(test))))


@pytest.mark.parametrize(
    ("carrier", "texts", "expected"),
    [
        (DOUBLE, ["NaN", None, "1.5"], ["nan", "1.5", "1.5", "nan", 2, ["nan", None, "1.5"]]),
        (DOUBLE, ["1.5", "NaN"], ["1.5", "nan", "1.5", "nan", 2, ["1.5", "nan"]]),
        (WHOLE, ["9007199254740993", None], [2**53 + 1, None, 2**53 + 1, 2**53 + 1, 1, [2**53 + 1, None]]),
        (TIME, [str(FAR_US), "7"], [f"{FAR_US}", "7", "7", f"{FAR_US}", 2, [f"{FAR_US}", "7"]]),
        (DATE, [None, "20000000"], [None, "20000000", "20000000", "20000000", 1, [None, "20000000"]]),
    ],
)
def test_values_travel_as_what_they_are(carrier, texts, expected):
    values = [None if text is None else read(text, carrier) for text in texts]
    assert [summary_of(function, carrier, values) for function in FUNCTIONS] == expected


def test_a_sum_with_nan_is_nan():
    assert summary_of("sum", DOUBLE, [1.5, math.nan, None]) == "nan"
    assert summary_of("sum", DOUBLE, [None]) is None


def test_states_of_earlier_releases_are_read():
    """They hold times in UTC without a time zone, and dates."""
    times = [pd.Timestamp(1_500_000, unit="us"), None, 7]
    assert summary_of("list", TIME, times) == ["1500000", None, "7"]
    assert summary_of("min", DATE, [datetime.date(1970, 1, 3), 1]) == "1"


DOUBLES = types.ArrayType(types.DoubleType())
PARTS = types.StructType(
    [
        types.StructField("d", types.DoubleType()),
        types.StructField("t", types.TimestampType()),
        types.StructField("text", types.StringType()),
        types.StructField("all", DOUBLES),
        types.StructField("by", types.MapType(types.IntegerType(), types.FloatType())),
    ]
)
GIVEN = {
    "_0": "NaN",
    "_1": f"{FAR_US}",
    "_2": "NaN",
    "_3": np.array(["NaN", None, "1.5"], dtype=object),
    "_4": np.array([{"_0": "7", "_1": "NaN"}, {"_0": "8", "_1": None}], dtype=object),
}
SENT = {
    "_0": "nan",
    "_1": f"{FAR_US}",
    "_2": "NaN",
    "_3": ["nan", None, "1.5"],
    "_4": [{"_0": "7", "_1": "nan"}, {"_0": "8", "_1": None}],
}


@pytest.mark.parametrize(
    ("kind", "given", "sent"),
    [
        (DOUBLES, GIVEN["_3"], SENT["_3"]),
        (PARTS, GIVEN, SENT),
        (types.ArrayType(PARTS), np.array([None, GIVEN], dtype=object), [None, SENT]),
        (types.MapType(PARTS, DOUBLES), [{"_0": GIVEN, "_1": None}], [{"_0": SENT, "_1": None}]),
    ],
)
def test_parts_travel_as_what_they_are(kind, given, sent):
    """NaN inside of an array, a struct or a map became null, and a far time there ended the job."""
    carrier = carrier_of(kind)
    values = pickle.loads(pickle.dumps([None, read(given, carrier)]))
    found = [summary_of(function, carrier, values) for function in ("first", "last", "count", "list")]
    assert found == [None, sent, 1, [None, sent]]


def test_parts_that_nothing_changes_travel_as_they_are():
    kind = types.MapType(
        types.StringType(), types.StructType([types.StructField("s", types.ArrayType(types.BinaryType()))])
    )
    assert carrier_of(kind) == PLAIN
    assert carrier_of(types.ArrayType(types.DateType())) == Nested(Form.ARRAY, (DATE,))


def test_parts_in_states_of_earlier_releases_are_read():
    """They hold what pandas made: arrays of numpy with NaN for null, dicts, and times of the session's time zone."""
    former = {
        "d": math.nan,
        "t": pd.Timestamp("1970-01-01 02:00:01.5"),
        "text": None,
        "all": np.array([1.5, math.nan]),
        "by": {7: np.float32(0.5), 8: None},
    }
    sent = {"_0": "nan", "_1": "3601500000", "_2": None, "_3": ["1.5", None], "_4": [{"_0": "7", "_1": "0.5"}]}
    sent["_4"].append({"_0": "8", "_1": None})
    assert summary_of("last", carrier_of(PARTS), [None, former], "Europe/Zurich") == sent
    days, whole = types.ArrayType(types.DateType()), types.ArrayType(types.LongType())
    times = np.array([pd.Timestamp(7, unit="us"), pd.NaT, None], dtype=object)
    assert summary_of("first", carrier_of(types.ArrayType(types.TimestampType())), [times]) == ["7", None, None]
    assert summary_of("first", carrier_of(days), [np.array([datetime.date(1970, 1, 3), None])]) == ["2", None]
    assert summary_of("list", carrier_of(whole), [np.array([1.0, math.nan]), None]) == [["1", None], None]
    squares = types.ArrayType(whole)
    assert summary_of("first", carrier_of(squares), [np.array([[1, 2], [3, 4]])]) == [["1", "2"], ["3", "4"]]


@with_spark
def test_spark_gets_each_value_back(tmp_path):
    spark = shared_session()
    far = f"timestamp_micros({FAR_US}L)"
    records = spark.sql(
        "select 'flights' as topic, 0 as partition, id as offset, "
        "timestamp_seconds(3600 + id * id * 100) as timestamp, if(id < 2, 'N1', 'N2') as key, "
        "if(id = 0, double('NaN'), 0.5D) as d, "
        f"if(id = 0, float('NaN'), float('0.1')) as f, if(id = 0, {far}, null) as t, "
        "if(id = 0, date_from_unix_date(20000000), null) as day, "
        "if(id = 0, null, array(double('NaN'), null, 0.5D)) as ds, "
        "array(if(id = 0, 9007199254740993, null), id) as ns, "
        f"if(id = 0, named_struct('a', {far}, 'x.y', float('NaN'), 'z', array(map(date'1970-01-02', id))), null) as s, "
        f"map(named_struct('d', if(id = 0, double('NaN'), 0.5D)), if(id = 0, null, {far})) as m "
        "from range(0, 3, 1, 1)"
    )
    records.write.parquet(str(tmp_path / "records"))
    columns = {
        "doubles": ("list", "d"),
        "double": ("max", "d"),
        "floats": ("list", "f"),
        "float": ("last", "f"),
        "times": ("list", "t"),
        "time": ("first", "t"),
        "days": ("list", "day"),
        "a day": ("first", "day"),
        "count": ("count", "d"),
        "wholes": ("list", "nullif(offset, 0)"),
        "arrays": ("list", "ds"),
        "array": ("first", "ns"),
        "struct": ("first", "s"),
        "structs": ("list", "s"),
        "maps": ("list", "m"),
        "alike": ("count", "if(offset = 0, named_struct('a', t, 'A', d), null)"),
    }
    job = SimpleNamespace(
        where="",
        keys={"plane": "key"},
        event_time="timestamp",
        columns=columns,
        watermark="1 second",
        gap_ms=150_000,
        events_max=10,
    )

    def run():
        stream = spark.readStream.schema(records.schema).parquet(str(tmp_path / "records"))
        writer = sessions_of(stream, job).writeStream.option("checkpointLocation", str(tmp_path / "state"))
        query = writer.format("parquet").option("path", str(tmp_path / "sessions")).trigger(availableNow=True).start()
        query.awaitTermination()

    patiently(run)
    found = spark.read.parquet(str(tmp_path / "sessions"))
    assert [field.dataType.simpleString() for field in found.schema.fields] == [
        "string",
        "timestamp",
        "timestamp",
        "array<double>",
        "double",
        "array<float>",
        "float",
        "array<timestamp>",
        "timestamp",
        "array<date>",
        "date",
        "bigint",
        "array<bigint>",
        "array<array<double>>",
        "array<bigint>",
        "struct<a:timestamp,x.y:float,z:array<map<date,bigint>>>",
        "array<struct<a:timestamp,x.y:float,z:array<map<date,bigint>>>>",
        "array<map<struct<d:double>,timestamp>>",
        "bigint",
    ]
    texts = found.selectExpr(*(f"cast(`{name}` as string)" for name in found.columns)).collect()
    assert [tuple(row) for row in texts] == [
        (
            "N1",
            "1970-01-01 01:00:00",
            "1970-01-01 01:01:40",
            "[NaN, 0.5]",
            "NaN",
            "[NaN, 0.1]",
            "0.1",
            "[+57971-02-25 00:00:00, null]",
            "+57971-02-25 00:00:00",
            "[+56728-02-22, null]",
            "+56728-02-22",
            "2",
            "[null, 1]",
            "[null, [NaN, null, 0.5]]",
            "[9007199254740993, 0]",
            "{+57971-02-25 00:00:00, NaN, [{1970-01-02 -> 0}]}",
            "[{+57971-02-25 00:00:00, NaN, [{1970-01-02 -> 0}]}, null]",
            "[{{NaN} -> null}, {{0.5} -> +57971-02-25 00:00:00}]",
            "1",
        )
    ]


@with_spark
def test_an_event_time_beyond_those_of_pandas_is_named():
    times = shared_session().sql(
        f"select timestamp'2262-04-10 23:59:59.999999' as {EVENT_TIME}, 0 as n "
        f"union all select timestamp'2262-04-11 00:00:00', 1"
    )
    assert with_checked_times(times.where("n = 0")).count() == 1
    with pytest.raises(Exception, match=r"event time of a session is 2262-04-11 or later.*\[sessions\] where"):
        with_checked_times(times).collect()


@with_spark
def test_a_text_that_is_no_utf8_is_named():
    """Keys of Kafka are often numbers of eight bytes."""
    keys = shared_session().sql("select x'00000000000000FF' as key, 0 as n union all select x'6162', 1")
    texts = keys.select("n", checked_text(functions.col("key").cast("string")).alias("text"))
    assert [tuple(row) for row in texts.where("n = 1").collect()] == [(1, "ab")]
    with pytest.raises(Exception, match=r"a key or a text of a session is no UTF-8.*hex\(key\)"):
        texts.collect()
