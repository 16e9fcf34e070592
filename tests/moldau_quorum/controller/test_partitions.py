"""Stories of one partition: ISR changes, elections, eligible leader replicas, each against the error codes of Kafka.

Decisions are made by the pure controller and applied to an image at once; no shell, no time.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import settings

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest
from moldau.values import BrokerId
from moldau_quorum.controller.context import DecisionView
from moldau_quorum.controller.partition_change import RECOVERED, RECOVERING, Election, PartitionChange
from moldau_quorum.controller.walks import balance_leaders, with_last
from moldau_quorum.metadata.image import PartitionImage, changed_partition
from moldau_quorum.metadata.records import NO_LEADER
from support.controller.model import ModelController
from support.controller.partition_machine import MovingPartitionMachine, PartitionMachine
from support.proof import examples

if TYPE_CHECKING:
    from collections.abc import Iterator


def three_brokers(**configs: str) -> ModelController:
    controller = ModelController()
    controller.join(1, 2, 3)
    assert controller.create("t", **configs).error_code == 0
    return controller


def elect(controller: ModelController, election_type: int, partition: int = 0) -> int:
    response = controller.handle(
        ElectLeadersRequest(
            election_type=election_type, topic_partitions=[TopicPartitions(topic="t", partitions=[partition])]
        )
    )
    return response.replica_election_results[0].partition_result[0].error_code


def test_the_leader_shrinks_and_expands_its_isr() -> None:
    controller = three_brokers()
    before = controller.partition("t")
    leader = before.leader
    outcome = controller.alter("t", [leader])
    assert (outcome.error_code, list(outcome.isr)) == (0, [leader])
    assert outcome.partition_epoch == before.partition_epoch + 1
    assert outcome.leader_epoch == before.leader_epoch, "an ISR change alone does not fence the leader (KAFKA-15021)"
    outcome = controller.alter("t", [1, 2, 3])
    assert outcome.error_code == 0
    assert controller.partition("t").isr == before.replicas


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"leader_epoch": 7}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"partition_epoch": 7}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"topic_id": UUID(int=99)}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"broker_epoch": 1}, ErrorCode.STALE_BROKER_EPOCH),
    ],
)
def test_stale_or_wrong_epochs_change_nothing(wrong: dict, code: ErrorCode) -> None:
    controller = three_brokers()
    before = controller.image
    assert controller.alter("t", [1, 2, 3], **wrong).error_code == code
    assert controller.image is before


def test_a_refused_replica_is_final_for_all_attempts() -> None:
    """The refusal raises the partition epoch, so an attempt that arrives when the replica is eligible again fails."""
    controller = three_brokers()
    before = controller.partition("t")
    outside = next(b for b in (1, 2, 3) if b != before.leader)
    controller.fence(outside)
    fenced = controller.partition("t")
    attempt = {"partition_epoch": fenced.partition_epoch, "leader_epoch": fenced.leader_epoch}
    assert controller.alter("t", [1, 2, 3], **attempt).error_code == ErrorCode.INELIGIBLE_REPLICA
    after = controller.partition("t")
    assert after == replace(fenced, partition_epoch=fenced.partition_epoch + 1)
    controller.beat(outside)
    assert controller.image.brokers[outside].active
    assert controller.alter("t", [1, 2, 3], **attempt).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert controller.partition("t") == after
    assert controller.alter("t", [1, 2, 3]).error_code == 0, "the leader's next proposal is of the new epoch"


def test_others_than_the_leader_and_malformed_isrs_are_refused() -> None:
    controller = three_brokers()
    leader = controller.partition("t").leader
    other = next(b for b in (1, 2, 3) if b != leader)
    controller.join(4)
    assert controller.alter("t", [1, 2, 3], leader=other).error_code == ErrorCode.INVALID_REQUEST
    assert controller.alter("t", [other]).error_code == ErrorCode.INVALID_REQUEST
    assert controller.alter("t", [1, 2, 3, 4]).error_code == ErrorCode.INVALID_REQUEST
    assert controller.alter("t", [leader, leader]).error_code == ErrorCode.INVALID_REQUEST
    assert controller.alter("t", [leader], recovery=1).error_code == ErrorCode.INVALID_REQUEST
    assert controller.alter("t", [leader], recovery=5).error_code == ErrorCode.INVALID_REQUEST


def test_fenced_stopping_and_restarted_replicas_cannot_join() -> None:
    controller = three_brokers()
    leader = controller.partition("t").leader
    follower, stopping = (b for b in (1, 2, 3) if b != leader)
    stale_epoch = controller.image.brokers[follower].broker_epoch
    controller.fence(follower)
    assert controller.partition("t").isr == tuple(r for r in controller.partition("t").replicas if r != follower)
    refused = controller.alter("t", [1, 2, 3])
    assert refused.error_code == ErrorCode.INELIGIBLE_REPLICA
    controller.join(follower)
    # The leader saw the old incarnation catch up; the new one has proved nothing (KIP-903).
    refused = controller.alter("t", [1, 2, 3], epochs={follower: stale_epoch})
    assert refused.error_code == ErrorCode.INELIGIBLE_REPLICA
    assert controller.alter("t", [1, 2, 3]).error_code == 0
    controller.beat(stopping, want_shut_down=True)
    assert stopping not in controller.partition("t").isr
    assert controller.alter("t", [1, 2, 3]).error_code == ErrorCode.INELIGIBLE_REPLICA


def test_members_with_another_broker_epoch_are_refused_too() -> None:
    """The leader may have seen the member's former process, also where that was in sync (KIP-903)."""
    controller = three_brokers()
    partition = controller.partition("t")
    assert partition.isr == partition.replicas
    member = next(replica for replica in partition.isr if replica != partition.leader)
    former = {member: controller.image.brokers[member].broker_epoch - 1}
    assert controller.alter("t", [partition.leader, member], epochs=former).error_code == ErrorCode.INELIGIBLE_REPLICA
    assert controller.partition("t").isr == partition.isr


def test_a_live_isr_member_leads_in_replica_order() -> None:
    """The controller elects the first live ISR member in the order of the replicas."""
    controller = three_brokers()
    before = controller.partition("t")
    controller.fence(before.leader)
    after = controller.partition("t")
    assert after.leader == before.replicas[1]
    assert after.leader_epoch == before.leader_epoch + 1
    assert after.isr == before.replicas[1:]
    assert after.elr == ()


def test_the_last_replica_is_eligible_again_after_a_restart() -> None:
    """KIP-966: with min.insync.replicas=2 the ISR may shrink to none without loss of acknowledged records."""
    controller = three_brokers(min_insync_replicas="2")
    first, second, third = controller.partition("t").replicas
    controller.fence(third)
    assert controller.partition("t").elr == ()
    controller.fence(second)
    assert (controller.partition("t").isr, controller.partition("t").elr) == ((first,), (second,))
    controller.fence(first)
    partition = controller.partition("t")
    assert (partition.leader, partition.isr, set(partition.elr)) == (-1, (), {first, second})
    controller.join(third)  # it left the ISR while that was still large enough: it may lack acknowledged records
    assert controller.partition("t").leader == -1
    controller.join(second)
    partition = controller.partition("t")
    assert (partition.leader, partition.isr, partition.elr) == (second, (second,), (first,))
    assert partition.leader_recovery_state == 0
    assert controller.alter("t", [second, third]).error_code == 0
    assert controller.partition("t").elr == ()


def test_after_lost_state_only_the_last_known_leader_leads() -> None:
    """Replicas that lost their state are not eligible, but the last known leader may be elected."""
    controller = three_brokers(min_insync_replicas="2")
    first, second, third = controller.partition("t").replicas
    controller.fence(third)
    controller.fence(second)
    controller.fence(first)
    controller.unclean_restart(second)
    assert controller.partition("t").elr == (first,)
    controller.beat(second)
    assert controller.partition("t").leader == -1
    controller.unclean_restart(first)
    partition = controller.partition("t")
    assert (partition.isr, partition.elr, partition.last_known_elr, partition.leader) == ((), (), (first,), -1)
    controller.beat(first)
    partition = controller.partition("t")
    assert (partition.leader, partition.isr, partition.last_known_elr) == (first, (first,), ())
    assert (partition.leader_recovery_state, controller.unclean) == (1, 1)
    assert controller.alter("t", [first], recovery=0).error_code == 0
    assert controller.partition("t").leader_recovery_state == 0
    assert controller.alter("t", [first], recovery=1).error_code == ErrorCode.INVALID_REQUEST


def test_an_unclean_restart_leaves_the_isr() -> None:
    controller = three_brokers(min_insync_replicas="2")
    first, second, third = controller.partition("t").replicas
    controller.now_ms += 10_000  # the session is over, but the broker is not fenced yet
    controller.unclean_restart(second)
    assert controller.partition("t").isr == (first, third)


def test_a_clean_stop_long_ago_makes_no_later_one_clean() -> None:
    """A broker shows the epoch of its last clean stop: it counts only if the broker has not registered since."""
    controller = ModelController()
    first = controller.register(1).broker_epoch
    controller.sessions.remove(BrokerId(1))
    second = controller.register(1, incarnation=2, previous_epoch=first).broker_epoch
    controller.join(2)
    controller.beat(1)
    controller.create("t", factor=2, **{"min.insync.replicas": "2"})
    controller.fence(1)
    assert controller.partition("t").elr == (1,)
    controller.sessions.remove(BrokerId(1))
    controller.register(1, incarnation=3, previous_epoch=first)
    assert controller.partition("t").elr == ()
    assert second > first


def test_without_elr_the_last_member_stays_in_the_isr() -> None:
    """Without eligible leader replicas, the ISR keeps its last member when that broker is fenced."""
    controller = ModelController(elr=False)
    controller.join(1, 2)
    controller.create("t", factor=2)
    first, second = controller.partition("t").replicas
    controller.fence(second)
    controller.fence(first)
    partition = controller.partition("t")
    assert (partition.leader, partition.isr, partition.elr) == (-1, (first,), ())
    controller.join(second)
    assert controller.partition("t").leader == -1
    controller.join(first)
    assert controller.partition("t").leader == first
    assert controller.unclean == 0


def test_unclean_election_needs_permission_or_a_request() -> None:
    controller = three_brokers()
    first, second, _third = controller.partition("t").replicas
    assert controller.alter("t", [first]).error_code == 0
    controller.fence(first)
    assert controller.partition("t").leader == -1
    assert elect(controller, 0) == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert controller.unclean == 0
    resource = AlterConfigsResource(
        resource_type=2,
        resource_name="t",
        configs=[AlterableConfig(name="unclean.leader.election.enable", config_operation=0, value="true")],
    )
    (response,) = controller.handle(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert response.error_code == 0
    partition = controller.partition("t")
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == (second, (second,), 1)
    assert controller.unclean == 1


def test_an_unclean_election_on_request_takes_any_live_replica() -> None:
    controller = three_brokers()
    first, second, third = controller.partition("t").replicas
    controller.alter("t", [first])
    assert elect(controller, 1) == ErrorCode.ELECTION_NOT_NEEDED
    controller.fence(first, second)
    assert elect(controller, 1) == ErrorCode.NONE
    assert (controller.partition("t").leader, controller.unclean) == (third, 1)
    controller.fence(third)
    controller.apply([])
    assert controller.partition("t").leader == -1
    assert elect(controller, 1) == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert elect(controller, 1, partition=9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert controller.handle(ElectLeadersRequest(election_type=9)).error_code == ErrorCode.INVALID_REQUEST


def test_preferred_election_gives_the_leadership_back() -> None:
    controller = three_brokers()
    first = controller.partition("t").leader
    controller.fence(first)
    controller.join(first)
    assert elect(controller, 0) == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert controller.alter("t", [1, 2, 3]).error_code == 0
    assert elect(controller, 0) == ErrorCode.NONE
    assert (controller.partition("t").leader, controller.unclean) == (first, 0)
    assert elect(controller, 0) == ErrorCode.ELECTION_NOT_NEEDED
    everything = controller.handle(ElectLeadersRequest(election_type=0, topic_partitions=None))
    assert list(everything.replica_election_results) == []


def test_an_eligible_replica_takes_no_leadership_back() -> None:
    """An eligible replica has all acknowledged records, but not those that only the live leader has."""
    controller = three_brokers(min_insync_replicas="2")
    first, second, third = controller.partition("t").replicas
    controller.fence(third)
    controller.fence(first)
    controller.join(first)
    before = controller.partition("t")
    assert (before.leader, before.isr, before.elr) == (second, (second,), (first,))
    assert elect(controller, 0) == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert balanced(controller, limit=100) == []
    assert controller.partition("t") == before
    assert controller.alter("t", [second, first]).error_code == 0
    assert elect(controller, 0) == ErrorCode.NONE
    assert (controller.partition("t").leader, controller.partition("t").elr) == (first, ())


def test_a_lower_min_insync_empties_the_elr_in_one_command() -> None:
    """The command that lowers ``min.insync.replicas`` also empties ELRs that the new value does not justify."""
    controller = three_brokers(min_insync_replicas="2")
    _first, second, third = controller.partition("t").replicas
    controller.fence(third, second)
    assert controller.partition("t").elr
    resource = AlterConfigsResource(
        resource_type=2,
        resource_name="t",
        configs=[AlterableConfig(name="min.insync.replicas", config_operation=0, value="1")],
    )
    commands = len(controller.commands)
    controller.handle(IncrementalAlterConfigsRequest(resources=[resource]))
    assert controller.partition("t").elr == ()
    assert len(controller.commands) == commands + 1


PartitionMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestPartitionMachine = PartitionMachine.TestCase
MovingPartitionMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestMovingPartitionMachine = MovingPartitionMachine.TestCase


def balanced(controller: ModelController, *, limit: int, percentage: int = 10) -> list:
    """Returns what a rebalance of a small cluster would write, in one slice."""
    context = controller.context()
    allowed = replace(context.settings, leader_imbalance_per_broker_percentage=percentage)
    view = DecisionView(controller.image, replace(context, settings=allowed))
    slices = with_last(balance_leaders(view, limit=limit))
    return [record for records in slices for record in records]


def test_leaders_move_back_when_too_many_are_elsewhere() -> None:
    """The controller moves leaders back to preferred replicas when the imbalance is above the limit."""
    controller = ModelController()
    controller.join(1, 2, 3)
    controller.create("t", partitions=30)
    assert balanced(controller, limit=100) == []
    controller.fence(1)
    controller.join(1)
    assert balanced(controller, limit=100) == [], "1 is not in sync yet"
    for number in range(30):
        assert controller.alter("t", [1, 2, 3], number).error_code == 0
    assert len(balanced(controller, limit=4)) == 4
    assert balanced(controller, limit=100, percentage=100) == [], "not above what is allowed, though all are elsewhere"
    assert len(balanced(controller, limit=100, percentage=99)) == 10
    records = balanced(controller, limit=100)
    assert len(records) == 10
    controller.apply(records)
    assert all(p.leader == p.replicas[0] for p in controller.image.topics_by_name["t"].partitions.values())


def test_an_unregistered_broker_is_no_eligible_leader_any_more() -> None:
    controller = three_brokers(min_insync_replicas="2")
    first, second, third = controller.partition("t").replicas
    controller.fence(third)
    controller.fence(second)
    assert controller.partition("t").elr == (second,)
    assert controller.handle(UnregisterBrokerRequest(broker_id=second)).error_code == 0
    assert controller.partition("t").elr == ()
    controller.fence(first)
    controller.join(second)
    assert controller.partition("t").leader == -1
    controller.join(first)
    assert controller.partition("t").leader == first
    assert third not in controller.partition("t").isr


def test_a_partition_that_is_named_twice_is_elected_once() -> None:
    controller = three_brokers()
    request = ElectLeadersRequest(
        election_type=0,
        topic_partitions=[TopicPartitions(topic="t", partitions=[0, 0]), TopicPartitions(topic="t", partitions=[0])],
    )
    (result,) = controller.handle(request).replica_election_results
    assert [each.partition_id for each in result.partition_result] == [0]


def test_a_partition_that_is_named_twice_is_altered_once() -> None:
    """Both would have the same partition epoch; the second one is refused, and nothing else of the request."""
    controller = three_brokers()
    controller.create("u")
    data = {}
    for name in ("t", "u"):
        partition = controller.partition(name)
        data[name] = AlterPartitionRequestPartitionData(
            partition_index=0,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=[BrokerState(broker_id=partition.leader)],
        )
    leader = controller.partition("t").leader
    topics = {name: controller.image.topics_by_name[name].topic_id for name in data}
    request = AlterPartitionRequest(
        broker_id=leader,
        broker_epoch=controller.image.brokers[leader].broker_epoch,
        topics=[AlterPartitionRequestTopicData(topic_id=topics["t"], partitions=[data["t"], data["t"]])],
    )
    (result,) = controller.handle(request).topics
    assert [each.error_code for each in result.partitions] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert controller.partition("t").isr == (leader,)


REPLICAS = (1, 2, 3)
MIN_ISR = 2


def small_partitions() -> Iterator[PartitionImage]:
    """Yields each state of a partition of three replicas: who is in sync, who is eligible, and who leads."""
    for places in itertools.product(("isr", "elr", "out"), repeat=3):
        isr, elr = (tuple(r for r, at in zip(REPLICAS, places, strict=True) if at == name) for name in ("isr", "elr"))
        if len(isr) >= MIN_ISR and elr:
            continue
        for leader in (*isr, NO_LEADER):
            yield PartitionImage(
                replicas=REPLICAS,
                isr=isr,
                elr=elr,
                leader=leader,
                last_known_elr=() if isr else (3,),
                leader_recovery_state=RECOVERING if len(isr) == 1 else RECOVERED,
            )


def after_loss(
    before: PartitionImage, election: Election, live: tuple[int, ...], gone: tuple[int, ...], lost: tuple[int, ...]
) -> PartitionImage:
    """Returns a partition after ``gone`` have left its ISR; of them ``lost`` may lack records."""
    change = PartitionChange(
        topic_id=UUID(int=7),
        partition_id=0,
        partition=before,
        acceptable=lambda replica: replica in live,
        min_isr=MIN_ISR,
        election=election,
        isr=tuple(replica for replica in before.isr if replica not in gone),
        lost_state=frozenset(lost),
    )
    record = change.build()
    return before if record is None else changed_partition(before, record)


@pytest.mark.parametrize("election", Election)
def test_each_small_change_of_a_partition_keeps_the_rules(election: Election) -> None:
    """All states of three replicas, all sets of live brokers, and each broker that goes with or without its records."""
    for before, gone in itertools.product(small_partitions(), ((), (1,), (2,))):
        for others, lost in itertools.product(((), (1,), (2, 3), (1, 2, 3)), ((), gone) if gone else ((),)):
            live = tuple(replica for replica in others if replica not in gone)
            after = after_loss(before, election, live, gone, lost)
            case = (before, live, gone, lost)
            isr = [replica for replica in before.isr if replica not in gone]
            eligible = [replica for replica in before.elr if replica not in lost]
            clean = [replica for replica in (*isr, *eligible) if replica in live]
            is_clean = after.leader in clean
            assert after.leader in (live if election is Election.UNCLEAN or not clean else clean) or (
                after.leader == NO_LEADER and not clean
            ), case
            assert is_clean == bool(clean), ("no unclean leader where there is a clean one", case)
            assert after.leader_epoch == before.leader_epoch + (after.leader != before.leader), case
            if is_clean or after.leader == NO_LEADER:
                assert after.leader_recovery_state == before.leader_recovery_state, ("the leader alone ends it", case)
                may_be_eligible = {*before.isr, *before.elr} - {*lost, *after.isr}
                assert set(after.elr) == (may_be_eligible if len(after.isr) < MIN_ISR else set()), case
            else:
                assert (after.isr, after.elr) == ((after.leader,), ()), ("others lack what it will write", case)
                assert after.leader_recovery_state == RECOVERING, case
            first = REPLICAS[0]
            if election is Election.PREFERRED and first in clean and (first in isr or not isr):
                assert after.leader == first, case
            elif before.leader in clean:
                assert after.leader == before.leader, case
            assert list(after.isr) == (isr if after.leader in (*isr, NO_LEADER) else [after.leader]), case
