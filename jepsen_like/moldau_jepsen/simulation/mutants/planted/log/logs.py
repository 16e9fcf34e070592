"""Bugs in logs: producers, syncs, look-ups."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from moldau_broker.log.directories import loading
from moldau_broker.log.directories.claims import LogClaims
from moldau_broker.log.directories.log_store import LogStore
from moldau_broker.log.files.segment import LogSegment
from moldau_broker.log.partition.follower_appends import FollowerAppends
from moldau_broker.log.partition.partition_log import PartitionLog
from moldau_broker.log.partition.recovery_point import Flush
from moldau_broker.log.producers.producer_state import ProducerStateManager

if TYPE_CHECKING:
    import uuid

    from moldau_broker.log.partition.segmented_log import SegmentedLog
    from moldau_broker.log.values import TopicPartition, Work
    from moldau_jepsen.planted_bug import Patch


def sequence_numbers_ignored() -> list[Patch]:
    return [(ProducerStateManager, "check", lambda self, header, origin: None)]


def dedup_lost_on_failover() -> list[Patch]:
    return [(FollowerAppends, "_replicate_producer", lambda self, header, data: None)]


def log_not_synced() -> list[Patch]:
    original = PartitionLog.flush_work

    def flush_work(self: PartitionLog, *, up_to_closed_only: bool = False) -> Work | None:
        work = original(self, up_to_closed_only=up_to_closed_only)
        return None if work is None else dataclasses.replace(work, run=lambda: None)

    return [(PartitionLog, "flush_work", flush_work)]


def rolled_segment_not_synced() -> list[Patch]:
    original = Flush.__init__

    def init(self: Flush, log: SegmentedLog, offset: int, *, up_to_closed_only: bool) -> None:
        original(self, log, offset, up_to_closed_only=up_to_closed_only)
        self._closed = []

    return [(Flush, "__init__", init)]


def void_sync_believed() -> list[Patch]:
    """A sync counts although the log was cut meanwhile, so what was appended instead counts as durable."""
    original = Flush.complete

    def complete(self: Flush) -> bool:
        self._generation = self._log.segments.generation
        return original(self)

    return [(Flush, "complete", complete)]


def recreated_topic_keeps_longer_log() -> list[Patch]:
    return [(loading, "_of_two_topics", lambda log, other: False)]


def index_off_by_one() -> list[Patch]:
    original = LogSegment.position_of
    return [(LogSegment, "position_of", lambda self, offset: original(self, offset + 1))]


def recreated_topic_reuses_old_log() -> list[Patch]:
    """A log is identified by the name of its partition alone.

    So a recreated topic gets the log of the deleted topic with its name.
    """
    original = LogClaims.claim

    def claim(self: LogClaims, topic_partition: TopicPartition, topic_id: uuid.UUID) -> PartitionLog | None:
        log = self._table.current.get(topic_partition)
        if log is not None:
            log.topic_id = topic_id
        return original(self, topic_partition, topic_id)

    def delete(self: LogStore, topic_partition: TopicPartition) -> bool:
        return topic_partition in self.table.current

    return [(LogClaims, "claim", claim), (LogStore, "delete", delete)]
