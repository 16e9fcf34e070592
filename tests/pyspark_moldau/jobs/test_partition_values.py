"""Goal: a table gives back the values of the columns by which it is partitioned, or its job says why it cannot.

Method: the session that all Spark tests share writes batches and reads the table; pyarrow and deltalake read it, too.
"""

import json

import pytest

from pyspark_moldau.jobs.files import OWNER
from pyspark_moldau.jobs.tables import TableWriter, compact_table, read_table
from pyspark_moldau.session.java import find_java
from support.spark.shared import shared_session

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found"),
    pytest.mark.filterwarnings("ignore"),  # pyspark and py4j leave sockets to the garbage collector
]

ZONE = "spark.sql.session.timeZone"
FORMATS = ("parquet", "delta")
HALF_HOURS = "timestamp_seconds(1793509200 + 1800 * id)"
"""Times from 2026-11-01 05:00 on, in UTC. New York sets its clocks back from 2:00 to 1:00 an hour later."""


@pytest.fixture
def new_york():
    session = shared_session()
    former = session.conf.get(ZONE)
    session.conf.set(ZONE, "America/New_York")
    yield session
    session.conf.set(ZONE, former)


def micros_of(session, path):
    rows = read_table(session, path).selectExpr("id", "unix_micros(at) as at").orderBy("id")
    return [row["at"] for row in rows.collect()]


@pytest.mark.parametrize("table_format", FORMATS)
def test_times_of_a_repeated_hour_stay_apart(new_york, tmp_path, table_format):
    path = tmp_path / "table"
    writer = TableWriter(path, table_format, ["at"])
    expected = [(1793509200 + 1800 * number) * 1_000_000 for number in range(4)]
    for batch, ids in enumerate(((0, 2), (2, 4))):
        writer.write(new_york.range(*ids).selectExpr("id", f"{HALF_HOURS} as at").coalesce(1), batch, "query")
    assert micros_of(new_york, path) == expected
    compact_table(new_york, path, files_min=2)
    new_york.conf.set(ZONE, "Asia/Kolkata")
    assert micros_of(new_york, path) == expected, "in another time zone"
    if table_format == "delta":
        from deltalake import DeltaTable

        found = DeltaTable(str(path)).to_pyarrow_table().sort_by("id").column("at").to_pylist()
        assert [round(at.timestamp()) * 1_000_000 for at in found] == expected


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_of_an_earlier_release_keeps_its_time_zone(new_york, tmp_path, table_format):
    """Its file of the owner names none: the names of its folders say times of the session."""
    tmp_path.joinpath(OWNER).write_text(json.dumps({"query": "q", "format": table_format, "partition_by": ["at"]}))
    rows = new_york.range(1).selectExpr("id", f"{HALF_HOURS} as at")
    TableWriter(tmp_path, table_format, ["at"]).write(rows, 0, "q")
    assert [folder.name for folder in tmp_path.glob("at=*")] == ["at=2026-11-01 01%3A00%3A00"]
    assert micros_of(new_york, tmp_path) == [1793509200_000_000]


@pytest.mark.parametrize("table_format", FORMATS)
def test_bytes_that_no_folder_can_be_named_by_are_refused(tmp_path, table_format):
    """They would all become the same text."""
    writer = TableWriter(tmp_path / "table", table_format, ["key"])
    keys = shared_session().sql("select explode(array(x'6162', x'C3A9', null)) as key, 1 as n")
    writer.write(keys.coalesce(1), 0, "q")
    found = {row["key"] and bytes(row["key"]) for row in read_table(shared_session(), tmp_path / "table").collect()}
    assert found == {b"ab", "é".encode(), None}
    wrong = shared_session().sql("select x'00000000000000FF' as key, 1 as n")
    with pytest.raises(Exception, match=r"column key: a value is no UTF-8.*\[sink\] partition_by"):
        writer.write(wrong, 1, "q")


@pytest.mark.parametrize("table_format", FORMATS)
def test_both_zeros_are_in_one_folder(tmp_path, table_format):
    """Spark takes them for equal, and would end a task in which one follows the other."""
    rows = shared_session().sql("select explode(array(0D, -0D, 0D, -0D, double('NaN'), 0.5D)) as x, 1 as n")
    TableWriter(tmp_path / "table", table_format, ["x"]).write(rows.coalesce(1), 0, "q")
    found = [str(row["x"]) for row in read_table(shared_session(), tmp_path / "table").orderBy("x").collect()]
    assert found == ["0.0", "0.0", "0.0", "0.0", "0.5", "nan"]
