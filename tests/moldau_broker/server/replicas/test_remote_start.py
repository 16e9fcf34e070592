"""Goal: a follower starts behind a remote segment only if the leader's log has the same records at its end.

Method: the start alone, in front of a leader and a store that answer what the test says.
"""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from moldau.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from moldau.values import BrokerId
from moldau_broker.log.values import EARLIEST_LOCAL_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from moldau_broker.remote_log.core.names import RemoteSegment
from moldau_broker.server.remote_reading.values import RemoteSegmentMissingError
from moldau_broker.server.replicas.remote_start import RemoteStarts

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = TopicPartition("t", 0)
LOCAL_START, END = 50, 120


def segment(base: int, last: int, epoch: int) -> RemoteSegment:
    return RemoteSegment(base, last, epoch, 1, False, uuid.UUID(int=1000 * base + last), 100)


class Start:
    """A follower with an empty log, whose leader has ``epochs`` (epoch to start offset)."""

    def __init__(self, epochs: dict[int, int], *segments: RemoteSegment, log_start: int = 0, log_end: int = 0) -> None:
        self.epochs = epochs
        self.segments = segments
        self.offsets = {LATEST_TIMESTAMP: END, EARLIEST_LOCAL_TIMESTAMP: LOCAL_START}
        self.error = ErrorCode.NONE
        self.restarted: list[dict[str, Any]] = []
        self.truncated: list[int] = []
        self.is_wanted = True
        self.before_parts: Callable[[], object] = lambda: None
        log = SimpleNamespace(
            log_end_offset=log_end,
            restart_behind=lambda offset, **more: self.restarted.append({"offset": offset, **more}),
            update_high_watermark=lambda _: None,
        )
        replica = SimpleNamespace(restarted=lambda _: None, high_watermark=0)
        self.partition: Any = SimpleNamespace(key=KEY, log=log, replica=replica, error=ErrorCode.NONE)
        answer = SimpleNamespace(log_start_offset=log_start)
        self.step: Any = SimpleNamespace(followed=SimpleNamespace(key=KEY, leader_epoch=9), answer=answer)

    async def request_as(self, response_class: type, request: Any, version: int, timeout_ms: float) -> Any:
        part = request.topics[0].partitions[0]
        assert part.current_leader_epoch == 9
        assert request.replica_id == 2
        if isinstance(request, ListOffsetsRequest):
            found = ListOffsetsPartitionResponse(error_code=self.error, offset=self.offsets[part.timestamp])
            return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[found])])
        known = [epoch for epoch in self.epochs if epoch <= part.leader_epoch]
        epoch = max(known, default=-1)
        later = [start for each, start in self.epochs.items() if each > part.leader_epoch]
        end = EpochEndOffset(leader_epoch=epoch, end_offset=min(later, default=END) if known else -1)
        return OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="t", partitions=[end])])

    async def segments_holding(self, partition: Any, offset: int) -> list[RemoteSegment]:
        assert offset == LOCAL_START - 1
        return sorted(self.segments, key=lambda each: -each.last_offset)

    async def parts(self, partition: Any, found: RemoteSegment) -> Any:
        self.before_parts()
        return SimpleNamespace(leader_epochs=b"epochs", producer_snapshot=b"producers")

    def missing(self, partition: Any, offset: int) -> RemoteSegmentMissingError:
        return RemoteSegmentMissingError(str(offset))

    def run(self) -> bool:
        async def main() -> bool:
            fake: Any = self
            clock: Any = SimpleNamespace(wall_ms=lambda: 77)
            replicas: Any = SimpleNamespace(follower_truncated=lambda _, offset: self.truncated.append(offset))
            starts = RemoteStarts(clock, BrokerId(2), replicas, fake, timeout_ms=5)
            return await starts.start(fake, self.partition, self.step, lambda: self.is_wanted)

        return trio.run(main)


def test_the_log_starts_behind_the_segment_that_reaches_furthest() -> None:
    start = Start({0: 0, 3: 40}, segment(0, 49, 3), segment(20, 69, 3), segment(20, 59, 3), log_start=7)
    assert start.run()
    assert start.restarted == [
        {
            "offset": 70,
            "log_start_offset": 7,
            "leader_epochs": b"epochs",
            "producer_snapshot": b"producers",
            "now_ms": 77,
        }
    ]


@pytest.mark.parametrize(
    ("epochs", "foreign"),
    [
        ({0: 0, 3: 40, 5: 60}, segment(20, 69, 3)),  # the leader's epoch 3 ends before the segment does
        ({0: 0, 3: 40, 5: 60}, segment(20, 69, 4)),  # the leader has no such epoch
        ({0: 0, 3: 40, 5: 80}, segment(20, 69, 5)),  # the leader's epoch 5 begins behind it
        ({3: 40}, segment(20, 69, 2)),  # from before all epochs of the leader
    ],
)
def test_a_segment_of_another_lineage_is_left_out(epochs: dict[int, int], foreign: RemoteSegment) -> None:
    """An unclean election has dropped its records: a log behind it would have epochs that the leader never had."""
    own = segment(20, 54, 3)
    start = Start(epochs, own, foreign)
    assert start.run()
    assert start.restarted[0]["offset"] == own.end_offset
    start = Start(epochs, foreign)
    with pytest.raises(RemoteSegmentMissingError):
        start.run()
    assert start.restarted == []


def test_the_first_epoch_has_none_before_it() -> None:
    start = Start({0: 0}, segment(0, 54, 0))
    assert start.run()
    assert start.restarted[0]["offset"] == 55


def test_nothing_changes_if_another_leader_is_followed_meanwhile() -> None:
    start = Start({3: 0}, segment(0, 54, 3))
    start.before_parts = lambda: setattr(start, "is_wanted", False)
    assert not start.run()
    start.is_wanted = False
    assert not start.run()
    assert start.restarted == []


def test_nothing_changes_if_the_disk_fails_meanwhile() -> None:
    start = Start({3: 0}, segment(0, 54, 3))
    start.before_parts = lambda: setattr(start.partition, "error", ErrorCode.KAFKA_STORAGE_ERROR)
    assert not start.run()
    assert start.restarted == []


@pytest.mark.parametrize(("log_start", "log_end"), [(LOCAL_START, 0), (-1, 0), (0, LOCAL_START), (0, LOCAL_START + 1)])
def test_the_leader_is_asked_again_if_its_log_has_changed(log_start: int, log_end: int) -> None:
    """It has the follower's offset again, or all its remote records are deleted."""
    start = Start({3: 0}, segment(0, 54, 3), log_start=log_start, log_end=log_end)
    assert not start.run()
    assert start.restarted == []


def test_a_leader_that_has_lost_records_comes_first() -> None:
    start = Start({3: 0}, segment(0, 54, 3), log_end=END + 1)
    assert start.run()
    assert (start.truncated, start.restarted) == ([END], [])


def test_a_refusal_of_the_leader_is_an_error() -> None:
    start = Start({3: 0}, segment(0, 54, 3))
    start.error = ErrorCode.FENCED_LEADER_EPOCH
    with pytest.raises(KafkaError) as caught:
        start.run()
    assert caught.value.code is ErrorCode.FENCED_LEADER_EPOCH
