"""Goal: a node is restarted only when it is all that is missing, in the right order.

Method: pictures of a cluster made by hand, and properties over the order.
"""

import dataclasses
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.admin import PartitionDescription, QuorumDescription, QuorumReplica, TopicDescription
from moldau_cli.health import VOTER_SILENCE_MS_MAX
from moldau_cli.plans.roll import (
    ANSWER_DELAY_MS,
    Comeback,
    Picture,
    RollNode,
    absent,
    next_node,
    obstacles,
    out_of_sync,
    roll_nodes,
    tolerated_after,
    unserved_meanwhile,
)

NODES = roll_nodes({1: ("b1", 9092), 2: ("b2", 9092)}, {101: ("c1", 9093), 102: ("c2", 9093), 103: ("c3", 9093)})
NOW_MS = 1_000_000


def quorum(leader=101, ages=(0, 50, 80), ends=(70, 70, 70)):
    return QuorumDescription(
        leader_id=leader,
        leader_epoch=3,
        high_watermark=70,
        voters=tuple(
            QuorumReplica(replica_id=node, log_end_offset=end, last_fetch_ms=NOW_MS - age, last_caught_up_ms=-1)
            for node, age, end in zip((101, 102, 103), ages, ends, strict=True)
        ),
        observers=(),
    )


def topic(name, *partitions):
    return TopicDescription(
        name=name,
        topic_id=UUID(int=1),
        is_internal=False,
        partitions=tuple(
            PartitionDescription(partition=number, leader=leader, leader_epoch=0, replicas=replicas, isr=isr)
            for number, (leader, replicas, isr) in enumerate(partitions)
        ),
    )


WHOLE = Picture(quorum=quorum(), live=frozenset({1, 2}), topics={"t": topic("t", (1, (1, 2), (2, 1)))})


def test_nothing_is_in_the_way_of_a_whole_cluster():
    assert obstacles(WHOLE, NODES, log_end=70) == []
    assert absent(WHOLE, NODES) == frozenset()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"quorum": quorum(leader=-1)}, "no controller is active"),
        ({"quorum": quorum(ages=(0, VOTER_SILENCE_MS_MAX + 1, 0))}, "controller 102 does not answer the active one"),
        ({"quorum": quorum(ends=(70, 70, 64))}, "controller 103 lacks 6 records of the metadata log"),
        ({"quorum": dataclasses.replace(quorum(), voters=quorum().voters[:2])}, "controller 103 is not a voter"),
        ({"live": frozenset({1})}, "broker 2 is not in service"),
        ({"topics": {"t": topic("t", (1, (1, 2), (1,)))}}, "t-0 lacks a replica in sync"),
        ({"topics": {"t": topic("t", (-1, (1,), (1,)), (1, (1, 2), (1,)))}}, "t-0 and 1 more partitions lack"),
    ],
)
def test_each_obstacle_is_named(change, said):
    found = obstacles(dataclasses.replace(WHOLE, **change), NODES, log_end=70)
    assert len(found) == 1
    assert said in found[0]


def test_accepted_replicas_are_no_obstacle():
    """Another replica of the same partition is one: both together could be all that there is."""
    lacking = dataclasses.replace(WHOLE, topics={"t": topic("t", (1, (1, 2), (1,)), (2, (1, 2), (1, 2)))})
    assert out_of_sync(lacking.topics) == {("t", 0, 2)}
    assert obstacles(lacking, NODES, tolerated={("t", 0, 2)}) == []
    assert obstacles(lacking, NODES, tolerated={("t", 0, 1)}) == ["t-0 lacks a replica in sync"]
    down = dataclasses.replace(lacking, live=frozenset({1}), quorum=quorum(ages=(0, 10**6, 0)))
    assert absent(down, NODES) == {2, 102}


def test_a_restart_ends_what_was_accepted_of_its_node():
    """Its replicas were out of sync, or lacked a leader that it may be; without another one they cannot catch up."""
    topics = {"t": topic("t", (-1, (1,), (1,)), (-1, (1, 2), (2,)), (3, (1, 2, 3), (3,)), (-1, (1, 2), (1,)))}
    tolerated = out_of_sync(topics)
    missing = {("t", 0, -1), ("t", 1, -1), ("t", 3, -1)}
    assert tolerated == missing | {("t", 1, 1), ("t", 2, 1), ("t", 2, 2), ("t", 3, 2)}
    assert tolerated_after(tolerated, 1, topics) == {("t", 1, -1), ("t", 1, 1), ("t", 2, 2), ("t", 3, 2)}
    assert tolerated_after(tolerated, 101, topics) == tolerated


nodes = st.lists(
    st.builds(
        RollNode,
        node_id=st.integers(1, 50),
        roles=st.sampled_from([("broker",), ("controller",), ("controller", "broker")]),
        host=st.just("h"),
        port=st.just(1),
    ),
    min_size=1,
    unique_by=lambda node: node.node_id,
)


@given(nodes=nodes, leader=st.integers(1, 50))
def test_controllers_come_first_and_the_active_one_last(nodes, leader):
    remaining, order = list(nodes), []
    while remaining:
        order.append(next_node(remaining, leader))
        remaining.remove(order[-1])
    kinds = ["controller" in node.roles for node in order]
    assert kinds == sorted(kinds, reverse=True)
    controllers = [node.node_id for node in order if "controller" in node.roles]
    assert leader not in controllers or controllers[-1] == leader


def test_a_node_with_both_roles_is_one_process():
    found = roll_nodes({1: ("h", 9092)}, {1: ("h", 9093), 2: ("i", 9093)})
    assert [(one.node_id, one.roles, one.port) for one in found] == [
        (1, ("controller", "broker"), 9092),
        (2, ("controller",), 9093),
    ]


def test_an_answer_of_the_old_process_does_not_count():
    """The leader heard it shortly before the first look; later answers are the new process's, also by a new leader."""
    comeback = Comeback(102)
    assert not comeback.has_answered(quorum(ages=(0, 10, 0)))
    assert not comeback.has_answered(quorum(ages=(0, 10, 0)))
    assert not comeback.has_answered(quorum(ages=(0, -ANSWER_DELAY_MS, 0)))
    assert not comeback.has_answered(quorum(leader=-1))
    assert not comeback.has_answered(quorum(leader=103, ages=(0, -9_999, -9_999)))
    assert comeback.has_answered(quorum(leader=103, ages=(0, -10_200, -10_250)))


def test_a_voter_that_leads_after_its_restart_has_answered():
    comeback = Comeback(101)
    assert not comeback.has_answered(quorum())
    assert comeback.has_answered(quorum(ages=(-500, 0, 0)))


def test_partitions_that_need_each_replica_are_named():
    topics = {
        "single": topic("single", (1, (1,), (1,))),
        "strict": topic("strict", (1, (1, 2), (1, 2))),
        "safe": topic("safe", (1, (1, 2), (1, 2))),
    }
    found = unserved_meanwhile(topics, {"strict": 2, "safe": 1, "single": 2}, [1, 2])
    assert found == [("single-0", "1 replica"), ("strict-0", "2 replicas, min.insync.replicas 2")]
    assert [subject for subject, _ in unserved_meanwhile(topics, {"strict": 2}, [2])] == ["strict-0"]


def test_a_broker_may_have_the_number_zero() -> None:
    assert out_of_sync({"t": topic("t", (0, (0, 1), (0, 1)))}) == frozenset()
    assert out_of_sync({"t": topic("t", (-1, (0, 1), (0,)))}) == {("t", 0, 1), ("t", 0, -1)}
