"""Groups of the consumer protocol (KIP-848): heartbeats, regular expressions, static members, commits by epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from moldau.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from support.answers.classic_groups import commit, find, join
from support.answers.topics import NOWHERE, made

if TYPE_CHECKING:
    from uuid import UUID

    from support.answers.session import AnswerSession

FIRST, SECOND, STRANGER = "member-one-of-two-ab", "member-two-of-two-ab", "member-that-is-unknown"


def beat(group: str, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    """Returns the heartbeat of a member that stays."""
    usual: dict[str, Any] = {"member_id": FIRST, "member_epoch": 0}
    return ConsumerGroupHeartbeatRequest(group_id=group, **(usual | fields))


def entry(group: str, topic: str, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    """Returns the first heartbeat of a member."""
    usual: dict[str, Any] = {
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": [topic],
        "topic_partitions": [],
    }
    return beat(group, **(usual | fields))


def owned(topic_id: UUID, *partitions: int) -> list[ConsumerGroupHeartbeatRequestTopicPartitions]:
    """Returns what a member says that it owns."""
    return [ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=partitions)]


async def newer_groups(session: AnswerSession) -> None:
    """Enters, moves partitions, commits, leaves."""
    name, topic_id = await made(session, "subscribed", 3)
    group = session.name("group")
    await find(session, group, 0)
    await session.ask_all("enter", _refused(session, group, name, topic_id))
    await _moved(session, group, name, topic_id)
    await _epochs(session, group, name, topic_id)
    await _static(session, session.name("static"), name)
    regex = session.name("regex")
    both = entry(session.name("both"), name, subscribed_topic_regex=f"{name}.*")
    await session.ask("enter with names and an expression", both)
    await session.ask(
        "enter with an expression", entry(regex, name, subscribed_topic_names=None, subscribed_topic_regex=f"{name}.*")
    )
    session.answers.pop("enter with an expression")  # Kafka resolves it later, Moldau at once


def _refused(session: AnswerSession, group: str, name: str, topic_id: UUID) -> dict[str, ConsumerGroupHeartbeatRequest]:
    new = session.name("new")
    return {
        "no group": entry("", name),
        "without a member id": entry(group, name, member_id=""),
        "without a time to rebalance": entry(group, name, rebalance_timeout_ms=-1),
        "without what is owned": entry(group, name, topic_partitions=None),
        "owning partitions": entry(group, name, topic_partitions=owned(topic_id, 0)),
        "without a subscription": entry(group, name, subscribed_topic_names=None),
        "with a bad expression": entry(group, name, subscribed_topic_names=None, subscribed_topic_regex="(("),
        "with an unknown assignor": entry(group, name, server_assignor="nope"),
        "with an empty assignor": entry(group, name, server_assignor=""),
        "with an empty instance": entry(group, name, instance_id=""),
        "with an empty rack": entry(group, name, rack_id=""),
        "with epoch -3": entry(group, name, member_epoch=-3),
        "a new group with epoch 5": entry(new, name, member_epoch=5),
        "a new group, leaving it": entry(new, name, member_epoch=-1),
        "leaving for a while without an instance": entry(group, name, member_epoch=-2),
    }


async def _moved(session: AnswerSession, group: str, name: str, topic_id: UUID) -> None:
    first = await session.ask("enter: first", entry(group, name))
    session.answers.pop("enter: first")
    epoch = first.member_epoch
    await _kept(session, "heartbeat: no news", beat(group, member_epoch=epoch))
    cases = {
        "of a later epoch": beat(group, member_epoch=epoch + 5),
        "of a member that is unknown": beat(group, member_id=STRANGER, member_epoch=1),
        "owning another topic's partition": beat(group, member_epoch=epoch, topic_partitions=owned(NOWHERE, 0)),
    }
    for step, request in cases.items():
        await _kept(session, f"heartbeat: {step}", request)
    await session.ask("enter: second", entry(group, name, member_id=SECOND))
    session.answers.pop("enter: second")
    joined = join(group, protocols=[])
    await session.ask("a classic member without protocols", joined)
    share = ShareGroupHeartbeatRequest(group_id=group, member_id=STRANGER, subscribed_topic_names=[name])
    await session.ask("a share member", share)
    await session.ask("a classic description", DescribeGroupsRequest(groups=[group]))
    for version in (0, 1):
        others = ConsumerGroupDescribeRequest(group_ids=[session.name("none")], include_authorized_operations=True)
        await session.ask(f"describe an unknown group, version {version}", others, version)


async def _kept(session: AnswerSession, step: str, request: ConsumerGroupHeartbeatRequest) -> None:
    """Keeps the code of a heartbeat: when a group computes its assignment is up to the broker."""
    answer = await session.ask(step, request)
    session.answers[step] = session.comparable(answer.error_code, "error_code")


async def _epochs(session: AnswerSession, group: str, name: str, topic_id: UUID) -> None:
    described = await session.ask("describe", ConsumerGroupDescribeRequest(group_ids=[group]))
    session.answers.pop("describe")
    [mine] = [each.member_epoch for each in described.groups[0].members if each.member_id == FIRST]
    members: dict[str, tuple[int, str]] = {
        "of a member": (mine, FIRST),
        "of an earlier epoch": (mine - 1, FIRST),
        "of a later epoch": (99, FIRST),
        "of an unknown member": (1, STRANGER),
        "without a member": (-1, ""),
    }
    for version in (8, 9, 10):
        for step, (epoch, member) in members.items():
            topic = topic_id if version == 10 else name
            request = commit(group, topic, generation_id_or_member_epoch=epoch, member_id=member)
            await session.ask(f"commit {step}, version {version}", request, version)
    for step, (epoch, member) in members.items():
        asked = OffsetFetchRequestGroup(group_id=group, member_id=member or None, member_epoch=epoch, topics=None)
        await session.ask(f"offsets {step}", OffsetFetchRequest(groups=[asked]), 9)
    partitions = [OffsetDeleteRequestPartition(partition_index=0)]
    offsets = OffsetDeleteRequest(group_id=group, topics=[OffsetDeleteRequestTopic(name=name, partitions=partitions)])
    cases = {
        "a classic heartbeat": HeartbeatRequest(group_id=group, generation_id=1, member_id=FIRST),
        "delete the group": DeleteGroupsRequest(groups_names=[group]),
        "delete offsets of a topic that it reads": offsets,
        "leave": beat(group, member_epoch=-1),
        "leave again": beat(group, member_epoch=-1),
    }
    await session.ask_all("with members", cases)


async def _static(session: AnswerSession, group: str, name: str) -> None:
    first: dict[str, Any] = {"instance_id": "i1"}
    second: dict[str, Any] = {"instance_id": "i1", "member_id": SECOND}
    cases = {
        "first process": entry(group, name, **first),
        "second process": entry(group, name, **second),
        "first process leaves for a while": beat(group, member_epoch=-2, **first),
        "second process comes": entry(group, name, **second),
        "first process again": beat(group, member_epoch=1, **first),
        "another instance of the second": beat(group, instance_id="i2", member_id=SECOND, member_epoch=1),
        "second process leaves": beat(group, member_epoch=-1, **second),
        "an unknown instance leaves for a while": beat(group, instance_id="i9", member_epoch=-2),
    }
    for step, request in cases.items():
        await _kept(session, f"static: {step}", request)
