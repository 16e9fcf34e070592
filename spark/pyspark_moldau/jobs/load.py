"""Loads topics into a table, partitioned by topic and date, with partition and offset in each row.

Each task reads one range of one partition. A micro-batch that was killed is written again as a whole, and is there
once; see ``tables``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_moldau.jobs.config.job_config import load_config, sink_of, source_of
from pyspark_moldau.jobs.queries.reading import read_stream
from pyspark_moldau.jobs.queries.running import JobReport, run_queries, running
from pyspark_moldau.jobs.queries.writing import starts_of
from pyspark_moldau.jobs.tables import compact_table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from pyspark_moldau.jobs.config.job_config import JobConfig, SinkConfig, SourceConfig

PARTITION_BY = ("topic", "date")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """A load, read from its file. ``compact_files`` is how many files of a partition are too many; 0 means never."""

    config: JobConfig
    source: SourceConfig
    sink: SinkConfig
    compact_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The report of the queries, and the number of files before and after compaction (None if it did not run)."""

    job: JobReport
    files: tuple[int, int] | None


def load_job(path: Path, client: Mapping[str, str] | None = None) -> LoadJob:
    """Reads the file of a load.

    ``client`` is what ``load_config`` takes.

    Raises:
        JobConfigError: A value is wrong.
    """
    config = load_config(path, client)
    source, sink = source_of(config), sink_of(config, PARTITION_BY)
    section = config.root.section("load", required=False)
    compact_files = section.number("compact_files", 0, at_least=0, at_most=1_000_000)
    if sink.path is None:
        raise section.error("sink", "a load writes a table; to copy a topic, write [sink] table, or use Kafka's tools")
    section.finish()
    config.root.finish()
    return LoadJob(config=config, source=source, sink=sink, compact_files=compact_files)


def loaded_rows(records: DataFrame) -> DataFrame:
    """Returns the rows of the table: the record's columns, and ``date``, the UTC date of its timestamp."""
    day = "cast(floor(unix_seconds(timestamp) / 86400) as int)"  # to_date gives that of the session's time zone
    date = f"date_from_unix_date({day}) as date"
    return records.selectExpr("topic", "partition", "offset", "timestamp", "key", "value", date)


def run_load(job: LoadJob, session: SparkSession | None = None, timeout_s: float | None = None) -> LoadReport:
    """Loads until the present ends of the topics, or for ever with an interval as trigger.

    Raises:
        JobError: A query failed, or the table is another query's.
    """
    with running(job.config, "load", {"source": job.source}, job.sink, session) as session:
        rows = loaded_rows(read_stream(session, job.config, job.source))
        starts = starts_of(session, job.config, {"source": job.source}, rows, job.sink)
        report = run_queries(starts, timeout_s)
        assert job.sink.path is not None, "load_job refuses a topic"
        files = None
        if job.compact_files and job.sink.path.exists():
            files = compact_table(session, job.sink.path, files_min=job.compact_files)
        return LoadReport(job=report, files=files)
