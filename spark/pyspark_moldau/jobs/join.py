"""Joins two topics by a condition and a bound on the distance of their event times.

The bound and the watermarks limit how long Spark must keep a record of one side for one of the other. A left outer
join writes a record without a partner when no partner can come any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark_moldau.jobs.aggregate import EVENT_TIME
from pyspark_moldau.jobs.config.job_config import duration, in_order, load_config, sink_of, source_of
from pyspark_moldau.jobs.queries.expressions import checked_sql
from pyspark_moldau.jobs.queries.reading import read_stream
from pyspark_moldau.jobs.queries.running import JobReport, run_queries, running
from pyspark_moldau.jobs.queries.writing import starts_of
from pyspark_moldau.jobs.sessions import milliseconds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from pyspark_moldau.jobs.config.job_config import JobConfig, SinkConfig, SourceConfig

STEP_MS: Final = 23 * 3_600_000
STEPS_MAX: Final = 400
"""About a year: one step more than this is left to Spark, which counts it in days of the session's time zone."""
TYPES: Final = {"inner": "inner", "left-outer": "leftOuter"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinJob:
    """A join, read from its file. ``on`` and ``columns`` call the two sides ``l`` and ``r``."""

    config: JobConfig
    left: SourceConfig
    right: SourceConfig
    sink: SinkConfig
    kind: str
    times: tuple[str, str]
    watermarks: tuple[str, str]
    on: str
    after: str
    before: str
    columns: Mapping[str, str]


def join_job(path: Path, client: Mapping[str, str] | None = None) -> JoinJob:
    """Reads the file of a join.

    ``client`` is what ``load_config`` takes.

    Raises:
        JobConfigError: A value is wrong.
    """
    config = load_config(path, client)
    left, right, sink = source_of(config, "left"), source_of(config, "right"), sink_of(config)
    section = config.root.section("join")
    job = JoinJob(
        config=config,
        left=left,
        right=right,
        sink=sink,
        kind=section.choice("type", tuple(TYPES), "inner"),
        times=(section.text("left_time", "timestamp"), section.text("right_time", "timestamp")),
        watermarks=(duration(section, "left_watermark"), duration(section, "right_watermark")),
        on=section.text("on"),
        before=duration(section, "before"),
        after=duration(section, "after"),
        columns=section.mapping("columns"),
    )
    section.finish()
    config.root.finish()
    return job


def joined(left: DataFrame, right: DataFrame, job: JoinJob) -> DataFrame:
    """Returns the joined rows: a right record lies at most ``before`` before its left one, and ``after`` after it.

    Records with a null event time are left out.

    Raises:
        JobConfigError: An expression does not fit the records.
    """
    from pyspark.sql import functions

    with checked_sql("[join]"):
        sides = [
            side.withColumn(EVENT_TIME, functions.expr(time))
            .where(f"{EVENT_TIME} is not null")  # Spark would neither write such a left record nor forget it
            .withWatermark(EVENT_TIME, watermark)
            .alias(name)
            for side, time, watermark, name in zip((left, right), job.times, job.watermarks, "lr", strict=True)
        ]
        near = (
            f"r.{EVENT_TIME} between l.{EVENT_TIME}{_added('-', job.before)} and l.{EVENT_TIME}{_added('+', job.after)}"
        )
        rows = sides[0].join(sides[1], functions.expr(f"({job.on}) and {near}"), TYPES[job.kind])
        return rows.select(*(functions.expr(sql).alias(name) for name, sql in job.columns.items()))


def _added(sign: str, text: str) -> str:
    """Returns SQL that adds a duration to a time, or takes it away, in steps of less than a day.

    Spark adds each 24 hours of an interval as a day of the session's time zone, which has 23 or 25 hours when clocks
    change. The time for which it keeps the records has 24, so it would miss pairs.
    """
    whole_ms = milliseconds(text)
    steps, rest_ms = divmod(whole_ms, STEP_MS)
    if whole_ms < STEP_MS or steps > STEPS_MAX:
        return f" {sign} interval {text}"
    rest = f" {sign} interval {rest_ms // 1000} seconds" if rest_ms else ""
    return f" {sign} interval {STEP_MS // 1000} seconds" * steps + rest


def state_of(job: JoinJob) -> dict[str, str]:
    """Returns the settings that Spark's state of the two sides is made of."""
    return {"type": job.kind, "on": job.on, "columns": in_order(job.columns.values())}


def run_join(job: JoinJob, session: SparkSession | None = None, timeout_s: float | None = None) -> JobReport:
    """Joins until the present ends of the topics, or for ever with an interval as trigger.

    Raises:
        JobError: A query failed, or an expression does not fit the records.
    """
    sources = {"left": job.left, "right": job.right}
    with running(job.config, "join", sources, job.sink, session, state=state_of(job)) as session:
        rows = joined(read_stream(session, job.config, job.left), read_stream(session, job.config, job.right), job)
        return run_queries(starts_of(session, job.config, sources, rows, job.sink), timeout_s)
