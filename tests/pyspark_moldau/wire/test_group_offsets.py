"""Goal: lag tools see a query for as long as it runs. Method: the request that commits offsets is replaced."""

from types import SimpleNamespace

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.find_coordinator import FindCoordinatorResponse
from moldau.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from pyspark_moldau.client_options import ClientOptions
from pyspark_moldau.source.core.options import parse_options
from pyspark_moldau.source.stream import MoldauStreamReader
from pyspark_moldau.wire import group_offsets
from pyspark_moldau.wire.cluster import Cluster
from pyspark_moldau.wire.group_offsets import AGAIN_S, GroupOffsets
from support.spark.memory_log import MemoryLog

BUSY, QUIET = ("t", 0), ("t", 1)


@pytest.fixture
def clock(monkeypatch):
    """The time in seconds; a test sets it forward."""
    now = [100.0]
    monkeypatch.setattr(group_offsets.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def commits(monkeypatch):
    """The commits of offsets; a None among the answers to come is a success, an error code is a refusal."""
    found, answers = [], []

    def commit(self, offsets):
        if answers and (code := answers.pop(0)) is not None:
            raise KafkaError(code)
        found.append(dict(offsets))

    monkeypatch.setattr(GroupOffsets, "_commit", commit)
    return found, answers


def test_offsets_of_a_partition_without_records_do_not_expire(clock, commits):
    """Brokers count from the last commit of each partition, and a group of a query has no members."""
    found, answers = commits
    group = GroupOffsets(ClientOptions(bootstrap=(("h", 1),)), "g")
    for busy in range(3):
        assert group.publish({BUSY: busy, QUIET: 7})
        clock[0] += AGAIN_S / 4
    assert found == [{BUSY: 0, QUIET: 7}, {BUSY: 1}, {BUSY: 2}]
    clock[0] += AGAIN_S / 4
    answers.append(ErrorCode.UNKNOWN_MEMBER_ID)
    assert not group.publish({BUSY: 2, QUIET: 7}), "a consumer is in the group"
    assert group.publish({BUSY: 2, QUIET: 7})
    assert group.publish({BUSY: 2, QUIET: 7})
    assert found[3:] == [{BUSY: 2, QUIET: 7}]
    clock[0] += AGAIN_S
    assert group.publish({BUSY: 2, QUIET: 7}), "also of a query that has nothing to read"
    assert found[4:] == [{BUSY: 2, QUIET: 7}]


def test_a_broker_that_no_longer_coordinates_is_left(monkeypatch):
    """NOT_COORDINATOR asks for FindCoordinator again: the group's partition of __consumer_offsets has moved."""
    coordinators, asked = ["former", "present"], []

    def find(self, request, version, response):
        return FindCoordinatorResponse(host=coordinators.pop(0), port=1)

    def ask(self, address, request, version, response):
        asked.append(address[0])
        code = ErrorCode.NONE if address[0] == "present" else ErrorCode.NOT_COORDINATOR
        part = OffsetCommitResponsePartition(partition_index=0, error_code=code)
        return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[part])])

    def retry(self, what, attempt):
        with pytest.raises(KafkaError):
            attempt()
        return attempt()

    monkeypatch.setattr(Cluster, "ask_any", find)
    monkeypatch.setattr(Cluster, "ask", ask)
    monkeypatch.setattr(Cluster, "retry", retry)
    group = GroupOffsets(ClientOptions(bootstrap=(("h", 1),)), "g")
    assert group.publish({BUSY: 5})
    assert asked == ["former", "present"]


def test_only_offsets_of_finished_batches_are_published():
    """A tool that watches the group would else take records for processed that are only known."""
    log = MemoryLog([("t", 0)])
    log.append(("t", 0), *[(1, None, b"v", ())] * 10)
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "startingOffsets": "earliest"}
    options = parse_options(given | {"publishOffsetsToGroup": "g"}, streaming=True)
    reader, published = MoldauStreamReader(options, connect=lambda client: log), []
    reader._group = SimpleNamespace(publish=published.append)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    reader.commit(end)
    reader.latestOffset(end, ReadMaxRows(4))
    assert [offsets["t", 0] for offsets in published] == [0, 4, 4]
