"""Starts the queries of a job and waits for their end.

A query that Spark gave up before its first batch, because the Python process of its source did not answer in time on a
busy machine, is started again: its checkpoint says where it goes on.
"""

from __future__ import annotations

import logging
import operator
import re
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark_moldau.jobs.config.folders import held
from pyspark_moldau.jobs.config.job_config import AVAILABLE_NOW, FAIL_ON_DATA_LOSS, check_job
from pyspark_moldau.jobs.errors import JobError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from pyspark_moldau.jobs.config.job_config import JobConfig, SinkConfig, SourceConfig

logger = logging.getLogger(__name__)

POLL_S: Final = 0.2
CONNECT: Final = "pyspark.sql.connect"
MASTER: Final = "spark.master"
LOCAL: Final = "local"
SPARK_LOG: Final = "spark.log"
"""The file, in the folder of checkpoints, with the stderr of Spark in the last run of a job with a local session."""
NO_JVM: Final = "JAVA_GATEWAY_EXITED"
LOG_LEVEL: Final = "spark.log.level"
STARTS_MAX: Final = 4
BATCHES_MAX: Final = 1000
"""The micro-batches whose figures are kept one by one; Spark keeps the reports of the last hundred triggers."""
DEAD_LETTERS: Final = "dead-letters"
"""How names of queries begin that copy dead letters, and the name of Spark's observation that counts these."""
_OWN_ERROR: Final = re.compile(r"\bpyspark_moldau\.[\w.]+Error: ")
WRITE_FAILED: Final = "[TASK_WRITE_FAILED]"
"""Spark's error of a task that could not write a file; only its cause says why, for example a full disk."""
CAUSE: Final = "Caused by: "
NAME_TAKEN: Final = "a query with that name is already active"
SLOW_START: Final = "connect back"
"""Spark gives the Python process of a stream's source ten seconds from its start to its first connection."""
TORN_TASK: Final = "java.io.OptionalDataException"
"""Each stream's source puts settings into a map of the JVM that all streams share. A task of another query that Spark
writes down meanwhile cannot be read, in none of its attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """The results of a run's queries.

    ``rows`` counts what each query read, ``dead_letters`` what those of them wrote that copy dead letters.
    ``late_rows`` came after the watermark, as Spark's state operators count.
    """

    rows: Mapping[str, int]
    batches: Mapping[str, int]
    late_rows: int = 0
    dead_letters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Numbers of records that a query read in a micro-batch, left out as late, and wrote as dead letters; or sums."""

    rows: int = 0
    late: int = 0
    dead: int = 0

    def joined(self, other: Figures, join: Callable[[int, int], int]) -> Figures:
        """Returns the figures of both, each joined by the function."""
        return Figures(
            rows=join(self.rows, other.rows), late=join(self.late, other.late), dead=join(self.dead, other.dead)
        )


class Progress:
    """The figures of a query, from Spark's reports. Reports of one micro-batch may come more than once.

    A job with an interval as its trigger may run for months, so only the newest micro-batches are kept one by one.
    """

    def __init__(self) -> None:
        self.count = 0
        self.sums = Figures()
        self._newest: dict[int, Figures] = {}
        self._first = 0  # no report of an earlier micro-batch counts any more

    def add(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Takes the reports that Spark has kept."""
        for report in reports:
            number = int(report["batchId"])
            if number < self._first:
                continue
            observed = report["observedMetrics"].get(DEAD_LETTERS)
            found = Figures(
                rows=int(report["numInputRows"]),
                late=sum(int(one["numRowsDroppedByWatermark"]) for one in report["stateOperators"]),
                dead=0 if observed is None else int(observed["records"]),
            )
            known = self._newest.get(number)
            self._newest[number] = found if known is None else known.joined(found, max)
            self.count += known is None
            before = Figures() if known is None else known
            more = self._newest[number].joined(before, operator.sub)
            self.sums = self.sums.joined(more, operator.add)
        while len(self._newest) > BATCHES_MAX:
            oldest = min(self._newest)
            del self._newest[oldest]
            self._first = oldest + 1


@contextmanager
def running(
    config: JobConfig,
    kind: str,
    sources: Mapping[str, SourceConfig],
    sink: SinkConfig,
    session: SparkSession | None = None,
    *,
    state: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Holds the folder of a job that has a sink, checks the job, and gives the session for its queries.

    Other runs are kept away until the queries have ended. Spark starts last, because that takes seconds. ``state`` is
    that of ``check_job``.

    Raises:
        JobBusyError: Another run of the job is at work.
        JobConfigError: The folder cannot be used, or is another job's, or has another state, or a topic does not exist.
        JobError: Spark refuses a setting, or its cluster does not answer.
        OptionError: The login was refused, or the principal may not describe a topic.
        ReadTimeoutError: No broker answered in time.
    """
    check_session(session)
    with held(config.root, config.checkpoint):
        check_job(config, kind, sources, sink, state=state)
        yield session or job_session(config)


def check_session(session: SparkSession | None) -> None:
    """Checks that the driver of a session is this process, where the code of a job's micro-batches runs.

    Raises:
        JobError: It is a session of Spark Connect.
    """
    if type(session).__module__.startswith(CONNECT):
        raise JobError(
            "a job cannot run in a session of Spark Connect, whose driver is another process; leave the session out, "
            "or give one of local_session or cluster_session (pyspark_moldau.session)"
        )


def job_session(config: JobConfig) -> SparkSession:
    """Starts (or returns) the session of a job: a local one, or that of the cluster at the setting ``spark.master``.

    Raises:
        JobError: Spark refuses a setting, or its cluster does not answer.
        NoJavaError: No suitable Java was found.
        UnsupportedSparkError: PySpark is too old.
    """
    from pyspark_moldau.session import cluster_session, local_session, start_jvm

    master = config.session.get(MASTER, LOCAL)
    level = config.session.get(LOG_LEVEL)
    log = config.checkpoint / SPARK_LOG
    try:
        # The error of a job says in one line why a query ended; Spark would log some hundred lines about it before.
        if not master.startswith(LOCAL):
            return cluster_session("moldau-pipeline", settings=config.session, log_level=level or "FATAL")
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        start_jvm(log, config.session)
        return local_session("moldau-pipeline", cores=config.cores, settings=config.session, log_level=level or "ERROR")
    except Exception as error:
        if NO_JVM in str(error) and log.exists():
            raise JobError(f"[spark] Spark's JVM does not start; the end of {log} says why") from error
        if not type(error).__module__.startswith("py4j"):
            raise
        # The JVM refuses a setting before PySpark translates its errors.
        raise JobError(f"[spark] Spark does not start with {MASTER} {master}: {first_line(str(error))}") from error


def started(writer: DataStreamWriter, name: str, config: JobConfig, checkpoint: Path) -> StreamingQuery:
    """Starts a query with the job's trigger.

    Raises:
        JobError: Another job runs in the same session.
    """
    from pyspark.errors import IllegalArgumentException

    writer = writer.queryName(name).option("checkpointLocation", str(checkpoint))
    is_once = config.trigger == AVAILABLE_NOW
    writer = writer.trigger(availableNow=True) if is_once else writer.trigger(processingTime=config.trigger)
    try:
        return writer.start()
    except IllegalArgumentException as error:
        if NAME_TAKEN not in str(error):
            raise
        raise JobError(
            f"query {name} cannot start: another job is at work in this session; let it end first, or give each job a "
            "session of its own (session.newSession())"
        ) from error


def topic_writer(rows: DataFrame, config: JobConfig, topic: str) -> DataStreamWriter:
    """Returns the writer of a stream to a topic, exactly once."""
    options = config.cluster.sink_options() | {"topic": topic, "deliveryGuarantee": "exactly-once"}
    return rows.writeStream.format("moldau").options(**options)


def run_queries(starts: Mapping[str, Callable[[], StreamingQuery]], timeout_s: float | None = None) -> JobReport:
    """Runs queries until all have ended; the first failure stops the others.

    Without a timeout, queries with an interval as their trigger run until the process is interrupted.

    Raises:
        JobError: A query failed, or did not end in time.
    """
    progress = {name: Progress() for name in starts}
    tries = dict.fromkeys(starts, 1)
    queries: dict[str, StreamingQuery] = {}
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    with ExitStack() as stops:  # one that cannot be stopped leaves none of the others running
        for name, start in starts.items():
            queries[name] = start()
            stops.callback(queries[name].stop)
        while True:
            active = False
            for name, query in list(queries.items()):
                is_active = query.isActive
                progress[name].add(query.recentProgress)
                if is_active:
                    active = True
                elif (failure := query.exception()) is not None:
                    text = str(failure)
                    may_pass = SLOW_START in text or TORN_TASK in text
                    if not may_pass or tries[name] == STARTS_MAX:
                        raise JobError(f"query {name} failed: {for_jobs(first_line(text))}") from failure
                    logger.warning("started-again query=%s try=%d", name, tries[name])
                    tries[name] += 1
                    queries[name] = starts[name]()
                    stops.callback(queries[name].stop)
                    active = True
            if not active:
                break
            if deadline is not None and time.monotonic() > deadline:
                raise JobError(f"the queries {', '.join(starts)} did not end within {timeout_s:g} s")
            time.sleep(POLL_S)
    return JobReport(
        rows={name: one.sums.rows for name, one in progress.items()},
        batches={name: one.count for name, one in progress.items()},
        late_rows=sum(one.sums.late for one in progress.values()),
        dead_letters={name: one.sums.dead for name, one in progress.items() if name.startswith(DEAD_LETTERS)},
    )


def for_jobs(text: str) -> str:
    """Returns an error of the source with the job's names for its options."""
    return text.replace("set failOnDataLoss to false", f"set [source] {FAIL_ON_DATA_LOSS} = false")


def first_line(text: str) -> str:
    """Returns the most informative line of a Spark error: the last Python or Java exception, or the first line."""
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    named = [line for line in lines if line.split(":")[0].endswith(("Error", "Exception")) and ": " in line]
    chosen = named[-1] if named else (lines or ["unknown"])[0]
    causes = [line.removeprefix(CAUSE) for line in lines if line.startswith(CAUSE) and ": " in line.removeprefix(CAUSE)]
    if WRITE_FAILED in chosen and causes:
        chosen = causes[-1] if _OWN_ERROR.search(causes[-1]) else f"{chosen} ({causes[-1]})"
    # The text of an error of ours says it all, without the names of Spark's step and of the class.
    return _OWN_ERROR.split(chosen, maxsplit=1)[-1][:1000]
