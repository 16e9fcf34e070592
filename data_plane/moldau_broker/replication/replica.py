"""The rules of one replica of one partition, as leader and as follower.

Theory of operation
-------------------
The controller elects the leader (``PartitionState``, from the metadata log). The fetch offset of a follower is its log
end offset. From the fetch offsets the leader derives

- the **high watermark**: the smallest log end offset over the *maximal* ISR, including the leader, and over replicas
  that are about to join. For itself the leader uses its *settled* end offset, up to which its flush policy allows
  acknowledgements (``PartitionLog.settled_end_offset``; the log end without a policy). The maximal ISR is the larger
  of the committed and the proposed ISR, because either may be the committed one while a proposal is in flight. The high
  watermark only grows within an epoch. It does not move while the committed ISR is smaller than
  ``min.insync.replicas`` (KIP-966: this makes eligible leader replicas safe to elect);
- the **in-sync replicas**: the leader proposes to remove a member that has not been caught up for
  ``replica.lag.time.max.ms``, and to admit an outsider that has caught up. A proposal goes to the controller
  (AlterPartition) and takes effect when it arrives in the metadata log. An outsider must have reached the high
  watermark and the start of the present epoch, and the broker epoch of its fetches must be that of its present
  registration (KIP-903), so a broker that restarted without its data does not count as its former registration.

A follower's high watermark is the smaller of the leader's high watermark and its own log end offset.

========== ============================== =========================================================================
role       event                          outcome
========== ============================== =========================================================================
any        apply, older or equal epochs   UNCHANGED
any        apply, leader = self, newer    LEADER: epoch start = log end, progress of followers dropped
any        apply, leader = other, newer   FOLLOWER: proposal dropped
any        apply, no leader, newer        FOLLOWER without a leader to fetch from
LEADER     apply, same leader epoch       ISR_CHANGED: proposal resolved, high watermark computed again
LEADER     followed, log_end_moved, tick  high watermark may advance, a proposal may come out
FOLLOWER   followed                       refused with NOT_LEADER_OR_FOLLOWER
FOLLOWER   tick                           no effect
========== ============================== =========================================================================

Each rule that is essential for safety is a small method (``maximal_isr``, ``_may_join``,
``_high_watermark_candidate``, ``check_leader_epoch`` ...), so that a test kit can plant a bug in exactly one of them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.values import BrokerId, LeaderEpoch, Offset
from moldau_broker.replication.follower_progress import UNKNOWN_BROKER_EPOCH, UNKNOWN_OFFSET, FollowerProgress

if TYPE_CHECKING:
    from collections.abc import Mapping


NO_BROKER = BrokerId(-1)
NO_LEADER_EPOCH = LeaderEpoch(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The committed metadata of one partition."""

    leader: BrokerId  # NO_BROKER while there is none
    leader_epoch: LeaderEpoch
    partition_epoch: int  # grows with each committed change of the partition
    replicas: tuple[BrokerId, ...]  # adding ones included, preferred leader first
    isr: tuple[BrokerId, ...]
    adding_replicas: tuple[BrokerId, ...] = ()
    removing_replicas: tuple[BrokerId, ...] = ()
    recovering: bool = False  # the leader was elected uncleanly and has not reported recovery (KIP-704)


class Role(enum.Enum):
    """The role of this broker for the partition."""

    NONE = "none"  # nothing applied yet
    LEADER = "leader"
    FOLLOWER = "follower"


_LEADER = Role.LEADER  # a member of an enumeration costs ten times a global name, and each request asks
_NO_ERROR = ErrorCode.NONE


class Applied(enum.Enum):
    """The result of ``Replica.apply``."""

    UNCHANGED = "unchanged"
    LEADER = "leader"  # a new leader epoch begins here
    FOLLOWER = "follower"  # a new leader epoch begins elsewhere
    ISR_CHANGED = "isr changed"  # same leader epoch, newer partition epoch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IsrProposal:
    """A proposed change of the ISR; compared by identity."""

    isr: tuple[BrokerId, ...]
    broker_epochs: tuple[int, ...]  # of ``isr``, same order; -1 where unknown (KIP-903)
    leader_epoch: LeaderEpoch
    partition_epoch: int
    joining: BrokerId = NO_BROKER  # the replica to admit; NO_BROKER for any other proposal
    reports_recovery: bool = False  # the ISR stays as it is (KIP-704)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaEffects:
    """The effects that the shell performs after an event."""

    high_watermark_advanced: bool = False  # pass it to the log, complete operations that wait for it
    proposal: IsrProposal | None = None  # send it to the controller, answer with ``alter_answered``
    error: ErrorCode = ErrorCode.NONE  # the event was refused and changed nothing


NO_EFFECTS = ReplicaEffects()
_ADVANCED = ReplicaEffects(high_watermark_advanced=True)


class Replica:
    """The state machine of one replica; the module lists its transitions.

    Invariants: ``high_watermark <= log_end_offset``; ``settled_end_offset <= log_end_offset``, and a leader's high
    watermark does not rise above it; ``high_watermark`` never decreases within a leader epoch except by
    truncation of a follower; ``_proposal`` is None unless LEADER, and belongs to the present ``leader_epoch`` and
    ``partition_epoch``.

    The class has many methods because each rule is one, as the module says; all of them read the same few fields.
    """

    __slots__ = (
        "_followers",
        "_lag_time_max_ms",
        "_may_be_committed",
        "_min_insync_replicas",
        "_offline",
        "_proposal",
        "broker_id",
        "epoch_start_offset",
        "high_watermark",
        "lacks_producers",
        "log_end_offset",
        "role",
        "settled_end_offset",
        "state",
    )

    def __init__(
        self,
        broker_id: BrokerId,
        *,
        high_watermark: Offset,
        log_end_offset: Offset,
        lag_time_max_ms: float,
        min_insync_replicas: int,
    ) -> None:
        """Starts with the checkpointed ``high_watermark``, limited to the log end."""
        self.broker_id = broker_id
        self.role = Role.NONE
        self.state = PartitionState(
            leader=NO_BROKER, leader_epoch=NO_LEADER_EPOCH, partition_epoch=-1, replicas=(), isr=()
        )
        self.high_watermark = min(high_watermark, log_end_offset)
        self.lacks_producers = False
        """Whether a leader takes no records until the shell has restored its producers."""
        self.log_end_offset = log_end_offset
        self.settled_end_offset = Offset(0)  # of a leader; set by ``apply``
        self.epoch_start_offset = UNKNOWN_OFFSET  # start of the present leader epoch; set on the leader only
        self._followers: dict[BrokerId, FollowerProgress] = {}
        self._proposal: IsrProposal | None = None
        self._may_be_committed = False  # whether the outcome of an earlier attempt of the proposal is unknown
        self._lag_time_max_ms = lag_time_max_ms
        self._min_insync_replicas = min_insync_replicas
        self._offline: tuple[int, ...] = ()  # replicas with a failed log directory on a live broker

    # --- queries ---------------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """True if this broker leads the partition in the newest state that it has applied."""
        return self.role is _LEADER

    @property
    def proposal(self) -> IsrProposal | None:
        """The proposal in flight to the controller, or None."""
        return self._proposal

    @property
    def min_insync_replicas(self) -> int:
        """The configured ``min.insync.replicas``."""
        return self._min_insync_replicas

    @property
    def effective_min_isr(self) -> int:
        """``min.insync.replicas``, limited to the number of replicas."""
        return min(self._min_insync_replicas, len(self.state.replicas))

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The larger of the committed and the proposed ISR: all its members must have a record before it counts."""
        if self._proposal is not None and self._proposal.joining != NO_BROKER:
            return (*self.state.isr, self._proposal.joining)
        return self.state.isr

    def follower(self, broker_id: BrokerId) -> FollowerProgress | None:
        """Returns a leader's view of a follower; None for other brokers, and if this broker is a follower."""
        return self._followers.get(broker_id)

    def low_watermark(self, log_start_offset: Offset, eligible: Mapping[BrokerId, int]) -> Offset:
        """Returns the smallest log start offset of the leader and its live followers, for DeleteRecords."""
        return min(
            [
                log_start_offset,
                *(
                    f.log_start_offset
                    for broker, f in self._followers.items()
                    if broker in eligible and broker not in self._offline
                ),
            ]
        )

    def check_leader_epoch(self, current_leader_epoch: LeaderEpoch) -> ErrorCode:
        """Compares the leader epoch of a request with the present one; -1 is not checked (KIP-320)."""
        if current_leader_epoch in (NO_LEADER_EPOCH, self.state.leader_epoch):
            return _NO_ERROR
        if current_leader_epoch < self.state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    def check_access(self, current_leader_epoch: LeaderEpoch, *, leader_only: bool) -> ErrorCode:
        """Checks whether a request with that leader epoch may be served here."""
        error = self.check_leader_epoch(current_leader_epoch)
        if error is _NO_ERROR and self.role is not _LEADER and (leader_only or self.role is Role.NONE):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return error

    def check_append(self, acks: int) -> ErrorCode:
        """Checks whether a producer's records may be appended now."""
        if self.role is not _LEADER or self.lacks_producers:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if acks == -1 and len(self.state.isr) < self.effective_min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return _NO_ERROR

    def acknowledgement(self, leader_epoch: LeaderEpoch, required_offset: Offset) -> ErrorCode | None:
        """Returns the code to answer an acks=all append that ends at ``required_offset`` (exclusive).

        Returns None while the append has to wait. ``leader_epoch`` is the epoch of the append: after a change of
        leadership its outcome is unknown here.
        """
        if self.role is not _LEADER or self.state.leader_epoch != leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.high_watermark < required_offset:
            return None
        if len(self.maximal_isr) < self.effective_min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return _NO_ERROR

    def settlement(self, leader_epoch: LeaderEpoch, required_offset: Offset) -> ErrorCode | None:
        """Returns the code to answer an acks=1 append; None until the append is settled here."""
        if self.role is not Role.LEADER or self.state.leader_epoch != leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE if self.settled_end_offset >= required_offset else None

    # --- events ----------------------------------------------------------------------------------------------------

    def configure(
        self,
        *,
        min_insync_replicas: int | None = None,
        lag_time_max_ms: float | None = None,
        offline: tuple[BrokerId, ...] | None = None,
    ) -> None:
        """Applies changed configuration. On a leader call ``reconsider`` afterwards.

        ``offline`` are the replicas in failed log directories, for which the leader does not wait.
        """
        if offline is not None:
            self._offline = offline
        if min_insync_replicas is not None:
            self._min_insync_replicas = min_insync_replicas
        if lag_time_max_ms is not None:
            self._lag_time_max_ms = lag_time_max_ms

    def apply(
        self, state: PartitionState, log_end_offset: Offset, now_ms: float, settled_end_offset: Offset | None = None
    ) -> Applied:
        """Applies committed metadata. After LEADER or ISR_CHANGED call ``reconsider``.

        On LEADER the shell records ``(leader_epoch, log_end_offset)`` in the leader epoch cache before anything is
        appended. ``settled_end_offset`` defaults to the log end.
        """
        known = self.state
        if state.leader_epoch < known.leader_epoch or state.partition_epoch <= known.partition_epoch:
            return Applied.UNCHANGED
        new_epoch = state.leader_epoch > known.leader_epoch or state.leader != known.leader or self.role is Role.NONE
        self.state = state
        self._proposal = None
        self.log_end_offset = log_end_offset
        self.settled_end_offset = log_end_offset if settled_end_offset is None else settled_end_offset
        if state.leader != self.broker_id:
            self.role = Role.FOLLOWER
            self._followers = {}
            self.epoch_start_offset = UNKNOWN_OFFSET
            return Applied.FOLLOWER if new_epoch else Applied.ISR_CHANGED
        self.role = Role.LEADER
        if new_epoch:
            self.epoch_start_offset = log_end_offset
        self._followers = {
            replica: self._follower_of_new_state(replica, began=new_epoch, now_ms=now_ms)
            for replica in state.replicas
            if replica != self.broker_id
        }
        return Applied.LEADER if new_epoch else Applied.ISR_CHANGED

    def _follower_of_new_state(self, broker_id: BrokerId, *, began: bool, now_ms: float) -> FollowerProgress:
        known = self._followers.get(broker_id)
        if began or known is None:
            return FollowerProgress(now_ms if broker_id in self.state.isr else float("-inf"))
        return known

    def reconsider(self, now_ms: float, eligible: Mapping[BrokerId, int]) -> ReplicaEffects:
        """Computes the high watermark again after a change of metadata or configuration."""
        return self._leader_effects(now_ms, eligible)

    def log_end_moved(
        self,
        log_end_offset: Offset,
        now_ms: float,
        eligible: Mapping[BrokerId, int],
        settled_end_offset: Offset | None = None,
    ) -> ReplicaEffects:
        """Records that the local log grew (leader: appended; follower: replicated), or that more of it is settled.

        Call it after the bytes are in the log. ``settled_end_offset`` defaults to the log end.
        """
        assert log_end_offset >= self.log_end_offset, "a log end decreases by truncation only"
        self.log_end_offset = log_end_offset
        self.settled_end_offset = log_end_offset if settled_end_offset is None else settled_end_offset
        assert self.settled_end_offset <= log_end_offset, "settled records have been written"
        return self._leader_effects(now_ms, eligible)

    def truncated(self, log_end_offset: Offset) -> None:
        """Records that the local log of a follower was truncated to ``log_end_offset``."""
        assert self.role is not Role.LEADER, "a leader never truncates"
        self.log_end_offset = log_end_offset
        self.settled_end_offset = min(self.settled_end_offset, log_end_offset)
        self.high_watermark = min(self.high_watermark, log_end_offset)

    def restarted(self, log_start_offset: Offset) -> None:
        """Records that the local log of a follower was emptied and now starts at ``log_start_offset``.

        The leader has no records below that offset.
        """
        assert self.role is not Role.LEADER, "a leader never truncates"
        self.log_end_offset = self.settled_end_offset = log_start_offset
        self.high_watermark = log_start_offset

    def leader_high_watermark(self, high_watermark: Offset) -> bool:
        """Applies the leader's high watermark on a follower; returns True if its own advanced."""
        assert self.role is not Role.LEADER, "a leader does not follow"
        candidate = min(high_watermark, self.log_end_offset)
        if candidate <= self.high_watermark:
            return False
        self.high_watermark = candidate
        return True

    def followed(
        self,
        broker_id: BrokerId,
        broker_epoch: int,
        fetch_offset: Offset,
        log_start_offset: Offset,
        now_ms: float,
        eligible: Mapping[BrokerId, int],
    ) -> ReplicaEffects:
        """Handles a follower's fetch from ``fetch_offset`` in the present leader epoch.

        ``eligible`` maps each registered broker that is neither fenced nor shutting down to its broker epoch. The
        caller has compared leader epochs and checked for divergence, so the logs of leader and follower agree up to
        ``fetch_offset``.
        """
        if self.role is not Role.LEADER:
            return ReplicaEffects(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        follower = self._followers.get(broker_id)
        if follower is None or self._stale_broker_epoch(follower, broker_epoch):
            return ReplicaEffects(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if fetch_offset > self.log_end_offset:
            return ReplicaEffects(error=ErrorCode.OFFSET_OUT_OF_RANGE)
        follower.fetched(fetch_offset, log_start_offset, broker_epoch, self.log_end_offset, now_ms)
        proposal = None
        if self._proposal is None and broker_id not in self.state.isr and self._may_join(broker_id, follower, eligible):
            proposal = self._propose((*self.state.isr, broker_id), joining=broker_id, eligible=eligible)
        advanced = self._advance_high_watermark(now_ms, eligible)
        if proposal is None:
            return _ADVANCED if advanced else NO_EFFECTS
        return ReplicaEffects(high_watermark_advanced=advanced, proposal=proposal)

    def confirmed(
        self,
        broker_id: BrokerId,
        broker_epoch: int,
        fetch_offset: int,
        log_start_offset: int,
        leader_epoch: int,
        now_ms: float,
    ) -> bool:
        """Handles a fetch that repeats the last one of an in-sync follower with all records, all of them committed.

        Such a fetch has no effects. ``leader_epoch`` is that of the fetch. Returns False, and changes nothing, for all
        others: ``followed`` handles these.
        """
        follower = self._followers.get(broker_id)
        if (
            follower is None
            or self.role is not Role.LEADER
            or leader_epoch != self.state.leader_epoch
            or not fetch_offset == follower.log_end_offset == self.log_end_offset == self.high_watermark
            or follower.log_start_offset != log_start_offset
            or follower.broker_epoch != broker_epoch
            or broker_id not in self.state.isr
        ):
            return False
        # What ``FollowerProgress.fetched`` does for such a fetch.
        follower.last_fetch_ms = now_ms
        follower.last_fetch_leader_end_offset = self.log_end_offset
        if now_ms > follower.last_caught_up_ms:
            follower.last_caught_up_ms = now_ms
        return True

    @property
    def may_lag(self) -> bool:
        """Whether ``tick`` may have an effect before another event: a member of the ISR lacks records, or recovery."""
        return self.role is _LEADER and (
            self.state.recovering
            or any(
                follower.log_end_offset != self.log_end_offset and broker_id in self.state.isr
                for broker_id, follower in self._followers.items()
            )
        )

    def tick(self, now_ms: float, eligible: Mapping[BrokerId, int]) -> ReplicaEffects:
        """Proposes to remove lagging members of the ISR; call it every half of ``replica.lag.time.max.ms``."""
        if self.role is not Role.LEADER or self._proposal is not None:
            return NO_EFFECTS
        lagging = [
            broker_id
            for broker_id, follower in self._followers.items()
            if broker_id in self.state.isr
            and not follower.caught_up(self.log_end_offset, now_ms, self._lag_time_max_ms)
        ]
        if lagging:
            isr = tuple(broker_id for broker_id in self.state.isr if broker_id not in lagging)
            return ReplicaEffects(proposal=self._propose(isr, joining=NO_BROKER, eligible=eligible))
        if self.state.recovering:
            return ReplicaEffects(proposal=self._propose(self.state.isr, joining=NO_BROKER, eligible=eligible))
        return NO_EFFECTS

    def alter_answered(
        self,
        proposal: IsrProposal,
        error: ErrorCode,
        now_ms: float,
        eligible: Mapping[BrokerId, int],
    ) -> ReplicaEffects:
        """Handles the controller's answer to a proposal.

        A committed proposal stays (the maximal ISR continues to count) until it arrives in the metadata log. A proposal
        that was refused because this broker is out of date stays until newer metadata resolve it. The replica must not
        apply a committed ISR from the answer: ``min.insync.replicas`` may have been raised before it in the log, and a
        leader that counts the new ISR with the old minimum acknowledges records that an eligible leader replica lacks.
        A proposal refused with INELIGIBLE_REPLICA stays too: until the partition epoch that comes with the refusal, an
        earlier attempt may still arrive when the replica is eligible again. OPERATION_NOT_ATTEMPTED drops the proposal,
        unless it was sent before. After any other error the outcome is unknown: the same proposal is returned, to be
        sent after a back-off.
        """
        if self._proposal is not proposal:
            return NO_EFFECTS
        if error in _NOTHING_HAPPENED and not self._may_be_committed:
            self._proposal = None
            return self._leader_effects(now_ms, eligible)
        if error is ErrorCode.NONE or error in _OUT_OF_DATE:
            return NO_EFFECTS
        self._may_be_committed = True
        return ReplicaEffects(proposal=proposal)

    def alter_unanswered(self, proposal: IsrProposal) -> None:
        """Handles a proposal that was sent and not answered: the controller may have committed it, or still may.

        No answer to a repetition undoes that (KIP-497), so the proposal stays until metadata resolve it.
        """
        if self._proposal is proposal:
            self._may_be_committed = True

    # --- rules -----------------------------------------------------------------------------------------------------

    def _leader_effects(self, now_ms: float, eligible: Mapping[BrokerId, int]) -> ReplicaEffects:
        return _ADVANCED if self._advance_high_watermark(now_ms, eligible) else NO_EFFECTS

    def _stale_broker_epoch(self, follower: FollowerProgress, broker_epoch: int) -> bool:
        """Returns whether the fetch comes from an earlier registration of the broker."""
        return broker_epoch != UNKNOWN_BROKER_EPOCH and broker_epoch < follower.broker_epoch

    def _eligible(self, broker_id: BrokerId, follower: FollowerProgress, eligible: Mapping[BrokerId, int]) -> bool:
        """Returns whether the controller would admit the follower.

        It must be registered, not fenced, and fetch with the broker epoch of its registration (KIP-903).
        """
        registered = eligible.get(broker_id)
        if registered is None or broker_id in self._offline:
            return False
        return follower.broker_epoch in (UNKNOWN_BROKER_EPOCH, registered)

    def _may_join(self, broker_id: BrokerId, follower: FollowerProgress, eligible: Mapping[BrokerId, int]) -> bool:
        """Returns whether an outsider has all committed records and all records of earlier epochs."""
        return (
            follower.log_end_offset >= self.high_watermark
            and follower.log_end_offset >= self.epoch_start_offset
            and self._eligible(broker_id, follower, eligible)
        )

    def _waits_to_join(
        self, broker_id: BrokerId, follower: FollowerProgress, now_ms: float, eligible: Mapping[BrokerId, int]
    ) -> bool:
        """Returns whether the high watermark waits for an outsider that is close; it might never catch up otherwise."""
        return follower.caught_up(self.log_end_offset, now_ms, self._lag_time_max_ms) and self._eligible(
            broker_id, follower, eligible
        )

    def _high_watermark_candidate(self, now_ms: float, eligible: Mapping[BrokerId, int]) -> Offset:
        """Returns the smallest log end offset of the maximal ISR and of the replicas about to join it."""
        candidate = self.settled_end_offset
        maximal_isr = self.maximal_isr
        for broker_id, follower in self._followers.items():
            if follower.log_end_offset < candidate and (
                broker_id in maximal_isr or self._waits_to_join(broker_id, follower, now_ms, eligible)
            ):
                candidate = follower.log_end_offset
        return candidate

    def _advance_high_watermark(self, now_ms: float, eligible: Mapping[BrokerId, int]) -> bool:
        if self.role is not _LEADER:
            return False
        isr_size = len(self.state.isr)
        if isr_size < self._min_insync_replicas and isr_size < self.effective_min_isr:
            return False
        candidate = self._high_watermark_candidate(now_ms, eligible) if self._followers else self.settled_end_offset
        if candidate <= self.high_watermark:
            return False
        assert candidate <= self.settled_end_offset
        self.high_watermark = candidate
        return True

    def _propose(
        self, isr: tuple[BrokerId, ...], *, joining: BrokerId, eligible: Mapping[BrokerId, int]
    ) -> IsrProposal:
        assert self._proposal is None
        self._may_be_committed = False
        assert self.broker_id in isr, "a leader is always in its own ISR"
        self._proposal = IsrProposal(
            isr=isr,
            broker_epochs=tuple(self._broker_epoch_of(broker_id, eligible) for broker_id in isr),
            leader_epoch=self.state.leader_epoch,
            partition_epoch=self.state.partition_epoch,
            joining=joining,
            reports_recovery=isr == self.state.isr,
        )
        return self._proposal

    def _broker_epoch_of(self, broker_id: BrokerId, eligible: Mapping[BrokerId, int]) -> int:
        """Returns the broker epoch of the last fetch; the registered one for this broker and without a fetch."""
        follower = self._followers.get(broker_id)
        if follower is not None and follower.broker_epoch != UNKNOWN_BROKER_EPOCH:
            return follower.broker_epoch
        return eligible.get(broker_id, UNKNOWN_BROKER_EPOCH)


_NOTHING_HAPPENED = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED})
_OUT_OF_DATE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
