"""Goal: Spark writes to a secured cluster and reads it back, and a refused login or right names option and remedy.

Method: one cluster as ``moldau cluster start --secure`` makes it, whose files give the options; the queries run in the
Spark session that all Spark tests share. For refusals the readers and writers are called as Spark calls them.
"""

from __future__ import annotations

import json
import logging
import re

import pyarrow as pa
import pytest

from moldau.admin import Acl, NewTopic
from moldau.blocking import Admin
from moldau.runtime.config import parse_config_text
from moldau_cli.main import main
from moldau_jepsen.launcher import ClusterSpec, start_cluster
from pyspark_moldau.errors import ReadTimeoutError, SinkError
from pyspark_moldau.session.java import find_java
from pyspark_moldau.sink.core.sink_options import parse_sink_options
from pyspark_moldau.sink.driver import commit_batch
from pyspark_moldau.sink.names import Attempt, Names
from pyspark_moldau.sink.task import write_at_least_once, write_exactly_once
from pyspark_moldau.source.core.options import OptionError, parse_options
from pyspark_moldau.source.data_source import MoldauBatchReader
from support.spark.shared import SLOW_START, patiently, shared_session

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore")]
PASSWORD = "bob-s3cret"
RIGHTS = {
    "read in": ("read", "topic", "in", "literal"),
    "write out": ("write", "topic", "out", "literal"),
    "read markers": ("read", "topic", "__consumer_offsets", "literal"),
    "read groups": ("read", "group", "moldau-spark-", "prefixed"),
    "write transactions": ("write", "transactional-id", "moldau-spark-", "prefixed"),
}
"""All that a job from the topic ``in`` to the topic ``out`` needs, exactly once (docs/spark.md)."""
LACKING = {
    "read in": r"this client may not .*TOPIC_AUTHORIZATION_FAILED.*grant its principal READ",
    "write out": r"^option topic: .*TOPIC_AUTHORIZATION_FAILED.*grant its principal WRITE",
    "read markers": r"TOPIC_AUTHORIZATION_FAILED.*exactly-once needs READ on the topic __consumer_offsets",
    "read groups": r"GROUP_AUTHORIZATION_FAILED.*grant its principal READ on groups with the prefix moldau-spark-",
    "write transactions": r"^deliveryGuarantee: .*TRANSACTIONAL_ID_AUTHORIZATION_FAILED.*prefix moldau-spark-",
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    place = tmp_path_factory.mktemp("secured") / "cluster"
    cluster = start_cluster(place, ClusterSpec(brokers=1, controllers=1, secure=True))
    yield place
    cluster.shut_down()


def options_in(path):
    return {f"kafka.{key}": str(value) for key, value in parse_config_text(path.read_text(), str(path)).items()}


@pytest.fixture(scope="module")
def secured(directory):
    """Returns the options of the administrator; bob may write and read ``allowed``, nothing else."""
    options = options_in(directory / "client.properties")
    with Admin({key.removeprefix("kafka."): value for key, value in options.items()}) as admin:
        admin.create_topics([NewTopic(name) for name in ("allowed", "refused", "flights", "copies", "in", "out")])
        for user in ("bob", "etl", *(f"no {right}" for right in RIGHTS)):
            admin.set_user_password(user, PASSWORD, mechanism="SCRAM-SHA-512")
        admin.create_acls(
            [
                Acl(principal="User:bob", operation=operation, resource="topic", name="allowed")
                for operation in ("write", "read")
            ]
            + [
                Acl(principal=f"User:{user}", operation=operation, resource=resource, name=name, pattern=pattern)
                for user in ("etl", *(f"no {right}" for right in RIGHTS))
                for right, (operation, resource, name, pattern) in RIGHTS.items()
                if user != f"no {right}"
            ]
        )
    return options


@pytest.mark.spark
@pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found")
def test_spark_writes_and_reads_a_secured_cluster(secured, directory, tmp_path, caplog, capfd):
    """The sink uses ``client.properties``, the source Kafka's own form of it; no plan or progress shows a password."""
    for name in ("moldau", "pyspark_moldau"):  # py4j logs each of its commands at DEBUG, with all options
        caplog.set_level(logging.DEBUG, logger=name)
    spark = shared_session()
    java = options_in(directory / "client-java.properties")
    password = secured["kafka.sasl.password"]
    rows = spark.createDataFrame([(f"k{n}", f"v{n}") for n in range(50)], "key string, value string")
    writer = rows.write.format("moldau").options(**secured).option("topic", "flights").mode("append")
    patiently(writer.save)
    found = spark.read.format("moldau").options(**java).option("subscribe", "flights").load()
    values = patiently(lambda: sorted(row.value.decode() for row in found.select("value").collect()))
    assert values == sorted(f"v{n}" for n in range(50))

    stream = spark.readStream.format("moldau").options(**java).option("subscribe", "flights")
    source = stream.option("startingOffsets", "earliest").load().select("key", "value")
    sink = source.writeStream.format("moldau").options(**secured).option("deliveryGuarantee", "exactly-once")

    def copy():
        started = sink.option("topic", "copies").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = started.trigger(availableNow=True).start()
        assert query.awaitTermination(600)
        if query.exception() is not None:
            raise query.exception()
        return query

    query = patiently(copy)
    copies = spark.read.format("moldau").options(**java).option("subscribe", "copies")
    committed = copies.option("kafka.isolation.level", "read_committed").load()
    assert patiently(committed.count) == 50

    found.explain(mode="extended")
    query.explain(extended=True)
    shown = [
        capfd.readouterr(),
        query.lastProgress,
        caplog.text,
        found._jdf.queryExecution().toString(),
        spark._jvm.org.apache.spark.sql.internal.SQLConf.get().redactOptions(spark._jvm.PythonUtils.toScalaMap(java)),
    ]
    assert "50" in str(query.lastProgress)
    assert not [text for text in shown if password in str(text)]


@pytest.mark.spark
@pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found")
def test_a_job_runs_with_exactly_the_rights_of_the_docs(secured, tmp_path, monkeypatch, capfd):
    """The command gives the login, its password comes from a provider; neither shows in what the command prints."""
    shared_session()
    monkeypatch.setenv("MOLDAU_TEST_PASSWORD", PASSWORD)
    login = {**secured, "kafka.sasl.username": "etl", "kafka.sasl.password": "${env:MOLDAU_TEST_PASSWORD}"}
    properties = tmp_path / "login.properties"
    properties.write_text("".join(f"{key.removeprefix('kafka.')}={value}\n" for key, value in login.items()))
    job = tmp_path / "job.toml"
    job.write_text(
        '[run]\ncheckpoint = "state"\n[source]\ntopics = ["in"]\n[sink]\ntopic = "out"\nkey = "k"\n'
        '[aggregate]\nwindow = "1 hour"\nwatermark = "1 hour"\noutput = "update"\n'
        'keys = { k = "key" }\ncolumns = { n = "count(*)" }\n'
    )
    given = parse_sink_options({**secured, "topic": "in"}, streaming=False)
    rows = pa.RecordBatch.from_pydict({"key": ["a", "b", "a"], "value": ["1", "2", "3"]})
    write_at_least_once(given, iter([rows]))

    def run(path):
        capfd.readouterr()
        code = main(["--command-config", str(properties), "pipeline", "aggregate", str(path)])
        return code, capfd.readouterr()

    while True:  # a slow start of Spark's Python process is a failure of the machine
        code, shown = run(job)
        if SLOW_START not in shown.err:
            break
    assert code == 0, shown.err
    etl = {**secured, "kafka.sasl.username": "etl", "kafka.sasl.password": PASSWORD}
    found = {}
    reader = MoldauBatchReader(
        parse_options({**secured, "subscribe": "out", "kafka.isolation.level": "read_committed"}, streaming=False)
    )
    for one in reader.partitions():
        for part in reader.read(one):
            for row in part.to_pylist():
                found[row["key"]] = json.loads(row["value"])["n"]
    assert found == {b"a": 2, b"b": 1}
    with pytest.raises(OptionError, match="TOPIC_AUTHORIZATION_FAILED"):
        read(etl, "allowed")
    for topic, code_wanted, message in (("refused", 1, r"grant its principal WRITE"), ("none", 1, r"WRITE")):
        wrong = tmp_path / "wrong.toml"
        other = job.read_text().replace('topic = "out"', f'topic = "{topic}"')
        wrong.write_text(other.replace('"state"', f'"state-{topic}"'))
        code, shown = run(wrong)
        assert (code, len(shown.err.splitlines())) == (code_wanted, 1)
        assert re.search(message, shown.err)
        assert PASSWORD not in shown.err + shown.out


@pytest.mark.parametrize("right", RIGHTS)
def test_each_right_of_exactly_once_is_needed(secured, right):
    """A user without one of the rights gets an error that names it; the others are enough for all other steps."""
    user = {**secured, "kafka.sasl.username": f"no {right}", "kafka.sasl.password": PASSWORD}

    def pipe():
        assert read(user, "in") >= 0
        given = parse_sink_options({**user, "topic": "out", "deliveryGuarantee": "exactly-once"}, streaming=True)
        names = Names(app_id=right.replace(" ", "-"))
        attempt = Attempt(names=names, batch=0, run="r", partition=0, attempt=0)
        rows = iter([pa.RecordBatch.from_pydict({"value": ["v"]})])
        commit_batch(given, names, 0, "r", [write_exactly_once(given, attempt, rows)])

    with pytest.raises((OptionError, SinkError), match=LACKING[right]):
        pipe()


def read(options, topic):
    reader = MoldauBatchReader(parse_options({**options, "subscribe": topic}, streaming=False))
    return sum(part.num_rows for one in reader.partitions() for part in reader.read(one))


def write(options, topic):
    given = parse_sink_options({**options, "topic": topic}, streaming=False)
    return write_at_least_once(given, iter([pa.RecordBatch.from_pydict({"value": ["v"]})]))


def test_a_user_does_what_the_acls_permit(secured):
    bob = {**secured, "kafka.sasl.username": "bob", "kafka.sasl.password": PASSWORD}
    assert write(bob, "allowed") == 1
    assert read(bob, "allowed") == 1
    with pytest.raises(OptionError, match=r"TOPIC_AUTHORIZATION_FAILED.*grant its principal READ.*option subscribe"):
        read(bob, "refused")
    with pytest.raises(SinkError, match=r"^option topic: .*TOPIC_AUTHORIZATION_FAILED.*grant its principal WRITE"):
        write(bob, "refused")


WRONG = {
    "password": ({"kafka.sasl.password": "wr0ng"}, r"^kafka\.sasl\.password: the login was refused; check it and "),
    "mechanism": ({"kafka.sasl.mechanism": "PLAIN"}, r"^kafka\.sasl\.mechanism: .*set sasl\.mechanism to one of"),
}


@pytest.mark.parametrize("use", [read, write])
@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_a_refused_login_names_option_and_remedy(secured, caplog, changes, message, use):
    caplog.set_level(logging.DEBUG)
    given = {**secured, **changes}
    with pytest.raises((OptionError, SinkError), match=message) as caught:
        use(given, "flights")
    assert given["kafka.sasl.password"] not in f"{caught.value!r} {caplog.text}"


def test_a_client_without_tls_gets_a_clear_error(secured):
    given = {**secured, "kafka.security.protocol": "SASL_PLAINTEXT", "kafka.default.api.timeout.ms": "500"}
    with pytest.raises(ReadTimeoutError, match=r"speaks TLS: set kafka\.security\.protocol to SASL_SSL"):
        read(given, "flights")
