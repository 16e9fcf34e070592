"""Goal: a replica in the reader's rack that cannot serve a partition never keeps the reader from the leader's records.

Method: the reader on brokers in memory. The leader names the replica to each reader whose rack it knows.
"""

import types
import uuid

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from moldau.records import encode_batch
from pyspark_moldau.source import reader as reader_module
from pyspark_moldau.source.core.offsets import OffsetRange
from pyspark_moldau.source.core.options import ClientOptions
from pyspark_moldau.source.reader import ClusterReader

TOPIC_ID = uuid.UUID(int=7)
LEADER, REPLICA = ("leader", 1), ("replica", 2)
WORK = OffsetRange(topic="t", partition=0, start=0, end=3)


class Brokers:
    """A leader, and a replica that ``serves`` as said: records, an error, or no connection."""

    def __init__(self, serves, node=2):
        self.serves = serves
        self.node = node
        self.asked = []
        self.refreshes = 0

    def connect(self, address):
        return Connection(self, address)


class Connection:
    is_outdated = False

    def __init__(self, brokers, address):
        self._brokers, self._address = brokers, address

    def send(self, request, version):
        self._request = request
        self._brokers.asked.append((self._address[0], request.rack_id))
        assert len(self._brokers.asked) < 10, "the reader asks in a loop"

    def receive(self, response_class, version):
        data = PartitionData(partition_index=0, high_watermark=3)
        if self._address == LEADER and self._request.rack_id:
            data.preferred_read_replica = self._brokers.node
        elif self._address == REPLICA and isinstance(self._brokers.serves, OSError):
            raise self._brokers.serves
        elif self._address == REPLICA and self._brokers.serves is not None:
            data.error_code = self._brokers.serves
        else:
            data.records = encode_batch([(1, None, b"%d" % n, ()) for n in range(3)], base_offset=0)
        return FetchResponse(responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])])

    def close(self):
        pass


def reader_of(brokers, monkeypatch, *, knows_replica=True, learns_replica=True):
    found = ClusterReader(ClientOptions(bootstrap=(LEADER,), rack="r", retry_backoff_ms=1, retry_backoff_max_ms=1))
    cluster = found._cluster

    def refresh(topics, *, missing_ok=False):
        brokers.refreshes += 1
        known = knows_replica if brokers.refreshes == 1 else learns_replica
        cluster.brokers = {1: LEADER} | ({brokers.node: REPLICA} if known else {})
        cluster.leaders["t", 0] = 1
        cluster.topic_ids["t"] = TOPIC_ID

    monkeypatch.setattr(cluster, "refresh", refresh)
    monkeypatch.setattr(cluster, "take_connection", brokers.connect)
    monkeypatch.setattr(cluster, "give_back", lambda address, connection: None)
    return found


def rows(reader):
    return sum(chunk.columns.length for chunk in reader.read(WORK, fail_on_data_loss=True))


@pytest.mark.parametrize("node", [0, 2])
def test_the_replica_serves(monkeypatch, node):
    """Node 0 is a broker like the others."""
    brokers = Brokers(None, node)
    assert rows(reader_of(brokers, monkeypatch)) == 3
    assert brokers.asked == [("leader", "r"), ("replica", "r")]


@pytest.mark.parametrize("learns", [True, False])
def test_a_replica_on_a_broker_that_is_new_to_the_reader(learns, monkeypatch):
    brokers = Brokers(None)
    assert rows(reader_of(brokers, monkeypatch, knows_replica=False, learns_replica=learns)) == 3
    assert brokers.asked == [("leader", "r"), ("replica", "r") if learns else ("leader", "")]


@pytest.mark.parametrize(
    "failure",
    [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE, ConnectionRefusedError("unreachable")],
    ids=str,
)
def test_a_replica_that_cannot_serve(failure, monkeypatch):
    """It is behind, or out of reach; the leader is asked next, and again after a while the replica."""
    brokers = Brokers(failure)
    reader = reader_of(brokers, monkeypatch)
    assert rows(reader) == 3
    assert brokers.asked == [("leader", "r"), ("replica", "r"), ("leader", "")]
    brokers.asked.clear()
    now = reader_module.time.monotonic() + reader_module.LEADER_ONLY_S
    monkeypatch.setattr(reader_module, "time", types.SimpleNamespace(monotonic=lambda: now))
    brokers.serves = None
    assert rows(reader) == 3
    assert brokers.asked == [("leader", "r"), ("replica", "r")]


@pytest.mark.parametrize("node", [0, 2])
def test_a_replica_is_asked_for_a_while_and_only_if_known(node, monkeypatch):
    """A broker that has left the metadata has no address."""
    reader = reader_of(Brokers(None), monkeypatch)
    reader._cluster.refresh([])
    now = reader_module.time.monotonic()
    for known, since, expected in ((True, now, REPLICA), (False, now, LEADER), (True, now - 300.0, LEADER)):
        reader._cluster.brokers = {1: LEADER} | ({node: REPLICA} if known else {})
        reader._preferred["t", 0] = (node, since)
        assert reader._address(("t", 0)) == expected
        assert (("t", 0) in reader._preferred) == (expected == REPLICA)
