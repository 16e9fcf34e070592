"""The source of a job as a DataFrame: its topics, with decoded values, and its dead letters.

A record whose value cannot be decoded never reaches a job. A query of its own, with a checkpoint of its own, copies it
to the dead-letter topic exactly once, with the reason and the record's place in the headers that Kafka Connect uses.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pyspark_moldau.jobs.config.folders import START
from pyspark_moldau.jobs.errors import JobConfigError
from pyspark_moldau.jobs.files import write_atomically
from pyspark_moldau.jobs.payloads.decoding import decode_values, decoder_of
from pyspark_moldau.jobs.queries.running import DEAD_LETTERS
from pyspark_moldau.source.core.offsets import to_checkpoint
from pyspark_moldau.source.core.options import EARLIEST, LATEST, parse_options
from pyspark_moldau.source.planning import connect_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from pyspark_moldau.jobs.config.job_config import JobConfig, PayloadConfig, SourceConfig
    from pyspark_moldau.source.core.offsets import Checkpoint

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp")
ERROR: Final = "_error"
RAW: Final = "_raw"


def read_stream(session: SparkSession, config: JobConfig, source: SourceConfig) -> DataFrame:
    """Returns the records whose values could be decoded, as a stream with the columns ``COLUMNS``."""
    return _good(_decoded(_raw(session, config, source, streaming=True), source.payload), source.payload)


def read_batch(
    session: SparkSession, config: JobConfig, source: SourceConfig, starts: Mapping[tuple[str, int], int] | None = None
) -> DataFrame:
    """Returns the same records up to the present ends of the topics, as a table.

    ``starts`` says where some partitions begin; the others begin with their first records.
    """
    raw = _raw(session, config, source, streaming=False, starts=starts)
    return _good(_decoded(raw, source.payload), source.payload)


def read_dead_letters(session: SparkSession, config: JobConfig, source: SourceConfig) -> DataFrame | None:
    """Returns the rows for the dead-letter topic as a stream; None for values that are not decoded."""
    if source.payload.format == "raw":
        return None
    from pyspark.sql import functions

    def header(name: str, expression: str) -> str:
        return f"named_struct('key', '__connect.errors.{name}', 'value', cast({expression} as binary))"

    headers = ", ".join(
        (
            header("topic", "topic"),
            header("partition", "cast(partition as string)"),
            header("offset", "cast(offset as string)"),
            header("exception.message", ERROR),
        )
    )
    decoded = _decoded(_raw(session, config, source, streaming=True), source.payload)
    letters = decoded.where(functions.col(ERROR).isNotNull()).selectExpr(
        "key",
        f"{RAW} as value",
        f"array({headers}) as headers",
        "if(unix_millis(timestamp) < 0, null, timestamp) as timestamp",  # the sink refuses times before 1970
    )
    return letters.observe(DEAD_LETTERS, functions.expr("count(*)").alias("records"))


def value_type(payload: PayloadConfig) -> DataType:
    """Returns Spark's type of decoded values.

    Raises:
        JobConfigError: The schema is wrong.
    """
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import BinaryType

    if payload.format == "raw":
        return BinaryType()
    try:
        return from_arrow_type(decoder_of(payload).type)
    except JobConfigError as error:
        raise JobConfigError(f"[source.payload] schema: {error}") from error


def _raw(
    session: SparkSession,
    config: JobConfig,
    source: SourceConfig,
    *,
    streaming: bool,
    starts: Mapping[tuple[str, int], int] | None = None,
) -> DataFrame:
    options = config.cluster.source_options() | dict(source.options)
    options |= {"subscribe": ",".join(source.topics), "columns": ",".join(COLUMNS)}
    if not streaming:
        options.pop("maxOffsetsPerTrigger", None)
        if starts:
            parsed = parse_options({name.lower(): value for name, value in options.items()}, streaming=False)
            given: dict[str, dict[str, int]] = {}
            for topic, number in connect_cluster(parsed.client).partitions(parsed.subscription):
                given.setdefault(topic, {})[str(number)] = starts.get((topic, number), EARLIEST)
            options["startingOffsets"] = json.dumps(given)
        return session.read.format("moldau").options(**options).load()
    options["startingOffsets"] = _start(config, source, options)
    return session.readStream.format("moldau").options(**options).load()


def _start(config: JobConfig, source: SourceConfig, options: Mapping[str, str]) -> str:
    """Returns where the queries of a source start that have no checkpoint yet.

    They start one after the other, and the one for the dead letters must see each record that the main one sees. So
    the ends of the topics are looked up once and noted in the job's folder; ``check_folder`` removes a note that no
    query has used. Partitions that came since are read from their beginning.
    """
    if source.starting_offsets != "latest" or source.payload.format == "raw":
        return source.starting_offsets
    parsed = parse_options(options, streaming=True)
    reader = connect_cluster(parsed.client)
    partitions = reader.partitions(parsed.subscription)
    note = config.checkpoint / START
    noted: dict[str, Checkpoint] = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    name = options["subscribe"]
    if name not in noted:
        ends = reader.offsets(dict.fromkeys(partitions, LATEST))
        noted[name] = to_checkpoint({partition: end or 0 for partition, end in ends.items()})
        write_atomically(note, json.dumps(noted))
    given: dict[str, dict[str, int]] = {}
    for topic, number in partitions:
        given.setdefault(topic, {})[str(number)] = noted[name].get(topic, {}).get(str(number), EARLIEST)
    return json.dumps(given)


def _decoded(frame: DataFrame, payload: PayloadConfig) -> DataFrame:
    if payload.format == "raw":
        return frame
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType

    schema = StructType(
        [
            StructField(field.name, value_type(payload)) if field.name == "value" else field
            for field in frame.schema.fields
        ]
        + [StructField(ERROR, StringType()), StructField(RAW, BinaryType())]
    )
    return frame.mapInArrow(partial(_decode_batches, payload), schema)


def _decode_batches(payload: PayloadConfig, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in tasks."""
    decoder = decoder_of(payload)
    for batch in batches:
        raw = batch.column("value")
        values, errors = decode_values(decoder, raw.to_pylist())
        failed = [None if error is None else value for value, error in zip(raw.to_pylist(), errors, strict=True)]
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns |= {"value": values, ERROR: pa.array(errors, pa.string()), RAW: pa.array(failed, pa.binary())}
        yield pa.RecordBatch.from_pydict(columns)


def _good(frame: DataFrame, payload: PayloadConfig) -> DataFrame:
    return frame if payload.format == "raw" else frame.where(f"{ERROR} is null").select(*COLUMNS)
