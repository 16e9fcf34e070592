"""Spark writes to a real cluster: batch and streaming, at least once and exactly once, and its errors.

Method: the local Spark session and the cluster that all Spark tests share; the kills of
``support.spark.sink_campaign`` have a driver process of their own. The example of docs/spark.md runs as it stands.
"""

import datetime
import re
from collections import Counter
from pathlib import Path

import pytest

from moldau.blocking import Admin
from pyspark_moldau.session.java import find_java
from support.interop.clients import ConfluentClient, create_topic
from support.interop.committed import committed_values
from support.spark import sink_campaign
from support.spark.shared import patiently, shared_brokers, shared_session

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found"),
    pytest.mark.filterwarnings("ignore"),  # pyspark and py4j leave sockets to the garbage collector
]

WAIT_S = 600
DOCUMENT = Path(__file__).parents[3] / "docs" / "spark.md"


@pytest.fixture(scope="module")
def brokers():
    return shared_brokers()


@pytest.fixture(scope="module")
def spark():
    return shared_session()


def sink_of(frame, brokers, **more):
    options = {"kafka.bootstrap.servers": brokers.bootstrap} | more
    return frame.write.format("moldau").options(**options).mode("append")


def test_a_batch_query_writes_every_column(spark, brokers):
    """Key, value, topic, partition, headers and timestamp arrive as they were in the row."""
    create_topic(brokers.bootstrap, "columns-a", 3, 3)
    create_topic(brokers.bootstrap, "columns-b", 3, 3)
    noon = datetime.datetime.now(datetime.UTC).replace(microsecond=123_000) - datetime.timedelta(hours=1)
    rows = [
        (b"k%d" % n, f"v{n}", "columns-a" if n % 2 else "columns-b", n % 3, [("h", b"%d" % n)] if n % 5 else None, noon)
        for n in range(60)
    ]
    schema = "key binary, value string, topic string, partition int, headers array<struct<key:string,value:binary>>"
    frame = spark.createDataFrame(rows, schema + ", timestamp timestamp")
    sink_of(frame, brokers).save()
    for topic in ("columns-a", "columns-b"):
        expected = [row for row in rows if row[2] == topic]
        found = ConfluentClient(brokers.bootstrap).consume(topic, 3, len(expected))
        assert sorted((p, k, v.decode(), h) for p, _, k, v, h in found) == sorted(
            (row[3], row[0], row[1], row[4] or []) for row in expected
        )
    stamps = spark.read.format("moldau").option("kafka.bootstrap.servers", brokers.bootstrap)
    found = stamps.option("subscribe", "columns-a").load().select("timestamp").distinct().collect()
    assert [row["timestamp"].astimezone(datetime.UTC) for row in found] == [noon]


def test_a_batch_job_is_written_once_for_a_version(spark, brokers):
    """The same txnAppId and txnVersion write nothing again; the next version does; a failed job leaves nothing."""
    create_topic(brokers.bootstrap, "versions", 3, 3)
    frame = spark.range(500).selectExpr("cast(id as string) value").repartition(3)
    exactly = {"topic": "versions", "deliveryGuarantee": "exactly-once", "txnAppId": "job"}
    sink_of(frame, brokers, txnVersion="1", **exactly).save()
    sink_of(frame.coalesce(1), brokers, txnVersion="1", **exactly).save()
    assert committed_values(brokers.bootstrap, "versions", 3) == Counter({b"%d" % n: 1 for n in range(500)})
    failing = frame.selectExpr("case when value = '7' then raise_error('planned') else value end value")
    with pytest.raises(Exception, match="planned"):
        sink_of(failing, brokers, txnVersion="2", **exactly).save()
    sink_of(frame, brokers, txnVersion="2", **exactly).save()
    assert committed_values(brokers.bootstrap, "versions", 3) == Counter({b"%d" % n: 2 for n in range(500)})
    with pytest.raises(Exception, match="batch 1: batch 2 of this query is decided already"):
        sink_of(frame, brokers, txnVersion="1", **exactly).save()
    with Admin({"bootstrap.servers": brokers.bootstrap}) as admin:
        open_ids = [each.transactional_id for each in admin.list_transactions(states=["Ongoing"])]
    assert not [name for name in open_ids if name.startswith("moldau-spark-job-")]


def run_example(code, spark):
    names = {"spark": spark}
    exec(code, names)
    assert names["query"].awaitTermination(WAIT_S)
    assert names["query"].exception() is None


def test_the_example_of_the_documentation_runs(spark, brokers, tmp_path):
    """The code of docs/spark.md copies a topic, and a restart goes on without a row twice."""
    create_topic(brokers.bootstrap, "flights", 2, 3)
    create_topic(brokers.bootstrap, "late-flights", 2, 3)
    section = DOCUMENT.read_text().split("## Writing", 1)[1]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    code = next(block for block in blocks if "writeStream" in block)
    code = code.replace("127.0.0.1:9092", brokers.bootstrap).replace(
        "/var/lib/late-flights", str(tmp_path / "checkpoint")
    )
    for first in (0, 100):
        ConfluentClient(brokers.bootstrap).produce(
            "flights", [(b"k", b"late %d" % n, []) for n in range(first, first + 100)]
        )
        patiently(run_example, code, spark)
    assert committed_values(brokers.bootstrap, "late-flights", 2) == Counter({b"late %d" % n: 1 for n in range(200)})


def test_errors_name_option_or_column(spark, brokers):
    create_topic(brokers.bootstrap, "errors", 1, 3)
    frame = spark.range(3).selectExpr("cast(id as string) value")
    with pytest.raises(Exception, match="column value: expected string or binary, got bigint; cast it"):
        sink_of(spark.range(3).selectExpr("id value"), brokers, topic="errors").save()
    with pytest.raises(Exception, match="unknown option topics; did you mean topic"):
        sink_of(frame, brokers, topics="errors").save()
    with pytest.raises(Exception, match="mode overwrite: a log is only appended to; use mode append"):
        sink_of(frame, brokers, topic="errors").mode("overwrite").save()
    with pytest.raises(Exception, match="column topic: null in row 1 of a block"):
        sink_of(frame.coalesce(1).selectExpr("value", "if(value = '1', null, 'errors') topic"), brokers).save()
    with pytest.raises(Exception, match="option topic: topic 'no/such' is not on"):
        sink_of(frame, brokers, topic="no/such", **{"kafka.max.block.ms": "3000"}).save()
    large = frame.selectExpr("repeat('x', 2000000) value")
    with pytest.raises(Exception, match=r"column value: a row for topic 'errors' is too large.*kafka.max.request.size"):
        sink_of(large, brokers, topic="errors").save()
    with pytest.raises(Exception, match="column partition: topic 'errors': row 0: partition 5, there are 0 to 0"):
        sink_of(frame.selectExpr("value", "5 partition"), brokers, topic="errors").save()


@pytest.mark.proof
def test_kills_leave_each_row_once():
    """The driver and a leader are killed in the middle of a query; ``make campaign-spark`` kills more of them."""
    figures = sink_campaign.run(2, 11, kinds=("driver", "leader"))
    assert figures["kills"] == 2
    assert figures["rows"] > 100
