"""The demo's Spark part: Structured Streaming reads the topic, writes Parquet, aggregates by window, and writes back.

Two queries, each with a checkpoint, run until they have read the records that the log held when they started. The first
keeps every record with its partition, offset and number, for the proof. The second counts records by windows of their
timestamps and replaces its result after each micro-batch; its total must agree with the proof. At the end the sink
writes that result to another topic, exactly once.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from moldau_cli.demo.records import SEQUENCE_HEADER
from moldau_cli.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")

TIMEOUT_S = 600.0
POLL_S = 0.25
NOWHERE = "127.0.0.1:9"
"""Stands for the address of the cluster until ``connect``: a query that is only planned connects to nothing."""
BATCH_ROWS = 400_000
"""The flights are one micro-batch: each further one costs more than the reading of its records."""
FLIGHT_ORIGIN, FLIGHT_DELAY, FLIGHT_CARRIER = 12, 5, 9
AGGREGATE_ROWS_SHOWN = 14
VIEW_FILE = """[cluster]
bootstrap.servers = "{bootstrap}"
[run]
checkpoint = "view-state"
[source]
topics = ["{topic}"]
[view]
path = "view"
query = "{query}"
"""
_DELAY = f"try_cast(split(cast(value as string), ',')[{FLIGHT_DELAY}] as double)"
_CARRIER = f"split(cast(value as string), ',')[{FLIGHT_CARRIER}]"
VIEW_QUERIES = {
    True: (  # the first one leaves cancelled flights out
        f"select {_CARRIER} as carrier, count({_DELAY}) as flights from records group by 1",
        f"select {_CARRIER} as carrier, count(*) as flights from records group by 1",
    ),
    False: (  # the first one leaves empty lines out
        "select partition, count(nullif(value, cast('' as binary))) as records from records group by 1",
        "select partition, count(*) as records from records group by 1",
    ),
}
"""The two versions of the demo's view: the second one corrects the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """The windowed aggregate, ready to print, and the number of records it counted."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    total: int


class Pipeline:
    """The session and its two queries. ``directory`` holds Parquet files, checkpoints and Spark's log."""

    def __init__(self, directory: Path, topic: str, *, is_flights: bool) -> None:
        self._directory = directory
        self._bootstrap = NOWHERE
        self._topic = topic
        self._is_flights = is_flights
        self._session: SparkSession | None = None

    def connect(self, bootstrap: str) -> None:
        """Sets the address of the cluster, which may start after Spark."""
        self._bootstrap = bootstrap

    def start_jvm(self) -> None:
        """Starts the JVM; its output goes to ``spark.log``.

        Raises:
            NoJavaError: no suitable Java was found.
        """
        from pyspark_moldau.session import start_jvm

        start_jvm(self._directory / "spark.log")

    def start_session(self) -> None:
        """Starts the session.

        Raises:
            NoJavaError: no suitable Java was found.
        """
        from pyspark_moldau.session import local_session

        self._session = local_session("moldau-demo", cores=2)

    def warm_up(self) -> None:
        """Runs a small query with the parts of the later ones, and starts Spark's Python processes."""
        rows = self._active().range(1000).selectExpr("cast(id as string) as value", "id % 2 as half")
        again = rows.mapInArrow(_unchanged, rows.schema)
        again.groupBy("half").count().coalesce(1).write.parquet(str(self._directory / "warm-up"))
        self._source()

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

    def build_views(self) -> tuple[int, int, int]:
        """Builds a view of the topic, corrects its query, builds it again beside the first version, and switches.

        Returns:
            The rows of the view, how many of them differ between the versions, and the current version.
        """
        from pyspark_moldau.jobs.views import build, compare, read_view, switch, view_job

        path = self._directory / "view.toml"
        for query in VIEW_QUERIES[self._is_flights]:
            path.write_text(VIEW_FILE.format(bootstrap=self._bootstrap, topic=self._topic, query=query))
            version, _ = build(view_job(path), "batch", self._active())
            switch(self._directory / "view", version.number)
        difference = compare(self._directory / "view", version.number - 1, version.number, self._active())
        return read_view(self._directory / "view", self._active()).count(), difference.only_second, version.number

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


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _ignored(rows: int) -> None:
    """Shows nothing."""


class SparkThread:
    """The thread that owns the session, because Spark finds Python sources in a thread's active session.

    It starts Spark and runs a first small query while the demo produces: the JVM needs seconds until it is warm.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        """Begins at once. A thread that still runs does not keep the process; the JVM ends with the process."""
        self._pipeline = pipeline
        self._jobs: SimpleQueue[tuple[Callable[[], object], Future[Any]]] = SimpleQueue()
        threading.Thread(target=self._run, name="spark", daemon=True).start()
        self._started = self._submit(self._start)
        self._streaming: Future[None] = Future()
        self.progress: Callable[[int], None] = _ignored

    def _run(self) -> None:
        while True:
            function, future = self._jobs.get()
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
                future.set_exception(error)

    def _submit(self, function: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._jobs.put((function, future))  # callers wait for the last one, so there are few
        return future

    def _start(self) -> None:
        self._pipeline.start_jvm()
        self._pipeline.start_session()
        self._pipeline.warm_up()

    def wait(self) -> None:
        """Waits until Spark is ready.

        Raises:
            CommandError: it did not start in time; or the error with which it failed.
        """
        try:
            self._started.result(TIMEOUT_S)
        except FutureTimeoutError:
            raise CommandError(f"Spark did not start within {TIMEOUT_S:g} s") from None

    def call(self, function: Callable[[], T]) -> T:
        """Returns what a function returns that uses the session."""
        return self._submit(function).result()

    def stream(self) -> None:
        """Begins to run the pipeline's queries, once Spark is ready."""
        self._streaming = self._submit(self._stream)

    def _stream(self) -> None:
        self._started.result()
        self._pipeline.run(lambda rows: self.progress(rows))

    def wait_streamed(self, progress: Callable[[int], None]) -> None:
        """Waits until the queries have ended; ``progress`` gets the number of rows of both from now on.

        Raises:
            CommandError: a query failed, or did not end in time.
        """
        self.progress = progress
        self._streaming.result()

    def stop(self) -> None:
        """Ends Spark, unless it is still starting."""
        if self._started.done():
            self.call(self._pipeline.stop)
