"""The demo from start to end: cluster, topic, produce with a fault, direct consumption, Spark, proof, report."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import shutil
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from moldau import Admin, Consumer
from moldau.admin import NewTopic
from moldau_cli import output
from moldau_cli.demo.produce import ProducePhase
from moldau_cli.demo.proof import tally
from moldau_cli.demo.records import SEQUENCE_HEADER, load_file, load_flights
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.operations.local import launcher_errors
from moldau_cli.progress import progress
from moldau_jepsen.launcher import ClusterSpec, start_cluster
from moldau_jepsen.origin import origin
from moldau_jepsen.reports.demo import DemoResult, Tally, render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from moldau_cli.demo.pipeline import Aggregate, Pipeline, SparkThread
    from moldau_cli.demo.produce import Produced
    from moldau_cli.demo.records import DemoInput
    from moldau_cli.progress import Progress
    from moldau_jepsen.launcher import LocalCluster

TOPIC = "demo"
RESULT_TOPIC = "demo-result"
PARTITIONS = 6
REPLICAS = 3
MARKER = "moldau-demo.txt"
TOPIC_CONFIGS = {"retention.ms": "-1", "segment.ms": str(10 * 366 * 86_400_000)}
"""The flights have timestamps of 2013, a whole year within seconds of real time: the default retention would delete all
records, and the default roll time would begin a segment for each week.
"""

SPARK_PACKAGES = ("pyspark", "pyarrow", "pandas")
CONSUME_IDLE_S = 30.0
CONSUMER_SETTINGS = {"auto.offset.reset": "earliest", "max.poll.records": "20000", "enable.auto.commit": "false"}


@dataclass(slots=True)
class _Phases:
    """Names and durations in seconds of the finished phases."""

    done: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def timed(self, name: str, total: int | None = None) -> Iterator[Progress]:
        began = time.monotonic()
        with progress(name, total) as shown:
            yield shown
        self.done.append((name, time.monotonic() - began))


def run_demo(directory: Path, source: Path | None, *, with_spark: bool) -> DemoResult:
    """Runs the demo; cluster and results go below ``directory``, which must be new or an earlier demo's.

    The cluster is stopped in any case. Another demo cannot use the directory meanwhile.

    Raises:
        CommandError: a step failed; ``UsageError`` for bad input.
    """
    if with_spark:
        _check_spark()
    _check_directory(directory)  # before the input is read, which may be typed
    phases = _Phases()
    with phases.timed("read the input"):
        records = load_flights() if source is None else load_file(source)
    with _prepared(directory):
        return _run(directory, records, phases, with_spark=with_spark)


def _run(directory: Path, records: DemoInput, phases: _Phases, *, with_spark: bool) -> DemoResult:
    """Runs the phases after the input; stops the cluster in any case."""
    notes: list[str] = []
    spark = _start_spark(directory, records, notes) if with_spark else None
    with launcher_errors():
        with phases.timed("start 3 controllers and 3 brokers"):
            cluster = start_cluster(directory / "cluster", ClusterSpec())
        ready_s = phases.done[-1][1]
        try:
            if spark is not None:
                spark[0].connect(cluster.bootstrap)
            with phases.timed(
                f"produce {records.count:,} records, kill -9 a leader on the way", records.count
            ) as shown:
                produced = trio.run(_produce, cluster, records, shown.update)
            if spark is not None:
                spark[1].stream()
            with phases.timed("consume directly", records.count) as shown:
                direct = trio.run(_consume, cluster.bootstrap, records, produced.acknowledged, shown.update)
            tallies = [direct]
            aggregate = None
            if spark is not None:
                aggregate = _spark(phases, spark, records, produced, tallies, notes)
            elif not with_spark:
                notes.append("Spark was left out (--no-spark).")
            with phases.timed("stop the cluster"):
                cluster.stop_all()
        finally:
            cluster.shut_down()
    acknowledged = sum(produced.acknowledged)
    if aggregate is not None and aggregate.total != acknowledged:
        raise CommandError(f"the aggregate counted {aggregate.total:,} records, {acknowledged:,} were acknowledged")
    return DemoResult(
        source=records.source,
        records=records.count,
        acknowledged=acknowledged,
        produce_s=produced.seconds,
        cluster_ready_s=ready_s,
        bootstrap="3 controllers and 3 brokers, one process each",
        throughput=produced.throughput,
        failover=produced.failover,
        tallies=tallies,
        aggregate_title=aggregate.title if aggregate else "",
        aggregate_columns=aggregate.columns if aggregate else (),
        aggregate_rows=aggregate.rows if aggregate else (),
        phases=phases.done,
        notes=notes,
    )


def _check_spark() -> None:
    """Checks that the packages of the Spark part are installed, before the cluster starts.

    Raises:
        UsageError: a package is missing.
    """
    missing = [name for name in SPARK_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the Spark part of the demo needs {', '.join(missing)}, not installed here: "
            "pip install 'moldau[spark]', or leave that part out with --no-spark"
        )


def _check_directory(directory: Path) -> None:
    """Checks that the directory is an earlier demo's, or empty, or can be made; it changes nothing.

    Raises:
        CommandError: another demo uses it now.
        UsageError: it holds something else, or cannot be used.
    """
    try:
        place = next(one for one in (directory, *directory.parents) if os.path.lexists(one))
        if not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if place == directory and any(directory.iterdir()) and not (directory / MARKER).exists():
            raise UsageError(f"{directory} holds something other than a demo; give another --dir")
        if (marker := directory / MARKER).exists():
            with marker.open("ab") as lock:
                _take(lock, directory)
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UsageError(f"cannot use {directory}: {error.strerror}") from error


@contextmanager
def _prepared(directory: Path) -> Iterator[None]:
    """Empties the directory of an earlier demo, or makes a new one, and keeps others away for the length of the block.

    The directory itself stays, because it can be a link, or the working directory of this process.

    Raises:
        CommandError: another demo uses it.
        UsageError: the system refuses it, or it holds something else.
    """
    _check_directory(directory)  # again: while the input was typed, others may have put files there
    with ExitStack() as held:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            # The marker comes first and is never deleted: if the rest fails, the next demo may go on.
            lock = held.enter_context((directory / MARKER).open("ab"))
            _take(lock, directory)
            lock.truncate(0)
            lock.write(b"Made by `moldau demo`, and emptied by the next one.\n")
            lock.flush()
            for path in directory.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != MARKER:
                    path.unlink()
        except OSError as error:
            raise UsageError(f"cannot use {directory}: {error.strerror}") from error
        yield


def _take(lock: BinaryIO, directory: Path) -> None:
    """Locks the marker of a demo until it is closed.

    Raises:
        CommandError: another demo has it.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CommandError(f"another demo runs in {directory}; wait for it, or give another --dir") from None


async def _produce(cluster: LocalCluster, records: DemoInput, report: Callable[[int], None]) -> Produced:
    async with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        topic = NewTopic(name=TOPIC, partitions=PARTITIONS, replication_factor=REPLICAS, configs=TOPIC_CONFIGS)
        result = NewTopic(name=RESULT_TOPIC, partitions=1, replication_factor=REPLICAS)
        await admin.create_topics([topic, result])
    return await ProducePhase(cluster, TOPIC, records, progress=report).run()


async def _consume(bootstrap: str, records: DemoInput, acknowledged: bytearray, report: Callable[[int], None]) -> Tally:
    """Reads the topic from its beginning to its present end with the client, and tallies the records."""
    seen: list[tuple[bytes | None, int]] = []
    async with Consumer({"bootstrap.servers": bootstrap, **CONSUMER_SETTINGS}) as consumer:
        partitions = [(TOPIC, one.partition) for one in await consumer.partitions_for(TOPIC)]
        consumer.assign(partitions)
        left = dict(await consumer.end_offsets(partitions))
        left = {partition: end for partition, end in left.items() if end > 0}
        deadline = trio.current_time() + CONSUME_IDLE_S
        while left:
            for batch in await consumer.poll(500):
                seen.extend((record.key, _number(record.headers)) for record in batch.records)
                if batch.next_offset >= left.get(batch.topic_partition, 0):
                    left.pop(batch.topic_partition, None)
                deadline = trio.current_time() + CONSUME_IDLE_S
            report(len(seen))
            if trio.current_time() > deadline:
                raise CommandError(
                    f"nothing was consumed for {CONSUME_IDLE_S:g} s, {len(left)} partitions are not read to the end"
                )
    return tally("direct consumer", records.keys, acknowledged, seen)


def _number(headers: tuple[tuple[str, bytes | None], ...]) -> int:
    """Returns the record's number from its header; -1 if there is none."""
    for name, value in headers:
        if name == SEQUENCE_HEADER and value is not None and value.isdigit():
            return int(value)
    return -1


def _start_spark(directory: Path, records: DemoInput, notes: list[str]) -> tuple[Pipeline, SparkThread] | None:
    """Begins to start Spark; without a Java, only adds a note."""
    from pyspark_moldau.session.java import find_java

    if find_java() is None:
        note = "Spark was left out: no Java 17, 21 or 25 was found (pip install 'moldau[spark-java]' brings one)."
        output.note(note)
        notes.append(note)
        return None
    from moldau_cli.demo.pipeline import Pipeline, SparkThread

    pipeline = Pipeline(directory, TOPIC, is_flights=records.is_flights)
    return pipeline, SparkThread(pipeline)


def _spark(
    phases: _Phases,
    spark: tuple[Pipeline, SparkThread],
    records: DemoInput,
    produced: Produced,
    tallies: list[Tally],
    notes: list[str],
) -> Aggregate:
    """Runs the Spark part and adds its tally."""
    from pyspark_moldau.session import UnsupportedSparkError
    from pyspark_moldau.session.java import NoJavaError

    pipeline, thread = spark

    def read_back() -> Aggregate:
        tallies.append(tally("Parquet written by Spark", records.keys, produced.acknowledged, pipeline.records()))
        return pipeline.aggregate()

    try:
        with phases.timed("wait for Spark (it started meanwhile)"):
            thread.wait()
        with phases.timed("stream to Parquet and aggregate by window", 2 * records.count) as shown:
            thread.wait_streamed(shown.update)
        with phases.timed("read Parquet back"):
            aggregate = thread.call(read_back)
        with phases.timed("write the aggregate to a topic, twice"):
            rows, found = thread.call(lambda: pipeline.write_back(RESULT_TOPIC))
        if rows != found:
            raise CommandError(f"the sink wrote {rows:,} rows to topic {RESULT_TOPIC}, and {found:,} are there")
        notes.append(f"The sink wrote the aggregate's {rows:,} rows to topic {RESULT_TOPIC} twice; each is there once.")
        with phases.timed("build a view, and its corrected version beside it"):
            rows, differing, version = thread.call(pipeline.build_views)
        notes.append(
            f"A view of {rows:,} rows was built from offset zero, and again beside it with a corrected query, which "
            f"changed {differing:,} rows; version {version} is served since one atomic switch."
        )
        return aggregate
    except (NoJavaError, UnsupportedSparkError) as error:
        raise CommandError(str(error)) from error
    finally:
        thread.stop()


def write_report(result: DemoResult, directory: Path) -> Path:
    """Writes the report page and returns its path."""
    path = directory / "report.html"
    path.write_text(render(result, origin()), encoding="utf-8")
    return path.absolute()
