"""Goal: a table's columns only grow. Method: schemas before and after new rows, of Spark's types and without a JVM."""

import json
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructField, StructType

from pyspark_moldau.jobs import tables
from pyspark_moldau.jobs.errors import JobError
from pyspark_moldau.jobs.schemas import all_nullable, merged_schema


def struct(**fields):
    return StructType([StructField(name, kind, False) for name, kind in fields.items()])


INT, TEXT = IntegerType(), StringType()
TABLE = struct(a=INT, s=struct(x=INT), l=ArrayType(struct(x=INT)), m=MapType(TEXT, struct(x=INT)))


def test_new_columns_and_fields_come_last_and_may_be_null():
    wide = struct(x=INT, y=TEXT)
    rows = struct(new=TEXT, s=wide, l=ArrayType(wide), m=MapType(TEXT, wide))
    wanted = struct(a=INT, s=wide, l=ArrayType(wide), m=MapType(TEXT, wide), new=TEXT)
    assert merged_schema(TABLE, rows) == all_nullable(wanted)
    assert merged_schema(StructType([]), TABLE) == merged_schema(TABLE, TABLE) == all_nullable(TABLE)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (struct(a=TEXT), "column a is int in the table and string in its new rows"),
        (struct(s=struct(x=TEXT)), r"column s\.x is int"),
        (struct(l=ArrayType(struct(x=TEXT))), r"column l\[\]\.x is int"),
        (struct(m=MapType(INT, struct(x=INT))), r"column m \(keys\) is string"),
        (struct(s=INT), r"column s is struct<x:int> in the table and int"),
        (struct(A=INT), r"column A of the new rows is a in the table, .* name it a in the job"),
        (struct(s=struct(X=INT)), r"column s\.X of the new rows is s\.x in the table"),
    ],
)
def test_another_type_is_refused_by_column(rows, words):
    with pytest.raises(JobError, match=words):
        merged_schema(TABLE, rows)


@pytest.mark.parametrize(
    ("names", "table_format", "words"),
    [
        (["a", "Batch"], "parquet", "column Batch: a Parquet table has a column batch of its own; give yours another"),
        (["a", "b", "a"], "delta", "column a comes twice, and Spark takes them for one; give one of them another name"),
        (["a", "A"], "parquet", "column A and a differ in case only"),
    ],
)
def test_names_that_are_taken_are_refused(names, table_format, words):
    """They are refused before anything is written, also by a writer of a user's own query."""
    with pytest.raises(JobError, match=words):
        tables.check_columns(names, table_format)
    with pytest.raises(JobError, match=words):
        tables.TableWriter(Path("none"), table_format, []).write(SimpleNamespace(columns=names), 0, "q")
    tables.check_columns(["batch", "a", "window", "topic", "_moldau_batch"], "delta")


def test_a_delta_table_takes_columns_once(tmp_path):
    """The new columns are a commit of their own, and a replay makes no other."""
    path = str(tmp_path / "t")
    write_deltalake(path, pa.table({"a": pa.array([1], pa.int32())}))
    rows = SimpleNamespace(schema=struct(a=INT, s=struct(x=INT)))
    for _ in range(2):
        table = tables._with_columns(DeltaTable(path), path, rows)
        assert table.version() == 1
        found = StructType.fromJson(json.loads(table.schema().to_json()))
        assert found == all_nullable(rows.schema)
    assert table.to_pyarrow_table().to_pylist() == [{"a": 1, "s": None}]
