"""Bugs in what a leader counts as replicated, and whom it counts as in sync."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.values import Offset
from moldau_broker.replication.replica import FollowerProgress, Replica, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.values import BrokerId
    from moldau_broker.replication.replica import IsrProposal, ReplicaEffects
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
