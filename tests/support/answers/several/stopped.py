"""A broker that stands still for a while, and one that is stopped: in-sync replicas, offline partitions, elections."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from moldau.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest
from support.answers.administration import election, move
from support.answers.records import batch, deletion, fetch, list_offsets, produce
from support.answers.session import PATIENCE_S
from support.answers.settings import BROKER, SET, change, description
from support.answers.several.leaders import NONE, epochs
from support.answers.several.topics import placed
from support.answers.topics import WAIT_MS, creation, enlargement

if TYPE_CHECKING:
    from uuid import UUID

    from support.answers.several.session import ClusterSession

PAUSE_S: Final = 0.1
GONE: Final = 3
"""The broker that stands still, and then stops."""
WITHOUT_SETTINGS: Final = 4
"""The version of CreateTopics whose answers name no settings."""


class Topics:
    """The topics of the scenario, with their ids."""

    def __init__(self) -> None:
        """None is made yet."""
        self.ids: dict[str, tuple[str, UUID]] = {}

    async def make(self, cluster: ClusterSession, word: str, places: list[int], **configs: str) -> None:
        """Creates a topic of one partition, and writes to it."""
        self.ids[word] = await placed(cluster, word, [places], **configs)
        request = produce(self.ids[word][0], (0, batch(2)))
        await cluster.at(places[0]).ask(f"{word}: produce at first", request, 12)


async def stopped(cluster: ClusterSession) -> None:
    """Halts a broker, lets it go on, stops it, and removes it."""
    topics = Topics()
    await topics.make(cluster, "needs-three", [1, 2, 3], min_insync_replicas="3")
    await topics.make(cluster, "needs-two", [1, 2, 3], min_insync_replicas="2")
    await topics.make(cluster, "needs-its-pair", [1, 3], min_insync_replicas="2")
    await topics.make(cluster, "led-by-it", [3, 1, 2], min_insync_replicas="1")
    await topics.make(cluster, "only-on-it", [3])
    await placed(cluster, "grows", [[1, 2, 3]])
    await _still(cluster, topics)
    cluster.cluster.stop(GONE)
    await _until(cluster, topics.ids["led-by-it"][0], [1, 2], 1)
    await _until(cluster, topics.ids["only-on-it"][0], None, -1)
    await _asked(cluster, topics, "stopped")
    await _administered(cluster, topics)
    await _removed(cluster, topics)


async def _until(cluster: ClusterSession, name: str, isr: list[int] | None, leader: int) -> None:
    """Waits until the brokers that live know a leader, and the replicas in sync unless they do not matter."""
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    for node in cluster.others(GONE):
        with trio.fail_after(PATIENCE_S):
            while True:
                [topic] = (await cluster.at(node).ask("settling", asked, transient=NONE)).topics
                cluster.answers.pop("settling")
                [part] = topic.partitions
                if part.leader_id == leader and isr in (None, sorted(part.isr_nodes)):
                    break
                await trio.sleep(PAUSE_S)


async def _still(cluster: ClusterSession, topics: Topics) -> None:
    names = ("needs-three", "needs-two", "needs-its-pair")
    cluster.cluster.signal(GONE, signal.SIGSTOP)
    try:
        for word in names:
            request = produce(topics.ids[word][0], (0, batch()))
            await cluster.at(1).ask(f"{word}: produce when one stands still", request, 12, transient=NONE)
        for word, isr in zip(names, ([1, 2], [1, 2], [1]), strict=True):
            name = topics.ids[word][0]
            await _until(cluster, name, isr, 1)
            for acks in (-1, 1):
                request = produce(name, (0, batch()), acks=acks)
                step = f"{word}: produce with acks={acks} when it is not in sync"
                for version in (3, 12):
                    await cluster.at(1).ask(f"{step}, version {version}", request, version, transient=NONE)
            asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
            await cluster.at(2).ask(f"{word}: metadata when it is not in sync", asked)
    finally:
        cluster.cluster.signal(GONE, signal.SIGCONT)
    for word, isr in zip(names, ([1, 2, 3], [1, 2, 3], [1, 3]), strict=True):
        await _until(cluster, topics.ids[word][0], isr, 1)
        request = produce(topics.ids[word][0], (0, batch()))
        await cluster.at(1).ask(f"{word}: produce when it goes on", request, 12, transient=NONE)


async def _asked(cluster: ClusterSession, topics: Topics, when: str) -> None:
    asked = [MetadataRequestTopic(name=name) for name, _ in topics.ids.values()]
    for node in cluster.others(GONE):
        for version in (1, 5, 9, 13):
            step = f"{when}: metadata by broker {node}, version {version}"
            await cluster.at(node).ask(step, MetadataRequest(topics=asked), version, transient=NONE)
        for fenced in (False, True):
            for version in (1, 2):
                request = DescribeClusterRequest(include_fenced_brokers=fenced)
                step = f"{when}: cluster by broker {node}, version {version}{', fenced too' * fenced}"
                await cluster.at(node).ask(step, request, version if fenced else version - 1)
    names = [TopicRequest(name=name) for name, _ in topics.ids.values()]
    page = DescribeTopicPartitionsRequest(topics=names, response_partition_limit=100)
    answer = await cluster.at(2).ask(f"{when}: partitions", page)
    kept = cluster.at(2).comparable([[each.name, each.error_code] for each in answer.topics])
    cluster.answers[f"{when}: partitions"] = kept
    for word, (name, topic_id) in topics.ids.items():
        session = cluster.at(1)
        cases = {
            "produce with acks=1": (produce(name, (0, batch()), acks=1), 12),
            "produce": (produce(name, (0, batch())), 12),
            "fetch": (fetch(name, topic_id, (0, -1, 0, -1), max_wait_ms=0), 12),
            "fetch at epoch 0": (fetch(name, topic_id, (0, 0, 0, -1), max_wait_ms=0), 18),
            "end": (list_offsets(name, (0, -1, -1)), 6),
            "end at epoch 0": (list_offsets(name, (0, 0, -1)), 6),
            "end of epoch 0": (epochs(name, -1, 0), 4),
            "delete records": (deletion(name, 0, 1), 2),
        }
        for step, (each, version) in cases.items():
            await session.ask(f"{when}: {word}: {step}", each, version, transient=NONE)


async def _administered(cluster: ClusterSession, topics: Topics) -> None:
    session = cluster.at(1)
    names = {word: name for word, (name, _) in topics.ids.items()}
    led, alone = names["led-by-it"], names["only-on-it"]
    place = [CreatePartitionsAssignment(broker_ids=[GONE])]
    two = [CreatePartitionsAssignment(broker_ids=[1, GONE])]

    def grown(name: str, assigned: list[CreatePartitionsAssignment]) -> CreatePartitionsRequest:
        topic = CreatePartitionsTopic(name=name, count=2, assignments=assigned)
        return CreatePartitionsRequest(topics=[topic], timeout_ms=WAIT_MS)

    cases = {
        "elect the preferred leader": election(0, (led, [0]), (alone, [0])),
        "elect any leader": election(1, (led, [0]), (alone, [0])),
        "create with three replicas": creation(session.name("thrice"), 1, 3),
        "create with a place on it": creation(session.name("new"), -1, -1, assigned=[(0, [GONE])]),
        "create with two places": creation(session.name("newer"), -1, -1, assigned=[(0, [GONE, 1])]),
        "create with two replicas": creation(session.name("newest"), 1, 2),
        "enlarge on it": grown(alone, place),
        "enlarge on it and another": grown(names["needs-its-pair"], two),
        "enlarge anywhere": enlargement(session.name("grows"), 2),
        "move to it": move(names["needs-its-pair"], [1, 2, GONE]),
        "settings of it": description(BROKER, str(GONE), ["log.retention.ms"]),
        "change a setting of it": change(BROKER, str(GONE), [("log.retention.ms", SET, "86400000")]),
    }
    for step, request in cases.items():
        version = WITHOUT_SETTINGS if isinstance(request, CreateTopicsRequest) else None
        await session.ask(f"administer: {step}", request, version, transient=NONE)
    await session.ask("moves under way", ListPartitionReassignmentsRequest(topics=None))
    await session.ask("cancel the move", move(names["needs-its-pair"], None))
    await session.ask("moves after that", ListPartitionReassignmentsRequest(topics=None))
    gone = DeleteTopicsRequest(topic_names=[session.name("newer")], timeout_ms=WAIT_MS)
    await session.ask("delete a topic that lives on it too", gone, 5)
    await session.ask("move away from it", move(alone, [1]))


async def _removed(cluster: ClusterSession, topics: Topics) -> None:
    session = cluster.at(2)
    await session.ask("remove it", UnregisterBrokerRequest(broker_id=GONE))
    with trio.fail_after(PATIENCE_S):
        while True:
            answer = await session.ask("settling", DescribeClusterRequest(include_fenced_brokers=True))
            cluster.answers.pop("settling")
            if {each.broker_id for each in answer.brokers} == {1, 2}:
                break
            await trio.sleep(PAUSE_S)
    await session.ask("remove it again", UnregisterBrokerRequest(broker_id=GONE))
    await _asked(cluster, topics, "removed")
    cases = {
        "move to it": move(topics.ids["needs-two"][0], [1, GONE]),
        "create on it": creation(session.name("latest"), -1, -1, assigned=[(0, [GONE])]),
        "settings of it": description(BROKER, str(GONE), ["log.retention.ms"]),
        "change a setting of it": change(BROKER, str(GONE), [("log.retention.ms", SET, "86400000")]),
        "elect any leader": election(1, (topics.ids["only-on-it"][0], [0])),
        "delete the topic that was only there": DeleteTopicsRequest(
            topic_names=[topics.ids["only-on-it"][0]], timeout_ms=WAIT_MS
        ),
    }
    for step, request in cases.items():
        version = {CreateTopicsRequest: WITHOUT_SETTINGS, DeleteTopicsRequest: 5}.get(type(request))
        await session.ask(f"removed: {step}", request, version, transient=NONE)
