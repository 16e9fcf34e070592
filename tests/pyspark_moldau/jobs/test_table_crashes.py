"""Goal: a table has each row of each micro-batch once, wherever a job was killed, and whatever its partitions' names.

Method: rows that are written by Arrow as Spark writes them; a job that is killed before each of its steps in turn, and
begun again until it ends.
"""

import collections
import json
import os
import shutil
from pathlib import Path
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pyspark_moldau.jobs import tables
from pyspark_moldau.jobs.errors import JobError
from pyspark_moldau.jobs.files import OWNER
from pyspark_moldau.jobs.tables import TableWriter, compact_table
from support.spark.arrow_rows import ArrowRows, rows_below

NAMES = [None, "", "a", "a/b", "a=b", "50%", "é", "x y", "{a,b}", "_a", "*"]
SCHEMA = StructType([StructField("id", LongType()), StructField("name", StringType())])
WIDER = StructType([*SCHEMA.fields, StructField("more", StringType())])
STEPS_MAX = 80
FORMATS = ("parquet", "delta")


class KilledError(BaseException):
    """The end of a process."""


class Steps:
    """Ends the process before the step of this number."""

    def __init__(self, last):
        self.left = last

    def __call__(self):
        if self.left == 0:
            raise KilledError
        self.left -= 1


@pytest.fixture
def at_each_step(monkeypatch):
    """Makes each change of the file system a step, and a column of a constant the constant itself."""
    monkeypatch.setattr("pyspark.sql.functions.lit", lambda value: value)
    current = []

    def stepping(function):
        def call(*given, **named):
            if current and current[-1].left >= 0:
                current[-1]()
            return function(*given, **named)

        return call

    monkeypatch.setattr(os, "fsync", lambda file: None)  # the machine does not end
    for owner, name in ((os, "replace"), (Path, "unlink"), (shutil, "rmtree"), (Path, "mkdir")):
        monkeypatch.setattr(owner, name, stepping(getattr(owner, name)))
    return current


def rows_of(path, table_format):
    """Returns the rows that a reader finds, without the column of batches."""
    if table_format == "delta":
        return DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    tables.finish_compaction(path)
    return [{name: each for name, each in row.items() if name != "batch"} for row in rows_below(path)]


def counted(rows):
    """Returns how often each row is there; Spark has no text that is empty in the name of a folder."""
    return collections.Counter((row["id"], row["name"] or None, row.get("more")) for row in rows)


BATCHES = [
    [{"id": 0, "name": None}, {"id": 1, "name": "a"}],
    [],
    [{"id": 100, "name": "a"}, {"id": 101, "name": "a"}, {"id": 102, "name": None}],
    [{"id": 200, "name": "a", "more": "x"}, {"id": 201, "name": "b", "more": None}],
    [{"id": 300, "name": "a", "more": "y"}],
]
SCHEMAS = [SCHEMA, SCHEMA, SCHEMA, WIDER, WIDER]


def write(path, table_format, by, batch, step=lambda: None):
    frame = ArrowRows(BATCHES[batch], SCHEMAS[batch], step)
    TableWriter(path, table_format, by).write(frame, batch, "query")
    return frame


@pytest.mark.parametrize("by", [(), ("name",)], ids=["plain", "by name"])
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_batch_is_there_once_wherever_the_job_was_killed(tmp_path, at_each_step, table_format, by):
    """Spark gives the batch again until it was written, and may give the last one again even then."""
    for batch in range(len(BATCHES)):
        expected = counted(row for rows in BATCHES[: batch + 1] for row in rows)
        for killed_before in range(STEPS_MAX):
            path = tmp_path / f"{batch}-{killed_before}"
            at_each_step.clear()
            for former in range(batch):
                write(path, table_format, by, former)
            step = Steps(killed_before)
            at_each_step.append(step)
            is_killed = False
            try:
                write(path, table_format, by, batch, step)
            except KilledError:
                is_killed = True
            at_each_step.clear()
            for _ in range(2):
                write(path, table_format, by, batch)
                assert counted(rows_of(path, table_format)) == expected, (batch, killed_before)
            if batch in (1, 3) or not is_killed:
                break  # a batch like the others, or no step was left


def test_a_replay_by_a_changed_job_leaves_no_former_row(tmp_path, at_each_step):
    """Spark replaces the partitions that the batch has rows in now, and keeps the others."""
    changed = [{"id": 100, "name": "b"}, {"id": 101, "name": "a"}]
    expected = counted([*BATCHES[0], *changed])
    for killed_before in range(STEPS_MAX):
        path = tmp_path / str(killed_before)
        for batch in (0, 2):
            write(path, "parquet", ("name",), batch)
        step = Steps(killed_before)
        at_each_step.append(step)
        is_killed = False
        try:
            TableWriter(path, "parquet", ("name",)).write(ArrowRows(changed, SCHEMA, step), 2, "query")
        except KilledError:
            is_killed = True
        at_each_step.clear()
        for _ in range(2):
            TableWriter(path, "parquet", ("name",)).write(ArrowRows(changed, SCHEMA, lambda: None), 2, "query")
            assert counted(rows_of(path, "parquet")) == expected, killed_before
        if not is_killed:
            break


@pytest.mark.parametrize("goes_on_by", ["compaction", "batch", "reader"])
@pytest.mark.parametrize("by", [(), ("name",)], ids=["plain", "by name"])
def test_a_compaction_that_is_killed_changes_no_row(tmp_path, at_each_step, by, goes_on_by):
    """The next compaction, the next batch or the next reader finishes it."""
    expected = counted(row for rows in BATCHES for row in rows)
    for killed_before in range(STEPS_MAX):
        path = tmp_path / str(killed_before)
        for batch in range(len(BATCHES)):
            session = write(path, "parquet", by, batch).sparkSession
        at_each_step.append(Steps(killed_before))
        is_killed = False
        try:
            before, after = compact_table(session, path, files_min=2)
        except KilledError:
            is_killed = True
        at_each_step.clear()
        if goes_on_by == "compaction":
            compact_table(session, path, files_min=2)
        elif goes_on_by == "batch":
            write(path, "parquet", by, len(BATCHES) - 1)
        assert counted(rows_of(path, "parquet")) == expected, killed_before
        write(path, "parquet", by, len(BATCHES) - 1)
        assert counted(rows_of(path, "parquet")) == expected, "the newest batch was given again"
        assert session.conf.get(tables.TIMESTAMPS) == tables.MICROS
        if not is_killed:
            assert after < before
            return
    raise AssertionError(f"a compaction has more than {STEPS_MAX} steps")


def test_a_delta_table_is_compacted_in_one_commit(tmp_path, at_each_step):
    """A table with fewer files than the limit stays as it is."""
    path = tmp_path / "t"
    for batch in range(len(BATCHES)):
        session = write(path, "delta", (), batch).sparkSession
    expected = counted(row for rows in BATCHES for row in rows)
    version = DeltaTable(str(path)).version()
    assert compact_table(session, path, files_min=5) == (4, 4)
    assert DeltaTable(str(path)).version() == version
    assert compact_table(session, path, files_min=4) == (4, 1)
    assert DeltaTable(str(path)).version() == version + 1
    assert counted(rows_of(path, "delta")) == expected
    write(path, "delta", (), len(BATCHES) - 1)
    assert counted(rows_of(path, "delta")) == expected, "the newest batch was given again"
    with pytest.raises(JobError, match="is no table of a job"):
        compact_table(session, tmp_path / "none", files_min=2)


def test_a_delta_log_names_each_file_with_its_figures(tmp_path, at_each_step):
    rows = [{"id": number, "name": name} for number, name in enumerate(NAMES)]
    TableWriter(tmp_path / "t", "delta", ("name",)).write(ArrowRows(rows, SCHEMA, lambda: None), 0, "query")
    assert counted(rows_of(tmp_path / "t", "delta")) == counted(rows)
    added = [
        json.loads(line)["add"]
        for line in (tmp_path / "t" / "_delta_log" / f"{0:020}.json").read_text().splitlines()
        if "add" in json.loads(line)
    ]
    assert len(added) == len(NAMES)
    for each in added:
        file = tmp_path / "t" / unquote(each["path"])
        assert (each["size"], each["dataChange"]) == (file.stat().st_size, True)
        assert abs(each["modificationTime"] - file.stat().st_mtime * 1000) < 1
        assert json.loads(each["stats"])["numRecords"] == 1
    assert {each["partitionValues"]["name"] for each in added} <= {*NAMES}
    assert DeltaTable(str(tmp_path / "t")).transaction_version("query") == 0
    assert not (tmp_path / "t" / tables.STAGING).exists()


def test_a_parquet_table_has_partitions_of_any_name(tmp_path, at_each_step):
    rows = [{"id": number, "name": name} for number, name in enumerate(NAMES)]
    for batch in range(4):
        frame = ArrowRows([row | {"id": row["id"] + 100 * batch} for row in rows], SCHEMA, lambda: None)
        TableWriter(tmp_path, "parquet", ("name",)).write(frame, batch, "query")
    every = counted(row | {"id": row["id"] + 100 * batch} for row in rows for batch in range(4))
    assert compact_table(frame.sparkSession, tmp_path, files_min=3) == (4 * len(NAMES), 2 * len(NAMES))
    assert counted(rows_of(tmp_path, "parquet")) == every


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_stays_that_of_its_query(tmp_path, at_each_step, table_format):
    path = tmp_path / "t"
    write(path, table_format, (), 0)
    rows = counted(rows_of(path, table_format))
    frame = ArrowRows(BATCHES[2], SCHEMA, lambda: None)
    for query, by, words in (
        ("other", (), r"was written by another query \(query\): this checkpoint is new"),
        ("query", ("name",), r"has partition_by \[\], and the job says \['name'\]"),
    ):
        with pytest.raises(JobError, match=words):
            TableWriter(path, table_format, by).write(frame, 0, query)
    other = {"parquet": "delta", "delta": "parquet"}[table_format]
    with pytest.raises(JobError, match=f"has format '{table_format}', and the job says '{other}'"):
        TableWriter(path, other, ()).write(frame, 0, "query")
    assert counted(rows_of(path, table_format)) == rows


def offsets(checkpoint, batch, text):
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch)).write_text(text)


@pytest.mark.parametrize("back", [1, 2])
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_checkpoint_that_was_set_back_is_noticed(tmp_path, at_each_step, table_format, back):
    """A Delta table skipped the rows of such a batch, a Parquet table kept those of the batch behind it."""
    path, checkpoint = tmp_path / "t", tmp_path / "checkpoint"

    def put(number, rows):
        TableWriter(path, table_format, (), checkpoint).write(ArrowRows(rows, SCHEMA, lambda: None), number, "query")

    for number in (2, 3):
        offsets(checkpoint, number, f"planned once {number}")
        put(number, [{"id": number, "name": "a"}])
    rows = counted(rows_of(path, table_format))
    put(3, [{"id": 3, "name": "a"}])  # a replay
    assert counted(rows_of(path, table_format)) == rows
    again = 4 - back
    offsets(checkpoint, again, f"planned again {again}")
    if (table_format, back) == ("parquet", 1):
        put(again, BATCHES[2])  # takes the place of the former batch
        assert counted(rows_of(path, table_format)) == counted([{"id": 2, "name": "a"}, *BATCHES[2]])
        return
    words = "has batch 3 already" if back == 2 else "has that batch with other rows"
    with pytest.raises(JobError, match=f"{words}, and the query writes batch {again}: its checkpoint was set back"):
        put(again, BATCHES[2])
    assert counted(rows_of(path, table_format)) == rows


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_column_of_another_type_is_refused_at_once(tmp_path, at_each_step, table_format):
    path = tmp_path / "t"
    write(path, table_format, (), 0)
    rows = counted(rows_of(path, table_format))
    wrong = StructType([StructField("id", StringType()), StructField("name", StringType())])
    with pytest.raises(JobError, match="column id is bigint in the table and string in its new rows"):
        TableWriter(path, table_format, ()).write(
            ArrowRows([{"id": "x", "name": "y"}], wrong, lambda: None), 1, "query"
        )
    assert counted(rows_of(path, table_format)) == rows


def test_the_columns_of_a_parquet_table_are_noted(tmp_path, at_each_step):
    for batch, schema in enumerate(SCHEMAS):
        write(tmp_path, "parquet", ("name",), batch)
        noted = json.loads((tmp_path / OWNER).read_text())
        assert StructType.fromJson(noted[tables.COLUMNS]) == schema
        assert {name: noted[name] for name in ("query", "format", "partition_by")} == {
            "query": "query",
            "format": "parquet",
            "partition_by": ["name"],
        }


def test_a_killed_start_leaves_a_folder_that_can_be_used(tmp_path):
    """It may have left a draft of the note; another file is something else."""
    (tmp_path / f"{OWNER}.0123").write_text("{")
    assert tables.own_table(tmp_path, "q", "parquet", ["a"])["query"] == "q"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").touch()
    with pytest.raises(JobError, match="holds something other than a table of this job; name an empty folder"):
        tables.own_table(tmp_path / "other", "q", "parquet", [])
    assert not (tmp_path / "other" / OWNER).exists()


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("part.parquet", {}),
        ("a=1/part.parquet", {"a": "1"}),
        ("a=x%3Dy/b=__HIVE_DEFAULT_PARTITION__/part.parquet", {"a": "x=y", "b": None}),
        ("a%2Fb=c=d/part.parquet", {"a/b": "c=d"}),
        ("d=2013-01-01/t=/part.parquet", {"d": "2013-01-01", "t": ""}),
    ],
)
def test_the_values_of_a_partition_are_those_of_its_path(path, values):
    assert tables._partition_values(path) == values


def test_dates_are_read_as_dates_where_they_are_partitions():
    schema = StructType([StructField("d", DateType()), StructField("e", DateType()), StructField("n", StringType())])
    assert tables._dates_among(schema, ["d", "n"]) == {"d"}
    assert tables.spark_path(Path("/a*b/{c,d}/[e]?\\f")) == r"/a\*b/\{c,d\}/\[e\]\?\\f"
