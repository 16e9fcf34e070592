"""Bugs in what a leader counts as replicated, and which replicas it counts as in sync."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.values import Offset
from moldau_broker.log.directories.directory import LogDirectory, log_starts_of
from moldau_broker.log.directories.moves import ReplicaMover
from moldau_broker.log.partition.watermarks import Watermarks
from moldau_broker.replication.follower_progress import FollowerProgress
from moldau_broker.replication.replica import Replica, Role
from moldau_broker.server.replicas.replica_manager import ReplicaManager

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau.values import BrokerId
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.values import TopicPartition
    from moldau_broker.replication.replica import IsrProposal, ReplicaEffects
    from moldau_broker.server.replicas.partition import Partition
    from moldau_jepsen.planted_bug import Patch


def watermark_without_isr() -> list[Patch]:
    return [(Replica, "_high_watermark_candidate", lambda self, now_ms, eligible: self.settled_end_offset)]


def watermark_by_majority() -> list[Patch]:
    def candidate(self: Replica, now_ms: float, eligible: object) -> int:
        ends = sorted([self.log_end_offset, *(f.log_end_offset for f in self._followers.values())])
        return max(self.high_watermark, ends[len(ends) // 2])

    return [(Replica, "_high_watermark_candidate", candidate)]


def watermark_before_shrink() -> list[Patch]:
    def maximal_isr(self: Replica) -> tuple[int, ...]:
        return self._proposal.isr if self._proposal is not None else self.state.isr

    return [(Replica, "maximal_isr", property(maximal_isr))]


def acknowledged_at_once() -> list[Patch]:
    def acknowledgement(self: Replica, leader_epoch: int, required_offset: int) -> ErrorCode | None:
        return ErrorCode.NONE if self.role is Role.LEADER else ErrorCode.NOT_LEADER_OR_FOLLOWER

    return [(Replica, "acknowledgement", acknowledgement)]


def joins_too_early() -> list[Patch]:
    return [(Replica, "_may_join", lambda self, broker_id, follower, eligible: True)]


def isr_join_unasked() -> list[Patch]:
    """The leader counts a proposal as committed when it sends it."""
    original = Replica._propose

    def propose(self: Replica, isr: tuple[BrokerId, ...], **more: object) -> object:
        proposal = original(self, isr, **more)  # type: ignore[arg-type]
        self.state = dataclasses.replace(self.state, isr=isr)
        return proposal

    return [(Replica, "_propose", propose)]


def isr_shrink_lost() -> list[Patch]:
    """The answer of the controller is taken for a success whatever it says."""
    original = Replica.alter_answered

    def alter_answered(
        self: Replica, proposal: IsrProposal, error: ErrorCode, now_ms: float, eligible: Mapping[BrokerId, int]
    ) -> ReplicaEffects:
        if error is ErrorCode.NONE or self._proposal is not proposal:
            return original(self, proposal, error, now_ms, eligible)
        self.state = dataclasses.replace(self.state, isr=proposal.isr, partition_epoch=self.state.partition_epoch + 1)
        self._proposal = None
        return self._leader_effects(now_ms, eligible)

    return [(Replica, "alter_answered", alter_answered)]


def laggards_stay_counted_out() -> list[Patch]:
    """A follower that is in sync is taken for caught up from its first fetch on."""

    def fetched(
        self: FollowerProgress,
        fetch_offset: Offset,
        log_start_offset: Offset,
        broker_epoch: int,
        leader_end_offset: Offset,
        now_ms: float,
    ) -> None:
        self.log_end_offset = leader_end_offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self.last_fetch_ms = self.last_caught_up_ms = now_ms

    return [(FollowerProgress, "fetched", fetched)]


def watermark_falls() -> list[Patch]:
    """The high watermark is what the followers have said last, also where that is less than before."""

    def advance_high_watermark(self: Replica, now_ms: float, eligible: Mapping[BrokerId, int]) -> bool:
        if self.role is not Role.LEADER or len(self.state.isr) < self.effective_min_isr:
            return False
        candidate = max(Offset(0), self._high_watermark_candidate(now_ms, eligible))
        if candidate == self.high_watermark:
            return False
        self.high_watermark = candidate
        return True

    return [(Replica, "_advance_high_watermark", advance_high_watermark)]


def truncated_log_keeps_watermark() -> list[Patch]:
    """A truncation below the high watermark lowers the replica's, but not the one of its log."""

    def truncated(self: Watermarks) -> None:
        self.settled_end_offset = min(self.settled_end_offset, self._storage.log_end_offset)
        self.settle()

    def follower_truncated(self: ReplicaManager, partition: Partition, offset: Offset) -> None:
        if offset < partition.log.log_start_offset:
            self.follower_restarted(partition, offset)
        else:
            partition.log.truncate_to(offset)
            partition.replica.truncated(partition.log.log_end_offset)
        self.log_end_moved(partition, self._clock.monotonic_ms())

    return [(Watermarks, "truncated", truncated), (ReplicaManager, "follower_truncated", follower_truncated)]


def moved_log_loses_watermark() -> list[Patch]:
    """A log that replaces another one in a move between directories begins without a high watermark."""
    original = ReplicaMover.replace_current_with_future

    def replace_current(self: ReplicaMover, topic_partition: TopicPartition) -> PartitionLog:
        future = original(self, topic_partition)
        future.update_high_watermark(0)
        return future

    return [(ReplicaMover, "replace_current_with_future", replace_current)]


def checkpoint_takes_log_end() -> list[Patch]:
    """A broker that stops in order writes the log ends to the checkpoint of high watermarks."""

    def write_checkpoints(self: LogDirectory, logs: Iterable[PartitionLog]) -> None:
        current = list(logs)
        self.recovery_points.write_now({log.topic_partition: log.recovery_point for log in current})
        self.log_starts.write_now(log_starts_of(current))
        self.high_watermarks.write_now({log.topic_partition: log.log_end_offset for log in current})

    return [(LogDirectory, "write_checkpoints", write_checkpoints)]
