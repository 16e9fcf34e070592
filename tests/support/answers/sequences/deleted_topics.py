"""Offsets of topics that are deleted and made again, and lists of settings that grow and shrink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from moldau.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from support.answers.classic_groups import commit, find
from support.answers.records import deletion, epochs, fetch, list_offsets
from support.answers.settings import APPEND, BROKER, DELETE, SET, SUBTRACT, TOPIC, change, description
from support.answers.topics import deleted, made

if TYPE_CHECKING:
    from uuid import UUID

    from support.answers.session import AnswerSession
    from support.answers.settings import Change


async def deleted_topics(session: AnswerSession) -> None:
    """Commits offsets of a topic that goes and comes back, and changes lists."""
    group = session.name("group")
    await find(session, group, 0)
    name, topic_id = await made(session, "gone", 2)
    for version in (2, 9):
        await session.ask(f"commit with version {version}", commit(group, name, 5), version)
    await session.ask("commit by id", commit(group, topic_id, 6, partition=1), 10)
    await _asked(session, "before", group, name, topic_id)
    await deleted(session, "delete", name, 2)
    while (await session.ask("left", OffsetFetchRequest(group_id=group, topics=None), 7)).topics:
        session.answers.pop("left")
    await _asked(session, "deleted", group, name, topic_id)
    _, again = await made(session, "gone", 2)
    await _asked(session, "made again", group, name, again)
    await _asked(session, "by the former id", group, name, topic_id)
    await session.ask("commit again", commit(group, name, 7), 9)
    await _asked(session, "committed again", group, name, again)
    await _lists(session, name)
    await _together(session, name)


async def _asked(session: AnswerSession, when: str, group: str, name: str, topic_id: UUID) -> None:
    old = [OffsetFetchRequestTopic(name=name, partition_indexes=[0, 1])]
    by_name = [OffsetFetchRequestTopics(name=name, partition_indexes=[0, 1])]
    by_id = [OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0, 1])]
    every = OffsetFetchRequestGroup(group_id=group, topics=None)
    cases = {
        "offsets, version 1": (OffsetFetchRequest(group_id=group, topics=old), 1),
        "offsets, version 7": (OffsetFetchRequest(group_id=group, topics=old), 7),
        "all offsets, version 7": (OffsetFetchRequest(group_id=group, topics=None), 7),
        "offsets, version 9": (
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=by_name)]),
            9,
        ),
        "all offsets, version 9": (OffsetFetchRequest(groups=[every]), 9),
        "offsets by id": (OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=by_id)]), 10),
        "all offsets by id": (OffsetFetchRequest(groups=[every]), 10),
        "end": (list_offsets(name, (0, -1, -1)), 6),
        "epoch": (epochs(name, (0, -1, 0)), 4),
        "delete records": (deletion(name, 0, 0), 2),
        "fetch by name": (fetch(name, topic_id, (0, -1, 0, -1), max_wait_ms=0), 12),
        "fetch by id": (fetch(name, topic_id, (0, -1, 0, -1), max_wait_ms=0), 18),
        "metadata by id": (MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=None)]), 12),
        "settings": (description(TOPIC, name, ["retention.ms"]), 4),
    }
    for step, (request, version) in cases.items():
        await session.ask(f"{when}: {step}", request, version)
    if when == "deleted":
        await session.ask("deleted: commit", commit(group, name), 9)
        await session.ask("deleted: commit by id", commit(group, topic_id), 10)


async def _lists(session: AnswerSession, name: str) -> None:
    policy, throttled = "cleanup.policy", "leader.replication.throttled.replicas"
    cases: dict[str, list[Change]] = {
        "append to a default": [(policy, APPEND, "compact")],
        "append two": [(policy, APPEND, "compact,delete")],
        "append null": [(policy, APPEND, None)],
        "append nothing": [(policy, APPEND, "")],
        "append a bad one": [(policy, APPEND, "zip")],
        "subtract null": [(policy, SUBTRACT, None)],
        "subtract nothing": [(policy, SUBTRACT, "")],
        "subtract what it lacks": [(policy, SUBTRACT, "zip")],
        "subtract one": [(policy, SUBTRACT, "compact")],
        "subtract all": [(policy, SUBTRACT, "delete,compact")],
        "append to an empty list": [(throttled, APPEND, "0:1")],
        "append twice": [(throttled, APPEND, "1:1"), (throttled, APPEND, "0:2")],
        "subtract with blanks": [(throttled, SUBTRACT, " 0:1 ")],
        "subtract from an unset list": [("follower.replication.throttled.replicas", SUBTRACT, "0:1")],
        "subtract from a number": [("retention.ms", SUBTRACT, "5")],
        "append to a word": [("compression.type", APPEND, "lz4")],
        "append to an unknown key": [("nope", APPEND, "x")],
        "operation 4": [("retention.ms", 4, "5")],
        "operation -1": [("retention.ms", -1, "5")],
        "a good and a bad one": [("segment.ms", SET, "77777"), ("retention.ms", SET, "x")],
        "null and a good one": [("segment.ms", SET, None), ("retention.ms", SET, "5")],
        "delete with null, and set": [("segment.ms", DELETE, None), ("retention.ms", SET, "6")],
        "no name": [("", SET, "5")],
    }
    for step, changes in cases.items():
        await session.ask(f"list only checked: {step}", change(TOPIC, name, changes, validate=True))
        await session.ask(f"list: {step}", change(TOPIC, name, changes))
    keys = [policy, throttled, "segment.ms", "retention.ms", "compression.type"]
    await session.ask("lists after all", description(TOPIC, name, keys))
    brokers: dict[str, list[Change]] = {
        "append": [("log.cleanup.policy", APPEND, "compact")],
        "append again": [("log.cleanup.policy", APPEND, "compact")],
        "subtract": [("log.cleanup.policy", SUBTRACT, "delete")],
        "append null": [("log.cleanup.policy", APPEND, None)],
        "append to a number": [("log.retention.ms", APPEND, "5")],
        "delete": [("log.cleanup.policy", DELETE, None)],
    }
    for resource in ("1", ""):
        for step, changes in brokers.items():
            await session.ask(f"list of broker {resource!r}: {step}", change(BROKER, resource, changes))


async def _together(session: AnswerSession, name: str) -> None:
    def together(*parts: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsRequest:
        return IncrementalAlterConfigsRequest(resources=[each for part in parts for each in part.resources])

    good = change(TOPIC, name, [("retention.ms", SET, "50000")])
    cases = {
        "one resource twice": together(good, change(TOPIC, name, [("segment.ms", SET, "60000")])),
        "a good and an unknown topic": together(
            good, change(TOPIC, session.name("unknown"), [("segment.ms", SET, "1")])
        ),
        "a topic and a broker": together(good, change(BROKER, "1", [("log.retention.ms", SET, "86400000")])),
        "a topic, and a bad broker": together(good, change(BROKER, "1", [("log.dirs", SET, "/x")])),
    }
    await session.ask_all("together", cases)
    await session.ask("back", change(BROKER, "1", [("log.retention.ms", DELETE, None)]))
    wanted = CreatePartitionsTopic(name=name, count=3, assignments=None)
    for timeout_ms in (0, -1):
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=timeout_ms, validate_only=True)
        await session.ask(f"enlarge only checked, timeout {timeout_ms}", request)
