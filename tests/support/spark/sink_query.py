"""Streaming queries from one topic to another and to tables, in a driver process of their own that a test can kill.

    python -m support.spark.sink_query BOOTSTRAP INPUT OUTPUT HOME [parquet,delta]

The checkpoints are ``HOME/checkpoint`` (the topic) and ``HOME/checkpoint-FORMAT``; the tables are ``HOME/FORMAT``, each
written as the job ``load`` writes it. It prints ``started NAME`` and runs until it is killed. A query that fails is
started again, as an operator would. Tables are compacted first, so that a kill may strike a compaction too.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

RESTARTS_MAX = 300
COMPACT_FILES = 8
START_S = 30.0
POLL_S = 0.2


def main(bootstrap: str, source: str, target: str, home: str, tables: str = "") -> None:
    from pyspark_moldau.jobs.files import OWNER
    from pyspark_moldau.jobs.load import PARTITION_BY, loaded_rows
    from pyspark_moldau.jobs.tables import TableWriter, compact_table
    from pyspark_moldau.session import local_session

    spark = local_session("sink-query")
    folder = Path(home)
    rows = (
        spark.readStream.format("moldau")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "20000")
        .load()
    )
    to_topic = (
        rows.select("key", "value")
        .writeStream.format("moldau")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("deliveryGuarantee", "exactly-once")
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    starts: dict[str, Callable[[], StreamingQuery]] = {"topic": to_topic.start}
    for name in filter(None, tables.split(",")):
        if (folder / name / OWNER).exists():
            print("compacted", name, *compact_table(spark, folder / name, files_min=COMPACT_FILES), flush=True)
        to_table = loaded_rows(rows).writeStream.foreachBatch(TableWriter(folder / name, name, PARTITION_BY))
        starts[name] = to_table.option("checkpointLocation", str(folder / f"checkpoint-{name}")).start
    keep_running(starts)


def keep_running(starts: dict[str, Callable[[], StreamingQuery]]) -> None:
    """Runs the queries, and starts those again that failed.

    They start one after the other: Spark gives the Python process of a source ten seconds, and on a busy machine three
    of them at once take longer than that.
    """
    queries: dict[str, StreamingQuery] = {}
    left = RESTARTS_MAX
    while left:
        for name, start in starts.items():
            query = queries.get(name)
            if query is not None and query.isActive:
                continue
            if query is not None:
                print("failed", name, str(query.exception())[:4000], flush=True)
                left -= 1
            queries[name] = start()
            print("started", name, flush=True)
            deadline = time.monotonic() + START_S
            while queries[name].isActive and not queries[name].recentProgress and time.monotonic() < deadline:
                time.sleep(POLL_S)
        time.sleep(POLL_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
