"""Goal: requests for several topics at once, and decisions that change nothing.

Method: the pure controller. Each test states one rule that an administrator depends on.
"""

from __future__ import annotations

from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from moldau.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from support.controller.model import ModelController


def controller_of(*brokers: int, **settings: Any) -> ModelController:
    controller = ModelController(**settings)
    controller.join(*brokers)
    return controller


def move(controller: ModelController, replicas: list[int]) -> None:
    topic = ReassignableTopic(name="t", partitions=[ReassignablePartition(partition_index=0, replicas=replicas)])
    response = controller.handle(AlterPartitionReassignmentsRequest(topics=[topic]))
    assert response.responses[0].partitions[0].error_code == 0


def enlarge(controller: ModelController, **counts: int) -> list[ErrorCode]:
    topics = [CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in counts.items()]
    return [ErrorCode(each.error_code) for each in controller.handle(CreatePartitionsRequest(topics=topics)).results]


def test_the_bound_on_new_partitions_holds_for_all_topics() -> None:
    controller = controller_of(1, partitions_per_request_max=10)
    for name in ("a", "b", "c"):
        controller.create(name, partitions=1, factor=1)
    codes = enlarge(controller, a=7, b=7, c=5)
    assert codes == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION, ErrorCode.NONE]
    assert {name: len(topic.partitions) for name, topic in controller.image.topics_by_name.items()} == {
        "a": 7,
        "b": 1,
        "c": 5,
    }


def test_partitions_added_during_a_move_have_the_topics_factor() -> None:
    """The first partition has replicas to add and to remove then; both kinds are in its list."""
    controller = controller_of(1, 2, 3)
    controller.create("t", partitions=1, factor=2)
    (other,) = {1, 2, 3} - set(controller.partition("t").replicas)
    move(controller, [controller.partition("t").replicas[0], other])
    assert len(controller.partition("t").replicas) == 3
    assert enlarge(controller, t=2) == [ErrorCode.NONE]
    assert len(controller.partition("t", 1).replicas) == 2


def test_a_partition_that_is_named_twice_is_moved_once() -> None:
    """The second move is refused, and nothing else of the request."""
    controller = controller_of(1, 2, 3)
    controller.create("t", partitions=2, factor=1)
    wanted = [
        ReassignablePartition(partition_index=index, replicas=[broker]) for index, broker in ((0, 1), (0, 2), (1, 3))
    ]
    topics = [ReassignableTopic(name="t", partitions=wanted)]
    (result,) = controller.handle(AlterPartitionReassignmentsRequest(topics=topics)).responses
    assert [each.error_code for each in result.partitions] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]
    assert 1 in controller.partition("t").replicas
    assert 3 in controller.partition("t", 1).replicas


def test_moves_of_topics_that_do_not_exist_are_left_out() -> None:
    controller = controller_of(1, 2, 3)
    controller.create("t", partitions=1, factor=2)
    (other,) = {1, 2, 3} - set(controller.partition("t").replicas)
    move(controller, [controller.partition("t").replicas[0], other])
    asked = [ListPartitionReassignmentsTopics(name=name, partition_indexes=[0]) for name in ("gone", "t")]
    response = controller.handle(ListPartitionReassignmentsRequest(topics=asked))
    assert [topic.name for topic in response.topics] == ["t"]


@pytest.mark.parametrize("name", ["eligible.leader.replicas.version", "metadata.version", "group.version"])
def test_a_level_that_a_feature_has_is_not_written_again(name: str) -> None:
    controller = controller_of(1)
    before = controller.image
    update = FeatureUpdateKey(feature=name, max_version_level=before.features[name], upgrade_type=1)
    assert controller.handle(UpdateFeaturesRequest(feature_updates=[update])).error_code == 0
    assert controller.image is before


def test_a_move_to_other_brokers_is_no_unclean_election() -> None:
    """The last new replica joins the ISR and leads by one change; it has all records of the former leader."""
    controller = controller_of(1, 2, 3)
    controller.create("t", partitions=1, factor=1)
    old = controller.partition("t").leader
    new = old % 3 + 1
    move(controller, [new])
    assert controller.alter("t", [old, new]).error_code == ErrorCode.NEW_LEADER_ELECTED
    partition = controller.partition("t")
    assert (partition.leader, partition.isr, partition.replicas) == (new, (new,), (new,))
    assert controller.unclean == 0
