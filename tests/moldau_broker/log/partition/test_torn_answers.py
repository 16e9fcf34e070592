"""Goal: a follower never joins bytes of two logs from one answer of a leader that lost leadership meanwhile.

Method: three logs as values. The ranges of an answer are planned at once, and their bytes are read when the socket
accepts them: half before the next leader has truncated and filled the former leader's log, half after.
"""

from __future__ import annotations

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.log.errors import LogError
from moldau_broker.log.values import TopicPartition
from support.log.lab import create, open_manager
from support.log.model import START_MS, VirtualMachine, all_rows, committed_rows, make_batch

BATCHES = 10


def write(log, epoch: int, offset: int) -> None:
    """One batch of one record, as long as any other."""
    value = b"%d in %d" % (offset, epoch)
    log.append_as_leader(memoryview(make_batch([(START_MS, b"k", value)])), leader_epoch=epoch, now_ms=START_MS)


def answer(log, offset: int, end: int) -> memoryview:
    """The bytes of a fetch."""
    result = log.read(offset, max_bytes=1 << 20, upper_bound_offset=end, min_one_batch=True)
    return memoryview(b"".join(piece.file.read(piece.position, piece.count) for piece in result.ranges))


def fetch(follower, leader, leader_epoch: int) -> None:
    """One fetch of a follower in the leader's epoch: it is cut where the two differ, and takes what is behind."""
    end = leader.end_offset_for_epoch(follower.latest_epoch)
    if end.leader_epoch < follower.latest_epoch or end.end_offset < follower.log_end_offset:
        follower.truncate_to(min(end.end_offset, follower.end_offset_for_epoch(end.leader_epoch).end_offset))
    data = answer(leader, follower.log_end_offset, leader.log_end_offset)
    follower.append_as_follower(data, now_ms=START_MS, leader_epoch=leader_epoch)


@pytest.mark.parametrize("batches_sent_before", range(8))
def test_late_bytes_of_a_former_leader_stay_detectable(
    batches_sent_before: int,
) -> None:
    """A bug appended the next leader's batches behind the former one's, so acknowledged batches were missing.

    With seven batches sent, the whole answer comes from the former leader.
    """
    manager = open_manager(VirtualMachine(1), segment_bytes=100_000)
    former, follower, elected = (create(manager, TopicPartition(name, 0)) for name in ("former", "late", "elected"))
    for offset in range(BATCHES):
        write(former, 1, offset)
    elected.append_as_follower(answer(former, 0, 6), now_ms=START_MS, leader_epoch=1)
    follower.append_as_follower(answer(former, 0, 3), now_ms=START_MS, leader_epoch=1)
    plan = former.read(3, max_bytes=1 << 20, upper_bound_offset=BATCHES, min_one_batch=True).ranges[0]
    sent = plan.count // 7 * batches_sent_before
    early = plan.file.read(plan.position, sent)

    elected.begin_leader_epoch(2)
    for offset in range(6, BATCHES + 2):
        write(elected, 2, offset)
    fetch(former, elected, 2)
    late = plan.file.read(plan.position + sent, plan.count - sent)

    follower.append_as_follower(memoryview(early + late), now_ms=START_MS, leader_epoch=1)
    assert (follower.latest_epoch, follower.log_end_offset) == (1, max(6, 3 + batches_sent_before))
    fetch(follower, elected, 2)
    assert all_rows(follower) == all_rows(elected)
    assert follower.epochs.entries == elected.epochs.entries


def test_a_first_batch_newer_than_the_fetched_leader_is_refused() -> None:
    """A fetch answer whose first batch has a newer epoch than the fetched leader is refused as a whole."""
    manager = open_manager(VirtualMachine(1))
    leader, follower = create(manager), create(manager, TopicPartition("b", 0))
    write(leader, 4, 0)
    data = answer(leader, 0, 1)
    with pytest.raises(LogError) as caught:
        follower.append_as_follower(data, now_ms=START_MS, leader_epoch=3)
    assert caught.value.code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert (follower.log_end_offset, follower.latest_epoch, follower.failed) == (0, -1, False)
    assert follower.append_as_follower(data, now_ms=START_MS, leader_epoch=4).last_offset == 0


def test_an_epoch_without_records_ends_where_the_leader_ends() -> None:
    """A follower that led without writing must drop its epoch, or it refuses earlier records of the leader."""
    manager = open_manager(VirtualMachine(1))
    leader, follower = create(manager), create(manager, TopicPartition("b", 0))
    write(leader, 2, 0)
    follower.append_as_follower(answer(leader, 0, 1), now_ms=START_MS, leader_epoch=2)
    write(leader, 2, 1)
    follower.begin_leader_epoch(3)
    leader.begin_leader_epoch(4)
    fetch(follower, leader, 4)
    assert all_rows(follower) == all_rows(leader)
    assert (follower.latest_epoch, follower.log_end_offset) == (2, 2)


def test_an_abort_marker_that_is_cut_aborts_nothing() -> None:
    """The log ends just below the marker of the former leader; the next leader committed the same transaction."""
    manager = open_manager(VirtualMachine(1))
    former, elected = create(manager), create(manager, TopicPartition("b", 0))
    data = make_batch([(START_MS, b"k", b"v")], producer=(7, 0, 0), transactional=True)
    former.append_as_leader(memoryview(data), leader_epoch=1, now_ms=START_MS)
    elected.append_as_follower(answer(former, 0, 1), now_ms=START_MS, leader_epoch=1)
    for log, epoch in ((former, 1), (elected, 2)):
        log.append_end_transaction_marker(
            producer_id=7, producer_epoch=0, coordinator_epoch=0, commit=log is elected, leader_epoch=epoch, now_ms=1
        )
    fetch(former, elected, 2)
    former.update_high_watermark(2)
    assert [row.offset for row in committed_rows(former)] == [0]
