"""The assignor ``simple`` of share groups: balanced first, then with few moves. Pure and deterministic (KIP-932).

With as many members as partitions or fewer, each partition has one member. With more, each has as many as it takes to
keep all members busy, so partitions are shared evenly. Members with equal subscriptions share all partitions; with
different ones, the subscribers of each topic share that topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from moldau_broker.coordinator.group.consumer.core.state import Partitions, TopicIdPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharer:
    """A member as the assignor sees it. ``previous`` is its present target assignment."""

    member_id: str
    topics: frozenset[UUID]
    previous: Partitions


def simple_assignor(members: Sequence[Sharer], assignable: Mapping[UUID, frozenset[int]]) -> dict[str, Partitions]:
    """Returns the partitions of each member; ``assignable`` are the partitions that may be assigned, by topic."""
    order = sorted(members, key=lambda member: member.member_id)
    if not order:
        return {}
    if all(member.topics == order[0].topics for member in order):
        return _shared(order, [(topic, number) for topic in order[0].topics for number in assignable.get(topic, ())])
    found: dict[str, Partitions] = {member.member_id: frozenset() for member in order}
    for topic in sorted({topic for member in order for topic in member.topics}):
        subscribers = [member for member in order if topic in member.topics]
        for name, partitions in _shared(subscribers, [(topic, n) for n in assignable.get(topic, ())]).items():
            found[name] |= partitions
    return found


def _shared(order: Sequence[Sharer], partitions: Sequence[TopicIdPartition]) -> dict[str, Partitions]:
    """Shares partitions among members that all may have all of them."""
    wanted = sorted(partitions)
    known = frozenset(wanted)
    held: dict[str, set[TopicIdPartition]] = {member.member_id: set(member.previous & known) for member in order}
    if wanted:
        sharing = -(-len(order) // len(wanted))
        quotas = _quotas(order, sharing * len(wanted))
        holders: dict[TopicIdPartition, list[str]] = {partition: [] for partition in wanted}
        for name, mine in held.items():
            for partition in sorted(mine):
                holders[partition].append(name)
        _release(held, holders, quotas, sharing)
        _hand_out(held, holders, quotas, sharing)
    return {name: frozenset(found) for name, found in held.items()}


def _quotas(order: Sequence[Sharer], total: int) -> dict[str, int]:
    """Divides a number among the members; the parts differ by at most one."""
    size = len(order)
    bounds = [-(-total * index // size) for index in range(size + 1)]
    return {member.member_id: bounds[index + 1] - bounds[index] for index, member in enumerate(order)}


def _release(
    held: dict[str, set[TopicIdPartition]],
    holders: dict[TopicIdPartition, list[str]],
    quotas: Mapping[str, int],
    sharing: int,
) -> None:
    """Takes partitions from members with too many, and members from partitions with too many."""
    for partition, names in holders.items():
        # Stable: members that are over their quota give up a partition first.
        for name in sorted(names, key=lambda name: len(held[name]) <= quotas[name])[: max(0, len(names) - sharing)]:
            held[name].discard(partition)
            names.remove(name)
    for name, mine in held.items():
        for partition in sorted(mine, key=lambda each: (-len(holders[each]), each))[: max(0, len(mine) - quotas[name])]:
            mine.discard(partition)
            holders[partition].remove(name)


def _hand_out(
    held: dict[str, set[TopicIdPartition]],
    holders: dict[TopicIdPartition, list[str]],
    quotas: Mapping[str, int],
    sharing: int,
) -> None:
    """Gives members with too few partitions those with too few members, one at a time in turn.

    At last a member may lack a partition because it already has all those that lack a member; that imbalance stays, as
    in Kafka. No partition is left without a member, because any member may take such a partition.
    """
    names_in_order = list(held)
    # The members that may get more, by the number of their partitions, then in order.
    open_members = [
        (len(mine), place) for place, mine in enumerate(held.values()) if len(mine) < quotas[names_in_order[place]]
    ]
    heapify(open_members)
    for level in range(sharing):
        for partition, names in holders.items():
            if len(names) > level:
                continue
            passed: list[tuple[int, int]] = []
            while open_members:
                count, place = heappop(open_members)
                name = names_in_order[place]
                if partition in held[name]:
                    passed.append((count, place))  # at most as many as share the partition
                    continue
                held[name].add(partition)
                names.append(name)
                if count + 1 < quotas[name]:
                    passed.append((count + 1, place))
                break
            for each in passed:
                heappush(open_members, each)
