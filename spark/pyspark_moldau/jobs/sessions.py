"""Groups the records of each key into sessions of event time, with state per key (``applyInPandasWithState``).

A session ends after a gap without records; see ``session_state``. Its columns are functions over its records in the
order of their event times: ``count``, ``first``, ``last``, ``sum``, ``min``, ``max`` and ``list``.

Spark hands timestamps to pandas as the local time of the session's time zone, while its watermarks count from 1970 in
UTC. So timestamps travel as numbers.
"""

from __future__ import annotations

import datetime
import pickle
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark_moldau.jobs.config.job_config import duration, in_order, load_config, sink_of, source_of
from pyspark_moldau.jobs.errors import JobConfigError
from pyspark_moldau.jobs.queries.expressions import aliased, check_names, checked_sql
from pyspark_moldau.jobs.queries.reading import read_stream
from pyspark_moldau.jobs.queries.running import JobReport, run_queries, running
from pyspark_moldau.jobs.queries.session_state import Event, advance, deadline_ms
from pyspark_moldau.jobs.queries.writing import starts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState
    from pyspark.sql.types import DataType

    from pyspark_moldau.jobs.config.job_config import JobConfig, SinkConfig, SourceConfig

_CALL: Final = re.compile(r"(count|first|last|sum|min|max|list)\((.+)\)", re.DOTALL)
_UNITS_MS: Final = {"second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
_FUNCTIONS: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "sum": lambda values: sum(_known(values)) if _known(values) else None,
    "min": lambda values: min(_known(values), default=None),
    "max": lambda values: max(_known(values), default=None),
    "count": lambda values: len(_known(values)),
    "list": lambda values: values,
}
EVENTS_MAX: Final = 100_000
SESSION_COLUMNS: Final = ("session_start", "session_end")
PLACE: Final = ("topic", "partition", "offset")
OWN: Final = "_moldau_"
"""Begins the names of columns that exist inside the query only, so that keys and columns may have any other name."""
TIME: Final = f"{OWN}time"
MILLIS: Final = f"{OWN}millis"
"""The event time in milliseconds since 1970 (UTC)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsJob:
    """A job of sessions, read from its file. ``columns`` holds function and expression by name."""

    config: JobConfig
    source: SourceConfig
    sink: SinkConfig
    event_time: str
    watermark: str
    gap_ms: int
    keys: Mapping[str, str]
    columns: Mapping[str, tuple[str, str]]
    where: str
    events_max: int


def sessions_job(path: Path, client: Mapping[str, str] | None = None) -> SessionsJob:
    """Reads the file of a job.

    ``client`` is what ``load_config`` takes.

    Raises:
        JobConfigError: A value is wrong.
    """
    config = load_config(path, client)
    source, sink = source_of(config), sink_of(config)
    section = config.root.section("sessions")
    columns = {}
    for name, text in section.mapping("columns").items():
        call = _CALL.fullmatch(text.strip())
        if call is None:
            raise section.error("columns", f"{name}: expected one of {', '.join(_FUNCTIONS)} with an argument: {text}")
        columns[name] = (call[1], call[2] if call[2].strip() != "*" else "1")
    job = SessionsJob(
        config=config,
        source=source,
        sink=sink,
        event_time=section.text("event_time", "timestamp"),
        watermark=duration(section, "watermark"),
        gap_ms=milliseconds(duration(section, "gap")),
        keys=section.mapping("keys"),
        columns=columns,
        where=section.text("where", ""),
        events_max=section.number("events_max", EVENTS_MAX, at_least=1, at_most=10_000_000),
    )
    check_names(section, SESSION_COLUMNS, keys=job.keys, columns=job.columns)
    section.finish()
    config.root.finish()
    return job


def milliseconds(text: str) -> int:
    """Returns the length of a duration that ``config`` has checked."""
    number, _, unit = text.partition(" ")
    return int(number) * _UNITS_MS[unit.rstrip("s")]


def sessions_of(records: DataFrame, job: SessionsJob) -> DataFrame:
    """Returns one row for each closed session: the keys, ``session_start``, ``session_end``, and the columns.

    ``session_end`` is the time of the last record. Both are cut to milliseconds. Records with a null key or event time
    are left out.

    Raises:
        JobConfigError: An expression does not fit the records, or a function not its argument.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import IntegralType, StringType, StructField, StructType, TimestampType

    names = list(job.keys)
    with checked_sql("[sessions]"):
        rows = records.where(job.where) if job.where else records
        rows = rows.select(
            *(functions.expr(sql).cast(StringType()).alias(name) for name, sql in job.keys.items()),
            functions.expr(job.event_time).alias(TIME),
            *(functions.col(name).alias(f"{OWN}{name}") for name in PLACE),
            *(functions.expr(sql).alias(f"{OWN}{number}") for number, (_, sql) in enumerate(job.columns.values())),
        ).dropna(subset=[*aliased(names), TIME])
        fields = [
            StructField(name, column_type(name, function, rows.schema[f"{OWN}{number}"].dataType))
            for number, (name, (function, _)) in enumerate(job.columns.items())
        ]
        rows = rows.withColumn(MILLIS, functions.unix_millis(TIME))
        # Numbers travel as texts, because pandas makes floats of those that have a null among them.
        kinds = {number: rows.schema[f"{OWN}{number}"].dataType for number in range(len(job.columns))}
        moments = frozenset(number for number, kind in kinds.items() if isinstance(kind, TimestampType))
        for number in sorted(moments):
            rows = rows.withColumn(f"{OWN}{number}", functions.unix_micros(f"{OWN}{number}"))
        integers = frozenset(
            number
            for number in range(len(job.columns))
            if isinstance(rows.schema[f"{OWN}{number}"].dataType, IntegralType)
        )
        texts = {f"{OWN}{number}": functions.col(f"{OWN}{number}").cast(StringType()) for number in sorted(integers)}
        rows = rows.withColumns(texts) if texts else rows
    output = StructType(
        [
            *(StructField(name, StringType()) for name in names),
            *(StructField(name, TimestampType()) for name in SESSION_COLUMNS),
            *fields,
        ]
    )
    functions_of = {name: function for name, (function, _) in job.columns.items()}
    step = partial(_step, job.gap_ms, job.events_max, tuple(names), functions_of, integers, moments)
    return (
        rows.withWatermark(TIME, job.watermark)
        .groupBy(*aliased(names))
        .applyInPandasWithState(step, output, "sessions binary", "append", "EventTimeTimeout")
    )


def state_of(job: SessionsJob) -> dict[str, str]:
    """Returns the settings that the state of the sessions is made of; their functions count at the end only."""
    return {"keys": in_order(job.keys.values()), "columns": in_order(sql for _, sql in job.columns.values())}


def run_sessions(job: SessionsJob, session: SparkSession | None = None, timeout_s: float | None = None) -> JobReport:
    """Runs until the present ends of the topics, or for ever with an interval as trigger.

    Raises:
        JobError: A query failed, or an expression does not fit the records.
    """
    with running(job.config, "sessions", {"source": job.source}, job.sink, session, state=state_of(job)) as session:
        rows = sessions_of(read_stream(session, job.config, job.source), job)
        return run_queries(starts_of(session, job.config, {"source": job.source}, rows, job.sink), timeout_s)


def _step(
    gap_ms: int,
    events_max: int,
    names: tuple[str, ...],
    functions: Mapping[str, str],
    integers: frozenset[int],
    moments: frozenset[int],
    key: tuple[str, ...],
    frames: Iterator[pd.DataFrame],
    state: GroupState,
) -> Iterator[pd.DataFrame]:
    """Runs in tasks, for each key with new records or a session to close."""
    import pandas as pd

    sessions: list[list[Event]] = pickle.loads(state.get[0]) if state.exists else []
    events = [event for frame in frames for event in _events(frame, len(functions), integers, moments)]
    watermark_ms = state.getCurrentWatermarkMs()
    step = advance(sessions, events, watermark_ms=watermark_ms, gap_ms=gap_ms, events_max=events_max)
    if step.open:
        state.update((pickle.dumps(step.open),))
        deadline = deadline_ms(step.open, gap_ms)
        assert deadline is not None, "there is an open session"
        state.setTimeoutTimestamp(max(deadline, watermark_ms + 1))
    elif state.exists:
        state.remove()
    if step.closed:
        columns = [*SESSION_COLUMNS, *functions]
        rows = [(*key, *_summary(session, functions, moments)) for session in step.closed]
        # Objects keep integers with nulls among them what they are.
        yield pd.DataFrame(rows, columns=[*names, *columns], dtype=object)


def _events(frame: pd.DataFrame, columns: int, integers: frozenset[int], moments: frozenset[int]) -> Iterator[Event]:
    """Returns events; timestamps among their values are in UTC, without a time zone."""
    import pandas as pd

    times = frame[MILLIS]
    places = zip(*(frame[f"{OWN}{name}"].tolist() for name in PLACE), strict=True)
    values: list[list[object]] = []
    for number in range(columns):
        column = frame[f"{OWN}{number}"]
        found = [None if is_null else value for value, is_null in zip(column.tolist(), column.isna(), strict=True)]
        if number in integers:
            found = [None if value is None else int(value) for value in found]
        if number in moments:
            found = [None if value is None else pd.Timestamp(value, unit="us") for value in found]
        values.append(found)
    yield from zip(times.tolist(), places, zip(*values, strict=True), strict=True)


def _summary(session: list[Event], functions: Mapping[str, str], moments: frozenset[int]) -> Iterator[Any]:
    for time_ms in (session[0][0], session[-1][0]):
        yield datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    for index, function in enumerate(functions.values()):
        found = _FUNCTIONS[function]([event[2][index] for event in session])
        yield _in_utc(found) if index in moments and function != "count" else found


def _in_utc(found: Any) -> Any:  # noqa: ANN401 - a value of a column, or a list of them
    if isinstance(found, list):
        return [_in_utc(each) for each in found]
    return None if found is None else found.tz_localize("UTC")


def _known(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def column_type(name: str, function: str, argument: DataType) -> DataType:
    """Returns the type of a column.

    Raises:
        JobConfigError: The function cannot be applied to its argument.
    """
    from pyspark.sql.types import ArrayType, DoubleType, IntegralType, LongType

    if function == "count":
        return LongType()
    if function == "list":
        return ArrayType(argument)
    _check_argument(name, function, argument)
    if function == "sum":
        return LongType() if isinstance(argument, IntegralType) else DoubleType()
    return argument


def _check_argument(name: str, function: str, argument: DataType) -> None:
    """Checks a type before Spark starts the query: the session would fail, and so would each further start.

    Raises:
        JobConfigError: It is the wrong one.
    """
    from pyspark.sql.types import ArrayType, BooleanType, MapType, NullType, NumericType, StructType, VariantType

    wanted = ""
    if function == "sum" and not isinstance(argument, NumericType | BooleanType | NullType):
        wanted = "numbers"
    if function in ("min", "max") and isinstance(argument, ArrayType | MapType | StructType | VariantType):
        wanted = "values that have an order"
    if wanted:
        raise JobConfigError(
            f"[sessions] columns: {name}: {function} takes {wanted}, and its argument is {argument.simpleString()}; "
            "cast it, or take a part of it"
        )
