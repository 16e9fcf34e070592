"""Which type of group an id belongs to, and the answers to requests that expect another type. Pure.

A group id belongs to one type at a time. As in Kafka, a share group is never converted: its id is free after it has
been deleted, and a share group does not begin while another group has its id, even an empty one. An empty streams
group makes way for a classic group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau.protocol.messages.leave_group import LeaveGroupRequest
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.offset_delete import OffsetDeleteRequest
from moldau.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from moldau.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from moldau.protocol.messages.sync_group import SyncGroupRequest
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from moldau.protocol.refusals import refusal
from moldau_broker.coordinator.group.core.responses import join_error, leave_answer
from moldau_broker.coordinator.group.share.core.views import described, not_found
from moldau_broker.coordinator.group.streams.core import views as streams_views

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.protocol.messages.internal.group_metadata import GroupMetadataValue
    from moldau.protocol.messages.share_group_describe import DescribedGroup
    from moldau.protocol.messages.streams_group_describe import DescribedGroup as DescribedStreamsGroup
    from moldau.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
    from moldau.protocol.schema import Request, Response
    from moldau_broker.coordinator.group.consumer.core.groups import ConsumerGroups
    from moldau_broker.coordinator.group.core.effect_queue import EffectQueue
    from moldau_broker.coordinator.group.core.offsets.committed import OffsetStore
    from moldau_broker.coordinator.group.core.rebalance import Rebalancer
    from moldau_broker.coordinator.group.share.core.groups import ShareGroups
    from moldau_broker.coordinator.group.streams.core.groups import StreamsGroups
    from moldau_broker.coordinator.runtime.effects import Moment
    from moldau_broker.coordinator.runtime.ports import TopicNames

_OF_ADMINISTRATORS = (AlterShareGroupOffsetsRequest, DeleteShareGroupOffsetsRequest)
_OF_SHARE_GROUPS = (ShareGroupHeartbeatRequest, *_OF_ADMINISTRATORS)
_OF_OFFSETS = (OffsetCommitRequest, TxnOffsetCommitRequest, OffsetDeleteRequest)
_OF_CLASSIC_MEMBERS = (SyncGroupRequest, HeartbeatRequest, LeaveGroupRequest)
_MEMBER_REQUESTS = (ConsumerGroupHeartbeatRequest, JoinGroupRequest, *_OF_CLASSIC_MEMBERS)
_MemberRequest = (
    ConsumerGroupHeartbeatRequest | JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest
)


class GroupTypes:
    """The groups of all types of one partition of ``__consumer_offsets``."""

    def __init__(
        self,
        shares: ShareGroups,
        consumers: ConsumerGroups,
        streams: StreamsGroups,
        rebalancer: Rebalancer,
        offsets: OffsetStore,
        effects: EffectQueue,
        written: Mapping[str, GroupMetadataValue],
        topics: TopicNames,
    ) -> None:
        """Looks into these parts of a core; ``written`` are the last committed records of classic groups."""
        self._shares = shares
        self._consumers = consumers
        self._streams = streams
        self._rebalancer = rebalancer
        self._offsets = offsets
        self._effects = effects
        self._written = written
        self._topics = topics

    def is_other(self, group_id: str) -> bool:
        """Returns whether a group other than a share group has an id; offsets alone make a classic group."""
        if self._has_consumers(group_id) or self._streams.has(group_id):
            return True
        if group_id in self._rebalancer.groups or group_id in self._written or self._offsets.has_group(group_id):
            return True
        return any(
            record.group_id == group_id and record.committed is not None for record in self._effects.offsets_in_flight()
        )

    def has_any(self, group_id: str) -> bool:
        """Returns whether a group of any type has an id."""
        return self._shares.has(group_id) or self.is_other(group_id)

    def _has_consumers(self, group_id: str) -> bool:
        return self._consumers.latest(group_id) is not None or self._consumers.serves_classic(group_id)

    def misplaced(self, request: Request, version: int, moment: Moment) -> Response | None:
        """Returns the answer to a request whose group is of another type; None if it is not misplaced.

        An empty streams group ends with the JoinGroup of a classic member, which is not misplaced then.
        """
        if isinstance(request, StreamsGroupHeartbeatRequest):
            if not (self._shares.has(request.group_id) or self._has_consumers(request.group_id)):
                return None
            why = f"Group {request.group_id} is not a streams group."
            return refusal(request, ErrorCode.GROUP_ID_NOT_FOUND, why, version=version)
        if isinstance(request, _MEMBER_REQUESTS) and self._streams.has(request.group_id):
            return self._misplaced_in_streams(request, version, moment)
        if isinstance(request, _OF_ADMINISTRATORS) and not request.group_id:
            return refusal(request, ErrorCode.INVALID_GROUP_ID, version=version)
        if isinstance(request, _OF_SHARE_GROUPS):
            if self._shares.has(request.group_id) or not self.is_other(request.group_id):
                return None
            why = not_found(request.group_id, is_other=True)
            return refusal(request, ErrorCode.GROUP_ID_NOT_FOUND, why, version=version)
        message: str | None = None
        if isinstance(request, ConsumerGroupHeartbeatRequest):
            code, message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a consumer group."
        elif isinstance(request, JoinGroupRequest):
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        elif isinstance(request, _OF_CLASSIC_MEMBERS):
            return _unknown(request, version) if self._shares.has(request.group_id) else None
        elif isinstance(request, _OF_OFFSETS):
            code = ErrorCode.GROUP_ID_NOT_FOUND
        else:
            return None
        return refusal(request, code, message, version=version) if self._shares.has(request.group_id) else None

    def _misplaced_in_streams(self, request: _MemberRequest, version: int, moment: Moment) -> Response | None:
        """Returns the answer to a member of another protocol whose group is a streams group."""
        group_id = request.group_id
        if isinstance(request, JoinGroupRequest):
            latest = self._streams.latest(group_id)
            if request.member_id and latest is not None and not latest.members:
                return join_error(ErrorCode.UNKNOWN_MEMBER_ID, version, request.member_id)
            code = self._streams.give_way(group_id, moment)
            return None if code is ErrorCode.NONE else join_error(code, version, request.member_id)
        if isinstance(request, ConsumerGroupHeartbeatRequest):
            why = f"Group {group_id} is not a consumer group."
            return refusal(request, ErrorCode.GROUP_ID_NOT_FOUND, why, version=version)
        return _unknown(request, version)

    def described_streams(self, group_id: str, request: StreamsGroupDescribeRequest) -> DescribedStreamsGroup:
        """Returns one group of a StreamsGroupDescribe answer."""
        group = self._streams.get(group_id)
        is_other = group is None and self.has_any(group_id)
        return streams_views.described(
            group_id,
            group,
            self._streams.configured(group_id),
            is_other=is_other,
            wants_description=request.include_topology_description,
        )

    def described(self, group_id: str) -> DescribedGroup:
        """Returns one group of a ShareGroupDescribe answer."""
        group = self._shares.get(group_id)
        return described(group_id, group, self._topics, is_other=group is None and self.is_other(group_id))


def _unknown(request: SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest, version: int) -> Response:
    """Returns the answer that no such member is known; LeaveGroup has a code for each of its members."""
    if isinstance(request, LeaveGroupRequest):
        return leave_answer(request, version, lambda _: ErrorCode.UNKNOWN_MEMBER_ID)
    return refusal(request, ErrorCode.UNKNOWN_MEMBER_ID, version=version)
