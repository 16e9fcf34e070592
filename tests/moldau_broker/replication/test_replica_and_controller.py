"""Goal: a leader and the controller agree on the replicas that a record needs, also when requests come late.

Method: one replica's rules against the controller's decisions, as values; answers and attempts come in a stated order.
"""

from __future__ import annotations

from itertools import chain, combinations
from uuid import UUID

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.values import BrokerId
from moldau_broker.replication.replica import PartitionState, Replica
from moldau_quorum.controller.partition_change import PartitionChange
from moldau_quorum.metadata.image import PartitionImage, changed_partition
from support.controller.model import ModelController

LEADER = BrokerId(1)


def state_of(partition: PartitionImage) -> PartitionState:
    return PartitionState(
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        replicas=partition.replicas,
        isr=partition.isr,
        adding_replicas=partition.adding_replicas,
        removing_replicas=partition.removing_replicas,
    )


def committed(controller: ModelController) -> PartitionState:
    return state_of(controller.partition("t"))


def eligible(controller: ModelController) -> dict[int, int]:
    return {broker_id: broker.broker_epoch for broker_id, broker in controller.image.brokers.items() if broker.active}


def test_a_late_attempt_admits_no_replica_refused_meanwhile() -> None:
    """A late AlterPartition request does not admit a replica that was refused meanwhile.

    The network holds the first attempt of a proposal; the controller refuses the second one because the replica is
    fenced. The records acknowledged after that must be on a leader that the first attempt makes eligible.
    """
    controller = ModelController()
    controller.join(1, 2, 3)
    assert controller.create("t", min_insync_replicas="2").error_code == 0
    leader, outside, other = controller.partition("t").replicas
    controller.fence(outside)
    controller.beat(outside)
    replica = Replica(leader, high_watermark=0, log_end_offset=0, lag_time_max_ms=30_000, min_insync_replicas=2)
    replica.apply(committed(controller), 0, 0)
    seen = eligible(controller)
    replica.followed(other, seen[other], 0, 0, 0, seen)
    proposal = replica.followed(outside, seen[outside], 0, 0, 1, seen).proposal
    assert proposal is not None

    def attempt() -> ErrorCode:
        epochs = dict(zip(proposal.isr, proposal.broker_epochs, strict=True))
        wrong = {"leader_epoch": proposal.leader_epoch, "partition_epoch": proposal.partition_epoch}
        return ErrorCode(controller.alter("t", list(proposal.isr), epochs=epochs, **wrong).error_code)

    controller.fence(outside)
    replica.log_end_moved(5, 2, seen)
    refusal = attempt()
    assert refusal is ErrorCode.INELIGIBLE_REPLICA
    replica.alter_answered(proposal, refusal, 3, eligible(controller))
    replica.followed(other, seen[other], 5, 0, 4, eligible(controller))
    assert replica.acknowledgement(proposal.leader_epoch, 5) is None, (
        "no acknowledgement before the ISR is in the metadata log"
    )
    replica.apply(committed(controller), 5, 5)
    replica.reconsider(5, eligible(controller))
    assert replica.acknowledgement(proposal.leader_epoch, 5) is ErrorCode.NONE

    controller.beat(outside)
    assert outside in eligible(controller)
    assert attempt() is ErrorCode.INVALID_UPDATE_VERSION
    controller.fence(leader)
    assert controller.partition("t").leader == other, "the new leader has all acknowledged records"


def parts(replicas: tuple[BrokerId, ...]) -> list[tuple[BrokerId, ...]]:
    return list(chain.from_iterable(combinations(replicas, count) for count in range(len(replicas) + 1)))


def shrunk(before: PartitionImage, isr: tuple[BrokerId, ...], minimum: int) -> PartitionImage:
    """Returns a partition after its leader has removed all others than ``isr`` from the in-sync replicas."""
    change = PartitionChange(
        topic_id=UUID(int=1),
        partition_id=0,
        partition=before,
        acceptable=lambda _: True,
        min_isr=minimum,
        isr=isr,
    )
    record = change.build()
    assert record is not None
    return changed_partition(before, record)


@pytest.mark.parametrize("minimum", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_leader_counts_as_the_controller_during_all_moves(count: int, minimum: int) -> None:
    """A leader commits no record while the controller keeps a replica eligible that lacks the record (KIP-966).

    It commits as soon as no such replica is left. Every move of some replicas is crossed with every in-sync set.
    """
    replicas = tuple(BrokerId(number) for number in range(1, count + 1))
    others = replicas[1:]
    seen = 0
    for removing in parts(replicas):
        for adding in parts(tuple(replica for replica in others if replica not in removing)):
            before = PartitionImage(
                replicas=replicas, isr=replicas, leader=LEADER, adding_replicas=adding, removing_replicas=removing
            )
            for rest in parts(others)[:-1]:
                after = shrunk(before, (LEADER, *rest), minimum)
                if after.leader != LEADER:
                    continue  # the move is complete, and this leader was to go
                lacking = after.elr
                subject = Replica(
                    LEADER, high_watermark=0, log_end_offset=0, lag_time_max_ms=1_000, min_insync_replicas=minimum
                )
                subject.apply(state_of(after), 0, 0)
                for member in after.isr:
                    if member != LEADER:
                        subject.followed(member, 1, 0, 0, 0, {})
                subject.log_end_moved(1, 1, {})
                for member in after.isr:
                    if member != LEADER:
                        subject.followed(member, 1, 1, 0, 2, {})
                assert (subject.high_watermark == 1) is not bool(lacking), after
                refused = ErrorCode.NOT_ENOUGH_REPLICAS if lacking else ErrorCode.NONE
                assert subject.check_append(-1) is refused, after
                seen += 1
    assert seen > 0
