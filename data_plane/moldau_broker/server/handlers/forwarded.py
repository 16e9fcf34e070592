"""Requests that the broker forwards unchanged to the active controller (KIP-590).

A client that creates a topic wants to use it at once: before this broker answers, it waits up to
``VISIBILITY_TIMEOUT_MS`` until its own metadata show the change. If no controller can be reached, each part of the
request is refused with REQUEST_TIMED_OUT: the change may still happen.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from moldau.protocol.messages.alter_configs import AlterConfigsResourceResponse as FullResource
from moldau.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)
from moldau.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from moldau.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from moldau.protocol.messages.incremental_alter_configs import AlterConfigsResourceResponse as IncrementalResource
from moldau.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from moldau.protocol.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from moldau.protocol.refusals import refusal_of
from moldau.protocol.schema import Request, Response
from moldau.values import ZERO_UUID, list_elements
from moldau_broker.server.handlers.own_configs import without_refused
from moldau_quorum.broker_side.controller_client import (
    SLOW_APIS,
    SLOW_ATTEMPT_TIMEOUT_MS,
    ControllerUnavailableError,
)
from moldau_quorum.controller.entities.configs import APPEND, DELETE, SET, too_many_resources
from moldau_quorum.controller.topics import too_many_topics
from moldau_quorum.metadata.image import RESOURCE_BROKER_LOGGER
from moldau_quorum.quotas.mutations import STRICT_SINCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.protocol.messages.alter_configs import AlterConfigsResource as FullConfigs
    from moldau.protocol.messages.create_topics import CreatableTopicResult
    from moldau.protocol.messages.incremental_alter_configs import AlterConfigsResource
    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Environment
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.handlers.context import Call
    from moldau_broker.server.replicas.replica_directories import ReplicaDirectories
    from moldau_quorum.broker_side.controller_client import ControllerClient
    from moldau_quorum.broker_side.metadata_follower import MetadataFollower
    from moldau_quorum.controller.entities.loggers import NodeLoggers
    from moldau_quorum.metadata.image import MetadataImage

R = TypeVar("R", bound=Response)

FORWARD_TIMEOUT_MS = 30_000.0
VISIBILITY_TIMEOUT_MS = 2_000.0
_KNOWS_DISABLED_SINCE = 3
"""The first version of DeleteTopics whose clients understand TOPIC_DELETION_DISABLED."""
_TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT
_UPGRADE, _SAFE_DOWNGRADE = 1, 2
_WHY = "no active controller answered in time; the change may still happen"


class ForwardingContext(Protocol):
    """The parts of a broker needed for forwarding requests to the active controller."""

    @property
    def broker_id(self) -> int: ...
    @property
    def loggers(self) -> NodeLoggers: ...
    @property
    def environment(self) -> Environment: ...
    @property
    def config(self) -> Config: ...
    @property
    def static_config(self) -> Config: ...
    @property
    def controller(self) -> ControllerClient: ...
    @property
    def follower(self) -> MetadataFollower: ...
    @property
    def directories(self) -> ReplicaDirectories: ...
    @property
    def metadata(self) -> MetadataCache: ...


async def relay(context: ForwardingContext, request: Request, call: Call) -> Response:
    """Forwards a request whose answer needs no work of this broker."""
    response, _ = await forward(context, request, APIS[request.__api_key__].response, call)
    return response


async def forward(context: ForwardingContext, request: Request, response_class: type[R], call: Call) -> tuple[R, bool]:
    """Returns the controller's answer and True, or a refusal and False.

    A version that does not know THROTTLING_QUOTA_EXCEEDED is forwarded as it is, so that the controller knows it too.
    """
    client = call.forwarded
    if call.version < STRICT_SINCE.get(request.__api_key__, 0):
        client = client._replace(version=call.version)
    try:
        response = await context.controller.request(
            request, response_class, timeout_ms=_timeout_ms(request), client=client
        )
    except ControllerUnavailableError:
        return refusal_of(response_class, request, _TIMED_OUT, _WHY, version=call.version), False
    return response, True


def _timeout_ms(request: Request) -> float:
    """Returns the request's timeout within bounds; a voter takes longer to catch up than other changes.

    0 only means that the client does not wait until brokers know of the change; the controller still needs time to
    decide. librdkafka sends 0 by default.
    """
    wanted: object = getattr(request, "timeout_ms", FORWARD_TIMEOUT_MS)
    assert isinstance(wanted, int | float)
    bound_ms = SLOW_ATTEMPT_TIMEOUT_MS if request.__api_key__ in SLOW_APIS else FORWARD_TIMEOUT_MS
    return float(min(max(1_000, wanted or FORWARD_TIMEOUT_MS), bound_ms))


async def until_visible(context: ForwardingContext, condition: Callable[[MetadataImage], bool]) -> None:
    """Waits up to ``VISIBILITY_TIMEOUT_MS`` until this broker's metadata meet the condition."""
    with trio.move_on_after(VISIBILITY_TIMEOUT_MS / 1000):
        await context.follower.wait_until(condition)


async def handle_create_topics(
    context: ForwardingContext, request: CreateTopicsRequest, call: Call
) -> CreateTopicsResponse:
    """Forwards CreateTopics; this broker's configuration replaces default numbers (-1)."""
    too_many = too_many_topics(len(request.topics))
    if too_many is not None:
        return refusal_of(CreateTopicsResponse, request, ErrorCode.POLICY_VIOLATION, too_many, version=call.version)
    for topic in request.topics:
        if topic.num_partitions == -1 and not topic.assignments:
            topic.num_partitions = context.config.get_int("num.partitions")
        if topic.replication_factor == -1 and not topic.assignments:
            topic.replication_factor = context.config.get_int("default.replication.factor")
    response, answered = await forward(context, request, CreateTopicsResponse, call)
    if answered and not request.validate_only:
        created = [topic for topic in response.topics if topic.error_code == ErrorCode.NONE]
        await until_visible(context, lambda image: all(_has_created(image, topic) for topic in created))
    return response


def _has_created(image: MetadataImage, topic: CreatableTopicResult) -> bool:
    """Returns whether a topic is there: itself, and not a deleted one of its name."""
    if topic.topic_id != ZERO_UUID:
        return topic.topic_id in image.topics_by_id
    return topic.name in image.topics_by_name


async def handle_delete_topics(
    context: ForwardingContext, request: DeleteTopicsRequest, call: Call
) -> DeleteTopicsResponse:
    """Forwards DeleteTopics, by name or by id."""
    too_many = too_many_topics(len(request.topics) + len(request.topic_names))
    if too_many is not None:
        return refusal_of(DeleteTopicsResponse, request, ErrorCode.POLICY_VIOLATION, too_many, version=call.version)
    if request.topic_names and call.version >= STRICT_SINCE[ApiKey.DELETE_TOPICS]:
        request.topics = [DeleteTopicState(name=name) for name in request.topic_names]
        request.topic_names = []
    if not context.config.get_bool("delete.topic.enable"):
        return refusal_of(
            DeleteTopicsResponse,
            request,
            ErrorCode.TOPIC_DELETION_DISABLED if call.version >= _KNOWS_DISABLED_SINCE else ErrorCode.INVALID_REQUEST,
            "delete.topic.enable is false",
            version=call.version,
        )
    response, answered = await forward(context, request, DeleteTopicsResponse, call)
    if answered:
        gone = [topic for topic in response.responses if topic.error_code == ErrorCode.NONE]
        await until_visible(context, lambda image: not any(_has_topic(image, topic) for topic in gone))
    return response


def _has_topic(image: MetadataImage, topic: DeletableTopicResult) -> bool:
    if topic.topic_id != ZERO_UUID:
        return topic.topic_id in image.topics_by_id
    return topic.name in image.topics_by_name  # an old version, whose answer has no ids


async def handle_create_partitions(
    context: ForwardingContext, request: CreatePartitionsRequest, call: Call
) -> CreatePartitionsResponse:
    """Forwards CreatePartitions."""
    too_many = too_many_topics(len(request.topics))
    if too_many is not None:
        return refusal_of(CreatePartitionsResponse, request, ErrorCode.POLICY_VIOLATION, too_many, version=call.version)
    response, answered = await forward(context, request, CreatePartitionsResponse, call)
    if answered and not request.validate_only:
        failed = {result.name for result in response.results if result.error_code != ErrorCode.NONE}
        grown = [(topic.name, topic.count) for topic in request.topics if topic.name not in failed]
        await until_visible(context, lambda image: all(_has_partitions(image, name, count) for name, count in grown))
    return response


def _has_partitions(image: MetadataImage, name: str, count: int) -> bool:
    topic = image.topics_by_name.get(name)
    return topic is None or len(topic.partitions) >= count


async def handle_incremental_alter_configs(
    context: ForwardingContext, request: IncrementalAlterConfigsRequest, call: Call
) -> IncrementalAlterConfigsResponse:
    """Forwards IncrementalAlterConfigs, except for what this broker decides: levels of loggers, its own files."""
    too_many = too_many_resources(len(request.resources))
    if too_many is not None:
        return refusal_of(
            IncrementalAlterConfigsResponse, request, ErrorCode.POLICY_VIOLATION, too_many, version=call.version
        )
    own = [each for each in request.resources if each.resource_type == RESOURCE_BROKER_LOGGER]
    request.resources = [each for each in request.resources if each.resource_type != RESOURCE_BROKER_LOGGER]
    request.resources, refused = without_refused(context, request.resources, IncrementalResource)
    response = IncrementalAlterConfigsResponse(responses=[])
    if request.resources or not (own or refused):
        response = await _alter_in_metadata(context, request, call)
    response.responses = [
        *response.responses,
        *refused,
        *context.loggers.alter(own, validate_only=request.validate_only),
    ]
    return response


async def _alter_in_metadata(
    context: ForwardingContext, request: IncrementalAlterConfigsRequest, call: Call
) -> IncrementalAlterConfigsResponse:
    response, answered = await forward(context, request, IncrementalAlterConfigsResponse, call)
    if answered and not request.validate_only:
        outcomes = zip(request.resources, response.responses, strict=False)  # in the same order
        await _configs_visible(context, [partial(_is_altered, each) for each, made in outcomes if not made.error_code])
    return response


def _is_altered(resource: AlterConfigsResource, image: MetadataImage) -> bool:
    """Returns whether an image has the changes of a resource; the controller keeps values as they are given."""
    values = image.config(resource.resource_type, resource.resource_name)
    for change in resource.configs:
        present = values.get(change.name)
        if change.config_operation in (SET, DELETE):
            if present != (change.value if change.config_operation == SET else None):
                return False
            continue
        if present is None:
            return False
        elements, known = set(list_elements(change.value or "")), set(list_elements(present))
        if not elements <= known if change.config_operation == APPEND else elements & known:
            return False
    return True


async def handle_alter_configs(
    context: ForwardingContext, request: AlterConfigsRequest, call: Call
) -> AlterConfigsResponse:
    """Forwards AlterConfigs, except for what does not fit this broker, which it refuses."""
    too_many = too_many_resources(len(request.resources))
    if too_many is not None:
        return refusal_of(AlterConfigsResponse, request, ErrorCode.POLICY_VIOLATION, too_many, version=call.version)
    request.resources, refused = without_refused(context, request.resources, FullResource)
    response, answered = AlterConfigsResponse(responses=[]), False
    if request.resources or not refused:
        response, answered = await forward(context, request, AlterConfigsResponse, call)
    if answered and not request.validate_only:
        outcomes = zip(request.resources, response.responses, strict=False)  # in the same order
        await _configs_visible(context, [partial(_is_replaced, each) for each, made in outcomes if not made.error_code])
    response.responses = [*response.responses, *refused]
    return response


def _is_replaced(resource: FullConfigs, image: MetadataImage) -> bool:
    """Returns whether an image has the new configuration of a resource."""
    wanted = {config.name: config.value for config in resource.configs if config.value is not None}
    return dict(image.config(resource.resource_type, resource.resource_name)) == wanted


async def _configs_visible(context: ForwardingContext, changes: list[Callable[[MetadataImage], bool]]) -> None:
    """Waits for changes of configuration, if there are any.

    If this broker's cordoned log directories have changed, it also waits until the controller places replicas by them.
    """
    left = deque(changes)

    def are_made(image: MetadataImage) -> bool:
        # They come in their order, over many images if there are many: what has been seen is not looked for again.
        while left and left[0](image):
            left.popleft()
        return not left

    if changes:
        await until_visible(context, are_made)
        await until_visible(context, context.directories.is_recorded)


async def handle_update_features(
    context: ForwardingContext, request: UpdateFeaturesRequest, call: Call
) -> UpdateFeaturesResponse:
    """Forwards UpdateFeatures, and converts fields of old versions to those of the forwarded version."""
    for update in request.feature_updates:
        if update.allow_downgrade and update.upgrade_type == _UPGRADE:
            update.upgrade_type = _SAFE_DOWNGRADE
    response, _ = await forward(context, request, UpdateFeaturesResponse, call)
    response.results = [  # all updates of a request succeed or fail together
        UpdatableFeatureResult(
            feature=update.feature, error_code=response.error_code, error_message=response.error_message
        )
        for update in request.feature_updates
    ]
    return response
