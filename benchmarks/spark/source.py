"""How fast Spark reads from Moldau: this project's source and Spark's JVM connector in turns, in one session.

    python -m benchmarks.spark.source [--jars DIRECTORY] [--rounds 3] [--rows 1.0] [--cases quick] [--out DIR]

Two tasks on ``local[2]`` read a whole topic in a batch query, into no sink (``noop``) or into Parquet. Each round runs
every reader once, in turns; the figure is the median of the rounds. The limit is a Python source that hands out
prepared Arrow batches of the same rows: it reads no topic and decodes nothing. Then a streaming query reads a topic to
which a producer writes steadily, and the time of each micro-batch is Spark's own ``triggerExecution``.

``--out`` writes ``spark-source.json``, ``spark-source.md`` and ``spark-source.svg``; ``--from FILE`` writes page and
plot again from an earlier JSON file. ``--jars`` is that of ``benchmarks.spark``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.spark.cpu import cpu_s
from benchmarks.spark.page import write_page
from benchmarks.spark.prepared import PreparedSource

from moldau.admin import NewTopic
from moldau.blocking import Admin, Producer
from moldau_jepsen.testing import cluster
from pyspark_moldau.session import local_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

ROWS = {100: 2_000_000, 1024: 250_000}
KEY_BYTES = 8
MOLDAU, JVM, LIMIT = "moldau", "kafka", "prepared"
NOOP, PARQUET = "noop", "parquet"
LATENCY_PER_S, LATENCY_S = 2_000, 40
LATENCY_SKIPPED = 5
"""First micro-batches, in which processes and caches start."""
QUERY_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A topic and a sink."""

    size: int
    partitions: int
    codec: str
    sink: str

    @property
    def topic(self) -> str:
        """Returns the name of the topic, which the sinks share."""
        return f"bench-{self.size}-{self.partitions}-{self.codec}"


ALL = tuple(
    Case(size=size, partitions=partitions, codec=codec, sink=sink)
    for size in ROWS
    for partitions in (1, 6, 16)
    for codec in ("lz4", "zstd")
    for sink in (NOOP, PARQUET)
)
QUICK = tuple(
    Case(size=size, partitions=partitions, codec=codec, sink=sink)
    for size, partitions, codec, sink in (
        (100, 1, "lz4", NOOP),
        (100, 6, "lz4", NOOP),
        (100, 6, "lz4", PARQUET),
        (100, 6, "zstd", NOOP),
        (100, 16, "lz4", NOOP),
        (1024, 6, "lz4", NOOP),
        (1024, 6, "lz4", PARQUET),
        (1024, 6, "zstd", NOOP),
    )
)


def rows_frame(spark: SparkSession, size: int, rows: int) -> DataFrame:
    """Returns rows with a key of ``KEY_BYTES`` and a value, ``size`` bytes together, that compress about 2:1."""
    digests = -(-(size - KEY_BYTES) // 64)
    random = ", ".join(f"sha2(concat(id, '-{number}'), 256)" for number in range(digests))
    return spark.range(0, rows, 1, 4).selectExpr(
        f"cast(lpad(cast(id % 100000 as string), {KEY_BYTES}, '0') as binary) key",
        f"cast(substring(concat({random}), 1, {size - KEY_BYTES}) as binary) value",
    )


def fill(spark: SparkSession, bootstrap: str, case: Case, rows: int) -> None:
    """Creates the topic of a case with its rows, by this project's sink."""
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic(name=case.topic, partitions=case.partitions, replication_factor=1)])
    writer = rows_frame(spark, case.size, rows).write.format("moldau").mode("append").option("topic", case.topic)
    options = {"kafka.bootstrap.servers": bootstrap, "kafka.compression.type": case.codec}
    writer.options(**options).save()


def reading(spark: SparkSession, reader: str, bootstrap: str, case: Case, rows: int) -> DataFrame:
    """Returns the rows of a case as one of the readers gives them."""
    if reader == LIMIT:
        options = {"rows": str(rows), "tasks": str(case.partitions), "valuebytes": str(case.size - KEY_BYTES)}
        return spark.read.format(LIMIT).options(**options).load()
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": case.topic, "startingOffsets": "earliest"}
    return spark.read.format(reader).options(**options).load()


def seconds_to_read(frame: DataFrame, sink: str) -> float:
    """Reads all rows once."""
    with tempfile.TemporaryDirectory(prefix="moldau-bench-") as folder:
        writer = frame.write.format(sink).mode("overwrite")
        began = time.perf_counter()
        if sink == NOOP:
            writer.save()
        else:
            writer.save(f"{folder}/rows")
        return time.perf_counter() - began


def throughput(
    spark: SparkSession,
    bootstrap: str,
    cases: Sequence[Case],
    readers: Sequence[str],
    rounds: int,
    scale: float,
    filled: set[str],
) -> Iterator[dict[str, Any]]:
    """Yields the figures of each case and reader; ``filled`` has the topics that exist, and gets the others."""
    for case in cases:
        rows = int(ROWS[case.size] * scale)
        if case.topic not in filled:
            fill(spark, bootstrap, case, rows)
            filled.add(case.topic)
        taken: dict[str, list[float]] = {reader: [] for reader in readers}
        spent: dict[str, list[float]] = {reader: [] for reader in readers}
        for number in range(rounds + 1):
            for reader in readers:
                before = cpu_s()
                seconds = seconds_to_read(reading(spark, reader, bootstrap, case, rows), case.sink)
                if number:  # the first round starts processes and compiles
                    taken[reader].append(round(seconds, 3))
                    spent[reader].append(cpu_s() - before)
        for reader in readers:
            rate = round(rows / statistics.median(taken[reader]))
            print(
                f"{case.size:5} B {case.partitions:3} partitions {case.codec:5} {case.sink:8} {reader:9} "
                f"{rate:12,} rows/s {taken[reader]}",
                flush=True,
            )
            yield {
                "bytes": case.size,
                "partitions": case.partitions,
                "codec": case.codec,
                "sink": case.sink,
                "reader": reader,
                "rows": rows,
                "rows_per_s": rate,
                "seconds": taken[reader],
                "cpu_us_per_row": round(statistics.median(spent[reader]) * 1e6 / rows, 3),
                "load": round(os.getloadavg()[0], 1),
            }


class Feeder(threading.Thread):
    """Writes small rows at a steady rate until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._settings = {"bootstrap.servers": bootstrap, "linger.ms": 5}
        self._topic = topic
        self.stopping = threading.Event()

    def run(self) -> None:
        """Sends portions of 50 ms."""
        portion = LATENCY_PER_S // 20
        with Producer(self._settings) as producer:
            due = time.monotonic()
            while not self.stopping.is_set():
                for number in range(portion):
                    producer.send(self._topic, b"x" * 100, key=b"%d" % number)
                due += 0.05
                self.stopping.wait(max(0.0, due - time.monotonic()))
            producer.flush()


def latency(spark: SparkSession, bootstrap: str, reader: str) -> dict[str, Any]:
    """Returns the times of the micro-batches of a stream, in milliseconds."""
    topic = f"latency-{reader}"
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic(name=topic, partitions=6, replication_factor=1)])
    feeder = Feeder(bootstrap, topic)
    feeder.start()
    with tempfile.TemporaryDirectory(prefix="moldau-bench-") as folder:
        stream = spark.readStream.format(reader).option("kafka.bootstrap.servers", bootstrap)
        query = stream.option("subscribe", topic).load().writeStream.format("noop")
        running = query.option("checkpointLocation", folder).trigger(processingTime="0 seconds").start()
        times: dict[int, dict[str, int]] = {}
        deadline = time.monotonic() + QUERY_S
        began = None
        while time.monotonic() < deadline and (began is None or time.monotonic() < began + LATENCY_S):
            time.sleep(0.25)
            if (failure := running.exception()) is not None:
                raise failure
            for report in running.recentProgress:
                if report["numInputRows"]:
                    times[int(report["batchId"])] = {name: int(ms) for name, ms in report["durationMs"].items()}
            if began is None and len(times) >= LATENCY_SKIPPED:
                began = time.monotonic()
        running.stop()
    feeder.stopping.set()
    feeder.join()
    batches = [times[number] for number in sorted(times)[LATENCY_SKIPPED:]]
    assert batches, f"the query of {reader} made no micro-batch in {QUERY_S} s"
    measured = sorted(each["triggerExecution"] for each in batches)
    found = {
        "reader": reader,
        "rows_per_s": LATENCY_PER_S,
        "batches": len(measured),
        "p50_ms": measured[len(measured) // 2],
        "p99_ms": measured[min(len(measured) - 1, int(len(measured) * 0.99))],
        "tasks_ms": statistics.median(each["addBatch"] for each in batches),
        "load": round(os.getloadavg()[0], 1),
    }
    print(found, flush=True)
    return found


def main() -> None:
    """Runs the benchmark, or writes its page again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=float, default=1.0, help="scales the numbers of rows")
    parser.add_argument("--cases", choices=("all", "quick"), default="all")
    parser.add_argument("--jars", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only-latency", action="store_true", help="with --out: keeps the other figures of its JSON")
    parser.add_argument("--from", type=Path, dest="source", help="an earlier JSON file: nothing is measured")
    given = parser.parse_args()
    if given.source is not None:
        write_page(json.loads(given.source.read_text(encoding="utf-8")), given.out or given.source.parent)
        return
    settings = {"spark.driver.memory": "2g"}
    readers = [MOLDAU, LIMIT]
    if given.jars is not None:
        settings["spark.jars"] = ",".join(str(jar) for jar in sorted(given.jars.glob("*.jar")))
        readers.insert(1, JVM)
    spark = local_session("moldau-bench", settings=settings)
    spark.dataSource.register(PreparedSource)
    document: dict[str, Any] = {
        "date": time.strftime("%d %B %Y", time.gmtime()),
        "cores": os.cpu_count(),
        "rounds": given.rounds,
        "scale": given.rows,
        "cases": given.cases,
        "spark": spark.version,
        "jars": [] if given.jars is None else sorted(jar.name for jar in given.jars.glob("*.jar")),
        "load_before": round(os.getloadavg()[0], 1),
    }
    with cluster(brokers=1, controllers=1, links=False) as brokers:
        cases = ALL if given.cases == "all" else QUICK
        if given.only_latency:
            document = json.loads((given.out / "spark-source.json").read_text(encoding="utf-8"))
        else:
            rounds, scale = given.rounds, given.rows
            document["throughput"] = list(throughput(spark, brokers.bootstrap, cases, readers, rounds, scale, set()))
            document["load_after"] = round(os.getloadavg()[0], 1)
        document["latency"] = [
            latency(spark, brokers.bootstrap, reader) for reader in readers if reader in (MOLDAU, JVM)
        ]
    spark.stop()
    if given.out is not None:
        text = json.dumps(document, indent=1) + "\n"
        (given.out / "spark-source.json").write_text(text, encoding="utf-8")
        write_page(document, given.out)


if __name__ == "__main__":
    main()
