"""Goal: a leader proposes to admit and to remove exactly those replicas that Kafka names.

Method: short stories of one replica, with the proposals that it makes.
"""

from __future__ import annotations

from moldau.protocol.errors import ErrorCode
from moldau.values import BrokerId, LeaderEpoch, Offset
from moldau_broker.replication.follower_progress import UNKNOWN_BROKER_EPOCH
from moldau_broker.replication.replica import NO_EFFECTS, Applied, PartitionState, Replica, ReplicaEffects

LAG_MS = 1_000.0
ME, OTHER = BrokerId(1), BrokerId(2)
ALIVE = {ME: 10, OTHER: 20}


def state(
    partition_epoch: int = 1, *, leader: int = 1, epoch: int = 1, isr: tuple[int, ...] = (1, 2)
) -> PartitionState:
    return PartitionState(
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=partition_epoch,
        replicas=(ME, OTHER),
        isr=tuple(map(BrokerId, isr)),
    )


def leader(*, isr: tuple[int, ...] = (1, 2)) -> Replica:
    subject = Replica(
        ME, high_watermark=Offset(0), log_end_offset=Offset(0), lag_time_max_ms=LAG_MS, min_insync_replicas=1
    )
    assert subject.apply(state(isr=isr), Offset(0), 0.0) is Applied.LEADER
    return subject


def fetch(
    subject: Replica, offset: int, now_ms: float, *, epoch: int = 20, eligible: dict[BrokerId, int] | None = None
) -> ReplicaEffects:
    return subject.followed(OTHER, epoch, Offset(offset), Offset(0), now_ms, ALIVE if eligible is None else eligible)


def test_a_follower_one_fetch_behind_is_caught_up() -> None:
    """It had all records at its last fetch; records that are appended between two fetches make no laggard (KIP-16)."""
    subject = leader()
    for number in range(1, 30):
        subject.log_end_moved(Offset(number), 100.0 * number, ALIVE)
        fetch(subject, number - 1, 100.0 * number)
        assert subject.tick(100.0 * number, ALIVE) == NO_EFFECTS
    subject.log_end_moved(Offset(31), 3_000.0, ALIVE)
    for now_ms in (3_000.0, 3_500.0, 4_000.0):
        fetch(subject, 28, now_ms)
    assert subject.tick(4_001.0, ALIVE).proposal is not None, "two fetches behind"


def test_a_replica_without_registration_may_not_join() -> None:
    for epoch in (UNKNOWN_BROKER_EPOCH, 20):
        for eligible in ({ME: 10}, {ME: 10, OTHER: 21}):
            subject = leader(isr=(1,))
            joins = fetch(subject, 0, 0.0, epoch=epoch, eligible=eligible).proposal is not None
            assert joins == (epoch == UNKNOWN_BROKER_EPOCH and OTHER in eligible)


def test_a_follower_proposes_nothing() -> None:
    """It knows neither the others' progress nor, after an unclean election, whether its leader has recovered."""
    subject = Replica(
        ME, high_watermark=Offset(0), log_end_offset=Offset(0), lag_time_max_ms=LAG_MS, min_insync_replicas=1
    )
    following = PartitionState(
        leader=OTHER,
        leader_epoch=LeaderEpoch(1),
        partition_epoch=1,
        replicas=(ME, OTHER),
        isr=(OTHER, ME),
        recovering=True,
    )
    assert subject.apply(following, Offset(0), 0.0) is Applied.FOLLOWER
    assert subject.tick(10 * LAG_MS, ALIVE) == NO_EFFECTS


def test_an_unknown_outcome_is_that_of_its_own_proposal() -> None:
    """A later proposal that the controller did not attempt is dropped, whatever happened to an earlier one."""
    subject = leader(isr=(1,))
    first = fetch(subject, 0, 0.0).proposal
    assert first is not None
    subject.alter_unanswered(first)
    subject.apply(state(partition_epoch=2, isr=(1, 2)), Offset(0), 0.0)
    subject.log_end_moved(Offset(1), 0.0, ALIVE)
    second = subject.tick(LAG_MS + 1, ALIVE).proposal
    assert second is not None
    assert second.isr == (ME,)
    assert subject.alter_answered(second, ErrorCode.OPERATION_NOT_ATTEMPTED, LAG_MS + 1, ALIVE) == NO_EFFECTS
    third = subject.tick(LAG_MS + 2, ALIVE).proposal
    assert third is not None, "the second was dropped, so the leader may propose again"


def test_an_append_with_acks_1_settles_in_its_epoch() -> None:
    subject = leader()
    subject.log_end_moved(Offset(5), 0.0, ALIVE, settled_end_offset=Offset(4))
    assert subject.settlement(LeaderEpoch(1), Offset(4)) is ErrorCode.NONE
    assert subject.settlement(LeaderEpoch(1), Offset(5)) is None
    assert subject.settlement(LeaderEpoch(0), Offset(4)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    subject.apply(state(2, leader=2, epoch=2), Offset(5), 0.0)
    assert subject.settlement(LeaderEpoch(2), Offset(4)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert subject.settlement(LeaderEpoch(1), Offset(4)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
