"""The driver of the streaming query that the workload ``spark`` kills and starts again.

    python -m moldau_jepsen.chaos.spark.driver BOOTSTRAP SOURCE TARGET CHECKPOINT GUARANTEE

It copies rows from one topic to another until it is killed. A copy holds partition, offset and value of its row as
JSON, which is how the checker finds the row again. A query that fails is started again, as an operator would do.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

RESTARTS_MAX: Final = 1000
RESTART_S: Final = 0.5
BATCH_ROWS: Final = 600
SLICE_ROWS: Final = 20
SLICE_S: Final = 0.05
"""Rows take a second or so through a task, so that a kill strikes while some of a batch are written."""
COPY: Final = "to_json(named_struct('partition', partition, 'offset', offset, 'value', hex(value)))"


def hand_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Passes rows on in small portions, with a pause before each; runs in tasks."""
    for batch in batches:
        for begin in range(0, batch.num_rows, SLICE_ROWS):
            time.sleep(SLICE_S)
            yield batch.slice(begin, SLICE_ROWS)


def main(bootstrap: str, source: str, target: str, checkpoint: str, guarantee: str) -> None:
    """Runs the query until the process is killed."""
    from pyspark.errors import PySparkException

    from pyspark_moldau.session import local_session

    session = local_session("moldau-chaos")
    options = {"kafka.bootstrap.servers": bootstrap}
    raw = session.readStream.format("moldau").options(**options).option("subscribe", source)
    raw = raw.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", str(BATCH_ROWS))
    rows = raw.option("kafka.isolation.level", "read_committed").load().select("key", "value", "partition", "offset")
    copies = rows.mapInArrow(hand_on, rows.schema).selectExpr("key", f"{COPY} as value")
    for number in range(RESTARTS_MAX):
        if number:
            time.sleep(RESTART_S)
        writer = copies.writeStream.format("moldau").options(**options).option("topic", target)
        query = (
            writer.option("deliveryGuarantee", guarantee)
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            query.awaitTermination()
        except PySparkException as error:
            sys.stdout.write(f"query-failed {str(error)[:2000]}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
