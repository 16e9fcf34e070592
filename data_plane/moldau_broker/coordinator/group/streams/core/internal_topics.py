"""Decides how many partitions the internal topics of a topology have, and which of them are missing. Pure (KIP-1071).

A repartition topic without a number of its own gets the largest number of partitions among the inputs of a subtopology
that writes it. Then each co-partition group is checked: its source topics must agree, and its repartition topics get
their number. A changelog has as many partitions as its subtopology has tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_broker.coordinator.group.streams.core.topology import InternalTopic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau_broker.coordinator.group.consumer.core.catalogue import Catalogue
    from moldau_broker.coordinator.group.streams.core.topology import Subtopology, Topology

_NAMED_MAX = 3
"""Topics that a message names."""


class Status(IntEnum):
    """The problems of a group or a member, by the codes of StreamsGroupHeartbeat."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredSubtopology:
    """A subtopology whose numbers of partitions are decided; topics are sorted by name."""

    subtopology_id: str
    tasks: int
    sources: tuple[str, ...]
    repartition_sources: tuple[InternalTopic, ...]
    repartition_sinks: tuple[str, ...]
    changelogs: tuple[InternalTopic, ...]

    @property
    def is_stateful(self) -> bool:
        """True if standby tasks of the subtopology make sense."""
        return bool(self.changelogs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """A topology on the topics of a moment.

    Tasks can be assigned if nothing is wrong: ``status`` is None. With MISSING_INTERNAL_TOPICS, ``missing`` are the
    topics to create. With the other statuses the numbers of partitions are not known and there are no subtopologies.
    """

    epoch: int
    subtopologies: Mapping[str, ConfiguredSubtopology] = field(default_factory=dict)
    missing: tuple[InternalTopic, ...] = ()
    status: Status | None = None
    detail: str = ""

    @property
    def is_ready(self) -> bool:
        """True if tasks can be assigned."""
        return self.status is None


class _WrongTopicsError(Exception):
    """The topics that exist do not fit the topology."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def configure(topology: Topology, catalogue: Catalogue) -> Configured:
    """Returns the topology on the topics that exist.

    Raises:
        KafkaError: STREAMS_INVALID_TOPOLOGY, no topics could make the topology run.
    """
    try:
        return _configure(topology, catalogue)
    except _WrongTopicsError as error:
        return Configured(epoch=topology.epoch, status=error.status, detail=error.detail)


def _configure(topology: Topology, catalogue: Catalogue) -> Configured:
    _check_sources(topology, catalogue)
    counts = _Counts(catalogue)
    _decide_repartition_topics(topology, counts)
    _enforce_copartitioning(topology, counts)
    configured = {part.subtopology_id: _configured(part, counts) for part in topology.subtopologies}
    missing = _missing(configured.values(), catalogue)
    if not missing:
        return Configured(epoch=topology.epoch, subtopologies=configured)
    return Configured(
        epoch=topology.epoch,
        subtopologies=configured,
        missing=missing,
        status=Status.MISSING_INTERNAL_TOPICS,
        detail=f"Internal topics are missing: {_names(topic.name for topic in missing)}",
    )


class _Counts:
    """The partitions of topics: as they exist, else as decided."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.decided: dict[str, int] = {}

    def get(self, topic: str) -> int | None:
        return self._catalogue.partition_count(topic) or self.decided.get(topic)

    def known(self, topic: str) -> int:
        count = self.get(topic)
        if count is None:
            raise _invalid(f"The number of partitions of topic {topic} cannot be determined.")
        return count


def _check_sources(topology: Topology, catalogue: Catalogue) -> None:
    sources = sorted({name for part in topology.subtopologies for name in part.sources})
    missing = [name for name in sources if catalogue.topic_id(name) is None]
    if missing:
        raise _WrongTopicsError(Status.MISSING_SOURCE_TOPICS, f"Source topics {_names(missing)} are missing.")


def _decide_repartition_topics(topology: Topology, counts: _Counts) -> None:
    """Decides from source to sink, in rounds over the subtopologies, as Kafka does.

    A subtopology decides its sinks in the first round in which one of its inputs is decided. After the first round only
    the readers of a topic that was just decided are looked at: later subtopologies in the same round, others in the
    next one. So the time does not grow with the square of the number of subtopologies.
    """
    parts = topology.subtopologies
    decided: dict[str, int] = {
        topic.name: topic.partitions for part in parts for topic in part.repartition_sources if topic.partitions
    }
    readers: dict[str, list[int]] = {}
    for index, part in enumerate(parts):
        for topic in part.repartition_sources:
            readers.setdefault(topic.name, []).append(index)
    open_parts = dict.fromkeys(
        index for index, part in enumerate(parts) if not decided.keys() >= {*part.repartition_sinks}
    )
    turns = [(0, index) for index in open_parts]  # sorted, and so a heap
    while turns:
        turn, index = heappop(turns)
        largest = _largest_input(parts[index], decided, counts) if index in open_parts else 0
        if not largest:
            continue
        del open_parts[index]
        for sink in parts[index].repartition_sinks:
            if sink not in decided:
                decided[sink] = largest
                for reader in readers.get(sink, ()):
                    heappush(turns, (turn if reader > index else turn + 1, reader))
    if any(sink not in decided for part in parts for sink in part.repartition_sinks):
        raise _invalid(
            "The numbers of partitions of repartition topics cannot be determined: the topology may have loops."
        )
    for part in parts:
        for topic in part.repartition_sources:
            if topic.name not in decided:
                raise _invalid(f"Repartition topic {topic.name} is read but never written.")
    counts.decided.update(decided)


def _largest_input(part: Subtopology, decided: Mapping[str, int], counts: _Counts) -> int:
    found = [decided.get(topic.name, 0) for topic in part.repartition_sources]
    found += [counts.get(name) or 0 for name in part.sources]
    return max(found, default=0)


def _enforce_copartitioning(topology: Topology, counts: _Counts) -> None:
    repartition = {topic.name: topic for part in topology.subtopologies for topic in part.repartition_sources}
    for part in topology.subtopologies:
        for group in part.copartition_groups:
            _enforce(sorted(group), repartition, counts)


def _enforce(group: list[str], repartition: Mapping[str, InternalTopic], counts: _Counts) -> None:
    """Checks one co-partition group, and gives its repartition topics their number of partitions."""
    if not group:
        return
    internal = {name: counts.known(name) for name in group if name in repartition}
    fixed = {name: count for name, count in internal.items() if repartition[name].partitions}
    external = {name: counts.known(name) for name in group if name not in repartition}
    leading = external or fixed
    if len(set(leading.values())) > 1:
        raise _WrongTopicsError(
            Status.INCORRECTLY_PARTITIONED_TOPICS,
            "Following topics do not have the same number of partitions: "
            f"[{', '.join(f'{name}={count}' for name, count in leading.items())}]",
        )
    wanted = next(iter(leading.values())) if leading else max(internal.values())
    for name, count in internal.items():
        if name in fixed and count != wanted:
            raise _WrongTopicsError(
                Status.INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{count}] of repartition topic [{name}] doesn't match number of partitions "
                f"[{wanted}] of the source topic.",
            )
        counts.decided[name] = wanted


def _configured(part: Subtopology, counts: _Counts) -> ConfiguredSubtopology:
    if not part.inputs:
        raise _invalid(f"Subtopology {part.subtopology_id} has no source topics.")
    tasks = max(counts.known(name) for name in part.inputs)
    return ConfiguredSubtopology(
        subtopology_id=part.subtopology_id,
        tasks=tasks,
        sources=tuple(sorted(part.sources)),
        repartition_sources=_sized((topic, counts.decided[topic.name]) for topic in part.repartition_sources),
        repartition_sinks=tuple(sorted(part.repartition_sinks)),
        changelogs=_sized((topic, tasks) for topic in part.changelogs),
    )


def _sized(topics: Iterable[tuple[InternalTopic, int]]) -> tuple[InternalTopic, ...]:
    sized = [
        InternalTopic(
            name=topic.name, partitions=count, replication_factor=topic.replication_factor, configs=topic.configs
        )
        for topic, count in topics
    ]
    return tuple(sorted(sized, key=lambda topic: topic.name))


def _missing(parts: Iterable[ConfiguredSubtopology], catalogue: Catalogue) -> tuple[InternalTopic, ...]:
    """Returns the internal topics that do not exist, and checks the others."""
    wanted = {topic.name: topic for part in parts for topic in (*part.repartition_sources, *part.changelogs)}
    missing: list[InternalTopic] = []
    for name, topic in sorted(wanted.items()):
        found = catalogue.partition_count(name)
        if not found:
            missing.append(topic)
        elif found != topic.partitions:
            raise _WrongTopicsError(
                Status.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: expected {topic.partitions}, found {found}",
            )
    return tuple(missing)


def _names(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _NAMED_MAX} additional topics" if len(found) > _NAMED_MAX else ""
    return ", ".join(found[:_NAMED_MAX]) + more


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)
