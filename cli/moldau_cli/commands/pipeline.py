"""``moldau pipeline``: runs jobs on Spark that TOML files describe."""

from __future__ import annotations

import importlib.util
import logging
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.settings import whole_command_config
from moldau_cli.errors import AnsweredError, CommandError, UsageError
from moldau_cli.progress import waiting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark_moldau.jobs.export import ExportJob, ExportReport
    from pyspark_moldau.jobs.queries.running import JobReport

PACKAGES = ("pyspark", "pyarrow", "pandas", "fastavro", "fastjsonschema", "google.protobuf", "deltalake")
ConfigFile = Annotated[Path, typer.Argument(metavar="FILE", help="The TOML file of the job.")]

VersionNumber = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Number of a version.")]

views = typer.Typer(help="Build versions of a view, compare them, and switch between them.", rich_markup_mode=None)
commands = typer.Typer(help="Run pipeline jobs on Spark: topics to tables, and back.", rich_markup_mode=None)
commands.add_typer(views, name="views")


@commands.command()
def load(file: ConfigFile) -> None:
    """Load topics into a table (Parquet or Delta) by topic and date, each record once."""
    with _job_errors():
        from pyspark_moldau.jobs.load import load_job, run_load

        report = run_load(load_job(file, whole_command_config()))
    document = _document(report.job)
    text = _text(report.job)
    if report.files is not None:
        before, after = report.files
        document |= {"files_before": before, "files_after": after}
        if before != after:
            text += f"\ncompacted     {before} files into {after}"
    output.answer(document, text)


@commands.command()
def export(file: ConfigFile) -> None:
    """Write a table back to a topic, each row once."""
    with _job_errors():
        from pyspark_moldau.jobs.export import export_job, run_export

        job = export_job(file, whole_command_config())
        report = run_export(job)
    output.answer(
        {
            "rows": report.rows,
            "table_rows": report.table_rows,
            "topic": job.sink.topic,
            "name": job.name,
            "version": job.version,
        },
        export_text(job, report),
    )


def export_text(job: ExportJob, report: ExportReport) -> str:
    """Returns the answer to an export; it names what a version that was written before does not have."""
    text = f"{job.name}, version {job.version}: "
    if report.rows is None:
        return f"{text}it was written before; the table has {report.table_rows:,} rows for it now"
    text += f"{report.rows:,} rows are in topic {job.sink.topic}"
    if report.rows != report.table_rows:
        text += (
            f"\nit was written before, and the table has {report.table_rows:,} rows for it now: a new export needs a "
            "greater version"
        )
    return text


@commands.command()
def aggregate(file: ConfigFile) -> None:
    """Aggregate records by windows of event time with a watermark, into a table or a topic."""
    with _job_errors():
        from pyspark_moldau.jobs.aggregate import aggregate_job, run_aggregate

        report = run_aggregate(aggregate_job(file, whole_command_config()))
    output.answer(_document(report), _text(report))


@commands.command()
def sessions(file: ConfigFile) -> None:
    """Group the records of each key into sessions of event time, into a table or a topic."""
    with _job_errors():
        from pyspark_moldau.jobs.sessions import run_sessions, sessions_job

        report = run_sessions(sessions_job(file, whole_command_config()))
    output.answer(_document(report), _text(report))


@commands.command()
def join(file: ConfigFile) -> None:
    """Join two topics by a condition and the distance of event times, into a table or a topic."""
    with _job_errors():
        from pyspark_moldau.jobs.join import join_job, run_join

        report = run_join(join_job(file, whole_command_config()))
    output.answer(_document(report), _text(report))


@commands.command()
def package(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write, such as moldau-spark.zip.")],
) -> None:
    """Write what the workers of a Spark cluster need of Moldau into one archive."""
    with _job_errors():
        from pyspark_moldau.session.packaging import write_package

        try:
            found = write_package(file)
        except OSError as error:
            raise UsageError(f"cannot write {file}: {error.strerror or error}") from error
    lines = [f'"{name}" = "{value}"' for name, value in found.settings.items()]
    output.answer(
        {
            "path": str(found.path),
            "files": found.files,
            "bytes": found.size_bytes,
            "distributions": list(found.distributions),
            "settings": dict(found.settings),
        },
        f"{found.path}: {found.files:,} files, {found.size_bytes / 1e6:.1f} MB; for the job's file:\n\n[spark]\n"
        + "\n".join(lines),
    )


@views.command("build")
def build_view(
    file: ConfigFile,
    batch: Annotated[bool, typer.Option("--batch", help="Build by one batch query, instead of a stream.")] = False,
) -> None:
    """Build the next version of a view from offset zero, beside the current one."""
    with _job_errors():
        from pyspark_moldau.jobs.views import build, view_job

        version, report = build(view_job(file, whole_command_config()), "batch" if batch else "stream")
    document: dict[str, output.Json] = {"version": version.number, "form": version.form}
    text = f"version {version.number} is complete; compare it, and then switch to it"
    if report is not None:
        document |= _document(report)
        text = f"{_text(report)}\n{text}"
    output.answer(document, text)


@views.command("follow")
def follow_view(file: ConfigFile) -> None:
    """Bring the current version up to the present end of the log."""
    with _job_errors():
        from pyspark_moldau.jobs.views import follow, view_job

        report = follow(view_job(file, whole_command_config()))
    output.answer(_document(report), _text(report))


@views.command("list")
def list_views(file: ConfigFile) -> None:
    """Show the versions of a view."""
    with _job_errors():
        from pyspark_moldau.jobs.views import current_of, versions_of, view_job

        path = view_job(file, whole_command_config()).path
        current, previous = current_of(path)
        found = versions_of(path)
    rows: list[dict[str, output.Json]] = [
        {
            "version": one.number,
            "form": one.form,
            "complete": one.is_complete,
            "role": {current: "current", previous: "former"}.get(one.number),
        }
        for one in found
    ]
    output.answer_rows("versions", ["version", "form", "complete", "role"], rows)


@views.command("compare")
def compare_views(file: ConfigFile, first: VersionNumber, second: VersionNumber) -> None:
    """Show how many rows only one of two versions has; exit code 1 if they differ."""
    with _job_errors():
        from pyspark_moldau.jobs.queries.running import job_session
        from pyspark_moldau.jobs.views import compare, view_job

        job = view_job(file, whole_command_config())
        found = compare(job.path, first, second, job_session(job.config))
    examples: list[output.Json] = list(found.examples)
    text = f"{found.only_first:,} rows only in version {first}, {found.only_second:,} only in version {second}"
    output.answer(
        {"only_first": found.only_first, "only_second": found.only_second, "examples": examples},
        "\n".join([text, *found.examples]),
    )
    if found.only_first or found.only_second:
        raise AnsweredError(text)


@views.command("switch")
def switch_view(file: ConfigFile, version: VersionNumber) -> None:
    """Make a version current, in one step; the former one stays for rollback."""
    with _job_errors():
        from pyspark_moldau.jobs.views import switch, view_job

        current, former = switch(view_job(file, whole_command_config()).path, version)
    output.answer({"current": current, "former": former}, f"version {current} is current")


@views.command("rollback")
def rollback_view(file: ConfigFile) -> None:
    """Make the former version current again."""
    with _job_errors():
        from pyspark_moldau.jobs.views import rollback, view_job

        current, former = rollback(view_job(file, whole_command_config()).path)
    output.answer({"current": current, "former": former}, f"version {current} is current again")


@contextmanager
def _job_errors() -> Iterator[None]:
    """Turns the errors of jobs into one line each.

    Raises:
        UsageError: A package is missing, or the job's file is wrong.
        CommandError: The job failed.
    """
    missing = [name for name in PACKAGES if not _is_installed(name)]
    if missing:
        raise UsageError(f"pipeline jobs need {', '.join(missing)}, not installed here: pip install 'moldau[jobs]'")
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    from pyspark_moldau.errors import USER_ERRORS
    from pyspark_moldau.jobs.errors import JobConfigError, JobError
    from pyspark_moldau.jobs.queries.running import first_line
    from pyspark_moldau.session import UnsupportedSparkError
    from pyspark_moldau.session.java import NoJavaError

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):  # they print the plan of each refused query
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_no_interrupted_call)
    try:
        with waiting("the job is at work; Ctrl-C ends it"):
            yield
    except JobConfigError as error:
        raise UsageError(str(error)) from error
    except (JobError, NoJavaError, UnsupportedSparkError, *USER_ERRORS) as error:
        raise CommandError(str(error)) from error
    except PySparkException as error:  # Spark refuses the plan: an option of the source, or the cluster does not answer
        raise CommandError(first_line(str(error))) from error
    except Exception as error:
        if not type(error).__module__.startswith("py4j"):
            raise
        # PySpark does not translate every error of the JVM, such as one of the file system.
        raise CommandError(first_line(str(error))) from error
    finally:
        logging.getLogger().removeFilter(_is_no_interrupted_call)


def _is_no_interrupted_call(record: logging.LogRecord) -> bool:
    """Keeps out the tracebacks that py4j writes when Ctrl-C interrupts a call of the JVM."""
    return not str(record.msg).endswith(" while sending command.")


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _document(report: JobReport) -> dict[str, output.Json]:
    queries: dict[str, output.Json] = {}
    for name, rows in report.rows.items():
        counted: dict[str, output.Json] = {"records": rows, "batches": report.batches[name]}
        if name in report.dead_letters:
            counted["dead_letters"] = report.dead_letters[name]
        queries[name] = counted
    return {"queries": queries, "late_rows": report.late_rows}


def _text(report: JobReport) -> str:
    lines = []
    for name, rows in report.rows.items():
        found = f"{report.dead_letters[name]:,} of " if name in report.dead_letters else ""
        lines.append(f"{name:<13} {found}{rows:,} records in {report.batches[name]:,} micro-batches")
    if report.late_rows:
        lines.append(f"late          {report.late_rows:,} rows came after the watermark and are not in the result")
    return "\n".join(lines)
