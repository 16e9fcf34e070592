"""A group coordinator of share groups for tests of the client: each member may fetch from all partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from support.cluster.broker_cluster import Cluster


class FixedGroup:
    """Answers heartbeats; ``request`` takes the place of the client's request to the coordinator."""

    def __init__(self, cluster: Cluster, interval_ms: int = 500) -> None:
        self.cluster = cluster
        self.interval_ms = interval_ms
        self.members: dict[str, int] = {}
        self.subscriptions: dict[str, list[str]] = {}
        self.refusals: list[ErrorCode] = []
        self.left: list[str] = []

    def answer(self, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
        if self.refusals:
            return ShareGroupHeartbeatResponse(error_code=self.refusals.pop(0))
        member = request.member_id
        if request.member_epoch == -1:
            self.members.pop(member, None)
            self.left.append(member)
            return ShareGroupHeartbeatResponse(member_id=member, member_epoch=-1)
        if request.member_epoch == 0:
            self.members[member] = 1
        elif member not in self.members:
            return ShareGroupHeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        assignment = None
        if request.subscribed_topic_names is not None:
            self.subscriptions[member] = list(request.subscribed_topic_names)
            self.members[member] += 1
            topics = self.cluster.image().topics_by_name
            assignment = Assignment(
                topic_partitions=[
                    TopicPartitions(topic_id=topics[name].topic_id, partitions=sorted(topics[name].partitions))
                    for name in request.subscribed_topic_names
                ]
            )
        return ShareGroupHeartbeatResponse(
            member_id=member,
            member_epoch=self.members[member],
            heartbeat_interval_ms=self.interval_ms,
            assignment=assignment,
        )

    async def request(self, request: ShareGroupHeartbeatRequest, _timeout_ms: float) -> ShareGroupHeartbeatResponse:
        await trio.sleep(0.001)
        return self.answer(request)
