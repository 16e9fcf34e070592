"""Topics and replicas: creation with its refusals, placement, deletion, more partitions, moves of replicas."""

from __future__ import annotations

import itertools
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from moldau.values import BrokerId
from moldau_quorum.controller.context import Settings
from moldau_quorum.controller.placement import UsableBroker, place_replicas
from moldau_quorum.metadata.records import NO_LEADER, PartitionChangeRecord
from support.controller.model import CONFIG, ModelController, check_partition
from support.proof import examples


def controller_of(*brokers: int) -> ModelController:
    controller = ModelController()
    controller.join(*brokers)
    return controller


def create_one(controller: ModelController, *, validate_only: bool = False, **fields):
    request = CreateTopicsRequest(topics=[CreatableTopic(**fields)], validate_only=validate_only)
    (result,) = controller.handle(request).topics
    return result


def test_a_created_topic_has_live_leaders_and_configuration() -> None:
    """A new topic has partitions 0 to n-1 with live leaders; the response contains its configuration."""
    controller = controller_of(1, 2, 3)
    config = CreatableTopicConfig(name="retention.ms", value="1000")
    result = create_one(controller, name="t", num_partitions=4, replication_factor=2, configs=[config])
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 4, 2)
    topic = controller.image.topics_by_name["t"]
    assert topic.topic_id == result.topic_id
    assert sorted(topic.partitions) == [0, 1, 2, 3]
    for partition in topic.partitions.values():
        check_partition(partition)
        assert partition.leader == partition.replicas[0]
        assert partition.isr == partition.replicas
    assert controller.image.topic_config("t") == {"retention.ms": "1000"}
    reported = {entry.name: (entry.value, entry.config_source) for entry in result.configs}
    assert reported["retention.ms"] == ("1000", 1)
    assert reported["cleanup.policy"] == ("delete", 5)


def test_defaults_are_those_of_the_cluster() -> None:
    controller = ModelController(num_partitions=5, default_replication_factor=2)
    controller.join(1, 2, 3)
    result = create_one(controller, name="t", num_partitions=-1, replication_factor=-1)
    assert (result.num_partitions, result.replication_factor) == (5, 2)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"name": ""}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": ".."}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "a b"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "__cluster_metadata"}, ErrorCode.INVALID_REQUEST),
        ({"name": "x" * 250}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "old_one"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "old.one"}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ({"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"num_partitions": 10_000_000}, ErrorCode.POLICY_VIOLATION),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 4}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"configs": [CreatableTopicConfig(name="retension.ms", value="1")]}, ErrorCode.INVALID_CONFIG),
        ({"configs": [CreatableTopicConfig(name="retention.ms", value="x")]}, ErrorCode.INVALID_CONFIG),
        ({"configs": [CreatableTopicConfig(name="retention.ms", value=None)]}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_topics_are_refused_with_the_code_of_kafka(fields: dict, code: ErrorCode) -> None:
    controller = controller_of(1, 2, 3)
    assert create_one(controller, name="old.one", num_partitions=1, replication_factor=1).error_code == 0
    before = controller.image
    result = create_one(controller, **{"name": "t", "num_partitions": 1, "replication_factor": 1, **fields})
    assert result.error_code == code
    assert result.error_message
    assert controller.image is before


def test_validate_only_and_repeated_names_create_nothing() -> None:
    controller = controller_of(1)
    result = create_one(controller, validate_only=True, name="t", num_partitions=2, replication_factor=1)
    assert (result.error_code, result.num_partitions) == (0, 2)
    twice = CreateTopicsRequest(
        topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1) for _ in range(2)]
    )
    assert [entry.error_code for entry in controller.handle(twice).topics] == [ErrorCode.INVALID_REQUEST]
    assert not controller.image.topics_by_name


def assigned(*replicas: list[int]) -> dict:
    return {
        "name": "t",
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [
            CreatableReplicaAssignment(partition_index=n, broker_ids=brokers) for n, brokers in enumerate(replicas)
        ],
    }


def test_manual_assignments_are_taken_as_they_are_or_refused() -> None:
    controller = controller_of(1, 2, 3)
    for wrong in ([[1, 1]], [[1, 9]], [[]], [[1, 2], [3]]):
        assert create_one(controller, **assigned(*wrong)).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert create_one(controller, **{**assigned([1]), "num_partitions": 1}).error_code == ErrorCode.INVALID_REQUEST
    controller.fence(2)
    assert create_one(controller, **assigned([2])).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert create_one(controller, **assigned([2, 3], [1, 2])).error_code == 0
    partition = controller.partition("t", 0)
    assert (partition.replicas, partition.isr, partition.leader) == ((2, 3), (3,), 3)


@settings(max_examples=examples(150), deadline=None)
@given(
    brokers=st.integers(1, 9),
    racks=st.integers(0, 3),
    factor=st.integers(1, 5),
    partitions=st.integers(1, 60),
    start=st.integers(0, 100),
)
def test_placement_is_balanced_within_one_and_spreads_over_racks(
    brokers: int, racks: int, factor: int, partitions: int, start: int
) -> None:
    factor = min(factor, brokers)
    usable = [UsableBroker(broker_id=n, rack=f"r{n % racks}" if racks else None) for n in range(brokers)]
    placed = place_replicas(usable, partitions=partitions, replication_factor=factor, start=start)
    assert len(placed) == partitions
    led = dict.fromkeys(range(brokers), 0)
    held = dict.fromkeys(range(brokers), 0)
    for replicas in placed:
        assert len(set(replicas)) == factor
        led[replicas[0]] += 1
        for replica in replicas:
            held[replica] += 1
        if racks and brokers % racks == 0:
            used = {replica % racks for replica in replicas}
            assert len(used) == min(factor, racks)
    if not racks or brokers % racks == 0:
        assert max(held.values()) - min(held.values()) <= 1
        assert max(led.values()) - min(led.values()) <= 1


def test_fenced_brokers_hold_replicas_only_if_others_lack() -> None:
    """Placement uses fenced brokers only if there are not enough other brokers."""
    usable = [UsableBroker(broker_id=n, fenced=n == 1) for n in range(3)]
    assert all(1 not in replicas for replicas in place_replicas(usable, partitions=6, replication_factor=2, start=0))
    placed = place_replicas(usable, partitions=6, replication_factor=3, start=0)
    assert all(replicas[0] != 1 for replicas in placed)


def test_brokers_that_stop_get_replicas_if_others_lack() -> None:
    """As a fenced one: during a restart of one broker of three, topics with three replicas can be made."""
    controller = controller_of(1, 2, 3)
    assert not controller.beat(2, want_shut_down=True).should_shut_down
    assert controller.create("t", partitions=6, factor=2).error_code == 0
    assert {broker for index in range(6) for broker in controller.partition("t", index).replicas} == {1, 3}
    assert controller.create("u", factor=3).error_code == 0
    made = controller.partition("u", 0)
    assert (set(made.replicas), set(made.isr)) == ({1, 2, 3}, {1, 3})
    assert made.leader != 2


def test_a_topic_that_is_named_twice_is_not_deleted() -> None:
    """As in Kafka: the answer has each name and each id once, and only the other topics are deleted."""
    controller = controller_of(1, 2, 3)
    for name in ("a", "b", "c"):
        controller.create(name)
    b = controller.image.topics_by_name["b"].topic_id
    states = [
        DeleteTopicState(name="a"),
        DeleteTopicState(name="c"),
        DeleteTopicState(name="a"),
        DeleteTopicState(topic_id=b),
        DeleteTopicState(name="b"),
        DeleteTopicState(name="missing"),
        DeleteTopicState(name="missing"),
    ]
    answers = controller.handle(DeleteTopicsRequest(topics=states)).responses
    refused = ErrorCode.INVALID_REQUEST
    assert [(entry.name, entry.error_code) for entry in answers] == [
        ("a", refused),
        ("c", 0),
        (None, refused),
        ("b", refused),
        ("missing", refused),
    ]
    assert sorted(controller.image.topics_by_name) == ["a", "b"]


def test_a_controllers_file_can_forbid_deletions() -> None:
    """As in Kafka: a client may ask a controller itself, past the brokers and their files (KIP-919)."""
    controller = controller_of(1, 2, 3)
    topic_id = controller.create("a").topic_id
    before = controller.image
    controller.settings = Settings.of(CONFIG.with_values({"delete.topic.enable": "false"}))
    by_id = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic_id)])
    for request in (by_id, DeleteTopicsRequest(topic_names=["a"])):
        (answer,) = controller.handle(request).responses
        assert (answer.error_code, answer.error_message) == (
            ErrorCode.TOPIC_DELETION_DISABLED,
            "delete.topic.enable is false",
        )
    assert controller.image is before


def test_topics_are_deleted_by_name_or_id_with_their_configs() -> None:
    """DeleteTopics accepts names and ids, and deletes the configuration too."""
    controller = controller_of(1, 2, 3)
    controller.create("a", retention_ms="5")
    controller.create("b")
    b = controller.image.topics_by_name["b"].topic_id
    states = [
        DeleteTopicState(name="a"),
        DeleteTopicState(topic_id=b),
        DeleteTopicState(name="missing"),
        DeleteTopicState(topic_id=UUID(int=77)),
        DeleteTopicState(name="a", topic_id=b),
        DeleteTopicState(),
    ]
    codes = [entry.error_code for entry in controller.handle(DeleteTopicsRequest(topics=states)).responses]
    assert codes == [
        0,
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert not controller.image.topics_by_name
    assert not controller.image.topics_by_id
    assert not controller.image.topic_config("a")
    controller.create("a")
    assert not controller.image.topic_config("a")
    assert [r.error_code for r in controller.handle(DeleteTopicsRequest(topic_names=["a"])).responses] == [0]


def more(controller: ModelController, count: int, assignments: list[list[int]] | None = None, name: str = "t") -> int:
    topic = CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=None if assignments is None else [CreatePartitionsAssignment(broker_ids=a) for a in assignments],
    )
    return controller.handle(CreatePartitionsRequest(topics=[topic])).results[0].error_code


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
def test_topics_of_coordinators_keep_their_partitions(name: str) -> None:
    """Their number says which partition holds a group or a transactional id: a change would lose all that is stored."""
    controller = controller_of(1, 2, 3)
    controller.create(name, partitions=2, factor=2)
    before = controller.image.topics_by_name[name]
    assert more(controller, 4, name=name) == ErrorCode.INVALID_PARTITIONS
    assert controller.image.topics_by_name[name] == before


def test_partitions_are_added_behind_those_that_exist() -> None:
    controller = controller_of(1, 2, 3)
    controller.create("t", partitions=2, factor=2)
    before = dict(controller.image.topics_by_name["t"].partitions)
    assert more(controller, 2) == ErrorCode.INVALID_PARTITIONS
    assert more(controller, 1) == ErrorCode.INVALID_PARTITIONS
    assert more(controller, 3, [[1]]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert more(controller, 4, [[1, 2]]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert more(controller, 4, name="missing") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert more(controller, 3, [[3, 1]]) == 0
    assert more(controller, 5) == 0
    after = controller.image.topics_by_name["t"].partitions
    assert sorted(after) == [0, 1, 2, 3, 4]
    assert {n: after[n] for n in before} == before
    assert after[2].replicas == (3, 1)
    assert all(len(after[n].replicas) == 2 for n in after)


def move(
    controller: ModelController, replicas: list[int] | None, name: str = "t", partition: int = 0, **more_fields
) -> int:
    topic = ReassignableTopic(
        name=name, partitions=[ReassignablePartition(partition_index=partition, replicas=replicas)]
    )
    response = controller.handle(AlterPartitionReassignmentsRequest(topics=[topic], **more_fields))
    return response.responses[0].partitions[0].error_code


def ongoing(controller: ModelController) -> list:
    return list(controller.handle(ListPartitionReassignmentsRequest()).topics)


def test_a_move_adds_replicas_waits_and_removes_the_others() -> None:
    """A move adds replicas, waits until they are in sync, and then removes the others."""
    controller = controller_of(1, 2, 3, 4, 5)
    assert create_one(controller, **assigned([1, 2, 3])).error_code == 0
    assert move(controller, [3, 4, 5]) == 0
    partition = controller.partition("t")
    assert partition.replicas == (3, 4, 5, 1, 2)
    assert (partition.adding_replicas, partition.removing_replicas) == ((4, 5), (1, 2))
    (listed,) = ongoing(controller)
    assert (list(listed.partitions[0].adding_replicas), list(listed.partitions[0].removing_replicas)) == (
        [4, 5],
        [1, 2],
    )
    named = ListPartitionReassignmentsRequest(
        topics=[
            ListPartitionReassignmentsTopics(name="t", partition_indexes=[1]),
            ListPartitionReassignmentsTopics(name="x"),
        ]
    )
    assert list(controller.handle(named).topics) == []
    assert controller.alter("t", [1, 2, 3, 4]).error_code == 0
    assert controller.partition("t").reassigning
    epoch = controller.partition("t").leader_epoch
    # The change that completes the move takes the leadership from broker 1.
    assert controller.alter("t", [1, 2, 3, 4, 5]).error_code == ErrorCode.NEW_LEADER_ELECTED
    partition = controller.partition("t")
    assert (partition.replicas, partition.isr, partition.leader) == ((3, 4, 5), (3, 4, 5), 3)
    assert not partition.reassigning
    assert partition.leader_epoch == epoch + 1
    assert ongoing(controller) == []


def test_a_move_that_only_adds_replicas_ends_in_sync() -> None:
    """A higher replication factor has nothing to remove, and is complete when the added replica is in sync."""
    controller = controller_of(1, 2, 3)
    create_one(controller, **assigned([1, 2]))
    assert move(controller, [1, 2, 3]) == 0
    assert controller.partition("t").adding_replicas == (3,)
    assert controller.alter("t", [1, 2, 3]).error_code == 0
    partition = controller.partition("t")
    assert (partition.replicas, partition.isr, partition.adding_replicas) == ((1, 2, 3), (1, 2, 3), ())
    assert ongoing(controller) == []


@pytest.mark.parametrize("isr", [[1, 2, 3], [1, 2]], ids=["in sync", "out of sync"])
def test_a_completed_move_always_raises_the_leader_epoch(isr: list[int]) -> None:
    """The leader epoch rises even if the leader stays, because the removed replicas must be fenced."""
    controller = controller_of(1, 2, 3, 4)
    create_one(controller, **assigned([1, 2, 3]))
    controller.alter("t", isr)
    epoch = controller.partition("t").leader_epoch
    assert move(controller, [1, 2, 4]) == 0
    assert controller.partition("t").leader_epoch == epoch
    assert controller.alter("t", [*isr, 4]).error_code == 0
    partition = controller.partition("t")
    assert (partition.replicas, partition.leader, partition.leader_epoch) == ((1, 2, 4), 1, epoch + 1)


def test_a_reorder_and_a_smaller_set_take_effect_at_once() -> None:
    controller = controller_of(1, 2, 3)
    create_one(controller, **assigned([1, 2, 3]))
    assert move(controller, [3, 2, 1]) == 0
    assert controller.partition("t").replicas == (3, 2, 1)
    assert controller.partition("t").leader == 1
    assert move(controller, [3, 2]) == 0
    partition = controller.partition("t")
    assert (partition.replicas, sorted(partition.isr), partition.leader) == ((3, 2), [2, 3], 3)


def test_a_move_can_be_cancelled_or_redirected() -> None:
    controller = controller_of(1, 2, 3, 4, 5)
    create_one(controller, **assigned([1, 2, 3]))
    assert move(controller, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    move(controller, [4, 2, 3])
    assert controller.alter("t", [1, 2, 3]).error_code == 0
    move(controller, [5, 2, 3])
    partition = controller.partition("t")
    assert partition.replicas == (5, 2, 3, 4, 1)
    assert (partition.adding_replicas, partition.removing_replicas) == ((5,), (4, 1))
    before = controller.image
    assert move(controller, [5, 2, 3]) == 0, "where it goes already"
    assert controller.image is before
    assert move(controller, None) == 0
    partition = controller.partition("t")
    assert (partition.adding_replicas, partition.removing_replicas) == ((), ())
    assert partition.replicas == (2, 3, 4, 1), "the abandoned target stays beside the former replicas, as in Kafka"
    assert partition.isr == (2, 3, 1)
    assert move(controller, [1, 2, 3]) == 0
    assert controller.partition("t").replicas == (1, 2, 3)


def test_a_redirected_move_keeps_the_only_replica_in_sync() -> None:
    """After a redirect, the only replica in sync stays until the new target is in sync."""
    controller = controller_of(1, 2, 3, 4)
    create_one(controller, **assigned([1]))
    move(controller, [2, 3])
    assert controller.alter("t", [1, 2]).error_code == 0
    controller.fence(1)
    assert (controller.partition("t").leader, controller.partition("t").isr) == (2, (2,))
    assert move(controller, None) == ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 1 lacks what 2 has acknowledged"
    assert move(controller, [3, 4]) == 0
    partition = controller.partition("t")
    assert (partition.replicas, partition.isr, partition.leader) == ((3, 4, 2, 1), (2,), 2)
    assert (partition.adding_replicas, partition.removing_replicas) == ((3, 4), (2, 1))
    assert controller.alter("t", [2, 3]).error_code == 0
    assert controller.alter("t", [2, 3, 4]).error_code == ErrorCode.NEW_LEADER_ELECTED
    partition = controller.partition("t")
    assert (partition.replicas, partition.isr, partition.leader, partition.reassigning) == ((3, 4), (3, 4), 3, False)


def test_a_cancel_never_removes_the_only_eligible_replica() -> None:
    """A leaderless move cannot be cancelled if the cancellation removes the only eligible replica."""
    controller = controller_of(1, 2, 3)
    create_one(controller, **assigned([1]))
    move(controller, [2, 3])
    controller.alter("t", [1, 2])
    controller.fence(1)
    controller.fence(2)
    assert (controller.partition("t").isr, controller.partition("t").elr) == ((), (2,))
    assert move(controller, None) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert move(controller, [3]) == 0
    partition = controller.partition("t")
    assert (partition.replicas, partition.elr) == ((3, 2, 1), (2,))
    controller.unclean_restart(2)
    assert controller.partition("t").last_known_elr == (2,)
    assert move(controller, [1]) == 0, "nothing leaves, so nothing is lost"
    assert (controller.partition("t").replicas, controller.partition("t").last_known_elr) == ((1, 3, 2), (2,))
    controller.beat(2)
    assert controller.partition("t").leader == 2


def test_a_cancel_never_removes_the_last_known_leader() -> None:
    """With neither ISR nor eligible replicas, it is the only one that may still have acknowledged records."""
    controller = controller_of(1, 2, 3)
    create_one(controller, **assigned([1]))
    move(controller, [2, 3])
    controller.alter("t", [1, 2])
    controller.fence(1)
    controller.fence(2)
    controller.unclean_restart(2)
    partition = controller.partition("t")
    assert (partition.isr, partition.elr, partition.last_known_elr) == ((), (), (2,))
    assert move(controller, None) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert controller.partition("t") == partition


def test_a_cancel_is_refused_only_if_it_loses_records() -> None:
    """All states of a move from broker 1 to 2 and 3: the next leader is of the first set that is not empty."""
    controller = controller_of(1, 2, 3)
    create_one(controller, **assigned([1]))
    move(controller, [2, 3])
    image = controller.image
    brokers = tuple(map(BrokerId, (1, 2, 3)))
    subsets = [some for count in range(4) for some in itertools.combinations(brokers, count)]
    allowed = 0
    for isr, elr, last_known in itertools.product(subsets, subsets, subsets[:4]):
        if {*isr} & {*elr} or {*isr} & {*last_known}:
            continue
        controller.image = image
        partition = controller.partition("t")
        record = PartitionChangeRecord(
            topic_id=image.topics_by_name["t"].topic_id,
            partition_id=0,
            partition_epoch=partition.partition_epoch + 1,
            leader=NO_LEADER,
            isr=isr,
            elr=elr,
            last_known_elr=last_known,
        )
        controller.apply([record])
        keeps_one = 1 in (isr or elr or last_known)
        expected = ErrorCode.NONE if keeps_one else ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert move(controller, None) == expected, (isr, elr, last_known)
        assert controller.partition("t").replicas == ((1,) if keeps_one else (2, 3, 1))
        allowed += keeps_one
    assert allowed > 10


def test_an_unclean_election_takes_a_new_replica_last() -> None:
    """A replica that a move adds may be empty: any former replica that lives has more of the records."""
    controller = controller_of(1, 2, 3, 4)
    unclean = CreatableTopicConfig(name="unclean.leader.election.enable", value="true")
    create_one(controller, **assigned([1, 2, 3]), configs=[unclean])
    assert controller.alter("t", [1]).error_code == 0
    assert move(controller, [4, 3]) == 0
    assert controller.partition("t").replicas == (4, 3, 1, 2)
    controller.fence(3)
    controller.fence(1)
    assert (controller.partition("t").leader, controller.partition("t").leader_recovery_state) == (2, 1)
    controller.fence(2)
    assert controller.partition("t").leader == 4, "no former replica lives"
    assert controller.unclean == 2


def test_a_redirect_must_keep_the_replication_factor_of_the_move() -> None:
    """A redirect that must keep the replication factor keeps that of the move's target."""
    controller = controller_of(1, 2, 3, 4, 5)
    create_one(controller, **assigned([1, 2]))
    assert move(controller, [3, 4], allow_replication_factor_change=False) == 0
    assert move(controller, [3, 5], allow_replication_factor_change=False) == 0
    assert move(controller, [4, 5], allow_replication_factor_change=False) == 0
    assert move(controller, [1, 4, 5], allow_replication_factor_change=False) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert len(controller.partition("t").replicas) == 5


def test_invalid_moves_are_refused() -> None:
    controller = controller_of(1, 2, 3)
    create_one(controller, **assigned([1, 2]))
    assert move(controller, []) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert move(controller, [1, 9]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert move(controller, [1, 1]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert move(controller, [1], name="x") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert move(controller, [1], partition=5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert move(controller, [1, 2, 3], allow_replication_factor_change=False) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert move(controller, [2, 3], allow_replication_factor_change=False) == 0


def test_a_move_waits_for_the_whole_target() -> None:
    """A move waits for the whole target, not only for the replicas that it adds."""
    controller = controller_of(1, 2, 3, 4)
    create_one(controller, **assigned([1, 2, 3]))
    assert controller.alter("t", [1]).error_code == 0
    move(controller, [2, 3, 4])
    assert controller.alter("t", [1, 4]).error_code == 0
    partition = controller.partition("t")
    assert (partition.replicas, partition.isr) == ((2, 3, 4, 1), (4, 1)), "else one copy in sync would remain of two"
    assert controller.alter("t", [1, 2, 4]).error_code == 0
    assert controller.partition("t").reassigning
    controller.alter("t", [1, 2, 3, 4])
    assert (controller.partition("t").replicas, controller.partition("t").isr) == ((2, 3, 4), (2, 3, 4))


def test_a_move_waits_while_too_few_of_the_target_are_in_sync() -> None:
    """A move does not complete while too few members of the target are in sync to acknowledge records."""
    controller = controller_of(1, 2, 3, 4)
    create_one(controller, **assigned([1, 2]), configs=[CreatableTopicConfig(name="min.insync.replicas", value="2")])
    assert controller.alter("t", [1]).error_code == 0
    move(controller, [2, 4])
    assert controller.alter("t", [1, 4]).error_code == 0
    assert controller.partition("t").reassigning, "broker 4 alone could not acknowledge anything"
    controller.alter("t", [1, 2, 4])
    assert controller.partition("t").replicas == (2, 4)
