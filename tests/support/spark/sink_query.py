"""A streaming query from one topic to another, in a driver process of its own that a test can kill.

    python -m support.spark.sink_query BOOTSTRAP INPUT OUTPUT CHECKPOINT

It prints ``started QUERY_ID`` and runs until it is killed. A query that fails is started again, as an operator would.
"""

import sys

RESTARTS_MAX = 100


def main(bootstrap: str, source: str, target: str, checkpoint: str) -> None:
    from pyspark.errors import StreamingQueryException

    from pyspark_moldau.session import local_session

    spark = local_session("sink-query")
    rows = (
        spark.readStream.format("moldau")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "2000")
        .load()
        .select("key", "value")
    )
    for _ in range(RESTARTS_MAX):
        query = (
            rows.writeStream.format("moldau")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", target)
            .option("deliveryGuarantee", "exactly-once")
            .option("checkpointLocation", checkpoint)
            .start()
        )
        print("started", query.id, flush=True)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            print("failed", str(error)[:4000], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
