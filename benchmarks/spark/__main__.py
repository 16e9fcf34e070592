"""How fast Spark writes to Moldau: this project's sink and Spark's JVM connector in turns, in one session.

    python -m benchmarks.spark [--rounds 3] [--jars DIRECTORY] [--json FILE]

Two tasks on ``local[2]`` write rows of a cached table into one topic of three brokers, which share the two cores. Each
round runs every sink once, in turns; the figure is the median of the rounds. The JVM connector is not in the wheel of
PySpark: ``--jars`` names a directory with spark-sql-kafka-0-10, spark-token-provider-kafka-0-10, kafka-clients and
commons-pool2; without it, its rows are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.spark.cpu import cpu_s

from moldau.admin import NewTopic
from moldau.blocking import Admin
from moldau_jepsen.testing import cluster
from pyspark_moldau.session import local_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

ROWS = {100: 2_000_000, 1024: 300_000}
PARTITIONS = 6
GUARANTEES = ("at-least-once", "exactly-once")


def table(spark: SparkSession, size: int, rows: int) -> DataFrame:
    """Returns rows with a key of 8 bytes and a value, ``size`` bytes together, held in memory."""
    filler = "x" * (size - 8 - 12)
    frame = spark.range(0, rows, 1, 2).selectExpr(
        "cast(lpad(cast(id % 1000 as string), 8, '0') as binary) key",
        f"cast(concat(lpad(cast(id as string), 12, '0'), '{filler}') as binary) value",
    )
    frame.persist()
    frame.count()
    return frame


def seconds_to_write(frame: DataFrame, sink: str, topic: str, bootstrap: str) -> float:
    """Writes the table once."""
    kind, _, guarantee = sink.partition(" ")
    writer = frame.write.format(kind).mode("append").option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    if guarantee:
        writer = writer.option("deliveryGuarantee", guarantee)
    if kind == "noop":
        writer = frame.write.format("noop").mode("overwrite")
    began = time.perf_counter()
    writer.save()
    return time.perf_counter() - began


def sink_figures(
    spark: SparkSession, bootstrap: str, sinks: Sequence[str], sizes: Sequence[int], rounds: int, scale: float
) -> Iterator[dict[str, Any]]:
    """Yields the figures of each size of rows and sink. Each round begins with another sink."""
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics(
            [NewTopic(name=name, partitions=PARTITIONS, replication_factor=3) for name in ("bench", "warm")]
        )
    for size in sizes:
        rows = int(ROWS[size] * scale)
        frame = table(spark, size, rows)
        for sink in sinks:  # starts the Python processes and connections
            seconds_to_write(frame.limit(1000), sink, "warm", bootstrap)
        taken: dict[str, list[float]] = {sink: [] for sink in sinks}
        spent: dict[str, list[float]] = {sink: [] for sink in sinks}
        for number in range(rounds):
            first = number % len(sinks)
            for sink in (*sinks[first:], *sinks[:first]):
                before = cpu_s()
                taken[sink].append(round(seconds_to_write(frame, sink, "bench", bootstrap), 3))
                spent[sink].append(cpu_s() - before)
        frame.unpersist()
        for sink in sinks:
            found = {
                "bytes": size,
                "sink": sink,
                "rows": rows,
                "rows_per_s": round(rows / statistics.median(taken[sink])),
                "seconds": taken[sink],
                "cpu_us_per_row": round(statistics.median(spent[sink]) * 1e6 / rows, 3),
                "load": round(os.getloadavg()[0], 1),
            }
            print(found, flush=True)
            yield found


def main() -> None:
    """Prints the figures, and writes them to a file on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=float, default=1.0, help="scales the numbers of rows")
    parser.add_argument("--jars", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    settings = {"spark.driver.memory": "2g"}
    sinks = [f"moldau {guarantee}" for guarantee in GUARANTEES]
    if given.jars is not None:
        settings["spark.jars"] = ",".join(str(jar) for jar in sorted(given.jars.glob("*.jar")))
        sinks.append("kafka")
    spark = local_session("moldau-bench", settings=settings)
    with cluster(brokers=3, links=False, settings={"log.retention.bytes": 200_000_000}) as brokers:
        figures = list(sink_figures(spark, brokers.bootstrap, sinks, tuple(ROWS), given.rounds, given.rows))
    load = os.getloadavg()
    print(f"load average at the end: {load[0]:.1f}")
    if given.json is not None:
        given.json.write_text(json.dumps({"load": load, "figures": figures}, indent=1) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
