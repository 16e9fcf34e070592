"""Goal: an exactly-once write to a wrong address ends soon, with the address and the option.

Method: the functions that tasks and driver call, without Spark, and ports at which nothing listens or nothing answers.
"""

import socket
import time

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_moldau import DefaultSource
from pyspark_moldau.errors import SinkError
from pyspark_moldau.sink import cluster as sink
from pyspark_moldau.sink.core.sink_options import parse_sink_options

NAMES = sink.Names(app_id="unreachable")
LIMIT_S = 5
"""The writes have half a second; before, they took a minute."""


def task(options):
    attempt = sink.Attempt(names=NAMES, batch=0, run="r", partition=0, attempt=0)
    sink.write_exactly_once(options, attempt, iter([pa.record_batch({"value": pa.array(["1"])})]))


CALLS = {
    "task": task,
    "commit": lambda options: sink.commit_batch(options, NAMES, 0, "r", []),
    "abort": lambda options: sink.abort_batch(options, NAMES, 0),
}


@pytest.fixture(params=["nothing listens", "nothing answers"])
def place(request):
    """An address of this machine, and words for its silence."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if request.param == "nothing answers":
            yield f"127.0.0.1:{port}", "no answer in time"
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


@pytest.mark.parametrize("kind", ["writer", "streamWriter"])
def test_a_query_does_not_start_without_brokers(place, kind, monkeypatch):
    """Spark repeats tasks up to four times, each of which would wait; the driver finds out before that."""
    monkeypatch.setattr(sink, "REACH_MS", 500)
    schema = StructType([StructField("value", StringType())])
    source = DefaultSource(given(place[0]))
    with pytest.raises(SinkError, match=place[0]):
        getattr(source, kind)(schema, False)


def test_nothing_waits_longer_than_half_a_minute_unless_asked():
    assert sink.REACH_MS <= 30_000
