"""The choice of a partition for each record. Pure: the caller draws the random numbers.

Records with a key go to ``murmur2(key) mod partitions``, as in every Kafka client, so that equal keys meet. Records
without one stick to a partition for about one batch, which makes few large batches: ``UniformSticky`` switches after
``batch.size`` bytes (KIP-794), with weights against queues that grow where adaptation is on; ``Sticky`` switches when
a batch is full (KIP-480); ``RoundRobin`` takes the next one for every record. A custom partitioner is any callable of
``PartitionerFunction``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from moldau.records.codec import murmur2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from moldau.values import Buffer


class PartitionerFunction(Protocol):
    """A custom partitioner."""

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        """Returns a partition from 0 to ``partition_count`` - 1."""
        ...


def partition_for_key(key: Buffer, partition_count: int) -> int:
    """Returns the partition of a key as the Java client does: positive murmur2 modulo the number of partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class KeylessPartitioner(Protocol):
    """Chooses partitions of one topic for records without a key."""

    def choose(self, available: Sequence[int], partition_count: int, draw: Callable[[], int]) -> int:
        """Returns the partition of the next record; ``available`` are those with a leader, ascending.

        ``draw`` returns a non-negative random number; it is called only where a choice is made.
        """
        ...

    def bytes_to_stay(self) -> float:
        """Returns after how many bytes without a new or full batch ``appended`` is to be called; 0: each record."""
        ...

    def appended(self, size_bytes: int, *, began_batch: bool, is_full: bool) -> None:
        """Records the bytes of the records since ``choose``, and whether the last one began or filled a batch."""
        ...

    def set_load(self, queue_sizes: Mapping[int, int]) -> None:
        """Records the number of queued batches of each available partition."""
        ...


class RoundRobin:
    """Takes the next available partition for every record."""

    __slots__ = ("_counter",)

    def __init__(self) -> None:
        self._counter = -1

    def choose(self, available: Sequence[int], partition_count: int, draw: Callable[[], int]) -> int:
        """Returns the next available partition; the first one is drawn."""
        if self._counter < 0:
            self._counter = draw() & 0x7FFFFFFF
        self._counter += 1
        return available[self._counter % len(available)] if available else self._counter % partition_count

    def choose_many(
        self, available: Sequence[int], partition_count: int, draw: Callable[[], int], record_count: int
    ) -> list[tuple[int, int]]:
        """Chooses for ``record_count`` records at once; returns (partition, number of its first record).

        The records of a partition lie as far apart as there are partitions to choose from.
        """
        stride = len(available) or partition_count
        firsts = [(self.choose(available, partition_count, draw), first) for first in range(min(stride, record_count))]
        self._counter += max(record_count - stride, 0)
        return firsts

    def bytes_to_stay(self) -> float:
        """Returns 0."""
        return 0

    def appended(self, size_bytes: int, *, began_batch: bool, is_full: bool) -> None:
        """Has no effect."""

    def set_load(self, queue_sizes: Mapping[int, int]) -> None:
        """Has no effect."""


class Sticky:
    """Keeps one partition until its batch is full, then draws another one (KIP-480)."""

    __slots__ = ("_appended", "_current", "_previous")

    def __init__(self) -> None:
        self._current = -1
        self._previous = -1
        self._appended = 0

    def choose(self, available: Sequence[int], partition_count: int, draw: Callable[[], int]) -> int:
        """Returns the present partition, or draws another available one."""
        if 0 <= self._current < partition_count and (not available or self._current in available):
            return self._current
        others = [partition for partition in available if partition != self._previous] or list(available)
        self._current = others[draw() % len(others)] if others else draw() % partition_count
        self._appended = 0
        return self._current

    def bytes_to_stay(self) -> float:
        """Returns infinity after the first record: only a new or a full batch ends the stay."""
        return math.inf if self._appended else 0

    def appended(self, size_bytes: int, *, began_batch: bool, is_full: bool) -> None:
        """Leaves the partition when its batch is full."""
        self._appended += 1
        if is_full or (began_batch and self._appended > 1):
            self._previous = self._current
            self._current = -1

    def set_load(self, queue_sizes: Mapping[int, int]) -> None:
        """Has no effect."""


class UniformSticky:
    """Keeps one partition for ``sticky_bytes``, then draws another one, by load if it is known (KIP-794).

    Partitions with q batches waiting, of at most m in any queue, are drawn with weight m + 1 - q: queues of 0, 3, 1
    have the weights 4, 1, 3.
    """

    __slots__ = ("_cumulative", "_current", "_partitions", "_sent_bytes", "_sticky_bytes")

    def __init__(self, sticky_bytes: int) -> None:
        self._sticky_bytes = max(sticky_bytes, 1)
        self._current = -1
        self._sent_bytes = 0
        self._partitions: list[int] = []
        self._cumulative: list[int] = []

    @property
    def cumulative_weights(self) -> list[int]:
        """Running sums of the weights, empty where all partitions count alike."""
        return self._cumulative

    def choose(self, available: Sequence[int], partition_count: int, draw: Callable[[], int]) -> int:
        """Returns the present partition, or draws another one by load."""
        if self._current >= partition_count or (available and self._current not in available):
            self._current = -1
        if self._current < 0:
            self._current = self._draw(available, partition_count, draw())
        return self._current

    def _draw(self, available: Sequence[int], partition_count: int, drawn: int) -> int:
        if self._cumulative and all(partition in available for partition in self._partitions):
            return self._partitions[bisect_right(self._cumulative, drawn % self._cumulative[-1])]
        return available[drawn % len(available)] if available else drawn % partition_count

    def bytes_to_stay(self) -> float:
        """Returns the rest of twice the bytes."""
        return max(2 * self._sticky_bytes - self._sent_bytes, 0)

    def appended(self, size_bytes: int, *, began_batch: bool, is_full: bool) -> None:
        # Leaving a partition at the very byte would cut its batch short: it is left when its batch is full, but at the
        # latest after twice the bytes.
        """Leaves the partition after ``sticky_bytes``, when its batch is full or twice the bytes are sent."""
        self._sent_bytes += size_bytes
        if self._sent_bytes >= self._sticky_bytes and (is_full or self._sent_bytes >= 2 * self._sticky_bytes):
            self._sent_bytes = 0
            self._current = -1

    def set_load(self, queue_sizes: Mapping[int, int]) -> None:
        """Takes the number of waiting batches of each partition."""
        sizes = list(queue_sizes.values())
        if len(sizes) < 2 or min(sizes) == max(sizes):
            self._partitions = []
            self._cumulative = []
            return
        most = max(sizes) + 1
        self._partitions = list(queue_sizes)
        self._cumulative = list(accumulate(most - size for size in sizes))


def make_keyless(name: str | None, batch_size: int) -> KeylessPartitioner:
    """Returns a partitioner for records without a key by its name in ``partitioner.class``."""
    if name is None or name == "default":
        return UniformSticky(batch_size)
    if name == "sticky":
        return Sticky()
    return RoundRobin()
