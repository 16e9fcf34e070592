"""Evens out preferred leaders by the order of replicas alone. Pure.

The preferred leader of a partition is its first replica. Brokers are nodes of a graph; an edge leads from a partition's
preferred leader to each of its other replicas. Along a path from a broker that leads many partitions to one that leads
at least two fewer, each partition takes its next replica as its leader: the first broker loses one, the last gains one,
the others keep their number. When no such path is left, no order of the replicas is more even.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moldau_cli.plans.balance.state import Partition

_Edges = dict[int, dict[int, set["Partition"]]]


def level_leaders(
    replicas: dict[Partition, list[int]], movable: Iterable[Partition], brokers: Sequence[int], tolerance: float
) -> None:
    """Changes the order of replicas of the ``movable`` partitions in place.

    It stops when each broker's number is within the tolerance (a share of the mean) or no path is left.
    """
    led = dict.fromkeys(brokers, 0)
    for one in replicas.values():
        if one[0] in led:
            led[one[0]] += 1
    edges: _Edges = {node: {} for node in brokers}
    for where in movable:
        _add(edges, where, replicas[where])
    mean = sum(led.values()) / max(1, len(brokers))
    room = tolerance * mean
    while path := _path(edges, led, mean, room):
        led[path[0]] -= 1
        led[path[-1]] += 1
        for source, target in pairwise(path):
            where = min(edges[source][target])
            order = replicas[where]
            _remove(edges, where, order)
            order.remove(target)
            order.insert(0, target)
            _add(edges, where, order)


def _path(edges: _Edges, led: dict[int, int], mean: float, room: float) -> list[int]:
    """Returns a shortest path that evens out; empty if there is none, or all brokers are within the tolerance."""
    if all(abs(count - mean) <= room for count in led.values()):
        return []
    for start in sorted(led, key=lambda node: (-led[node], node)):
        came_from: dict[int, int | None] = {start: None}
        waiting = deque([start])
        while waiting:
            node = waiting.popleft()
            if led[node] <= led[start] - 2:
                return _walked(came_from, node)
            for other, through in sorted(edges[node].items()):
                if through and other not in came_from:
                    came_from[other] = node
                    waiting.append(other)
    return []


def _walked(came_from: dict[int, int | None], end: int) -> list[int]:
    path = [end]
    while (before := came_from[path[-1]]) is not None:
        path.append(before)
    return path[::-1]


def _add(edges: _Edges, where: Partition, order: Sequence[int]) -> None:
    for other in order[1:]:
        if order[0] in edges and other in edges:
            edges[order[0]].setdefault(other, set()).add(where)


def _remove(edges: _Edges, where: Partition, order: Sequence[int]) -> None:
    for other in order[1:]:
        if order[0] in edges and other in edges:
            edges[order[0]][other].remove(where)
