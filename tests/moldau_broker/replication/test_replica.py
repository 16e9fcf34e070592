"""Goal: each rule of a replica holds on its own.

Method: short stories with stated effects, and every role crossed with every event.
"""

from __future__ import annotations

import itertools
import random

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.replication.replica import (
    NO_EFFECTS,
    Applied,
    FollowerProgress,
    IsrProposal,
    PartitionState,
    Replica,
    ReplicaEffects,
    Role,
)

ALIVE = {1: 10, 2: 20, 3: 30}
LAG = 1000.0


def state(
    leader: int = 1,
    leader_epoch: int = 1,
    partition_epoch: int = 1,
    isr: tuple[int, ...] = (1, 2, 3),
    replicas: tuple[int, ...] = (1, 2, 3),
    **more: bool,
) -> PartitionState:
    return PartitionState(
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        replicas=replicas,
        isr=isr,
        recovering=more.get("recovering", False),
    )


def replica(broker_id: int = 1, *, end: int = 0, high_watermark: int = 0, min_isr: int = 1) -> Replica:
    return Replica(
        broker_id,
        high_watermark=high_watermark,
        log_end_offset=end,
        lag_time_max_ms=LAG,
        min_insync_replicas=min_isr,
    )


def leader(*, isr: tuple[int, ...] = (1, 2, 3), end: int = 0, high_watermark: int = 0, min_isr: int = 1) -> Replica:
    made = replica(end=end, high_watermark=high_watermark, min_isr=min_isr)
    assert made.apply(state(isr=isr), end, 0) is Applied.LEADER
    return made


def fetched(
    subject: Replica, broker_id: int, offset: int, now_ms: float = 0, epoch: int | None = None
) -> ReplicaEffects:
    return subject.followed(broker_id, ALIVE[broker_id] if epoch is None else epoch, offset, 0, now_ms, ALIVE)


# --- high watermark ------------------------------------------------------------------------------------------------


def test_the_high_watermark_follows_the_slowest_in_sync_replica() -> None:
    subject = leader()
    assert subject.log_end_moved(10, 0, ALIVE) == NO_EFFECTS
    assert fetched(subject, 2, 10) == NO_EFFECTS
    assert fetched(subject, 3, 4).high_watermark_advanced
    assert subject.high_watermark == 4
    assert fetched(subject, 3, 10).high_watermark_advanced
    assert subject.high_watermark == 10


def test_a_lone_leader_commits_at_once() -> None:
    subject = replica()
    subject.apply(state(isr=(1,), replicas=(1,)), 0, 0)
    assert subject.log_end_moved(3, 0, ALIVE).high_watermark_advanced
    assert subject.high_watermark == 3


def test_it_never_goes_back_when_a_follower_reports_less() -> None:
    subject = leader()
    subject.log_end_moved(10, 0, ALIVE)
    fetched(subject, 2, 10)
    fetched(subject, 3, 10)
    assert fetched(subject, 3, 2) == NO_EFFECTS
    assert subject.high_watermark == 10


def test_it_stands_still_below_min_insync_replicas() -> None:
    subject = leader(isr=(1,), min_isr=2)
    assert not subject.log_end_moved(5, 0, ALIVE).high_watermark_advanced
    assert subject.high_watermark == 0
    assert subject.check_append(-1) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert subject.check_append(1) is ErrorCode.NONE


def test_a_replica_about_to_join_makes_no_append_possible() -> None:
    """An append counts the committed in-sync replicas only, because the controller may refuse the new one."""
    subject = leader(isr=(1,), end=10, high_watermark=10, min_isr=2)
    assert fetched(subject, 2, 10).proposal is not None
    assert subject.maximal_isr == (1, 2)
    assert subject.check_append(-1) is ErrorCode.NOT_ENOUGH_REPLICAS
    subject.apply(state(isr=(1, 2), partition_epoch=2), 10, 0)
    assert subject.check_append(-1) is ErrorCode.NONE


def test_min_insync_replicas_is_capped_by_the_replication_factor() -> None:
    subject = replica(min_isr=3)
    subject.apply(state(isr=(1,), replicas=(1,)), 0, 0)
    assert subject.effective_min_isr == 1
    assert subject.log_end_moved(1, 0, ALIVE).high_watermark_advanced


def test_a_new_leader_waits_for_its_followers_to_speak() -> None:
    subject = replica(end=8, high_watermark=5)
    subject.apply(state(isr=(1, 2)), 8, 0)
    assert subject.reconsider(0, ALIVE) == NO_EFFECTS
    assert subject.high_watermark == 5
    assert fetched(subject, 2, 8).high_watermark_advanced
    assert subject.high_watermark == 8


def test_it_waits_for_an_outsider_that_is_about_to_join() -> None:
    subject = leader(isr=(1,), end=10, high_watermark=10)
    effects = fetched(subject, 2, 10)
    assert effects.proposal is not None
    assert not subject.log_end_moved(11, 1, ALIVE).high_watermark_advanced
    assert subject.high_watermark == 10


def test_a_laggard_outside_the_isr_delays_no_commit() -> None:
    subject = leader(isr=(1, 2), end=100, high_watermark=0)
    fetched(subject, 3, 1)
    assert fetched(subject, 2, 100).high_watermark_advanced
    assert subject.high_watermark == 100


# --- in-sync replicas ----------------------------------------------------------------------------------------------


def test_a_laggard_outside_the_isr_causes_no_proposal() -> None:
    subject = leader(isr=(1, 2))
    subject.log_end_moved(10, 0, ALIVE)
    fetched(subject, 2, 10, now_ms=3 * LAG)
    assert subject.tick(3 * LAG, ALIVE) == NO_EFFECTS


def test_a_lagging_member_counts_until_its_removal_is_committed() -> None:
    """The leader proposes to remove a lagging member, which counts until the removal is committed."""
    subject = leader()
    subject.log_end_moved(5, 0, ALIVE)
    fetched(subject, 2, 5, 900)
    assert subject.tick(LAG, ALIVE) == NO_EFFECTS
    effects = subject.tick(LAG + 1, ALIVE)
    assert effects.proposal is not None
    assert effects.proposal.isr == (1, 2)
    assert effects.proposal.broker_epochs == (10, 20)
    assert subject.maximal_isr == (1, 2, 3)
    assert subject.high_watermark == 0, "the high watermark waits until the shrink is committed"
    assert subject.tick(LAG + 2, ALIVE) == NO_EFFECTS, "one proposal at a time"
    committed = state(isr=(1, 2), partition_epoch=2)
    assert subject.alter_answered(effects.proposal, ErrorCode.NONE, LAG + 3, ALIVE) == NO_EFFECTS
    assert subject.high_watermark == 0, "and until the metadata log has brought it"
    assert subject.apply(committed, 5, LAG + 4) is Applied.ISR_CHANGED
    assert subject.reconsider(LAG + 4, ALIVE).high_watermark_advanced
    assert subject.high_watermark == 5


def test_a_committed_shrink_waits_for_the_raised_minimum() -> None:
    """A shrunk ISR counts with the minimum that precedes it in the metadata log."""
    subject = leader(isr=(1, 2), min_isr=1)
    fetched(subject, 2, 0)
    subject.log_end_moved(5, 10, ALIVE)
    proposal = subject.tick(LAG + 11, ALIVE).proposal
    assert proposal is not None
    # The minimum was raised to 2 meanwhile: broker 2 is an eligible leader, and must have each committed record.
    subject.alter_answered(proposal, ErrorCode.NONE, LAG + 12, ALIVE)
    subject.log_end_moved(6, LAG + 13, ALIVE)
    assert subject.acknowledgement(1, 5) is None
    subject.configure(min_insync_replicas=2)
    subject.apply(state(isr=(1,), partition_epoch=2), 6, LAG + 14)
    assert subject.reconsider(LAG + 14, ALIVE) == NO_EFFECTS
    assert subject.high_watermark == 0


def test_a_committed_expansion_waits_for_the_raised_minimum() -> None:
    """An expanded ISR counts with the minimum that precedes it in the metadata log.

    With two of four in sync and a minimum of three, a record on those two may be missing on an eligible leader.
    """
    subject = replica(end=1, high_watermark=1, min_isr=2)
    subject.apply(
        state(isr=(1,), replicas=(1, 2, 3, 4)), 1, 0
    )  # broker 2 left below the minimum: it is an eligible leader
    proposal = fetched(subject, 3, 1).proposal
    assert proposal is not None
    subject.alter_answered(proposal, ErrorCode.NONE, 1, ALIVE)
    subject.log_end_moved(2, 2, ALIVE)
    fetched(subject, 3, 2, 3)
    assert subject.acknowledgement(1, 2) is None
    subject.configure(min_insync_replicas=3)
    subject.apply(state(isr=(1, 3), replicas=(1, 2, 3, 4), partition_epoch=2), 2, 4)
    assert subject.reconsider(4, ALIVE) == NO_EFFECTS
    assert subject.high_watermark == 1


def test_a_silent_member_at_the_log_end_stays_in_sync() -> None:
    """A member at the log end stays in sync, however long it sends no fetch."""
    subject = leader()
    assert subject.tick(1e9, ALIVE).proposal is not None, "broker 2 has never fetched"
    subject = leader(end=5)
    fetched(subject, 2, 5)
    fetched(subject, 3, 5)
    assert subject.tick(1e9, ALIVE) == NO_EFFECTS


def test_an_outsider_that_caught_up_counts_at_once() -> None:
    """An outsider that has caught up is proposed for the ISR, and counts at once."""
    subject = leader(isr=(1, 2), end=10, high_watermark=10)
    assert fetched(subject, 3, 9) == NO_EFFECTS
    effects = fetched(subject, 3, 10)
    assert effects.proposal is not None
    assert (effects.proposal.isr, effects.proposal.joining) == ((1, 2, 3), 3)
    assert subject.maximal_isr == (1, 2, 3)
    subject.log_end_moved(12, 1, ALIVE)
    fetched(subject, 2, 12, 1)
    assert subject.high_watermark == 10


def test_an_outsider_below_the_start_of_the_epoch_may_not_join() -> None:
    subject = leader(isr=(1,), end=10, high_watermark=4)
    assert fetched(subject, 2, 9).proposal is None
    assert fetched(subject, 2, 10).proposal is not None


def test_an_outsider_below_the_high_watermark_may_not_join() -> None:
    """A record below the high watermark must be on each member, also if it was appended in this epoch."""
    subject = leader(isr=(1,), end=4, high_watermark=4)
    subject.log_end_moved(10, 0, ALIVE)
    assert subject.high_watermark == 10
    assert fetched(subject, 2, 9, now_ms=3 * LAG).proposal is None
    assert fetched(subject, 2, 10, now_ms=3 * LAG).proposal is not None


def test_a_former_life_of_a_broker_may_neither_fetch_nor_join() -> None:
    subject = leader(isr=(1,), end=10, high_watermark=10)
    assert fetched(subject, 2, 10, epoch=19).proposal is None, "not its registered epoch"
    assert fetched(subject, 2, 10, epoch=20).proposal is not None
    assert fetched(subject, 2, 10, epoch=19).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_proposal_names_the_broker_epochs_of_the_last_fetches() -> None:
    """The controller must see that a member has restarted since: it may have lost what it had (KIP-903)."""
    subject = leader(isr=(1, 2), end=10, high_watermark=10)
    fetched(subject, 2, 10)
    effects = subject.followed(3, 30, 10, 0, 0, {**ALIVE, 2: 25})
    assert effects.proposal is not None
    assert (effects.proposal.isr, effects.proposal.broker_epochs) == ((1, 2, 3), (10, 20, 30))


def test_a_fenced_broker_may_not_join() -> None:
    subject = leader(isr=(1,), end=10, high_watermark=10)
    assert subject.followed(2, 20, 10, 0, 0, {1: 10}).proposal is None


def test_strangers_and_offsets_from_the_future_are_refused() -> None:
    subject = leader(end=3)
    assert subject.followed(9, 1, 0, 0, 0, ALIVE).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert fetched(subject, 2, 4).error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_refused_fetch_counts_for_nothing() -> None:
    """It is from beyond the log end, or of an earlier registration; records that come later would seem replicated."""
    for offset, epoch in ((7, 20), (9, 20), (5, 19), (7, 19)):
        subject = leader(isr=(1, 2), end=5)
        fetched(subject, 2, 4, now_ms=1)
        assert fetched(subject, 2, offset, now_ms=2, epoch=epoch).error is not ErrorCode.NONE
        seen = subject.follower(2)
        assert seen is not None
        assert (seen.log_end_offset, seen.broker_epoch, seen.last_fetch_ms) == (4, 20, 1)
        subject.log_end_moved(9, 3, ALIVE)
        assert subject.high_watermark == 4
        assert not subject.followed(2, 20, 4, 0, 4, ALIVE).high_watermark_advanced


def test_a_refusal_that_changed_nothing_drops_the_proposal() -> None:
    subject = leader(isr=(1,), end=1, high_watermark=1)
    proposal = fetched(subject, 2, 1).proposal
    assert proposal is not None
    subject.log_end_moved(2, LAG * 3, ALIVE)
    assert subject.alter_answered(proposal, ErrorCode.OPERATION_NOT_ATTEMPTED, LAG * 3, ALIVE).high_watermark_advanced
    assert subject.maximal_isr == (1,)


def test_a_refused_repetition_does_not_undo_the_first_attempt() -> None:
    """The first attempt may have been committed, so the larger ISR counts until metadata say otherwise."""
    subject = leader(isr=(1,), end=1, high_watermark=1)
    proposal = fetched(subject, 2, 1).proposal
    assert proposal is not None
    subject.log_end_moved(2, 0, ALIVE)
    for error in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.OPERATION_NOT_ATTEMPTED):
        assert subject.alter_answered(proposal, error, LAG * 3, ALIVE) == ReplicaEffects(proposal=proposal)
    assert subject.maximal_isr == (1, 2)
    assert subject.high_watermark == 1


@pytest.mark.parametrize(
    "error", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INELIGIBLE_REPLICA]
)
def test_out_of_date_keeps_the_larger_isr_until_metadata_comes(error: ErrorCode) -> None:
    subject = leader(isr=(1,), end=1, high_watermark=1)
    proposal = fetched(subject, 2, 1).proposal
    assert proposal is not None
    assert subject.alter_answered(proposal, error, 0, ALIVE) == NO_EFFECTS
    assert subject.maximal_isr == (1, 2)
    assert subject.apply(state(isr=(1,), partition_epoch=2), 1, 0) is Applied.ISR_CHANGED
    assert subject.maximal_isr == (1,)


@pytest.mark.parametrize("error", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_an_unknown_outcome_is_asked_again(error: ErrorCode) -> None:
    subject = leader(isr=(1,), end=1, high_watermark=1)
    proposal = fetched(subject, 2, 1).proposal
    assert proposal is not None
    assert subject.alter_answered(proposal, error, 0, ALIVE).proposal is proposal
    assert subject.maximal_isr == (1, 2)


def test_an_answer_older_than_the_metadata_changes_nothing() -> None:
    """An answer to a proposal that newer metadata have resolved changes nothing."""
    subject = leader(isr=(1,), end=1, high_watermark=1)
    proposal = fetched(subject, 2, 1).proposal
    assert proposal is not None
    subject.apply(state(isr=(1,), partition_epoch=5), 1, 0)
    assert subject.alter_answered(proposal, ErrorCode.NONE, 0, ALIVE) == NO_EFFECTS
    assert subject.state.isr == (1,)


def test_an_unclean_leader_reports_its_recovery() -> None:
    subject = replica(end=2)
    subject.apply(state(isr=(1,), recovering=True), 2, 0)
    effects = subject.tick(0, ALIVE)
    assert effects.proposal is not None
    assert effects.proposal.isr == (1,)


# --- acknowledgements ----------------------------------------------------------------------------------------------


def test_acknowledged_when_committed_in_the_same_epoch() -> None:
    subject = leader(isr=(1, 2))
    subject.log_end_moved(4, 0, ALIVE)
    assert subject.acknowledgement(1, 4) is None
    fetched(subject, 2, 4)
    assert subject.acknowledgement(1, 4) is ErrorCode.NONE
    assert subject.acknowledgement(0, 4) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_not_enough_replicas_after_append() -> None:
    subject = leader(isr=(1, 2), min_isr=2)
    subject.log_end_moved(4, 0, ALIVE)
    fetched(subject, 2, 4)
    subject.apply(state(isr=(1,), partition_epoch=2), 4, 0)
    assert subject.acknowledgement(1, 4) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_a_deposed_leader_acknowledges_nothing() -> None:
    subject = leader(isr=(1,))
    subject.log_end_moved(4, 0, ALIVE)
    subject.apply(state(leader=2, leader_epoch=2, partition_epoch=2), 4, 0)
    assert subject.acknowledgement(1, 4) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert subject.check_append(1) is ErrorCode.NOT_LEADER_OR_FOLLOWER


# --- epochs --------------------------------------------------------------------------------------------------------


def test_leader_epochs_are_compared() -> None:
    subject = leader()
    subject.apply(state(leader_epoch=3, partition_epoch=2), 0, 0)
    assert subject.check_leader_epoch(-1) is ErrorCode.NONE
    assert subject.check_leader_epoch(3) is ErrorCode.NONE
    assert subject.check_leader_epoch(2) is ErrorCode.FENCED_LEADER_EPOCH
    assert subject.check_leader_epoch(4) is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_access_depends_on_epoch_and_role() -> None:
    """Followers serve requests that do not need the leader; a wrong epoch is reported before a wrong role."""
    nothing, following = replica(), replica(2)
    following.apply(state(leader_epoch=3), 0, 0)
    leading = leader()
    wrong = ErrorCode.NOT_LEADER_OR_FOLLOWER
    for subject, for_leader, for_any in (
        (nothing, wrong, wrong),
        (following, wrong, ErrorCode.NONE),
        (leading, ErrorCode.NONE, ErrorCode.NONE),
    ):
        assert subject.check_access(-1, leader_only=True) is for_leader
        assert subject.check_access(-1, leader_only=False) is for_any
    assert following.check_access(2, leader_only=True) is ErrorCode.FENCED_LEADER_EPOCH
    assert following.check_access(4, leader_only=False) is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_old_metadata_is_ignored() -> None:
    subject = leader()
    assert subject.apply(state(partition_epoch=1, isr=(1,)), 0, 0) is Applied.UNCHANGED
    assert subject.apply(state(leader_epoch=0, partition_epoch=9), 0, 0) is Applied.UNCHANGED
    assert subject.state.isr == (1, 2, 3)


def test_a_new_epoch_forgets_what_followers_had() -> None:
    subject = leader()
    subject.log_end_moved(5, 0, ALIVE)
    fetched(subject, 2, 5)
    assert subject.apply(state(leader_epoch=2, partition_epoch=2), 5, 0) is Applied.LEADER
    follower = subject.follower(2)
    assert follower is not None
    assert follower.log_end_offset == -1
    assert subject.epoch_start_offset == 5


def test_a_replica_that_is_added_within_an_epoch_begins_unknown() -> None:
    """A reassignment adds replicas without a new leader epoch; what the others have is still known."""
    subject = leader()
    subject.log_end_moved(5, 0, ALIVE)
    fetched(subject, 2, 5)
    assert subject.apply(state(partition_epoch=2, replicas=(1, 2, 3, 4)), 5, 0) is Applied.ISR_CHANGED
    added, known = subject.follower(4), subject.follower(2)
    assert added is not None
    assert known is not None
    assert (added.log_end_offset, known.log_end_offset) == (-1, 5)


# --- followers -----------------------------------------------------------------------------------------------------


def test_the_high_watermark_of_a_follower_is_capped_and_grows() -> None:
    """A follower's high watermark is the smaller of the leader's and its own log end, and never decreases."""
    subject = replica(2)
    subject.apply(state(), 0, 0)
    subject.log_end_moved(10, 0, ALIVE)
    assert subject.leader_high_watermark(20)
    assert subject.high_watermark == 10
    assert not subject.leader_high_watermark(3)
    assert subject.high_watermark == 10


def test_metadata_come_with_the_present_log_end() -> None:
    """The log may have changed since the last event, so a new role begins with the log end that it is given."""
    subject = replica(2, end=10, high_watermark=5)
    subject.apply(state(), 7, 0)
    assert (subject.log_end_offset, subject.settled_end_offset) == (7, 7)


def test_truncation_takes_the_high_watermark_along() -> None:
    subject = replica(2, end=10, high_watermark=8)
    subject.apply(state(), 10, 0)
    subject.truncated(9)
    assert (subject.log_end_offset, subject.high_watermark) == (9, 8)
    subject.truncated(5)
    assert (subject.log_end_offset, subject.high_watermark) == (5, 5)
    assert subject.settled_end_offset == 5, "what was cut away is not settled"


def test_a_follower_that_restarts_its_log() -> None:
    subject = replica(2, end=10, high_watermark=8)
    subject.apply(state(), 10, 0)
    subject.restarted(40)
    assert (subject.log_end_offset, subject.high_watermark) == (40, 40)


FOLLOWED: tuple[tuple[str, int], ...] = (
    ("grows", 3),
    ("truncated", 2),
    ("restarted", 1),
    ("restarted", 6),
    ("leader_high_watermark", 4),
)
"""Changes of the log of a follower, with the number of records or the offset."""


def test_a_follower_knows_nothing_committed_that_it_lacks() -> None:
    """Its high watermark ends with its log, also if that was longer before.

    As the next leader it would acknowledge records at once that no other replica has.
    """
    for events in itertools.product(FOLLOWED, repeat=4):
        subject = replica(2, end=5, high_watermark=5)
        subject.apply(state(), 5, 0)
        for name, number in events:
            if name == "grows":
                subject.log_end_moved(subject.log_end_offset + number, 0, ALIVE)
            elif name == "truncated":
                subject.truncated(min(number, subject.log_end_offset))
            else:
                getattr(subject, name)(number)
            assert subject.settled_end_offset <= subject.log_end_offset, events
            assert subject.high_watermark <= subject.log_end_offset, events
        end = subject.log_end_offset
        subject.apply(state(leader=2, leader_epoch=2, partition_epoch=2), end, 0)
        subject.log_end_moved(end + 1, 0, ALIVE)
        assert subject.acknowledgement(2, end + 1) is None, events


# --- every role, every event ---------------------------------------------------------------------------------------

EVENTS = ["followed", "tick", "log_end", "reconsider", "answered", "truncated", "leader_hw", "ack"]


@pytest.mark.parametrize("role", [Role.NONE, Role.LEADER, Role.FOLLOWER])
@pytest.mark.parametrize("event", EVENTS)
def test_every_role_meets_every_event(role: Role, event: str) -> None:
    subject = replica()
    if role is Role.LEADER:
        subject.apply(state(isr=(1, 2)), 0, 0)
    elif role is Role.FOLLOWER:
        subject.apply(state(leader=2), 0, 0)
    assert subject.role is role
    assert subject.is_leader is (role is Role.LEADER)
    foreign = IsrProposal(isr=(1,), broker_epochs=(10,), leader_epoch=1, partition_epoch=1)
    is_leader = role is Role.LEADER
    if event == "followed":
        effects = fetched(subject, 2, 0)
        assert effects.error is (ErrorCode.NONE if is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER)
    elif event == "tick":
        assert (subject.tick(1e9, ALIVE).proposal is not None) == is_leader
    elif event == "log_end":
        assert subject.log_end_moved(5, 0, ALIVE) == NO_EFFECTS
        assert subject.log_end_offset == 5
    elif event == "reconsider":
        assert subject.reconsider(0, ALIVE) == NO_EFFECTS
    elif event == "answered":
        assert subject.alter_answered(foreign, ErrorCode.NONE, 0, ALIVE) == NO_EFFECTS
    elif event == "truncated":
        if is_leader:
            with pytest.raises(AssertionError, match="never truncates"):
                subject.truncated(0)
        else:
            subject.truncated(0)
    elif event == "leader_hw":
        if is_leader:
            with pytest.raises(AssertionError, match="does not follow"):
                subject.leader_high_watermark(1)
        else:
            assert not subject.leader_high_watermark(1)
    elif event == "ack":
        expected = ErrorCode.NONE if is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert subject.acknowledgement(1, 0) is expected


def visible(subject: Replica) -> tuple[object, ...]:
    """All that a leader knows."""
    followers = {
        broker_id: [getattr(follower, name) for name in FollowerProgress.__slots__]
        for broker_id, follower in subject._followers.items()
    }
    return subject.log_end_offset, subject.high_watermark, subject.state, str(subject._proposal), followers


@pytest.mark.parametrize("seed", range(20))
def test_confirmed_fetches_are_those_without_effects(seed: int) -> None:
    """The same random fetches, appends and metadata: once as ``followed`` alone, once with ``confirmed`` first."""
    drawn = random.Random(seed)
    plain, quick = leader(), leader()
    now, confirmed, partition_epoch = 0.0, 0, 1
    epochs = dict(ALIVE)
    for _ in range(300):
        now += drawn.choice([1, 10, LAG])
        if drawn.random() < 0.15:
            end = plain.log_end_offset + drawn.randrange(3)
            assert str(plain.log_end_moved(end, now, ALIVE)) == str(quick.log_end_moved(end, now, ALIVE))
        elif drawn.random() < 0.1:
            partition_epoch += 1
            changed = state(isr=drawn.choice([(1, 2), (1, 3), (1, 2, 3)]), partition_epoch=partition_epoch)
            for subject in (plain, quick):
                subject.apply(changed, subject.log_end_offset, now)
                subject.reconsider(now, ALIVE)
        broker_id, offset = drawn.choice([2, 3]), plain.log_end_offset - drawn.choice([0, 0, 0, 0, 1])
        epochs[broker_id] += drawn.random() < 0.01
        epoch, start = epochs[broker_id], int(drawn.random() < 0.1)
        effects = plain.followed(broker_id, epoch, offset, start, now, ALIVE)
        if quick.confirmed(broker_id, epoch, offset, start, 1, now):
            confirmed += 1
            assert effects == NO_EFFECTS
        else:
            assert str(quick.followed(broker_id, epoch, offset, start, now, ALIVE)) == str(effects)
        assert visible(quick) == visible(plain)
    assert 10 < confirmed < 280
    assert not quick.confirmed(2, epochs[2], quick.log_end_offset, 0, 0, now), "a fetch of another leader epoch"


def test_low_watermark_counts_live_followers() -> None:
    subject = leader(end=10, high_watermark=10)
    subject.followed(2, 20, 10, 3, 0, ALIVE)
    subject.followed(3, 30, 10, 7, 0, ALIVE)
    assert subject.low_watermark(9, ALIVE) == 3
    assert subject.low_watermark(9, {1: 10, 3: 30}) == 7
    subject.configure(offline=(2,))
    assert subject.low_watermark(9, ALIVE) == 7, "its directory has failed, though its broker lives"
    subject.configure(lag_time_max_ms=LAG)
    assert subject.low_watermark(9, ALIVE) == 7
    subject.configure(offline=())
    assert subject.low_watermark(9, ALIVE) == 3
