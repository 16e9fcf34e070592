"""A consumer's positions and prefetched chunks, by partition. Pure.

Theory of operation: a partition begins without a position. The committed offset is looked up (in a group), else the
reset policy asks ListOffsets; then it is fetched. ``offset`` is where the application stands and what is committed: it
moves only when records are handed out. ``fetch_offset`` is where the next fetch starts: it runs ahead by the chunks
that are buffered. Seeking increments ``generation``, so that answers to older fetches are recognised and dropped. When
the leader epoch changes, the position is validated with OffsetForLeaderEpoch before the next fetch (KIP-320), which
detects a log that was truncated below it. A position with a leader epoch, such as a committed offset, waits until the
metadata has reached that epoch: an earlier leader may lack later records, and would call the position out of range.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.cluster.metadata import TopicPartition
    from moldau.consumer.core.chunk import FetchedChunk

EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
NO_EPOCH = -1
CHUNKS_BUFFERED_MIN = 2
"""Answers of one partition that may be buffered at any size: the one being read, and the next."""
CHUNK_BYTES_MIN = 1024
"""The least size that a buffered answer counts for, because it costs memory beside its bytes."""


class Phase(enum.Enum):
    """The next step of a partition."""

    LOOK_UP = "look up the committed offset"
    RESET = "ask ListOffsets"
    VALIDATE = "ask OffsetForLeaderEpoch"
    FETCH = "fetch"


class PartitionPosition:
    """One assigned partition. Invariant: in FETCH and VALIDATE, ``offset`` <= ``fetch_offset``."""

    __slots__ = (
        "awaited_epoch",
        "awaited_since_ms",
        "buffered_bytes",
        "chunks",
        "end_offset",
        "fetch_offset",
        "generation",
        "high_watermark",
        "is_idle",
        "is_paused",
        "leader_epoch",
        "leader_only_until_ms",
        "log_start_offset",
        "offset",
        "offset_epoch",
        "partition",
        "phase",
        "preferred_replica",
        "preferred_until_ms",
        "reset_timestamp",
        "retry_at_ms",
        "times_set",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.phase = Phase.LOOK_UP
        self.offset = -1
        self.offset_epoch = NO_EPOCH  # leader epoch of the last record handed out
        self.fetch_offset = -1
        self.leader_epoch = NO_EPOCH  # of the leader for which the position was validated
        self.awaited_epoch = NO_EPOCH  # a leader of it was seen, so earlier leaders have lost their leadership
        self.awaited_since_ms = math.inf  # since when asking was put off for it
        self.reset_timestamp: int | None = None
        self.generation = 0  # grows whenever answers that are on their way stop counting
        self.times_set = 0  # how often the position was set, other than by records that were taken
        self.is_paused = False
        self.is_idle = False  # the last answer brought nothing, and nothing has happened to the partition since
        self.chunks: deque[FetchedChunk] = deque()
        self.buffered_bytes = 0
        self.high_watermark = -1
        self.end_offset = -1  # of what the isolation level shows: the high watermark, or the last stable offset
        self.log_start_offset = -1
        self.retry_at_ms = -math.inf
        self.preferred_replica = -1
        self.preferred_until_ms = -math.inf
        self.leader_only_until_ms = -math.inf  # no fetch names the rack so long: a follower could not serve it

    @property
    def has_position(self) -> bool:
        """Whether the offset to fetch is known."""
        return self.phase in (Phase.FETCH, Phase.VALIDATE)

    def prefer(self, replica: int, until_ms: float) -> None:
        """Reads from a follower, as the leader advises (KIP-392)."""
        self.preferred_replica, self.preferred_until_ms = replica, until_ms
        self.is_idle = False

    def avoid_followers(self, until_ms: float) -> None:
        """Reads from the leader until then, because the preferred follower could not serve the position."""
        self.preferred_replica = -1
        self.leader_only_until_ms = max(self.leader_only_until_ms, until_ms)

    def seek(self, offset: int, epoch: int = NO_EPOCH) -> None:
        """Sets the position to ``offset`` and drops prefetched chunks."""
        self._forget()
        self.offset = self.fetch_offset = offset
        self.offset_epoch = epoch
        if epoch > self.awaited_epoch:
            self.awaited_epoch, self.awaited_since_ms = epoch, math.inf
        self.phase = Phase.FETCH if epoch == NO_EPOCH else Phase.VALIDATE

    def begins_in(self, epoch: int, leader_epoch: int) -> None:
        """Notes the leader epoch of the offset that ListOffsets has named, and that of the leader that was asked.

        A later leader is asked whether it has the log up to there, as it is after records of that epoch.
        """
        self.offset_epoch, self.leader_epoch = epoch, leader_epoch

    def reset(self, timestamp: int | None) -> None:
        """Asks ListOffsets where to go: EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, a time, or None for the reset policy."""
        self._forget()
        self.reset_timestamp = timestamp
        self.phase = Phase.RESET

    def start_over(self) -> None:
        """Looks up the committed offset, as after the assignment."""
        self._forget()
        self.offset = self.fetch_offset = self.high_watermark = self.end_offset = self.log_start_offset = -1
        self.offset_epoch = self.leader_epoch = self.awaited_epoch = NO_EPOCH
        self.awaited_since_ms = math.inf
        self.phase = Phase.LOOK_UP

    def _forget(self) -> None:
        self._clear()
        self.times_set += 1
        self.retry_at_ms = -math.inf
        self.preferred_replica = -1

    def _clear(self) -> None:
        self.generation += 1
        self.chunks.clear()
        self.buffered_bytes = 0
        self.is_idle = False

    def drop_chunks(self) -> None:
        """Drops prefetched chunks, and fetches again from the application's position."""
        if self.chunks:
            self._clear()
            self.fetch_offset = self.offset

    def leader_is(self, epoch: int) -> None:
        """Takes the leader epoch from metadata: one that moved makes the position be validated.

        Metadata refuse a lower epoch of the same topic. So it is that of a topic that was created again under the name,
        of which the offset goes on and its epoch says nothing.
        """
        if NO_EPOCH < epoch < self.leader_epoch and self.phase is Phase.FETCH:
            self.leader_epoch, self.offset_epoch = epoch, NO_EPOCH
            return
        if epoch <= self.leader_epoch or self.phase is not Phase.FETCH:
            if self.leader_epoch == NO_EPOCH:
                self.leader_epoch = epoch
            return
        is_first = self.leader_epoch == NO_EPOCH
        self.leader_epoch = epoch
        self.is_idle = False
        if not is_first and self.last_fetched_epoch != NO_EPOCH:
            self.phase = Phase.VALIDATE

    def is_ahead_of(self, epoch: int, now_ms: float, patience_ms: float) -> bool:
        """Returns whether the position comes from a later leader than that of ``epoch``, which must not be asked then.

        For ``patience_ms`` from the first time that this is found: an offset of a topic that was deleted, and of which
        another one took the name, would be waited for without end.
        """
        if epoch == NO_EPOCH or epoch >= self.awaited_epoch or now_ms - self.awaited_since_ms >= patience_ms:
            self.awaited_epoch, self.awaited_since_ms = NO_EPOCH, math.inf
            return False
        self.awaited_since_ms = min(self.awaited_since_ms, now_ms)
        return True

    @property
    def may_ask_any_leader(self) -> bool:
        """Whether the leader of the metadata is to be asked, whatever its epoch, and no follower."""
        return self.preferred_replica < 0 and self.awaited_epoch == NO_EPOCH

    @property
    def last_fetched_epoch(self) -> int:
        """Leader epoch of the last record before ``fetch_offset``, -1 where it is not known."""
        return self.chunks[-1].last_epoch if self.chunks else self.offset_epoch

    def validated(self, end_offset: int, epoch: int) -> int | None:
        """Takes the answer of OffsetForLeaderEpoch.

        Returns the offset where the log diverged, or None if it did not.
        """
        if self.phase is not Phase.VALIDATE:
            return None
        if end_offset < 0 or epoch < 0 or end_offset >= self.fetch_offset:
            self.phase = Phase.FETCH
            self.is_idle = False
            return None
        return end_offset

    def resume(self) -> None:
        """Ends a pause; the partition may have got records meanwhile."""
        self.is_paused = False
        self.is_idle = False

    def has_room(self, partition_bytes: int) -> bool:
        """Returns whether the buffer takes another answer of ``partition_bytes``."""
        return len(self.chunks) < CHUNKS_BUFFERED_MIN or self.buffered_bytes <= partition_bytes

    def _is_fetched(self, now_ms: float) -> bool:
        return self.phase is Phase.FETCH and not self.is_paused and now_ms >= self.retry_at_ms

    def wants_fetch(self, now_ms: float, partition_bytes: int) -> bool:
        """Returns whether the partition should be part of the next fetch."""
        return self._is_fetched(now_ms) and (not self.chunks or self.has_room(partition_bytes))

    def is_full(self, now_ms: float, partition_bytes: int) -> bool:
        """Returns whether the partition would be fetched if its buffer had room."""
        return bool(self.chunks) and self._is_fetched(now_ms) and not self.has_room(partition_bytes)

    def add_chunk(self, generation: int, requested_offset: int, chunk: FetchedChunk) -> bool:
        """Buffers an answer; returns False for one that a seek has overtaken."""
        if generation != self.generation or requested_offset != self.fetch_offset or self.phase is not Phase.FETCH:
            return False
        if chunk.end_offset > self.fetch_offset:
            self.chunks.append(chunk)
            self.buffered_bytes += max(chunk.size_bytes, CHUNK_BYTES_MIN)
            self.fetch_offset = chunk.end_offset
            self.is_idle = False
        return True

    def chunk_ended(self) -> None:
        """Drops the first chunk, whose records were all returned."""
        self.buffered_bytes -= max(self.chunks.popleft().size_bytes, CHUNK_BYTES_MIN)

    def advance(self, offset: int, epoch: int) -> None:
        """Notes that records up to ``offset`` (exclusive) were returned."""
        assert self.offset <= offset, "a position only seeks backwards"
        self.offset = offset
        if epoch != NO_EPOCH:
            self.offset_epoch = epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """The position of a consumer and the end of its partition; -1 where one is not known yet.

    As in Kafka, the end is the last stable offset for ``isolation.level=read_committed``, else the high watermark.
    """

    position: int
    end_offset: int

    @property
    def records(self) -> int:
        """Records between the position and the end, -1 if one of them is unknown."""
        return -1 if self.end_offset < 0 or self.position < 0 else max(self.end_offset - self.position, 0)


class Unseen(NamedTuple):
    """A record that a poll has taken from a position, which has been set if ``times_set`` differs from its own."""

    position: PartitionPosition
    times_set: int
    offset: int
    leader_epoch: int


class Positions:
    """The assigned partitions, in the order of their assignment."""

    __slots__ = ("by_partition", "chunks_ended", "clusters_left", "not_handed_over")

    def __init__(self) -> None:
        self.by_partition: dict[TopicPartition, PartitionPosition] = {}
        self.chunks_ended = 0
        """How many chunks were handed out to their end: each made room in a buffer."""
        self.clusters_left = 0
        """How often the consumer has gone to another cluster."""
        self.not_handed_over: dict[TopicPartition, Unseen] = {}
        """The first record of each partition that a poll has taken and not handed over yet; no commit passes it."""

    def to_commit(self, position: PartitionPosition) -> tuple[int, int]:
        """Returns the offset of the first record that the application has not got, and its leader epoch."""
        unseen = self.unseen(position.partition)
        if unseen is not None:
            return unseen.offset, unseen.leader_epoch
        return position.offset, position.offset_epoch

    def unseen(self, partition: TopicPartition) -> Unseen | None:
        """Returns the first record that a poll has taken and not handed over, unless the position was set since."""
        found = self.not_handed_over.get(partition)
        if found is None or self.by_partition.get(partition) is not found.position:
            return None
        return found if found.times_set == found.position.times_set else None

    def assigned(self, partition: TopicPartition) -> PartitionPosition:
        """Returns the position of an assigned partition.

        Raises:
            LookupError: the partition is not assigned.
        """
        found = self.by_partition.get(partition)
        if found is None:
            raise LookupError(f"{partition} is not assigned to this consumer")
        return found

    def check_cluster(self, cluster: int | None) -> None:
        """Checks that offsets of a cluster, given as ``clusters_left``, mean the same now; None stands for any.

        Raises:
            LookupError: the consumer has left that cluster.
        """
        if cluster is not None and cluster != self.clusters_left:
            raise LookupError("the consumer has gone to another cluster, where the offset means another record")

    def chunk_ended(self, position: PartitionPosition) -> None:
        """Drops the first chunk of a partition, whose records were all returned, and counts it."""
        position.chunk_ended()
        self.chunks_ended += 1

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Takes over a new assignment; partitions that stay keep everything."""
        wanted = dict.fromkeys(partitions)
        before = self.by_partition
        self.by_partition = {
            partition: before[partition] if partition in before else PartitionPosition(partition)
            for partition in wanted
        }
        for partition, position in before.items():
            if partition not in wanted:
                position.generation += 1

    def leave_cluster(self) -> None:
        """Starts all partitions over, because offsets of another cluster mean other records."""
        self.clusters_left += 1
        for position in self.by_partition.values():
            position.start_over()

    def in_phase(self, phase: Phase, now_ms: float) -> list[PartitionPosition]:
        """Returns the partitions in a phase that are not backing off."""
        return [each for each in self.by_partition.values() if each.phase is phase and now_ms >= each.retry_at_ms]

    def next_retry_ms(self, now_ms: float) -> float:
        """Returns when the next back-off ends; infinity where there is none."""
        return min(
            (each.retry_at_ms for each in self.by_partition.values() if each.retry_at_ms > now_ms), default=math.inf
        )

    def rotate(self, partition: TopicPartition) -> None:
        """Puts a partition last, so that all get their turn."""
        self.by_partition[partition] = self.by_partition.pop(partition)
