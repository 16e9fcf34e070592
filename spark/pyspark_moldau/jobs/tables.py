"""Tables that jobs write, batch by batch, so that each row is there once for every reader.

*Parquet*: each micro-batch has a partition of its own, ``batch=N``, written by dynamic overwrite: a replay replaces
what the killed attempt left. *Delta*: tasks write Parquet files, and the driver commits their names with the batch's
number in Delta's log (an application transaction), so that a replay commits nothing again; ``deltalake`` writes the
log.

A table belongs to one query, by the id in its checkpoint: another checkpoint would begin at batch 0 and replace or
repeat rows, so it is refused. So is a checkpoint that was set back to a copy, whose batches have other rows than those
of the same number in the table. New columns, and new fields of structs, are taken (``schemas``): Delta's log knows the
columns of a table, and the file of its owner those of a Parquet table. Folders must be on a file system that the driver
and all workers share.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import uuid
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from pyspark.sql.types import BinaryType, DateType, DoubleType, FloatType, StringType, StructField, StructType

from pyspark_moldau.jobs.errors import JobError
from pyspark_moldau.jobs.files import OWNER, delta_problem, write_atomically, write_first
from pyspark_moldau.jobs.queries.expressions import aliased
from pyspark_moldau.jobs.schemas import all_nullable, merged_schema
from pyspark_moldau.plans import plan_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

COMPACTION: Final = "_moldau_compaction.json"
STAGING: Final = "_moldau_staging"
BATCH: Final = "batch"
COLUMNS: Final = "columns"
ZONE: Final = "time_zone"
"""The key, in the file of the owner, of the time zone in which names of folders say timestamps."""
PLAN: Final = "-plan"
"""Ends the name under which a Delta table keeps the plan of its last batch."""
NO_FOLDER: Final = (
    "column {}: a value is no UTF-8, and cannot be the name of a folder; partition the table by another column "
    "([sink] partition_by)"
)
QUERY_ID: Final = "sql.streaming.queryId"
TIMESTAMPS: Final = "spark.sql.parquet.outputTimestampType"
MICROS: Final = "TIMESTAMP_MICROS"
"""Delta knows no other type of timestamps, and other readers of Parquet take Spark's own for nanoseconds."""


class TableWriter:
    """Writes the micro-batches of one query; made for ``foreachBatch``.

    With the query's ``checkpoint`` it notices when that was set back by a single batch, too.
    """

    def __init__(
        self, path: Path, table_format: str, partition_by: Sequence[str], checkpoint: Path | None = None
    ) -> None:
        self._path = path
        self._checkpoint = checkpoint
        self._has_newest = False  # no batch of the table comes after that of this query
        self._format = table_format
        self._partition_by = list(partition_by)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Writes one micro-batch.

        Raises:
            JobError: The table belongs to another query.
        """
        query = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        assert query is not None, "foreachBatch runs in a query"
        self.write(rows, batch, query)

    def write(self, rows: DataFrame, batch: int, query: str) -> None:
        """Writes one micro-batch of a query.

        Raises:
            JobError: The table belongs to another query or has later batches, or a column has a name that is taken.
        """
        check_columns(rows.columns, self._format)
        owner = own_table(self._path, query, self._format, self._partition_by)
        rows.sparkSession.conf.set(TIMESTAMPS, MICROS)
        rows = with_names_of_folders(rows, self._partition_by)
        if self._format == "delta":
            self._commit_delta(rows, batch, query, owner)
            return
        from pyspark.sql import functions

        finish_compaction(self._path)
        former: list[Path] = []  # files of an earlier attempt at this batch
        if not self._has_newest:
            found = _data_files(self._path)
            newest = max(map(_batch_of, found), default=batch)
            if newest > batch:
                raise _set_back(self._path, batch, f"has batch {newest} already")
            former = [file for file in found if _batch_of(file) == batch]
        self._has_newest = False
        _take_columns(self._path, owner, rows)
        rows.withColumn(BATCH, functions.lit(batch)).write.mode("overwrite").options(
            partitionOverwriteMode="dynamic", **_zone_of(owner)
        ).partitionBy(*self._partition_by, BATCH).parquet(str(self._path))
        # Spark has left those in partitions that the batch has no rows in now, because the job has changed.
        _remove(former)
        self._has_newest = True

    def _commit_delta(self, rows: DataFrame, batch: int, query: str, owner: dict[str, Any]) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction
        from deltalake.schema import Schema
        from deltalake.transaction import AddAction, create_table_with_add_actions

        uri = str(self._path)
        table = DeltaTable(uri) if DeltaTable.is_deltatable(uri) else None
        committed = None if table is None else table.transaction_version(query)
        plan = int(plan_of(self._checkpoint, batch) or "0", 16) >> 1  # 63 bits, as numbers of transactions have
        if table is not None and committed is not None and committed >= batch:
            if committed > batch:
                raise _set_back(self._path, batch, f"has batch {committed} already")
            if plan and table.transaction_version(f"{query}{PLAN}") not in (None, plan):
                raise _set_back(self._path, batch, "has that batch with other rows")
            return
        staging = self._path / STAGING
        shutil.rmtree(staging, ignore_errors=True)
        writer = rows.write.mode("overwrite").options(**_zone_of(owner))
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.option("compression", "snappy").parquet(str(staging))
        actions = [
            AddAction(
                path=path,  # deltalake quotes it
                size=size,
                partition_values=_partition_values(path),
                modification_time=int((self._path / path).stat().st_mtime * 1000),
                data_change=True,
                stats=json.dumps({"numRecords": count}),
            )
            for path, size, count in self._publish(staging)
        ]
        transactions = [Transaction(query, batch), *([Transaction(f"{query}{PLAN}", plan)] if plan else [])]
        once = CommitProperties(app_transactions=transactions)
        schema = Schema.from_json(all_nullable(rows.schema).json())
        if table is not None:
            table = _with_columns(table, uri, rows)
        if table is None:
            create_table_with_add_actions(
                uri, schema, actions, mode="error", partition_by=self._partition_by, commit_properties=once
            )
        else:
            table.create_write_transaction(
                [*actions], "append", schema, partition_by=self._partition_by, commit_properties=once
            )

    def _publish(self, staging: Path) -> list[tuple[str, int, int]]:
        """Moves the files to their partitions; returns path in the table, size in bytes, and number of rows.

        Readers find files through the log only, so files of a killed attempt do no harm; ``vacuum`` removes them.
        """
        import pyarrow.parquet

        found = []
        for file in sorted(staging.rglob("*.parquet")):
            folder = file.parent.relative_to(staging)
            target = self._path / folder / f"{uuid.uuid4().hex}-{file.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            count = pyarrow.parquet.read_metadata(file).num_rows
            if count == 0:
                continue
            os.replace(file, target)
            found.append((str(target.relative_to(self._path)), target.stat().st_size, count))
        shutil.rmtree(staging, ignore_errors=True)
        return found


def _set_back(path: Path, batch: int, problem: str) -> JobError:
    return JobError(
        f"{path} {problem}, and the query writes batch {batch}: its checkpoint was set back to an older state. Put the "
        "newest state of the checkpoint back; or remove the table and the folder main of the checkpoint, to write all "
        "rows again"
    )


def check_columns(names: Sequence[str], table_format: str) -> None:
    """Checks the names of a table's columns. Spark takes two names that differ in case only for the same.

    Raises:
        JobError: A name comes twice, or is that of the column of batches.
    """
    seen: dict[str, str] = {}
    for name in names:
        if table_format == "parquet" and name.lower() == BATCH:
            raise JobError(
                f"column {name}: a Parquet table has a column {BATCH} of its own; give yours another name, or write "
                "format delta"
            )
        if (other := seen.get(name.lower())) is not None:
            twice = "comes twice" if other == name else f"and {other} differ in case only"
            raise JobError(f"column {name} {twice}, and Spark takes them for one; give one of them another name")
        seen[name.lower()] = name


def own_table(path: Path, query: str, table_format: str, partition_by: Sequence[str]) -> dict[str, Any]:
    """Makes a new table the query's, or checks that it is; returns what the file of the owner says.

    Raises:
        JobError: It is another query's, of another form, or the folder holds something else.
    """
    file = path / OWNER
    wanted: dict[str, Any] = {"query": query, "format": table_format, "partition_by": list(partition_by)}
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if path.exists() and any(not each.name.startswith(OWNER) for each in path.iterdir()):
            raise JobError(f"{path} holds something other than a table of this job; name an empty folder") from None
        path.mkdir(parents=True, exist_ok=True)
        owned = wanted | {ZONE: "UTC"}
        if write_first(file, json.dumps(owned)):
            return owned
        found = json.loads(file.read_text(encoding="utf-8"))  # another job was faster
    except ValueError as error:
        raise JobError(f"{file} is damaged: {error}") from error
    for key, value in wanted.items():
        if found.get(key) == value:
            continue
        if key == "query":
            raise JobError(
                f"{path} was written by another query ({found.get(key)}): this checkpoint is new, and would write its "
                "rows again; use the checkpoint of the table, or name an empty folder"
            )
        raise JobError(f"{path} has {key} {found.get(key)!r}, and the job says {value!r}; name an empty folder")
    return found


def with_names_of_folders(rows: DataFrame, partition_by: Sequence[str]) -> DataFrame:
    """Returns rows whose values can be read from the names of folders; bytes that cannot end the query.

    Spark writes bytes that are no UTF-8 all as the same text. It takes 0.0 and -0.0 for equal, and fails where one
    follows the other, because their names differ.
    """
    from pyspark.sql import functions

    for name in partition_by:
        kind = rows.schema[name].dataType
        if not isinstance(kind, BinaryType | DoubleType | FloatType):
            continue
        column = functions.col(*aliased([name]))
        if isinstance(kind, BinaryType):
            refused = functions.raise_error(NO_FOLDER.format(name)).cast(kind)
            column = functions.when(column.isNull() | functions.is_valid_utf8(column.cast("string")), column)
            rows = rows.withColumn(name, column.otherwise(refused))
        else:
            rows = rows.withColumn(name, functions.when(column == 0, functions.lit(0).cast(kind)).otherwise(column))
    return rows


def _zone_of(owner: dict[str, Any]) -> dict[str, str]:
    """Returns the options with which Spark writes and reads timestamps in the names of folders.

    Two times have the same name in a zone that sets its clocks back. Tables of earlier releases have that of the
    session.
    """
    return {"timeZone": owner[ZONE]} if ZONE in owner else {}


def _take_columns(path: Path, owner: dict[str, Any], rows: DataFrame) -> None:
    """Notes new columns of a Parquet table before the files that have them exist.

    Raises:
        JobError: A column has another type than in the table.
    """
    known = _known_columns(rows.sparkSession, path, owner)
    wanted = merged_schema(StructType([]) if known is None else known, rows.schema)
    if known != wanted or COLUMNS not in owner:
        write_atomically(path / OWNER, json.dumps(owner | {COLUMNS: wanted.jsonValue()}))


def _known_columns(session: SparkSession, path: Path, owner: dict[str, Any]) -> StructType | None:
    """Returns the columns of a Parquet table without that of the batch; None for a table without rows."""
    if COLUMNS in owner:
        return StructType.fromJson(owner[COLUMNS])
    if not _data_files(path):
        return None
    # An earlier release noted none.
    return session.read.option("mergeSchema", "true").parquet(spark_path(path)).drop(BATCH).schema


def _with_columns(table: DeltaTable, uri: str, rows: DataFrame) -> DeltaTable:
    """Adds the new columns of rows to a Delta table by a commit of its own; a replay finds them there.

    Raises:
        JobError: A column has another type than in the table.
    """
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake
    from deltalake.schema import Schema

    known = StructType.fromJson(json.loads(table.schema().to_json()))
    wanted = merged_schema(known, rows.schema)
    if wanted == all_nullable(known):
        return table
    schema = pa.schema(Schema.from_json(wanted.json()).to_arrow())
    write_deltalake(table, pa.Table.from_batches([], schema=schema), mode="append", schema_mode="merge")
    return DeltaTable(uri)


def read_table(session: SparkSession, path: Path) -> DataFrame:
    """Returns a table that a job wrote, as it is now, without the column of the batch.

    Raises:
        JobError: There is no such table, or nothing in it.
    """
    try:
        owner = json.loads((path / OWNER).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise JobError(f"{path} is no table of a job: {error}") from error
    if owner["format"] == "delta":
        from deltalake import DeltaTable

        if (problem := delta_problem(path)) is not None:  # a table that was moved there
            raise JobError(problem)
        table = DeltaTable(str(path))
        schema = StructType.fromJson(json.loads(table.schema().to_json()))
        root = urlsplit(table.table_uri).path  # quoted, before names of files that are not
        files = [spark_path(path / uri.removeprefix(root)) for uri in table.file_uris()]
        if not files:
            return session.createDataFrame([], schema)
        dates = _dates_among(schema, table.metadata().partition_columns)
        written = StructType(
            [StructField(each.name, StringType(), True) if each.name in dates else each for each in schema.fields]
        )
        rows = session.read.schema(written).options(basePath=str(path), **_zone_of(owner)).parquet(*files)
        return rows.selectExpr(
            *(
                f"cast({sql} as date) as {sql}" if name in dates else sql
                for name, sql in zip(schema.names, aliased(schema.names), strict=True)
            )
        )
    finish_compaction(path)
    columns = _known_columns(session, path, owner)
    if columns is None or not _data_files(path):
        raise JobError(f"{path} has no rows yet")
    # Without the columns, Spark would take those of any one file, and guess the types of partitions from their names.
    return session.read.schema(columns).options(**_zone_of(owner)).parquet(spark_path(path)).drop(BATCH)


def _dates_among(schema: StructType, partition_by: Sequence[str]) -> set[str]:
    """Returns the dates by which a table is partitioned.

    Spark takes the date in a folder's name as it stands, and a compaction of Delta quotes the sign of a year that has
    five digits. Texts it unquotes.
    """
    return {each.name for each in schema.fields if isinstance(each.dataType, DateType) and each.name in partition_by}


def spark_path(path: Path) -> str:
    """Returns a path as Spark reads it, which takes some characters for patterns of names."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", str(path))


def compact_table(session: SparkSession, path: Path, *, files_min: int) -> tuple[int, int]:
    """Rewrites the small files of each partition that has ``files_min`` or more; returns files before and after.

    Run it while the query that writes the table stands still. A Delta table changes in one commit, and its readers
    notice nothing. A Parquet table has no log: a reader may meet rows twice while files are swapped. A compaction that
    was killed is finished by the next one, by the query, or by ``read_table``.

    Raises:
        JobError: There is no such table.
    """
    try:
        owner = json.loads((path / OWNER).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise JobError(f"{path} is no table of a job: {error}") from error
    if owner["format"] == "delta":
        return _compact_delta(path, files_min)
    former = session.conf.get(TIMESTAMPS, None)
    session.conf.set(TIMESTAMPS, MICROS)
    try:
        return _compact_parquet(session, path, owner, files_min)
    finally:  # the session may be the user's own
        if former is None:
            session.conf.unset(TIMESTAMPS)
        else:
            session.conf.set(TIMESTAMPS, former)


def _compact_delta(path: Path, files_min: int) -> tuple[int, int]:
    from deltalake import DeltaTable

    table = DeltaTable(str(path))
    before = len(table.file_uris())
    if before >= files_min:
        table.optimize.compact()
    return before, len(DeltaTable(str(path)).file_uris())


def _compact_parquet(session: SparkSession, path: Path, owner: dict[str, Any], files_min: int) -> tuple[int, int]:
    finish_compaction(path)
    shutil.rmtree(path / STAGING, ignore_errors=True)  # of a compaction that was killed before its plan was complete
    columns = _known_columns(session, path, owner)
    if columns is None:
        return 0, 0
    in_files = StructType([field for field in columns.fields if field.name not in owner["partition_by"]])
    before = len(_data_files(path))
    groups: dict[Path, list[Path]] = {}
    for file in _data_files(path):
        groups.setdefault(file.parent.parent, []).append(file)
    newest = max((_batch_of(file) for file in _data_files(path)), default=0)
    moves, gone = [], []
    for number, (folder, files) in enumerate(sorted(groups.items())):
        # The newest batch may be replayed, and its replay must find it in its own place.
        old = [file for file in files if _batch_of(file) < newest]
        if len(old) < max(files_min, 2):
            continue
        staging = path / STAGING / str(number)
        session.read.schema(in_files).parquet(*map(spark_path, old)).coalesce(1).write.mode("overwrite").parquet(
            str(staging)
        )
        lowest = min(_batch_of(file) for file in old)
        for file in sorted(staging.glob("*.parquet")):
            target = folder / f"{BATCH}={lowest}" / f"compacted-{file.name}"
            moves.append((str(file.relative_to(path)), str(target.relative_to(path))))
        gone += [str(file.relative_to(path)) for file in old]
    if moves:
        write_atomically(path / COMPACTION, json.dumps({"moves": moves, "gone": gone}))
    finish_compaction(path)
    return before, len(_data_files(path))


def finish_compaction(path: Path) -> None:
    """Swaps the files of a compaction whose plan is complete, from wherever an earlier attempt stopped.

    Without a plan nothing changes: a compaction may be writing its files right now. Another process may do the same at
    the same time.

    Raises:
        JobError: A new file is missing; the old files stay.
    """
    plan = path / COMPACTION
    try:
        document = json.loads(plan.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    for source, target in document["moves"]:
        (path / target).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # it was moved before
            os.replace(path / source, path / target)
    missing = [target for _, target in document["moves"] if not (path / target).exists()]
    if missing:
        raise JobError(
            f"{path / missing[0]} is missing, and no file that it replaces was removed; remove the new files (moves) "
            f"that {plan} names, and then that file"
        )
    _remove([path / name for name in document["gone"]])
    plan.unlink(missing_ok=True)
    shutil.rmtree(path / STAGING, ignore_errors=True)


def _remove(files: Sequence[Path]) -> None:
    """Removes files with the checksums that Hadoop keeps beside them."""
    for file in files:
        file.unlink(missing_ok=True)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def _data_files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob(f"{BATCH}=*/*.parquet") if STAGING not in file.parts)


def _batch_of(file: Path) -> int:
    return int(file.parent.name.removeprefix(f"{BATCH}="))


def _partition_values(path: str) -> dict[str, str | None]:
    parts = [part.partition("=") for part in path.split("/")[:-1]]
    return {
        unquote(name): None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value) for name, _, value in parts
    }
