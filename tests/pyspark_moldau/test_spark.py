"""Goal: Spark reads a real cluster in batches and streams, across leader failures, exactly once into Parquet.

Spark finds the source by itself. Method: the local Spark session and the cluster of three brokers that all Spark tests
share.
"""

import json
import time

import pytest
from pyspark.errors import StreamingQueryException

from pyspark_moldau.session.java import find_java
from support.interop.clients import ConfluentClient, create_topic, wait_for
from support.spark.shared import shared_brokers, shared_session

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found"),
    pytest.mark.filterwarnings("ignore"),  # pyspark and py4j leave sockets to the garbage collector
]

WAIT_S = 600


@pytest.fixture(scope="module")
def brokers():
    return shared_brokers()


@pytest.fixture(scope="module")
def spark():
    return shared_session()


def options_of(brokers, topic, **more):
    return {"kafka.bootstrap.servers": brokers.bootstrap, "subscribe": topic} | more


def records_of(first, count):
    return [(b"key-%d" % (n % 7), b"value-%d" % n, [("n", b"%d" % n)]) for n in range(first, first + count)]


SLOW_START = "connect back"
"""Spark gives the Python process of a stream's source ten seconds from its start to its first connection."""


def run_to_parquet(spark, brokers, topic, home, **more):
    """Runs a query to the present end of the topic; one that was given up at its start is started again."""
    deadline = time.monotonic() + WAIT_S
    while True:
        query = start_to_parquet(spark, brokers, topic, home, **more)
        assert ended(query)
        failure = query.exception()
        if failure is None:
            return query
        if SLOW_START not in str(failure) or time.monotonic() >= deadline:
            raise failure


def ended(query):
    """Waits for the end of a query, whatever the end."""
    try:
        return query.awaitTermination(WAIT_S)
    except StreamingQueryException:
        return True


def start_to_parquet(spark, brokers, topic, home, **more):
    return (
        spark.readStream.format("moldau")
        .options(**options_of(brokers, topic, startingOffsets="earliest", **more))
        .load()
        .selectExpr("cast(key as string) key", "cast(value as string) value", "partition", "offset")
        .writeStream.format("parquet")
        .option("path", str(home / "data"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def values_in(spark, home):
    return sorted(row["value"] for row in spark.read.parquet(str(home / "data")).collect())


def test_a_batch_query_has_the_rows_of_sparks_kafka_source(spark, brokers):
    """A batch query returns the same rows as Spark's Kafka source."""
    create_topic(brokers.bootstrap, "batch", 3, 3)
    placed = ConfluentClient(brokers.bootstrap).produce("batch", records_of(0, 200))
    table = spark.read.format("moldau").options(**options_of(brokers, "batch", includeHeaders="true")).load()
    assert table.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    rows = table.collect()
    assert sorted((row["partition"], row["offset"], bytes(row["value"])) for row in rows) == sorted(placed)
    assert {row["topic"] for row in rows} == {"batch"}
    assert {row["timestampType"] for row in rows} == {0}
    assert all(bytes(row["headers"][0]["value"]) == bytes(row["value"]).removeprefix(b"value-") for row in rows)
    some = spark.read.format("moldau").options(
        **options_of(
            brokers,
            "batch",
            startingOffsets=json.dumps({"batch": {"0": 5, "1": -2, "2": -2}}),
            endingOffsets=json.dumps({"batch": {"0": 9, "1": 0, "2": 0}}),
        )
    )
    assert sorted(row["offset"] for row in some.load().collect()) == [5, 6, 7, 8]


def test_a_stream_writes_each_record_once_over_restarts(spark, brokers, tmp_path):
    create_topic(brokers.bootstrap, "stream", 3, 3)
    client = ConfluentClient(brokers.bootstrap)
    client.produce("stream", records_of(0, 300))
    first = run_to_parquet(spark, brokers, "stream", tmp_path, maxOffsetsPerTrigger="120")
    assert len(first.recentProgress) >= 3
    assert values_in(spark, tmp_path) == sorted(f"value-{n}" for n in range(300))
    client.produce("stream", records_of(300, 100))
    run_to_parquet(spark, brokers, "stream", tmp_path)
    assert values_in(spark, tmp_path) == sorted(f"value-{n}" for n in range(400))


def test_a_stream_goes_on_when_a_leader_is_killed(spark, brokers, tmp_path):
    create_topic(brokers.bootstrap, "failing", 3, 3)
    client = ConfluentClient(brokers.bootstrap)
    client.produce("failing", records_of(0, 200))
    run_to_parquet(spark, brokers, "failing", tmp_path)
    victim = wait_for(lambda: brokers.partition_leader("failing", 0), "partition 0 has a leader")
    client.produce("failing", records_of(200, 200))
    brokers.kill(victim)
    run_to_parquet(spark, brokers, "failing", tmp_path)
    brokers.start_node(victim)
    assert values_in(spark, tmp_path) == sorted(f"value-{n}" for n in range(400))


def test_a_mistake_in_the_options_is_reported_by_name(spark, brokers):
    with pytest.raises(Exception, match="did you mean maxOffsetsPerTrigger"):
        spark.readStream.format("moldau").options(**options_of(brokers, "batch", maxOffsetPerTrigger="1")).load()
    missing = spark.read.format("moldau").options(**options_of(brokers, "no-such-topic"))
    with pytest.raises(Exception, match="topic no-such-topic does not exist"):
        missing.load().collect()


def test_spark_finds_the_source_by_itself():
    import subprocess
    import sys

    program = (
        "import pkgutil, importlib\n"
        "names = [m.name for m in pkgutil.iter_modules() if m.name.startswith('pyspark_')]\n"
        "module = importlib.import_module('pyspark_moldau')\n"
        "print(names.count('pyspark_moldau') >= 1, module.DefaultSource.name())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout.split() == ["True", "moldau"]
