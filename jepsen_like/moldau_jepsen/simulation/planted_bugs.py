"""The planted bugs of ``mutants``: each function returns which attributes it replaces by what.

Each is what a plausible slip in the code would do, and breaks exactly one rule.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from moldau.consumer.chunk import FetchedChunk
from moldau.protocol.errors import ErrorCode
from moldau_broker.log.epoch_cache import LeaderEpochCache
from moldau_broker.log.partition_log import PartitionLog
from moldau_broker.log.producer_state import ProducerStateManager
from moldau_broker.log.segment import LogSegment
from moldau_broker.log.segmented_log import SegmentedLog
from moldau_broker.replication.follower import FollowerFetcher
from moldau_broker.replication.replica import FollowerProgress, Replica, Role
from moldau_broker.server.fetch import FetchService
from moldau_broker.server.replica_manager import ReplicaManager
from moldau_quorum.controller import partitions
from moldau_quorum.controller.partition_change import Election, PartitionChange
from moldau_quorum.raft.core import RaftCore
from moldau_quorum.raft.leader import LeaderRole
from moldau_quorum.raft.types import NO_NODE, Configuration
from moldau_quorum.raft.wal import SyncWork, WriteAheadLog
from moldau_quorum.state_machine import MetadataStateMachine

if TYPE_CHECKING:
    from moldau.records import Record
    from moldau_broker.log.values import EpochEndOffset, Work

Patch = tuple[object, str, object]
"""Owner, attribute, replacement."""


def quorum_of_one() -> list[Patch]:
    return [(Configuration, "quorum", property(lambda self: max(1, len(self.voters) // 2)))]


def vote_forgotten() -> list[Patch]:
    original = WriteAheadLog.write

    def write(self: WriteAheadLog, hard_state: object, entries: object, prev_epoch: int = 0) -> None:
        if hard_state is not None:
            hard_state = dataclasses.replace(hard_state, voted_for=NO_NODE)  # type: ignore[type-var]
        original(self, hard_state, entries, prev_epoch)  # type: ignore[arg-type]

    return [(WriteAheadLog, "write", write)]


def votes_twice() -> list[Patch]:
    original = RaftCore._on_vote_request

    def on_vote_request(self: RaftCore, sender: int, request: object) -> None:
        kept = self.hard_state
        if self.leader is None and not request.pre_vote and kept.voted_for != self.node_id:  # type: ignore[attr-defined]
            self.hard_state = dataclasses.replace(kept, voted_for=NO_NODE)
            self.leader_id = None
        original(self, sender, request)  # type: ignore[arg-type]

    return [(RaftCore, "_on_vote_request", on_vote_request)]


def votes_for_stale_log() -> list[Patch]:
    return [(RaftCore, "_log_is_up_to_date", lambda self, request: True)]


def answers_before_durable() -> list[Patch]:
    def durable_on_quorum(self: LeaderRole) -> int:
        core = self._core
        held = sorted(
            (core.log.last_index if voter == core.node_id else self.progress[voter].match)
            for voter in core.configuration.voters
        )
        return held[len(held) - core.configuration.quorum]

    return [
        (RaftCore, "send", RaftCore.send_early),
        (LeaderRole, "_durable_on_quorum", durable_on_quorum),
        (RaftCore, "applicable_index", property(lambda self: self.commit_index)),
    ]


def counts_one_follower_twice() -> list[Patch]:
    def durable_on_quorum(self: LeaderRole) -> int:
        core = self._core
        return max(
            (core.durable_index if voter == core.node_id else self.progress[voter].match)
            for voter in core.configuration.voters
        )

    return [(LeaderRole, "_durable_on_quorum", durable_on_quorum)]


def wal_not_synced() -> list[Patch]:
    return [(SyncWork, "run", lambda self: None)]


def metadata_applied_out_of_order() -> list[Patch]:
    original = MetadataStateMachine.apply
    held: dict[int, object] = {}

    def apply(self: MetadataStateMachine, entry: object) -> None:
        waiting = held.pop(id(self), None)
        if waiting is None and entry.index % 7 == 0:  # type: ignore[attr-defined]
            held[id(self)] = entry
            return
        original(self, entry)  # type: ignore[arg-type]
        if waiting is not None:
            original(self, waiting)  # type: ignore[arg-type]

    return [(MetadataStateMachine, "apply", apply)]


def unclean_election() -> list[Patch]:
    original = PartitionChange.build

    def build(self: PartitionChange) -> object:
        self.election = Election.UNCLEAN
        return original(self)

    return [(PartitionChange, "build", build)]


def elects_any_replica() -> list[Patch]:
    original = PartitionChange._elect

    def elect(self: PartitionChange, replicas: tuple[int, ...], isr: tuple[int, ...]) -> object:
        elected = original(self, replicas, isr)
        if elected.leader == self.partition.leader:
            return elected
        for replica in replicas:
            if self.acceptable(replica) and replica != self.partition.leader:
                return dataclasses.replace(elected, leader=replica)
        return elected

    return [(PartitionChange, "_elect", elect)]


def stale_isr_change() -> list[Patch]:
    return [(partitions, "_check_epochs", lambda broker_id, partition, data: None)]


def watermark_without_isr() -> list[Patch]:
    return [(Replica, "_high_watermark_candidate", lambda self, now_ms, eligible: self.log_end_offset)]


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


def acknowledged_by_another_epoch() -> list[Patch]:
    original = Replica.acknowledgement

    def acknowledgement(self: Replica, leader_epoch: int, required_offset: int) -> ErrorCode | None:
        if self.high_watermark >= required_offset:
            return ErrorCode.NONE
        return original(self, leader_epoch, required_offset)

    return [(Replica, "acknowledgement", acknowledgement)]


def leader_epoch_unchecked() -> list[Patch]:
    return [(Replica, "check_leader_epoch", lambda self, epoch: ErrorCode.NONE)]


def joins_too_early() -> list[Patch]:
    return [(Replica, "_may_join", lambda self, broker_id, follower, eligible: True)]


def isr_join_unasked() -> list[Patch]:
    """The leader counts a proposal as committed when it sends it."""
    original = Replica._propose

    def propose(self: Replica, isr: tuple[int, ...], **more: object) -> object:
        proposal = original(self, isr, **more)  # type: ignore[arg-type]
        self.state = dataclasses.replace(self.state, isr=isr)
        return proposal

    return [(Replica, "_propose", propose)]


def laggards_stay_counted_out() -> list[Patch]:
    """A follower that is in sync is taken for caught up from its first fetch on."""

    def fetched(
        self: FollowerProgress,
        fetch_offset: int,
        log_start_offset: int,
        broker_epoch: int,
        leader_end_offset: int,
        now_ms: float,
    ) -> None:
        self.log_end_offset = leader_end_offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self.last_fetch_ms = self.last_caught_up_ms = now_ms

    return [(FollowerProgress, "fetched", fetched)]


def divergence_unseen() -> list[Patch]:
    return [(FetchService, "diverging", lambda self, partition, wanted: None)]


def divergence_ignored() -> list[Patch]:
    original = FollowerFetcher._step

    def step(self: FollowerFetcher, followed: object, answer: object, now_ms: float) -> object:
        plain = dataclasses.replace(answer, diverging_epoch=-1, diverging_end_offset=-1)  # type: ignore[type-var]
        return original(self, followed, plain, now_ms)  # type: ignore[arg-type]

    return [(FollowerFetcher, "_step", step)]


def truncates_to_watermark() -> list[Patch]:
    original = ReplicaManager.follower_truncated

    def follower_truncated(self: ReplicaManager, partition: object, offset: int) -> None:
        original(self, partition, partition.replica.high_watermark)  # type: ignore[attr-defined, arg-type]

    return [
        (ReplicaManager, "follower_truncated", follower_truncated),
        (FetchService, "_agrees", lambda self, partition, wanted: True),
    ]


def truncates_too_little() -> list[Patch]:
    original = LeaderEpochCache.end_offset_for

    def end_offset_for(self: LeaderEpochCache, leader_epoch: int, log_end_offset: int) -> EpochEndOffset:
        found = original(self, leader_epoch, log_end_offset)
        if found.end_offset >= 0 and found.end_offset < log_end_offset:
            return dataclasses.replace(found, end_offset=found.end_offset + 1)
        return found

    return [(LeaderEpochCache, "end_offset_for", end_offset_for)]


def dedup_off() -> list[Patch]:
    return [(ProducerStateManager, "check", lambda self, header, origin: None)]


def dedup_lost_on_failover() -> list[Patch]:
    return [(PartitionLog, "_replicate_producer", lambda self, header, data: None)]


def sequence_gaps_accepted() -> list[Patch]:
    return [(ProducerStateManager, "_check_sequence", lambda self, entry, header: None)]


def log_not_synced() -> list[Patch]:
    original = SegmentedLog.flush_work

    def flush_work(self: SegmentedLog, up_to_closed_only: bool = False) -> Work | None:
        work = original(self, up_to_closed_only)
        return None if work is None else dataclasses.replace(work, run=lambda: None)

    return [(SegmentedLog, "flush_work", flush_work)]


def index_off_by_one() -> list[Patch]:
    original = LogSegment.position_of
    return [(LogSegment, "position_of", lambda self, offset: original(self, offset + 1))]


def reads_beyond_watermark() -> list[Patch]:
    return [(PartitionLog, "last_stable_offset", property(lambda self: self.log_end_offset))]


def isr_shrink_lost() -> list[Patch]:
    """The answer of the controller is taken for a success whatever it says."""
    original = Replica.alter_answered

    def alter_answered(
        self: Replica, proposal: object, error: ErrorCode, state: object, now_ms: float, eligible: object
    ) -> object:
        if error is not ErrorCode.NONE and self._proposal is not None and self._proposal is proposal:
            state = dataclasses.replace(
                self.state, isr=self._proposal.isr, partition_epoch=self.state.partition_epoch + 1
            )
            error = ErrorCode.NONE
        return original(self, proposal, error, state, now_ms, eligible)  # type: ignore[arg-type]

    return [(Replica, "alter_answered", alter_answered)]


def consumer_skips() -> list[Patch]:
    original = FetchedChunk.take
    calls = [0]

    def take(self: FetchedChunk, limit: int) -> list[Record]:
        records = original(self, limit)
        calls[0] += 1
        return records[1:] if calls[0] % 10 == 0 else records

    return [(FetchedChunk, "take", take)]
