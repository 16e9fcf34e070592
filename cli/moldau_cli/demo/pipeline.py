"""The demo's Spark part: Structured Streaming reads the topic, writes Parquet, aggregates by window, and writes back.

Two queries, each with a checkpoint, run until they have read the records that the log held when they started. The first
keeps every record with its partition, offset and number, for the proof. The second counts records by windows of their
timestamps and replaces its result after each micro-batch; its total must agree with the proof. At the end the sink
writes that result to another topic, exactly once.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau_cli.demo.records import SEQUENCE_HEADER
from moldau_cli.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TIMEOUT_S = 600.0
POLL_S = 0.25
BATCH_ROWS = 200_000
FLIGHT_ORIGIN, FLIGHT_DELAY = 12, 5
AGGREGATE_ROWS_SHOWN = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """The windowed aggregate, ready to print, and the number of records it counted."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    total: int


class Pipeline:
    """The session and its two queries. ``directory`` holds Parquet files, checkpoints and Spark's log."""

    def __init__(self, directory: Path, bootstrap: str, topic: str, *, is_flights: bool) -> None:
        self._directory = directory
        self._bootstrap = bootstrap
        self._topic = topic
        self._is_flights = is_flights
        self._session: SparkSession | None = None

    def start_session(self) -> None:
        """Starts Spark; its own output goes to ``spark.log``.

        Raises:
            NoJavaError: no suitable Java was found.
        """
        from pyspark_moldau.session import local_session

        with _stderr_to(self._directory / "spark.log"):
            self._session = local_session("moldau-demo", cores=2)

    def stop(self) -> None:
        """Ends Spark."""
        if self._session is not None:
            self._session.stop()

    def run(self, progress: Callable[[int], None]) -> None:
        """Runs both queries to the present end of the topic; ``progress`` gets the number of rows of both so far.

        Raises:
            CommandError: a query fails or does not end in time.
        """
        queries = [self._start_records(self._source()), self._start_aggregate(self._source())]
        deadline = time.monotonic() + TIMEOUT_S
        counted: dict[tuple[str, int], int] = {}
        try:
            while any(query.isActive for query in queries):
                if time.monotonic() > deadline:
                    raise CommandError(
                        f"Spark did not finish within {TIMEOUT_S:g} s; see {self._directory / 'spark.log'}"
                    )
                time.sleep(POLL_S)
                for query in queries:
                    for report in query.recentProgress:
                        counted[str(query.id), int(report["batchId"])] = int(report["numInputRows"])
                progress(sum(counted.values()))
            for query in queries:
                failure = query.exception()
                if failure is not None:
                    raise CommandError(f"Spark query failed: {str(failure).splitlines()[0]}")
        finally:
            for query in queries:
                query.stop()

    def records(self) -> Iterator[tuple[bytes | None, int]]:
        """Yields key and number of each record in Parquet, by partition and offset."""
        import pyarrow.parquet

        session = self._active()
        files = session.read.parquet(str(self._directory / "records")).inputFiles()
        tables = [
            pyarrow.parquet.read_table(name.removeprefix("file://"), columns=["key", "sequence", "partition", "offset"])
            for name in files
        ]
        table = pyarrow.concat_tables(tables).sort_by([("partition", "ascending"), ("offset", "ascending")])
        for batch in table.to_batches(max_chunksize=65_536):
            numbers = batch.column("sequence").fill_null(-1).to_pylist()
            yield from zip(batch.column("key").to_pylist(), numbers, strict=True)

    def aggregate(self) -> Aggregate:
        """Reads the windowed aggregate back from Parquet."""
        rows = self._active().read.parquet(str(self._directory / "aggregate")).collect()
        total = sum(int(row["records"]) for row in rows)
        if not self._is_flights:
            shown = sorted(rows, key=lambda row: row["start"])[-AGGREGATE_ROWS_SHOWN:]
            return Aggregate(
                title="Records by second",
                columns=["second", "records", "bytes"],
                rows=[
                    [f"{row['start']:%Y-%m-%d %H:%M:%S}", f"{row['records']:,}", f"{row['bytes']:,}"] for row in shown
                ],
                total=total,
            )
        origins = sorted({row["origin"] for row in rows})
        table = []
        for start in sorted({row["start"] for row in rows}):
            line = [f"{start:%Y-%m-%d}"]
            for origin in origins:
                cell = next((row for row in rows if row["start"] == start and row["origin"] == origin), None)
                line.append("-" if cell is None else f"{cell['records']:,} / {cell['delay']:.1f} min")
            table.append(line)
        return Aggregate(
            title="Flights and mean departure delay by 28-day window and airport",
            columns=["window from", *origins],
            rows=table[-AGGREGATE_ROWS_SHOWN:],
            total=total,
        )

    def write_back(self, topic: str) -> tuple[int, int]:
        """Writes the aggregate to a topic by the exactly-once sink, twice with one version, as after a crash.

        Returns:
            The number of rows, and the number of records that a reader of committed data finds.
        """
        rows = self._active().read.parquet(str(self._directory / "aggregate"))
        records = rows.selectExpr("cast(start as string) as key", "to_json(struct(*)) as value")
        for _ in range(2):
            records.write.format("moldau").options(
                **{"kafka.bootstrap.servers": self._bootstrap, "topic": topic, "deliveryGuarantee": "exactly-once"},
                txnAppId="moldau-demo",
                txnVersion="1",
            ).mode("append").save()
        found = self._active().read.format("moldau").option("kafka.bootstrap.servers", self._bootstrap)
        found = found.option("subscribe", topic).option("kafka.isolation.level", "read_committed")
        return rows.count(), found.load().count()

    def _active(self) -> SparkSession:
        assert self._session is not None, "start_session comes first"
        return self._session

    def _source(self) -> DataFrame:
        return (
            self._active()
            .readStream.format("moldau")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", self._topic)
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            .option("maxOffsetsPerTrigger", str(BATCH_ROWS))
            .load()
        )

    def _start_records(self, source: DataFrame) -> StreamingQuery:
        number = f"filter(headers, h -> h.key = '{SEQUENCE_HEADER}')[0].value"
        return (
            source.selectExpr(
                "key",
                "value",
                "partition",
                "offset",
                "timestamp",
                f"cast(cast({number} as string) as bigint) as sequence",
            )
            .writeStream.queryName("records")
            .format("parquet")
            .option("path", str(self._directory / "records"))
            .option("checkpointLocation", str(self._directory / "checkpoint-records"))
            .trigger(availableNow=True)
            .start()
        )

    def _start_aggregate(self, source: DataFrame) -> StreamingQuery:
        from pyspark.sql import functions

        path = str(self._directory / "aggregate")
        if self._is_flights:
            fields = functions.split(source["value"].cast("string"), ",")
            grouped = source.groupBy(
                functions.window("timestamp", "28 days", startTime="26 days"), fields[FLIGHT_ORIGIN].alias("origin")
            ).agg(
                functions.count("*").alias("records"),
                functions.avg(
                    functions.expr(f"try_cast(split(cast(value as string), ',')[{FLIGHT_DELAY}] as double)")
                ).alias("delay"),
            )
        else:
            grouped = source.groupBy(functions.window("timestamp", "1 second")).agg(
                functions.count("*").alias("records"), functions.sum(functions.length("value")).alias("bytes")
            )

        def replace_result(batch: DataFrame, batch_id: int) -> None:
            batch.withColumn("start", functions.col("window.start")).drop("window").coalesce(1).write.mode(
                "overwrite"
            ).parquet(path)

        return (
            grouped.writeStream.queryName("aggregate")
            .outputMode("complete")
            .foreachBatch(replace_result)
            .option("checkpointLocation", str(self._directory / "checkpoint-aggregate"))
            .trigger(availableNow=True)
            .start()
        )


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Points this process's stderr at a file, for the JVM that is started inside the block and keeps it."""
    saved = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(target)
