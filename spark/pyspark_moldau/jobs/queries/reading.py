"""The source of a job as a DataFrame: its topics, with decoded values, and its dead letters.

A record whose value cannot be decoded never reaches a job. A query of its own, with a checkpoint of its own, copies it
to the dead-letter topic exactly once, with the reason and the record's place in the headers that Kafka Connect uses.
A value that leaves no room for these headers in ``max.request.size`` is cut, and two headers more say what is missing.
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
from pyspark_moldau.sink.core.sink_options import EXACTLY_ONCE, int_of, parse_sink_options
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
VALUE_BYTES: Final = "_value_bytes"
"""The length of a value of which a dead letter has the beginning only; null where it has all of it."""
KEY_BYTES: Final = "_key_bytes"
"""The length of a key that a dead letter does not have; null where it has it."""
LETTER_ROOM: Final = 4096
"""The room that a dead letter needs in a batch of its own besides key and value: mostly the text of the error."""


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


def topic_ids_of(config: JobConfig, source: SourceConfig) -> dict[str, str]:
    """Returns the ids of those topics of a source that exist now.

    Raises:
        OptionError: The login was refused.
        ReadTimeoutError: No broker answered in time.
    """
    options = config.cluster.source_options() | dict(source.options) | {"subscribe": ",".join(source.topics)}
    parsed = parse_options({name.lower(): value for name, value in options.items()}, streaming=True)
    return connect_cluster(parsed.client).topic_ids(source.topics)


def read_dead_letters(session: SparkSession, config: JobConfig, source: SourceConfig) -> DataFrame | None:
    """Returns the rows for the dead-letter topic as a stream; None for values that are not decoded."""
    if source.payload.format == "raw":
        return None
    decoded = _decoded(
        _raw(session, config, source, streaming=True), source.payload, letter_bytes_max=_letter_bytes_max(config)
    )
    return _letter_rows(decoded)


def _letter_rows(decoded: DataFrame) -> DataFrame:
    """Returns the rows for the dead-letter topic; headers of the lengths only where key or value are not whole."""
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
    cuts = ", ".join(
        f"if({column} is null, null, named_struct('key', '__moldau.errors.{name}', 'value', cast({column} as binary)))"
        for column, name in ((VALUE_BYTES, "value.bytes"), (KEY_BYTES, "key.bytes"))
    )
    letters = decoded.where(functions.col(ERROR).isNotNull()).selectExpr(
        "key",
        f"{RAW} as value",
        f"filter(array({headers}, {cuts}), header -> header is not null) as headers",
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


def _letter_bytes_max(config: JobConfig) -> int:
    """Returns how long key and value of a dead letter may be together."""
    options = config.cluster.sink_options() | {"deliveryGuarantee": EXACTLY_ONCE}
    producer = parse_sink_options(options, streaming=True).producer
    return max(min(int_of(producer, "max.request.size"), int_of(producer, "buffer.memory")) - LETTER_ROOM, 0)


def _decoded(frame: DataFrame, payload: PayloadConfig, *, letter_bytes_max: int | None = None) -> DataFrame:
    """Returns the records with decoded values; with ``letter_bytes_max``, those that failed as dead letters."""
    if payload.format == "raw":
        return frame
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType

    schema = StructType(
        [
            StructField(field.name, value_type(payload)) if field.name == "value" else field
            for field in frame.schema.fields
        ]
        + [StructField(ERROR, StringType()), StructField(RAW, BinaryType())]
        + [StructField(name, StringType()) for name in (VALUE_BYTES, KEY_BYTES) if letter_bytes_max is not None]
    )
    return frame.mapInArrow(partial(_decode_batches, payload, letter_bytes_max), schema)


def _decode_batches(
    payload: PayloadConfig, letter_bytes_max: int | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs in tasks."""
    decoder = decoder_of(payload)
    for batch in batches:
        raw = batch.column("value").to_pylist()
        values, errors = decode_values(decoder, raw)
        failed = [None if error is None else value for value, error in zip(raw, errors, strict=True)]
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns |= {"value": values, ERROR: pa.array(errors, pa.string()), RAW: pa.array(failed, pa.binary())}
        if letter_bytes_max is not None:
            columns |= _letters(batch.column("key").to_pylist(), failed, letter_bytes_max)
        yield pa.RecordBatch.from_pydict(columns)


def _letters(keys: list[bytes | None], values: list[bytes | None], bytes_max: int) -> dict[str, pa.Array]:
    """Returns keys and values that are not too long together, and the lengths of those that are not whole.

    The end of a value is cut off. A key that is too long by itself is left out, because a part of it is another key.
    """
    value_bytes: list[str | None] = [None] * len(values)
    key_bytes: list[str | None] = [None] * len(values)
    for row, value in enumerate(values):
        if value is None:
            continue
        key = keys[row] or b""
        if len(key) > bytes_max:
            keys[row], key_bytes[row] = None, str(len(key))
            key = b""
        if len(key) + len(value) > bytes_max:
            values[row], value_bytes[row] = value[: bytes_max - len(key)], str(len(value))
    return {
        "key": pa.array(keys, pa.binary()),
        RAW: pa.array(values, pa.binary()),
        VALUE_BYTES: pa.array(value_bytes, pa.string()),
        KEY_BYTES: pa.array(key_bytes, pa.string()),
    }


def _good(frame: DataFrame, payload: PayloadConfig) -> DataFrame:
    return frame if payload.format == "raw" else frame.where(f"{ERROR} is null").select(*COLUMNS)
