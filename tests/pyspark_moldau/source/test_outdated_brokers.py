"""Goal: no broker that lags behind the others, or is cut off from them, makes a query take records for lost.

Method: the reader and the planner on brokers in memory, each with metadata and a log of its own.
"""

import types
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from moldau.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from moldau.records import encode_batch
from pyspark_moldau.errors import DataLossError, ReadTimeoutError
from pyspark_moldau.source import data_source as source
from pyspark_moldau.source import planning
from pyspark_moldau.source.core.offsets import OffsetRange
from pyspark_moldau.source.core.options import ClientOptions, parse_options
from pyspark_moldau.source.reader import ClusterReader
from pyspark_moldau.wire import cluster
from pyspark_moldau.wire.cluster import id_text

FORMER, PRESENT = uuid.UUID(int=7), uuid.UUID(int=8)
ADDRESSES = {1: ("one", 1), 2: ("two", 2)}
OPTIONS = {"kafka.bootstrap.servers": "one:1,two:2", "subscribe": "t", "startingOffsets": "earliest"}


@dataclass
class Broker:
    """Its metadata have ``topic_id`` (None: no topic) and ``leader``; its log ``records``; it leads in ``epoch``."""

    topic_id: uuid.UUID | None = PRESENT
    leader: int = 1
    records: int = 3
    asked: int = 0
    epoch: int = -1
    stable: int | None = None  # the last stable offset, if a transaction is open
    hears_after: int = 0  # so often it names itself, and then ``leader``
    held: Callable[[int], None] = lambda max_wait_ms: None  # called instead of holding a fetch of no records

    def names_leader(self):
        return self.leader if self.asked > self.hears_after else 1


class Connection:
    is_outdated = False

    def __init__(self, broker):
        self._broker = broker

    def send(self, request, version):
        self._request = request

    def receive(self, response_class, version):
        return getattr(self, f"_{response_class.__name__}")()

    def close(self):
        pass

    def _MetadataResponse(self):
        broker = self._broker
        broker.asked += 1
        topic = MetadataResponseTopic(
            name="t",
            topic_id=broker.topic_id or uuid.UUID(int=0),
            error_code=ErrorCode.NONE if broker.topic_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            partitions=[MetadataResponsePartition(partition_index=0, leader_id=broker.names_leader())],
        )
        names = [MetadataResponseBroker(node_id=node, host=host, port=port) for node, (host, port) in ADDRESSES.items()]
        return MetadataResponse(brokers=names, topics=[topic])

    def _ListOffsetsResponse(self):
        broker = self._broker
        end = broker.records if self._request.isolation_level == 0 or broker.stable is None else broker.stable
        at = 0 if self._request.topics[0].partitions[0].timestamp == -2 else end
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name="t",
                    partitions=[
                        ListOffsetsPartitionResponse(partition_index=0, offset=at, leader_epoch=self._broker.epoch)
                    ],
                )
            ]
        )

    def _FetchResponse(self):
        topic = self._request.topics[0]
        data = PartitionData(partition_index=0, high_watermark=self._broker.records)
        if topic.topic_id != self._broker.topic_id:
            data.error_code = ErrorCode.UNKNOWN_TOPIC_ID
        elif topic.partitions[0].fetch_offset > self._broker.records:
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            broker = self._broker
            shown = broker.records if self._request.isolation_level == 0 or broker.stable is None else broker.stable
            data.last_stable_offset = broker.records if broker.stable is None else broker.stable
            if topic.partitions[0].fetch_offset < shown or broker.stable is None:
                data.records = encode_batch([(1, None, b"%d" % n, ()) for n in range(shown)], base_offset=0)
            else:
                broker.held(self._request.max_wait_ms)
        return FetchResponse(responses=[FetchableTopicResponse(topic_id=topic.topic_id, partitions=[data])])


def reader_of(monkeypatch, *brokers, api_timeout_ms=1000, read_committed=False):
    found = ClusterReader(
        ClientOptions(
            bootstrap=tuple(ADDRESSES.values()),
            retry_backoff_ms=1,
            retry_backoff_max_ms=1,
            api_timeout_ms=api_timeout_ms,
            read_committed=read_committed,
        )
    )
    by_address = dict(zip(ADDRESSES.values(), brokers, strict=True))
    monkeypatch.setattr(found._cluster, "take_connection", lambda address: Connection(by_address[address]))
    return found


def values(reader, work):
    chunks = reader.read(work, fail_on_data_loss=False)
    return [chunk.columns.values.data[at : at + 1] for chunk in chunks for at in range(chunk.columns.length)]


@pytest.mark.parametrize("lagging", [None, FORMER], ids=["no topic", "the former topic"])
def test_a_planned_batch_is_not_dropped_for_a_lagging_broker(lagging, monkeypatch):
    """Not even without failOnDataLoss: nothing was deleted since the batch was planned."""
    reader = reader_of(monkeypatch, Broker(topic_id=lagging, leader=2), Broker(leader=2))
    options = parse_options(OPTIONS | {"failOnDataLoss": "false"}, streaming=True)
    stream = source.MoldauStreamReader(options, connect=lambda client: reader)
    known = {f"t#{id_text(PRESENT)}": {}}
    tasks = stream.partitions({"t": {"0": 0}} | known, {"t": {"0": 3}} | known)
    assert [(one.start, one.end, one.topic_id) for task in tasks for one in task.ranges] == [(0, 3, id_text(PRESENT))]


def test_a_position_is_not_given_up_for_a_lagging_broker(monkeypatch):
    """The broker that is asked first still knows the former topic of that name."""
    reader = reader_of(monkeypatch, Broker(topic_id=FORMER, leader=2), Broker(leader=2))
    stream = source.MoldauStreamReader(parse_options(OPTIONS, streaming=True), connect=lambda client: reader)
    position = {"t": {"0": 3}, f"t#{id_text(PRESENT)}": {}}
    assert stream.latestOffset(position, ReadAllAvailable()) == position


def test_a_position_past_an_open_transaction_is_kept(monkeypatch):
    """The query read uncommitted records until its options changed. Nothing is lost, and nothing is read twice."""
    monkeypatch.setattr(planning, "SETTLE_S", 0.0)
    reader = reader_of(monkeypatch, Broker(stable=1), Broker(), read_committed=True)
    options = parse_options(OPTIONS | {"kafka.isolation.level": "read_committed"}, streaming=True)
    stream = source.MoldauStreamReader(options, connect=lambda client: reader)
    ids = {f"t#{id_text(PRESENT)}": {}}
    position = {"t": {"0": 2}} | ids
    assert stream.latestOffset(position, ReadAllAvailable()) == position
    tasks = stream.partitions({"t": {"0": 0}} | ids, position)  # planned before, and not done
    assert [(one.start, one.end) for task in tasks for one in task.ranges] == [(0, 2)]


OPEN = {"no transaction": 9, "open from 0": 0, "open from 1": 1, "open from 2": 2}


@pytest.mark.parametrize("stable", OPEN.values(), ids=OPEN)
@pytest.mark.parametrize("records", range(4))
@pytest.mark.parametrize("position", range(4))
def test_only_an_open_transaction_excuses_a_low_end(monkeypatch, position, records, stable):
    """A position behind the end of the whole log means that records are gone."""
    monkeypatch.setattr(planning, "SETTLE_S", 0.0)
    stable = min(stable, records)
    reader = reader_of(monkeypatch, Broker(records=records, stable=stable), Broker(), read_committed=True)
    options = parse_options(OPTIONS | {"kafka.isolation.level": "read_committed"}, streaming=True)
    stream = source.MoldauStreamReader(options, connect=lambda client: reader)
    ids = {f"t#{id_text(PRESENT)}": {}}
    start = {"t": {"0": position}} | ids

    def read_from(first, end):
        tasks = stream.partitions({"t": {"0": first}} | ids, end)
        return [(one.start, one.end) for task in tasks for one in task.ranges]

    if records < position:
        with pytest.raises(DataLossError):
            read_from(position, stream.latestOffset(start, ReadAllAvailable()))
        with pytest.raises(DataLossError):  # a batch that an earlier process has planned
            read_from(0, start)
        return
    end = max(position, stable)
    assert stream.latestOffset(start, ReadAllAvailable()) == {"t": {"0": end}} | ids
    assert read_from(position, {"t": {"0": end}} | ids) == ([(position, end)] if position < end else [])
    assert read_from(0, start) == ([(0, position)] if position else [])


def test_a_task_behind_an_open_transaction_gives_up(monkeypatch):
    """It waits for default.api.timeout.ms from the last record on, and says how the transaction is found and ended."""
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)

    def held(max_wait_ms):
        clock.now += max_wait_ms / 1000
        assert clock.now < 1000, "the task waits without bound"

    monkeypatch.setattr(cluster, "time", clock)
    broker = Broker(stable=1, held=held)
    reader = reader_of(monkeypatch, broker, Broker(), api_timeout_ms=60_000, read_committed=True)
    work = OffsetRange(topic="t", partition=0, start=0, end=3, topic_id=id_text(PRESENT))
    found = []
    with pytest.raises(ReadTimeoutError, match=r"for 60 s: .*offset 1 .*moldau txns find-hanging --topic t"):
        found.extend(chunk.columns.length for chunk in reader.read(work, fail_on_data_loss=True))
    assert (found, clock.now) == ([1], 60)


def test_a_task_does_not_take_a_lagging_brokers_word(monkeypatch):
    reader = reader_of(monkeypatch, Broker(topic_id=None), Broker(leader=2))
    work = OffsetRange(topic="t", partition=0, start=0, end=3, topic_id=id_text(PRESENT))
    assert values(reader, work) == [b"0", b"1", b"2"]


def test_a_topic_is_gone_when_no_broker_knows_it(monkeypatch):
    brokers = Broker(topic_id=None), Broker(topic_id=FORMER, leader=2)
    work = OffsetRange(topic="t", partition=0, start=0, end=3, topic_id=id_text(PRESENT))
    assert values(reader_of(monkeypatch, *brokers), work) == []
    assert all(broker.asked for broker in brokers)


def test_a_former_leader_is_not_believed_about_the_end(monkeypatch):
    """It is cut off, and lacks the records of its successor; the next look at the metadata finds that one."""
    former, present = Broker(records=1), Broker(leader=2)
    reader = reader_of(monkeypatch, former, present)
    reader._cluster.refresh(["t"])
    former.leader = 2
    work = OffsetRange(topic="t", partition=0, start=2, end=3, topic_id=id_text(PRESENT))
    assert values(reader, work) == [b"2"]


def test_a_log_that_stays_cut_is_data_loss(monkeypatch):
    reader = reader_of(monkeypatch, Broker(records=1), Broker(), api_timeout_ms=20)
    work = OffsetRange(topic="t", partition=0, start=2, end=3, topic_id=id_text(PRESENT))
    with pytest.raises(DataLossError, match=r"t-0 was cut below offset 2: records 2\.\.2 are gone"):
        values(reader, work)


CUT = {"position past the log": 2, "position in the log": 1}


@pytest.mark.parametrize("start", CUT.values(), ids=CUT)
@pytest.mark.parametrize("epoch", [5, 6], ids=["same epoch", "later epoch"])
def test_a_leader_that_must_have_the_records_is_believed(monkeypatch, start, epoch):
    """Its leader epoch is that of the leader that named the end, or a later one: no waiting brings the records back."""
    reader = reader_of(monkeypatch, Broker(records=1, epoch=epoch), Broker(), api_timeout_ms=60_000)
    work = OffsetRange(topic="t", partition=0, start=start, end=3, topic_id=id_text(PRESENT), leader_epoch=5)
    with pytest.raises(DataLossError, match=rf"t-0 was cut at offset 1: its records {start}\.\.2 are gone; set failOn"):
        list(reader.read(work, fail_on_data_loss=True))
    assert values(reader, work) == []


def test_what_is_left_of_a_cut_range_is_read(monkeypatch):
    reader = reader_of(monkeypatch, Broker(records=2, epoch=5), Broker(), api_timeout_ms=60_000)
    work = OffsetRange(topic="t", partition=0, start=0, end=3, topic_id=id_text(PRESENT), leader_epoch=5)
    assert values(reader, work) == [b"0", b"1"]


@pytest.mark.parametrize("start", CUT.values(), ids=CUT)
def test_a_leader_of_an_earlier_epoch_is_not_believed(monkeypatch, start):
    """It is cut off, and so are all brokers that the reader reaches, until one of them has heard of its successor."""
    former = Broker(records=1, epoch=4, leader=2, hears_after=4)
    reader = reader_of(monkeypatch, former, Broker(leader=2, epoch=5))
    work = OffsetRange(topic="t", partition=0, start=start, end=3, topic_id=id_text(PRESENT), leader_epoch=5)
    assert values(reader, work) == [b"%d" % n for n in range(start, 3)]


def test_a_plan_has_the_epochs_of_its_ends(monkeypatch):
    reader = reader_of(monkeypatch, Broker(epoch=5), Broker(epoch=5))
    stream = source.MoldauStreamReader(parse_options(OPTIONS, streaming=True), connect=lambda client: reader)
    known = {f"t#{id_text(PRESENT)}": {}}
    tasks = stream.partitions({"t": {"0": 0}} | known, {"t": {"0": 3}} | known)
    assert [one.leader_epoch for task in tasks for one in task.ranges] == [5]


def test_a_repeated_look_up_asks_for_the_leaders_again(monkeypatch):
    """A broker that leads no more would be asked again and again until the time for it is over."""
    monkeypatch.setattr(cluster.time, "sleep", lambda seconds: None)
    known = cluster.Cluster(ClientOptions(bootstrap=tuple(ADDRESSES.values())))
    known.leaders["t", 0] = 1
    seen = []

    def attempt():
        seen.append(dict(known.leaders))
        if len(seen) == 1:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return "found"

    assert known.retry("look up offsets", attempt) == "found"
    assert seen == [{("t", 0): 1}, {}]


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("now", [None, FORMER], ids=["no topic", "another topic"])
def test_a_topic_that_no_broker_has_any_more_is_gone(monkeypatch, caplog, now, fails):
    """A task reads no record of another topic of that name."""
    reader = reader_of(monkeypatch, Broker(topic_id=now), Broker(topic_id=now))
    work = OffsetRange(topic="t", partition=0, start=1, end=3, topic_id=id_text(PRESENT))
    text = "t was deleted before its records 1..2 were read"
    if fails:
        with pytest.raises(DataLossError, match=f"^{text}; set failOnDataLoss to false to continue without them$"):
            list(reader.read(work, fail_on_data_loss=True))
    else:
        assert list(reader.read(work, fail_on_data_loss=False)) == []
        assert [record.getMessage() for record in caplog.records if "loss" in record.msg] == [f"data-loss {text}"]


@pytest.mark.parametrize("records", [1, 2, 3])
def test_records_of_a_log_that_is_too_short_are_read(monkeypatch, records):
    """The leader names an end before that of the range: the records up to there count, the others are waited for."""
    reader = reader_of(monkeypatch, Broker(records=records), Broker(records=records), api_timeout_ms=0)
    work, found = OffsetRange(topic="t", partition=0, start=0, end=3), []

    def read():
        found.extend(chunk.columns.length for chunk in reader.read(work, fail_on_data_loss=True))

    if records < 3:
        with pytest.raises(ReadTimeoutError, match=f"t-0 ends at {records}, 3 was seen before"):
            read()
    else:
        read()
    assert sum(found) == records
