"""Measures how long a view over many copies of the flights takes to be built again from offset zero (Kappa)."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from benchmarks.spark.cpu import cpu_s

from moldau.admin import NewTopic
from moldau.blocking import Admin
from moldau_cli.demo.pipeline import VIEW_FILE, VIEW_QUERIES
from moldau_cli.demo.records import load_flights
from pyspark_moldau.jobs.views import build, read_view, switch, view_job

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

TOPIC = "flights-many"
PARTITIONS = 6


def rebuild(spark: SparkSession, bootstrap: str, folder: Path, copies: int) -> dict[str, Any]:
    """Fills the topic, builds a version of the view by a stream from offset zero, and switches to it."""
    flights = load_flights()
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        configs = {"retention.ms": "-1", "segment.ms": str(10 * 366 * 86_400_000)}
        admin.create_topics([NewTopic(name=TOPIC, partitions=PARTITIONS, replication_factor=1, configs=configs)])
    lines = folder / "flights.txt"
    lines.write_bytes(b"\n".join(flights.values))
    once = spark.read.text(str(lines)).repartition(4)
    many = once.crossJoin(spark.range(copies)).selectExpr("cast(value as binary) value")
    many.write.format("moldau").options(**{"kafka.bootstrap.servers": bootstrap, "topic": TOPIC}).mode("append").save()
    file = folder / "view.toml"
    file.write_text(VIEW_FILE.format(bootstrap=bootstrap, topic=TOPIC, query=VIEW_QUERIES[True][1]))
    began, before = time.perf_counter(), cpu_s()
    version, _ = build(view_job(file), "stream", spark)
    switch(folder / "view", version.number)
    seconds = time.perf_counter() - began
    rows = flights.count * copies
    counted = sum(row["flights"] for row in read_view(folder / "view", spark).collect())
    assert counted == rows, f"the view counts {counted} flights of {rows}"
    found = {
        "copies": copies,
        "rows": rows,
        "seconds": round(seconds, 1),
        "rows_per_s": round(rows / seconds),
        "cpu_us_per_row": round((cpu_s() - before) * 1e6 / rows, 2),
        "load": round(os.getloadavg()[0], 1),
    }
    print(found, flush=True)
    return found
