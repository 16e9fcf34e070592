"""Goal: each transition seen from outside of a cluster is counted once, and the invisible ones are listed.

Method: short histories and series of one partition by hand.
"""

import pytest

from moldau_jepsen.chaos.observe.reached import MEMBER, PARTITION, QUORUM, TRANSACTION, Reached, changes, reached_hint
from moldau_jepsen.history import Evidence, Kind, Lead, Operation, Send, Status, TopicPartition
from moldau_jepsen.reports.over_time import Active, PartitionSeries, PartitionState

P = TopicPartition("t", 0)
QUORUM_LOG = TopicPartition("__cluster_metadata", 0)
WHOLE = PartitionState(0.0, 1, 4, (1, 2, 3), 3)


def operation(index, kind, status=Status.OK, **more):
    return Operation(
        index=index,
        process=more.pop("process", 1),
        kind=kind,
        status=status,
        begun_ms=index,
        ended_ms=index * 1000.0,
        **more,
    )


def counts(machines, name):
    rows = next(one for one in machines if one.name == name).transitions
    return {(row.before, row.after): row.count for row in rows if row.count}


@pytest.mark.parametrize(
    ("after", "found"),
    [
        (WHOLE._replace(since_s=9.0), []),
        (WHOLE._replace(leader=2, leader_epoch=5), ["leader changes"]),
        (WHOLE._replace(leader_epoch=5), ["same leader, new epoch"]),
        (WHOLE._replace(leader=-1, leader_epoch=5, isr=(1,)), ["loses its leader", "in-sync set shrinks"]),
        (WHOLE._replace(isr=(1, 2)), ["in-sync set shrinks"]),
        (
            WHOLE._replace(isr=(1, 2, 4), replicas=4),
            ["in-sync set shrinks", "in-sync set grows", "number of replicas changes"],
        ),
    ],
)
def test_changes_between_two_looks(after, found):
    assert changes(WHOLE, after) == found


def test_a_partition_that_gets_a_leader_back():
    gone = WHOLE._replace(leader=-1, leader_epoch=5)
    assert changes(gone, WHOLE._replace(leader_epoch=6)) == ["gets a leader"]
    series = PartitionSeries(name="t-0", states=(WHOLE, gone, WHOLE._replace(leader_epoch=6)), high_watermarks=())
    machines = Reached().machines((series, series))
    assert counts(machines, PARTITION) == {("", "loses its leader"): 2, ("", "gets a leader"): 2}
    never = [row.after for row in next(one for one in machines if one.name == PARTITION).never]
    assert "in-sync set shrinks" in never


def test_outcomes_of_transactions():
    send = Send(P, 0, None)
    reached = Reached()
    history = [
        operation(0, Kind.TRANSACTION, operations=(send,)),
        operation(1, Kind.TRANSACTION, operations=(send,), aborted=True),
        operation(2, Kind.TRANSACTION, Status.INFO, operations=(send,)),
        operation(3, Kind.TRANSACTION, Status.FAIL, operations=(send,)),
        operation(4, Kind.SEND, operations=(send,)),
    ]
    assert list(reached.passing(history)) == history
    found = counts(reached.machines(()), TRANSACTION)
    assert found == {("begun", each): 1 for each in ("committed", "aborted", "outcome unknown", "failed")}


def test_members_of_groups():
    reached = Reached()
    for index, (process, kind, partitions) in enumerate(
        [
            (1, Kind.SUBSCRIBE, (P,)),
            (2, Kind.SUBSCRIBE, ()),
            (1, Kind.SUBSCRIBE, (P,)),
            (2, Kind.SUBSCRIBE, ()),
            (1, Kind.CRASH, ()),
            (2, Kind.SUBSCRIBE, (P,)),
            (3, Kind.CRASH, ()),
        ]
    ):
        reached.add(operation(index, kind, process=process, partitions=partitions))
    assert counts(reached.machines(()), MEMBER) == {
        ("outside", "owns partitions"): 1,
        ("outside", "owns none"): 1,
        ("owns partitions", "owns partitions"): 1,
        ("owns partitions", "outside"): 1,
        ("owns none", "owns partitions"): 1,
    }


def test_leaders_of_the_quorum_are_those_that_claim_to_be():
    reached = Reached()
    claims = [(1, 101), (1, 101), (3, 102), (4, 102), (2, 103)]
    for index, (epoch, controller) in enumerate(claims):
        lead = Lead(QUORUM_LOG, epoch, controller, Evidence.CLAIMED)
        reached.add(operation(index, Kind.CLAIM, leads=(lead, Lead(P, 7, 1, Evidence.SERVED))))
    assert reached.active == (Active(0.0, 101, 1), Active(2.0, 102, 3), Active(3.0, 102, 4)), "the last came too late"
    assert counts(reached.machines(()), QUORUM) == {
        ("", "first active controller"): 1,
        ("", "another controller becomes active"): 1,
        ("", "same controller, new epoch"): 1,
    }


def test_unobserved_machines_are_not_called_never_reached():
    names = [one.name for one in Reached().machines((), has_looked=False)]
    assert names == [TRANSACTION, MEMBER]
    assert "not observed: the cluster was started elsewhere" in reached_hint(has_looked=False)
    assert "once a second" in reached_hint(has_looked=True)
