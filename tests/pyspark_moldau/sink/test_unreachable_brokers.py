"""Goal: a write to a wrong address or topic ends soon, in the driver, with the address, the cause and the option.

Method: the functions that tasks and driver call, without Spark, ports at which nothing listens or nothing answers, and
metadata given to them.
"""

import socket
import time
from itertools import count

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from pyspark_moldau import DefaultSource
from pyspark_moldau.errors import SinkError
from pyspark_moldau.sink import reach as sink_reach
from pyspark_moldau.sink.core.sink_options import parse_sink_options
from pyspark_moldau.sink.driver import abort_batch, commit_batch
from pyspark_moldau.sink.names import Attempt, Names
from pyspark_moldau.sink.task import write_exactly_once
from pyspark_moldau.wire import reach
from pyspark_moldau.wire.cluster import Cluster

NAMES = Names(app_id="unreachable")
LIMIT_S = 5
"""The writes have half a second; before, they took a minute."""
GUARANTEES = ["at-least-once", "exactly-once"]
WRITERS = ["writer", "streamWriter"]
SCHEMA = StructType([StructField("value", StringType())])


def task(options):
    attempt = Attempt(names=NAMES, batch=0, run="r", partition=0, attempt=0)
    write_exactly_once(options, attempt, iter([pa.record_batch({"value": pa.array(["1"])})]))


CALLS = {
    "task": task,
    "commit": lambda options: commit_batch(options, NAMES, 0, "r", []),
    "abort": lambda options: abort_batch(options, NAMES, 0),
}


@pytest.fixture(params=["nothing listens", "nothing answers"])
def place(request):
    """An address of this machine, and words for its silence."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if request.param == "nothing answers":
            yield f"127.0.0.1:{port}", "(no answer|answers) in time"
            return
    yield f"127.0.0.1:{port}", "Connection refused"


def given(address, **more):
    return {"kafka.bootstrap.servers": address, "topic": "t", "deliveryGuarantee": "exactly-once"} | more


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_wrong_address_ends_an_exactly_once_write(place, call):
    address, reason = place
    options = parse_sink_options(given(address, **{"kafka.max.block.ms": "500"}), streaming=True)
    began = time.monotonic()
    with pytest.raises(SinkError, match=rf"^kafka\.bootstrap\.servers: .*{address}.*0\.5 s.*{reason}.*max\.block\.ms"):
        call(options)
    assert time.monotonic() - began < LIMIT_S


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("kind", WRITERS)
def test_a_query_does_not_start_without_brokers(place, kind, guarantee, monkeypatch):
    """Spark repeats tasks up to four times, each of which would wait; the driver finds out before that."""
    for name in ("FIRST_MS", "REACH_MS", "KNOWN_MS"):
        monkeypatch.setattr(reach, name, 300)
    address, reason = place
    source = DefaultSource(given(address, deliveryGuarantee=guarantee))
    with pytest.raises(SinkError, match=rf"^kafka\.bootstrap\.servers: .*{address}: {reason}"):
        getattr(source, kind)(SCHEMA, False)


def test_the_error_names_the_cause_at_each_address(place):
    address, reason = place
    servers = f"no-such-host.invalid:9092,{address}"
    options = parse_sink_options(given(servers, **{"kafka.max.block.ms": "500"}), streaming=True)
    causes = rf"no-such-host\.invalid:9092: the host name is not known here .*; {address}: {reason}"
    with pytest.raises(SinkError, match=causes):
        sink_reach.check_reachable(options, streaming=True)


def checkpoint_with(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("v1")
    return str(folder)


def test_a_query_waits_longer_for_a_cluster_that_it_knows(tmp_path):
    """A new query with a wrong address ends soon; a short outage ends no query that has written a batch."""
    new = checkpoint_with(tmp_path / "a new", "metadata", "offsets/0", "commits/.0.crc")
    known = checkpoint_with(tmp_path / "known", "metadata", "offsets/0", "commits/0")

    def waits(streaming=True, **more):
        options = given("127.0.0.1:1", **more)
        return sink_reach.wait_ms(parse_sink_options(options, streaming=streaming), streaming=streaming)

    assert waits(checkpointLocation=new) == waits(checkpointLocation=(tmp_path / "a new").as_uri()) == 10_000
    assert waits(checkpointLocation=known) == 60_000
    for elsewhere in ("hdfs://name/checkpoint", "s3a://bucket/checkpoint", str(tmp_path / "absent")):
        assert waits(checkpointLocation=elsewhere) == 60_000, "it cannot be read here, and may hold batches"
    assert waits() == 60_000, "Spark's configuration says where the checkpoint is"
    assert waits(streaming=False) == 30_000
    for streaming in (True, False):
        assert waits(streaming, **{"kafka.max.block.ms": "1234"}) == 1234


class KnownTopics:
    """Brokers that answer with a code for the topic, until they know it."""

    def __init__(self, monkeypatch, code, answers):
        self.asked = count(1)
        self.code, self.answers = code, answers
        monkeypatch.setattr(Cluster, "ask", self.ask)
        monkeypatch.setattr(sink_reach, "TOPIC_MS", 300)

    def ask(self, address, request, version, response_class):
        is_known = not request.topics or next(self.asked) > self.answers
        topics = [
            MetadataResponseTopic(error_code=0 if is_known else self.code, name=each.name, partitions=[])
            for each in request.topics
        ]
        return MetadataResponse(brokers=[], topics=topics)


@pytest.mark.parametrize(
    ("code", "answers"),
    [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 1000), (ErrorCode.INVALID_TOPIC_EXCEPTION, 1)],
    ids=["unknown", "no name of a topic"],
)
def test_a_query_does_not_start_without_its_topic(code, answers, monkeypatch):
    KnownTopics(monkeypatch, code, answers)
    source = DefaultSource(given("127.0.0.1:1", deliveryGuarantee="at-least-once"))
    with pytest.raises(SinkError, match=r"^option topic: topic 't' is not on 127\.0\.0\.1:1; create it"):
        source.streamWriter(SCHEMA, False)


def test_a_topic_may_become_known_a_moment_later(monkeypatch):
    """Brokers hear of a new topic after the controller; a query whose rows name their topics asks for none."""
    topics = KnownTopics(monkeypatch, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 1)
    sink_reach.check_reachable(parse_sink_options(given("127.0.0.1:1"), streaming=True), streaming=True)
    assert next(topics.asked) == 3
    by_column = {"kafka.bootstrap.servers": "127.0.0.1:1"}
    sink_reach.check_reachable(parse_sink_options(by_column, streaming=True), streaming=True)
    assert next(topics.asked) == 4
