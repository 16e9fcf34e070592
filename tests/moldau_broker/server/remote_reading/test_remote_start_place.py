"""Goal: a follower's log begins where the remote segment ends from which it takes its epochs and its producers.

Method: the start alone, with a leader whose answers are given and one segment that reaches beyond the local log start
offset of that leader: another leader has closed it elsewhere.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.list_offsets import ListOffsetsRequest
from moldau_broker.log.values import LATEST_TIMESTAMP, SegmentParts, TopicPartition
from moldau_broker.remote_log.core.names import RemoteSegment
from moldau_broker.server.replicas.remote_start import RemoteStarts

LOG_END, LOCAL_START, LOG_START = 90, 40, 5
SEGMENT = RemoteSegment(30, 59, 3, 7, False, UUID(int=1), 100)


class Leader:
    """Leads in epoch 3, which began at offset 20."""

    async def request_as(self, response: Any, request: Any, version: int, *, timeout_ms: float) -> Any:
        wanted = request.topics[0].partitions[0]
        if isinstance(request, ListOffsetsRequest):
            offset = LOG_END if wanted.timestamp == LATEST_TIMESTAMP else LOCAL_START
            found = SimpleNamespace(error_code=0, offset=offset)
        else:
            epoch, end = (3, LOG_END) if wanted.leader_epoch == 3 else (2, 20)
            found = SimpleNamespace(error_code=0, leader_epoch=epoch, end_offset=end)
        return SimpleNamespace(topics=[SimpleNamespace(partitions=[found])])


class Reader:
    async def segments_holding(self, partition: Any, offset: int) -> list[RemoteSegment]:
        assert offset == LOCAL_START - 1
        return [SEGMENT]

    async def parts(self, partition: Any, segment: RemoteSegment) -> SegmentParts:
        return SegmentParts(b"", b"", b"", b"producers", b"epochs")


def test_the_log_begins_where_its_segment_ends() -> None:
    """Its producers and epochs are those of that place, above the local log start offset of the leader."""
    begun: list[tuple[Any, ...]] = []
    log = SimpleNamespace(
        log_end_offset=10,
        restart_behind=lambda offset, **past: begun.append((offset, past["log_start_offset"])),
        update_high_watermark=lambda offset: begun.append(("high watermark", offset)),
    )
    replica = SimpleNamespace(restarted=lambda offset: begun.append(("replica", offset)), high_watermark=60)
    partition: Any = SimpleNamespace(log=log, replica=replica, error=ErrorCode.NONE, key=TopicPartition("t", 0))
    step: Any = SimpleNamespace(
        followed=SimpleNamespace(key=partition.key, leader_epoch=3),
        answer=SimpleNamespace(log_start_offset=LOG_START),
    )
    clock: Any = SimpleNamespace(wall_ms=lambda: 0)
    reader: Any = Reader()
    replicas: Any = SimpleNamespace()
    leader: Any = Leader()

    async def test() -> bool:
        starts = RemoteStarts(clock, 2, replicas, reader, timeout_ms=1000.0)
        return await starts.start(leader, partition, step, lambda: True)

    assert trio.run(test)
    assert begun == [(60, LOG_START), ("replica", 60), ("high watermark", 60)]
