"""Writes a table back to a topic, exactly once.

An export is a batch: its name and version say whether it was done already (``txnAppId`` and ``txnVersion`` of the
sink), so a killed or repeated export writes nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_moldau.jobs.config.job_config import COUNT_MAX, EXPORT, check_job, load_config, sink_of
from pyspark_moldau.jobs.errors import JobConfigError, JobError
from pyspark_moldau.jobs.files import OWNER
from pyspark_moldau.jobs.queries.running import first_line, job_session
from pyspark_moldau.jobs.queries.writing import to_records
from pyspark_moldau.jobs.tables import read_table, spark_path
from pyspark_moldau.sink.core.sink_options import APP_ID_MAX, parse_sink_options

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from pyspark_moldau.jobs.config.job_config import JobConfig, SinkConfig
    from pyspark_moldau.jobs.config.settings import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportJob:
    """An export, read from its file. ``where`` is an SQL condition; ``version`` grows with each new export."""

    config: JobConfig
    sink: SinkConfig
    table: Path
    where: str
    order_by: tuple[str, ...]
    name: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """The rows of a version that are in the topic, and those that the table has for the export now.

    ``rows`` is None for a version that was written so long ago that only its end is known. The two differ if the table
    or the file has changed since the version was written.
    """

    rows: int | None
    table_rows: int


def export_job(path: Path, client: Mapping[str, str] | None = None) -> ExportJob:
    """Reads the file of an export.

    ``client`` is what ``load_config`` takes.

    Raises:
        JobConfigError: A value is wrong.
    """
    config = load_config(path, client)
    sink = sink_of(config)
    section = config.root.section(EXPORT)
    if sink.path is not None:
        raise section.error("sink", "an export writes a topic; give [sink] topic")
    job = ExportJob(
        config=config,
        sink=sink,
        table=section.table_path("table", config.folder),
        where=section.text("where", ""),
        order_by=section.texts("order_by", ()),
        name=_name_of(section),
        version=section.number("version", -1, at_least=0, at_most=COUNT_MAX),
    )
    section.finish()
    config.root.finish()
    return job


def _name_of(section: Section) -> str:
    name = section.text("name")
    if len(name) > APP_ID_MAX:
        raise section.error("name", f"expected at most {APP_ID_MAX} characters, got {len(name)}")
    return name


def reason_of(error: Exception) -> str:
    """Returns the reason of an export's failure, with the job's names for the sink's options."""
    text = first_line(str(error))
    return text.replace("txnAppId", "[export] name").replace("txnVersion", "[export] version")


def address_of(table: Path) -> str:
    """Returns what Spark reads for a folder of Parquet files: the folder itself, or those that a pattern names."""
    return spark_path(table) if table.exists() else str(table)


def run_export(job: ExportJob, session: SparkSession | None = None) -> ExportReport:
    """Writes the rows. A version that is written stays as it is.

    The table is one that a job wrote, or any folder of Parquet files.

    Raises:
        JobConfigError: There is no such table, or a topic does not exist.
        JobError: The table cannot be read, or the cluster refuses the rows.
    """
    from pyspark.errors import AnalysisException, PySparkException

    from pyspark_moldau.sink.driver import written_rows
    from pyspark_moldau.sink.names import Names

    if not job.table.exists() and not set(job.table.name) & set("*?[{"):  # Spark takes patterns of paths
        text = f"{job.table} does not exist; give the table of a job, or a folder of Parquet files"
        raise job.config.root.error("[export] table", text)
    check_job(job.config, EXPORT, {}, job.sink)
    session = session or job_session(job.config)
    try:
        is_own = (job.table / OWNER).exists()
        # Without mergeSchema, Spark would leave out columns that the file which it looks at first does not have.
        files = session.read.option("mergeSchema", "true")
        rows = read_table(session, job.table) if is_own else files.parquet(address_of(job.table))
        rows = rows.where(job.where) if job.where else rows
        rows = rows.repartition(1).sortWithinPartitions(*job.order_by) if job.order_by else rows
    except AnalysisException as error:
        raise JobConfigError(f"[export] table, where or order_by: {str(error).splitlines()[0]}") from error
    records = to_records(rows, job.sink)
    options = job.config.cluster.sink_options() | {"topic": job.sink.topic, "deliveryGuarantee": "exactly-once"}
    options |= {"txnAppId": job.name, "txnVersion": str(job.version)}
    try:
        records.write.format("moldau").options(**options).mode("append").save()
        count = rows.count()
    except PySparkException as error:
        raise JobError(f"export {job.name}, version {job.version}: {reason_of(error)}") from error
    except Exception as error:
        if type(error).__module__.startswith("py4j"):
            raise JobError(f"export {job.name}, version {job.version}: {reason_of(error)}") from error
        raise
    # The count alone would claim rows of a table that has changed since the version was written.
    written = written_rows(parse_sink_options(options, streaming=False), Names(app_id=job.name), job.version)
    return ExportReport(rows=written if written is not None or count else 0, table_rows=count)
