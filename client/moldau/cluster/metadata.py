"""A client's cluster metadata: brokers, topics, partition leaders. Pure.

Theory of operation: the client merges every Metadata answer into its cluster metadata. An answer may come from a broker
that is behind, so a partition's leader changes only to an equal or higher leader epoch as long as the topic id stays
the same (KIP-320). A topic that was deleted and created again has a new id and starts again. Produce and Fetch answers
may name a new leader too (KIP-951).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.values import ZERO_UUID, join_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from uuid import UUID

    from moldau.protocol.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic

NO_LEADER = -1
NO_EPOCH = -1
NO_TOPIC_ID = ZERO_UUID
ABSENT_MAX = 1000
"""Partitions of a topic that a Metadata answer may leave out below its highest one, whose number may be absurd."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNode:
    """A broker, as clients reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"{self.node_id} ({join_address(self.host, self.port)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """A partition as the cluster described it. ``leader`` is -1 while there is none."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    is_epoch_of_leader: bool = True
    """False for a leader that an answer without a topic id has named: it leads in another epoch (``set_leader``)."""
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic as the cluster described it; ``error`` is set where it could not be."""

    name: str
    topic_id: UUID
    is_internal: bool = False
    partitions: tuple[PartitionInfo, ...] = ()  # by number, dense from 0
    error: ErrorCode = ErrorCode.NONE

    @property
    def available_partitions(self) -> tuple[int, ...]:
        """Numbers of the partitions that have a leader."""
        return tuple(info.partition for info in self.partitions if info.leader != NO_LEADER)


@dataclass(slots=True, kw_only=True)
class ClusterMetadata:
    """The client's cluster metadata. ``version`` grows with each change, so that waiting tasks notice it."""

    cluster_id: str | None = None
    controller_id: int = -1
    brokers: dict[int, BrokerNode] = field(default_factory=dict)
    topics: dict[str, TopicInfo] = field(default_factory=dict)
    version: int = 0

    def update(self, response: MetadataResponse, *, is_full: bool = False) -> None:
        """Merges an answer. ``is_full`` means that all topics were requested; others no longer exist."""
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        if response.brokers:
            self.brokers = {
                broker.node_id: BrokerNode(node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
                for broker in response.brokers
            }
        seen: dict[str, TopicInfo] = {}
        for topic in response.topics:
            if topic.name is not None:
                seen[topic.name] = self._merge_topic(topic.name, topic)
        if is_full:
            self.topics = seen
        else:
            self.topics.update(seen)
        self.version += 1

    def forget_brokers(self) -> None:
        """Forgets the addresses of all brokers, and so all leaders; what topics look like stays known."""
        self.cluster_id = None
        self.controller_id = -1
        self.brokers = {}

    def _merge_topic(self, name: str, topic: MetadataResponseTopic) -> TopicInfo:
        error = ErrorCode.of(topic.error_code)
        known = self.topics.get(name)
        if error is not ErrorCode.NONE:
            # A temporary error keeps the known metadata; a missing topic removes it.
            if known is not None and error.retriable and error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return replace(known, error=error)
            return TopicInfo(name=name, topic_id=NO_TOPIC_ID, error=error)
        before: Mapping[int, PartitionInfo] = {}
        if known is not None and known.topic_id == topic.topic_id:
            before = {info.partition: info for info in known.partitions}
        return TopicInfo(
            name=name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            partitions=tuple(_merge_partitions(name, topic.partitions, before)),
        )

    def set_leader(
        self, partition: TopicPartition, leader: int, epoch: int, topic_id: UUID, *, by_name: bool = False
    ) -> bool:
        """Takes a leader from a Produce or Fetch answer (KIP-951); returns whether it was new.

        ``topic_id`` is the id, at the time of the request, of the topic that it asked about. A topic that was created
        again since begins with leader epoch 0: an epoch of its predecessor would be above those of all its leaders.

        ``by_name``: the request held no id, so a broker that does not know the present topic of that name yet may have
        answered about its predecessor. The leader then counts until the next Metadata answer, whatever its epoch.
        """
        topic = self.topics.get(partition.topic)
        if topic is None or topic.topic_id != topic_id:
            return False
        if leader < 0 or not 0 <= partition.partition < len(topic.partitions):
            return False
        info = topic.partitions[partition.partition]
        if epoch <= info.leader_epoch:
            return False
        partitions = list(topic.partitions)
        partitions[partition.partition] = replace(
            info,
            leader=leader,
            leader_epoch=info.leader_epoch if by_name else epoch,
            is_epoch_of_leader=not by_name,
        )
        self.topics[partition.topic] = replace(topic, partitions=tuple(partitions))
        self.version += 1
        return True

    def add_broker(self, broker: BrokerNode) -> None:
        """Takes the address of a broker from a Produce, Fetch (KIP-951) or FindCoordinator answer.

        The last one has no rack: that of a broker with the same address stays.
        """
        known = self.brokers.get(broker.node_id)
        if broker.rack is None and known is not None:
            broker = replace(
                broker, rack=known.rack if known.host == broker.host and known.port == broker.port else None
            )
        if known != broker:
            self.brokers[broker.node_id] = broker
            self.version += 1

    def broker_name(self, node_id: int) -> str:
        """Returns the name of a broker for errors: its id, and its address if it is known."""
        return f"broker {self.brokers.get(node_id, node_id)}"

    def partition_info(self, partition: TopicPartition) -> PartitionInfo | None:
        """Returns the metadata of a partition, or None."""
        topic = self.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return None
        return topic.partitions[partition.partition]

    def partition_infos(self, partitions: Iterable[TopicPartition]) -> list[PartitionInfo | None]:
        """Returns ``partition_info`` of each, for callers that look at thousands of partitions again and again."""
        topics = self.topics
        found: list[PartitionInfo | None] = []
        for name, number in partitions:
            topic = topics.get(name)
            infos = () if topic is None else topic.partitions
            found.append(infos[number] if 0 <= number < len(infos) else None)
        return found

    def leader(self, partition: TopicPartition) -> tuple[int, int] | None:
        """Returns (node id, leader epoch), None while no leader or no address of it is known."""
        info = self.partition_info(partition)
        if info is None or info.leader not in self.brokers:
            return None
        return info.leader, info.leader_epoch

    def topic_id(self, name: str) -> UUID:
        """Returns the id of a topic, all zero where it is not known."""
        topic = self.topics.get(name)
        return NO_TOPIC_ID if topic is None else topic.topic_id

    def check_topic(self, name: str, before: TopicInfo | None) -> None:
        """Checks that brokers have not refused a topic since its entry was ``before``.

        An older refusal does not count: the topic may have been created, or the right granted in the meantime.

        Raises:
            KafkaError: the topic may not be used, and asking again does not help.
        """
        info = self.topics.get(name)
        is_news = info is not before  # each Metadata answer makes its own
        if is_news and info is not None and info.error is not ErrorCode.NONE and not info.error.retriable:
            raise KafkaError(info.error, f"topic {name}: {info.error.message}")

    def refused(self, names: Iterable[str]) -> list[str]:
        """Returns the topics of ``names`` that brokers answered with an error and nothing else."""
        found = ((name, self.topics.get(name)) for name in names)
        return [name for name, info in found if info is not None and info.error and not info.partitions]

    def is_passing(self, names: Iterable[str]) -> bool:
        """Returns whether topics of ``names`` look as they do for a moment only: with an error, or without a leader."""
        found = (self.topics[name] for name in names if name in self.topics)
        return any(each.error.refreshes_metadata or any(one.leader < 0 for one in each.partitions) for each in found)

    def topic_names(self) -> dict[UUID, str]:
        """Returns the names by id, of topics whose id is known."""
        return {topic.topic_id: topic.name for topic in self.topics.values() if topic.topic_id != NO_TOPIC_ID}

    def missing(self, names: Iterable[str]) -> list[str]:
        """Returns the topics of ``names`` that are not known, or whose partitions are not."""
        return [name for name in names if name not in self.topics or not self.topics[name].partitions]


def _merge_partitions(
    topic: str, answered: Iterable[MetadataResponsePartition], before: Mapping[int, PartitionInfo]
) -> Iterator[PartitionInfo]:
    """Yields the partitions by number; one that the answer leaves out is as it was before, or has no leader."""
    found = {each.partition_index: each for each in reversed(list(answered)) if each.partition_index >= 0}
    for number in range(min(max(found, default=-1) + 1, len(found) + ABSENT_MAX)):
        known = before.get(number)
        if number in found:
            yield _merge_partition(topic, found[number], known)
        elif known is not None:
            yield known
        else:
            yield PartitionInfo(topic=topic, partition=number, leader=NO_LEADER, leader_epoch=NO_EPOCH)


def _merge_partition(topic: str, new: MetadataResponsePartition, known: PartitionInfo | None) -> PartitionInfo:
    if known is not None and new.leader_epoch < known.leader_epoch and new.leader_epoch != NO_EPOCH:
        return known
    leader = new.leader_id
    if ErrorCode.of(new.error_code) is ErrorCode.LEADER_NOT_AVAILABLE:
        leader = NO_LEADER
    return PartitionInfo(
        topic=topic,
        partition=new.partition_index,
        leader=leader,
        leader_epoch=new.leader_epoch,
        replicas=tuple(new.replica_nodes),
        isr=tuple(new.isr_nodes),
        offline_replicas=tuple(new.offline_replicas),
    )
