"""Goal: each event moves a partition to the right step, and answers that came too late change nothing.

Method: one position at a time, then the table of an assignment; no network and no clock.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.cluster.committed import CommittedOffset
from moldau.consumer.core.chunk import FetchedChunk
from moldau.consumer.core.positions import LATEST_TIMESTAMP, NO_EPOCH, PartitionPosition, Phase, Positions
from moldau.consumer.core.values import TopicPartition
from moldau.consumer.fetcher import Fetcher
from moldau.consumer.offsets import ConsumerOffsets
from moldau.records import encode_batch
from moldau.runtime.telemetry.log import EventLogger

A, B, C = (TopicPartition("t", number) for number in range(3))
FETCH, VALIDATE, RESET = Phase.FETCH, Phase.VALIDATE, Phase.RESET


def at(offset, epoch=-1, *, leader=-1, phase=FETCH, idle=True):
    position = PartitionPosition(A)
    position.seek(offset, epoch)
    position.leader_epoch, position.phase, position.is_idle = leader, phase, idle
    return position


def feed(position, values=b"ab", epoch=-1):
    """Adds one answer, with a record for each byte."""
    data = encode_batch(
        [(1, None, bytes([each]), ()) for each in values],
        base_offset=position.fetch_offset,
        partition_leader_epoch=epoch,
    )
    chunk = FetchedChunk(memoryview(data), position.fetch_offset)
    assert position.add_chunk(position.generation, position.fetch_offset, chunk)


def test_a_new_partition_looks_its_offset_up():
    position = PartitionPosition(A)
    assert (position.phase, position.has_position, position.offset, position.fetch_offset) == (
        *(Phase.LOOK_UP, False),
        *(-1, -1),
    )
    assert not position.wants_fetch(0, 100)
    assert (position.high_watermark, position.end_offset, position.log_start_offset) == (-1, -1, -1)
    assert (position.preferred_replica, position.leader_epoch, position.last_fetched_epoch) == (-1, -1, -1)


@pytest.mark.parametrize(("epoch", "phase"), [(-1, FETCH), (0, VALIDATE), (4, VALIDATE)])
def test_a_seek_forgets_the_former_place(epoch, phase):
    """An offset of a known epoch is validated first. Nothing that was noted of the former place is left."""
    position = at(3)
    feed(position)
    position.retry_at_ms = 500
    position.prefer(2, 900)
    position.reset_timestamp = LATEST_TIMESTAMP
    generation = position.generation
    position.seek(7, epoch)
    assert (position.offset, position.fetch_offset, position.offset_epoch, position.phase) == (7, 7, epoch, phase)
    assert (list(position.chunks), position.buffered_bytes, position.generation) == ([], 0, generation + 1)
    assert (position.retry_at_ms, position.preferred_replica, position.has_position) == (-math.inf, -1, True)


def test_a_reset_asks_for_its_time_at_once():
    position = at(3)
    position.retry_at_ms = 500
    position.prefer(2, 900)
    position.reset(1234)
    assert (position.phase, position.reset_timestamp, position.has_position) == (RESET, 1234, False)
    assert (position.retry_at_ms, position.preferred_replica) == (-math.inf, -1)


def test_dropped_answers_are_fetched_again():
    position = at(3)
    generation = position.generation
    position.drop_chunks()
    assert position.generation == generation, "nothing to drop: the fetch under way still counts"
    feed(position)
    feed(position)
    position.advance(4, 2)
    position.is_idle = True
    position.drop_chunks()
    assert (position.offset, position.fetch_offset, position.offset_epoch) == (4, 4, 2)
    assert (len(position.chunks), position.buffered_bytes, position.is_idle) == (0, 0, False)
    assert position.generation > generation


@pytest.mark.parametrize(
    ("phase", "leader", "epoch", "seen", "expected"),
    [
        (FETCH, -1, 4, 5, (FETCH, 5, False)),  # the first leader that is known
        (FETCH, 4, 4, 5, (VALIDATE, 5, False)),
        (FETCH, 4, -1, 5, (FETCH, 5, False)),  # without an epoch there is nothing to compare
        (FETCH, 5, 4, 5, (FETCH, 5, True)),
        (FETCH, 5, 4, 4, (FETCH, 4, True)),  # a topic that was created again
        (FETCH, 5, 4, -1, (FETCH, 5, True)),
        (VALIDATE, -1, 4, 5, (VALIDATE, 5, True)),
        (VALIDATE, 4, 4, 5, (VALIDATE, 4, True)),  # seen again once the answer has come
        (RESET, -1, -1, 0, (RESET, 0, True)),
    ],
)
def test_a_leader_that_changed_validates_the_position(phase, leader, epoch, seen, expected):
    position = at(3, epoch, leader=leader, phase=phase)
    position.leader_is(seen)
    assert (position.phase, position.leader_epoch, position.is_idle) == expected


def test_leaders_of_a_topic_created_again_are_followed():
    """Their epochs begin at 0 again; the epoch of the former topic's records says nothing about the new ones."""
    position = at(3, 8, leader=9)
    position.leader_is(0)
    assert (position.leader_epoch, position.last_fetched_epoch, position.phase) == (0, NO_EPOCH, FETCH)
    feed(position, epoch=0)
    position.leader_is(1)
    assert (position.leader_epoch, position.phase) == (1, VALIDATE)


def test_the_last_buffered_record_is_the_one_to_validate():
    position = at(3, 4, leader=4)
    assert position.last_fetched_epoch == 4
    feed(position, epoch=5)
    feed(position, epoch=6)
    assert position.last_fetched_epoch == 6


@pytest.mark.parametrize(
    ("answer", "diverged", "phase"),
    [
        ((10, 4), None, FETCH),
        ((11, 4), None, FETCH),
        ((9, 4), 9, VALIDATE),
        ((0, 0), 0, VALIDATE),
        ((-1, 4), None, FETCH),  # the leader knows no end
        ((9, -1), None, FETCH),  # or no such epoch
    ],
)
def test_a_log_that_ends_before_the_position_diverged(answer, diverged, phase):
    position = at(10, 4, phase=VALIDATE)
    assert position.validated(*answer) == diverged
    assert position.phase is phase
    assert position.is_idle == (phase is VALIDATE), "a valid position is fetched at once"


def test_prefetched_records_above_the_divergence_are_void():
    """The next leader's log ends among them, above what the application was given."""
    position = at(3, 4)
    feed(position, epoch=4)
    end = position.fetch_offset
    assert end > position.offset
    position.leader_is(5)
    assert position.validated(end, 4) is None
    position.leader_is(6)
    assert position.validated(end - 1, 4) == end - 1


def test_a_late_answer_of_a_validation_is_ignored():
    position = at(10, 4, phase=RESET)
    assert position.validated(3, 4) is None
    assert position.validated(20, 4) is None
    assert position.phase is RESET


def test_a_leader_of_the_awaited_epoch_ends_the_wait():
    """An earlier one that is seen later is asked: it may lead a topic that was made again."""
    position = at(5, 7)
    assert position.is_ahead_of(6, 100, 1_000)
    assert not position.is_ahead_of(7, 200, 1_000)
    assert not position.is_ahead_of(6, 300, 1_000)
    position.seek(5, 7)
    assert not position.is_ahead_of(-1, 0, 1_000), "the metadata has no epochs"


def test_a_later_seek_waits_for_its_own_leader():
    position = at(5, 7)
    assert position.is_ahead_of(6, 100, 1_000)
    position.seek(5, 8)
    assert position.is_ahead_of(7, 1_500, 1_000), "the patience begins again"
    position.seek(4, 6)
    assert position.is_ahead_of(7, 1_600, 1_000), "leader 8 was seen, so leader 7 leads no more"
    assert position.is_ahead_of(7, 2_499, 1_000)
    assert not position.is_ahead_of(7, 2_500, 1_000)


def test_a_follower_is_left_for_the_longest_time_asked():
    position = at(5)
    position.prefer(3, 900)
    assert (position.preferred_replica, position.preferred_until_ms, position.is_idle) == (3, 900, False)
    position.avoid_followers(700)
    position.avoid_followers(600)
    assert (position.preferred_replica, position.leader_only_until_ms) == (-1, 700)


@pytest.mark.parametrize("size", [1, 3_000])
def test_two_answers_of_any_size_are_buffered(size):
    """More are as long as all of them fit into the size of one; an answer counts for 1 KiB at least."""
    position = at(0)
    for _ in range(2):
        assert position.has_room(0)
        feed(position, bytes(1))
        position.buffered_bytes += max(size - 1024, 0)
    assert position.buffered_bytes == 2 * max(size, 1024)
    assert position.has_room(2 * max(size, 1024))
    assert not position.has_room(2 * max(size, 1024) - 1)
    position.buffered_bytes = 2 * 1024
    for left in (1024, 0):
        position.chunk_ended()
        assert position.buffered_bytes == left


@pytest.mark.parametrize(
    ("phase", "paused", "retry_at", "full", "expected"),
    [
        (FETCH, False, -math.inf, False, (True, False)),
        (FETCH, False, 100, False, (True, False)),
        (FETCH, False, 101, False, (False, False)),
        (FETCH, False, 100, True, (False, True)),
        (FETCH, False, 101, True, (False, False)),
        (FETCH, True, 0, False, (False, False)),
        (FETCH, True, 0, True, (False, False)),
        (VALIDATE, False, 0, False, (False, False)),
        (VALIDATE, False, 0, True, (False, False)),
    ],
)
def test_which_partitions_are_fetched(phase, paused, retry_at, full, expected):
    """Whether the next fetch names it, and whether only its buffer keeps it out."""
    position = at(0)
    for _ in range(2 if full else 0):
        feed(position)
    position.phase, position.is_paused, position.retry_at_ms = phase, paused, retry_at
    assert (position.wants_fetch(100, 2047), position.is_full(100, 2047)) == expected


def test_an_answer_without_records_takes_no_room():
    position = at(3)
    assert position.add_chunk(position.generation, 3, FetchedChunk(memoryview(b""), 3))
    assert (len(position.chunks), position.fetch_offset, position.is_idle) == (0, 3, True)
    feed(position)
    assert (len(position.chunks), position.fetch_offset, position.is_idle) == (1, 5, False)
    position.phase = VALIDATE
    assert not position.add_chunk(position.generation, 5, FetchedChunk(memoryview(b""), 5))


def test_an_unknown_epoch_keeps_the_one_before():
    position = at(3, 4)
    position.advance(5, -1)
    assert (position.offset, position.offset_epoch) == (5, 4)
    position.advance(6, 0)
    assert (position.offset, position.offset_epoch) == (6, 0)


# --- the table


def assigned(*partitions):
    positions = Positions()
    positions.assign(partitions)
    return positions


def test_partitions_that_stay_keep_everything():
    """Answers under way to those that leave are dropped, also if they come back before the answer."""
    positions = assigned(A, B)
    stays, leaves = positions.assigned(A), positions.assigned(B)
    for each in (stays, leaves):
        each.seek(3)
    before = (stays.generation, leaves.generation)
    positions.assign([C, A])
    assert list(positions.by_partition) == [C, A]
    assert positions.assigned(A) is stays
    assert (stays.generation == before[0], leaves.generation > before[1]) == (True, True)
    with pytest.raises(LookupError, match="t-1 is not assigned"):
        positions.assigned(B)


COUNTERS = ("generation", "times_set")
"""They only grow, so that answers and records of the former place are recognised."""
UNUSED = ("chunks", "preferred_until_ms", "reset_timestamp")
"""Without a preferred replica, or before a reset, nothing reads them; chunks are compared by their number."""
OF_THE_APPLICATION = ("is_paused",)


def state_of(position):
    left_out = COUNTERS + UNUSED + OF_THE_APPLICATION
    return {name: getattr(position, name) for name in PartitionPosition.__slots__ if name not in left_out}


@pytest.mark.parametrize("was", list(Phase))
def test_a_position_of_another_cluster_is_like_a_new_one(was):
    """No offset or leader epoch of the former cluster is left: both begin again in the new one."""
    positions = assigned(A)
    position = positions.assigned(A)
    position.seek(10, 3)
    position.phase = FETCH
    feed(position, epoch=4)
    position.advance(11, 4)
    position.leader_epoch, position.high_watermark, position.end_offset, position.log_start_offset = 7, 20, 19, 1
    position.is_ahead_of(2, 100, 1_000)
    position.prefer(2, 900)
    position.retry_at_ms, position.is_idle, position.is_paused, position.phase = 500, True, True, was
    counters = [getattr(position, name) for name in COUNTERS]
    positions.leave_cluster()
    assert positions.assigned(A) is position
    assert state_of(position) == state_of(PartitionPosition(A))
    assert (len(position.chunks), position.is_paused) == (0, True)
    assert [getattr(position, name) for name in COUNTERS] == [each + 1 for each in counters]
    position.seek(5, 0)
    assert position.validated(8, 0) is None
    position.leader_is(0)
    position.leader_is(1)
    assert position.phase is VALIDATE, "the second leader there may lack what the first one had"


def test_backing_off_partitions_wait_for_their_time():
    positions = assigned(A, B, C)
    for partition, retry_at_ms in ((A, 100.0), (B, 200.0)):
        positions.assigned(partition).retry_at_ms = retry_at_ms
    positions.assigned(C).phase = RESET
    assert [each.partition for each in positions.in_phase(Phase.LOOK_UP, 99)] == []
    assert [each.partition for each in positions.in_phase(Phase.LOOK_UP, 100)] == [A]
    assert [each.partition for each in positions.in_phase(RESET, 0)] == [C]
    assert [positions.next_retry_ms(now_ms) for now_ms in (99, 100, 200)] == [100, 200, math.inf]


def test_a_partition_is_fetched_at_once_after_a_pause():
    position = at(3)
    position.is_paused = True
    position.resume()
    assert (position.is_paused, position.is_idle) == (False, False)


def test_a_commit_names_the_epoch_of_the_last_record():
    """The next reader compares its leader's log with it (KIP-320); the present leader may have written nothing yet."""
    positions = Positions()
    positions.assign([A])
    position, offsets = positions.by_partition[A], ConsumerOffsets(positions, 1_000, reads_committed=False)
    assert offsets.consumed() == {}
    position.seek(10, 3)
    position.leader_epoch = 7
    assert offsets.consumed() == {A: CommittedOffset(offset=10, leader_epoch=3)}
    position.advance(12, 5)
    assert offsets.consumed() == {A: CommittedOffset(offset=12, leader_epoch=5)}


@pytest.mark.parametrize("policy", [None, LATEST_TIMESTAMP])
def test_a_truncated_partition_waits_for_the_application(policy):
    """Without a reset policy nothing is read behind the divergence before the application has decided."""
    position, reported = at(10, 3), []
    fetcher: Any = SimpleNamespace(
        _client=SimpleNamespace(logger=EventLogger("test")),
        _reset_timestamp=lambda: policy,
        report=lambda error, of: reported.append((error.diverging_offset, of.offset)),
    )
    Fetcher._truncated(fetcher, position, 6, 2)
    assert (position.offset, position.wants_fetch(1e12, 1 << 20)) == (6, policy is not None)
    assert position.offset_epoch == 2, "the next leader is asked for it"
    assert reported == ([(6, 6)] if policy is None else [])
    position.seek(6)
    assert position.wants_fetch(0, 1 << 20)
