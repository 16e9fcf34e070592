"""Each rule of the judge convicts its violation, and a sound history is acquitted."""

import pytest

from moldau_jepsen.simulation.judge.invariants import BatchSeen, ClusterInvariants, PartitionKey, PartitionState

KEY = PartitionKey("t", 0, "id")
LATE = PartitionKey("l", 0, "id")
CLEANED = PartitionKey("c", 0, "id")


def batch(base, last, epoch=1, crc=0):
    return BatchSeen(base, last, epoch, crc)


def state(leader=1, leader_epoch=1, isr=(1, 2), replicas=(1, 2, 3), elr=()):
    return PartitionState(leader, leader_epoch, isr, replicas, elr)


def sound(judge):
    judge.controller_active(101, 1)
    judge.controller_active(101, 1)
    judge.controller_active(102, 2)
    for node in (101, 102):
        judge.metadata_committed(node, 1, 1, 0xABC)
    judge.partition_state(KEY, 0, state(), "broker 1")
    judge.partition_state(KEY, 0, state(), "broker 2")
    judge.leader(KEY, 1, 1)
    judge.leader_watermark(KEY, 1, 1, 1, 0)
    judge.committed(KEY, 1, 1, [batch(0, 4), batch(5, 5)])
    judge.leader_watermark(KEY, 1, 1, 1, 6)
    judge.committed(KEY, 2, 1, [batch(0, 4)])
    judge.isr_holds(KEY, 1, 6, 2, 6)
    judge.acknowledged(KEY, 5)
    judge.partition_state(KEY, 1, state(leader=2, leader_epoch=2, isr=(2,), elr=(1,)), "broker 2")
    judge.elected(KEY, 2, 2, 0, {0: batch(0, 4), 5: batch(5, 5), 6: batch(6, 9)})
    judge.elected(KEY, 2, 2, 5, {5: batch(5, 5)})
    judge.leader_watermark(KEY, 2, 1, 2, 0)
    judge.committed(KEY, 2, 2, [batch(5, 5), batch(6, 9, epoch=2)], 5)
    judge.committed(KEY, 2, 2, [batch(0, 4), batch(5, 5)], 3)  # the log begins within a batch
    # Seed 160007: a starting broker applies its own leadership before the one that follows it.
    judge.elected(KEY, 1, 1, 0, {0: batch(0, 4), 5: batch(5, 5)})
    # Seed 200303: what that later leader has committed may be of an old epoch.
    judge.committed(LATE, 1, 1, [batch(0, 4)])
    judge.committed(LATE, 3, 3, [batch(5, 5, epoch=2)])
    judge.elected(LATE, 2, 2, 0, {0: batch(0, 4)})
    judge.elected(LATE, 2, 4, 0, {0: batch(0, 4), 5: batch(5, 5, epoch=2)})
    judge.committed_to(CLEANED, 1, 5)
    judge.committed_to(CLEANED, 3, 8)
    judge.committed_to(CLEANED, 3, 6)  # a leader that has just begun knows less than was committed
    judge.leader_ends(CLEANED, 1, 2, 5)
    judge.leader_ends(CLEANED, 1, 3, 8)


BROKEN = {
    "one-controller": lambda judge: judge.controller_active(103, 2),
    "metadata-prefix": lambda judge: judge.metadata_committed(103, 1, 1, 0xABD),
    "one-leader": lambda judge: judge.leader(KEY, 2, 3),
    "watermark-monotone": lambda judge: judge.leader_watermark(KEY, 1, 1, 1, 5),
    "acked-is-committed": lambda judge: judge.acknowledged(KEY, 10),
    "isr-holds": lambda judge: judge.isr_holds(KEY, 2, 10, 3, 9),
}
BROKEN_MORE = [
    ("partition-state", lambda judge: judge.partition_state(KEY, 1, state(isr=(1,)), "broker 1")),
    ("partition-state", lambda judge: judge.partition_state(KEY, 7, state(leader=3, leader_epoch=7), "broker 1")),
    ("partition-state", lambda judge: judge.partition_state(KEY, 7, state(leader=-1, isr=(9,)), "broker 1")),
    ("partition-state", lambda judge: judge.partition_state(KEY, 7, state(leader=-1, elr=(2,)), "broker 1")),
    ("log-agreement", lambda judge: judge.committed(KEY, 3, 3, [batch(0, 4, crc=1)])),
    ("log-agreement", lambda judge: judge.committed(KEY, 3, 3, [batch(5, 5, epoch=2)])),
    ("log-agreement", lambda judge: judge.committed(KEY, 3, 3, [batch(0, 3)])),
    ("log-agreement", lambda judge: judge.committed(KEY, 3, 3, [batch(2, 4)])),
    ("log-agreement", lambda judge: judge.committed(KEY, 3, 3, [batch(0, 4), batch(6, 9, epoch=2)])),
    ("log-agreement", lambda judge: judge.committed(KEY, 3, 3, [batch(5, 5)], 3)),
    ("leader-completeness", lambda judge: judge.elected(KEY, 3, 3, 0, {0: batch(0, 4)})),
    ("leader-completeness", lambda judge: judge.elected(KEY, 2, 2, 0, {0: batch(0, 4), 5: batch(5, 5)})),
    ("leader-completeness", lambda judge: judge.elected(LATE, 2, 2, 0, {})),
    ("leader-completeness", lambda judge: judge.elected(LATE, 2, 4, 0, {0: batch(0, 4)})),
    ("leader-completeness", lambda judge: judge.leader_ends(CLEANED, 1, 2, 4)),
    ("leader-completeness", lambda judge: judge.leader_ends(CLEANED, 1, 3, 7)),
    ("leader-completeness", lambda judge: judge.elected(KEY, 3, 3, 6, {6: batch(6, 9, epoch=3)})),
]


def test_a_sound_history_is_acquitted():
    judge = ClusterInvariants(lambda: 1.5)
    sound(judge)
    assert judge.violations == []


def test_records_below_a_watermark_count_without_their_log():
    """The leader's disk had gone between the sync and the answer."""
    judge = ClusterInvariants(lambda: 1.5)
    sound(judge)
    judge.leader_watermark(KEY, 2, 1, 2, 11)
    judge.acknowledged(KEY, 10)
    assert judge.violations == []
    judge.acknowledged(KEY, 11)
    assert [violation.invariant for violation in judge.violations] == ["acked-is-committed"]


@pytest.mark.parametrize(("invariant", "breaks"), [*BROKEN.items(), *BROKEN_MORE])
def test_each_rule_convicts(invariant, breaks):
    judge = ClusterInvariants(lambda: 1.5)
    sound(judge)
    breaks(judge)
    assert [violation.invariant for violation in judge.violations] == [invariant]
    assert str(judge.violations[0]).startswith(f"1.500000 s: {invariant}: ")
