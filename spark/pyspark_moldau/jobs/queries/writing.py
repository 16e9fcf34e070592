"""Connects the rows of a job with its sink: a table, or a topic that gets each row exactly once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyspark_moldau.jobs.config.folders import MAIN
from pyspark_moldau.jobs.errors import JobConfigError, JobError
from pyspark_moldau.jobs.queries.reading import read_dead_letters
from pyspark_moldau.jobs.queries.running import DEAD_LETTERS, started, topic_writer
from pyspark_moldau.jobs.schemas import alike_fields
from pyspark_moldau.jobs.tables import QUERY_ID, TableWriter, check_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pyspark_moldau.jobs.config.job_config import JobConfig, SinkConfig, SourceConfig


class TopicWriter:
    """Writes the micro-batches of one query to a topic, exactly once; made for ``foreachBatch``.

    Spark accepts no Python sink for the output mode ``update``. The sink's batch form, with the query and the batch as
    its version, gives the same guarantee: a version that is written is not written again.
    """

    def __init__(self, options: Mapping[str, str], topic: str, checkpoint: Path) -> None:
        self._options = {
            **options,
            "topic": topic,
            "deliveryGuarantee": "exactly-once",
            "checkpointLocation": str(checkpoint),
        }

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Writes one micro-batch."""
        query = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        assert query is not None, "foreachBatch runs in a query"
        options = {**self._options, "txnAppId": query, "txnVersion": str(batch)}
        rows.write.format("moldau").options(**options).mode("append").save()


def starts_of(
    session: SparkSession,
    config: JobConfig,
    sources: Mapping[str, SourceConfig],
    rows: DataFrame,
    sink: SinkConfig,
    output_mode: str = "append",
) -> dict[str, Callable[[], StreamingQuery]]:
    """Returns how to start the queries of a job: the main one, and one for the dead letters of each source.

    Raises:
        JobConfigError: A column or an expression of the sink does not fit the rows.
    """
    if sink.path is not None:
        check_partitions(rows, sink)
        check_fields(rows)
        table = TableWriter(sink.path, sink.format, sink.partition_by, config.checkpoint / MAIN)
        writer = rows.writeStream.foreachBatch(table)
    else:
        records = to_records(rows, sink)
        if output_mode == "update":
            topic = TopicWriter(config.cluster.sink_options(), sink.topic, config.checkpoint / MAIN)
            writer = records.writeStream.foreachBatch(topic)
        else:
            writer = topic_writer(records, config, sink.topic)
    writer = writer.outputMode(output_mode)
    starts: dict[str, Callable[[], StreamingQuery]] = {
        MAIN: partial(started, writer, MAIN, config, config.checkpoint / MAIN)
    }
    for name, source in sources.items():
        letters = read_dead_letters(session, config, source)
        if letters is not None:
            query = DEAD_LETTERS if len(sources) == 1 else f"{DEAD_LETTERS}-{name}"
            to_topic = topic_writer(letters, config, source.payload.dead_letter_topic)
            starts[query] = partial(started, to_topic, query, config, config.checkpoint / query)
    return starts


def to_records(rows: DataFrame, sink: SinkConfig) -> DataFrame:
    """Returns rows with the columns ``key`` and ``value`` of a topic; a value is JSON of all columns by default.

    Raises:
        JobConfigError: An expression does not fit the rows.
    """
    from pyspark.errors import AnalysisException, ParseException

    value = sink.value or "to_json(struct(*))"
    key = sink.key or "null"
    try:
        return rows.selectExpr(f"cast({key} as binary) as key", f"cast({value} as binary) as value")
    except (AnalysisException, ParseException) as error:
        raise JobConfigError(f"[sink] key or value: {str(error).splitlines()[0]}") from error


def check_partitions(rows: DataFrame, sink: SinkConfig) -> None:
    """Checks the columns of a table, and those by which it is partitioned.

    Raises:
        JobConfigError: A partition's column is not there, all columns are partitions', or a name is taken.
    """
    missing = [name for name in sink.partition_by if name not in rows.columns]
    if missing:
        raise JobConfigError(f"[sink] partition_by: no column {missing[0]}; there are {', '.join(rows.columns)}")
    try:
        check_columns(rows.columns, sink.format)
    except JobError as error:
        raise JobConfigError(f"[sink] table: {error}") from error
    if len(sink.partition_by) == len(rows.columns):
        raise JobConfigError("[sink] partition_by: names every column; leave one that is not a partition")


def check_fields(rows: DataFrame) -> None:
    """Checks the fields of a table's structs: Spark would write the table, and then not read it.

    Raises:
        JobConfigError: The names of two differ in case only.
    """
    if rows.sparkSession.conf.get("spark.sql.caseSensitive") == "true":
        return
    found = alike_fields(rows.schema)
    if found is not None:
        raise JobConfigError(
            f"[sink] table: {found[0]} and {found[1]} differ in case only, and Spark could not read the table; select "
            'one of them, leave one out of the schema, or set "spark.sql.caseSensitive" = "true" in the table spark, '
            "and in each session that reads the table"
        )
