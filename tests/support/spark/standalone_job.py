"""The driver of a job on a Spark cluster, as a program of its own.

    python -m support.spark.standalone_job JOB.toml

It asks each executor where it runs and where it found Moldau, runs the job, and prints one JSON document.
"""

import json
import os
import sys
from pathlib import Path

from pyspark_moldau.jobs.aggregate import aggregate_job, run_aggregate
from pyspark_moldau.jobs.queries.running import job_session
from pyspark_moldau.jobs.tables import read_table

PROBES = 8
"""Tasks that look around: enough for each of two executors with one core to get some."""


def look_around(_: int) -> tuple[str, str, str]:
    """Runs in a task."""
    import time

    import moldau
    from moldau.records import IMPLEMENTATION

    time.sleep(1)  # so that no executor takes all tasks before the other has started
    return os.getcwd(), str(Path(moldau.__file__).parent), IMPLEMENTATION


def main(path: str) -> None:
    job = aggregate_job(Path(path))
    session = job_session(job.config)
    try:
        context = session.sparkContext
        seen = sorted(set(context.parallelize(range(PROBES), PROBES).map(look_around).collect()))
        report = run_aggregate(job, session, 300)
        assert job.sink.path is not None
        rows = read_table(session, job.sink.path).orderBy("window_start", "k").collect()
        print(json.dumps({"seen": seen, "report": dict(report.rows), "rows": [[r["k"], r["n"]] for r in rows]}))
    finally:
        session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
