"""Partitioners: parity with the Java client, stickiness, and the weights of KIP-794."""

import random
from collections import Counter
from uuid import UUID

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2

from moldau import TopicPartition
from moldau.cluster.metadata import TopicInfo
from moldau.producer.core.partition_queue import PartitionQueue
from moldau.producer.core.partitioner import RoundRobin, Sticky, UniformSticky, make_keyless, partition_for_key
from moldau.producer.topics import TopicState
from moldau.records.codec import murmur2

JAVA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_murmur2_gives_javas_numbers():
    for key, signed in JAVA_VECTORS.items():
        assert murmur2(key) == signed & 0xFFFFFFFF


def test_a_thousand_keys_go_where_other_clients_send_them():
    drawn = random.Random(7)
    for _ in range(1000):
        key = drawn.randbytes(drawn.randrange(40))
        assert partition_for_key(key, 13) == (aiokafka_murmur2(key) & 0x7FFFFFFF) % 13


def test_round_robin_takes_turns_among_the_available():
    partitioner = RoundRobin()
    chosen = [partitioner.choose([0, 2, 5], 6, lambda: 0) for _ in range(6)]
    assert chosen == [2, 5, 0, 2, 5, 0]
    assert [RoundRobin().choose([], 3, lambda: 1) for _ in range(2)] == [2, 2]


def test_sticky_changes_when_a_batch_is_full_and_not_to_the_same():
    partitioner = Sticky()
    draws = iter([1, 0, 0])
    first = partitioner.choose([0, 1, 2], 3, lambda: next(draws))
    assert first == 1
    partitioner.appended(10, began_batch=True, is_full=False)
    assert partitioner.choose([0, 1, 2], 3, lambda: next(draws)) == 1, "the first record of a batch keeps the partition"
    partitioner.appended(10, began_batch=False, is_full=True)
    assert partitioner.choose([0, 1, 2], 3, lambda: next(draws)) == 0
    assert partitioner.choose([2], 3, lambda: next(draws)) == 2, "a partition without a leader is left"


def test_uniform_sticky_changes_after_its_bytes():
    partitioner = UniformSticky(100)
    draws = iter(range(100))
    seen = []
    for _ in range(12):
        seen.append(partitioner.choose([0, 1, 2], 3, lambda: next(draws)))
        partitioner.appended(50, began_batch=False, is_full=False)
    assert seen == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2], "twice the bytes at the latest"
    seen = []
    for _ in range(4):
        seen.append(partitioner.choose([0, 1, 2], 3, lambda: next(draws)))
        partitioner.appended(50, began_batch=False, is_full=True)
    assert seen == [0, 0, 1, 1], "at the bytes where the batch is full"


def test_weights_of_queues_0_3_1_are_4_1_3():
    """KIP-794's own example, and a chi-square over many draws (9.21 is the 1% point for two degrees of freedom)."""
    partitioner = UniformSticky(1)
    partitioner.set_load({0: 0, 1: 3, 2: 1})
    assert partitioner.cumulative_weights == [4, 5, 8]
    drawn = random.Random(42)
    counts: Counter[int] = Counter()
    for _ in range(8000):
        counts[partitioner.choose([0, 1, 2], 3, lambda: drawn.getrandbits(31))] += 1
        partitioner.appended(2, began_batch=True, is_full=True)
    chi_square = sum((counts[p] - 1000 * weight) ** 2 / (1000 * weight) for p, weight in ((0, 4), (1, 1), (2, 3)))
    assert chi_square < 9.21, counts


def test_equal_queues_and_lost_partitions_need_no_weights():
    partitioner = UniformSticky(1)
    partitioner.set_load({0: 2, 1: 2})
    assert partitioner.cumulative_weights == []
    partitioner.set_load({0: 0, 1: 9})
    assert partitioner.choose([1], 2, lambda: 0) == 1, "partition 0 lost its leader since the weights were made"


@pytest.mark.parametrize(
    ("name", "kind"),
    [(None, UniformSticky), ("default", UniformSticky), ("sticky", Sticky), ("round-robin", RoundRobin)],
)
def test_names(name, kind):
    assert type(make_keyless(name, 100)) is kind


class Flow:
    """The batches of one partition, of at most ``batch_bytes``."""

    def __init__(self, batch_bytes):
        self.batch_bytes = batch_bytes
        self.used = 0

    def take(self, size):
        """Returns whether the record begins a batch, and whether it fills one that has begun before."""
        begins = self.used == 0 or self.used + size > self.batch_bytes
        self.used = size if begins else self.used + size
        return begins, not begins and self.used == self.batch_bytes


@pytest.mark.parametrize("name", ["default", "sticky", "round-robin"])
def test_reports_per_batch_choose_as_reports_per_record(name):
    """The same records once with two calls of the partitioner for each, and once through ``TopicState``."""
    drawn = random.Random(7)
    sizes = [drawn.choice([1, 10, 30, 60, 95, 100, 150]) for _ in range(5000)]
    queues = [PartitionQueue(TopicPartition("t", number)) for number in range(4)]
    available = (0, 2, 3)
    expected, found = [], []
    draws = random.Random(1)
    by_record, flows = make_keyless(name, 100), [Flow(100) for _ in queues]
    for size in sizes:
        partition = by_record.choose(available, 4, lambda: draws.getrandbits(31))
        expected.append(partition)
        begins, fills = flows[partition].take(size)
        by_record.appended(size, began_batch=begins, is_full=fills)
    draws = random.Random(1)
    flows = [Flow(100) for _ in queues]
    info = TopicInfo(name="t", topic_id=UUID(int=1))
    state = TopicState(info, queues, make_keyless(name, 100))
    state.available = available
    choices = reports = 0
    for size in sizes:
        choices += state.kept is None
        queue = state.kept or state.choose(lambda: draws.getrandbits(31))
        found.append(queue.partition.partition)
        begins, fills = flows[found[-1]].take(size)
        state.kept_bytes += size
        if begins or fills or state.kept_bytes >= state.kept_bytes_max:
            reports += 1
            state.report(began_batch=begins, is_full=fills)
    assert found == expected
    assert reports - choices in (0, -1)
    if name == "round-robin":
        assert choices == len(sizes)
    else:
        assert choices < 0.9 * len(sizes), "batches of two records leave little to save"


def test_partitioner_is_called_per_batch():
    """A producer's records of 10 bytes, a hundred in each batch."""
    keyless, queue = UniformSticky(1000), PartitionQueue(TopicPartition("t", 0))
    calls = Counter()

    class Counted:
        def __getattr__(self, name):
            calls[name] += 1
            return getattr(keyless, name)

    state = TopicState(TopicInfo(name="t", topic_id=UUID(int=1)), [queue], Counted())
    for number in range(1000):
        assert (state.kept or state.choose(lambda: 0)) is queue
        state.kept_bytes += 10
        if number % 100 == 0 or state.kept_bytes >= state.kept_bytes_max:
            state.report(began_batch=number % 100 == 0, is_full=False)
    assert calls["choose"] <= 20
    assert calls["appended"] <= 20


def test_a_partition_that_a_topic_has_no_more_is_left():
    """A topic that was deleted and made again may have fewer partitions, before any leader is known."""
    partitioner = UniformSticky(100)
    assert partitioner.choose([], 4, lambda: 3) == 3
    assert partitioner.choose([], 2, lambda: 3) == 1
