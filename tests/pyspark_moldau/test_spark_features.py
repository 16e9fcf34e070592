"""Goal: what the source has beside Spark's Kafka source works in Spark: filters, columns, limits, errors, progress.

Method: a session that is not made by ``local_session`` but prepared as a user's own is, in the JVM that all
Spark tests share, and one broker.
"""

import io
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from rich.console import Console

from pyspark_moldau.session import prepare
from pyspark_moldau.session.java import find_java
from support.interop.clients import create_topic, wait_until
from support.spark.shared import SLOW_START, patiently, shared_broker, shared_session

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found"),
    pytest.mark.filterwarnings("ignore"),  # pyspark and py4j leave sockets to the garbage collector
]

WAIT_S = 300
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def brokers():
    running = shared_broker()
    create_topic(running.bootstrap, "t", 2, 1)
    fill(running, "t", 20, 2)
    return running


@pytest.fixture(scope="module")
def spark():
    session = shared_session().newSession()
    prepare(session)
    assert session.conf.get(PUSHDOWN) == "false", "Spark's default; other Python sources may have pushFilters"
    return session


@pytest.fixture
def pushdown(spark):
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


def fill(brokers, topic, count, partitions, value=b"x" * 100):
    producer = Producer({"bootstrap.servers": brokers.bootstrap})
    for number in range(count):
        producer.produce(topic, value, b"%d" % number, number % partitions)
    producer.flush(60)


def options_of(brokers, **more):
    given = {"kafka.bootstrap.servers": brokers.bootstrap, "subscribe": "t", "startingOffsets": "earliest"}
    return given | more


def batch(spark, brokers, **more):
    return spark.read.format("moldau").options(**options_of(brokers, **more)).load()


def started(spark, brokers, home, **more):
    return (
        spark.readStream.format("moldau")
        .options(**options_of(brokers, **more))
        .load()
        .writeStream.format("parquet")
        .option("path", str(home / "data"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def failure_of(spark, brokers, home, **more):
    """Runs a query to its end; returns its failure, or None. One that Spark gave up at its start is started again."""

    def run_to_its_end():
        query = started(spark, brokers, home, **more)
        assert query.awaitTermination(WAIT_S), "the query ends"

    try:
        patiently(run_to_its_end)
    except StreamingQueryException as error:
        if SLOW_START in str(error):
            raise
        return error
    return None


def test_queries_of_one_load_have_their_own_filters(spark, brokers, pushdown):
    """Spark would give the ranges of the last query with filters to the next one, and to both uses in a union."""
    table = batch(spark, brokers)
    assert table.where("partition = 1 and offset < 3").count() == 3
    assert table.count() == 20
    both = table.where("partition = 0 and offset < 3").union(table.where("partition = 1 and offset < 2"))
    assert sorted((row["partition"], row["offset"]) for row in both.collect()) == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
    ]


def test_filters_are_pushed_down(spark, brokers, pushdown):
    """Spark leaves exact filters to the source; it reads only the partitions and offsets that can pass."""
    asked = {"filterPushdown": "true"}
    table = batch(spark, brokers, **asked).where("partition = 1 and offset >= 4 and offset < 7 and value is not null")
    plan = table._jdf.queryExecution().executedPlan().toString()
    assert "Filter isnotnull(value" in plan, plan
    assert "offset#" not in plan.split("Filter", 1)[1].splitlines()[0], plan
    assert table.rdd.getNumPartitions() == 1
    assert sorted((row["partition"], row["offset"]) for row in table.collect()) == [(1, 4), (1, 5), (1, 6)]
    assert batch(spark, brokers, **asked).where("timestamp > timestamp '2100-01-01'").collect() == []
    assert batch(spark, brokers, **asked).where("partition = 9").collect() == []
    spark.conf.set(PUSHDOWN, "false")
    assert batch(spark, brokers, **asked).where("partition = 1 and offset = 4").count() == 1


def test_columns_come_from_an_option_or_a_schema(spark, brokers):
    assert batch(spark, brokers, columns="offset,key").columns == ["offset", "key"]
    assert len(batch(spark, brokers, columns="offset,key").collect()) == 20
    table = spark.read.format("moldau").schema("offset bigint, partition int").options(**options_of(brokers)).load()
    assert sorted(tuple(row) for row in table.collect()) == [(at, number) for at in range(10) for number in (0, 1)]


def test_limits_by_bytes_and_the_reported_lag(spark, brokers, tmp_path):
    """Each micro-batch has about a quarter of the log, and the reports show how much is left."""
    from pyspark_moldau.terminal.watch import watch

    output = io.StringIO()
    picture = tmp_path / "query.png"

    def watched():
        query = started(spark, brokers, tmp_path, maxBytesPerTrigger="900")
        history = watch(query, picture=picture, timeout_s=WAIT_S, console=Console(file=output, width=100))
        assert not query.isActive
        return history

    history = patiently(watched)
    sizes = [one.rows for one in history.batches if one.rows]
    assert sum(sizes) == history.rows == 20
    assert len(sizes) >= 3
    lags = [one.lag for one in history.batches]
    assert lags == sorted(lags, reverse=True)
    assert (lags[0], lags[-1]) == (20 - sizes[0], 0)
    assert "20 rows" in output.getvalue()
    assert picture.read_bytes().startswith(b"\x89PNG")


def first_line(error):
    return next(line for line in str(error).splitlines() if line.strip())


def test_an_error_of_a_query_begins_with_its_remedy(spark, brokers, tmp_path):
    with pytest.raises(Exception, match="did you mean maxOffsetsPerTrigger") as wrong:
        batch(spark, brokers, maxOffsetPerTrigger="1")
    assert "did you mean maxOffsetsPerTrigger" in first_line(wrong.value)
    refused = failure_of(spark, brokers, tmp_path, endingOffsets="latest")
    assert "endingOffsets is for batch queries: a stream has no end" in first_line(refused)
    unknown = failure_of(spark, brokers, tmp_path, subscribe="nowhere")
    assert "topic nowhere does not exist; create it" in first_line(unknown)
    assert "Traceback" not in str(unknown)


def recreate(brokers, topic):
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    admin.delete_topics([topic])[topic].result(60)
    wait_until(lambda: topic not in admin.list_topics(timeout=60).topics, "the topic is gone")
    create_topic(brokers.bootstrap, topic, 1, 1)
    fill(brokers, topic, 12, 1, value=b"new")


def test_an_error_of_a_task_has_no_traceback_of_the_source(spark, brokers):
    """The topic is replaced between the planning of a batch and its tasks."""
    create_topic(brokers.bootstrap, "planned", 1, 1)
    fill(brokers, "planned", 10, 1)
    table = batch(spark, brokers, subscribe="planned")
    assert table._jdf.queryExecution().toRdd().getNumPartitions() == 1
    recreate(brokers, "planned")
    with pytest.raises(Exception, match=r"planned was deleted before its records 0\.\.9 were read") as lost:
        table.collect()
    lines = str(lost.value).splitlines()
    assert any("DataLossError: planned was deleted" in line for line in lines[:2]), lines[:5]
    assert "Traceback" not in str(lost.value)


@pytest.mark.parametrize("lenient", [False, True], ids=["strict", "lenient"])
def test_a_topic_created_again_is_noticed_by_a_query(spark, brokers, tmp_path, lenient):
    topic = f"again-{lenient}"
    create_topic(brokers.bootstrap, topic, 1, 1)
    fill(brokers, topic, 10, 1)
    assert failure_of(spark, brokers, tmp_path, subscribe=topic) is None
    recreate(brokers, topic)
    failure = failure_of(spark, brokers, tmp_path, subscribe=topic, failOnDataLoss=json.dumps(not lenient))
    if not lenient:
        assert f"topic {topic} was deleted and created again" in first_line(failure)
        return
    assert failure is None
    rows = spark.read.parquet(str(tmp_path / "data")).where("value = 'new'").collect()
    assert sorted(row["offset"] for row in rows) == list(range(12))


def test_a_thread_of_its_own_writes_after_prepare(spark, brokers):
    """Spark looks for Python data sources in the session of the thread that writes, and other threads have none."""
    create_topic(brokers.bootstrap, "by-thread", 1, 1)
    servers = {"kafka.bootstrap.servers": brokers.bootstrap}

    def write():
        rows = prepare(spark).sql("select 'v' as value")
        rows.write.format("moldau").options(**servers).option("topic", "by-thread").mode("append").save()

    with ThreadPoolExecutor(1) as pool:
        patiently(lambda: pool.submit(write).result())
    assert batch(spark, brokers, subscribe="by-thread").count() >= 1
