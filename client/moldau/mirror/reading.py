"""Reads the partitions of a source that are mirrored: where to begin, and what to do when a position is gone.

The copying task calls ``poll``. The task that follows the topics says with ``want`` what is to be read. Each answer of
a fetch carries the id of the topic that it read, so records of a topic that was deleted and created again under the
same name are recognised, whatever their offsets are: such a partition is read from its start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import trio

from moldau.cluster.metadata import TopicPartition
from moldau.consumer.core.values import PartitionError
from moldau.consumer.fetcher import LogTruncatedError, OffsetOutOfRangeError
from moldau.mirror.core.formats import Position
from moldau.mirror.core.progress import Progress, stored_start
from moldau.protocol.errors import KafkaError
from moldau.runtime.tasks.supervision import BackoffPolicy
from moldau.values import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from moldau.consumer import Consumer
    from moldau.consumer.core.values import EncodedBatches
    from moldau.mirror.core.topics import SourceTopic
    from moldau.mirror.statistics import SourceStatistics
    from moldau.mirror.syncs import SyncWriter
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.telemetry.log import EventLogger

_IDLE_MS = 100.0
FIRST_RETRY_MS = 500.0
FIRST_STORE_MS = 1_000.0
"""Positions are stored for the first time so soon: a crash before that begins again at the end of the partitions."""


class Part(NamedTuple):
    """Batches of one partition, and its generation (``Progress.generation``) when they were read."""

    generation: int | None
    batches: EncodedBatches

    @property
    def partition(self) -> TopicPartition:
        """The partition in the source."""
        return self.batches.topic_partition


@dataclass(slots=True)
class SourceMemory:
    """The knowledge of a source that outlives its reader: another one begins when that has failed."""

    first: dict[TopicPartition, UUID] | None = None
    """The partitions that the source had at the first look, with their topic ids; None before that."""
    positions: dict[TopicPartition, Position] = field(default_factory=dict)
    """The last positions that the target has acknowledged; it need not have stored them."""


class SourceReader:
    """The consumer of a source, and the progress of its partitions."""

    def __init__(
        self,
        environment: Environment,
        consumer: Consumer,
        stored: Mapping[TopicPartition, Position],
        *,
        starts_at_end: bool,
        memory: SourceMemory,
        retry_max_ms: float,
        statistics: SourceStatistics,
        syncs: SyncWriter,
        logger: EventLogger,
    ) -> None:
        """``stored`` holds the positions of the target; ``starts_at_end`` is for partitions of the first look."""
        self.progress = Progress()
        self._environment = environment
        self._consumer = consumer
        self._stored = dict(stored)
        self._starts_at_end = starts_at_end
        self._statistics = statistics
        self._syncs = syncs
        self._logger = logger
        self._wanted: dict[TopicPartition, UUID] | None = None
        self._memory = memory
        self._ids: dict[TopicPartition, UUID] = {}
        self._former_ids: dict[TopicPartition, UUID] = {}
        self._retry_at_ms: dict[TopicPartition, float] = {}
        self._failures: dict[TopicPartition, int] = {}
        self._held: dict[TopicPartition, None] = {}
        self._starting: dict[TopicPartition, bool] = {}  # whose first offset is not known yet: whether it is the end
        self._retry = BackoffPolicy(initial_ms=FIRST_RETRY_MS, max_ms=retry_max_ms)

    def remember(self) -> None:
        """Keeps the positions for the next reader, because this one has ended."""
        for partition, found in self.progress.by_partition.items():
            if partition not in self._starting:
                self._memory.positions[partition] = found.position

    def want(self, topics: Mapping[str, SourceTopic]) -> None:
        """Says which topics are to be read from the next poll on; the target has them already."""
        self._wanted = {
            TopicPartition(name, number): topic.topic_id
            for name, topic in topics.items()
            for number in range(topic.partitions)
        }

    async def poll(self, timeout_ms: float, max_bytes: int, *, may_assign: bool = True) -> list[Part]:
        """Returns batches of partitions that are mirrored, after at most ``timeout_ms``.

        Without ``may_assign`` a changed assignment waits for a later poll.

        Raises:
            KafkaError: the source cannot be read; errors of single partitions are logged and tried again.
        """
        if self._wanted is not None and may_assign:
            self._assign()
        self._resume_due()
        for partition in list(self._starting):
            offset = self._consumer.position_nowait(partition)
            if offset is not None:
                self._start_known(partition, offset)
        if not self._ids:
            await trio.sleep(min(timeout_ms, _IDLE_MS) / 1000)
            return []
        try:
            found = await self._consumer.poll_encoded(timeout_ms, max_bytes=max_bytes)
        except OffsetOutOfRangeError as error:
            await self._out_of_range(error.partition, error.offset)
            return []
        except LogTruncatedError as error:
            self._truncated(error)
            return []
        except PartitionError as error:
            if error.partition in self._ids and error.partition not in self._retry_at_ms:
                self._wait(error.partition, error)  # else each fetch of it would keep the others waiting
            return []
        except KafkaError as error:
            self._statistics.failures += 1
            self._logger.warning("source-fetch-failed", error=error)
            await trio.sleep(_IDLE_MS / 1000)
            return []
        return [Part(self.progress.generation(part.topic_partition), part) for part in found if self._is_current(part)]

    # --- assignment

    def _assign(self) -> None:
        wanted, self._wanted = self._wanted, None
        assert wanted is not None
        former = self._ids
        if self._memory.first is None:
            self._memory.first = dict(wanted)
        for partition in [each for each in former if each not in wanted]:
            self._forget(partition)
        for partition in [each for each in self._statistics.partitions if each not in wanted]:
            del self._statistics.partitions[partition]  # an earlier reader read it; the topic was deleted since
        self._ids = {partition: former.get(partition, topic_id) for partition, topic_id in wanted.items()}
        self._consumer.assign(self._ids)
        # No checkpoint until each has its place: the consumer must not look for positions by itself.
        for partition, topic_id in wanted.items():
            if partition not in former:
                self._start(partition, topic_id)
            # The id before the present one comes from a broker that is behind.
            elif topic_id not in (self._ids[partition], self._former_ids.get(partition)):
                self._recreated(partition, topic_id)

    def _forget(self, partition: TopicPartition) -> None:
        found = self.progress.by_partition.get(partition)
        if found is not None and partition not in self._starting:
            self._stored[partition] = found.position  # the topic may come back, and be the same one
        self.progress.end(partition)
        self._statistics.partitions.pop(partition, None)
        for table in (self._retry_at_ms, self._failures, self._held, self._former_ids, self._starting):
            table.pop(partition, None)

    def _start(self, partition: TopicPartition, topic_id: UUID) -> None:
        """Begins where the target or an earlier reader knows the partition, else at its start, or at its end."""
        self._statistics.state(partition).failures = 0  # an earlier reader counted them
        stored = self._stored.get(partition)
        start = stored_start(stored, topic_id)
        if start is not None:
            self._go(partition, start)
            return
        start = stored_start(self._memory.positions.get(partition), topic_id)
        if start is not None:
            self._go(partition, start, is_news=True)
            return
        if stored is not None:
            self._logger.warning("source-topic-recreated", partition=partition, former=stored.topic_id)
        assert self._memory.first is not None, "partitions begin after the first look"
        is_first = self._memory.first.get(partition) == topic_id
        self._go_to_edge(partition, at_end=self._starts_at_end and is_first)

    def _go_to_edge(self, partition: TopicPartition, *, at_end: bool) -> None:
        """Begins at the start or at the end of a partition, as soon as its leader names the offset.

        The other partitions do not wait for a leader that is down.
        """
        self.progress.begin(partition, Position(0, self._ids[partition]))
        self._syncs.forget(partition)
        self._starting[partition] = at_end
        if at_end:
            self._consumer.seek_to_end(partition)
        else:
            self._consumer.seek_to_beginning(partition)
        self._statistics.state(partition).position = 0

    def _start_known(self, partition: TopicPartition, offset: int) -> None:
        del self._starting[partition]
        self.progress.begin(partition, Position(offset, self._ids[partition]), is_news=True)
        self._statistics.state(partition).position = offset

    def _go(self, partition: TopicPartition, position: Position, *, is_news: bool = False) -> None:
        self.progress.begin(partition, position, is_news=is_news)
        self._starting.pop(partition, None)
        self._syncs.forget(partition)
        self._consumer.seek(partition, position.offset, leader_epoch=position.leader_epoch)
        state = self._statistics.state(partition)
        state.position = position.offset

    # --- positions that are gone

    def _is_current(self, part: EncodedBatches) -> bool:
        """Returns whether a part belongs to the topic that is mirrored now; handles it if not."""
        partition = part.topic_partition
        known = self._ids.get(partition)
        if known is None or partition not in self.progress.by_partition:
            return False
        if part.topic_id not in (ZERO_UUID, known):
            if part.topic_id == self._former_ids.get(partition):
                self.back_to(partition)  # an answer of a broker that still has the deleted topic
            else:
                self._recreated(partition, part.topic_id)
            return False
        if partition in self._starting:
            batches = part.batches
            self._start_known(partition, batches[0].first_offset if batches else part.next_offset)
        state = self._statistics.state(partition)
        state.end_offset = part.end_offset
        return True

    def _recreated(self, partition: TopicPartition, topic_id: UUID) -> None:
        former = self._ids.get(partition, ZERO_UUID)
        self._logger.warning("source-topic-recreated", partition=partition, former=former, present=topic_id)
        self._former_ids[partition] = former
        self._ids[partition] = topic_id
        self._go_to_edge(partition, at_end=False)

    async def _out_of_range(self, partition: TopicPartition, offset: int) -> None:
        """Goes to the first record that the source still has; it logs what cannot be mirrored any longer."""
        if partition not in self._ids:
            return
        start = (await self._consumer.beginning_offsets([partition]))[partition]
        self._statistics.failures += 1
        if offset < start:
            self._logger.warning("source-records-lost", partition=partition, first=offset, until=start)
        else:
            self._logger.warning("source-log-shorter", partition=partition, position=offset, restart=start)
        self._go(partition, Position(start, self._ids[partition]), is_news=True)

    def _truncated(self, error: LogTruncatedError) -> None:
        """Goes on where the source's log diverged; the target keeps the records that the source has lost."""
        partition = error.partition
        if partition not in self._ids:
            return
        self._statistics.failures += 1
        self._logger.warning(
            "source-log-truncated", partition=partition, position=error.offset, diverging=error.diverging_offset
        )
        self._go(partition, Position(error.diverging_offset, self._ids[partition]), is_news=True)

    # --- partitions that fail or are slow

    def back_to(self, partition: TopicPartition) -> None:
        """Reads a partition again from the position that the target has acknowledged."""
        found = self.progress.by_partition.get(partition)
        if found is not None and partition in self._starting:
            self._go_to_edge(partition, at_end=self._starting[partition])
        elif found is not None:
            self._go(partition, found.position, is_news=True)

    def failed(self, partition: TopicPartition, error: Exception) -> None:
        """Reads a partition again from its position, after a wait that grows with each failure in a row."""
        if partition not in self.progress.by_partition:
            return
        self.back_to(partition)
        self._wait(partition, error)

    def _wait(self, partition: TopicPartition, error: Exception) -> None:
        """Reads no more of a partition for a while."""
        failures = self._failures[partition] = self._failures.get(partition, 0) + 1
        delay_ms = self.delay_ms(failures)
        self._retry_at_ms[partition] = self._environment.clock.monotonic_ms() + delay_ms
        self._consumer.pause(partition)
        self._statistics.failures += 1
        self._statistics.last_error = f"{partition}: {error}"
        self._statistics.state(partition).failures = failures
        self._logger.warning("partition-failed", partition=partition, failures=failures, delay_ms=delay_ms, error=error)

    def delay_ms(self, failures: int) -> float:
        """Returns how long to wait after so many failures in a row."""
        return self._retry.delay_ms(failures, self._environment.random)

    def hold(self, partition: TopicPartition) -> None:
        """Reads no more of a partition until ``release``, because much of it is on its way."""
        if partition in self._ids:
            self._held[partition] = None
            self._consumer.pause(partition)

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads held partitions again."""
        for partition in partitions:
            if self._held.pop(partition, 0) is None and partition not in self._retry_at_ms and partition in self._ids:
                self._consumer.resume(partition)

    def is_doubtful(self, partition: TopicPartition) -> bool:
        """Returns whether the last batches of a partition were refused, so that the next one should go alone."""
        return partition in self._failures

    def go_on_at(self, partition: TopicPartition, offset: int) -> None:
        """Reads a partition next from an offset that lies before what was read of it."""
        if partition in self._ids:
            self._consumer.seek(partition, offset)

    def acknowledged(self, partition: TopicPartition) -> None:
        """Notes that the target takes records of a partition, so that its failures count from zero again."""
        state = self._statistics.state(partition)
        found = self.progress.by_partition.get(partition)
        if found is not None:
            state.position = found.position.offset
        if self._failures.pop(partition, 0):
            state.failures = 0

    def _resume_due(self) -> None:
        now_ms = self._environment.clock.monotonic_ms()
        for partition, at_ms in list(self._retry_at_ms.items()):
            if now_ms >= at_ms:
                del self._retry_at_ms[partition]
                if partition not in self._held:
                    self._consumer.resume(partition)
