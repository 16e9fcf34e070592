"""Groups the records of each key into sessions of event time, with state per key (``applyInPandasWithState``).

A session ends after a gap without records; see ``session_state``. Its columns are functions over its records in the
order of their event times: ``count``, ``first``, ``last``, ``sum``, ``min``, ``max`` and ``list``.

Spark hands timestamps to pandas as the local time of the session's time zone, while its watermarks count from 1970 in
UTC. So timestamps travel as numbers, and so do other values that pandas or Python would change: see ``session_values``.
"""

from __future__ import annotations

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
from pyspark_moldau.jobs.queries.session_values import (
    FUNCTIONS,
    carrier_of,
    given,
    has_collation,
    read,
    returned,
    summary_of,
)
from pyspark_moldau.jobs.queries.writing import starts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState
    from pyspark.sql.types import DataType

    from pyspark_moldau.jobs.config.job_config import JobConfig, SinkConfig, SourceConfig
    from pyspark_moldau.jobs.queries.session_values import Carrier

_CALL: Final = re.compile(r"(count|first|last|sum|min|max|list)\((.+)\)", re.DOTALL)
_UNITS_MS: Final = {"second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
EVENTS_MAX: Final = 100_000
SESSION_COLUMNS: Final = ("session_start", "session_end")
PLACE: Final = ("topic", "partition", "offset")
OWN: Final = "_moldau_"
"""Begins the names of columns that exist inside the query only, so that keys and columns may have any other name."""
TIME: Final = f"{OWN}time"
MILLIS: Final = f"{OWN}millis"
"""The event time in milliseconds since 1970 (UTC)."""
LATEST: Final = "2262-04-11"
"""The last event times: Spark hands the column of the watermark to pandas, which counts nanoseconds in 63 bits."""
TOO_LATE: Final = (
    f"an event time of a session is {LATEST} or later, and would leave out all records after it as late; leave it out "
    "by [sessions] where, or correct event_time (does it take milliseconds for microseconds?)"
)
NO_TEXT: Final = (
    "a key or a text of a session is no UTF-8, and would not reach Python; write hex(key) for the key, or decode it as "
    "its producer has encoded it, or leave such records out by [sessions] where"
)


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
            raise section.error("columns", f"{name}: expected one of {', '.join(FUNCTIONS)} with an argument: {text}")
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
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    keys = [f"{OWN}key_{number}" for number in range(len(job.keys))]  # PySpark finds no key that has a dot in its name
    with checked_sql("[sessions]"):
        rows = records.where(job.where) if job.where else records
        rows = rows.select(
            *keys_of(rows, job.keys, keys),
            functions.expr(job.event_time).alias(TIME),
            *(functions.col(name).alias(f"{OWN}{name}") for name in PLACE),
            *(functions.expr(sql).alias(f"{OWN}{number}") for number, (_, sql) in enumerate(job.columns.values())),
        ).dropna(subset=[*keys, TIME])
        kinds = [rows.schema[f"{OWN}{number}"].dataType for number in range(len(job.columns))]
        fields = [
            StructField(name, column_type(name, function, kind))
            for (name, (function, _)), kind in zip(job.columns.items(), kinds, strict=True)
        ]
        carriers = tuple(map(carrier_of, kinds))
        rows = with_checked_times(rows).withColumn(MILLIS, functions.unix_millis(TIME))
        for number, kind in enumerate(kinds):
            column = functions.col(f"{OWN}{number}")
            column = checked_text(column) if isinstance(kind, StringType) else given(column, kind)
            rows = rows.withColumn(f"{OWN}{number}", column)
    columns = tuple((function, carrier) for (function, _), carrier in zip(job.columns.values(), carriers, strict=True))
    output = StructType(
        [
            *(StructField(key, StringType()) for key in keys),
            *(StructField(name, LongType()) for name in SESSION_COLUMNS),
            *(
                StructField(field.name, returned(field.dataType, *each)[0])
                for field, each in zip(fields, columns, strict=True)
            ),
        ]
    )
    zone = records.sparkSession.conf.get("spark.sql.session.timeZone")
    assert zone is not None, "Spark has a default"
    step = partial(_step, job.gap_ms, job.events_max, tuple(output.names), columns, zone)
    found = (
        rows.withWatermark(TIME, job.watermark)
        .groupBy(*keys)
        .applyInPandasWithState(step, output, "sessions binary", "append", "EventTimeTimeout")
    )
    quoted = dict(zip(output.names, aliased(output.names), strict=True))
    return found.select(
        *(functions.col(key).alias(name) for key, name in zip(keys, job.keys, strict=True)),
        *(functions.timestamp_millis(functions.col(name)).alias(name) for name in SESSION_COLUMNS),
        *(
            returned(field.dataType, *each)[1](functions.col(quoted[field.name])).alias(field.name)
            for field, each in zip(fields, columns, strict=True)
        ),
    )


def keys_of(rows: DataFrame, expressions: Mapping[str, str], names: Sequence[str]) -> list[Column]:
    """Returns the keys of sessions as texts with the given names.

    Raises:
        JobConfigError: A key has parts whose texts may run into each other.
    """
    from pyspark.sql import functions

    found = [functions.expr(sql) for sql in expressions.values()]
    kinds = [field.dataType for field in rows.select(*found).schema.fields]
    return [
        key_text(key, column, kind).alias(name)
        for key, column, kind, name in zip(expressions, found, kinds, names, strict=True)
    ]


def key_text(name: str, column: Column, kind: DataType) -> Column:
    """Returns a key as a text: equal keys have equal texts, and others have not.

    Raises:
        JobConfigError: The key has parts whose texts may run into each other.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, DoubleType, FloatType, MapType, StructType, TimestampType, VariantType

    if isinstance(kind, ArrayType | MapType | StructType | VariantType):
        raise JobConfigError(
            f"[sessions] keys: {name} is {kind.simpleString()}, and keys are kept as texts, which may be the same for "
            f"different values; write to_json(...) around it, or name each part as a key"
        )
    text = column.cast("string")
    if isinstance(kind, DoubleType | FloatType):
        text = functions.when(column == 0, "0.0").otherwise(text)  # -0.0 is equal to it
    elif isinstance(kind, TimestampType):  # a second time has the same text where clocks are set back
        offset = functions.date_format(column, "XXX")
        text = functions.when(text.try_cast(kind) != column, functions.concat(text, offset)).otherwise(text)
    return checked_text(text)


def checked_text(column: Column) -> Column:
    """Returns texts that end their query where one is no UTF-8, with an error that says so."""
    from pyspark.sql import functions

    refused = functions.raise_error(NO_TEXT).cast("string")
    return functions.when(column.isNull() | functions.is_valid_utf8(column), column).otherwise(refused)


def with_checked_times(rows: DataFrame) -> DataFrame:
    """Returns rows that end their query at an event time which pandas does not hold, with an error that says so."""
    from pyspark.sql import functions

    is_held = functions.col(TIME) < functions.lit(LATEST).cast("timestamp_ltz")
    refused = functions.raise_error(TOO_LATE).cast("timestamp_ltz")
    return rows.withColumn(TIME, functions.when(is_held, functions.col(TIME)).otherwise(refused))


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
    columns: tuple[tuple[str, Carrier], ...],
    zone: str,
    key: tuple[str, ...],
    frames: Iterator[pd.DataFrame],
    state: GroupState,
) -> Iterator[pd.DataFrame]:
    """Runs in tasks, for each key with new records or a session to close.

    ``names`` are those of the result, ``columns`` the functions and carriers of its last columns; ``zone`` is
    Spark's time zone.
    """
    import pandas as pd

    sessions: list[list[Event]] = pickle.loads(state.get[0]) if state.exists else []
    events = [event for frame in frames for event in _events(frame, columns)]
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
        rows = [(*key, *_summary(session, columns, zone)) for session in step.closed]
        # Objects keep integers with nulls among them what they are.
        yield pd.DataFrame(rows, columns=[*names], dtype=object)


def _events(frame: pd.DataFrame, columns: tuple[tuple[str, Carrier], ...]) -> Iterator[Event]:
    times = frame[MILLIS]
    places = zip(*(frame[f"{OWN}{name}"].tolist() for name in PLACE), strict=True)
    values: list[list[object]] = []
    for number, (_, carrier) in enumerate(columns):
        column = frame[f"{OWN}{number}"]
        found = zip(column.tolist(), column.isna(), strict=True)
        values.append([None if is_null else read(value, carrier) for value, is_null in found])
    yield from zip(times.tolist(), places, zip(*values, strict=True), strict=True)


def _summary(session: list[Event], columns: tuple[tuple[str, Carrier], ...], zone: str) -> Iterator[Any]:
    yield session[0][0]
    yield session[-1][0]
    for index, (function, carrier) in enumerate(columns):
        yield summary_of(function, carrier, [event[2][index] for event in session], zone)


def column_type(name: str, function: str, argument: DataType) -> DataType:
    """Returns the type of a column.

    Raises:
        JobConfigError: The function cannot be applied to its argument.
    """
    from pyspark.sql.types import ArrayType, DoubleType, IntegralType, LongType

    if function == "count":
        return LongType()
    _check_argument(name, function, argument)
    if function == "list":
        return ArrayType(argument)
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
    if has_collation(argument):  # Arrow does not know it, and Spark refuses what comes back without it
        wanted = "texts without a collation"
    if wanted:
        raise JobConfigError(
            f"[sessions] columns: {name}: {function} takes {wanted}, and its argument is {argument.simpleString()}; "
            "cast it, or take a part of it"
        )
