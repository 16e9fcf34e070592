"""Short forms of requests about share groups, for a `CoreDriver`."""

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from moldau.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from moldau.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from support.coordinator.group_world import CoreDriver

if TYPE_CHECKING:
    from uuid import UUID

GROUP = "g"


def error_of(answer: object) -> ErrorCode:
    """Returns the error code of an answer that has one of its own."""
    return ErrorCode(answer.error_code)  # type: ignore[attr-defined]


def beat(
    member: str, epoch: int, topics: tuple[str, ...] | None = None, *, rack: str | None = None, group: str = GROUP
) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        rack_id=rack,
        subscribed_topic_names=None if topics is None else list(topics),
    )


def alter(*offsets: tuple[str, int, int], group: str = GROUP) -> AlterShareGroupOffsetsRequest:
    """Returns the request that sets ``(topic, partition, start offset)``."""
    return AlterShareGroupOffsetsRequest(
        group_id=group,
        topics=[
            AlterShareGroupOffsetsRequestTopic(
                topic_name=name,
                partitions=[
                    AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=offset)
                    for topic, number, offset in offsets
                    if topic == name
                ],
            )
            for name in dict.fromkeys(topic for topic, _, _ in offsets)
        ],
    )


def delete_offsets(*topics: str, group: str = GROUP) -> DeleteShareGroupOffsetsRequest:
    return DeleteShareGroupOffsetsRequest(
        group_id=group, topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]
    )


class ShareClient:
    """A member of a share group."""

    def __init__(
        self, driver: CoreDriver, member_id: str, topics: tuple[str, ...] = ("t",), *, group: str = GROUP
    ) -> None:
        self.driver = driver
        self.member_id = member_id
        self.topics = topics
        self.group = group
        self.epoch = 0
        self.assigned: frozenset[tuple[UUID, int]] = frozenset()

    def beat(self, epoch: int | None = None) -> ErrorCode:
        """Sends a heartbeat whose answer must come at once, and follows it."""
        epoch = self.epoch if epoch is None else epoch
        request = beat(self.member_id, epoch, self.topics if epoch == 0 else None, group=self.group)
        return self.take(self.driver.ask(request, 1))

    def take(self, answer: object) -> ErrorCode:
        assert isinstance(answer, ShareGroupHeartbeatResponse)
        if answer.error_code == ErrorCode.NONE:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.assigned = frozenset(
                    (topic.topic_id, number)
                    for topic in answer.assignment.topic_partitions
                    for number in topic.partitions
                )
        return ErrorCode(answer.error_code)
