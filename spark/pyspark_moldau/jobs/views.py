"""Versions of a view over a log: Kappa's rebuild beside the old one, and Lambda's two forms of one query.

A view is an SQL query over the table ``records``, the source of the job. ``build`` makes version N+1 from offset zero
in a folder of its own while version N is served, by a stream (Kappa) or by a batch. ``compare`` returns the rows in
which two versions differ. ``switch`` makes a version current by replacing one small file, and keeps the former one for
``rollback``. A reader calls ``read_view`` and sees one version or the other.

Lambda: the batch form is a version that holds the log up to its end offsets. ``serve_merged`` adds the records after
them by the same query and the query ``merge``, which combines the rows of both parts (the table ``parts``).
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import threading
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark_moldau.jobs.config.folders import MAIN, held
from pyspark_moldau.jobs.config.job_config import AVAILABLE_NOW, check_job, load_config, source_of
from pyspark_moldau.jobs.errors import JobBusyError, JobConfigError, JobError
from pyspark_moldau.jobs.files import write_atomically
from pyspark_moldau.jobs.queries.expressions import checked_sql
from pyspark_moldau.jobs.queries.reading import read_batch, read_dead_letters, read_stream, topic_ids_of
from pyspark_moldau.jobs.queries.running import (
    DEAD_LETTERS,
    JobReport,
    check_session,
    first_line,
    job_session,
    run_queries,
    started,
    topic_writer,
)
from pyspark_moldau.jobs.schemas import all_nullable
from pyspark_moldau.jobs.tables import spark_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import DataType

    from pyspark_moldau.jobs.config.job_config import JobConfig, SourceConfig

    Starts: TypeAlias = dict[str, Callable[[], StreamingQuery]]

logger = logging.getLogger(__name__)

CURRENT = "current.json"
VERSION = "version.json"
RESULT = "result.json"
FORMS = ("stream", "batch")
RECORDS, PARTS = "records", "parts"
"""The names of tables that the queries of a view know."""
_NAMES = threading.Lock()
"""Held while a query is resolved: all threads share the temporary views of a session, and their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewJob:
    """A view, read from its file."""

    config: JobConfig
    source: SourceConfig
    path: Path
    query: str
    merge: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of a view.

    ``end_offsets`` are those of a batch: topic, partition and the first offset not in it. ``topic_ids`` are pairs of a
    topic of a batch and its id; none in a version that an earlier release built.
    """

    number: int
    form: str
    query_hash: str
    is_complete: bool
    end_offsets: tuple[tuple[str, int, int], ...] = ()
    topic_ids: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Rows that only one of two versions has, with a few of each."""

    only_first: int
    only_second: int
    examples: list[str]


def view_job(path: Path, client: Mapping[str, str] | None = None) -> ViewJob:
    """Reads the file of a view.

    ``client`` is what ``load_config`` takes.

    Raises:
        JobConfigError: A value is wrong.
    """
    config = load_config(path, client)
    source = source_of(config)
    section = config.root.section("view")
    if source.starting_offsets != "earliest":
        raise section.error("source", "a view begins at offset zero; leave starting_offsets out")
    job = ViewJob(
        config=config,
        source=source,
        path=section.table_path("path", config.folder),
        query=section.text("query"),
        merge=section.text("merge", ""),
    )
    section.finish()
    config.root.finish()
    return job


def versions_of(path: Path) -> list[Version]:
    """Returns the versions of a view by number."""
    found = []
    for file in path.glob(f"v*/{VERSION}"):
        document = json.loads(file.read_text(encoding="utf-8"))
        for name in ("end_offsets", "topic_ids"):
            document[name] = tuple(tuple(each) for each in document.get(name, ()))
        found.append(Version(**document))
    return sorted(found, key=lambda version: version.number)


def hash_of(job: ViewJob) -> str:
    """Returns the hash of what a version's rows depend on: the query, the topics and the payload."""
    return hashlib.sha256(f"{job.query}\0{job.source.topics}\0{job.source.payload}".encode()).hexdigest()


def current_of(path: Path) -> tuple[int, int]:
    """Returns the current version and the one before it; 0 where there is none."""
    try:
        document = json.loads((path / CURRENT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return 0, 0
    return int(document["current"]), int(document["previous"])


def build(
    job: ViewJob, form: str = "stream", session: SparkSession | None = None, timeout_s: float | None = None
) -> tuple[Version, JobReport | None]:
    """Builds the next version; a newest version of the same query and form that was not finished is continued.

    Raises:
        JobError: A query failed, or the SQL does not fit the records.
    """
    check_session(session)
    check_job(job.config, "view", {"source": job.source}, None, view=job.path)
    session = session or job_session(job.config)
    versions = versions_of(job.path)
    query_hash = hash_of(job)
    newest = versions[-1] if versions else None
    if newest is None or newest.is_complete or (newest.form, newest.query_hash) != (form, query_hash):
        number = newest.number + 1 if newest else 1
        newest = Version(number=number, form=form, query_hash=query_hash, is_complete=False)
        _folder(job.path, number).mkdir(parents=True, exist_ok=True)  # a killed build may have made it, without a note
        _note(job.path, newest)
    # Of the version only: others may be followed meanwhile.
    report: JobReport | None
    with held(job.config.root, _folder(job.path, newest.number)):
        if form == "stream":
            report = _run_stream(job, newest.number, session, timeout_s)
            newest = replace(newest, is_complete=True)
        else:
            ids = tuple(sorted(topic_ids_of(job.config, job.source).items()))
            ends, report = _run_batch(job, newest.number, session, timeout_s)
            newest = replace(newest, is_complete=True, end_offsets=ends, topic_ids=ids)
        _note(job.path, newest)
    return newest, report


def follow(job: ViewJob, session: SparkSession | None = None, timeout_s: float | None = None) -> JobReport:
    """Brings the current version up to the present end of the log.

    Raises:
        JobError: There is no current version, it is a batch, or the file's query is another one.
    """
    number = _current(job.path)
    version = _version(job.path, number)
    if version.form != "stream":
        raise JobError(f"version {number} is a batch; build another one, or serve it merged with newer records")
    _check_query(job, version)
    check_session(session)
    check_job(job.config, "view", {"source": job.source}, None, view=job.path)
    session = session or job_session(job.config)
    with held(job.config.root, _folder(job.path, number)):
        return _run_stream(job, number, session, timeout_s)


def compare(path: Path, first: int, second: int, session: SparkSession) -> Difference:
    """Compares two versions as multisets of rows.

    Raises:
        JobError: A version is missing or not complete, or their columns differ in name or kind.
    """
    one, two = (_read_version(session, path, number) for number in (first, second))
    if one.columns != two.columns:
        raise JobError(f"version {first} has the columns {one.columns}, version {second} {two.columns}")
    for here, there in zip(one.schema.fields, two.schema.fields, strict=True):
        if not _are_alike(here.dataType, there.dataType):
            raise JobError(
                f"column {here.name} is {here.dataType.simpleString()} in version {first} and "
                f"{there.dataType.simpleString()} in version {second}; cast it in the query, and build that again"
            )
    only_first, only_second = one.exceptAll(two), two.exceptAll(one)
    examples = [f"{first}: {row}" for row in only_first.limit(5).collect()]
    examples += [f"{second}: {row}" for row in only_second.limit(5).collect()]
    return Difference(only_first=only_first.count(), only_second=only_second.count(), examples=examples)


def _are_alike(one: DataType, two: DataType) -> bool:
    """Returns whether values of two types are compared as they are; Spark would take the text 1 for the number."""
    from pyspark.sql.types import NumericType

    return all_nullable(one) == all_nullable(two) or (isinstance(one, NumericType) and isinstance(two, NumericType))


def switch(path: Path, number: int) -> tuple[int, int]:
    """Makes a version current, atomically; returns it and the former one, which stays for ``rollback``.

    Raises:
        JobError: There is no such version, or it is not complete.
    """
    if not _version(path, number).is_complete:
        raise JobError(f"version {number} is not complete; run build again")
    former, _ = current_of(path)
    if former == number:
        raise JobError(f"version {number} is current already")
    write_atomically(path / CURRENT, json.dumps({"current": number, "previous": former}))
    return number, former


def rollback(path: Path) -> tuple[int, int]:
    """Makes the former version current again; returns it and the one that was current.

    Raises:
        JobError: There is no former version.
    """
    _, former = current_of(path)
    if not former:
        raise JobError(f"{path} has no former version to go back to")
    return switch(path, former)


def read_view(path: Path, session: SparkSession) -> DataFrame:
    """Returns the current version, as it is now.

    Raises:
        JobError: No version is current.
    """
    return _read_version(session, path, _current(path))


def serve_merged(job: ViewJob, session: SparkSession) -> DataFrame:
    """Returns the current batch version, merged with what the same query makes of the records after it.

    Raises:
        JobError: The current version is no batch, or of another query or topic, the file has no ``merge``, or the SQL
            does not fit.
    """
    number = _current(job.path)
    version = _version(job.path, number)
    if version.form != "batch":
        raise JobError(f"version {number} is a stream; it follows the log by itself")
    if not job.merge:
        raise JobError("[view] merge: must be given, to combine the rows of the batch with newer ones")
    _check_query(job, version)
    now = topic_ids_of(job.config, job.source)
    for topic, former in version.topic_ids:
        if now.get(topic, former) != former:
            raise JobError(
                f"topic {topic} was deleted and created again since version {number} was built: that holds records of "
                "the former topic, and would leave out the first ones of the new topic; build another version"
            )
    ends = {(topic, partition): offset for topic, partition, offset in version.end_offsets}
    newer = read_batch(session, job.config, job.source, ends)
    parts = _read_version(session, job.path, number).unionByName(_queried(newer, job.query))
    return _resolved(parts, PARTS, job.merge, "[view] merge:")


@contextmanager
def _name_lent(session: SparkSession, name: str) -> Iterator[None]:
    """Gives the caller its temporary view of this name back, or removes the one that it had not.

    One thread at a time, because all threads of a session share its names.
    """
    with _NAMES:
        former = session.table(name) if _is_temporary_view(session, name) else None
        try:
            yield
        finally:
            if former is not None:
                former.createOrReplaceTempView(name)
            else:
                session.catalog.dropTempView(name)


def _is_temporary_view(session: SparkSession, name: str) -> bool:
    from pyspark.errors import AnalysisException

    try:
        return session.catalog.getTable(name).isTemporary
    except AnalysisException:
        return False  # There is no table of that name either.


def _check_query(job: ViewJob, version: Version) -> None:
    """Checks that newer records are read as those of a version were.

    Raises:
        JobError: They are not.
    """
    if version.query_hash != hash_of(job):
        raise JobError(f"version {version.number} has another query or source than the file; build a new version")


def _run_stream(job: ViewJob, number: int, session: SparkSession, timeout_s: float | None) -> JobReport:
    rows = _queried(read_stream(session, job.config, job.source), job.query)
    state = _folder(job.path, number) / "state"
    writer = rows.writeStream.outputMode("complete").foreachBatch(partial(_batch_done, job.path, number))
    starts: Starts = {MAIN: partial(_started, writer, job.config, state)}
    with _letters(job, session, job.config) as letters:
        return run_queries(starts | letters, timeout_s)


@contextmanager
def _letters(job: ViewJob, session: SparkSession, config: JobConfig) -> Iterator[Starts]:
    """Yields how to start the query that copies dead letters, if there is one to start.

    All versions have one query, so that each dead letter is copied once; a run beside this one may be at it.
    """
    letters = read_dead_letters(session, config, job.source)
    if letters is None:
        yield {}
        return
    to_topic = topic_writer(letters, config, job.source.payload.dead_letter_topic)
    starts: Starts = {DEAD_LETTERS: partial(started, to_topic, DEAD_LETTERS, config, config.checkpoint / DEAD_LETTERS)}
    with ExitStack() as stack:
        try:
            stack.enter_context(held(config.root, config.checkpoint))
        except JobBusyError:
            logger.info("dead-letters-elsewhere folder=%s", config.checkpoint)
            starts = {}
        yield starts


def _run_batch(
    job: ViewJob, number: int, session: SparkSession, timeout_s: float | None
) -> tuple[tuple[tuple[str, int, int], ...], JobReport | None]:
    """Writes the result of a batch, and copies dead letters; returns its end offsets and the report of the copies."""
    rows = read_batch(session, job.config, job.source).cache()
    try:
        ends = rows.groupBy("topic", "partition").agg({"offset": "max"}).collect()
        _write_result(job.path, number, _queried(rows, job.query), 0)
    finally:
        rows.unpersist()
    with _letters(job, session, replace(job.config, trigger=AVAILABLE_NOW)) as letters:
        report = run_queries(letters, timeout_s) if letters else None
    return tuple(sorted((row[0], row[1], row[2] + 1) for row in ends)), report


def _batch_done(path: Path, number: int, rows: DataFrame, batch: int) -> None:
    _write_result(path, number, rows, batch)


def _queried(records: DataFrame, query: str) -> DataFrame:
    return _resolved(records, RECORDS, query, "[view] query:")


def _resolved(rows: DataFrame, name: str, query: str, place: str) -> DataFrame:
    """Returns what a query makes of rows that it knows by a name.

    Spark looks the name up at once, so it is free for other rows, and for the caller's own view, afterwards.
    """
    session = rows.sparkSession
    with checked_sql(place), _name_lent(session, name):
        rows.createOrReplaceTempView(name)
        return session.sql(query)


def _started(writer: DataStreamWriter, config: JobConfig, state: Path) -> StreamingQuery:
    """Starts the query of a version.

    Raises:
        JobConfigError: Spark cannot run the query as a stream.
    """
    from pyspark.errors import AnalysisException

    try:
        return started(writer, MAIN, config, state)
    except AnalysisException as error:
        raise JobConfigError(
            f"[view] query: cannot be built as a stream; aggregate with group by, or build it with --batch "
            f"({first_line(str(error))})"
        ) from error


def _write_result(path: Path, number: int, rows: DataFrame, batch: int) -> None:
    """Writes the whole result beside the last one, and points readers to it; the one before the last goes."""
    folder = _folder(path, number)
    name = f"result-{batch}-{uuid.uuid4().hex}"  # a replay leaves the former attempt's files to its readers
    rows.coalesce(1).write.mode("overwrite").parquet(str(folder / name))
    former = _result(folder)
    write_atomically(folder / RESULT, json.dumps({"result": name}))
    for old in folder.glob("result-*"):
        if old.is_dir() and old.name not in (name, former):  # readers of the former one may still be at work
            shutil.rmtree(old)


def _result(folder: Path) -> str:
    try:
        document: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ""
    return str(document["result"])


def _read_version(session: SparkSession, path: Path, number: int) -> DataFrame:
    if not _version(path, number).is_complete:
        raise JobError(f"version {number} is not complete; run build again")
    folder = _folder(path, number)
    name = _result(folder)
    if not name:
        raise JobError(f"version {number} has no rows: its topics are empty")
    return session.read.parquet(spark_path(folder / name))


def _current(path: Path) -> int:
    number, _ = current_of(path)
    if not number:
        raise JobError(f"{path} has no current version; build one and switch to it")
    return number


def _version(path: Path, number: int) -> Version:
    versions = versions_of(path)
    found = next((version for version in versions if version.number == number), None)
    if found is None:
        known = ", ".join(str(version.number) for version in versions) or "none"
        raise JobConfigError(f"{path} has no version {number}; there are: {known}")
    return found


def _note(path: Path, version: Version) -> None:
    document: dict[str, object] = {
        name: getattr(version, name) for name in ("number", "form", "query_hash", "is_complete")
    }
    document |= {"end_offsets": version.end_offsets, "topic_ids": version.topic_ids}
    write_atomically(_folder(path, version.number) / VERSION, json.dumps(document))


def _folder(path: Path, number: int) -> Path:
    return path / f"v{number}"
