"""FindCoordinator, and the requests to the group coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio

from moldau.protocol.access import AclOperation, AclResource
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from moldau.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from moldau.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from moldau_broker.coordinator.runtime.partitioning import partition_for
from moldau_broker.coordinator.share.core.state import SharePartitionKey
from moldau_broker.server.cluster_metadata.internal_topics import TopicsOfClient
from moldau_broker.server.handlers.context import LongAnswer
from moldau_broker.server.handlers.metadata import (
    InternalTopicsContext,
    ensure_offsets_topic,
    ensure_share_state_topic,
    ensure_transactions_topic,
)
from moldau_quorum.metadata.internal_topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from moldau.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
    from moldau.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
    from moldau.protocol.schema import Request, Response
    from moldau.runtime.sasl.core.identity import Identity
    from moldau_broker.coordinator.group.coordinator import GroupCoordinator
    from moldau_broker.coordinator.runtime.completion import Completion
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.handlers.context import Call
    from moldau_quorum.authorization.authorizer import Authorizer

AboutGroups = (
    DescribeGroupsRequest
    | ConsumerGroupDescribeRequest
    | ShareGroupDescribeRequest
    | StreamsGroupDescribeRequest
    | DeleteGroupsRequest
)
"""Requests that treat each of their groups by itself."""
_LISTS: Mapping[type[Request], tuple[str, str]] = {
    DescribeGroupsRequest: ("groups", "groups"),
    ConsumerGroupDescribeRequest: ("group_ids", "groups"),
    ShareGroupDescribeRequest: ("group_ids", "groups"),
    StreamsGroupDescribeRequest: ("group_ids", "groups"),
    DeleteGroupsRequest: ("groups_names", "results"),
}
"""The fields that hold the groups of the request and those of the answer."""
_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_TOPICS = {_GROUP: OFFSETS_TOPIC, _TRANSACTION: TRANSACTIONS_TOPIC, _SHARE: SHARE_STATE_TOPIC}
_BATCHED = 4
_SHARES_FROM = 6
"""The first version of FindCoordinator whose clients know share coordinators."""
KEYS_PER_TURN = 1000
"""Keys that are looked up before other tasks of the broker may run; ``request.max.entries`` bounds all of them."""
GROUPS_PER_TURN = 500
"""Groups that are described or deleted, or whose offsets are read, before other tasks may run.

A description takes some 30 us, an entry of OffsetFetch some 5 us.
"""


class GroupsContext(InternalTopicsContext, Protocol):
    """The parts of a broker needed for the requests to the group coordinator."""

    @property
    def groups(self) -> GroupCoordinator: ...
    @property
    def metadata(self) -> MetadataCache: ...
    @property
    def authorizer(self) -> Authorizer | None: ...


@dataclass(frozen=True, slots=True)
class _Describes:
    """The topics that a client may describe by the newest ACLs, whenever it is asked."""

    authorizer: Authorizer
    identity: Identity

    def allows(self, topic: str) -> bool:
        return self.authorizer.decide(self.identity, AclOperation.DESCRIBE, AclResource.TOPIC, topic).is_allowed


class _Found(NamedTuple):
    node_id: int = -1
    host: str = ""
    port: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


async def handle_find_coordinator(
    context: GroupsContext, request: FindCoordinatorRequest, call: Call
) -> FindCoordinatorResponse:
    """Returns the coordinators of groups, transactional ids or share-partitions.

    The internal topic is created on first use.
    """
    keys = request.coordinator_keys if call.version >= _BATCHED else [request.key]
    known = context.metadata.image.topics_by_name
    if request.key_type == _GROUP and OFFSETS_TOPIC not in known:
        await ensure_offsets_topic(context)
    if request.key_type == _TRANSACTION and TRANSACTIONS_TOPIC not in known:
        await ensure_transactions_topic(context)
    if request.key_type == _SHARE and call.version >= _SHARES_FROM and SHARE_STATE_TOPIC not in known:
        await ensure_share_state_topic(context)
    found: list[_Found] = []
    for number, key in enumerate(keys, 1):
        found.append(_find(context, request.key_type, key, call))
        if number % KEYS_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
    if call.version >= _BATCHED:
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(
                    key=key,
                    node_id=coordinator.node_id,
                    host=coordinator.host,
                    port=coordinator.port,
                    error_code=coordinator.error,
                    error_message=coordinator.message,
                )
                for key, coordinator in zip(keys, found, strict=True)
            ]
        )
    only = found[0]
    return FindCoordinatorResponse(
        error_code=only.error, error_message=only.message, node_id=only.node_id, host=only.host, port=only.port
    )


def _find(context: GroupsContext, key_type: int, key: str, call: Call) -> _Found:
    name = _TOPICS.get(key_type)
    if key_type == _SHARE:
        if call.version < _SHARES_FROM:
            message = f"share coordinators are known from version {_SHARES_FROM} on"
            return _Found(error=ErrorCode.INVALID_REQUEST, message=message)
        try:
            key = SharePartitionKey.parse(key).coordinator_key
        except ValueError as error:
            return _Found(error=ErrorCode.INVALID_REQUEST, message=str(error))
    if name is None:
        return _Found(error=ErrorCode.INVALID_REQUEST, message=f"key type {key_type} has no coordinator here")
    topic = context.metadata.image.topics_by_name.get(name)
    if topic is None or not len(topic.partitions):
        message = f"{name} could not be created: are fewer brokers alive than its replication factor?"
        return _Found(error=ErrorCode.COORDINATOR_NOT_AVAILABLE, message=message)
    partition = topic.partitions.get(partition_for(key, len(topic.partitions)))
    assert partition is not None, "partitions are numbered without gaps"
    endpoint = context.metadata.endpoint(partition.leader, call.listener_name) if partition.leader >= 0 else None
    if endpoint is None:
        return _Found(error=ErrorCode.COORDINATOR_NOT_AVAILABLE, message="its partition has no leader")
    return _Found(node_id=partition.leader, host=endpoint.host, port=endpoint.port)


def handle_group_request(context: GroupsContext, request: Request, call: Call) -> Completion:
    """Submits the request to the coordinator at once, so that requests keep their order; it may answer later."""
    authorizer = context.authorizer
    return context.groups.submit(
        request,
        version=call.version,
        client_id=call.client_id,
        client_host=call.client_host,
        may_describe=None if authorizer is None else _Describes(authorizer, call.identity),
    )


def handle_streams_heartbeat(context: GroupsContext, request: StreamsGroupHeartbeatRequest, call: Call) -> Completion:
    """Submits the request to the coordinator at once; missing internal topics are created with the client's rights."""
    return context.groups.submit(
        request,
        version=call.version,
        client_id=call.client_id,
        client_host=call.client_host,
        creator=TopicsOfClient(context.topic_creation, context.config, call.forwarded),
    )


async def handle_many_groups(context: GroupsContext, request: AboutGroups, call: Call) -> Response:
    """Submits a request about independent groups in parts, so that other tasks of the broker run between them."""
    field, answered = _LISTS[type(request)]
    names = list(dict.fromkeys(getattr(request, field)))  # a description is much larger than its name in the request
    values = {key: getattr(request, key) for key in request.__fields__}
    responses: list[Response] = []
    for start in range(0, max(1, len(names)), GROUPS_PER_TURN):
        if start:
            await trio.lowlevel.checkpoint()
        part = type(request)(**{**values, field: names[start : start + GROUPS_PER_TURN]})
        responses.append(await handle_group_request(context, part, call).wait())
    for response in responses[1:]:
        getattr(responses[0], answered).extend(getattr(response, answered))
    return responses[0]


def handle_offset_fetch(context: GroupsContext, request: OffsetFetchRequest, call: Call) -> Completion | LongAnswer:
    """Submits the request to the coordinator at once; offsets of many groups are read in parts later."""
    if len(request.groups) <= GROUPS_PER_TURN:
        return handle_group_request(context, request, call)
    return LongAnswer(lambda: _fetch_in_parts(context, request, call))


async def _fetch_in_parts(context: GroupsContext, request: OffsetFetchRequest, call: Call) -> OffsetFetchResponse:
    """Reads the offsets of some groups at a time, so that other tasks of the broker run between them."""
    answers: list[OffsetFetchResponseGroup] = []
    for number, groups in enumerate(_parts_of(request)):
        if number:
            await trio.lowlevel.checkpoint()
        part = OffsetFetchRequest(groups=groups, require_stable=request.require_stable)
        response = await handle_group_request(context, part, call).wait()
        assert isinstance(response, OffsetFetchResponse)
        answers += response.groups
    return OffsetFetchResponse(groups=answers)


def _parts_of(request: OffsetFetchRequest) -> Iterator[list[OffsetFetchRequestGroup]]:
    """Returns the entries in parts; all entries of a group are in one part, where the coordinator unites them."""
    entries: dict[tuple[str, bool], list[OffsetFetchRequestGroup]] = {}
    for entry in request.groups:
        entries.setdefault((entry.group_id, entry.topics is None), []).append(entry)
    part: list[OffsetFetchRequestGroup] = []
    for same in entries.values():
        part += same
        if len(part) >= GROUPS_PER_TURN:
            yield part
            part = []
    if part:
        yield part
