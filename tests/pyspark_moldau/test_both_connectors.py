"""Goal: a query gives the same rows, or fails likewise, with ``format("kafka")`` replaced by ``format("moldau")``.

Method: a list of query texts runs with Spark's own Kafka connector and with this source, on one cluster and in one
session. The cluster has no other topics, as one query reads them all. Where the two are meant to differ, the list says
why, and the difference is checked too.
"""

import json
import time
from dataclasses import dataclass

import pytest
from confluent_kafka import Producer

from moldau_jepsen.testing import cluster
from pyspark_moldau.session.java import find_java
from support.interop.clients import create_topic
from support.spark.jvm_connector import connector_jars
from support.spark.shared import shared_session

pytestmark = [
    pytest.mark.proof,
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found"),
    pytest.mark.filterwarnings("ignore"),  # pyspark and py4j leave sockets to the garbage collector
]

WAIT_S = 300
SLOW_START = "connect back"
BASE_MS = int(time.time()) * 1000 - 3_600_000
FAR_MS = 4_102_444_800_000
COLUMNS = ("topic", "partition", "offset", "key", "value", "timestamp", "timestampType")


@dataclass(frozen=True, kw_only=True)
class Query:
    """``rows`` is how many rows both connectors return; None means that both fail."""

    rows: int | None
    options: dict[str, str]
    differs: str = ""  # why this source does something else ...
    ours: int | None = None  # ... and what


def query(rows, differs="", ours=None, **options):
    given = {"subscribe": "full"} if not {"subscribePattern", "assign", "subscribe"} & options.keys() else {}
    given |= {key.replace("__", "."): value for key, value in options.items()}
    return Query(rows=rows, options=given, differs=differs, ours=ours)


def offsets(first, second, topic="full"):
    return json.dumps({topic: {"0": first, "1": second}})


def at(second):
    return str(BASE_MS + second * 1000)


ONCE = {"fetchOffset__numRetries": "1"}  # the connector tries three times to find an offset that is not there

BATCHES = {
    "all": query(20),
    "two topics": query(26, subscribe="full, half"),
    "empty topic": query(0, subscribe="empty"),
    "start is end": query(0, startingOffsets=offsets(5, 5), endingOffsets=offsets(5, 5)),
    "range": query(7, startingOffsets=offsets(3, -2), endingOffsets=offsets(5, 5)),
    "assign": query(10, assign='{"full": [1]}'),
    "pattern": query(20, subscribePattern="fu.*"),
    "pattern of all": query(31, subscribePattern=".*"),
    "uncommitted": query(5, subscribe="tx"),
    "committed": query(3, subscribe="tx", kafka__isolation__level="read_committed"),
    "pattern of none": query(0, subscribePattern="zzz"),
    "timestamp": query(10, startingTimestamp=at(5)),
    "timestamp, late": query(
        0, startingTimestamp=str(FAR_MS), startingOffsetsByTimestampStrategy="latest", startingOffsets="earliest"
    ),
    "timestamp, no record": query(None, startingTimestamp=str(FAR_MS), **ONCE),
    "timestamp, empty partition": query(
        None,
        subscribe="half",
        startingTimestamp=at(2),
        differs="in a partition without any record each offset is the right one",
        ours=4,
        **ONCE,
    ),
    "timestamps": query(
        4,
        subscribe="half",
        startingOffsetsByTimestamp=offsets(BASE_MS + 2000, 0, "half"),
        startingOffsetsByTimestampStrategy="latest",
    ),
    "ending timestamp": query(6, endingTimestamp=at(3)),
    "end past the log": query(None, endingOffsets=offsets(500, -1), kafkaConsumer__pollTimeoutMs="1000"),
    "end past the log, lenient": query(
        20, endingOffsets=offsets(500, -1), failOnDataLoss="false", kafkaConsumer__pollTimeoutMs="1000"
    ),
    "both past the log": query(10, startingOffsets=offsets(500, -2), endingOffsets=offsets(500, -1)),
    "start past the log": query(None, startingOffsets=offsets(500, -2)),
    "end before start": query(None, startingOffsets=offsets(9, 9), endingOffsets=offsets(3, 9)),
    "partition is missing": query(
        0, assign='{"full": [7]}', differs="a partition that does not exist is a mistake", ours=None
    ),
    "divided": query(20, minPartitions="3", maxRecordsPerPartition="15"),
    "headers": query(20, includeHeaders="true"),
    "client keys": query(
        20,
        kafka__fetch__max__bytes="1000000",
        kafka__fetch__min__bytes="1",
        kafka__max__poll__records="10",
        kafka__session__timeout__ms="10000",
        kafka__receive__buffer__bytes="65536",
        kafka__metadata__max__age__ms="10000",
        kafka__check__crcs="false",
        kafka__retry__backoff__ms="50",
        kafka__zzz="1",
        kafka__group__id="g",
        groupIdPrefix="p",
        fetchOffset__numRetries="2",
        fetchOffset__retryIntervalMs="10",
        kafkaConsumer__pollTimeoutMs="9000",
        maxOffsetsPerTrigger="5",
        minOffsetsPerTrigger="3",
    ),
    "unknown option": query(20, zzz="1", differs="an unknown option is most often a misspelt one", ours=None),
    "records 0": query(None, maxRecordsPerPartition="0"),
    "boolean": query(None, includeHeaders="yes"),
    "start word": query(None, startingOffsets="middle"),
    "start latest": query(None, startingOffsets="latest"),
    "end earliest": query(None, endingOffsets="earliest"),
    "end earliest by offset": query(None, endingOffsets=offsets(-2, 0)),
    "start leaves one out": query(None, startingOffsets='{"full": {"0": 1}}'),
    "empty subscription": query(None, subscribe=""),
    "two subscriptions": query(None, subscribe="full", subscribePattern="x"),
    "bad expression": query(None, subscribePattern="("),
    "auto.offset.reset": query(None, kafka__auto__offset__reset="earliest"),
    "deserializer": query(None, kafka__key__deserializer="x"),
    "bad client value": query(None, kafka__fetch__max__bytes="x"),
    "bad isolation": query(None, kafka__isolation__level="x"),
    "unknown topic": query(None, subscribe="no-such-topic"),
}

STREAMS = {
    "all": query(26, subscribe="full,half", startingOffsets="earliest"),
    "limited": query(20, startingOffsets="earliest", maxOffsetsPerTrigger="8"),
    "from latest": query(0),
    "timestamp": query(10, startingTimestamp=at(5)),
    "ending offsets": query(None, endingOffsets="latest"),
    "more than most": query(None, minOffsetsPerTrigger="9", maxOffsetsPerTrigger="8"),
}


@pytest.fixture(scope="module")
def brokers():
    with cluster(brokers=1, controllers=1, links=False) as running:
        for topic, partitions in (("full", 2), ("half", 2), ("empty", 1)):
            create_topic(running.bootstrap, topic, partitions, 1)
        producer = Producer({"bootstrap.servers": running.bootstrap, "enable.idempotence": True})
        for number in range(20):
            # Partition 0 has the even seconds 0, 1, ... and partition 1 the same ones.
            moment = BASE_MS + number // 2 * 1000
            producer.produce("full", f"v{number}", f"k{number}", number % 2, timestamp=moment)
        for number in range(6):
            producer.produce("half", f"h{number}", partition=0, timestamp=BASE_MS + number * 1000)
        producer.flush(60)
        write_transactions(running.bootstrap)
        yield running


def write_transactions(bootstrap):
    """Writes three committed records and two aborted ones."""
    create_topic(bootstrap, "tx", 1, 1)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "writer"})
    producer.init_transactions(WAIT_S)
    for values, finish in (("ab", producer.abort_transaction), ("cde", producer.commit_transaction)):
        producer.begin_transaction()
        for value in values:
            producer.produce("tx", value)
        producer.flush(60)
        finish(WAIT_S)


@pytest.fixture(scope="module")
def spark():
    jars, missing = connector_jars()
    if not jars:
        pytest.skip(missing)
    session = shared_session()
    for jar in jars:
        session.sql(f"ADD JAR '{jar}'")
    return session


def rows_of(spark, brokers, form, options):
    """Returns the sorted rows, or the message of the failure."""
    columns = [*COLUMNS, "headers"] if options.get("includeHeaders") == "true" else list(COLUMNS)
    try:
        table = spark.read.format(form).options(**{"kafka.bootstrap.servers": brokers.bootstrap} | options).load()
        return sorted(str(row) for row in table.select(*columns).collect())
    except Exception as error:  # noqa: BLE001  each failure counts, and its text is looked at
        return first_line(error)


def first_line(error):
    return next(line for line in str(error).splitlines() if line.strip())


def check(name, one, theirs, ours):
    failed = [result for result in (theirs, ours) if isinstance(result, str)]
    expected = one.ours if one.differs else one.rows
    assert (None if isinstance(theirs, str) else len(theirs)) == one.rows, (name, theirs)
    assert (None if isinstance(ours, str) else len(ours)) == expected, (name, ours)
    if not failed:
        assert ours == theirs, name
    if isinstance(ours, str):
        assert "OptionError: " in ours or "UnknownTopicError: " in ours, (name, ours)
        assert "Traceback" not in ours, (name, ours)


def test_batches_have_equal_rows_and_failures(spark, brokers):
    for name, one in BATCHES.items():
        theirs, ours = (rows_of(spark, brokers, form, one.options) for form in ("kafka", "moldau"))
        check(name, one, theirs, ours)


def started(spark, brokers, form, options, home, name):
    return (
        spark.readStream.format(form)
        .options(**{"kafka.bootstrap.servers": brokers.bootstrap} | options)
        .load()
        .select(*COLUMNS)
        .writeStream.format("parquet")
        .option("path", str(home / f"{name}-data"))
        .option("checkpointLocation", str(home / f"{name}-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def streamed(spark, brokers, form, options, home, name):
    """Returns sorted rows and the sizes of the batches, or the message of the failure."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            running = started(spark, brokers, form, options, home, name)
            assert running.awaitTermination(WAIT_S), "the query ends"
            break
        except Exception as error:  # noqa: BLE001  each failure counts, and its text is looked at
            # Spark gives the Python process of a stream ten seconds to start; the query goes on from its checkpoint.
            if SLOW_START not in str(error) or time.monotonic() >= deadline:
                return first_line(error), []
    sizes = [one["numInputRows"] for one in running.recentProgress]
    found = spark.read.schema(running_schema()).parquet(str(home / f"{name}-data"))
    return sorted(str(row) for row in found.collect()), sizes


def running_schema():
    from pyspark_moldau.source.core.columns import ddl

    return ddl(COLUMNS)


def test_streams_have_equal_rows_batches_and_failures(spark, brokers, tmp_path):
    for number, (name, one) in enumerate(STREAMS.items()):
        results = {}
        for form in ("kafka", "moldau"):
            results[form] = streamed(spark, brokers, form, one.options, tmp_path, f"{form}{number}")
        check(name, one, results["kafka"][0], results["moldau"][0])
        sizes = [[size for size in results[form][1] if size] for form in ("kafka", "moldau")]
        assert sizes[0] == sizes[1], name


MOVES = {
    "earliest": ({"startingOffsets": "earliest"}, ("kafka", "moldau", "moldau", "kafka", "moldau")),
    # The end of the source's first micro-batch says where the query started, because a timestamp may mean another
    # offset later.
    "timestamp": ({"startingTimestamp": "1"}, ("moldau", "kafka", "moldau")),
}


@pytest.mark.parametrize("start", MOVES)
def test_a_query_moves_between_the_connectors_and_back(spark, brokers, tmp_path, start):
    """A query goes on with the checkpoint of Spark's connector, and that connector with the source's."""
    options, forms = MOVES[start]
    topic = f"moved-{start}"
    create_topic(brokers.bootstrap, topic, 1, 1)
    producer = Producer({"bootstrap.servers": brokers.bootstrap})
    for turn, form in enumerate(forms):
        for number in range(10 * turn, 10 * turn + 10):
            producer.produce(topic, f"v{number}")
        producer.flush(60)
        rows, sizes = streamed(spark, brokers, form, {"subscribe": topic, **options}, tmp_path, topic)
        assert not isinstance(rows, str), rows
        assert [size for size in sizes if size] == [10]
    assert len(set(rows)) == len(rows) == 10 * len(forms)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_the_connector_reads_what_the_sink_compressed(spark, brokers, codec):
    """Batches of several compressed blocks: Kafka's Java client takes fewer forms of them than other clients."""
    topic = f"compressed-{codec}"
    create_topic(brokers.bootstrap, topic, 1, 1)
    rows = spark.range(2000).selectExpr("repeat(sha2(cast(id as string), 256), 3) as value")
    servers = {"kafka.bootstrap.servers": brokers.bootstrap}
    rows.coalesce(1).write.format("moldau").options(**servers).option("topic", topic).option(
        "kafka.compression.type", codec
    ).mode("append").save()
    found = spark.read.format("kafka").options(**servers).option("subscribe", topic).load()
    assert found.selectExpr("cast(value as string) as value").exceptAll(rows).count() == 0
    assert found.count() == 2000
