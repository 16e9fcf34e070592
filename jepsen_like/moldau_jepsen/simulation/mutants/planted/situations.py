"""Bugs that only rare situations show: late packets, losses of power, logs that start over, full sequence numbers."""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING

from moldau.producer.core import accumulator
from moldau.producer.core.accumulator import Accumulator
from moldau.values import Offset
from moldau_broker.coordinator.transaction.core.transaction_core import TransactionCore
from moldau_broker.log.directories.cordons import Cordons
from moldau_broker.log.directories.disk_patience import DiskPatience, Verdicts
from moldau_broker.log.files.segment_files import SegmentFiles
from moldau_broker.log.partition.epoch_cache import LeaderEpochCache
from moldau_broker.replication.replica import Replica
from moldau_broker.server.replicas.replica_waits import ReplicaWaits
from moldau_jepsen.coverage.situations import met_by_late_end

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.producer.core.partition_queue import PartitionQueue
    from moldau.protocol.errors import ErrorCode
    from moldau.protocol.messages.end_txn import EndTxnRequest
    from moldau_broker.coordinator.runtime.effects import Moment
    from moldau_broker.server.replicas.partition import Partition
    from moldau_jepsen.planted_bug import Patch


def epochs_kept_when_log_starts_over() -> list[Patch]:
    """A log that begins at another offset keeps the leader epochs of the one before."""
    return [(LeaderEpochCache, "clear", lambda self: None)]


def transaction_index_called_durable() -> list[Patch]:
    """The index of aborted transactions counts as durable without a sync."""

    def sync(self: SegmentFiles) -> None:
        self.log.sync()
        self._offset_index.sync()
        self._time_index.sync()

    return [(SegmentFiles, "sync", sync)]


def wake_up_lost() -> list[Patch]:
    """Every fourth advance of a high watermark wakes no produce."""
    original = ReplicaWaits.complete_produces
    calls = itertools.count()

    def complete(self: ReplicaWaits, partition: Partition) -> None:
        if partition not in self.produces.purgatory.watched or next(calls) % 4:
            original(self, partition)

    return [(ReplicaWaits, "complete_produces", complete)]


def uncertain_batch_renumbered() -> list[Patch]:
    """A batch whose fate is unknown gets new sequence numbers, under the next epoch."""
    original = Accumulator._renumber_if_drained

    def renumber(self: Accumulator, queue: PartitionQueue) -> None:
        if queue.outstanding and queue.outstanding[0].is_uncertain and not queue.in_flight:
            queue.outstanding[0].is_uncertain = False
            queue.needs_new_epoch = True
        original(self, queue)

    return [(Accumulator, "_renumber_if_drained", renumber)]


def sequence_numbers_go_on() -> list[Patch]:
    """A producer goes on behind the last sequence number, instead of at 0."""
    return [(accumulator, "add_sequence", lambda sequence, increment: sequence + increment)]


def late_end_believed() -> list[Patch]:
    """A late EndTxn of a former transaction ends the open one."""
    original = TransactionCore._end

    def end(
        self: TransactionCore,
        request_id: int,
        request: EndTxnRequest,
        version: int,
        fresh_producer_id: int | None,
        moment: Moment,
    ) -> ErrorCode | None:
        transaction = met_by_late_end(self, request)
        if transaction is not None:
            request = copy.copy(request)
            request.producer_epoch = transaction.producer_epoch
        return original(self, request_id, request, version, fresh_producer_id, moment)

    return [(TransactionCore, "_end", end)]


def follower_watermark_is_log_end() -> list[Patch]:
    """A follower serves consumers up to its log end."""

    def learned(self: Replica, high_watermark: Offset, log_start_offset: Offset = Offset(0)) -> bool:
        if self.log_end_offset <= self.high_watermark:
            return False
        self.high_watermark = self.log_end_offset
        return True

    return [(Replica, "leader_high_watermark", learned)]


def hanging_disk_kept() -> list[Patch]:
    """The guard probes slow disks, and ignores that the probes do not return."""
    original = DiskPatience.look

    def look(self: DiskPatience, now_ms: float) -> Verdicts:
        return Verdicts(probe=original(self, now_ms).probe, hung=())

    return [(DiskPatience, "look", look)]


def cordon_ignored() -> list[Patch]:
    """A new replica goes to the directory with the fewest logs, cordoned or not."""

    def choose(self: Cordons, logs: Mapping[str, int]) -> str:
        return min(logs, key=lambda path: logs[path])

    return [(Cordons, "choose", choose)]


def slow_disk_given_up() -> list[Patch]:
    """The guard takes a disk for hanging that it had to probe, whether or not the probe returned."""
    original = DiskPatience.look

    def look(self: DiskPatience, now_ms: float) -> Verdicts:
        found = original(self, now_ms)
        return Verdicts(probe=(), hung=(*found.hung, *found.probe))

    return [(DiskPatience, "look", look)]
