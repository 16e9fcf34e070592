"""Goal: a reader logs in again before the session of its connection ends, and not by an error of the broker.

Method: the reader on connections of the test, of which the first one is outdated from its first answer on.
"""

from __future__ import annotations

from uuid import UUID

from moldau.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from moldau.records import encode_batch
from pyspark_moldau.source.core.offsets import OffsetRange
from pyspark_moldau.source.core.options import ClientOptions
from pyspark_moldau.source.reader import ClusterReader
from pyspark_moldau.wire.cluster import id_text

ADDRESS, TOPIC_ID = ("leader", 9092), UUID(int=7)
WORK = OffsetRange(topic="t", partition=0, start=0, end=4, topic_id=id_text(TOPIC_ID))


class Connection:
    """Answers each fetch with one record."""

    def __init__(self, *, ends: bool) -> None:
        self._ends = ends
        self.asked: list[int] = []

    @property
    def is_outdated(self) -> bool:
        return self._ends and bool(self.asked)

    def send(self, request, version):
        self.asked.append(request.topics[0].partitions[0].fetch_offset)

    def receive(self, response_class, version):
        offset = self.asked[-1]
        records = encode_batch([(1, None, b"%d" % offset, ())], base_offset=offset)
        data = PartitionData(partition_index=0, high_watermark=4, records=records)
        return FetchResponse(responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])])

    def close(self):
        raise AssertionError("a connection whose session ends is given back, and closed there")


def test_a_connection_whose_session_ends_fetches_no_more(monkeypatch):
    reader = ClusterReader(ClientOptions(bootstrap=(ADDRESS,)))
    cluster = reader._cluster
    cluster.brokers, cluster.leaders["t", 0] = {1: ADDRESS}, 1
    made = [Connection(ends=True), Connection(ends=False)]
    left = list(made)
    monkeypatch.setattr(cluster, "take_connection", lambda address: left.pop(0))
    monkeypatch.setattr(cluster, "give_back", lambda address, connection: None)
    assert sum(chunk.columns.length for chunk in reader.read(WORK, fail_on_data_loss=True)) == 4
    assert [each.asked for each in made] == [[0], [1, 2, 3]]


def test_a_connection_that_still_owes_an_answer_is_closed(monkeypatch):
    """Spark reads no further, as behind a limit: the next task would take the answer for that to its own request."""

    class Owing(Connection):
        is_closed = False

        def close(self):
            self.is_closed = True

    reader, connection, kept = ClusterReader(ClientOptions(bootstrap=(ADDRESS,))), Owing(ends=False), []
    cluster = reader._cluster
    cluster.brokers, cluster.leaders["t", 0] = {1: ADDRESS}, 1
    monkeypatch.setattr(cluster, "take_connection", lambda address: connection)
    monkeypatch.setattr(cluster, "give_back", lambda address, connection: kept.append(connection))
    chunks = reader.read(WORK, fail_on_data_loss=True)
    assert next(chunks).columns.length == 1
    assert connection.asked == [0, 1], "the next fetch is under way"
    chunks.close()
    assert (connection.is_closed, kept) == (True, [])
