"""Goal: every job gives the rows that plain pandas computes from the same records, also over a crash in the middle.

Method: the local Spark session that all Spark tests share, and one broker. The records are flights as JSON, with
poison among them. A crash is an error after a micro-batch is written and before Spark notes it, which makes the next
run replay that batch.
"""

import datetime
import json
from contextlib import contextmanager

import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pytest
from pyspark.sql import functions
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from moldau_cli.main import main
from pyspark_moldau.jobs import tables, views
from pyspark_moldau.jobs.aggregate import aggregate_job, run_aggregate
from pyspark_moldau.jobs.config.job_config import PayloadConfig
from pyspark_moldau.jobs.errors import JobError
from pyspark_moldau.jobs.export import export_job, run_export
from pyspark_moldau.jobs.join import join_job, run_join
from pyspark_moldau.jobs.load import load_job, loaded_rows, run_load
from pyspark_moldau.jobs.queries import reading, writing
from pyspark_moldau.jobs.sessions import run_sessions, sessions_job
from pyspark_moldau.session.java import find_java
from support.interop.clients import ConfluentClient, create_topic
from support.spark.shared import patiently, shared_broker, shared_session

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found"),
    pytest.mark.filterwarnings("ignore"),  # pyspark and py4j leave sockets to the garbage collector
]

WAIT_S = 300
SCHEMA = {
    "type": "object",
    "required": ["origin", "scheduled"],
    "properties": {
        "origin": {"type": "string"},
        "carrier": {"type": "string"},
        "plane": {"type": "string"},
        "delay": {"type": ["integer", "null"]},
        "scheduled": {"type": "string", "format": "date-time"},
    },
}
POISON = [b"", b"{", b'{"origin":1}', b'{"origin":"EWR","scheduled":"2013-01-01T00:00:00Z","delay":1e30}']
START = datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC)


def flights(first, count):
    """Flights in the order of their departure, ten minutes apart."""
    for n in range(first, first + count):
        yield {
            "origin": ("EWR", "JFK", "LGA")[n % 3],
            "carrier": ("UA", "B6")[n % 2],
            "plane": f"N{n % 5}",
            "delay": None if n % 11 == 0 else (n * 7) % 50,
            "scheduled": (START + datetime.timedelta(minutes=10 * n)).isoformat(),
        }


def records_of(rows):
    return [(f"{row['origin']}-{row['carrier']}".encode(), json.dumps(row).encode(), []) for row in rows]


def field(name, kind="string", side=""):
    """Returns SQL for a field of a raw value."""
    return f"cast(get_json_object(cast({side}value as string), '$.{name}') as {kind})"


def frame_of(rows):
    frame = pd.DataFrame(list(rows))
    frame["scheduled"] = pd.to_datetime(frame["scheduled"])
    return frame


@pytest.fixture(scope="module")
def brokers():
    return shared_broker()


@pytest.fixture(scope="module")
def spark():
    return shared_session()


class Job:
    """Writes a job's file, with the sections that all share."""

    def __init__(self, brokers, folder, topic):
        self.folder, self.topic = folder, topic
        (folder / "flight.json").write_text(json.dumps(SCHEMA))
        self._shared = f'[cluster]\n"bootstrap.servers" = "{brokers.bootstrap}"\n'

    def source(self, name="source", topic=None, payload=False, extra=""):
        topic = topic or self.topic
        text = f'[{name}]\ntopics = ["{topic}"]\n{extra}\n'
        if payload:
            text += f'[{name}.payload]\nformat = "json"\nschema = "flight.json"\ndead_letter_topic = "{topic}-dead"\n'
        return text

    def write(self, name, text):
        path = self.folder / f"{name}.toml"
        path.write_text(f'{self._shared}[run]\ncheckpoint = "state-{name}"\n{text}')
        return path


def crash_once(monkeypatch, batch):
    """Makes the writer of tables fail after it has written a batch."""
    write, crashed = tables.TableWriter.write, []

    def failing(self, rows, number, query):
        write(self, rows, number, query)
        if number == batch and not crashed:
            crashed.append(number)
            raise OSError("planned crash")

    monkeypatch.setattr(tables.TableWriter, "write", failing)
    return crashed


def consumed(brokers, topic, partitions, count):
    return ConfluentClient(brokers.bootstrap).consume(topic, partitions, count)


@contextmanager
def time_zone(session, name):
    """Gives the session another time zone than UTC, which jobs have by default."""
    session.conf.set("spark.sql.session.timeZone", name)
    try:
        yield
    finally:
        session.conf.set("spark.sql.session.timeZone", "UTC")


def test_the_date_of_a_loaded_row_is_in_utc(spark):
    names = "'t' as topic, 0 as partition, 0 as offset, null as key, null as value"
    with time_zone(spark, "America/New_York"):
        rows = spark.sql(
            f"select {names}, timestamp_millis(id * 1000) as timestamp from values (-1), (0), (86399) as t(id)"
        )
        days = [str(row["date"]) for row in loaded_rows(rows).orderBy("timestamp").collect()]
    assert days == ["1969-12-31", "1970-01-01", "1970-01-01"]


def test_a_load_has_each_record_once(spark, brokers, tmp_path, monkeypatch):
    """A crash after a written batch, a second run, compaction: the table has the good records, the topic the others."""
    create_topic(brokers.bootstrap, "load", 2, 1)
    create_topic(brokers.bootstrap, "load-dead", 1, 1)
    records = records_of(flights(0, 120))
    records[50:50] = [(b"bad", value, []) for value in POISON]
    client = ConfluentClient(brokers.bootstrap)
    placed = client.produce("load", records)
    job = Job(brokers, tmp_path, "load")
    text = job.source(extra="max_offsets_per_trigger = 70\nmax_records_per_task = 25", payload=True)
    path = job.write("load", text + '[sink]\ntable = "table"\n[load]\ncompact_files = 2\n')
    crashed = crash_once(monkeypatch, 1)
    with pytest.raises(JobError, match="planned crash"):
        patiently(run_load, load_job(path), spark, WAIT_S)
    assert crashed == [1]
    placed += client.produce("load", records_of(flights(120, 30)))
    before, after = patiently(run_load, load_job(path), spark, WAIT_S).files
    assert after < before
    found = tables.read_table(spark, tmp_path / "table").collect()
    assert {row["topic"] for row in found} == {"load"}
    wanted = sorted((p, o, json.loads(v)) for p, o, v in placed if v not in POISON)
    assert sorted((row["partition"], row["offset"], plain(row["value"])) for row in found) == wanted
    dead = consumed(brokers, "load-dead", 1, len(POISON))
    assert sorted(value for _, _, _, value, _ in dead) == sorted(POISON)
    places = {(p, o): v for p, o, v in placed}
    for _, _, key, value, headers in dead:
        headers_of_error = {name.removeprefix("__connect.errors."): text.decode() for name, text in headers}
        assert (key, headers_of_error["topic"]) == (b"bad", "load")
        assert places[int(headers_of_error["partition"]), int(headers_of_error["offset"])] == value
        assert headers_of_error["exception.message"]


def test_a_dead_letter_that_is_too_long_is_cut(spark):
    """Two more headers say how long key and value are; that of a whole record has neither."""
    payload = PayloadConfig(format="json", schema=json.dumps(SCHEMA).encode())
    names = "'t' as topic, 0 as partition, timestamp_millis(1) as timestamp"
    frame = spark.sql(
        f"select cast(k as binary) as key, cast(v as binary) as value, {names}, o as offset "
        "from values ('k', repeat('x', 100), 0L), (repeat('k', 101), 'short', 1L), ('k', 'whole', 2L) as t(k, v, o)"
    ).select(*reading.COLUMNS)
    rows = reading._letter_rows(reading._decoded(frame, payload, letter_bytes_max=100)).collect()
    found = {}
    for row in rows:
        headers = {header["key"].rpartition("errors.")[2]: bytes(header["value"]) for header in row["headers"]}
        assert headers.pop("exception.message").startswith(b"not JSON")
        found[int(headers.pop("offset"))] = row["key"], bytes(row["value"]), headers
    place = {"topic": b"t", "partition": b"0"}
    assert found == {
        0: (b"k", b"x" * 99, place | {"value.bytes": b"100"}),
        1: (None, b"short", place | {"key.bytes": b"101"}),
        2: (b"k", b"whole", place),
    }


def plain(value):
    return value.asDict() | {"scheduled": value["scheduled"].astimezone(datetime.UTC).isoformat()}


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_table_has_replayed_batches_once_and_takes_columns(spark, tmp_path, table_format):
    """Each batch is written twice, the second one with new columns and fields; other engines read the same rows.

    A killed attempt leaves files that no reader of the table sees. After a compaction everything is as before. Spark
    takes some letters of the names for patterns, and the library of Delta quotes others.
    """
    path = tmp_path / {"parquet": "Flüge [1] {x}*", "delta": "Flüge 1"}[table_format]
    writer = tables.TableWriter(path, table_format, ["kind"])
    narrow, wide = "named_struct('x', id) deep", "named_struct('x', id, 'y', string(id)) deep, array(id) as more"

    def write(batch, columns):
        rows = f"select id, concat('7 ', id % 2) as kind, timestamp_millis(id) as at, {columns}"
        frame = spark.sql(f"{rows} from range({4 * batch}, {4 * batch + 4}, 1, 1)")
        for _ in range(2):
            writer.write(frame, batch, "q")

    def wanted(count):
        for n in range(count):
            at, is_wide = datetime.datetime.fromtimestamp(n / 1000, datetime.UTC), n // 4 == 1
            deep = {"x": n, "y": str(n) if is_wide else None}
            yield {"id": n, "kind": f"7 {n % 2}", "at": at, "deep": deep, "more": [n] if is_wide else None}

    for batch, columns in enumerate((narrow, wide, narrow)):
        write(batch, columns)
    if table_format == "delta":
        (next(path.glob("kind=*")) / "of-a-killed-attempt.parquet").write_bytes(b"half")
    assert without_spark(path, table_format) == list(wanted(12))
    before, after = tables.compact_table(spark, path, files_min=2)
    assert after < before
    write(3, narrow)
    found = [row.asDict(recursive=True) for row in tables.read_table(spark, path).orderBy("id").collect()]
    assert [row | {"at": row["at"].astimezone(datetime.UTC)} for row in found] == list(wanted(16))
    assert without_spark(path, table_format) == list(wanted(16))
    with pytest.raises(JobError, match=r"column deep\.x is bigint in the table and string in its new rows; cast it"):
        writer.write(spark.sql("select 9L as id, '7' as kind, named_struct('x', '9') as deep"), 4, "q")
    with pytest.raises(JobError, match="written by another query"):
        writer.write(spark.range(1), 0, "other")


def test_a_compacted_table_has_dates_beyond_the_year_9999(spark, tmp_path):
    """Producers send microseconds for milliseconds; Delta quotes the sign of such years in the names of folders."""
    writer = tables.TableWriter(tmp_path / "table", "delta", ["day"])
    days = "date_from_unix_date(if(id = 0, 20000000, 0)) as day"
    for batch in range(2):
        writer.write(spark.sql(f"select id, {days} from range(0, 2, 1, 1)"), batch, "q")
    tables.compact_table(spark, tmp_path / "table", files_min=2)
    found = tables.read_table(spark, tmp_path / "table")
    assert found.dtypes == [("id", "bigint"), ("day", "date")]
    rows = found.selectExpr("id", "cast(day as string) as day").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(0, "+56728-02-22")] * 2 + [(1, "1970-01-01")] * 2


def without_spark(path, table_format):
    """Reads a table by delta-rs with DataFusion, or by PyArrow, as pandas and Polars do."""
    if table_format == "delta":
        import deltalake

        engine = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(path)))
        table = pa.table(engine.execute("select * from t order by id").read_all())
    else:
        noted = StructType.fromJson(json.loads((path / tables.OWNER).read_text())["columns"])
        parts = pa.dataset.partitioning(pa.schema([("kind", pa.string()), ("batch", pa.int32())]), flavor="hive")
        table = (
            pa.dataset.dataset(path, schema=to_arrow_schema(noted, timezone="UTC"), partitioning=parts)
            .to_table()
            .sort_by("id")
        )
    rows = table.select(["id", "kind", "at", "deep", "more"]).to_pylist()
    return [row | {"at": row["at"].astimezone(datetime.UTC)} for row in rows]


def test_an_export_writes_a_version_once(spark, brokers, tmp_path):
    create_topic(brokers.bootstrap, "exported", 2, 1)
    frame_of(flights(0, 40)).assign(n=range(40)).to_parquet(tmp_path / "flights.parquet", coerce_timestamps="us")
    job = Job(brokers, tmp_path, "exported")
    text = '[sink]\ntopic = "exported"\nkey = "origin"\n[export]\ntable = "flights.parquet"\nname = "e"\n'
    for version in (1, 1, 2):
        where = 'where = "n < 30"' if version == 1 else 'where = "n >= 30"'
        path = job.write("export", f"{text}version = {version}\n{where}\n")
        report = patiently(run_export, export_job(path), spark)
        assert report.rows == report.table_rows == (30 if version == 1 else 10)
    changed = job.write("export", f'{text}version = 2\nwhere = "n >= 20"\n')
    report = patiently(run_export, export_job(changed), spark)
    assert (report.rows, report.table_rows) == (10, 20), "a version that is written stays as it is"
    found = consumed(brokers, "exported", 2, 40)
    assert sorted(json.loads(value)["n"] for _, _, _, value, _ in found) == list(range(40))
    assert {key for _, _, key, _, _ in found} == {b"EWR", b"JFK", b"LGA"}
    for wrong, message in (("flights.parquet", "no column x|`x`"), ("none.parquet", "none.parquet")):
        path = job.write("export", text.replace("flights.parquet", wrong) + 'version = 3\nwhere = "x = 1"\n')
        with pytest.raises(JobError, match=message):
            patiently(run_export, export_job(path), spark)


def table_rows(spark, path):
    return tables.read_table(spark, path).toPandas()


def restarted(job_file, read_job, run_job, spark, brokers, monkeypatch, more):
    """Runs a job with a crash after its first batch, adds records, and runs it again; returns the last report."""
    crash_once(monkeypatch, 1)
    with pytest.raises(JobError, match="planned crash"):
        patiently(run_job, read_job(job_file), spark, WAIT_S)
    for topic, records in more.items():
        ConfluentClient(brokers.bootstrap).produce(topic, records)
    return patiently(run_job, read_job(job_file), spark, WAIT_S)


def test_windows_equal_pandas(spark, brokers, tmp_path, monkeypatch):
    """The result of append mode equals pandas for all closed windows; a late flight is counted and left out.

    Keys and columns may have names that the query itself could use.
    """
    create_topic(brokers.bootstrap, "windows", 1, 1)
    ConfluentClient(brokers.bootstrap).produce("windows", records_of(flights(0, 150)))
    job = Job(brokers, tmp_path, "windows")
    path = job.write(
        "windows",
        job.source(extra="max_offsets_per_trigger = 80")
        + '[sink]\ntable = "delays"\n[aggregate]\nwindow = "1 hour"\nwatermark = "2 hours"\n'
        + f'event_time = "{field("scheduled", "timestamp")}"\nkeys = {{ window = "{field("origin")}" }}\n'
        + f'columns = {{ event_time = "count(*)", delay = "avg({field("delay", "int")})" }}\n',
    )
    late = records_of(flights(0, 1))
    more = {"windows": [*records_of(flights(150, 50)), *late]}
    report = restarted(path, aggregate_job, run_aggregate, spark, brokers, monkeypatch, more)
    assert report.late_rows == 1
    frame = frame_of(flights(0, 200))
    watermark = frame["scheduled"].max() - pd.Timedelta(hours=2)
    frame["window_start"] = frame["scheduled"].dt.floor("h")
    frame["window"] = frame["origin"]
    wanted = frame.groupby(["window_start", "window"]).agg(event_time=("delay", "size"), delay=("delay", "mean"))
    wanted = wanted[wanted.index.get_level_values(0) + pd.Timedelta(hours=1) <= watermark].reset_index()
    found = table_rows(spark, tmp_path / "delays").sort_values(["window_start", "window"])
    found["window_start"] = pd.to_datetime(found["window_start"], utc=True)
    assert len(wanted) > 80
    pd.testing.assert_frame_equal(
        found[list(wanted.columns)].reset_index(drop=True), wanted, check_dtype=False, check_exact=False
    )


def test_changes_of_a_window_are_written_once(spark, brokers, tmp_path, monkeypatch):
    """Output ``update``: a crash after a written batch repeats no change, and the last one of each key is the sum."""
    for topic in ("changes-in", "changes-out"):
        create_topic(brokers.bootstrap, topic, 1, 1)
    ConfluentClient(brokers.bootstrap).produce("changes-in", records_of(flights(0, 100)))
    job = Job(brokers, tmp_path, "changes-in")
    path = job.write(
        "changes",
        job.source(extra="max_offsets_per_trigger = 40")
        + '[sink]\ntopic = "changes-out"\nkey = "concat(origin, window_start)"\n'
        + '[aggregate]\nwindow = "4 hours"\nwatermark = "1 hour"\noutput = "update"\n'
        + f'event_time = "{field("scheduled", "timestamp")}"\nkeys = {{ origin = "{field("origin")}" }}\n'
        + 'columns = { flights = "count(*)" }\n',
    )
    write, crashed = writing.TopicWriter.__call__, []

    def failing(self, rows, number):
        write(self, rows, number)
        if number == 1 and not crashed:
            crashed.append(number)
            raise OSError("planned crash")

    monkeypatch.setattr(writing.TopicWriter, "__call__", failing)
    with pytest.raises(JobError, match="planned crash"):
        patiently(run_aggregate, aggregate_job(path), spark, WAIT_S)
    patiently(run_aggregate, aggregate_job(path), spark, WAIT_S)
    reader = spark.read.format("moldau").option("kafka.bootstrap.servers", brokers.bootstrap)
    found = reader.option("subscribe", "changes-out").option("kafka.isolation.level", "read_committed").load()
    changes = [(row["key"], row["value"]) for row in found.orderBy("offset").collect()]
    assert crashed == [1]
    assert len(changes) == len(set(changes))
    last = {key: json.loads(value)["flights"] for key, value in changes}
    frame = frame_of(flights(0, 100))
    wanted = frame.groupby([frame["scheduled"].dt.floor("4h"), "origin"]).size()
    assert sorted(last.values()) == sorted(wanted.tolist())
    assert len(last) == len(wanted)


def test_sessions_equal_pandas(spark, brokers, tmp_path, monkeypatch):
    """Rotations per aircraft: a session ends after three hours without a flight of the plane.

    Columns may have names that the query itself could use. Nulls change nothing of the values beside them, and the
    time zone of the session changes nothing at all.
    """
    create_topic(brokers.bootstrap, "rotations", 1, 1)
    # A pause every 40 flights separates sessions.
    rows = list(flights(0, 200))
    for n, row in enumerate(rows):
        row["scheduled"] = (START + datetime.timedelta(minutes=10 * n + 400 * (n // 40))).isoformat()
        row["ticket"] = None if n % 7 == 0 else 2**62 + n
        row["landed"] = None if n % 9 == 0 else row["scheduled"]
    ConfluentClient(brokers.bootstrap).produce("rotations", records_of(rows[:120]))
    job = Job(brokers, tmp_path, "rotations")
    path = job.write(
        "rotations",
        job.source(extra="max_offsets_per_trigger = 100")
        + f'[sink]\ntable = "sessions"\n[sessions]\nevent_time = "{field("scheduled", "timestamp")}"\n'
        + f'watermark = "1 hour"\ngap = "3 hours"\nkeys = {{ plane = "{field("plane")}" }}\n[sessions.columns]\n'
        + f'flights = "count(*)"\ndelay = "sum({field("delay", "int")})"\ntopic = "first({field("origin")})"\n'
        + f'route = "list({field("origin")})"\ntickets = "list({field("ticket", "bigint")})"\n'
        + f'landings = "count({field("landed", "timestamp")})"\nlast = "max({field("landed", "timestamp")})"\n'
        + f'starts = "list({field("scheduled", "timestamp")})"\n',
    )
    with time_zone(spark, "America/New_York"):
        restarted(path, sessions_job, run_sessions, spark, brokers, monkeypatch, {"rotations": records_of(rows[120:])})
    frame = frame_of(rows)
    closed = frame["scheduled"].max() - pd.Timedelta(hours=4)
    wanted = []
    for plane, group in frame.groupby("plane"):
        number = (group["scheduled"].diff() >= pd.Timedelta(hours=3)).cumsum()
        for _, one in group.groupby(number):
            if one["scheduled"].max() <= closed:
                row = (plane, one["scheduled"].min(), one["scheduled"].max(), len(one), int(one["delay"].sum()))
                tickets = ", ".join(str(rows[n]["ticket"]).replace("None", "null") for n in one.index)
                landings = sum(rows[n]["landed"] is not None for n in one.index)
                last = max(frame["scheduled"][n] for n in one.index if rows[n]["landed"] is not None)
                starts = [moment.timestamp() for moment in one["scheduled"]]
                wanted.append(
                    (*row, one["origin"].iloc[0], list(one["origin"]), f"[{tickets}]", landings, last, starts)
                )
    table = tables.read_table(spark, tmp_path / "sessions")
    seconds = functions.expr("transform(starts, each -> cast(each as double))")
    table = table.withColumn("starts", seconds)
    found = table.withColumn("tickets", table["tickets"].cast("string")).toPandas()  # pandas would make floats of them
    for name in ("session_start", "session_end", "last"):
        found[name] = pd.to_datetime(found[name], utc=True)
    for name in ("route", "starts"):
        found[name] = found[name].map(list)
    assert len(wanted) == 20
    assert sorted(found.itertuples(index=False, name=None)) == sorted(wanted)


def test_a_join_equals_pandas(spark, brokers, tmp_path, monkeypatch):
    """Each flight is joined with the flights of the same plane in the two hours before it, from another topic."""
    for topic in ("departures", "arrivals"):
        create_topic(brokers.bootstrap, topic, 1, 1)
        ConfluentClient(brokers.bootstrap).produce(topic, records_of(flights(0, 60)))
    job = Job(brokers, tmp_path, "departures")
    path = job.write(
        "join",
        job.source("left", extra="max_offsets_per_trigger = 40")
        + job.source("right", "arrivals", extra="max_offsets_per_trigger = 40")
        + f'[sink]\ntable = "pairs"\n[join]\nleft_time = "{field("scheduled", "timestamp")}"\n'
        + f'right_time = "{field("scheduled", "timestamp")}"\nleft_watermark = "1 hour"\nright_watermark = "1 hour"\n'
        + f'on = "{field("plane", side="l.")} = {field("plane", side="r.")}"\nbefore = "2 hours"\nafter = "1 second"\n'
        + f'[join.columns]\nleft = "l.offset"\nright = "r.offset"\nplane = "{field("plane", side="l.")}"\n',
    )
    more = {topic: records_of(flights(60, 40)) for topic in ("departures", "arrivals")}
    restarted(path, join_job, run_join, spark, brokers, monkeypatch, more)
    frame = frame_of(flights(0, 100)).reset_index(names="offset")
    both = frame.merge(frame, on="plane", suffixes=("_l", "_r"))
    distance = both["scheduled_l"] - both["scheduled_r"]
    both = both[(distance >= pd.Timedelta(0)) & (distance <= pd.Timedelta(hours=2))]
    wanted = sorted(zip(both["offset_l"], both["offset_r"], both["plane"], strict=True))
    found = table_rows(spark, tmp_path / "pairs")
    assert sorted(found.itertuples(index=False, name=None)) == wanted


def test_a_view_is_rebuilt_beside_the_old_one(spark, brokers, tmp_path):
    """Version 2 replays the log while version 1 is served; the switch is one step, and back; both forms agree."""
    create_topic(brokers.bootstrap, "view", 1, 1)
    client = ConfluentClient(brokers.bootstrap)
    client.produce("view", records_of(flights(0, 60)))
    job = Job(brokers, tmp_path, "view")
    delay = field("delay", "int")
    query = f"select {field('origin')} as origin, {{}} as n, sum({delay}) as delay from records group by 1"
    merge = "select origin, sum(n) as n, sum(delay) as delay from parts group by origin"

    def file(count):
        text = f'[view]\npath = "delays"\nquery = "{query.format(count)}"\nmerge = "{merge}"\n'
        return views.view_job(job.write("view", job.source() + text))

    def rows(frame):
        return sorted(tuple(row) for row in frame.collect())

    def wanted(count):
        grouped = frame_of(flights(0, count)).groupby("origin").agg(n=("origin", "size"), delay=("delay", "sum"))
        return sorted(grouped.reset_index().itertuples(index=False, name=None))

    path = tmp_path / "delays"
    with pytest.raises(JobError, match="no current version"):
        views.read_view(path, spark)
    first, _ = patiently(views.build, file(f"count({delay})"), "stream", spark, WAIT_S)
    assert views.switch(path, first.number) == (1, 0)
    old = rows(views.read_view(path, spark))
    assert old != wanted(60)
    second, _ = views.build(file("count(*)"), "batch", spark)
    assert rows(views.read_view(path, spark)) == old
    difference = views.compare(path, 1, 2, spark)
    assert (difference.only_first, difference.only_second) == (3, 3)
    assert views.switch(path, second.number) == (2, 1)
    assert rows(views.read_view(path, spark)) == wanted(60)
    client.produce("view", records_of(flights(60, 30)))
    spark.range(3).createOrReplaceTempView("records")
    assert rows(views.serve_merged(file("count(*)"), spark)) == wanted(90)
    assert spark.table("records").count() == 3, "the caller's views stay"
    assert not spark.catalog.tableExists("parts")
    third, _ = patiently(views.build, file("count(*)"), "stream", spark, WAIT_S)
    fourth, _ = views.build(file("count(*)"), "batch", spark)
    difference = views.compare(path, third.number, fourth.number, spark)
    assert (difference.only_first, difference.only_second, difference.examples) == (0, 0, [])
    assert views.rollback(path) == (1, 2)
    assert rows(views.read_view(path, spark)) == old
    with pytest.raises(JobError, match="no version 9; there are: 1, 2, 3, 4"):
        views.switch(path, 9)
    plain = job.write("plain", job.source() + '[view]\npath = "plain"\nquery = "select value from records"\n')
    with pytest.raises(
        JobError, match=r"\[view\] query: cannot be built as a stream; aggregate with group by, or .*--batch"
    ):
        views.build(views.view_job(plain), "stream", spark)


def test_the_command_runs_a_job_and_reports_its_failure(spark, brokers, tmp_path, capsys):
    """The command uses the session of the process, and counts dead letters; a missing topic is reported in one line."""
    create_topic(brokers.bootstrap, "command", 1, 1)
    ConfluentClient(brokers.bootstrap).produce("command", [*records_of(flights(0, 5)), (b"bad", b"{", [])])
    job = Job(brokers, tmp_path, "command")
    text = job.source(payload=True) + '[sink]\ntable = "table"\n'
    places = {
        "[source] topics": job.source().replace("command", "no-such-topic") + '[sink]\ntable = "table"\n',
        "[source.payload] dead_letter_topic": text,
    }
    for place, wrong in places.items():
        assert main(["pipeline", "load", str(job.write("none", wrong))]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        topic = "no-such-topic" if place.endswith("topics") else "command-dead"
        assert line.startswith(f"moldau: {tmp_path / 'none.toml'}: {place}: topic {topic} does not exist on ")
        assert f"moldau topics create {topic}" in line
    create_topic(brokers.bootstrap, "command-dead", 1, 1)
    assert main(["--json", "pipeline", "load", str(job.write("command", text))]) == 0
    counted = json.loads(capsys.readouterr().out)["queries"]
    read = {"records": 6, "batches": 1}
    assert counted == {"main": read, "dead-letters": read | {"dead_letters": 1}}
    wrong = job.source() + '[sink]\ntable = "t"\n[aggregate]\nwindow = "1 hour"\nwatermark = "1 hour"\n'
    assert main(["pipeline", "aggregate", str(job.write("wrong", wrong + 'columns = { n = "sum(vlaue)" }\n'))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("moldau: [aggregate] an expression is wrong: ")
    assert "`vlaue` cannot be resolved. Did you mean one of the following? [`value`" in line
