"""Finds what belongs to the partitions of one topic, without a look at those of all other topics. Pure.

A broker holds thousands of topics, and one change of its configuration concerns all of them: a search through all
partitions for each topic would stop the broker for seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from moldau_broker.log.values import TopicPartition

V = TypeVar("V")


class ByTopic(Generic[V]):
    """Values by partition, kept by topic. Invariant: no topic without a value is kept."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[str, dict[TopicPartition, V]] = {}

    def put(self, key: TopicPartition, value: V) -> None:
        """Sets the value of a partition; one that has a value keeps its place."""
        self._topics.setdefault(key.topic, {})[key] = value

    def remove(self, key: TopicPartition) -> None:
        """Removes the value of a partition, if it has one."""
        known = self._topics.get(key.topic)
        if known is not None and known.pop(key, None) is not None and not known:
            del self._topics[key.topic]

    def of(self, topic: str) -> list[V]:
        """Returns the values of a topic, in the order in which its partitions came."""
        return list(self._topics.get(topic, {}).values())

    def topics(self) -> list[str]:
        """Returns the topics that have values, sorted."""
        return sorted(self._topics)
