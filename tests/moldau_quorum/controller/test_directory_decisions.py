"""Log directories in the controller's decisions (KIP-858): assignment, failure, return, eligible leaders."""

from __future__ import annotations

from uuid import UUID

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import assign_replicas_to_dirs as m
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau_quorum.controller.cluster.directories import ASSIGNMENTS_MAX
from moldau_quorum.metadata.directory_ids import LOST, MIGRATING, UNASSIGNED
from moldau_quorum.metadata.records import NO_LEADER, BrokerRegistrationChangeRecord
from support.controller.directories import assign, cluster, join, one, two
from support.controller.model import check_partition


def test_a_new_replica_gets_the_only_or_the_reported_directory() -> None:
    """A new replica is in its broker's only directory, or in the one that the broker reports."""
    controller = cluster()
    join(controller, 3, one(3))
    controller.create("t")
    partition = controller.partition("t")
    assert {b: partition.directory(b) for b in (1, 2, 3)} == {1: UNASSIGNED, 2: UNASSIGNED, 3: one(3)}
    assert assign(controller, 1, "t", 0, two(1)) == ErrorCode.NONE
    changed = controller.partition("t")
    assert changed.directory(1) == two(1)
    assert (changed.leader, changed.leader_epoch, changed.isr) == (
        partition.leader,
        partition.leader_epoch,
        partition.isr,
    )
    commands = len(controller.commands)
    assert assign(controller, 1, "t", 0, two(1)) == ErrorCode.NONE
    assert len(controller.commands) == commands, "what is recorded is not recorded again"


def test_assignments_that_make_no_sense_are_refused_one_by_one() -> None:
    controller = cluster()
    controller.create("t", factor=2)
    (stranger,) = {1, 2, 3} - set(controller.partition("t").replicas)
    assert assign(controller, stranger, "t", 0, one(stranger)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    holder = controller.partition("t").replicas[0]
    assert assign(controller, holder, "t", 5, one(holder)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert assign(controller, holder, "t", 0, one(holder), topic_id=UUID(int=99)) == ErrorCode.UNKNOWN_TOPIC_ID
    assert assign(controller, holder, "t", 0, MIGRATING) == ErrorCode.INVALID_REQUEST
    assert assign(controller, holder, "t", 0, one(holder), broker_epoch=1) == ErrorCode.STALE_BROKER_EPOCH
    too_many = m.AssignReplicasToDirsRequest(
        broker_id=holder,
        broker_epoch=controller.image.brokers[holder].broker_epoch,
        directories=[
            m.DirectoryData(
                id=one(holder),
                topics=[
                    m.TopicData(
                        topic_id=UUID(int=7),
                        partitions=[m.PartitionData(partition_index=n) for n in range(ASSIGNMENTS_MAX + 1)],
                    )
                ],
            )
        ],
    )
    assert controller.handle(too_many).error_code == ErrorCode.INVALID_REQUEST


def test_a_failed_directory_affects_only_its_own_replicas() -> None:
    """One command removes the replicas in a failed directory from leadership and ISR; others are unaffected."""
    controller = cluster()
    controller.create("t", partitions=12)
    for index in range(12):
        for broker_id in (1, 2, 3):
            assert assign(controller, broker_id, "t", index, (one, two)[index % 2](broker_id)) == 0
    before = [controller.partition("t", index) for index in range(12)]
    commands = len(controller.commands)
    answer = controller.beat(2, offline_log_dirs=[one(2)])
    assert (answer.error_code, answer.is_fenced) == (0, False)
    assert len(controller.commands) == commands + 1
    assert isinstance(controller.commands[-1][-1], BrokerRegistrationChangeRecord), "the registration changes last"
    assert controller.image.brokers[2].log_dirs == (two(2),)
    for index in range(12):
        partition = controller.partition("t", index)
        check_partition(partition)
        if index % 2:
            assert partition == before[index]
        else:
            assert partition.isr == tuple(b for b in before[index].isr if b != 2)
            assert partition.leader in (1, 3)
            assert (partition.leader_epoch > before[index].leader_epoch) == (before[index].leader == 2)
            assert partition.directory(2) == one(2), "where the replica is does not change"
    controller.beat(2, offline_log_dirs=[one(2)])
    assert len(controller.commands) == commands + 1, "what is known is not decided again"


def test_directories_that_fail_together_go_together() -> None:
    """Two of three fail between two heartbeats."""
    controller = cluster()
    kept = UUID(int=7_777)
    join(controller, 2, one(2), kept, two(2))
    controller.create("t", partitions=3)
    for index, directory in enumerate((one(2), kept, two(2))):
        assert assign(controller, 2, "t", index, directory) == 0
    controller.beat(2, offline_log_dirs=[one(2), two(2)])
    assert controller.image.brokers[2].log_dirs == (kept,)
    assert [2 in controller.partition("t", index).isr for index in range(3)] == [False, True, False]


def test_no_unclean_election_takes_the_replica_that_has_failed() -> None:
    """The registration names the directory as working until the end of the decision."""
    controller = cluster()
    controller.create("t", unclean_leader_election_enable="true")
    for broker_id in (1, 2, 3):
        assign(controller, broker_id, "t", 0, one(broker_id))
    leader, second, _ = controller.partition("t").replicas
    controller.alter("t", [leader])
    controller.beat(leader, offline_log_dirs=[one(leader)])
    partition = controller.partition("t")
    assert (partition.leader, partition.isr, controller.unclean) == (second, (second,), 1)


def test_a_replica_in_a_failed_directory_neither_joins_nor_leads() -> None:
    """A replica in a failed directory neither joins the ISR nor leads until the directory works again."""
    controller = cluster(min_insync_replicas=2)
    controller.create("t")
    for broker_id in (1, 2, 3):
        assign(controller, broker_id, "t", 0, one(broker_id))
    controller.beat(2, offline_log_dirs=[one(2)])
    assert controller.alter("t", [1, 2, 3]).error_code == ErrorCode.INELIGIBLE_REPLICA
    controller.beat(3, offline_log_dirs=[one(3)])
    assert controller.partition("t").isr == (1,)
    assert controller.partition("t").elr == (3,), "it left when the ISR was too small: it has all that was acknowledged"
    controller.fence(1)
    partition = controller.partition("t")
    assert (partition.leader, partition.isr, set(partition.elr)) == (NO_LEADER, (), {1, 3})
    join(controller, 3, two(3))
    assert controller.partition("t").leader == NO_LEADER, "its directory is still away"
    join(controller, 3, one(3), two(3))
    assert controller.partition("t").leader == 3


def test_an_unclean_directory_ends_the_eligibility_to_lead() -> None:
    """A broker whose directory was not closed cleanly leaves the ELR."""
    controller = cluster(min_insync_replicas=2)
    controller.create("t")
    for broker_id in (1, 2, 3):
        assign(controller, broker_id, "t", 0, one(broker_id))
    controller.beat(2, offline_log_dirs=[one(2)])
    controller.beat(3, offline_log_dirs=[one(3)])
    assert controller.partition("t").elr == (3,)
    join(controller, 3, one(3), two(3), clean=False)
    assert controller.partition("t").elr == ()
    assert controller.partition("t").leader == 1


def test_a_replica_reported_in_a_failed_directory_leaves_the_isr() -> None:
    """A replica that is reported in a failed or lost directory leaves the ISR, and returns with a working one."""
    controller = cluster()
    controller.create("t")
    leader = controller.partition("t").leader
    for directory in (LOST, UUID(int=77_777)):
        assert assign(controller, leader, "t", 0, directory) == 0
        partition = controller.partition("t")
        assert leader not in partition.isr
        assert partition.leader not in (leader, NO_LEADER)
        assert assign(controller, leader, "t", 0, two(leader)) == 0
        assert controller.alter("t", [1, 2, 3]).error_code == 0
        leader = controller.partition("t").leader


def test_the_last_replica_is_elected_in_a_working_directory() -> None:
    """The last replica is elected when its broker reports it in a working directory."""
    controller = cluster()
    controller.create("t", factor=1)
    (holder,) = controller.partition("t").replicas
    assert assign(controller, holder, "t", 0, LOST) == 0
    assert controller.partition("t").leader == NO_LEADER
    assert controller.partition("t").last_known_elr == (holder,)
    assert assign(controller, holder, "t", 0, one(holder)) == 0
    assert controller.partition("t").leader == holder


def test_directory_failures_are_decided_before_state_changes() -> None:
    """A heartbeat's directory failures are decided before the broker is unfenced or stopped."""
    controller = cluster()
    controller.create("t", factor=1)
    (holder,) = controller.partition("t").replicas
    assign(controller, holder, "t", 0, one(holder))
    controller.fence(holder)
    assert controller.partition("t").leader == NO_LEADER
    answer = controller.beat(holder, offline_log_dirs=[one(holder)])
    assert answer.is_fenced
    assert controller.partition("t").leader == NO_LEADER
    answer = controller.beat(holder, offline_log_dirs=[one(holder)])
    assert not answer.is_fenced
    assert controller.partition("t").leader == NO_LEADER, "unfenced, but the directory does not work"


def test_a_directory_belongs_to_one_broker() -> None:
    controller = cluster()
    controller.sessions.remove(3)
    refused = controller.register(3, incarnation=2, log_dirs=[one(3), two(1)])
    assert refused.error_code == ErrorCode.INVALID_REGISTRATION


def test_directories_go_along_with_a_reassignment() -> None:
    controller = cluster()
    join(controller, 4, one(4))
    controller.create("t", factor=2)
    first, second = controller.partition("t").replicas
    assign(controller, first, "t", 0, one(first))
    assign(controller, second, "t", 0, two(second))
    request = AlterPartitionReassignmentsRequest(
        topics=[
            ReassignableTopic(name="t", partitions=[ReassignablePartition(partition_index=0, replicas=[4, second])])
        ]
    )
    assert controller.handle(request).responses[0].partitions[0].error_code == 0
    partition = controller.partition("t")
    assert [partition.directory(b) for b in (4, second, first)] == [one(4), two(second), one(first)]
    assert controller.alter("t", [4, second, first]).error_code in (0, ErrorCode.NEW_LEADER_ELECTED)
    partition = controller.partition("t")
    assert (partition.replicas, partition.directories) == ((4, second), (one(4), two(second)))


@pytest.mark.parametrize("partitions", [60])
def test_random_failures_keep_every_partition_valid(partitions: int) -> None:
    import random

    draw = random.Random(1)
    controller = cluster(min_insync_replicas=2)
    controller.create("t", partitions=partitions)
    for _ in range(300):
        broker_id = draw.choice((1, 2, 3))
        broker = controller.image.brokers[broker_id]
        index = draw.randrange(partitions)
        kind = draw.choice(("assign", "fail", "fence", "restart", "alter"))
        if kind == "assign":
            assert assign(controller, broker_id, "t", index, draw.choice((one(broker_id), two(broker_id), LOST))) == 0
        elif kind == "fail" and len(broker.log_dirs) == 2:
            controller.beat(broker_id, offline_log_dirs=[draw.choice(broker.log_dirs)])
        elif kind == "fence":
            controller.fence(broker_id)
        elif kind == "restart":
            join(controller, broker_id, one(broker_id), two(broker_id), clean=draw.random() < 0.5)
        elif kind == "alter" and controller.partition("t", index).leader != NO_LEADER:
            controller.alter("t", [1, 2, 3], index)
        for number in range(partitions):
            partition = controller.partition("t", number)
            check_partition(partition)
            for member in partition.isr:
                assert controller.image.replica_online(partition, member)
