"""Goal: the work of a request grows no faster than its size, and the size is limited.

Method: the tests count executed lines, not time: a request of twice the size may cost twice the lines. The controller
must refuse requests beyond the limits as a whole, with Kafka's error, whatever their contents.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_configs import AlterableConfig as AlterableFullConfig
from moldau.protocol.messages.alter_configs import AlterConfigsRequest
from moldau.protocol.messages.alter_configs import AlterConfigsResource as FullResource
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from moldau.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau_quorum.controller.context import SLICE_RECORDS, DecisionView
from moldau_quorum.controller.dispatch import CHANGES, READS, DecisionInputs
from moldau_quorum.controller.entities import configs
from support.controller.model import ModelController

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.protocol.schema import Request

TOPIC = 2
LIMIT = 10_000


def lines_of(controller: ModelController, request: Request) -> int:
    """Counts the lines that a decision executes; each iteration of a loop counts, even on one line."""
    inputs = DecisionInputs(image=controller.image, context=controller.context(), sessions=controller.sessions)
    view = DecisionView(controller.image, inputs.context)
    count = 0

    def on_event(frame: object, event: str, argument: object) -> Callable:
        nonlocal count
        count += event == "line"
        return on_event

    before = sys.gettrace()
    sys.settrace(on_event)
    try:
        for _ in CHANGES[request.__api_key__](request, inputs).slices(view):
            pass  # without records (they only validate) or decided against the first image: nothing is to be replayed
    finally:
        sys.settrace(before)
    return count


def creations(count: int, *, name: str = "t{}", **config: str) -> CreateTopicsRequest:
    configs = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in config.items()]
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(name=name.format(n), num_partitions=1, replication_factor=1, configs=configs)
            for n in range(count)
        ],
        validate_only=True,
    )


def additions(count: int, *, name: str = "t{}") -> CreatePartitionsRequest:
    topics = [CreatePartitionsTopic(name=name.format(n), count=3, assignments=None) for n in range(count)]
    return CreatePartitionsRequest(topics=topics, validate_only=True)


def deletions(count: int) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=[DeleteTopicState(name=f"t{n}") for n in range(count)])


def alterations(count: int) -> IncrementalAlterConfigsRequest:
    config = AlterableConfig(name="retention.ms", config_operation=0, value="7")
    return IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(resource_type=TOPIC, resource_name=f"t{n}", configs=[config]) for n in range(count)
        ],
        validate_only=True,
    )


@pytest.fixture
def controller() -> ModelController:
    controller = ModelController()
    controller.join(1, 2, 3)
    return controller


@pytest.mark.parametrize("make", [creations, additions, deletions, alterations])
@pytest.mark.parametrize("exist", [False, True])
def test_work_is_linear_in_the_topics(controller: ModelController, make: Callable, exist: bool) -> None:
    if exist:
        for n in range(400):
            controller.create(f"t{n}", partitions=1, factor=1)
    lines_of(controller, make(1))  # what is compiled and remembered once
    assert lines_of(controller, make(400)) < 2.3 * lines_of(controller, make(200))


def test_a_topic_is_cheap_beside_its_neighbours(controller: ModelController) -> None:
    """The configuration that topics of a request share is checked and described once."""
    one = lines_of(controller, creations(1, retention_ms="7"))
    many = lines_of(controller, creations(101, retention_ms="7"))
    assert (many - one) / 100 < 330, f"{(many - one) / 100} lines for each further topic"


def slices_of(controller: ModelController, request: Request) -> int:
    """Counts the slices of a decision that changes nothing; other work of the controller runs between two of them."""
    inputs = DecisionInputs(image=controller.image, context=controller.context(), sessions=controller.sessions)
    result = CHANGES[request.__api_key__](request, inputs)
    return sum(1 for _ in result.slices(DecisionView(controller.image, inputs.context)))


def test_refusals_count_as_work_of_a_slice(controller: ModelController) -> None:
    """A request whose entries are all refused gives no records, and other requests still come in between."""
    refused = creations(3 * SLICE_RECORDS, name="not/a/name/{}")
    assert slices_of(controller, refused) == 3
    needless = [TopicPartitions(topic="missing", partitions=list(range(3 * SLICE_RECORDS)))]
    assert slices_of(controller, ElectLeadersRequest(election_type=0, topic_partitions=needless)) == 4


def replacements(count: int) -> AlterConfigsRequest:
    values = [AlterableFullConfig(name="retention.ms", value="7")]
    return AlterConfigsRequest(
        resources=[FullResource(resource_type=TOPIC, resource_name=f"t{n}", configs=values) for n in range(count)],
        validate_only=True,
    )


@pytest.mark.parametrize("make", [alterations, replacements])
def test_configurations_change_in_slices(controller: ModelController, make: Callable) -> None:
    """The metadata log can work between two of them; a request for 10,000 topics kept it waiting for a second."""
    count = 2 * SLICE_RECORDS
    for n in range(0, count, 100):
        creation = creations(100, name=f"t{{}}-{n}")
        creation.validate_only = False
        controller.handle(creation)
    request = make(count)
    for number, resource in enumerate(request.resources):
        resource.resource_name = f"t{number % 100}-{number // 100 * 100}"
    assert slices_of(controller, request) >= 3, "a dry run is as much work"
    before = len(controller.commands)
    request.validate_only = False
    assert {each.error_code for each in controller.handle(request).responses} == {0}
    commands = controller.commands[before:]
    assert sum(map(len, commands)) == count
    assert max(map(len, commands)) <= SLICE_RECORDS
    assert all(controller.image.topic_config(each.resource_name) == {"retention.ms": "7"} for each in request.resources)


def test_long_values_end_a_slice(controller: ModelController) -> None:
    """An entry of the log is bounded, and a request of many long values is not refused for that."""
    for n in range(40):
        controller.create(f"t{n}")
    request = alterations(40)
    request.validate_only = False
    throttled = AlterableConfig(
        name="leader.replication.throttled.replicas", config_operation=0, value=",".join(f"{n}:1" for n in range(4_000))
    )
    for resource in request.resources:
        resource.configs = [throttled]
    before = len(controller.commands)
    assert {each.error_code for each in controller.handle(request).responses} == {0}
    assert len(controller.commands) - before >= 4


def test_a_change_of_a_topic_is_cheap_beside_its_neighbours(controller: ModelController) -> None:
    """The image is renewed for a change of a broker only, which later changes are checked against."""
    for n in range(101):
        controller.create(f"t{n}")
    lines_of(controller, alterations(1))
    one, many = lines_of(controller, alterations(1)), lines_of(controller, alterations(101))
    assert (many - one) / 100 < 150, f"{(many - one) / 100} lines for each further topic"


def test_configurations_are_described_in_slices(controller: ModelController) -> None:
    """A resource that is named again costs nothing: the description of a broker has a hundred kilobytes."""
    resources = [DescribeConfigsResource(resource_type=TOPIC, resource_name=f"t{n % 100}") for n in range(200)]
    request = DescribeConfigsRequest(resources=resources)
    for n in range(100):
        controller.create(f"t{n}")
    inputs = DecisionInputs(image=controller.image, context=controller.context(), sessions=controller.sessions)
    result = READS[request.__api_key__](request, inputs)
    slices = sum(1 for _ in result.slices(DecisionView(controller.image, inputs.context)))
    assert slices == 100 // configs.RESOURCES_PER_TURN
    assert [each.resource_name for each in result.response.results] == [f"t{n}" for n in range(100)]


@pytest.mark.parametrize("make", [creations, additions, deletions, alterations])
def test_too_many_topics_are_refused_as_a_whole(controller: ModelController, make: Callable) -> None:
    before = controller.image
    response = controller.handle(make(LIMIT + 1))
    entries = next(getattr(response, name) for name in ("topics", "results", "responses") if hasattr(response, name))
    assert len(entries) == LIMIT + 1
    assert {entry.error_code for entry in entries} == {ErrorCode.POLICY_VIOLATION}
    assert str(LIMIT) in entries[0].error_message
    assert controller.image is before


def test_a_repeated_name_is_answered_once_however_often_it_comes(controller: ModelController) -> None:
    for request in (creations(LIMIT + 1, name="t"), additions(LIMIT + 1, name="t")):
        response = controller.handle(request)
        (entry,) = response.topics if hasattr(response, "topics") else response.results
        assert (entry.name, entry.error_code) == ("t", ErrorCode.POLICY_VIOLATION)
    names = DeleteTopicsRequest(topic_names=["t"] * (LIMIT + 1))
    assert [entry.error_code for entry in controller.handle(names).responses] == [ErrorCode.POLICY_VIOLATION]


def test_a_request_creates_10_000_partitions_at_most(controller: ModelController) -> None:
    topics = [CreatableTopic(name=name, num_partitions=6_000, replication_factor=1) for name in ("a", "b")]
    codes = [entry.error_code for entry in controller.handle(CreateTopicsRequest(topics=topics)).topics]
    assert codes == [0, ErrorCode.POLICY_VIOLATION]
    more = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="a", count=16_001, assignments=None)])
    assert [entry.error_code for entry in controller.handle(more).results] == [ErrorCode.POLICY_VIOLATION]
    more.topics[0].count = 16_000
    assert [entry.error_code for entry in controller.handle(more).results] == [0]


def test_unknown_keys_do_not_multiply_the_search_for_the_nearest(controller: ModelController) -> None:
    """The search for the nearest known key compares texts and is the most expensive part of a refusal."""
    controller.create("t0")
    unknown = [f"retention.mss{n}" for n in range(1000)]
    creation = creations(1)
    creation.topics[0].configs = [CreatableTopicConfig(name=name, value="1") for name in unknown]
    alteration = alterations(1)
    alteration.resources[0].configs = [AlterableConfig(name=name, config_operation=0, value="1") for name in unknown]
    for request in (creation, alteration):
        assert lines_of(controller, request) < 20_000
