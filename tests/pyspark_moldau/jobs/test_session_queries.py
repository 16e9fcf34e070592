"""Goal: sessions give each value back as it went in, and say which values they cannot take. Method: a local Spark."""

from types import SimpleNamespace

import pytest
from pyspark.sql import functions

from pyspark_moldau.jobs.errors import JobConfigError
from pyspark_moldau.jobs.sessions import TIME as EVENT_TIME
from pyspark_moldau.jobs.sessions import checked_text, keys_of, sessions_of, with_checked_times
from pyspark_moldau.session.java import find_java
from support.spark.shared import patiently, shared_session

FAR_US = 1_767_225_600_000_000_000  # milliseconds of 2026 taken for microseconds, in the year 57971
pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found"),
    pytest.mark.filterwarnings("ignore"),  # pyspark and py4j leave sockets to the garbage collector
]


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
        "if(id = 0, date'2026-03-02' - date'2026-03-01', null) as stay, "
        "if(id = 0, named_struct('i', interval '2-3' year to month, 'd', interval '-1 02' day to hour), null) as age, "
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
        "stays": ("list", "stay"),
        "stay": ("max", "stay"),
        "age": ("first", "age"),
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
        keys={"a.plane": "key"},
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
        "array<interval day>",
        "interval day",
        "struct<i:interval year to month,d:interval day to hour>",
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
            "[INTERVAL '1' DAY, null]",
            "INTERVAL '1' DAY",
            "{INTERVAL '2-3' YEAR TO MONTH, INTERVAL '-1 02' DAY TO HOUR}",
            "[null, 1]",
            "[null, [NaN, null, 0.5]]",
            "[9007199254740993, 0]",
            "{+57971-02-25 00:00:00, NaN, [{1970-01-02 -> 0}]}",
            "[{+57971-02-25 00:00:00, NaN, [{1970-01-02 -> 0}]}, null]",
            "[{{NaN} -> null}, {{0.5} -> +57971-02-25 00:00:00}]",
            "1",
        )
    ]


def test_an_event_time_beyond_those_of_pandas_is_named():
    times = shared_session().sql(
        f"select timestamp'2262-04-10 23:59:59.999999' as {EVENT_TIME}, 0 as n "
        f"union all select timestamp'2262-04-11 00:00:00', 1"
    )
    assert with_checked_times(times.where("n = 0")).count() == 1
    with pytest.raises(Exception, match=r"event time of a session is 2262-04-11 or later.*\[sessions\] where"):
        with_checked_times(times).collect()


def test_a_text_that_is_no_utf8_is_named():
    """Keys of Kafka are often numbers of eight bytes."""
    keys = shared_session().sql("select x'00000000000000FF' as key, 0 as n union all select x'6162', 1")
    texts = keys.select("n", checked_text(functions.col("key").cast("string")).alias("text"))
    assert [tuple(row) for row in texts.where("n = 1").collect()] == [(1, "ab")]
    with pytest.raises(Exception, match=r"a key or a text of a session is no UTF-8.*hex\(key\)"):
        texts.collect()


def test_keys_have_the_same_text_if_they_are_equal():
    """New York sets its clocks back at 6:00 in UTC; Spark takes 0.0 and -0.0 for equal."""
    spark = shared_session()
    former = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        times = (
            "timestamp'2026-11-01 05:30:00Z', timestamp'2026-11-01 06:30:00Z', timestamp'2026-11-01 07:30:00Z', null"
        )
        values = spark.sql(
            f"select inline(arrays_zip(array({times}), array(0D, -0D, double('NaN'), 0.1D), "
            "array(float('-0'), float('0'), float('0.1'), null), array(1, 2, 3, null))) as (t, d, f, n)"
        )
        keys = {name: name for name in values.columns}
        found = values.select(*keys_of(values, keys, values.columns)).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", former)
    assert [tuple(row) for row in found] == [
        ("2026-11-01 01:30:00", "0.0", "0.0", "1"),
        ("2026-11-01 01:30:00-05:00", "0.0", "0.0", "2"),
        ("2026-11-01 02:30:00", "NaN", "0.1", "3"),
        (None, "0.1", None, None),
    ]


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("array('a, b')", "array<string>"),  # its text is that of array('a', 'b')
        ("struct('a' as x, 1 as y)", "struct<x:string,y:int>"),
        ("map('a', 'b')", "map<string,string>"),
    ],
)
def test_a_key_whose_parts_run_into_each_other_is_refused(key, kind):
    with pytest.raises(JobConfigError) as refused:
        keys_of(shared_session().range(1), {"plane": key}, ["k"])
    assert str(refused.value).startswith(f"[sessions] keys: plane is {kind}, and keys are kept as texts")
    assert str(refused.value).endswith("write to_json(...) around it, or name each part as a key")
