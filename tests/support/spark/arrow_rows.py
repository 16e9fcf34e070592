"""Rows and a session that write and read Parquet files as Spark does, without a JVM, for tests of tables."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.types import StructType

NULL = "__HIVE_DEFAULT_PARTITION__"


def partition_name(name: str, value: object) -> str:
    """Returns the name of a folder: Spark quotes what file systems do not take."""
    return f"{name}={NULL if value is None else quote(str(value), safe=' -_.~')}"


def rows_below(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a Parquet table as Spark finds them: files whose path has no part with ``_`` or ``.``."""
    found = []
    for file in sorted(path.rglob("*.parquet")):
        parts = file.relative_to(path).parts
        if not any(part.startswith(("_", ".")) for part in parts):
            values = dict(part.split("=", 1) for part in parts[:-1])
            named = {name: None if value == NULL else unquote(value) for name, value in values.items()}
            found += [row | named for row in pyarrow.parquet.ParquetFile(file).read().to_pylist()]
    return found


class ArrowRows:
    """A micro-batch. ``step`` is called before each file is written or removed, and may end the write."""

    def __init__(self, rows: Sequence[dict[str, Any]], schema: StructType, step: Callable[[], None]) -> None:
        self.rows = [dict(row) for row in rows]
        self.schema = schema
        self.columns = schema.names
        self.settings: dict[str, str] = {}
        conf = SimpleNamespace(set=self.settings.__setitem__, get=self.settings.get, unset=self.settings.pop)
        self.sparkSession = SimpleNamespace(conf=conf, read=ArrowReader(step))
        self.step = step

    def withColumn(self, name: str, value: object) -> ArrowRows:
        return self._of([row | {name: value} for row in self.rows])

    def coalesce(self, _: int) -> ArrowRows:
        return self

    def _of(self, rows: Sequence[dict[str, Any]]) -> ArrowRows:
        return ArrowRows(rows, self.schema, self.step)

    @property
    def write(self) -> ArrowWriter:
        return ArrowWriter(self)


class ArrowWriter:
    """Writes a file for each partition, and an empty one if there are no rows, as Spark does."""

    def __init__(self, frame: ArrowRows) -> None:
        self.frame = frame
        self.by: tuple[str, ...] = ()
        self.given: dict[str, str] = {}

    def mode(self, mode: str) -> ArrowWriter:
        assert mode == "overwrite"
        return self

    def option(self, name: str, value: str) -> ArrowWriter:
        self.given[name] = value
        return self

    def options(self, **given: str) -> ArrowWriter:
        self.given |= given
        return self

    def partitionBy(self, *names: str) -> ArrowWriter:
        self.by = names
        return self

    def parquet(self, path: str) -> None:
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in self.frame.rows:
            folder = "/".join(partition_name(name, row[name]) for name in self.by)
            groups.setdefault(folder, []).append({key: each for key, each in row.items() if key not in self.by})
        is_dynamic = self.given.get("partitionOverwriteMode") == "dynamic"
        former = [file for file in Path(path).rglob("*.parquet") if not is_dynamic or _folder(file, path) in groups]
        for file in former:
            self.frame.step()
            file.unlink()
        for folder, rows in groups.items() or [("", [])]:
            self.frame.step()
            (Path(path) / folder).mkdir(parents=True, exist_ok=True)
            file = Path(path) / folder / f"part-{uuid.uuid4().hex}.parquet"
            pyarrow.parquet.write_table(pa.Table.from_pylist(rows, schema=_arrow(self.frame, self.by)), file)


class ArrowReader:
    """Reads files by their names."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step

    def schema(self, schema: StructType) -> ArrowReader:
        self.wanted = schema
        return self

    def parquet(self, *paths: str) -> ArrowRows:
        found = [row for path in paths for row in pyarrow.parquet.ParquetFile(path).read().to_pylist()]
        return ArrowRows(found, self.wanted, self.step)


def _folder(file: Path, root: str) -> str:
    return file.parent.relative_to(root).as_posix()


def _arrow(frame: ArrowRows, without: Sequence[str]) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema)
    return pa.schema([field for field in schema if field.name not in without])
