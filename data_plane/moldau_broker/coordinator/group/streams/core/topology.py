"""The topology of a Kafka Streams application, as a streams group keeps it. Values without behaviour. Pure (KIP-1071).

A topology consists of subtopologies. A subtopology reads *source topics*, which exist before the application does, and
*repartition topics*, which another subtopology writes. Its state stores are backed by *changelog topics*. The last two
are internal topics: the group coordinator has them created.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moldau.protocol.messages import streams_group_heartbeat as asked
    from moldau.protocol.messages.internal import streams_group as stored

Task = tuple[str, int]
"""A subtopology and a partition of its input."""
Tasks = frozenset[Task]
NO_TASKS: Tasks = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """A topic that the coordinator has created.

    ``partitions`` is 0 if the coordinator decides their number, as it does for every changelog; ``replication_factor``
    is 0 for the default of the cluster.
    """

    name: str
    partitions: int = 0
    replication_factor: int = 0
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtopology:
    """A part of the application whose tasks are numbered by the partitions of its input."""

    subtopology_id: str
    sources: tuple[str, ...] = ()
    repartition_sources: tuple[InternalTopic, ...] = ()
    repartition_sinks: tuple[str, ...] = ()
    changelogs: tuple[InternalTopic, ...] = ()
    copartitioned: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    """Groups of topics with equal numbers of partitions: indexes into ``sources`` and ``repartition_sources``."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of all topics that the subtopology reads."""
        return (*self.sources, *(topic.name for topic in self.repartition_sources))

    @property
    def copartition_groups(self) -> tuple[frozenset[str], ...]:
        """The groups of topics that must have equal numbers of partitions, by name."""
        return tuple(
            frozenset([*(self.sources[i] for i in sources), *(self.repartition_sources[i].name for i in repartition)])
            for sources, repartition in self.copartitioned
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A topology. Invariant: ``subtopologies`` are sorted by their ids, which differ."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]

    def required_topics(self) -> tuple[str, ...]:
        """Returns the names of all topics that must exist before tasks run, sorted."""
        names: set[str] = set()
        for part in self.subtopologies:
            names.update(part.inputs)
            names.update(topic.name for topic in part.changelogs)
        return tuple(sorted(names))

    def reader_of(self, topic: str) -> str | None:
        """Returns the id of the subtopology that reads a topic; None if there is none."""
        for part in self.subtopologies:
            if topic in part.inputs:
                return part.subtopology_id
        return None


def topology_of(message: asked.Topology | stored.StreamsGroupTopologyValue) -> Topology:
    """Returns the topology of a request or a record."""
    parts = [
        Subtopology(
            subtopology_id=part.subtopology_id,
            sources=tuple(part.source_topics),
            repartition_sources=_topics(part.repartition_source_topics),
            repartition_sinks=tuple(part.repartition_sink_topics),
            changelogs=_topics(part.state_changelog_topics),
            copartitioned=tuple(
                (tuple(group.source_topics), tuple(group.repartition_source_topics))
                for group in part.copartition_groups
            ),
        )
        for part in message.subtopologies
    ]
    return Topology(epoch=message.epoch, subtopologies=tuple(sorted(parts, key=lambda part: part.subtopology_id)))


def _topics(topics: Iterable[asked.TopicInfo] | Iterable[stored.TopicInfo]) -> tuple[InternalTopic, ...]:
    return tuple(
        InternalTopic(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            configs=tuple(sorted((config.key, config.value) for config in topic.topic_configs)),
        )
        for topic in topics
    )


def by_subtopology(tasks: Iterable[Task]) -> dict[str, list[int]]:
    """Returns sorted partitions by sorted subtopology id."""
    found: dict[str, list[int]] = {}
    for subtopology_id, partition in sorted(tasks):
        found.setdefault(subtopology_id, []).append(partition)
    return found


def tasks_of(entries: Sequence[asked.TaskIds] | Sequence[stored.TargetTaskIds] | Sequence[stored.TaskIds]) -> Tasks:
    """Returns the tasks that a message names."""
    return frozenset((entry.subtopology_id, partition) for entry in entries for partition in entry.partitions)
