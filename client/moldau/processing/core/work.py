"""The records that a processor has taken: which may run now, which partitions wait, and what may be committed. Pure.

Theory of operation: records enter in the order of their offsets and wait in lanes; one record of a lane runs at a time.
A lane is a partition (``order="partition"``), a key of a partition (``"key"``) or a single record (``"none"``). That
holds through rebalances: records that come again wait for what still runs in their lane. At most ``concurrency``
records run. A partition with ``pending_max`` unfinished records is to be paused until half of them are
finished. The offset to commit for a partition is that behind the last record before which all are finished, so a crash
repeats records and loses none.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from moldau.cluster import arguments
from moldau.cluster.metadata import TopicPartition
from moldau.processing.core.retry_topics import failure_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.consumer.core.values import ConsumedBatch, ConsumedRecord

Order = Literal["partition", "key", "none"]
ORDERS: Final = ("partition", "key", "none")


@dataclass(slots=True)
class _Partition:
    """Invariant: ``pending`` holds the unfinished offsets and finished ones behind them, in order."""

    pending: deque[int] = field(default_factory=deque)
    finished: set[int] = field(default_factory=set)
    next_offset: int = -1  # behind all records taken
    committed: int = -1
    is_paused: bool = False

    @property
    def unfinished(self) -> int:
        return len(self.pending) - len(self.finished)

    def committable(self) -> int:
        return self.pending[0] if self.pending else self.next_offset


@dataclass(slots=True)
class _Lane:
    records: deque[ConsumedRecord[Any, Any]] = field(default_factory=deque)
    is_busy: bool = False
    is_stale: bool = False  # the record that runs was dropped: its end counts for nothing


class Work:
    """The unfinished records of one processor."""

    def __init__(self, *, concurrency: int, order: str, pending_max: int) -> None:
        """``pending_max`` bounds the unfinished records of a partition, up to one poll's records above it.

        Raises:
            ValueError: a number is below 1, or the order is unknown.
        """
        self.concurrency = arguments.at_least("process", "concurrency", concurrency, 1)
        self._pending_max = arguments.at_least("process", "pending_max", pending_max, 1)
        if order not in ORDERS:
            raise ValueError(f"process: order must be one of {', '.join(ORDERS)}, not {order!r}")
        self._order = order
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._lanes: dict[tuple[TopicPartition, object], _Lane] = {}
        self._ready: deque[tuple[TopicPartition, object]] = deque()  # keys of lanes that are not busy and have records
        self._dropped_paused: dict[TopicPartition, None] = {}  # nothing else would end their pauses
        self.cluster = 0
        """The consumer's ``clusters_left`` when it read these records."""
        self.running = 0
        self.finished = 0

    # --- records

    def take(self, batches: Iterable[ConsumedBatch[Any, Any]]) -> None:
        """Adds the records of a poll.

        A partition that was lost and came back within one poll is read again from what was committed: its earlier
        records are dropped, as ``retain`` drops those of a partition that stays away.
        """
        for batch in batches:
            self.follow(batch.cluster)
            if batch.cluster != self.cluster:
                continue  # the consumer has left the cluster since
            held = self._partitions.setdefault(batch.topic_partition, _Partition())
            if batch.records and batch.records[0].offset < held.next_offset:
                self._drop([batch.topic_partition])
                held = self._partitions[batch.topic_partition] = _Partition()
            for record in batch.with_partition():
                held.pending.append(record.offset)
                self._enqueue(record)
            held.next_offset = batch.next_offset

    def skip(self, partition: TopicPartition, offset: int) -> None:
        """Counts a record that no handler received as finished."""
        held = self._partitions.setdefault(partition, _Partition())
        held.next_offset = max(held.next_offset, offset + 1)

    def _enqueue(self, record: ConsumedRecord[Any, Any]) -> None:
        key = self._lane_of(record)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        lane.records.append(record)
        if len(lane.records) == 1 and not lane.is_busy:
            self._ready.append(key)

    def _lane_of(self, record: ConsumedRecord[Any, Any]) -> tuple[TopicPartition, object]:
        """Returns the partition, and what distinguishes the lanes of a partition."""
        within: object = None
        if self._order == "none":
            within = record.offset
        elif self._order == "key":
            within = _hashable(record.key)
        return record.topic_partition, within

    def start(self, now_ms: int) -> ConsumedRecord[Any, Any] | None:
        """Returns a record to process now, None if none may run.

        ``now_ms`` is in milliseconds since the Unix epoch: records of retry topics wait until they are due.
        """
        if self.running >= self.concurrency:
            return None
        for _ in range(len(self._ready)):
            key = self._ready.popleft()
            lane = self._lanes[key]
            if self._due_ms(lane.records[0]) > now_ms:
                self._ready.append(key)
                continue
            lane.is_busy = True
            self.running += 1
            return lane.records[0]
        return None

    def _due_ms(self, record: ConsumedRecord[Any, Any]) -> int:
        failure = failure_of(record.headers)
        return -1 if failure is None or failure.due_ms is None else failure.due_ms

    def finish(self, record: ConsumedRecord[Any, Any]) -> None:
        """Notes that the record, which ``start`` returned, is processed."""
        self.running -= 1
        is_current = self._end(record)
        self.finished += 1
        held = self._partitions.get(record.topic_partition)
        if held is None or not is_current:
            return
        held.finished.add(record.offset)
        while held.pending and held.pending[0] in held.finished:
            held.finished.discard(held.pending.popleft())

    def fail(self, record: ConsumedRecord[Any, Any]) -> None:
        """Notes that the record will not be processed: nothing behind it is committed, and nothing of its lane runs.

        The processor ends, but handlers that end at the same time start the next records.
        """
        self.running -= 1

    def _end(self, record: ConsumedRecord[Any, Any]) -> bool:
        """Frees the record's lane; returns False if its partition was lost meanwhile, and perhaps came back."""
        key = self._lane_of(record)
        lane = self._lanes.get(key)
        if lane is None or not lane.records or lane.records[0] is not record:
            return False
        is_current = not lane.is_stale
        lane.records.popleft()
        lane.is_busy = lane.is_stale = False
        if lane.records:
            self._ready.append(key)
        else:
            del self._lanes[key]
        return is_current

    # --- partitions

    def retain(self, assignment: Iterable[TopicPartition]) -> None:
        """Drops the waiting records of partitions that are no longer assigned; running ones end without effect."""
        kept = dict.fromkeys(assignment)
        lost = [partition for partition in self._partitions if partition not in kept]
        if lost:
            self._drop(lost)

    def follow(self, cluster: int) -> None:
        """Drops all records if the consumer has gone to another cluster, where their offsets mean others.

        ``cluster`` is the consumer's ``clusters_left``.
        """
        if cluster > self.cluster:
            self.cluster = cluster
            self.retain(())

    def _drop(self, lost: Iterable[TopicPartition]) -> None:
        gone = set(lost)
        for partition in gone:
            if self._partitions.pop(partition).is_paused:
                self._dropped_paused[partition] = None
        for key in [key for key in self._lanes if key[0] in gone]:
            lane = self._lanes[key]
            if lane.is_busy:
                lane.records = deque([lane.records[0]])
                lane.is_stale = True
            else:
                del self._lanes[key]
        self._ready = deque(key for key in self._ready if key in self._lanes)

    def to_pause(self) -> list[TopicPartition]:
        """Returns the partitions that now have too many unfinished records."""
        found = [
            partition
            for partition, held in self._partitions.items()
            if not held.is_paused and held.unfinished >= self._pending_max
        ]
        for partition in found:
            self._partitions[partition].is_paused = True
        return found

    def to_resume(self) -> list[TopicPartition]:
        """Returns the paused partitions of which half of the records is finished or all were dropped."""
        found = [
            partition
            for partition, held in self._partitions.items()
            if held.is_paused and held.unfinished <= self._pending_max // 2
        ]
        dropped, self._dropped_paused = self._dropped_paused, {}
        for partition in found:
            self._partitions[partition].is_paused = False
        held = self._partitions
        found += [partition for partition in dropped if partition not in held or not held[partition].is_paused]
        return list(dict.fromkeys(found))

    def to_return(self) -> dict[TopicPartition, int]:
        """Returns the first unfinished offset of each partition whose records are not all finished."""
        return {partition: held.pending[0] for partition, held in self._partitions.items() if held.pending}

    def paused(self) -> list[TopicPartition]:
        """Returns the partitions that ``to_pause`` has named and ``to_resume`` has not."""
        held = [partition for partition, held in self._partitions.items() if held.is_paused]
        return list(dict.fromkeys([*held, *self._dropped_paused]))

    def to_commit(self) -> dict[tuple[str, int], int]:
        """Returns the offsets that may be committed and are not yet."""
        return {
            partition: held.committable()
            for partition, held in self._partitions.items()
            if held.committable() > held.committed
        }

    def committed(self, offsets: dict[tuple[str, int], int]) -> None:
        """Notes a commit."""
        for partition, offset in offsets.items():
            held = self._partitions.get(TopicPartition(*partition))
            if held is not None:
                held.committed = max(held.committed, offset)


def _hashable(key: object) -> object:
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key
