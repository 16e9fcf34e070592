"""Throttled replicas of moves, and the progress of a plan of moves. Pure.

Moves copy as fast as brokers can, unless the topics list the replicas whose copies are limited (KIP-73): on the side of
the leader all present replicas, because any of them may lead, on the side of the followers the new ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"

DONE: Final = "done"
MOVING: Final = "moving"
DIFFERENT: Final = "different"
"""The partition neither moves nor has the replicas of the plan: the move was cancelled, or another one followed."""

GONE: Final = "gone"
"""The partition does not exist: its topic was deleted, or recreated with fewer partitions."""

Partition = tuple[str, int]


def throttled_replicas(
    current: Mapping[Partition, Sequence[int]], moves: Mapping[Partition, Sequence[int]]
) -> dict[str, dict[str, list[str]]]:
    """Returns, for each topic, entries ``partition:broker`` to add to its two lists."""
    found: dict[str, dict[str, list[str]]] = {}
    for (topic, partition), targets in sorted(moves.items()):
        added = [broker for broker in targets if broker not in current[topic, partition]]
        if added:
            lists = found.setdefault(topic, {LEADER_REPLICAS: [], FOLLOWER_REPLICAS: []})
            lists[LEADER_REPLICAS] += [f"{partition}:{broker}" for broker in current[topic, partition]]
            lists[FOLLOWER_REPLICAS] += [f"{partition}:{broker}" for broker in added]
    return found


def involved_brokers(current: Mapping[Partition, Sequence[int]], moves: Mapping[Partition, Sequence[int]]) -> list[int]:
    """Returns the brokers that send or receive copies."""
    return sorted({broker for where, targets in moves.items() for broker in (*targets, *current[where])})


def entries_of(listed: str, partitions: Collection[int]) -> list[str]:
    """Returns the entries of a topic's list that belong to the partitions."""
    numbers = {str(one) for one in partitions}
    return [entry for entry in listed.split(",") if entry.partition(":")[0] in numbers]


def partitions_of(lists: Sequence[str], broker: int) -> list[int]:
    """Returns the partitions of which a topic's lists have the replica on a broker, ascending."""
    entries = [entry.strip().partition(":") for listed in lists for entry in listed.split(",")]
    return sorted({int(number) for number, _, node in entries if node == str(broker) and number.isdecimal()})


def states(
    current: Mapping[Partition, Sequence[int]],
    moves: Mapping[Partition, Sequence[int]],
    moving: Collection[Partition],
) -> dict[Partition, str]:
    """Returns the state of each move of a plan; ``moving`` are the partitions that move now."""

    def state(where: Partition, targets: Sequence[int]) -> str:
        if where not in current:
            return GONE
        if where in moving:
            return MOVING
        return DONE if list(current[where]) == list(targets) else DIFFERENT

    return {where: state(where, targets) for where, targets in sorted(moves.items())}
