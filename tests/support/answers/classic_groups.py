"""Classic groups: members, generations, committed offsets, static members, and the administration of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from moldau.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from moldau.values import ZERO_UUID
from support.answers.topics import NOWHERE, made

if TYPE_CHECKING:
    from uuid import UUID

    from support.answers.session import AnswerSession


def join(group: str, **fields: Any) -> JoinGroupRequest:
    """Returns a request to join with two protocols."""
    protocols = [JoinGroupRequestProtocol(name=each, metadata=each.encode()) for each in ("range", "sticky")]
    values: dict[str, Any] = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 5_000,
        "protocol_type": "consumer",
        "protocols": protocols,
    }
    return JoinGroupRequest(group_id=group, **(values | fields))


def sync(group: str, member: str, generation: int, *given: str, **fields: Any) -> SyncGroupRequest:
    """Returns a request that names its protocol, with an assignment for each member of ``given``."""
    assignments = [SyncGroupRequestAssignment(member_id=each, assignment=b"assigned") for each in given]
    usual: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range", "assignments": assignments}
    return SyncGroupRequest(group_id=group, member_id=member, generation_id=generation, **(usual | fields))


def commit(
    group: str, topic: str | UUID, offset: int = 5, *, partition: int = 0, metadata: str | None = "m", **fields: Any
) -> OffsetCommitRequest:
    """Returns a commit of one offset."""
    part = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata=metadata)
    named: dict[str, Any] = {"name": topic} if isinstance(topic, str) else {"topic_id": topic}
    return OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(partitions=[part], **named)], **fields)


async def find(session: AnswerSession, key: str, kind: int) -> None:
    """Waits until the coordinator of a key serves."""
    await session.ask(f"coordinator of kind {kind}", FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]))


async def classic_groups(session: AnswerSession) -> None:
    """Joins, commits, describes, leaves and deletes."""
    group = session.name("group")
    name, topic_id = await made(session, "grouped", 2)
    await _coordinators(session, group)
    await session.ask_all("join", _refused_joins(group))
    member, generation = await _joined(session, group)
    await _commits(session, group, member, generation, name, topic_id)
    await _offsets(session, group, member, generation, name, topic_id)
    await _administration(session, group, name)
    await _left(session, group, member, generation, name)
    await _static(session, session.name("static"), name)
    for version in range(6):
        await session.ask(f"join with version {version}", join(session.name(f"of-version-{version}")), version)


async def _coordinators(session: AnswerSession, group: str) -> None:
    await find(session, group, 0)
    await find(session, group, 1)
    await session.ask("groups are loaded", ListGroupsRequest())
    session.answers.pop("groups are loaded")
    for version in range(4):
        await session.ask(f"find with version {version}", FindCoordinatorRequest(key=group, key_type=0), version)
    older = {
        "no name": (FindCoordinatorRequest(key="", key_type=0), 3),
        "an unknown kind": (FindCoordinatorRequest(key="a", key_type=9), 3),
        "a share coordinator before version 6": (FindCoordinatorRequest(coordinator_keys=["abc"], key_type=2), 4),
    }
    for step, (request, version) in older.items():
        await session.ask(f"find {step}", request, version)
    newest = {
        "an unknown kind, version 6": (9, ["a"]),
        "nothing": (0, []),
        "one name twice": (0, ["a", "a"]),
        "a share-partition without its parts": (2, ["abc"]),
        "bad share-partitions": (2, ["abc:x:0", "g:AAAA:1:2"]),
        "no name and another": (0, ["", "b"]),
        "no transactional id": (1, [""]),
    }
    requests = {
        step: FindCoordinatorRequest(key_type=kind, coordinator_keys=keys) for step, (kind, keys) in newest.items()
    }
    await session.ask_all("find", requests)


def _refused_joins(group: str) -> dict[str, JoinGroupRequest]:
    return {
        "without a group": join(""),
        "with a session too short": join(group, session_timeout_ms=1),
        "with a session too long": join(group, session_timeout_ms=10**8),
        "without protocols": join(group, protocols=[]),
        "without a type": join(group, protocol_type=""),
        "as an unknown member": join(group, member_id="nope"),
        "as an unknown static member": join(group, member_id="nope", group_instance_id="i"),
        "with an empty instance": join(group, group_instance_id=""),
    }


async def _joined(session: AnswerSession, group: str) -> tuple[str, int]:
    found = await session.ask("join: first", join(group))
    session.known(found.member_id, "member")
    answer = await session.ask("join: with the member id", join(group, member_id=found.member_id))
    member, generation = answer.member_id, answer.generation_id
    syncs = {
        "as an unknown member": sync(group, "no", generation),
        "of another generation": sync(group, member, generation + 1),
        "of another type": sync(group, member, generation, protocol_type="connect"),
        "of another protocol": sync(group, member, generation, protocol_name="other"),
        "without a protocol": sync(group, member, generation, protocol_type=None, protocol_name=None),
    }
    await session.ask_all("sync", syncs, 5)
    beat = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member)
    await session.ask("heartbeat before the sync", beat)
    early = commit(group, "grouped", generation_id_or_member_epoch=generation, member_id=member)
    await session.ask("commit before the sync", early, 9)
    await session.ask("sync", sync(group, member, generation, member, "stranger"))
    await session.ask("sync again", sync(group, member, generation))
    for version in range(5):
        await session.ask(f"heartbeat with version {version}", beat, version)
    beats = {
        "of another generation": HeartbeatRequest(group_id=group, generation_id=9, member_id=member),
        "of another member": HeartbeatRequest(group_id=group, generation_id=generation, member_id="x"),
        "of another instance": HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member, group_instance_id="q"
        ),
        "to an unknown group": HeartbeatRequest(group_id=session.name("none"), generation_id=1, member_id="a"),
        "to no group": HeartbeatRequest(group_id="", generation_id=1, member_id="a"),
        "of no member": HeartbeatRequest(group_id=group, generation_id=generation, member_id=""),
    }
    await session.ask_all("heartbeat", beats)
    return member, generation


async def _commits(session: AnswerSession, group: str, member: str, generation: int, name: str, topic_id: UUID) -> None:
    mine: dict[str, Any] = {"generation_id_or_member_epoch": generation, "member_id": member}
    simple = session.name("simple")
    stranger: dict[str, Any] = {"generation_id_or_member_epoch": 3, "member_id": "a"}
    cases = {
        "of a member": commit(group, name, **mine),
        "of another generation": commit(group, name, **mine | {"generation_id_or_member_epoch": 9}),
        "of another member": commit(group, name, **mine | {"member_id": "x"}),
        "of another instance": commit(group, name, group_instance_id="z", **mine),
        "without a member": commit(group, name),
        "of an unknown topic": commit(group, session.name("unknown"), **mine),
        "of a bad topic": commit(group, "a/b", **mine),
        "of an unknown partition": commit(group, name, partition=7, **mine),
        "of -1": commit(group, name, -1, **mine),
        "of -5": commit(group, name, -5, **mine),
        "with long metadata": commit(group, name, metadata="x" * 5_000, **mine),
        "with null metadata": commit(group, name, metadata=None, **mine),
        "to no group": commit("", name),
        "to a new group": commit(simple, name),
        "to a group without members, of a generation": commit(simple, name, **stranger),
        "to a new group, with a name only": commit(session.name("named"), name, member_id="a"),
        "to a new group, of a generation": commit(session.name("new"), name, **stranger),
    }
    await session.ask_all("commit", cases, 9)
    for version in range(2, 10):
        await session.ask(f"commit with version {version}", commit(group, name, **mine), version)
    by_id = {"an id": topic_id, "an unknown id": NOWHERE, "no id": ZERO_UUID}
    for step, each in by_id.items():
        await session.ask(f"commit by {step}", commit(group, each, **mine), 10)


async def _offsets(session: AnswerSession, group: str, member: str, generation: int, name: str, topic_id: UUID) -> None:
    unknown = session.name("unknown")

    def of(group_id: str, *, everything: bool = False) -> OffsetFetchRequest:
        topics = [
            OffsetFetchRequestTopic(name=name, partition_indexes=[0, 1, 9]),
            OffsetFetchRequestTopic(name=unknown, partition_indexes=[0]),
        ]
        return OffsetFetchRequest(group_id=group_id, topics=None if everything else topics)

    for version in range(1, 8):
        await session.ask(f"offsets with version {version}", of(group), version)
    older = {
        "of all topics": of(group, everything=True),
        "of no topic": OffsetFetchRequest(group_id=group, topics=[]),
        "of an unknown group": of(session.name("none")),
        "of no group": of(""),
    }
    await session.ask_all("offsets", older, 5)
    topics = [OffsetFetchRequestTopics(name=name, partition_indexes=[0, 1, 9])]
    several = [
        OffsetFetchRequestGroup(group_id=group, topics=topics),
        *(
            OffsetFetchRequestGroup(group_id=each, topics=None)
            for each in (session.name("simple"), session.name("none"), "")
        ),
    ]
    for version in (8, 9):
        await session.ask(f"offsets with version {version}", OffsetFetchRequest(groups=several), version)
    ids = [
        OffsetFetchRequestTopics(topic_id=each, partition_indexes=[0, 1, 9]) for each in (topic_id, NOWHERE, ZERO_UUID)
    ]
    by_id = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=ids)])
    await session.ask("offsets by id", by_id, 10)
    members = {
        "of a member": (member, generation),
        "of another member": ("no", generation),
        "of another generation": (member, 99),
    }
    for step, (member_id, epoch) in members.items():
        asked = OffsetFetchRequestGroup(group_id=group, member_id=member_id, member_epoch=epoch, topics=None)
        await session.ask(f"offsets {step}", OffsetFetchRequest(groups=[asked]), 9)
    await session.ask("offsets of nothing", OffsetFetchRequest(groups=[]), 9)


async def _administration(session: AnswerSession, group: str, name: str) -> None:
    simple, none = session.name("simple"), session.name("none")
    for version in range(7):
        asked = DescribeGroupsRequest(groups=[group, simple, none, ""], include_authorized_operations=version > 2)
        await session.ask(f"describe with version {version}", asked, version)
    await session.ask("describe nothing", DescribeGroupsRequest(groups=[]))
    for version in range(6):
        await _listed(session, f"list with version {version}", ListGroupsRequest(), version)
    for step, states, types in (
        ("stable", ["stable"], []),
        ("empty", ["Empty"], []),
        ("of an unknown state", ["nope"], []),
        ("classic", [], ["classic"]),
        ("CLASSIC", [], ["CLASSIC"]),
        ("of an unknown type", [], ["nope"]),
        ("stable and of consumers", ["Stable"], ["consumer"]),
    ):
        await _listed(session, f"list {step}", ListGroupsRequest(states_filter=states, types_filter=types), None)

    def deletion(group_id: str, topic: str = name, partition: int = 0) -> OffsetDeleteRequest:
        partitions = [OffsetDeleteRequestPartition(partition_index=partition)]
        return OffsetDeleteRequest(
            group_id=group_id, topics=[OffsetDeleteRequestTopic(name=topic, partitions=partitions)]
        )

    await session.ask("commit another offset", commit(simple, name, partition=1), 9)
    offsets = {
        "of a group with members": deletion(group),
        "of an unknown topic": deletion(simple, session.name("unknown")),
        "of an unknown partition": deletion(simple, name, 9),
        "of a group": deletion(simple),
        "again": deletion(simple),
        "of an unknown group": deletion(none),
        "of no group": deletion(""),
    }
    await session.ask_all("delete offsets", offsets)
    for version in range(4):
        asked_groups = DeleteGroupsRequest(groups_names=[group, none, ""])
        await session.ask(f"delete with version {version}", asked_groups, version)
    await session.ask("delete a group without members", DeleteGroupsRequest(groups_names=[simple]))
    await session.ask("delete nothing", DeleteGroupsRequest(groups_names=[]))


async def _listed(session: AnswerSession, step: str, request: ListGroupsRequest, version: int | None) -> None:
    """Lists groups, and keeps those of this run."""
    answer = await session.ask(step, request, version)
    named = [
        each.group_id for each in answer.groups if each.group_id in map(session.name, ("group", "simple", "named"))
    ]
    session.answers[step] = {"error_code": answer.error_code, "groups": sorted(named)}


async def _left(session: AnswerSession, group: str, member: str, generation: int, name: str) -> None:
    none = session.name("none")

    def leave(group_id: str, *members: tuple[str, str | None]) -> LeaveGroupRequest:
        leaving = [MemberIdentity(member_id=each, group_instance_id=instance) for each, instance in members]
        return LeaveGroupRequest(group_id=group_id, members=leaving)

    for version in range(3):
        request = LeaveGroupRequest(group_id=group, member_id="no")
        await session.ask(f"leave as an unknown member, version {version}", request, version)
    cases = {
        "as unknown members": leave(group, ("no", None), ("", "i")),
        "as nothing": leave(group),
        "an unknown group": leave(none, ("no", None)),
        "no group": leave("", ("no", None)),
        "as a member": leave(group, (member, None)),
        "again": leave(group, (member, None)),
    }
    await session.ask_all("leave", cases)
    await session.ask("leave an unknown group, version 2", LeaveGroupRequest(group_id=none, member_id="no"), 2)
    beat = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member)
    await session.ask("heartbeat after the end", beat)
    late = commit(group, name, generation_id_or_member_epoch=generation, member_id=member)
    await session.ask("commit after the end", late, 9)


async def _static(session: AnswerSession, group: str, name: str) -> None:
    instance: dict[str, Any] = {"group_instance_id": "i1"}
    first = await session.ask("static: join", join(group, **instance))
    old = first.member_id
    session.known(old, "first process")
    await session.ask("static: sync", sync(group, old, first.generation_id, old, **instance))
    again = await session.ask("static: join again", join(group, member_id=old, **instance))
    await session.ask("static: sync again", sync(group, old, again.generation_id, old, **instance))
    second = await session.ask("static: another process", join(group, **instance))
    session.known(second.member_id, "second process")
    generation, new = second.generation_id, second.member_id
    beat: dict[str, Any] = {"group_id": group, "generation_id": generation}
    cases = {
        "heartbeat of the first process": HeartbeatRequest(member_id=old, **beat, **instance),
        "its heartbeat without the instance": HeartbeatRequest(member_id=old, **beat),
        "heartbeat of the second process": HeartbeatRequest(member_id=new, **beat, **instance),
        "join of the first process": join(group, member_id=old, **instance),
        "sync of the first process": sync(group, old, generation, **instance),
        "sync of the second process": sync(group, new, generation, **instance),
        "leave of the first process": LeaveGroupRequest(
            group_id=group, members=[MemberIdentity(member_id=old, group_instance_id="i1")]
        ),
    }
    await session.ask_all("static", cases)
    late = commit(group, name, generation_id_or_member_epoch=generation, member_id=old, **instance)
    await session.ask("static: commit of the first process", late, 9)
    third = await session.ask("static: another process, version 8", join(group, **instance), 8)
    session.known(third.member_id, "third process")
    gone = LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id="", group_instance_id="i1")])
    await session.ask("static: leave by the instance", gone)
