"""Goal: a follower's segments are no larger than ``segment.bytes``, however many batches one fetch brings.

Method: a leader's log on a virtual disk is read as a whole and appended to another log at once.
"""

from __future__ import annotations

from moldau_broker.log.values import TopicPartition
from support.log.lab import create, open_manager, put
from support.log.model import START_MS, VirtualMachine, all_rows

BATCHES = 40


def test_one_fetch_fills_segments_as_the_leader_did() -> None:
    """Batches that were not written before the roll would all go into one segment."""
    manager = open_manager(VirtualMachine(1))
    leader, follower = (create(manager, TopicPartition(name, 0)) for name in ("leader", "follower"))
    for number in range(BATCHES):
        put(leader, b"%2d" % number)
    data = b"".join(segment.file.read(0, segment.size) for segment in leader.segments)
    info = follower.append_as_follower(memoryview(data), now_ms=START_MS)
    assert info.rolled
    assert all_rows(follower) == all_rows(leader)
    segments = [(segment.base_offset, segment.size) for segment in follower.segments]
    assert segments == [(segment.base_offset, segment.size) for segment in leader.segments]
    assert len(segments) > 2
    assert max(size for _, size in segments) <= follower.config.segment_bytes
