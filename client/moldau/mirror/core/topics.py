"""A mirror's changes of the topics of its target, and events of those of its source. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.admin.values import ConfigAlteration, ConfigOperation, NewTopic
from moldau.runtime.config import ConfigSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from uuid import UUID

    from moldau.admin.values import ConfigEntry, TopicListing
    from moldau.mirror.core.filters import NameFilter, TopicRules


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChanges:
    """The findings of a look at the source's topics."""

    added: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    recreated: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTopic:
    """A topic of the source that is mirrored."""

    topic_id: UUID
    partitions: int


class SourceTopics:
    """The topics of a source that are mirrored, as of the last look."""

    def __init__(self, rules: TopicRules) -> None:
        """Knows no topic."""
        self._rules = rules
        self.known: dict[str, SourceTopic] = {}
        self.loops: tuple[str, ...] = ()
        """Topics that match the filter and are refused, because their names show that they came from the target."""
        self.missing: tuple[str, ...] = ()
        """Names in the filter that the source does not have, or does not show to the mirror's user."""

    def look(self, listing: Iterable[TopicListing]) -> TopicChanges:
        """Takes the topics that the source has now."""
        found: dict[str, SourceTopic] = {}
        loops: list[str] = []
        for topic in listing:
            if topic.is_internal or not topic.partition_count:
                continue
            if self._rules.accepts(topic.name):
                found[topic.name] = SourceTopic(topic_id=topic.topic_id, partitions=topic.partition_count)
            elif self._rules.returns(topic.name):
                loops.append(topic.name)
        before, self.known, self.loops = self.known, found, tuple(loops)
        self.missing = self._rules.names.absent([*found, *loops])
        both = [name for name in found if name in before]
        recreated = tuple(name for name in both if found[name].topic_id != before[name].topic_id)
        return TopicChanges(
            added=tuple(name for name in found if name not in before),
            grown=tuple(
                name for name in both if name not in recreated and found[name].partitions > before[name].partitions
            ),
            deleted=tuple(name for name in before if name not in found),
            recreated=recreated,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """The topics and partitions that the target lacks."""

    creations: tuple[NewTopic, ...] = ()
    growth: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.creations or self.growth)


def plan_topics(
    source: Mapping[str, SourceTopic],
    target: Mapping[str, int],
    remote_topic: Callable[[str], str],
    *,
    configs: Mapping[str, Mapping[str, str]],
    replication_factor: int,
) -> TopicPlan:
    """Returns what to create in the target, which has ``target`` (partitions by name).

    ``configs`` holds the configuration of new topics, by the name in the source. A topic of the target that has more
    partitions than its source keeps them.
    """
    creations: list[NewTopic] = []
    growth: dict[str, int] = {}
    for name, topic in source.items():
        remote = remote_topic(name)
        if remote not in target:
            creations.append(NewTopic(remote, topic.partitions, replication_factor, configs=configs.get(name, {})))
        elif target[remote] < topic.partitions:
            growth[remote] = topic.partitions
    return TopicPlan(creations=tuple(creations), growth=growth)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRules:
    """Which topic configurations are copied; ``uses_source_defaults`` copies the source's defaults too."""

    names: NameFilter
    uses_source_defaults: bool = False

    def of_new_topic(self, entries: Mapping[str, ConfigEntry]) -> dict[str, str]:
        """Returns the configuration with which a topic is created in the target."""
        return {
            name: entry.value
            for name, entry in self._followed(entries).items()
            if entry.value is not None and self._is_copied(entry)
        }

    def changes(self, entries: Mapping[str, ConfigEntry], target: Mapping[str, ConfigEntry]) -> list[ConfigAlteration]:
        """Returns the changes that make the configuration of a topic in the target follow the source's.

        A key whose value is not copied, as the topic of the source does not set it, loses its value in the target. Keys
        that the target does not know are left out, because one of them would make it refuse all.
        """
        found: list[ConfigAlteration] = []
        for name, entry in self._followed(entries).items():
            present = target.get(name)
            if present is None:
                continue
            if not self._is_copied(entry):
                if present.source is ConfigSource.DYNAMIC_TOPIC:
                    found.append(ConfigAlteration(name=name, operation=ConfigOperation.DELETE))
            elif entry.value is not None and present.value != entry.value:
                found.append(ConfigAlteration(name=name, value=entry.value))
        return found

    def _followed(self, entries: Mapping[str, ConfigEntry]) -> dict[str, ConfigEntry]:
        return {
            name: entry
            for name, entry in entries.items()
            if not entry.is_read_only and not entry.is_sensitive and self.names.accepts(name)
        }

    def _is_copied(self, entry: ConfigEntry) -> bool:
        """Returns whether the target gets the value of a key; that of a broker's file is for this cluster alone."""
        if entry.source is ConfigSource.STATIC_BROKER:
            return False
        return not entry.is_default or self.uses_source_defaults
