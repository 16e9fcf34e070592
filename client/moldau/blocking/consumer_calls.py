"""The calls of a consumer that return at once, the same for threads and for asyncio.

Both faces keep the records that iteration has fetched and the loop has not received. Each call here first sets the
positions back before those records, so that it acts on what the caller has seen.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from moldau.cluster import arguments
from moldau.cluster.metadata import TopicPartition
from moldau.consumer.core.positions import Lag

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.blocking.portal import Portal
    from moldau.cluster.group_metadata import GroupMetadata
    from moldau.cluster.telemetry.application import ApplicationMetrics
    from moldau.consumer import CommittedOffset, ConsumedBatch, ConsumedColumns
    from moldau.consumer import Consumer as TrioConsumer
    from moldau.consumer.core.statistics import ConsumerStatistics
    from moldau.consumer.core.unread import Unread


class ConsumerCalls:
    """A part of ``moldau.blocking.Consumer`` and ``moldau.aio.Consumer``, which set the attributes."""

    _consumer: TrioConsumer[Any, Any]
    _portal: Portal[Any]
    _unread: Unread[Any, Any]
    _is_closed: bool

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Assigns exactly these partitions, without a group."""
        self._return_unread()
        self._portal.call_sync(self._consumer.assign, arguments.partitions("assign", partitions))

    def subscribe(self, topics: Iterable[str] = (), *, pattern: str | None = None) -> None:
        """Joins the group for these topics, or for all that match ``pattern``, at the next ``poll``."""
        self._return_unread()
        names = arguments.texts("subscribe", "topics", topics)
        self._portal.call_sync(self._consumer.subscribe, names, pattern=pattern)

    def group_metadata(self) -> GroupMetadata:
        """Returns this member's group metadata, for ``Producer.send_offsets_to_transaction``.

        Raises:
            ConfigError: ``group.id`` is not set.
        """
        return self._portal.call_sync(self._consumer.group_metadata)

    @property
    def subscription(self) -> list[str]:
        """The topics that the consumer is subscribed to."""
        return self._portal.call_sync(lambda: self._consumer.subscription)

    @property
    def paused(self) -> list[TopicPartition]:
        """Assigned partitions that ``pause`` holds back."""
        return self._portal.call_sync(lambda: self._consumer.paused)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return self._portal.call_sync(lambda: self._consumer.assignment)

    @property
    def clusters_left(self) -> int:
        """How often the bootstrap servers have led to another cluster; offsets from before mean other records."""
        return self._portal.call_sync(lambda: self._consumer.clusters_left)

    async def _commit_received(self) -> None:
        """Runs in the trio thread: commits the positions before the records that the loop has not received."""
        await self._consumer.commit(self._received())

    def _received(self) -> dict[tuple[str, int], CommittedOffset]:
        return self._consumer.offsets_to_commit(self._starts())

    def _starts(self) -> dict[TopicPartition, tuple[int, int]]:
        """Runs in the trio thread: returns where the unread records begin, unless they are of another cluster."""
        is_here = self._unread.cluster == self._consumer.clusters_left
        return self._unread.starts() if is_here else {}

    async def _fill_unread(self) -> None:
        """Runs in the trio thread: polls for a loop over single records.

        The records count as unread at once, before the loop goes on: its consumer may be closed in between, and must
        not commit what the loop never receives.
        """
        self._unread.fill(await self._consumer.poll(1000))
        if self._is_closed:  # closing has looked for unread records already, or sees these
            self._seek_back()

    def _put_back(self, batches: Iterable[ConsumedBatch[Any, Any]]) -> None:
        """Sets positions back before records that were taken but did not reach the caller."""
        for batch in batches:
            if not batch.records:  # an interceptor has hidden them
                continue
            first, epoch = batch.records[0].offset, batch.leader_epoch
            with contextlib.suppress(LookupError):  # the partition or the cluster of the batch was left
                self._consumer.seek(batch.topic_partition, first, leader_epoch=epoch, cluster=batch.cluster)

    def _put_back_columns(self, taken: Iterable[ConsumedColumns]) -> None:
        for each in taken:
            first = memoryview(each.columns.offsets).cast("q")[0]
            with contextlib.suppress(LookupError):
                self._consumer.seek((each.topic, each.partition), first, cluster=each.cluster)

    def _closed_elsewhere(self) -> bool:
        """Returns whether another thread or task has closed the client, perhaps during the last call."""
        return self._is_closed

    def _end_iteration(self, *, gives_up: bool) -> None:
        self._portal.check_closer()
        self._is_closed = True
        if gives_up:
            self._unread.clear()
        else:
            self._return_unread()

    def _return_unread(self) -> None:
        """Sets positions back before the records that iteration has fetched and the loop has not received."""
        if self._unread:
            self._portal.call_sync(self._seek_back)

    def _seek_back(self) -> None:
        cluster = self._unread.cluster
        for partition, (offset, leader_epoch) in self._unread.give_back().items():
            with contextlib.suppress(LookupError):  # the partition or the cluster of the records was left
                self._consumer.seek(partition, offset, leader_epoch=leader_epoch, cluster=cluster)

    def seek(
        self, partition: tuple[str, int], offset: int, *, leader_epoch: int = -1, cluster: int | None = None
    ) -> None:
        """Moves the position of a partition to ``offset``; ``cluster`` is that of the batch which had the offset.

        Raises:
            LookupError: the partition is not assigned, or the consumer has left ``cluster``.
        """
        self._return_unread()
        self._portal.call_sync(self._consumer.seek, partition, offset, leader_epoch=leader_epoch, cluster=cluster)

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Goes to the log start offset of the partitions (all by default)."""
        self._return_unread()
        self._portal.call_sync(self._consumer.seek_to_beginning, *partitions)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Goes to the high watermark of the partitions (all by default)."""
        self._return_unread()
        self._portal.call_sync(self._consumer.seek_to_end, *partitions)

    def position_nowait(self, partition: tuple[str, int]) -> int | None:
        """Returns the position, or None while it is unknown."""
        found = self._portal.call_sync(self._consumer.position_nowait, partition)
        return None if found is None else self._first_unread(partition, found)

    def _first_unread(self, partition: tuple[str, int], position: int) -> int:
        if not self._unread:
            return position
        return self._portal.call_sync(self._starts).get(TopicPartition(*partition), (position, -1))[0]

    def lag(self, partition: tuple[str, int]) -> Lag:
        """Returns how far the consumer is behind the end of the partition, as of the last fetch."""
        found = self._portal.call_sync(self._consumer.lag, partition)
        return Lag(position=self._first_unread(partition, found.position), end_offset=found.end_offset)

    def statistics(self) -> ConsumerStatistics:
        """Returns the consumer's numbers, under the names of Kafka's consumer metrics.

        Positions are those of the trio consumer, which is ahead of a loop over single records.
        """
        return self._portal.call_sync(self._consumer.statistics)

    @property
    def application_metrics(self) -> ApplicationMetrics:
        """The application's own metrics, which this client pushes to brokers that want them (KIP-1076)."""
        return self._portal.call_sync(lambda: self._consumer.application_metrics)

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Stops reading the partitions; they stay assigned."""
        self._return_unread()
        self._portal.call_sync(self._consumer.pause, *partitions)

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Reads paused partitions again."""
        self._portal.call_sync(self._consumer.resume, *partitions)

    @property
    def commits_automatically(self) -> bool:
        """Whether the consumer commits positions by itself (``enable.auto.commit`` with a group)."""
        return self._consumer.commits_automatically

    def offsets_to_commit(self) -> dict[tuple[str, int], CommittedOffset]:
        """Returns what ``commit`` commits by default: the positions of the assigned partitions.

        Pass it to ``Producer.send_offsets_to_transaction``.
        """
        return self._portal.call_sync(self._received)
