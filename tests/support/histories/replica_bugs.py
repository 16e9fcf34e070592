"""Planted bugs of a replica that short histories of a leader, two followers and a controller find."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau_broker.replication.follower_progress import UNKNOWN_OFFSET, FollowerProgress
from moldau_broker.replication.replica import Replica, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.values import BrokerId
    from moldau_broker.replication.replica import IsrProposal, ReplicaEffects
    from moldau_jepsen.planted_bug import Patch


def admission_counts_for_min_isr() -> list[Patch]:
    """A replica whose admission is in flight counts for ``min.insync.replicas``."""

    def advance(self: Replica, now_ms: float, eligible: Mapping[BrokerId, int]) -> bool:
        if self.role is not Role.LEADER or len(self.maximal_isr) < self.effective_min_isr:
            return False
        candidate = self._high_watermark_candidate(now_ms, eligible)
        if candidate <= self.high_watermark:
            return False
        self.high_watermark = candidate
        return True

    return [(Replica, "_advance_high_watermark", advance)]


def admission_not_waited_for() -> list[Patch]:
    """The high watermark does not wait for a replica whose admission is in flight."""
    return [(Replica, "maximal_isr", property(lambda self: self.state.isr))]


def unknown_outcome_drops_proposal() -> list[Patch]:
    """A proposal whose answer is lost counts as not made."""
    original = Replica.alter_answered

    def answered(
        self: Replica, proposal: IsrProposal, error: ErrorCode, now_ms: float, eligible: Mapping[BrokerId, int]
    ) -> ReplicaEffects:
        if error is ErrorCode.REQUEST_TIMED_OUT:
            error = ErrorCode.OPERATION_NOT_ATTEMPTED
        return original(self, proposal, error, now_ms, eligible)

    return [(Replica, "alter_answered", answered)]


def accepted_admission_dropped() -> list[Patch]:
    """The leader forgets an admission when the controller's answer arrives, before the metadata do."""
    original = Replica.alter_answered

    def answered(
        self: Replica, proposal: IsrProposal, error: ErrorCode, now_ms: float, eligible: Mapping[BrokerId, int]
    ) -> ReplicaEffects:
        if error is ErrorCode.NONE:
            error = ErrorCode.OPERATION_NOT_ATTEMPTED
        return original(self, proposal, error, now_ms, eligible)

    return [(Replica, "alter_answered", answered)]


def resolved_proposal_kept() -> list[Patch]:
    """A proposal stays in flight when newer metadata resolve it."""
    original = Replica.apply

    def apply(self, state, log_end_offset, now_ms, settled_end_offset=None):  # type: ignore[no-untyped-def]
        proposal = self._proposal
        applied = original(self, state, log_end_offset, now_ms, settled_end_offset)
        self._proposal = proposal
        return applied

    return [(Replica, "apply", apply)]


def answer_counts_as_appended() -> list[Patch]:
    """A follower counts with the records that the answer to its fetch will bring."""
    original = FollowerProgress.fetched

    def fetched(self, fetch_offset, log_start_offset, broker_epoch, leader_end_offset, now_ms):  # type: ignore[no-untyped-def]
        original(self, fetch_offset, log_start_offset, broker_epoch, leader_end_offset, now_ms)
        if fetch_offset < leader_end_offset:
            self.log_end_offset = self.last_fetch_leader_end_offset

    return [(FollowerProgress, "fetched", fetched)]


def returned_follower_stays_outside() -> list[Patch]:
    """A follower with a newer broker epoch is not proposed for the ISR."""
    original = Replica._may_join

    def may_join(
        self: Replica, broker_id: BrokerId, follower: FollowerProgress, eligible: Mapping[BrokerId, int]
    ) -> bool:
        return follower.broker_epoch <= 10 and original(self, broker_id, follower, eligible)

    return [(Replica, "_may_join", may_join)]


def new_follower_counts_as_fetched() -> list[Patch]:
    """A follower that has not fetched in this epoch counts with the high watermark as its log end."""
    original = Replica._follower_of_new_state

    def follower(self: Replica, broker_id: BrokerId, *, began: bool, now_ms: float) -> FollowerProgress:
        progress = original(self, broker_id, began=began, now_ms=now_ms)
        if progress.log_end_offset == UNKNOWN_OFFSET:
            progress.log_end_offset = self.log_end_offset
        return progress

    return [(Replica, "_follower_of_new_state", follower)]
