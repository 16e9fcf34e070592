"""Streams groups (KIP-1071): topologies, internal topics, tasks, and what a group refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from moldau.protocol.messages.streams_group_heartbeat import (
    CopartitionGroup,
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from support.answers.classic_groups import commit, find, join
from support.answers.newer_groups import entry as consumer_entry
from support.answers.topics import made

if TYPE_CHECKING:
    from support.answers.session import AnswerSession

FIRST, SECOND, STRANGER = "member-one-of-two-st", "member-two-of-two-st", "member-that-is-unknown"


def beat(group: str, **fields: Any) -> StreamsGroupHeartbeatRequest:
    """Returns the heartbeat of a member that stays."""
    usual: dict[str, Any] = {"member_id": FIRST, "member_epoch": 0, "endpoint_information_epoch": 0}
    return StreamsGroupHeartbeatRequest(group_id=group, **(usual | fields))


def entry(group: str, topology: Topology | None, **fields: Any) -> StreamsGroupHeartbeatRequest:
    """Returns the first heartbeat of a member."""
    usual: dict[str, Any] = {
        "topology": topology,
        "rebalance_timeout_ms": 30_000,
        "process_id": "process",
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
    }
    return beat(group, **(usual | fields))


def topology(*subtopologies: Subtopology, epoch: int = 0) -> Topology:
    """Returns a topology."""
    return Topology(epoch=epoch, subtopologies=subtopologies)


def tasks(subtopology: str, *partitions: int) -> list[TaskIds]:
    """Returns tasks of one subtopology."""
    return [TaskIds(subtopology_id=subtopology, partitions=partitions)]


async def streams_groups(session: AnswerSession) -> None:
    """Enters with topologies, right and wrong ones, and administers a group."""
    name, _ = await made(session, "read", 2)
    other, _ = await made(session, "other", 3)
    group = session.name("group")
    await find(session, group, 0)
    plain = topology(Subtopology(subtopology_id="0", source_topics=[name]))
    await session.ask_all("enter", _refused(session, group, plain))
    await _topologies(session, name, other)
    await _members(session, group, name, plain)


def _refused(session: AnswerSession, group: str, plain: Topology) -> dict[str, StreamsGroupHeartbeatRequest]:
    new = session.name("new")
    return {
        "no group": entry("", plain),
        "without a member id": entry(group, plain, member_id=""),
        "without a time to rebalance": entry(group, plain, rebalance_timeout_ms=-1),
        "without a topology": entry(group, None),
        "without active tasks": entry(group, plain, active_tasks=None),
        "without standby tasks": entry(group, plain, standby_tasks=None),
        "without warm-up tasks": entry(group, plain, warmup_tasks=None),
        "with tasks": entry(group, plain, active_tasks=tasks("0", 0)),
        "without a process": entry(group, plain, process_id=None),
        "with an empty process": entry(group, plain, process_id=""),
        "with an empty instance": entry(group, plain, instance_id=""),
        "with an empty rack": entry(group, plain, rack_id=""),
        "with epoch -3": entry(group, plain, member_epoch=-3),
        "with an empty host": entry(group, plain, user_endpoint=Endpoint(host="", port=1)),
        "a new group with epoch 5": beat(new, member_epoch=5),
        "a new group, leaving it": beat(new, member_epoch=-1),
        "leaving for a while without an instance": beat(group, member_epoch=-2),
    }


async def _topologies(session: AnswerSession, name: str, other: str) -> None:
    store = session.name("store")
    changed = [KeyValue(key="cleanup.policy", value="compact")]
    cases = {
        "without subtopologies": topology(),
        "of an unknown topic": topology(Subtopology(subtopology_id="0", source_topics=[session.name("unknown")])),
        "with a bad expression": topology(Subtopology(subtopology_id="0", source_topic_regex=["(("])),
        "with one subtopology twice": topology(
            Subtopology(subtopology_id="0", source_topics=[name]),
            Subtopology(subtopology_id="0", source_topics=[other]),
        ),
        "without an id": topology(Subtopology(subtopology_id="", source_topics=[name])),
        "with a changelog": topology(
            Subtopology(
                subtopology_id="0",
                source_topics=[name],
                state_changelog_topics=[
                    TopicInfo(name=store, partitions=0, replication_factor=1, topic_configs=changed)
                ],
            )
        ),
        "with a changelog that has partitions": topology(
            Subtopology(
                subtopology_id="0",
                source_topics=[name],
                state_changelog_topics=[TopicInfo(name=session.name("counted"), partitions=2, replication_factor=1)],
            )
        ),
        "with a bad name of a changelog": topology(
            Subtopology(
                subtopology_id="0",
                source_topics=[name],
                state_changelog_topics=[TopicInfo(name="a/b", partitions=0, replication_factor=1)],
            )
        ),
        "with topics that must have as many partitions": topology(
            Subtopology(
                subtopology_id="0",
                source_topics=[name, other],
                copartition_groups=[CopartitionGroup(source_topics=[0, 1])],
            )
        ),
        "with a number of no topic": topology(
            Subtopology(
                subtopology_id="0", source_topics=[name], copartition_groups=[CopartitionGroup(source_topics=[5])]
            )
        ),
        "with a topic that no subtopology writes": topology(
            Subtopology(
                subtopology_id="0",
                repartition_source_topics=[TopicInfo(name=session.name("lonely"), partitions=0, replication_factor=1)],
            )
        ),
        "with a topic between two": topology(
            Subtopology(subtopology_id="0", source_topics=[name], repartition_sink_topics=[session.name("between")]),
            Subtopology(
                subtopology_id="1",
                repartition_source_topics=[TopicInfo(name=session.name("between"), partitions=0, replication_factor=1)],
            ),
        ),
    }
    for number, (step, each) in enumerate(cases.items()):
        await _status(session, f"topology {step}", entry(session.name(f"topology-{number}"), each))
    names = [MetadataRequestTopic(name=each) for each in (store, session.name("between"))]
    step = "internal topics"
    while True:
        found = await session.ask(step, MetadataRequest(topics=names, allow_auto_topic_creation=False))
        if all(topic.partitions for topic in found.topics):
            break
        session.answers.pop(step)


async def _status(session: AnswerSession, step: str, request: StreamsGroupHeartbeatRequest) -> None:
    """Keeps code and status of a heartbeat: when a group computes its assignment is up to the broker."""
    answer = await session.ask(step, request)
    if isinstance(answer, str):
        return
    codes = sorted(each.status_code for each in answer.status or ())
    session.answers[step] = {"error_code": session.comparable(answer.error_code, "error_code"), "status": codes}


async def _members(session: AnswerSession, group: str, name: str, plain: Topology) -> None:
    first = await session.ask("first", entry(group, plain))
    session.answers.pop("first")
    epoch = first.member_epoch
    newer = topology(*plain.subtopologies, epoch=1)
    cases = {
        "no news": beat(group, member_epoch=epoch),
        "of a later epoch": beat(group, member_epoch=epoch + 5),
        "of a member that is unknown": beat(group, member_id=STRANGER, member_epoch=1),
        "with active tasks alone": beat(group, member_epoch=epoch, active_tasks=tasks("0", 0)),
        "with tasks of an unknown subtopology": beat(
            group, member_epoch=epoch, active_tasks=tasks("9", 0), standby_tasks=[], warmup_tasks=[]
        ),
        "with a topology": beat(group, member_epoch=epoch, topology=plain),
        "that ends the application": beat(group, member_epoch=epoch, shutdown_application=True),
        "after that": beat(group, member_epoch=epoch),
        "of another member with a newer topology": entry(group, newer, member_id=SECOND),
    }
    for step, request in cases.items():
        await _status(session, f"heartbeat {step}", request)
    others = {
        "a classic member": join(group),
        "a consumer member": consumer_entry(group, name, member_id=STRANGER),
        "a classic description": DescribeGroupsRequest(groups=[group]),
        "a description of an unknown group": StreamsGroupDescribeRequest(group_ids=[session.name("none")]),
        "delete the group": DeleteGroupsRequest(groups_names=[group]),
        "leave": beat(group, member_epoch=-1),
        "leave again": beat(group, member_epoch=-1),
    }
    await session.ask_all("with members", others)
    await session.ask(
        "commit of a stranger", commit(group, name, generation_id_or_member_epoch=1, member_id=STRANGER), 9
    )
