"""Goal: positions, prefetched chunks and counters of a consumer are exact, and partitions take turns.

Method: the pure parts, with chunks of encoded batches.
"""

from __future__ import annotations

import math

import pytest

from moldau.cluster.committed import CommittedOffset
from moldau.consumer.core.chunk import FetchedChunk
from moldau.consumer.core.positions import Lag, Phase, Positions
from moldau.consumer.core.statistics import ConsumerCounters
from moldau.consumer.core.taking import take_records
from moldau.consumer.core.values import TopicPartition
from moldau.consumer.offsets import ConsumerOffsets
from moldau.protocol.errors import KafkaError
from moldau.records import encode_batch

A, B, C = (TopicPartition("t", number) for number in range(3))


def batch(*values: bytes, base_offset: int = 0) -> bytes:
    return encode_batch([(1, None, value, ()) for value in values], base_offset=base_offset)


def fetched(*partitions: TopicPartition, values: tuple[bytes, ...] = (b"x", b"y")) -> Positions:
    positions = Positions()
    positions.assign(partitions)
    for position in positions.by_partition.values():
        position.seek(0, -1)
        chunk = FetchedChunk(memoryview(batch(*values)), 0)
        assert position.add_chunk(position.generation, 0, chunk)
    return positions


def served(positions: Positions, limit: int) -> list[tuple[int, int]]:
    """Returns the partitions that were served, with the number of their records."""
    return [(each.partition, len(each.records)) for each in take_records(positions, limit)]


def test_partitions_take_turns() -> None:
    positions = fetched(A, B, C)
    assert served(positions, 1) == [(0, 1)]
    assert served(positions, 3) == [(1, 2), (2, 1)]
    assert served(positions, 9) == [(0, 1), (2, 1)]


def test_a_paused_partition_gives_nothing_and_keeps_its_records() -> None:
    positions = fetched(A, B)
    positions.assigned(A).is_paused = True
    positions.assigned(B).phase = Phase.RESET
    assert served(positions, 9) == []
    positions.assigned(A).resume()
    assert served(positions, 9) == [(0, 2)]


def test_an_answer_that_a_seek_has_overtaken_is_dropped() -> None:
    position = fetched(A).assigned(A)
    chunk = FetchedChunk(memoryview(batch(b"z", base_offset=2)), 2)
    assert not position.add_chunk(position.generation - 1, 2, chunk)
    assert not position.add_chunk(position.generation, 1, chunk)
    assert len(position.chunks) == 1
    assert position.add_chunk(position.generation, 2, chunk)
    assert not position.is_idle


def test_a_reset_drops_prefetched_records() -> None:
    position = fetched(A).assigned(A)
    generation = position.generation
    position.reset(None)
    assert (len(position.chunks), position.buffered_bytes, position.phase) == (0, 0, Phase.RESET)
    assert position.generation > generation, "an answer under way is not for this position"


def test_a_former_leader_is_not_asked_for_a_while() -> None:
    position = fetched(A).assigned(A)
    position.seek(5, 7)
    assert position.is_ahead_of(6, 100, 1_000)
    assert position.is_ahead_of(6, 1_099, 1_000)
    assert not position.is_ahead_of(6, 1_100, 1_000)
    position.seek(5, 8)
    assert not position.is_ahead_of(8, 0, 1_000)


@pytest.mark.parametrize(("position", "end", "records"), [(0, 0, 0), (2, 5, 3), (6, 5, 0), (-1, 5, -1), (2, -1, -1)])
def test_a_lag_is_known_with_both_ends(position: int, end: int, records: int) -> None:
    assert Lag(position=position, end_offset=end).records == records


def test_counters_begin_at_zero_and_count_by_one() -> None:
    positions = fetched(A, B)
    counters = ConsumerCounters()
    fresh = counters.statistics((), 0, None)
    assert (fresh.fetch_total, fresh.commit_total, fresh.commit_failed_total, fresh.rebalance_total) == (0, 0, 0, 0)
    assert (fresh.records_consumed_total, fresh.bytes_consumed_total, math.isnan(fresh.records_lag_max)) == (0, 0, True)
    counters.fetched(10, 5, 0)
    counters.polled(2)
    counters.committed(1, 0, failed=True)
    positions.assigned(A).end_offset = 0
    found = counters.statistics(positions.by_partition.values(), 1, 0)
    assert (found.fetch_total, found.bytes_consumed_total, found.commit_failed_total) == (1, 10, 1)
    assert found.records_lag_max == 0
    assert {each.partition: row.records_lag for each, row in found.partitions.items()} == {0: 0, 1: -1}


def test_a_damaged_batch_is_refused_unless_checks_are_off() -> None:
    data = bytearray(batch(b"value"))
    data[-2] ^= 1
    positions = Positions()
    positions.assign([A])
    positions.assigned(A).seek(0, -1)
    positions.assigned(A).add_chunk(positions.assigned(A).generation, 0, FetchedChunk(memoryview(data), 0))
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        take_records(positions, 1)


def test_records_of_several_batches_are_taken_one_by_one() -> None:
    data = batch(b"a", b"b") + batch(b"c", b"d", base_offset=2)
    chunk = FetchedChunk(memoryview(data), 0)
    assert [record.value for _ in range(4) for record in chunk.take(1)] == [b"a", b"b", b"c", b"d"]
    assert chunk.take(1) == []


def test_unread_records_of_a_lost_partition_are_not_committed() -> None:
    """They were polled before the partition went to another member, which may have committed more."""
    offsets = ConsumerOffsets(fetched(A, B), 1_000, reads_committed=False)
    assert offsets.to_commit({B: (1, 3), C: (1, 3)}) == {
        A: CommittedOffset(offset=0, leader_epoch=-1),
        B: CommittedOffset(offset=1, leader_epoch=3),
    }
