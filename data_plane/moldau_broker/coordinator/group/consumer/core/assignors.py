"""The assignors of the coordinator: ``uniform`` and ``range`` (KIP-848). Pure and deterministic.

Both give every partition of a subscribed topic to exactly one subscriber. Racks do not count: Kafka 4 has no
rack-aware assignment on the coordinator either.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from moldau_broker.coordinator.group.consumer.core.state import Partitions, TopicIdPartition

BALANCING_ROUNDS_MAX = 16
"""Rounds of moves between members with different subscriptions; each round about halves the imbalance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member as an assignor sees it. ``previous`` is its present target assignment."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    previous: Partitions


Assigned = dict[str, "Partitions"]


def range_assignor(members: Sequence[Subscriber], counts: Mapping[UUID, int]) -> Assigned:
    """Gives each subscriber of a topic a range of its partitions.

    Static members come first, by instance id, so that a member that restarts keeps its ranges. Members with equal
    subscriptions get the same partitions of topics with equal numbers of partitions (co-partitioning).
    """
    order = sorted(members, key=_static_first)
    found: dict[str, set[TopicIdPartition]] = {member.member_id: set() for member in order}
    for topic_id, count in sorted(counts.items()):
        subscribers = [member for member in order if topic_id in member.topics]
        start = 0
        for index, member in enumerate(subscribers):
            quota, extra = divmod(count, len(subscribers))
            end = start + quota + (index < extra)
            found[member.member_id].update((topic_id, partition) for partition in range(start, end))
            start = end
    return {name: frozenset(partitions) for name, partitions in found.items()}


def _static_first(member: Subscriber) -> tuple[bool, str]:
    instance_id = member.instance_id
    return (instance_id is None, member.member_id if instance_id is None else instance_id)


def uniform_assignor(members: Sequence[Subscriber], counts: Mapping[UUID, int]) -> Assigned:
    """Gives all members about the same number of partitions, and moves as few partitions as it can.

    With equal subscriptions the numbers differ by at most one. With different ones they are balanced by moves, as far
    as the subscriptions allow.
    """
    if not members:
        return {}
    order = sorted(members, key=lambda member: member.member_id)
    if all(member.topics == order[0].topics for member in order):
        return _same_topics(order, counts)
    return _different_topics(order, counts)


def _existing(topics: frozenset[UUID], counts: Mapping[UUID, int]) -> list[TopicIdPartition]:
    return [(topic_id, partition) for topic_id in sorted(topics) for partition in range(counts.get(topic_id, 0))]


def _same_topics(order: Sequence[Subscriber], counts: Mapping[UUID, int]) -> Assigned:
    every = _existing(order[0].topics, counts)
    known = frozenset(every)
    quota, extra = divmod(len(every), len(order))
    kept: dict[str, list[TopicIdPartition]] = {}
    taken: set[TopicIdPartition] = set()
    for member in order:
        mine = sorted((member.previous & known) - taken)
        kept[member.member_id] = mine
        taken.update(mine)
    # The members that have most get the larger share: so the fewest partitions move.
    by_size = sorted(order, key=lambda member: (-len(kept[member.member_id]), member.member_id))
    room: dict[str, int] = {}
    for index, member in enumerate(by_size):
        mine = kept[member.member_id]
        share = quota + (index < extra)
        taken.difference_update(mine[share:])
        del mine[share:]
        room[member.member_id] = share - len(mine)
    free = deque(partition for partition in every if partition not in taken)
    while free:
        for member in order:
            if free and room[member.member_id]:
                kept[member.member_id].append(free.popleft())
                room[member.member_id] -= 1
    return {name: frozenset(partitions) for name, partitions in kept.items()}


def _different_topics(order: Sequence[Subscriber], counts: Mapping[UUID, int]) -> Assigned:
    subscribers: dict[UUID, list[str]] = {}
    for member in order:
        for topic_id in sorted(member.topics):
            if topic_id in counts:
                subscribers.setdefault(topic_id, []).append(member.member_id)
    load = {member.member_id: 0 for member in order}
    held: dict[UUID, dict[str, list[int]]] = {
        topic: {name: [] for name in names} for topic, names in subscribers.items()
    }
    taken: set[TopicIdPartition] = set()
    for member in order:
        for topic_id, number in sorted(member.previous - taken):
            if topic_id in member.topics and number < counts.get(topic_id, 0):
                taken.add((topic_id, number))
                held[topic_id][member.member_id].append(number)
                load[member.member_id] += 1
    # Topics with many partitions for each subscriber first: the others can still even out the loads.
    topics = sorted(held, key=lambda topic: (-counts[topic] / len(held[topic]), len(held[topic]), topic))
    for topic_id in topics:
        lowest = [(load[name], name) for name in held[topic_id]]
        heapq.heapify(lowest)
        for number in range(counts[topic_id]):
            if (topic_id, number) not in taken:
                _, name = lowest[0]
                held[topic_id][name].append(number)
                load[name] += 1
                heapq.heapreplace(lowest, (load[name], name))
    for _ in range(BALANCING_ROUNDS_MAX):
        moved = [topic_id for topic_id in topics if _balance(held[topic_id], load)]
        if not moved:
            break
    found: dict[str, set[TopicIdPartition]] = {member.member_id: set() for member in order}
    for topic_id in topics:
        for name, numbers in held[topic_id].items():
            found[name].update((topic_id, number) for number in numbers)
    return {name: frozenset(partitions) for name, partitions in found.items()}


def _balance(held: dict[str, list[int]], load: dict[str, int]) -> bool:
    """Moves partitions of one topic from its busiest subscribers to its idlest; returns whether any has moved."""
    lowest = [(load[name], name) for name in held]
    highest = [(-load[name], name) for name, numbers in held.items() if numbers]
    heapq.heapify(lowest)
    heapq.heapify(highest)
    moved = False
    while highest:
        _, busy = highest[0]
        _, idle = lowest[0]
        if load[busy] <= load[idle] + 1:
            break
        held[idle].append(held[busy].pop())
        load[busy] -= 1
        load[idle] += 1
        moved = True
        heapq.heapreplace(lowest, (load[idle], idle))
        if held[busy]:
            heapq.heapreplace(highest, (-load[busy], busy))
        else:
            heapq.heappop(highest)
    return moved


ASSIGNORS: Mapping[str, Callable[[Sequence[Subscriber], Mapping[UUID, int]], Assigned]] = {
    "uniform": uniform_assignor,
    "range": range_assignor,
}
"""The assignors by the names that members and configuration use."""
