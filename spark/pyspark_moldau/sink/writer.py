"""The writers that Spark calls: ``write`` in tasks, ``commit`` and ``abort`` in a Python process of the driver."""

from __future__ import annotations

import functools
import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_moldau.errors import SinkError, message_first
from pyspark_moldau.plans import plan_of
from pyspark_moldau.sink.core.refusals import ProtocolRefusedError, TryAgainError
from pyspark_moldau.sink.names import Attempt, Names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark import TaskContext

    from pyspark_moldau.sink.core.effects import Report
    from pyspark_moldau.sink.core.sink_options import SinkOptions

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The report of a task to the driver. ``report`` is None for at-least-once."""

    rows: int
    app_id: str = ""
    run: str = ""
    report: Report | None = None


def _explained(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates what Spark calls: errors of the protocol too become an error whose message Spark shows first."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (ProtocolRefusedError, TryAgainError) as error:
            raise SinkError(f"deliveryGuarantee exactly-once: {error}") from error

    return message_first(call)


def _warn_of_ignored(options: SinkOptions) -> None:
    for key in options.ignored:
        logger.warning("option kafka.%s has no effect: Moldau's client has no such setting", key)


def _context() -> TaskContext:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "write runs in a task"
    return context


def _reports(messages: Sequence[WriterCommitMessage | None], batch: int) -> tuple[str, str, list[Report]]:
    """Returns application id, run and the reports by partition.

    Raises:
        ProtocolRefusedError: a partition is missing, there twice, or of another batch.
    """
    reported = [message for message in messages if isinstance(message, Written)]
    reports = sorted((each.report for each in reported if each.report is not None), key=lambda each: each.partition)
    numbers = [report.partition for report in reports]
    if numbers != list(range(len(messages))) or any(report.batch != batch for report in reports):
        raise ProtocolRefusedError(f"batch {batch}: {len(messages)} tasks ended, and the reports are of {numbers}")
    return reported[0].app_id, reported[0].run, reports


class MoldauBatchWriter(DataSourceArrowWriter):
    """Writes a batch query: all of its rows become visible when the job ends, or none (exactly once)."""

    def __init__(self, options: SinkOptions) -> None:
        _warn_of_ignored(options)
        self._options = options
        self._run = uuid.uuid4().hex
        self._app_id = options.app_id or self._run

    @_explained
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs in a task."""
        from pyspark_moldau.sink import task

        if not self._options.is_exactly_once:
            return Written(rows=task.write_at_least_once(self._options, iterator))
        context = _context()
        attempt = Attempt(
            names=_names(self._options, self._app_id),
            batch=self._options.version,
            run=self._run,
            partition=context.partitionId(),
            attempt=context.attemptNumber(),
        )
        report = task.write_exactly_once(self._options, attempt, iterator)
        rows = 0 if report.entry is None else report.entry.rows
        return Written(rows=rows, app_id=self._app_id, run=self._run, report=report)

    @_explained
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Makes the rows visible."""
        _commit(self._options, messages, self._options.version)

    @_explained
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drops the rows of a job that failed."""
        _abort(self._options, messages, self._options.version)


class MoldauStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def __init__(self, options: SinkOptions) -> None:
        _warn_of_ignored(options)
        self._options = options

    @_explained
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs in a task."""
        from pyspark_moldau.sink import task

        if not self._options.is_exactly_once:
            return Written(rows=task.write_at_least_once(self._options, iterator))
        context = _context()
        query, batch, run = (
            context.getLocalProperty(name)
            for name in ("sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id")
        )
        if not query or not batch or not run:
            raise ProtocolRefusedError(
                f"Spark names no query ({query}), batch ({batch}) or run ({run}) to "
                "this task; in foreachBatch write with the options txnAppId and txnVersion"
            )
        attempt = Attempt(
            names=_names(self._options, query),
            batch=int(batch),
            run=run,
            partition=context.partitionId(),
            attempt=context.attemptNumber(),
        )
        report = task.write_exactly_once(self._options, attempt, iterator)
        rows = 0 if report.entry is None else report.entry.rows
        return Written(rows=rows, app_id=query, run=run, report=report)

    @_explained
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Makes the rows of a micro-batch visible."""
        _commit(self._options, messages, batchId)

    @_explained
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Drops the rows of a micro-batch that failed."""
        _abort(self._options, messages, batchId)


def _names(options: SinkOptions, app_id: str) -> Names:
    return Names(app_id=app_id, has_notes=options.is_repeatable)


def _commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
    if not options.is_exactly_once or not messages:
        return
    from pyspark_moldau.sink import driver

    app_id, run, reports = _reports(messages, batch)
    driver.commit_batch(options, _names(options, app_id), batch, run, reports, plan_of(options.checkpoint, batch))


def _abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
    reported = [message for message in messages if isinstance(message, Written) and message.app_id]
    if not options.is_exactly_once or not reported:
        return  # no task has reported the query's id; the next commit aborts what is open, or its time-out does
    from pyspark_moldau.sink import driver

    driver.abort_batch(options, _names(options, reported[0].app_id), batch)
