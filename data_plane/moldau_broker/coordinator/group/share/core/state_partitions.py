"""How the state partitions of a share group change: which to begin, which have begun, which are deleted. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau_broker.coordinator.group.share.core.state import StatePartitions, TopicState
from moldau_broker.coordinator.share.core.batches import FIRST_OFFSET, UNCHANGED_OFFSET

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from uuid import UUID

    from moldau_broker.coordinator.group.consumer.core.catalogue import Catalogue
    from moldau_broker.coordinator.runtime.ports import TopicNames

ByTopic = dict["UUID", frozenset[int]]
"""Partitions by topic id."""
TopicPartitionId = tuple["UUID", int]
FirstOffsets = dict[TopicPartitionId, int]
"""Start offsets of states that begin; -1 where the leader of the partition chooses."""


def to_begin(states: StatePartitions, topics: Iterable[str], catalogue: Catalogue) -> ByTopic:
    """Returns the existing partitions of subscribed topics whose state has not begun."""
    found: ByTopic = {}
    for name in topics:
        topic_id = catalogue.topic_id(name)
        if topic_id is None:
            continue
        done = states.initialized.get(topic_id)
        missing = frozenset(range(catalogue.partition_count(name))) - (done.partitions if done else frozenset())
        if missing:
            found[topic_id] = missing
    return found


def first_offsets(states: StatePartitions, partitions: ByTopic, asked: Mapping[TopicPartitionId, int]) -> FirstOffsets:
    """Returns the start offsets with which the states of partitions begin.

    A topic that is new to the group begins where the group's configuration says. Partitions that it gets later begin
    with their first record, whatever the configuration: producers may have found them before the group did. A question
    that is asked again keeps its offsets (``asked``).
    """
    return {
        (topic_id, number): asked.get(
            (topic_id, number), FIRST_OFFSET if topic_id in states.initialized else UNCHANGED_OFFSET
        )
        for topic_id, numbers in partitions.items()
        for number in sorted(numbers)
    }


def not_begun(states: StatePartitions, offsets: FirstOffsets) -> FirstOffsets:
    """Returns those of the start offsets that a repeated question needs: of partitions whose state has not begun."""
    begun = {topic_id: topic.partitions for topic_id, topic in states.initialized.items()}
    return {key: offset for key, offset in offsets.items() if key[1] not in begun.get(key[0], ())}


def with_beginning(states: StatePartitions, partitions: ByTopic, catalogue: Catalogue) -> StatePartitions:
    """Returns the state partitions while the state of these partitions begins; a topic is not deleted any more then.

    Its other partitions may have state, because the deletion has not ended: they count as beginning, too, so that a
    later deletion finds them.
    """
    unsure = {
        topic_id: frozenset(range(catalogue.partition_count(name)))
        for topic_id, name in states.deleting.items()
        if topic_id in partitions
    }
    return replace(
        states,
        initializing=_joined(_joined(states.initializing, unsure, catalogue), partitions, catalogue),
        deleting={topic_id: name for topic_id, name in states.deleting.items() if topic_id not in partitions},
    )


def with_begun(states: StatePartitions, partitions: ByTopic, topics: TopicNames) -> StatePartitions:
    """Returns the state partitions after the share coordinator has begun the state of these partitions."""
    return replace(
        states,
        initializing=_without(states.initializing, partitions),
        initialized=_joined(states.initialized, partitions, topics),
    )


def with_failed(states: StatePartitions, partitions: ByTopic) -> StatePartitions:
    """Returns the state partitions after the share coordinator has refused these partitions.

    One whose state had not begun before stays initializing: the state may have begun all the same, and what the group
    forgets is never deleted. Its state epoch would fence a later group of the name.
    """
    known = {
        topic_id: numbers & states.initialized[topic_id].partitions
        for topic_id, numbers in partitions.items()
        if topic_id in states.initialized
    }
    return replace(states, initializing=_without(states.initializing, known))


def with_deleting(states: StatePartitions, topic_ids: Collection[UUID]) -> StatePartitions:
    """Returns the state partitions while the states of whole topics are deleted."""
    names = {
        topic_id: topic.name
        for topic_id, topic in [*states.initializing.items(), *states.initialized.items()]
        if topic_id in topic_ids
    }
    return StatePartitions(
        initializing={topic_id: each for topic_id, each in states.initializing.items() if topic_id not in topic_ids},
        initialized={topic_id: each for topic_id, each in states.initialized.items() if topic_id not in topic_ids},
        deleting={**states.deleting, **names},
    )


def without_topics(states: StatePartitions, topic_ids: Collection[UUID]) -> StatePartitions:
    """Returns the state partitions without topics whose states are deleted."""
    return StatePartitions(
        initializing={topic_id: each for topic_id, each in states.initializing.items() if topic_id not in topic_ids},
        initialized={topic_id: each for topic_id, each in states.initialized.items() if topic_id not in topic_ids},
        deleting={topic_id: name for topic_id, name in states.deleting.items() if topic_id not in topic_ids},
    )


def topic_ids_of(states: StatePartitions) -> set[UUID]:
    """Returns the ids of all topics of which the group has state."""
    return {*states.initializing, *states.initialized, *states.deleting}


def to_delete(states: StatePartitions, topic_ids: Collection[UUID], catalogue: Catalogue) -> ByTopic:
    """Returns the partitions of topics whose states are deleted.

    A topic that was already being deleted is deleted with all its partitions: the log does not hold their numbers.
    """
    found: ByTopic = {}
    for topic_id in topic_ids:
        numbers: set[int] = set()
        for each in (states.initializing.get(topic_id), states.initialized.get(topic_id)):
            numbers |= each.partitions if each else frozenset()
        if topic_id in states.deleting:
            numbers |= set(range(catalogue.partition_count(catalogue.topic_name(topic_id) or "")))
        if numbers:
            found[topic_id] = frozenset(numbers)
    return found


def _joined(
    topics_before: Mapping[UUID, TopicState], partitions: ByTopic, topics: TopicNames
) -> dict[UUID, TopicState]:
    found = dict(topics_before)
    for topic_id, numbers in partitions.items():
        before = found.get(topic_id)
        name = topics.topic_name(topic_id) or (before.name if before else "")
        known = before.partitions if before else frozenset()
        found[topic_id] = TopicState(name=name, partitions=known | numbers)
    return found


def _without(topics_before: Mapping[UUID, TopicState], partitions: ByTopic) -> dict[UUID, TopicState]:
    found: dict[UUID, TopicState] = {}
    for topic_id, topic in topics_before.items():
        left = topic.partitions - partitions.get(topic_id, frozenset())
        if left:
            found[topic_id] = replace(topic, partitions=left)
    return found
