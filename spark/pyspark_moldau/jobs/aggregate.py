"""Aggregates records by windows of event time, with a watermark.

Output ``append`` writes a window once, when the watermark has passed its end; ``update`` writes each change of a window
to a topic, where the last record of a key counts. Rows that come after the watermark are counted and left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_moldau.jobs.config.job_config import duration, in_order, load_config, sink_of, source_of
from pyspark_moldau.jobs.queries.expressions import aliased, check_names, checked_sql
from pyspark_moldau.jobs.queries.reading import read_stream
from pyspark_moldau.jobs.queries.running import JobReport, run_queries, running
from pyspark_moldau.jobs.queries.writing import starts_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from pyspark_moldau.jobs.config.job_config import JobConfig, SinkConfig, SourceConfig

EVENT_TIME = "event_time"
WINDOW = "_moldau_window"
"""The window's column before its start and end are taken from it; keys and columns may be named ``window``."""
WINDOW_COLUMNS = ("window_start", "window_end")


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateJob:
    """An aggregation, read from its file. Expressions are Spark's SQL over the source's columns."""

    config: JobConfig
    source: SourceConfig
    sink: SinkConfig
    event_time: str
    watermark: str
    window: str
    slide: str
    keys: Mapping[str, str]
    columns: Mapping[str, str]
    where: str
    output: str


def aggregate_job(path: Path, client: Mapping[str, str] | None = None) -> AggregateJob:
    """Reads the file of an aggregation.

    ``client`` is what ``load_config`` takes.

    Raises:
        JobConfigError: A value is wrong.
    """
    config = load_config(path, client)
    source, sink = source_of(config), sink_of(config)
    section = config.root.section("aggregate")
    window = duration(section, "window")
    job = AggregateJob(
        config=config,
        source=source,
        sink=sink,
        event_time=section.text("event_time", "timestamp"),
        watermark=duration(section, "watermark"),
        window=window,
        slide=duration(section, "slide", window),
        keys=section.mapping("keys", required=False),
        columns=section.mapping("columns"),
        where=section.text("where", ""),
        output=section.choice("output", ("append", "update"), "append"),
    )
    check_names(section, WINDOW_COLUMNS, keys=job.keys, columns=job.columns)
    if job.output == "update" and sink.path is not None:
        raise section.error(
            "output", "update writes changes, which a table cannot take back; give [sink] topic, or output append"
        )
    section.finish()
    config.root.finish()
    return job


def aggregated(records: DataFrame, job: AggregateJob) -> DataFrame:
    """Returns one row for each window and key: ``window_start``, ``window_end``, the keys, and the columns.

    Raises:
        JobConfigError: An expression does not fit the records.
    """
    from pyspark.sql import functions

    with checked_sql("[aggregate]"):
        rows = records.where(job.where) if job.where else records
        rows = rows.withColumn(EVENT_TIME, functions.expr(job.event_time)).withWatermark(EVENT_TIME, job.watermark)
        keys = [functions.expr(sql).alias(name) for name, sql in job.keys.items()]
        window = functions.window(EVENT_TIME, job.window, job.slide).alias(WINDOW)
        bounds = (f"{WINDOW}.start as window_start", f"{WINDOW}.end as window_end")
        columns = [functions.expr(sql).alias(name) for name, sql in job.columns.items()]
        return rows.groupBy(window, *keys).agg(*columns).selectExpr(*bounds, *aliased([*job.keys, *job.columns]))


def state_of(job: AggregateJob) -> dict[str, str]:
    """Returns the settings that Spark's state of the windows is made of."""
    return {
        "window": job.window,
        "slide": job.slide,
        "keys": in_order(job.keys.values()),
        "columns": in_order(job.columns.values()),
    }


def run_aggregate(job: AggregateJob, session: SparkSession | None = None, timeout_s: float | None = None) -> JobReport:
    """Aggregates until the present ends of the topics, or for ever with an interval as trigger.

    Raises:
        JobError: A query failed, or an expression does not fit the records.
    """
    with running(job.config, "aggregate", {"source": job.source}, job.sink, session, state=state_of(job)) as session:
        rows = aggregated(read_stream(session, job.config, job.source), job)
        starts = starts_of(session, job.config, {"source": job.source}, rows, job.sink, job.output)
        return run_queries(starts, timeout_s)
