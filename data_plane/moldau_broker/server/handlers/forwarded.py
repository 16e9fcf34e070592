"""Requests that the broker forwards unchanged to the active controller (KIP-590).

A client that creates a topic wants to use it at once: before this broker answers, it waits up to
``VISIBILITY_TIMEOUT_MS`` until its own metadata show the change. If no controller can be reached, each part of the
request is refused with REQUEST_TIMED_OUT: the change may still happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from moldau.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from moldau.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)
from moldau.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from moldau.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from moldau.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from moldau.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from moldau.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from moldau.protocol.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from moldau.protocol.schema import Request, Response
from moldau_broker.server.handlers.loggers import alter_loggers
from moldau_quorum.broker_side.controller_client import ControllerUnavailableError
from moldau_quorum.controller.entities.configs import refuse_full, refuse_incremental, too_many_resources
from moldau_quorum.controller.topics import refuse_creations, refuse_deletions, refuse_partitions, too_many_topics
from moldau_quorum.metadata.image import RESOURCE_BROKER_LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from moldau_broker.server.handlers.context import BrokerContext, Call
    from moldau_quorum.metadata.image import MetadataImage

Q = TypeVar("Q", bound=Request)
R = TypeVar("R", bound=Response)

FORWARD_TIMEOUT_MS = 30_000.0
VISIBILITY_TIMEOUT_MS = 2_000.0
_TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT
_UPGRADE, _SAFE_DOWNGRADE = 1, 2
_WHY = "no active controller answered in time; the change may still happen"


async def _forward(
    context: BrokerContext, request: Q, response_class: type[R], refuse: Callable[[Q], R]
) -> tuple[R, bool]:
    """Returns the controller's answer and True, or a refusal and False."""
    try:
        response = await context.controller.request(request, response_class, timeout_ms=_timeout_ms(request))
    except ControllerUnavailableError:
        return refuse(request), False
    return response, True


def _timeout_ms(request: Request) -> float:
    """Returns the request's timeout within bounds.

    0 only means that the client does not wait until brokers know of the change; the controller still needs time to
    decide. librdkafka sends 0 by default.
    """
    wanted: object = getattr(request, "timeout_ms", FORWARD_TIMEOUT_MS)
    assert isinstance(wanted, int | float)
    return float(min(max(1_000, wanted or FORWARD_TIMEOUT_MS), FORWARD_TIMEOUT_MS))


async def _until_visible(context: BrokerContext, condition: Callable[[MetadataImage], bool]) -> None:
    with trio.move_on_after(VISIBILITY_TIMEOUT_MS / 1000):
        await context.follower.wait_until(condition)


async def handle_create_topics(
    context: BrokerContext, request: CreateTopicsRequest, call: Call
) -> CreateTopicsResponse:
    """Forwards CreateTopics; this broker's configuration replaces default numbers (-1)."""
    too_many = too_many_topics(len(request.topics))
    if too_many is not None:
        return refuse_creations(request, ErrorCode.POLICY_VIOLATION, too_many)
    for topic in request.topics:
        if topic.num_partitions == -1 and not topic.assignments:
            topic.num_partitions = context.config.get_int("num.partitions")
        if topic.replication_factor == -1 and not topic.assignments:
            topic.replication_factor = context.config.get_int("default.replication.factor")
    response, answered = await _forward(
        context,
        request,
        CreateTopicsResponse,
        lambda refused: refuse_creations(refused, _TIMED_OUT, _WHY),
    )
    if answered and not request.validate_only:
        created = [topic.name for topic in response.topics if topic.error_code == ErrorCode.NONE]
        await _until_visible(context, lambda image: all(name in image.topics_by_name for name in created))
    return response


async def handle_delete_topics(
    context: BrokerContext, request: DeleteTopicsRequest, call: Call
) -> DeleteTopicsResponse:
    """Forwards DeleteTopics, by name or by id."""
    too_many = too_many_topics(len(request.topics) + len(request.topic_names))
    if too_many is not None:
        return refuse_deletions(request, ErrorCode.POLICY_VIOLATION, too_many)
    if request.topic_names:
        request.topics = [DeleteTopicState(name=name) for name in request.topic_names]
    if not context.config.get_bool("delete.topic.enable"):
        return refuse_deletions(request, ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
    response, answered = await _forward(
        context, request, DeleteTopicsResponse, lambda refused: refuse_deletions(refused, _TIMED_OUT, _WHY)
    )
    if answered:
        gone = [topic.topic_id for topic in response.responses if topic.error_code == ErrorCode.NONE]
        await _until_visible(context, lambda image: not any(topic_id in image.topics_by_id for topic_id in gone))
    return response


async def handle_create_partitions(
    context: BrokerContext, request: CreatePartitionsRequest, call: Call
) -> CreatePartitionsResponse:
    """Forwards CreatePartitions."""
    too_many = too_many_topics(len(request.topics))
    if too_many is not None:
        return refuse_partitions(request, ErrorCode.POLICY_VIOLATION, too_many)
    response, answered = await _forward(
        context,
        request,
        CreatePartitionsResponse,
        lambda refused: refuse_partitions(refused, _TIMED_OUT, _WHY),
    )
    if answered and not request.validate_only:
        failed = {result.name for result in response.results if result.error_code != ErrorCode.NONE}
        grown = [(topic.name, topic.count) for topic in request.topics if topic.name not in failed]
        await _until_visible(context, lambda image: all(_has_partitions(image, name, count) for name, count in grown))
    return response


def _has_partitions(image: MetadataImage, name: str, count: int) -> bool:
    topic = image.topics_by_name.get(name)
    return topic is None or len(topic.partitions) >= count


async def handle_incremental_alter_configs(
    context: BrokerContext, request: IncrementalAlterConfigsRequest, call: Call
) -> IncrementalAlterConfigsResponse:
    """Forwards IncrementalAlterConfigs, except for levels of loggers, which this broker changes."""
    too_many = too_many_resources(len(request.resources))
    if too_many is not None:
        return refuse_incremental(request, ErrorCode.POLICY_VIOLATION, too_many)
    own = [each for each in request.resources if each.resource_type == RESOURCE_BROKER_LOGGER]
    request.resources = [each for each in request.resources if each.resource_type != RESOURCE_BROKER_LOGGER]
    response = IncrementalAlterConfigsResponse(responses=[])
    if request.resources or not own:
        response = await _alter_in_metadata(context, request)
    twice = len({each.resource_name for each in own}) < len(own)
    response.responses = [
        *response.responses,
        *(alter_loggers(context, each, validate_only=request.validate_only, repeated=twice) for each in own),
    ]
    return response


async def _alter_in_metadata(
    context: BrokerContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    before = context.metadata.image
    response, answered = await _forward(
        context,
        request,
        IncrementalAlterConfigsResponse,
        lambda refused: refuse_incremental(refused, _TIMED_OUT, _WHY),
    )
    if answered and not request.validate_only and any(r.error_code == ErrorCode.NONE for r in response.responses):
        await _configs_visible(context, before)
    return response


async def handle_alter_configs(
    context: BrokerContext, request: AlterConfigsRequest, call: Call
) -> AlterConfigsResponse:
    """Forwards AlterConfigs."""
    too_many = too_many_resources(len(request.resources))
    if too_many is not None:
        return refuse_full(request, ErrorCode.POLICY_VIOLATION, too_many)
    before = context.metadata.image
    response, answered = await _forward(
        context,
        request,
        AlterConfigsResponse,
        lambda refused: refuse_full(refused, _TIMED_OUT, _WHY),
    )
    if answered and not request.validate_only and any(r.error_code == ErrorCode.NONE for r in response.responses):
        await _configs_visible(context, before)
    return response


async def _configs_visible(context: BrokerContext, before: MetadataImage) -> None:
    """Waits 200 ms for a change of configuration; equal values change nothing."""
    with trio.move_on_after(0.2):
        await context.follower.wait_until(lambda image: image.configs is not before.configs)


def _refused_as_a_whole(
    request_class: type[Q], response_class: type[R], refusal: Callable[[], R]
) -> Callable[[BrokerContext, Q, Call], Coroutine[object, object, R]]:
    """Returns the handler of an API whose answer has one error code for the whole request."""

    async def handle(context: BrokerContext, request: Q, call: Call) -> R:
        response, _ = await _forward(context, request, response_class, lambda refused: refusal())
        return response

    return handle


handle_elect_leaders = _refused_as_a_whole(
    ElectLeadersRequest, ElectLeadersResponse, lambda: ElectLeadersResponse(error_code=_TIMED_OUT)
)
handle_alter_partition_reassignments = _refused_as_a_whole(
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    lambda: AlterPartitionReassignmentsResponse(error_code=_TIMED_OUT, error_message=_WHY),
)
handle_list_partition_reassignments = _refused_as_a_whole(
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    lambda: ListPartitionReassignmentsResponse(error_code=_TIMED_OUT, error_message=_WHY),
)
handle_describe_quorum = _refused_as_a_whole(
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    lambda: DescribeQuorumResponse(error_code=_TIMED_OUT, error_message=_WHY),
)


async def handle_update_features(
    context: BrokerContext, request: UpdateFeaturesRequest, call: Call
) -> UpdateFeaturesResponse:
    """Forwards UpdateFeatures, and converts fields of old versions to those of the forwarded version."""
    for update in request.feature_updates:
        if update.allow_downgrade and update.upgrade_type == _UPGRADE:
            update.upgrade_type = _SAFE_DOWNGRADE
    response, _ = await _forward(
        context,
        request,
        UpdateFeaturesResponse,
        lambda _: UpdateFeaturesResponse(error_code=_TIMED_OUT, error_message=_WHY),
    )
    response.results = [  # all updates of a request succeed or fail together
        UpdatableFeatureResult(
            feature=update.feature, error_code=response.error_code, error_message=response.error_message
        )
        for update in request.feature_updates
    ]
    return response


handle_unregister_broker = _refused_as_a_whole(
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    lambda: UnregisterBrokerResponse(error_code=_TIMED_OUT, error_message=_WHY),
)
handle_add_raft_voter = _refused_as_a_whole(
    AddRaftVoterRequest, AddRaftVoterResponse, lambda: AddRaftVoterResponse(error_code=_TIMED_OUT, error_message=_WHY)
)
handle_remove_raft_voter = _refused_as_a_whole(
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    lambda: RemoveRaftVoterResponse(error_code=_TIMED_OUT, error_message=_WHY),
)
