"""Requests that the active controller decides: they travel there and back unchanged (KIP-590).

A client that creates a topic wants to use it at once: after a change this broker waits for its own copy of the metadata
to show it, for a moment, before it answers. When no controller can be reached, each part of the request is refused with
REQUEST_TIMED_OUT: the change may still happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from moldau.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from moldau.protocol.messages.alter_configs import AlterConfigsResourceResponse as AlteredResource
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from moldau.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from moldau.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from moldau.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from moldau.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from moldau.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
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
from moldau_quorum.controller_client import ControllerUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from moldau_broker.server.context import BrokerContext, Call
    from moldau_quorum.image import MetadataImage

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
    """The controller's answer and True, or a refusal and False."""
    try:
        response = await context.controller.request(request, response_class, timeout_ms=_timeout_ms(request))
    except ControllerUnavailableError:
        return refuse(request), False
    return response, True


def _timeout_ms(request: Request) -> float:
    """What the request allows, within bounds.

    0 does not mean that the decision must come at once, only that nobody waits until brokers know of it: librdkafka
    sends it unless it is told otherwise.
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
    """CreateTopics; numbers left to the cluster (-1) are those of this broker's configuration."""
    for topic in request.topics:
        if topic.num_partitions == -1 and not topic.assignments:
            topic.num_partitions = context.config.get_int("num.partitions")
        if topic.replication_factor == -1 and not topic.assignments:
            topic.replication_factor = context.config.get_int("default.replication.factor")
    response, answered = await _forward(
        context,
        request,
        CreateTopicsResponse,
        lambda refused: CreateTopicsResponse(
            topics=[
                CreatableTopicResult(name=topic.name, error_code=_TIMED_OUT, error_message=_WHY)
                for topic in refused.topics
            ]
        ),
    )
    if answered and not request.validate_only:
        created = [topic.name for topic in response.topics if topic.error_code == ErrorCode.NONE]
        await _until_visible(context, lambda image: all(name in image.topics_by_name for name in created))
    return response


async def handle_delete_topics(
    context: BrokerContext, request: DeleteTopicsRequest, call: Call
) -> DeleteTopicsResponse:
    """DeleteTopics, by name or by id."""
    if request.topic_names:
        request.topics = [DeleteTopicState(name=name) for name in request.topic_names]
    if not context.config.get_bool("delete.topic.enable"):
        return _not_deleted(request, ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
    response, answered = await _forward(
        context, request, DeleteTopicsResponse, lambda refused: _not_deleted(refused, _TIMED_OUT, _WHY)
    )
    if answered:
        gone = [topic.topic_id for topic in response.responses if topic.error_code == ErrorCode.NONE]
        await _until_visible(context, lambda image: not any(topic_id in image.topics_by_id for topic_id in gone))
    return response


def _not_deleted(request: DeleteTopicsRequest, error: ErrorCode, why: str) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=error, error_message=why)
            for topic in request.topics
        ]
    )


async def handle_create_partitions(
    context: BrokerContext, request: CreatePartitionsRequest, call: Call
) -> CreatePartitionsResponse:
    """CreatePartitions."""
    response, answered = await _forward(
        context,
        request,
        CreatePartitionsResponse,
        lambda refused: CreatePartitionsResponse(
            results=[
                CreatePartitionsTopicResult(name=topic.name, error_code=_TIMED_OUT, error_message=_WHY)
                for topic in refused.topics
            ]
        ),
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
    """IncrementalAlterConfigs."""
    before = context.metadata.image
    response, answered = await _forward(
        context,
        request,
        IncrementalAlterConfigsResponse,
        lambda refused: IncrementalAlterConfigsResponse(
            responses=[
                AlterConfigsResourceResponse(
                    error_code=_TIMED_OUT,
                    error_message=_WHY,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource in refused.resources
            ]
        ),
    )
    if answered and not request.validate_only and any(r.error_code == ErrorCode.NONE for r in response.responses):
        await _configs_visible(context, before)
    return response


async def handle_alter_configs(
    context: BrokerContext, request: AlterConfigsRequest, call: Call
) -> AlterConfigsResponse:
    """AlterConfigs."""
    before = context.metadata.image
    response, answered = await _forward(
        context,
        request,
        AlterConfigsResponse,
        lambda refused: AlterConfigsResponse(
            responses=[
                AlteredResource(
                    error_code=_TIMED_OUT,
                    error_message=_WHY,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource in refused.resources
            ]
        ),
    )
    if answered and not request.validate_only and any(r.error_code == ErrorCode.NONE for r in response.responses):
        await _configs_visible(context, before)
    return response


async def _configs_visible(context: BrokerContext, before: MetadataImage) -> None:
    """Waits a moment for a change of configuration; one that set what was set already shows none."""
    with trio.move_on_after(0.2):
        await context.follower.wait_until(lambda image: image.configs is not before.configs)


def _refused_as_a_whole(
    request_class: type[Q], response_class: type[R], refusal: Callable[[], R]
) -> Callable[[BrokerContext, Q, Call], Coroutine[object, object, R]]:
    """The handler of an API whose answer has one error code for all of the request."""

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
    """UpdateFeatures; what old versions say in words of their own is said in those that are forwarded."""
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
