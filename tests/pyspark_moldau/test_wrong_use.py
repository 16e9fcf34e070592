"""Goal: the first line of each error that a user meets names option or column, value and remedy, without a traceback.

Method: a table of mistakes, in batch queries, streams and sinks, with the session and the broker that all Spark tests
share. Mistakes that no cluster is needed for stand in the tests of options and of job files.
"""

import json

import pytest

from moldau.blocking import Producer
from pyspark_moldau.session.java import find_java
from support.interop.clients import create_topic
from support.spark.shared import patiently, shared_broker, shared_session

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found"),
    pytest.mark.filterwarnings("ignore"),  # pyspark and py4j leave sockets to the garbage collector
]

TOPIC = "mistakes"
WAIT_S = 300
CLOSED = "127.0.0.1:9"


@pytest.fixture(scope="module")
def brokers():
    running = shared_broker()
    create_topic(running.bootstrap, TOPIC, 2, 1)
    with Producer({"bootstrap.servers": running.bootstrap}) as producer:
        for number in range(4):
            producer.send(TOPIC, b"%d" % number, partition=number % 2)
        producer.flush()
    return running


@pytest.fixture(scope="module")
def spark():
    return shared_session()


def first_lines(error):
    """Returns the first two lines: where a task fails, Spark begins with a line of its own."""
    text = str(error)
    assert "Traceback" not in text, text[:3000]
    return "\n".join([line for line in text.splitlines() if line.strip()][:2])


READ = {
    "topic": (
        {"subscribe": "mistaks"},
        "subscribe: topic mistaks does not exist; create it, or correct its name; did you",
    ),
    "name": ({"subscribe": "a/b"}, "subscribe: 'a/b' is no name of a topic"),
    "near option": ({"startingOffset": "earliest"}, "unknown option startingoffset; did you mean startingOffsets?"),
    "unlike option": ({"zzz": "1"}, "unknown option zzz; known are subscribe, subscribePattern"),
    "key without prefix": ({"bootstrap.servers": CLOSED}, "did you mean kafka.bootstrap.servers?"),
    "path": ({"path": TOPIC}, "unknown option path; load() takes no path; name topics by the option subscribe"),
    "offset": (
        {"startingOffsets": json.dumps({TOPIC: {"0": 99, "1": 0}})},
        f"startingOffsets: {TOPIC}-0 ends at 2, before its start 99; start at or before the end",
    ),
    "partition": (
        {"startingOffsets": json.dumps({TOPIC: {"0": 0}})},
        f"startingOffsets leaves out a partition: {TOPIC}-1; -2 means earliest and -1 latest",
    ),
    "time": (
        {"startingTimestamp": "2013-01-01"},
        "startingTimestamp: expected milliseconds since 1970, got '2013-01-01'",
    ),
    "no broker": (
        {"kafka.bootstrap.servers": CLOSED, "kafka.default.api.timeout.ms": "300"},
        f"no broker at {CLOSED} answered within 0.3 s ({CLOSED}: Connection refused: nothing listens at this port); ",
    ),
    "plaintext": (
        {"kafka.security.protocol": "SSL", "kafka.default.api.timeout.ms": "300"},
        "does not speak TLS: set kafka.security.protocol to PLAINTEXT, or use its TLS listener",
    ),
}


@pytest.mark.parametrize("name", READ)
def test_a_mistake_in_a_batch_query_is_named(spark, brokers, name):
    options, message = READ[name]
    given = {"kafka.bootstrap.servers": brokers.bootstrap, "subscribe": TOPIC} | options
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as wrong:
        spark.read.format("moldau").options(**given).load().collect()
    assert message in first_lines(wrong.value)


WRITTEN = {
    "missing column": ("'v' key", {"topic": TOPIC}, "column value is missing: the query has key; name one value"),
    "another column": (
        "'v' value, 1 batch",
        {"topic": TOPIC},
        "column batch: the sink has no such column; it takes key",
    ),
    "type": ("5L value", {"topic": TOPIC}, "column value: expected string or binary, got bigint; cast it"),
    "no topic": ("'v' value", {}, "topic: neither the option topic nor a column topic is given; set one of them"),
    "null topic": ("'v' value, string(null) topic", {}, "column topic: null in row 0 of a block; set the option topic"),
    "unknown topic": ("'v' value", {"topic": "a/b"}, "option topic: topic 'a/b' is not on "),
    "partition": ("'v' value, -1 partition", {"topic": TOPIC}, "column partition: -1 is negative; null leaves the"),
    "older version": (
        "'v' value",
        {"topic": TOPIC, "deliveryGuarantee": "exactly-once", "txnAppId": "mistakes", "txnVersion": "1"},
        "deliveryGuarantee exactly-once: batch 1: batch 2 of this query is decided already",
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_mistake_in_what_is_written_is_named(spark, brokers, name):
    columns, options, message = WRITTEN[name]
    given = {"kafka.bootstrap.servers": brokers.bootstrap, "kafka.max.block.ms": "2000"} | options
    writer = spark.sql(f"select {columns}").write.format("moldau").mode("append")
    if name == "older version":
        writer.options(**given | {"txnVersion": "2"}).save()
    with pytest.raises(Exception, match="moldau") as wrong:
        writer.options(**given).save()
    assert message in first_lines(wrong.value)


def test_a_checkpoint_of_another_source_is_refused(spark, brokers, tmp_path):
    """The checkpoint is that of a query over Spark's rate source; one of Spark's Kafka source works."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"6bd5b5f5-1b0c-4c27-9a3e-0f4b0c1e7f11"}')
    (tmp_path / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n7')

    def run():
        stream = spark.readStream.format("moldau").option("kafka.bootstrap.servers", brokers.bootstrap)
        query = stream.option("subscribe", TOPIC).load().writeStream.format("noop")
        query.option("checkpointLocation", str(tmp_path)).start().awaitTermination(WAIT_S)

    with pytest.raises(Exception, match="checkpoint") as wrong:
        patiently(run)
    assert "checkpointLocation: its offsets are" in first_lines(wrong.value)
