"""Writes offset syncs of one source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.mirror.core.offset_syncs import SyncEmitter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.cluster.metadata import TopicPartition
    from moldau.mirror.core.formats import OffsetSync
    from moldau.mirror.core.progress import Span
    from moldau.mirror.core.settings import SourceSettings
    from moldau.mirror.statistics import SourceStatistics
    from moldau.producer import Producer

PER_PARTITION_MAX = 32
"""Syncs of one partition that wait for a flush. More would only make translation finer, so some are dropped."""


class SyncWriter:
    """Collects the syncs of records that the target has acknowledged, and writes them at each flush.

    A sync is never written before its record is acknowledged (or its transaction committed), because a translated
    offset would else point behind a record that the target does not have.
    """

    def __init__(self, settings: SourceSettings, statistics: SourceStatistics) -> None:
        self._topic = settings.offset_syncs_topic
        self._is_enabled = settings.config.get_bool("emit.offset-syncs.enabled")
        self._emitter = SyncEmitter(settings.config.get_int("offset.lag.max"))
        self._statistics = statistics
        self._due: dict[TopicPartition, list[OffsetSync]] = {}

    def copied(self, span: Span, base_offset: int) -> None:
        """Takes a span that the target has, from ``base_offset`` on; -1 if the offset is not known."""
        if not self._is_enabled or base_offset < 0:
            return
        # Of a batch with gaps, the first and the last run suffice.
        for run in span.runs if len(span.runs) <= 2 else (span.runs[0], span.runs[-1]):
            self._add(self._emitter.copied(span.partition, run.upstream, base_offset + run.index, run.count))

    def forget(self, partition: TopicPartition) -> None:
        """Begins again with a partition."""
        self._emitter.forget(partition)

    def _add(self, syncs: Iterable[OffsetSync]) -> None:
        for sync in syncs:
            waiting = self._due.setdefault(sync.partition, [])
            if len(waiting) >= PER_PARTITION_MAX:
                del waiting[PER_PARTITION_MAX // 2]
            waiting.append(sync)

    async def flush(self, producer: Producer) -> None:
        """Writes the syncs that are due and the delayed ones, and waits until they are acknowledged.

        Raises:
            KafkaError: a sync could not be written; it is due again.
        """
        self._add(self._emitter.take_delayed())
        due, self._due = self._due, {}
        deliveries = []
        try:
            for syncs in due.values():
                deliveries += [
                    await producer.send(self._topic, each.value(), key=each.key(), partition=0) for each in syncs
                ]
            for delivery in deliveries:
                await delivery
        except BaseException:
            newer, self._due = self._due, due
            for syncs in newer.values():
                self._add(syncs)
            raise
        self._statistics.offset_syncs += len(deliveries)
