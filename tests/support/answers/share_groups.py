"""Share groups (KIP-932): members, acquired and acknowledged records, and the offsets of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.protocol.messages import share_acknowledge, share_fetch
from moldau.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from moldau.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from moldau.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from support.answers.classic_groups import commit, find, join
from support.answers.records import batch, produce
from support.answers.settings import GROUP, SET, change
from support.answers.topics import NOWHERE, made

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from support.answers.session import AnswerSession

MEMBER, STRANGER = "member-of-share-group", "member-that-is-unknown"
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
Acknowledged = tuple[int, int, "Sequence[int]"]
"""First and last offset, and one type for all or one for each."""


def beat(group: str, **fields: Any) -> ShareGroupHeartbeatRequest:
    """Returns a heartbeat."""
    usual: dict[str, Any] = {"member_id": MEMBER, "member_epoch": 0}
    return ShareGroupHeartbeatRequest(group_id=group, **(usual | fields))


class Reader:
    """The requests of one member about one topic."""

    def __init__(self, group: str, topic_id: UUID) -> None:
        """Reads partition 0."""
        self.group = group
        self.topic_id = topic_id

    def fetch(
        self, epoch: int, *acknowledged: Acknowledged, partition: int | None = None, **fields: Any
    ) -> share_fetch.ShareFetchRequest:
        """Returns a ShareFetch; it names a partition if it acknowledges, opens the session, or is asked to."""
        topics = []
        if acknowledged or epoch == 0 or partition is not None:
            batches = [
                share_fetch.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
                for first, last, types in acknowledged
            ]
            part = share_fetch.FetchPartition(partition_index=partition or 0, acknowledgement_batches=batches)
            topics = [share_fetch.FetchTopic(topic_id=self.topic_id, partitions=[part])]
        usual: dict[str, Any] = {
            "group_id": self.group,
            "member_id": MEMBER,
            "max_wait_ms": 100,
            "min_bytes": 1,
            "max_records": 100,
            "batch_size": 100,
        }
        return share_fetch.ShareFetchRequest(share_session_epoch=epoch, topics=topics, **(usual | fields))

    def acknowledge(
        self, epoch: int, *acknowledged: Acknowledged, partition: int = 0, topic_id: UUID | None = None, **fields: Any
    ) -> share_acknowledge.ShareAcknowledgeRequest:
        """Returns a ShareAcknowledge."""
        batches = [
            share_acknowledge.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
            for first, last, types in acknowledged
        ]
        part = share_acknowledge.AcknowledgePartition(partition_index=partition, acknowledgement_batches=batches)
        topic = share_acknowledge.AcknowledgeTopic(topic_id=topic_id or self.topic_id, partitions=[part])
        usual = {"group_id": self.group, "member_id": MEMBER}
        return share_acknowledge.ShareAcknowledgeRequest(share_session_epoch=epoch, topics=[topic], **(usual | fields))


async def share_groups(session: AnswerSession) -> None:
    """Enters, reads, acknowledges, and administers a group."""
    name, topic_id = await made(session, "shared", 2)
    group = session.name("group")
    await find(session, group, 0)
    await find(session, f"{group}:{topic_id}:0", 2)
    session.answers.pop("coordinator of kind 2")
    await session.ask("begin with the oldest", change(GROUP, group, [("share.auto.offset.reset", SET, "earliest")]))
    await session.ask("write", produce(name, (0, batch(5)), (1, batch(5))), 12)
    await _members(session, group, name)
    reader = Reader(group, topic_id)
    await _fetched(session, reader)
    await _acknowledged(session, reader)
    await _offsets(session, group, name)


async def _members(session: AnswerSession, group: str, name: str) -> None:
    new, subscribed = session.name("new"), {"subscribed_topic_names": [name]}
    cases = {
        "no group": beat("", **subscribed),
        "without a member id": beat(group, member_id="", **subscribed),
        "without a subscription": beat(group),
        "with epoch -3": beat(group, member_epoch=-3, **subscribed),
        "with epoch -2": beat(group, member_epoch=-2, **subscribed),
        "with an empty rack": beat(group, rack_id="", **subscribed),
        "a new group with epoch 5": beat(new, member_epoch=5, **subscribed),
        "a new group, leaving it": beat(new, member_epoch=-1, **subscribed),
        "as a member that is unknown": beat(group, member_id=STRANGER, member_epoch=1),
    }
    await session.ask_all("enter", cases)
    step = "enter: a member"
    epoch, assignment = 0, None
    while not assignment:  # a group whose share-partitions are not initialized yet assigns none of them
        answer = await session.ask(step, beat(group, member_epoch=epoch, **({} if epoch else subscribed)))
        session.answers.pop(step)
        epoch = answer.member_epoch
        if answer.assignment is not None:
            assignment = answer.assignment.topic_partitions
    await session.ask("heartbeat of a later epoch", beat(group, member_epoch=99))
    described = {
        "an unknown group": ShareGroupDescribeRequest(group_ids=[session.name("none")]),
        "as a classic group": DescribeGroupsRequest(groups=[group]),
    }
    for step, request in described.items():
        await session.ask(f"describe {step}", request)
    await session.ask("a classic member", join(group))
    await session.ask("a classic commit", commit(group, name), 9)


async def _fetched(session: AnswerSession, reader: Reader) -> None:
    cases = {
        "of a session that is unknown": reader.fetch(5),
        "of no group": reader.fetch(0, group_id=None),
        "of no member": reader.fetch(0, member_id=""),
        "that closes no session": reader.fetch(-1),
        "that opens a session and acknowledges": reader.fetch(0, (0, 1, [ACCEPT])),
    }
    await session.ask_all("fetch", cases)
    opened = await session.ask("open the session", reader.fetch(0))
    session.answers.pop("open the session")
    epoch = 1
    while not any(part.acquired_records for topic in opened.responses for part in topic.partitions):
        opened = await session.ask("first records", reader.fetch(epoch))
        session.answers.pop("first records")
        epoch += 1
    wrong = {
        "of an earlier epoch": reader.fetch(epoch - 1, (0, 0, [ACCEPT])),
        "of a later epoch": reader.fetch(epoch + 8),
    }
    await session.ask_all("fetch", wrong)
    kept = {
        "that accepts two records": [(0, 1, [ACCEPT])],
        "that accepts them again": [(0, 1, [ACCEPT])],
        "with an unknown type": [(2, 3, [9])],
        "with too few types": [(2, 4, [ACCEPT, RELEASE])],
        "with offsets in the wrong order": [(4, 2, [ACCEPT])],
    }
    for step, acknowledged in kept.items():
        await session.ask(f"fetch {step}", reader.fetch(epoch, *acknowledged))
        epoch += 1
    reader.epoch = epoch  # type: ignore[attr-defined]


async def _acknowledged(session: AnswerSession, reader: Reader) -> None:
    epoch: int = reader.epoch  # type: ignore[attr-defined]
    refused = {
        "that opens a session": reader.acknowledge(0, (2, 2, [ACCEPT])),
        "of a later epoch": reader.acknowledge(epoch + 60, (2, 2, [ACCEPT])),
        "of an unknown group": reader.acknowledge(1, (2, 2, [ACCEPT]), group_id="none"),
    }
    await session.ask_all("acknowledge", refused)
    steps: dict[str, tuple[list[Acknowledged], dict[str, Any]]] = {
        "a record": ([(2, 2, [ACCEPT])], {}),
        "it again": ([(2, 2, [ACCEPT])], {}),
        "without a type": ([(3, 3, [])], {}),
        "a partition that the session lacks": ([(3, 3, [ACCEPT])], {"partition": 1}),
        "a gap": ([(3, 3, [GAP])], {}),
        "the rest": ([(4, 4, [REJECT])], {}),
    }
    for step, (acknowledged, fields) in steps.items():
        await session.ask(f"acknowledge {step}", reader.acknowledge(epoch, *acknowledged, **fields))
        epoch += 1
    await session.ask("acknowledge and close", reader.acknowledge(-1))
    await session.ask("acknowledge after the end", reader.acknowledge(epoch, (4, 4, [ACCEPT])))


async def _offsets(session: AnswerSession, group: str, name: str) -> None:
    none = session.name("none")

    def described(group_id: str, topic: str | None, *partitions: int) -> DescribeShareGroupOffsetsRequest:
        topics = None
        if topic is not None:
            topics = [DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=partitions)]
        return DescribeShareGroupOffsetsRequest(
            groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=topics)]
        )

    def altered(group_id: str, topic: str, offset: int, partition: int = 0) -> AlterShareGroupOffsetsRequest:
        part = AlterShareGroupOffsetsRequestPartition(partition_index=partition, start_offset=offset)
        topics = [AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=[part])]
        return AlterShareGroupOffsetsRequest(group_id=group_id, topics=topics)

    def deleted(group_id: str, topic: str) -> DeleteShareGroupOffsetsRequest:
        return DeleteShareGroupOffsetsRequest(
            group_id=group_id, topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=topic)]
        )

    await session.ask("offsets of an unknown group", described(none, None))
    with_members = {
        "alter": altered(group, name, 1),
        "delete": deleted(group, name),
        "delete the group": DeleteGroupsRequest(groups_names=[group]),
        "leave": beat(group, member_epoch=-1),
    }
    await session.ask_all("with members", with_members)
    unknown = session.name("unknown")
    cases = {
        "alter": altered(group, name, 1),
        "of an unknown topic": altered(group, unknown, 1),
        "of an unknown partition": altered(group, name, 1, 9),
        "of an unknown group": altered(none, name, 1),
        "of no group": altered("", name, 1),
        "delete of an unknown group": deleted(none, name),
        "delete of an unknown topic": deleted(group, unknown),
        "delete of no group": deleted("", name),
        "delete": deleted(group, name),
        "delete the group": DeleteGroupsRequest(groups_names=[group]),
    }
    await session.ask_all("offsets", cases)
    await session.ask("acknowledge in a topic that is unknown", Reader(none, NOWHERE).acknowledge(3, (1, 1, [ACCEPT])))
