"""Goal: ``moldau consume --timeout-ms`` ends when no record arrives, and only then.

Method: the pump alone, with a clock of the test and a consumer that plays a script of polls; whole commands at a broker
that leaves requests unanswered.
"""

import re

import pytest
import trio

from moldau import TopicPartition
from moldau.consumer import ConsumedBatch
from moldau.protocol.api import ApiKey
from moldau.records import Record
from moldau.serialization import RecordDeserializationError
from moldau_cli.errors import CommandError
from moldau_cli.records import reading
from moldau_cli.records.core.positions import Origin, Span
from moldau_cli.records.reading import START_GROUP_MS_MIN, START_MS_MIN, OnError, Pump, Request
from support.client.socket_cluster import cluster
from support.commands import run_command

WHERE = TopicPartition("t", 0)


class Consumer:
    """Each poll takes 300 ms; the records with an offset of ``damaged`` cannot be deserialized.

    Assignment and position are known at ``starts_at_ms``.
    """

    def __init__(self, *, damaged=(), end=0, starts_at_ms=0.0):
        self.starts_at_ms = starts_at_ms
        self.now_ms = 0.0
        self.damaged = damaged
        self.end = end
        self.position = 0

    async def poll(self, timeout_ms, *, max_records):
        await trio.lowlevel.checkpoint()
        self.now_ms += 300
        at = self.position
        if at in self.damaged:
            fields = {"field": "value", "timestamp": 0, "key": None, "value": b"", "headers": ()}
            raise RecordDeserializationError("damaged", topic_partition=WHERE, offset=at, **fields)
        if at == self.end:
            return []
        self.position += 1
        shape = {"next_offset": at + 1, "leader_epoch": 0, "high_watermark": self.end}
        return [ConsumedBatch(topic="t", partition=0, records=[Record(at, 0, None, b"%d" % at)], **shape)]

    def seek(self, partition, offset):
        self.position = offset

    @property
    def assignment(self):
        return [WHERE]

    @property
    def assignment_generation(self):
        return 1 if self.now_ms >= self.starts_at_ms else -1

    def position_nowait(self, partition):
        return self.position if self.now_ms >= self.starts_at_ms else None


class Sink:
    def __init__(self):
        self.values = []

    def write_values(self, records):
        self.values += [record.value for record in records]
        return True

    def flush(self):
        pass


async def reason():
    await trio.lowlevel.checkpoint()
    return "broker 1 does not answer"


def pump_of(consumer, request, sink):
    return Pump(consumer, request, sink, {}, lambda: consumer.now_ms, reason)


def test_records_that_are_left_out_are_no_silence():
    consumer, sink = Consumer(damaged=range(1, 6), end=7), Sink()
    request = Request(topics=("t",), span=Span(origin=Origin.EARLIEST), idle_ms=1000, errors=OnError.SKIP)
    pump = pump_of(consumer, request, sink)
    trio.run(pump.run)
    assert sink.values == [b"0", b"6"]
    assert pump.skipped == 5
    assert consumer.now_ms == 300 * (7 + 4)  # four more polls until a second has passed


def idle(idle_ms, starts_at_ms, group=None):
    """Returns after how many milliseconds reading ends where there are no records."""
    consumer = Consumer(starts_at_ms=starts_at_ms)
    request = Request(topics=("t",), span=Span(), idle_ms=idle_ms, group=group)
    trio.run(pump_of(consumer, request, Sink()).run)
    return consumer.now_ms


def test_the_idle_time_begins_with_the_start_position():
    """A short time was over before a group had assigned anything, and the command succeeded without a record."""
    assert idle(600, 0) == 900
    assert idle(600, 2400) == 3000
    assert idle(600, 9000, group="g") == 9600


@pytest.mark.parametrize(
    ("idle_ms", "group", "limit_ms"),
    [(600, None, START_MS_MIN), (6000, None, 6000), (600, "g", START_GROUP_MS_MIN), (30_000, "g", 30_000)],
)
def test_a_start_position_that_does_not_come_is_an_error(idle_ms, group, limit_ms):
    """The command succeeded without a record."""
    with pytest.raises(CommandError, match=rf"within {limit_ms / 1000:g} s: broker 1 does not answer"):
        idle(idle_ms, float("inf"), group)


@pytest.fixture
def broker():
    with cluster() as fake:
        fake.add_topic("t")
        yield fake


@pytest.fixture
def limits(monkeypatch):
    for name, limit_ms in (("START_MS_MIN", 300), ("START_GROUP_MS_MIN", 400), ("REASON_MS", 2000)):
        monkeypatch.setattr(reading, name, limit_ms)


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize(
    ("api", "options", "text"),
    [
        (ApiKey.LIST_OFFSETS, (), r"no start position within 0.3 s: t-0: .*broker 1 \(127.0.0.1:\d+\) does not answer"),
        (ApiKey.FIND_COORDINATOR, ("-g", "g"), r"no assignment or start position in group g within 0.4 s: .*127.0.0.1"),
        (ApiKey.METADATA, (), r"127.0.0.1:\d+"),
    ],
    ids=["leader", "coordinator", "all"],
)
def test_a_silent_broker_is_named_in_time(broker, api, options, text):
    """``--timeout-ms`` counted from the last record on: a silent leader was waited for 15 s."""
    broker.handlers[api] = lambda number, request: None
    done = run_command("consume", "t", "--timeout-ms", "50", *options, "-b", broker.bootstrap)
    assert (done.returncode, done.stdout) == (1, "")
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("moldau: ")]
    assert re.search(text, error)
