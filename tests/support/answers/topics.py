"""Topics: created, enlarged, described by name and by id, deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    TopicRequest,
)
from moldau.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.answers.session import codes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from support.answers.session import AnswerSession

NOWHERE = UUID(int=5)
"""The id of no topic."""
WAIT_MS = 10_000


def creation(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    *,
    assigned: Iterable[tuple[int, Sequence[int]]] = (),
    configs: Iterable[tuple[str, str | None]] = (),
    validate: bool = False,
) -> CreateTopicsRequest:
    """Returns a request for one topic."""
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in assigned],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs],
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=WAIT_MS, validate_only=validate)


def enlargement(topic: str, count: int) -> CreatePartitionsRequest:
    """Returns a request for so many partitions in all."""
    wanted = CreatePartitionsTopic(name=topic, count=count, assignments=None)
    return CreatePartitionsRequest(topics=[wanted], timeout_ms=WAIT_MS)


async def made(session: AnswerSession, word: str, partitions: int = 1, **configs: str) -> tuple[str, UUID]:
    """Creates a topic, and waits until the broker serves it; returns name and id."""
    name = session.name(word)
    settings = [(key.replace("_", "."), value) for key, value in configs.items()]
    created = await session.ask(f"create {word}", creation(name, partitions, configs=settings))
    session.answers.pop(f"create {word}")
    topic_id: UUID = created.topics[0].topic_id
    session.known(topic_id, f"id of {word}")
    step = f"leaders of {word}"
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    while True:
        [topic] = (await session.ask(step, request)).topics
        session.answers.pop(step)
        if topic.topic_id == topic_id and all(each.leader_id >= 0 for each in topic.partitions):
            break
    asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(partitions)]
    ends = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=asked)])
    while codes_of(await session.ask(step, ends)) != {0}:  # a leader may learn that it leads after it has named itself
        session.answers.pop(step)
    session.answers.pop(step)
    return name, topic_id


async def deleted(session: AnswerSession, step: str, name: str, partitions: int = 1) -> None:
    """Deletes a topic, and waits until the broker has no partition of it."""
    await session.ask(step, DeleteTopicsRequest(topic_names=[name], timeout_ms=WAIT_MS), 5)
    asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(partitions)]
    ends = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=asked)])
    while codes_of(await session.ask("gone", ends)) != {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
        session.answers.pop("gone")
    session.answers.pop("gone")


async def topics(session: AnswerSession) -> None:
    """Creates, enlarges, describes and deletes topics."""
    name = session.name("topic")
    await session.ask("create", creation(name, 3))
    await session.ask_all("create", _creations(session, name))
    twice = CreatableTopic(name=session.name("twice"), num_partitions=1, replication_factor=1)
    await session.ask("create twice in one request", CreateTopicsRequest(topics=[twice, twice], timeout_ms=WAIT_MS))
    await session.ask("create none", CreateTopicsRequest(topics=[], timeout_ms=WAIT_MS))
    for version in range(2, 8):
        request = creation(session.name(f"of-version-{version}"), -1, -1)
        await session.ask(f"create with version {version}", request, version)
    await session.ask_all("enlarge", _enlargements(session, name))
    topic_id = await _described(session, name)
    await _pages(session, name)
    await _deleted(session, name, topic_id)


def _creations(session: AnswerSession, name: str) -> dict[str, CreateTopicsRequest]:
    other = session.name("other")
    assigned: dict[str, list[tuple[int, Sequence[int]]]] = {
        "with a gap": [(0, [1]), (2, [1])],
        "from -1": [(-1, [1])],
        "with a broker twice": [(0, [1, 1])],
        "to an unknown broker": [(0, [77])],
        "to no broker": [(0, [])],
        "unevenly": [(0, [1]), (1, [1, 77])],
    }
    configs: dict[str, list[tuple[str, str | None]]] = {
        "of an unknown key": [("nope", "1")],
        "of an old key": [("message.format.version", "2.0")],
        "that is no number": [("retention.ms", "x")],
        "that is null": [("retention.ms", None)],
        "with a bad policy": [("cleanup.policy", "zip")],
        "with no replica in sync": [("min.insync.replicas", "0")],
        "with a bad codec": [("compression.type", "zip")],
        "with a bad kind of time": [("message.timestamp.type", "X")],
        "with remote storage": [("remote.storage.enable", "true")],
        "given twice": [("retention.ms", "1"), ("retention.ms", "2")],
    }
    return {
        "again": creation(name, 3),
        "without a name": creation(""),
        "named .": creation("."),
        "named ..": creation(".."),
        "named a/b": creation("a/b"),
        "with 250 letters": creation("a" * 250),
        "with 249 letters": creation("b" * 240 + session.name("x")[:9], validate=True),
        "no partitions": creation(other, 0),
        "-2 partitions": creation(other, -2),
        "no replicas": creation(other, 1, 0),
        "-2 replicas": creation(other, 1, -2),
        "more replicas than brokers": creation(other, 1, 2),
        "more replicas, only checked": creation(other, 1, 2, validate=True),
        "assigned": creation(session.name("assigned"), -1, -1, assigned=[(0, [1]), (1, [1])]),
        "assigned and counted": creation(other, 1, 1, assigned=[(0, [1])]),
        "the metadata log": creation("__cluster_metadata"),
        "a dot": creation(session.name("with.dot")),
        "a name like one with a dot": creation(session.name("with_dot")),
        "compacted and deleted": creation(session.name("both"), configs=[("cleanup.policy", "compact,delete")]),
        **{f"assigned {case}": creation(other, -1, -1, assigned=places) for case, places in assigned.items()},
        **{f"a setting {case}": creation(other, configs=values) for case, values in configs.items()},
    }


def _enlargements(session: AnswerSession, name: str) -> dict[str, CreatePartitionsRequest]:
    def to(count: int, assigned: Sequence[Sequence[int]] | None = None, topic: str = name) -> CreatePartitionsTopic:
        places = None if assigned is None else [CreatePartitionsAssignment(broker_ids=ids) for ids in assigned]
        return CreatePartitionsTopic(name=topic, count=count, assignments=places)

    cases = {
        "to 4": [to(4)],
        "to as many": [to(4)],
        "to fewer": [to(1)],
        "to -1": [to(-1)],
        "an unknown topic": [to(4, None, session.name("unknown"))],
        "a topic without a name": [to(4, None, "")],
        "assigned": [to(5, [[1]])],
        "assigned in part": [to(9, [[1]])],
        "assigned to an unknown broker": [to(6, [[9]])],
        "assigned to one broker twice": [to(6, [[1, 1]])],
        "assigned to nothing": [to(6, [[]])],
        "assigned, without a place": [to(6, [])],
        "to two millions": [to(2_000_000)],
        "twice": [to(7), to(8)],
    }
    requests = {case: CreatePartitionsRequest(topics=asked, timeout_ms=WAIT_MS) for case, asked in cases.items()}
    requests["only checked"] = CreatePartitionsRequest(topics=[to(6)], timeout_ms=WAIT_MS, validate_only=True)
    return requests


async def _described(session: AnswerSession, name: str) -> UUID:
    def named(*names: str) -> list[MetadataRequestTopic]:
        return [MetadataRequestTopic(name=each) for each in names]

    unknown = session.name("unknown")
    for version in range(14):
        asked = MetadataRequest(topics=named(name, unknown, "bad/name", ""), allow_auto_topic_creation=False)
        await session.ask(f"metadata of version {version}", asked, version)
    await session.ask("metadata of no topic", MetadataRequest(topics=[]))
    found = await session.ask("metadata of a topic twice", MetadataRequest(topics=named(name, name)))
    topic_id: UUID = found.topics[0].topic_id
    session.known(topic_id, "id of topic")
    ids = {
        "an id": MetadataRequestTopic(topic_id=topic_id, name=None),
        "an unknown id": MetadataRequestTopic(topic_id=NOWHERE, name=None),
        "neither name nor id": MetadataRequestTopic(name=None),
        "id and name": MetadataRequestTopic(topic_id=topic_id, name=name),
        "an id and another name": MetadataRequestTopic(topic_id=topic_id, name=unknown),
    }
    await session.ask_all("metadata by", {case: MetadataRequest(topics=[topic]) for case, topic in ids.items()})
    await session.ask("metadata by an id, version 11", MetadataRequest(topics=[ids["an id"]]), 11)
    rights = MetadataRequest(
        topics=named(name), include_topic_authorized_operations=True, include_cluster_authorized_operations=True
    )
    await session.ask("metadata with rights", rights)
    await session.ask("metadata with rights of version 10", rights, 10)
    return topic_id


async def _pages(session: AnswerSession, name: str) -> None:
    def page(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> DescribeTopicPartitionsRequest:
        start = None
        if cursor is not None:
            start = DescribeTopicPartitionsRequestCursor(topic_name=cursor[0], partition_index=cursor[1])
        topics_ = [TopicRequest(name=each) for each in names]
        return DescribeTopicPartitionsRequest(topics=topics_, response_partition_limit=limit, cursor=start)

    cases = {
        "with an unknown topic": page(name, session.name("unknown")),
        "of one partition": page(name, limit=1),
        "of no partition": page(name, limit=0),
        "from partition 1": page(name, cursor=(name, 1)),
        "from behind the last": page(name, cursor=(name, 70)),
        "from partition -1": page(name, cursor=(name, -1)),
        "from another topic": page(name, cursor=("zzz", 0)),
        "of a topic twice": page(name, name),
        "of bad names": page("a/b", ""),
    }
    await session.ask_all("page", cases)


async def _deleted(session: AnswerSession, name: str, topic_id: UUID) -> None:
    for version in range(1, 6):
        asked = [session.name(f"of-version-{version}"), session.name("unknown")]
        await session.ask(
            f"delete with version {version}", DeleteTopicsRequest(topic_names=asked, timeout_ms=WAIT_MS), version
        )
    cases = {
        "twice": [DeleteTopicState(name=session.name("assigned"))] * 2,
        "by name and id": [DeleteTopicState(name=name, topic_id=topic_id)],
        "by neither": [DeleteTopicState(name=None)],
        "by an unknown id": [DeleteTopicState(name=None, topic_id=NOWHERE)],
        "the metadata log": [DeleteTopicState(name="__cluster_metadata")],
        "by name and by id": [DeleteTopicState(name=None, topic_id=topic_id), DeleteTopicState(name=name)],
        "by id": [DeleteTopicState(name=None, topic_id=topic_id)],
        "by id again": [DeleteTopicState(name=None, topic_id=topic_id)],
        "nothing": [],
    }
    requests = {case: DeleteTopicsRequest(topics=states, timeout_ms=WAIT_MS) for case, states in cases.items()}
    await session.ask_all("delete", requests)
