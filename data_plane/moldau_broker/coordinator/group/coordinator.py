"""The group coordinator of a broker.

It finds the partition of each group, and runs a `GroupShard` for every partition that this broker leads. The broker
calls `become_leader` and `resign` as leadership of ``__consumer_offsets`` partitions changes, and `submit` for each
request. `submit` never waits, so requests keep their order of arrival; the completion may become ready later.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from moldau.protocol.access import AUTHORIZED_OPERATIONS, AclResource, operations_mask
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from moldau.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from moldau.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from moldau.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau.protocol.messages.leave_group import LeaveGroupRequest
from moldau.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.offset_delete import OffsetDeleteRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponseGroup
from moldau.protocol.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from moldau.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from moldau.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest, StreamsGroupDescribeResponse
from moldau.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from moldau.protocol.refusals import refusal
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.coordinator.group.core.group_core import GroupCore
from moldau_broker.coordinator.group.core.member_memory import MemberMemory
from moldau_broker.coordinator.group.core.offsets.fetch_shapes import groups_of, response_of, without_repetitions
from moldau_broker.coordinator.group.core.offsets.requests import names_by_id
from moldau_broker.coordinator.group.core.responses import fetch_refusal, is_group_request
from moldau_broker.coordinator.group.shard import GroupShard
from moldau_broker.coordinator.runtime.completion import Combined, Completion
from moldau_broker.coordinator.runtime.effects import RequestContext
from moldau_broker.coordinator.runtime.sharded import ShardedCoordinator

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from moldau.protocol.schema import Request, Response
    from moldau.runtime.ports.environment import Environment
    from moldau.values import LeaderEpoch
    from moldau_broker.coordinator.group.consumer.core.catalogue import Catalogue, Compile
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.group.share.core.state import ShareGroup
    from moldau_broker.coordinator.runtime.effects import DescribeRight, Marker, TopicCreator
    from moldau_broker.coordinator.runtime.ports import InternalLog, ShareStates

R = TypeVar("R")
_GROUP_OPERATIONS: Final = operations_mask(*AUTHORIZED_OPERATIONS[AclResource.GROUP])

_PROTOCOL_NAMED_FROM: Final = 5
"""From this version on, SyncGroup must name the type and the name of the protocol (KIP-559)."""
_COUNTING: Final = RequestContext(version=5, client_id="", client_host="", fresh_id="")
"""With this version, ListGroups has types and states."""
_OF_SHARE_GROUPS = (
    ShareGroupHeartbeatRequest,
    ShareGroupDescribeRequest,
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
)
_OF_STREAMS_GROUPS = (StreamsGroupHeartbeatRequest, StreamsGroupDescribeRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """The groups that a broker coordinates at the moment."""

    groups: Mapping[tuple[str, str], int]
    """The number of groups by type (``classic``, ``consumer``, ``share``, ``streams``) and state, as in ListGroups."""
    partitions: Mapping[str, int]
    """The number of led partitions of ``__consumer_offsets`` that are ``active`` or still ``loading``."""


class GroupCoordinator(ShardedCoordinator[GroupShard]):
    """Serves the group requests of one broker.

    ``partition_count`` returns the number of partitions of ``__consumer_offsets``, 0 while the topic does not exist.
    """

    def __init__(
        self,
        *,
        environment: Environment,
        log: InternalLog,
        catalogue: Catalogue,
        config: GroupConfig,
        partition_count: Callable[[], int],
        compile_regex: Compile,
        share_states: ShareStates,
        serves_consumers: Callable[[], bool] = lambda: True,
        serves_shares: Callable[[], bool] = lambda: True,
        serves_streams: Callable[[], bool] = lambda: True,
        logger: EventLogger | None = None,
    ) -> None:
        """Starts no task before `run`.

        ``serves_consumers``, ``serves_shares`` and ``serves_streams`` return whether the cluster and the configuration
        allow such groups at the moment. ``share_states`` are the share coordinators.
        """
        super().__init__(partition_count, self._led)
        self._environment = environment
        self._log = log
        self._catalogue = catalogue
        self._config = config
        self._compile_regex = compile_regex
        self._serves_consumers = serves_consumers
        self._serves_shares = serves_shares
        self._serves_streams = serves_streams
        self._share_states = share_states
        self._memory = MemberMemory(config.coordinator_metadata_bytes_max)
        self._logger = logger if logger is not None else EventLogger("moldau.broker.groups")

    def _led(self, partition: int, leader_epoch: LeaderEpoch) -> GroupShard:
        shard = GroupShard(
            partition=partition,
            leader_epoch=leader_epoch,
            clock=self._environment.clock,
            log=self._log,
            new_core=lambda: GroupCore(self._config, self._catalogue, self._compile_regex, self._memory),
            load_bytes_max=self._config.load_bytes_max,
            logger=self._logger,
        )
        shard.share_states = self._share_states
        return shard

    # Requests

    def submit(
        self,
        request: Request,
        *,
        version: int,
        client_id: str | None,
        client_host: str,
        may_describe: DescribeRight | None = None,
        creator: TopicCreator | None = None,
    ) -> Completion:
        """Accepts a group request and returns the completion of its answer.

        ``may_describe`` limits the topics of regular expressions; None stands for all topics. ``creator`` creates the
        internal topics of a streams group.

        The requests are JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit, TxnOffsetCommit, OffsetFetch,
        OffsetDelete, DeleteGroups, DescribeGroups, ListGroups, ConsumerGroupHeartbeat, ConsumerGroupDescribe,
        ShareGroupHeartbeat, ShareGroupDescribe, AlterShareGroupOffsets, DeleteShareGroupOffsets, StreamsGroupHeartbeat
        and StreamsGroupDescribe. The caller has authorized the request, which is borrowed for the length of the call.
        The answer is ready by its own deadline (rebalance timeout, commit timeout), or when leadership ends.

        Raises:
            TypeError: the request is not one of a group coordinator.
        """
        if not is_group_request(request):
            raise TypeError(f"{type(request).__name__} is not a request to a group coordinator")
        context = RequestContext(
            version=version,
            client_id=client_id or "",
            client_host=client_host,
            fresh_id=_as_uuid(self._environment.random.getrandbits(128)),
            may_describe=may_describe,
            creator=creator,
        )
        if isinstance(request, SyncGroupRequest) and version >= _PROTOCOL_NAMED_FROM and not _names_protocol(request):
            return Completion(SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        if isinstance(request, OffsetFetchRequest):
            return self._fetch_offsets(request, context)
        if isinstance(request, ListGroupsRequest):
            return self._list_groups(request, context)
        if isinstance(request, DescribeGroupsRequest):
            return self._describe_groups(request, context)
        if isinstance(request, ConsumerGroupDescribeRequest):
            return self._describe_consumer_groups(request, context)
        if isinstance(request, DeleteGroupsRequest):
            return self._delete_groups(request, context)
        if isinstance(request, _OF_SHARE_GROUPS) and not self._serves_shares():
            return Completion(refusal(request, ErrorCode.UNSUPPORTED_VERSION, version=version))
        if isinstance(request, ShareGroupDescribeRequest):
            return self._describe_share_groups(request, context)
        if isinstance(request, _OF_STREAMS_GROUPS) and not self._serves_streams():
            return Completion(refusal(request, ErrorCode.UNSUPPORTED_VERSION, version=version))
        if isinstance(request, StreamsGroupDescribeRequest):
            return self._describe_streams_groups(request, context)
        if isinstance(request, OffsetCommitRequest | TxnOffsetCommitRequest):
            self._name_topics(request, version)
        assert isinstance(
            request,
            JoinGroupRequest
            | SyncGroupRequest
            | HeartbeatRequest
            | LeaveGroupRequest
            | OffsetCommitRequest
            | TxnOffsetCommitRequest
            | OffsetDeleteRequest
            | ConsumerGroupHeartbeatRequest
            | ShareGroupHeartbeatRequest
            | AlterShareGroupOffsetsRequest
            | DeleteShareGroupOffsetsRequest
            | StreamsGroupHeartbeatRequest,
        )
        if isinstance(request, ConsumerGroupHeartbeatRequest) and not self._serves_consumers():
            return Completion(refusal(request, ErrorCode.UNSUPPORTED_VERSION, version=version))
        return self._submit_to(request.group_id, request, context)

    def _name_topics(self, request: OffsetCommitRequest | TxnOffsetCommitRequest, version: int) -> None:
        """Fills in the names of topics that a commit names by id; an unknown topic has none."""
        if names_by_id(request, version):
            for topic in request.topics:
                topic.name = self._catalogue.topic_name(topic.topic_id) or ""

    async def handle(self, request: Request, *, version: int, client_id: str | None, client_host: str) -> Response:
        """Submits a request and waits for its answer."""
        completion = self.submit(request, version=version, client_id=client_id, client_host=client_host)
        return await completion.wait()

    def topics_deleted(self, names: Collection[str]) -> None:
        """Removes the offsets of deleted topics from all groups of this coordinator.

        Topics created since may have the same ``names``. A partition that is loading checks all its offsets once it is
        loaded.
        """
        for shard in list(self._shards.values()):
            if shard.refusal is ErrorCode.NONE:
                shard.topics_deleted(names)

    def complete_transaction(
        self, partition: int, marker: Marker, respond: Callable[[ErrorCode], Response]
    ) -> Completion:
        """Ends a producer's transaction in a ``__consumer_offsets`` partition that this broker leads (WriteTxnMarkers).

        The marker is appended in order with the coordinator's own writes, and offsets of the transaction take effect
        when it is committed. The broker must not append such markers itself.
        """
        shard = self._shards.get(partition)
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER if shard is None else shard.refusal
        if shard is None or code is not ErrorCode.NONE:
            return Completion(respond(code))
        return shard.complete_transaction(marker, respond)

    def _submit_to(self, group_id: str, request: Request, context: RequestContext) -> Completion:
        code, shard = self._shard_of(group_id)
        if shard is not None:
            return shard.submit(request, context)
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and isinstance(request, HeartbeatRequest):
            # A move of the coordinator must not make members leave; their sessions start over after loading.
            return Completion(HeartbeatResponse())
        return Completion(refusal(request, code, version=context.version))

    def _fetch_offsets(self, request: OffsetFetchRequest, context: RequestContext) -> Completion:
        request = without_repetitions(request)
        answers: list[OffsetFetchResponseGroup] = []
        for group in groups_of(request, context.version, self._catalogue):
            code, shard = self._shard_of(group.group_id)
            if shard is None:
                answers.append(fetch_refusal(group.group_id, code))
            else:
                answers.append(shard.fetch(group, request.require_stable))
        return Completion(response_of(request, context.version, answers, self._catalogue))

    def _list_groups(self, request: ListGroupsRequest, context: RequestContext) -> Completion:
        """Lists the groups of all partitions that this broker leads; an error if one of them is not loaded yet.

        A partition whose log is damaged is left out, as in Kafka: no later request would find it loaded.
        """
        groups: list[ListedGroup] = []
        for _, shard in sorted(self._shards.items()):
            code = shard.refusal
            if code is ErrorCode.NOT_COORDINATOR or shard.corrupt:
                continue
            if code is not ErrorCode.NONE:
                return Completion(refusal(request, code, version=context.version))
            response = shard.submit(request, context).response()
            assert isinstance(response, ListGroupsResponse)
            groups += response.groups
        return Completion(ListGroupsResponse(groups=groups))

    def statistics(self) -> GroupStatistics:
        """Counts the loaded groups; looks once at each of them."""
        counts: Counter[tuple[str, str]] = Counter()
        partitions: Counter[str] = Counter()
        for shard in self._shards.values():
            code = shard.refusal
            if code is ErrorCode.NOT_COORDINATOR:
                continue
            partitions["active" if code is ErrorCode.NONE else "loading"] += 1
            if code is ErrorCode.NONE:
                response = shard.submit(ListGroupsRequest(), _COUNTING).response()
                assert isinstance(response, ListGroupsResponse)
                counts.update((group.group_type.lower(), group.group_state) for group in response.groups)
        return GroupStatistics(groups=counts, partitions=partitions)

    def _describe_groups(self, request: DescribeGroupsRequest, context: RequestContext) -> Completion:
        names = dict.fromkeys(request.groups)  # a description is much larger than its name in the request
        parts = [self._submit_to(name, DescribeGroupsRequest(groups=[name]), context) for name in names]
        return _described(DescribeGroupsResponse, parts, request.include_authorized_operations)

    def _describe_consumer_groups(self, request: ConsumerGroupDescribeRequest, context: RequestContext) -> Completion:
        if not self._serves_consumers():
            return Completion(refusal(request, ErrorCode.UNSUPPORTED_VERSION, version=context.version))
        names = dict.fromkeys(request.group_ids)
        parts = [self._submit_to(name, ConsumerGroupDescribeRequest(group_ids=[name]), context) for name in names]
        return _described(ConsumerGroupDescribeResponse, parts, request.include_authorized_operations)

    def _describe_share_groups(self, request: ShareGroupDescribeRequest, context: RequestContext) -> Completion:
        names = dict.fromkeys(request.group_ids)
        parts = [self._submit_to(name, ShareGroupDescribeRequest(group_ids=[name]), context) for name in names]
        return _described(ShareGroupDescribeResponse, parts, request.include_authorized_operations)

    def _describe_streams_groups(self, request: StreamsGroupDescribeRequest, context: RequestContext) -> Completion:
        wants = request.include_topology_description
        parts = [
            self._submit_to(
                name, StreamsGroupDescribeRequest(group_ids=[name], include_topology_description=wants), context
            )
            for name in dict.fromkeys(request.group_ids)
        ]
        return _described(StreamsGroupDescribeResponse, parts, request.include_authorized_operations)

    def share_group(self, group_id: str) -> tuple[ErrorCode, ShareGroup | None]:
        """Returns a committed share group, or the code with which a question about it is refused."""
        if not self._serves_shares():
            return ErrorCode.UNSUPPORTED_VERSION, None
        code, shard = self._shard_of(group_id)
        if shard is None:
            return code, None
        group = shard.share_group(group_id)
        return (ErrorCode.GROUP_ID_NOT_FOUND if group is None else ErrorCode.NONE), group

    def _delete_groups(self, request: DeleteGroupsRequest, context: RequestContext) -> Completion:
        names = dict.fromkeys(request.groups_names)
        parts = [self._submit_to(name, DeleteGroupsRequest(groups_names=[name]), context) for name in names]

        def combine(responses: list[Response]) -> Response:
            deleted = [response for response in responses if isinstance(response, DeleteGroupsResponse)]
            return DeleteGroupsResponse(results=_flatten([response.results for response in deleted]))

        return Combined(parts, combine)


D = TypeVar(
    "D",
    DescribeGroupsResponse,
    ConsumerGroupDescribeResponse,
    ShareGroupDescribeResponse,
    StreamsGroupDescribeResponse,
)


def _described(response_class: type[D], parts: list[Completion], is_asked: bool) -> Combined:
    """Returns the descriptions of ``parts`` as one.

    If ``is_asked``, their bit fields get all operations, as an open cluster allows them; an authorizer narrows them
    down.
    """

    def combine(responses: list[Response]) -> Response:
        groups = _flatten([response.groups for response in responses if isinstance(response, response_class)])
        for group in groups:
            if is_asked and group.error_code == ErrorCode.NONE:
                group.authorized_operations = _GROUP_OPERATIONS
        return response_class(groups=groups)

    return Combined(parts, combine)


def _flatten(lists: Sequence[Sequence[R]]) -> list[R]:
    return [element for elements in lists for element in elements]


def _names_protocol(request: SyncGroupRequest) -> bool:
    return request.protocol_type is not None and request.protocol_name is not None


def _as_uuid(number: int) -> str:
    """Returns a number of 128 bits in the form of a UUID."""
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
