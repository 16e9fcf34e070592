"""Goal: a leader and the controller agree on the replicas that a record needs, also when requests come late.

Method: one replica's rules against the controller's decisions, as values; answers and attempts come in a stated order.
"""

from __future__ import annotations

from moldau.protocol.errors import ErrorCode
from moldau_broker.replication.replica import PartitionState, Replica
from support.controller.model import ModelController


def committed(controller: ModelController) -> PartitionState:
    partition = controller.partition("t")
    return PartitionState(
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        replicas=partition.replicas,
        isr=partition.isr,
    )


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
