"""Goal: ``moldau consume --timeout-ms`` ends when no record arrives, and only then; without it reasons are noted.

Method: the pump alone, with a clock of the test and a consumer that plays a script of polls; whole commands at a broker
that leaves requests unanswered.
"""

import re

import pytest
import trio

from moldau import TopicPartition
from moldau.admin import LATEST
from moldau.consumer import ConsumedBatch
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.records import Record
from moldau.serialization import RecordDeserializationError
from moldau_cli.errors import CommandError
from moldau_cli.records import reading
from moldau_cli.records.core.positions import Origin, Span
from moldau_cli.records.reading import SILENCE_MS_MIN, START_GROUP_MS_MIN, START_MS_MIN, OnError, Pump, Request
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
        if at == self.end or self.now_ms < self.starts_at_ms:
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


def pump_of(consumer, request, sink, reason_for_silence=None):
    async def at_the_end(ends):
        await trio.lowlevel.checkpoint()
        return ""

    return Pump(consumer, request, sink, {}, lambda: consumer.now_ms, reason, reason_for_silence or at_the_end)


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


def test_silence_before_the_end_is_an_error():
    """A leader that hung after the start was taken for the end of the records, with exit code 0."""
    consumer, sink, asked = Consumer(end=2), Sink(), []

    async def reason_for_silence(ends):
        await trio.lowlevel.checkpoint()
        asked.append(consumer.now_ms)
        return "t-0: broker 1 does not answer"

    request = Request(topics=("t",), span=Span(origin=Origin.EARLIEST), idle_ms=600)
    with pytest.raises(CommandError, match="no record within 3 s, before the end: t-0: broker 1 does not answer"):
        trio.run(pump_of(consumer, request, sink, reason_for_silence).run)
    assert sink.values == [b"0", b"1"]
    assert asked == [600 + 600, 600 + SILENCE_MS_MIN]


def test_a_record_that_is_late_is_no_error():
    """It is on its way when the leader says that it is there."""
    consumer, sink = Consumer(end=1), Sink()

    async def reason_for_silence(ends):
        await trio.lowlevel.checkpoint()
        consumer.end = 2
        return "" if consumer.position == 2 else "not received: t-0 offsets 1 to 1"

    request = Request(topics=("t",), span=Span(origin=Origin.EARLIEST), idle_ms=600)
    trio.run(pump_of(consumer, request, sink, reason_for_silence).run)
    assert sink.values == [b"0", b"1"]


def test_a_second_silence_is_as_long_as_the_first():
    """A late record had made the command patient: it waited three seconds at the end, and not the idle time."""
    consumer, sink, asked = Consumer(end=1), Sink(), []

    async def reason_for_silence(ends):
        await trio.lowlevel.checkpoint()
        asked.append(consumer.now_ms)
        consumer.end = 2
        return "" if consumer.position == 2 else "not received: t-0 offsets 1 to 1"

    request = Request(topics=("t",), span=Span(origin=Origin.EARLIEST), idle_ms=600)
    trio.run(pump_of(consumer, request, sink, reason_for_silence).run)
    assert asked == [900, 900 + 300 + 600]


def test_a_silence_after_records_is_a_new_one(capsys):
    """The same reason counts again, and the first look comes as soon as in the first silence."""
    consumer, asked = Consumer(end=0), []

    async def reason_for_silence(ends):
        await trio.lowlevel.checkpoint()
        asked.append(round(consumer.now_ms / 1000))
        if len(asked) % 2 == 0:
            consumer.end += 1
        return "broker 1 does not answer"

    request = Request(topics=("t",), span=Span(origin=Origin.EARLIEST), count=2)
    trio.run(pump_of(consumer, request, Sink(), reason_for_silence).run)
    assert asked == [10, 31, 41, 61]
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["no record for 10 s"] * 2


@pytest.mark.parametrize("is_committed", [True, False])
def test_the_reason_looks_at_the_end_that_the_reader_may_reach(monkeypatch, is_committed):
    """Of what an open transaction holds up, a reader of committed records receives nothing."""
    asked = []

    class Admin:
        def __init__(self, settings):
            pass

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            pass

        def within(self, timeout_ms):
            return self

        async def list_offsets(self, wanted, *, isolation_level):
            await trio.lowlevel.checkpoint()
            asked.append((wanted, isolation_level))
            return {WHERE: (3 if isolation_level else 9, -1)}

    monkeypatch.setattr("moldau.Admin", Admin)
    consumer = Consumer()
    consumer.position, consumer.paused = 3, ()

    async def reason_for(ends):
        return await reading.reason_for_silence({}, consumer, ends, is_committed=is_committed)

    unread = "" if is_committed else "not received: t-0 offsets 3 to 8"
    assert trio.run(reason_for, {}) == unread
    assert trio.run(reason_for, {WHERE: 3}) == "", "the reader is at its own end"
    assert asked == [({tuple(WHERE): LATEST}, int(is_committed))] * 2
    consumer.paused = (WHERE,)
    assert trio.run(reason_for, {}) == ""


def test_each_reason_of_a_silence_without_limit_is_noted_once(capsys):
    """`moldau consume` said nothing while a leader hung."""
    consumer, asked = Consumer(end=0), []
    hangs, left = "t-0: broker 1 does not answer", "t-0 has no leader"
    reasons = ["", hangs, hangs, left, "", hangs, hangs]

    async def reason_for_silence(ends):
        await trio.lowlevel.checkpoint()
        asked.append(round(consumer.now_ms / 1000))
        if len(asked) == len(reasons):
            consumer.end = 2
        return reasons[len(asked) - 1]

    request = Request(topics=("t",), span=Span(origin=Origin.EARLIEST), count=2)
    trio.run(pump_of(consumer, request, Sink(), reason_for_silence).run)
    assert asked == [10, 31, 71, 131, 191, 251, 311]
    assert capsys.readouterr().err.splitlines() == [
        f"no record for 30 s: {hangs}",
        f"no record for 130 s: {left}",
        f"no record for 250 s: {hangs}",
    ]


def test_a_group_without_assignment_says_what_it_waits_for(capsys):
    consumer = Consumer(end=1, starts_at_ms=25_000)
    request = Request(topics=("t",), span=Span(origin=Origin.EARLIEST), group="g", count=1)
    trio.run(pump_of(consumer, request, Sink()).run)
    assert capsys.readouterr().err.splitlines() == ["no record for 10 s: broker 1 does not answer"]


@pytest.fixture
def broker():
    with cluster() as fake:
        fake.add_topic("t")
        yield fake


@pytest.fixture
def limits(monkeypatch):
    short = (("START_MS_MIN", 1000), ("START_GROUP_MS_MIN", 1200), ("REASON_MS", 2000))
    for name, limit_ms in short:
        monkeypatch.setattr(reading, name, limit_ms)


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize(
    ("api", "options", "text"),
    [
        (ApiKey.LIST_OFFSETS, (), r"no start position within 1 s: t-0: .*broker 1 \(127.0.0.1:\d+\) does not answer"),
        (ApiKey.FIND_COORDINATOR, ("-g", "g"), r"no assignment or start position in group g within 1.2 s: .*127.0.0.1"),
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


def read_in_silence(broker, *options):
    """Returns the result of a command that gets no answer to a Fetch although there is a record."""
    assert run_command("produce", "t", "-b", broker.bootstrap, given="a\n").returncode == 0
    return run_command("consume", "t", "--timeout-ms", "50", *options, "-b", broker.bootstrap)


@pytest.mark.parametrize("options", [("--tail", "1"), ("-e",), ("-g", "g", "--from-beginning")])
def test_records_that_do_not_come_are_an_error(broker, monkeypatch, options):
    """The command ended with exit code 0, as at the end of the records."""
    monkeypatch.setattr(reading, "SILENCE_MS_MIN", 300)
    broker.handlers[ApiKey.FETCH] = lambda number, request: None
    done = read_in_silence(broker, *options)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no record within 0.3 s, before the end: not received: t-0 offsets 0 to 0" in done.stderr


def test_a_leader_that_falls_silent_is_named(broker, monkeypatch):
    """It hangs when the start position is known."""

    def fetched(number, request):
        broker.handlers[ApiKey.LIST_OFFSETS] = lambda number, request: None

    for name, limit_ms in (("SILENCE_MS_MIN", 300), ("END_MS", 2000)):
        monkeypatch.setattr(reading, name, limit_ms)
    broker.handlers[ApiKey.FETCH] = fetched
    done = read_in_silence(broker, "--from-beginning")
    assert (done.returncode, done.stdout) == (1, "")
    named = r"before the end: t-0: .*broker 1 \(127.0.0.1:\d+\) does not answer"
    assert re.search(f"no record within 0.3 s, {named}", done.stderr)


@pytest.mark.parametrize("options", [("-c", "1"), ("--timeout-ms", "300")])
def test_a_position_that_is_not_committed_is_an_error(broker, options):
    """The records came again in the next run, although the exit code was 0."""
    assert run_command("produce", "t", "-b", broker.bootstrap, given="a\n").returncode == 0
    refusal = ErrorCode.GROUP_AUTHORIZATION_FAILED
    broker.fail_next(ApiKey.OFFSET_COMMIT, *[refusal] * 100)
    done = run_command("consume", "t", "-g", "g", "--from-beginning", *options, "-b", broker.bootstrap)
    assert (done.returncode, done.stdout) == (1, "a\n")
    assert refusal.message in done.stderr
    assert done.stderr.endswith("; what was read since the last commit will be read again\n")
    broker.errors.clear()
    own = ("-X", "enable.auto.commit=false")
    done = run_command("consume", "t", "-g", "h", "--from-beginning", *options, *own, "-b", broker.bootstrap)
    assert (done.returncode, done.stdout, broker.offsets) == (0, "a\n", {})
