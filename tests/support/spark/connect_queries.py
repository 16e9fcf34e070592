"""Queries of a Spark Connect client, as a program of its own: Spark starts a server for it on this machine.

    python -m support.spark.connect_queries BOOTSTRAP SOURCE TARGET CHECKPOINT

It prints, as one JSON document, how many rows of the source it counted, wrote in a batch, and wrote in a stream.
"""

import json
import os
import sys

from pyspark_moldau.session import prepare
from pyspark_moldau.session.java import java_home
from pyspark_moldau.session.programs import own_directory

STREAM_S = 240


def main(bootstrap: str, source: str, target: str, checkpoint: str) -> None:
    os.environ["JAVA_HOME"] = str(java_home(own_directory()))
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote("local[2]").config("spark.driver.memory", "512m")
    spark = prepare(builder.config("spark.ui.enabled", "false").getOrCreate())
    servers = {"kafka.bootstrap.servers": bootstrap}
    exactly = servers | {"topic": target, "deliveryGuarantee": "exactly-once"}

    def count(topic: str) -> int:
        reader = spark.read.format("moldau").options(**servers).option("subscribe", topic)
        return reader.option("kafka.isolation.level", "read_committed").load().count()

    found: dict[str, str | int] = {"client": type(spark).__module__, "read": count(source)}
    rows = spark.read.format("moldau").options(**servers).option("subscribe", source).load()
    rows.select("key", "value").write.format("moldau").options(**exactly).mode("append").save()
    batch = count(target)
    found["batch"] = batch
    reader = spark.readStream.format("moldau").options(**servers).option("subscribe", source)
    stream = reader.option("startingOffsets", "earliest").load().select("key", "value")
    query = stream.writeStream.format("moldau").options(**exactly).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination(STREAM_S)
    found["stream"] = count(target) - batch
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
