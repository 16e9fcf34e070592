"""Measures source, micro-batches, sink and the rebuild of a view beside Spark's JVM connector, and writes both pages.

    make bench-spark                    (PYTHONPATH=tests python -m benchmarks.spark.everything)

Each finished part is kept in ``--state``: a run that was stopped goes on where it was, and ``--fresh`` begins again.
Maven brings the JVM connector; where there is no Maven, its rows are left out. On two idle cores a run takes less than
15 minutes; ``--quick --rows 0.01 --rounds 1 --copies 1`` shows that everything works.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.spark.__main__ import GUARANTEES, sink_figures
from benchmarks.spark.__main__ import ROWS as SINK_ROWS
from benchmarks.spark.page import write_page
from benchmarks.spark.prepared import PreparedSource
from benchmarks.spark.rebuild import rebuild
from benchmarks.spark.sink_page import write_sink_page
from benchmarks.spark.source import ALL, JVM, LIMIT, MOLDAU, QUICK, latency, throughput

from moldau_jepsen.testing import cluster
from pyspark_moldau.session import local_session
from support.spark.jvm_connector import connector_jars

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

STATE = Path("build/spark-bench.json")
DOCS = Path("docs/benchmarks")


class Steps:
    """The finished parts of a run, kept in a file."""

    def __init__(self, file: Path, settings: dict[str, Any], *, fresh: bool) -> None:
        self._file = file
        self.document: dict[str, Any] = {"settings": settings, "done": {}}
        if file.exists() and not fresh:
            found = json.loads(file.read_text(encoding="utf-8"))
            if found["settings"] == settings:
                self.document = found

    def missing(self, names: list[str]) -> list[str]:
        """Returns the parts that are not finished."""
        return [name for name in names if name not in self.document["done"]]

    def run(self, name: str, measure: Callable[[], object]) -> None:
        """Measures a part, unless it is finished."""
        done = self.document["done"]
        if name not in done:
            print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
            done[name] = measure()
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(json.dumps(self.document, indent=1) + "\n", encoding="utf-8")


def measure(spark: SparkSession, steps: Steps, readers: list[str], sinks: list[str], given: argparse.Namespace) -> None:
    """Measures what is missing."""
    cases = {f"source {case.topic} {case.sink}": case for case in (QUICK if given.quick else ALL)}
    streams = {f"micro-batches {reader}": reader for reader in readers if reader in (MOLDAU, JVM)}
    if steps.missing([*cases, *streams, "rebuild"]):
        with (
            cluster(brokers=1, controllers=1, links=False) as brokers,
            tempfile.TemporaryDirectory(prefix="moldau-bench-") as folder,
        ):
            filled: set[str] = set()
            for name, case in cases.items():
                measured = throughput(spark, brokers.bootstrap, [case], readers, given.rounds, given.rows, filled)
                steps.run(name, partial(list, measured))
            for name, reader in streams.items():
                steps.run(name, partial(latency, spark, brokers.bootstrap, reader))
            steps.run("rebuild", lambda: rebuild(spark, brokers.bootstrap, Path(folder), given.copies))
    if steps.missing(["sink"]):
        with cluster(brokers=3, links=False, settings={"log.retention.bytes": 200_000_000}) as brokers:
            bootstrap, rounds = brokers.bootstrap, max(3, given.rounds) if given.rows >= 0.5 else given.rounds
            steps.run("sink", lambda: list(sink_figures(spark, bootstrap, sinks, tuple(SINK_ROWS), rounds, given.rows)))


def main() -> None:
    """Measures and writes the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rows", type=float, default=0.5, help="scales the numbers of rows")
    parser.add_argument("--copies", type=int, default=100, help="how often the flights are in the topic of the rebuild")
    parser.add_argument("--state", type=Path, default=STATE)
    parser.add_argument("--quick", action="store_true", help="a third of the topics")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--out", type=Path, default=DOCS)
    given = parser.parse_args()
    jars, why = connector_jars()
    readers, sinks = [MOLDAU, LIMIT], [f"moldau {guarantee}" for guarantee in GUARANTEES]
    settings = {"spark.driver.memory": "2g"}
    if jars:
        settings["spark.jars"] = ",".join(map(str, jars))
        readers.insert(1, JVM)
        sinks.append("kafka")
    else:
        print(why, flush=True)
    chosen = {
        "quick": given.quick,
        "rounds": given.rounds,
        "rows": given.rows,
        "copies": given.copies,
        "jars": [jar.name for jar in jars],
    }
    steps = Steps(given.state, chosen, fresh=given.fresh)
    began, load = time.monotonic(), os.getloadavg()[0]
    spark = local_session("moldau-bench", settings=settings)
    spark.dataSource.register(PreparedSource)
    measure(spark, steps, readers, sinks, given)
    done = steps.document["done"]
    common = {
        "date": time.strftime("%d %B %Y", time.gmtime()),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "spark": spark.version,
        "jars": chosen["jars"],
        "command": f"make bench-spark ({'--quick ' if given.quick else ''}--rounds {given.rounds} "
        f"--rows {given.rows:g} --copies {given.copies})",
        "load_before": round(load, 1),
    }
    spark.stop()
    given.out.mkdir(parents=True, exist_ok=True)
    source = common | {
        "throughput": [row for name, rows in done.items() if name.startswith("source ") for row in rows],
        "latency": [row for name, row in done.items() if name.startswith("micro-batches ")],
        "rebuild": done["rebuild"],
    }
    (given.out / "spark-source.json").write_text(json.dumps(source, indent=1) + "\n", encoding="utf-8")
    write_page(source, given.out)
    sink = common | {"figures": done["sink"]}
    (given.out / "spark-sink.json").write_text(json.dumps(sink, indent=1) + "\n", encoding="utf-8")
    write_sink_page(sink, given.out)
    print(f"{time.monotonic() - began:.0f} s; pages in {given.out}", flush=True)


if __name__ == "__main__":
    main()
