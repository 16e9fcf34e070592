"""Finds the strongly connected components of a graph that is too large for dictionaries.

Vertices are numbers from 0, edges are two flat arrays. All other data is in flat arrays too, about 25 bytes per vertex
and 12 per edge, so that the transactions of ten million operations fit into a few hundred megabytes.
"""

from __future__ import annotations

from array import array
from itertools import accumulate

NONE = -1
VERTICES_MAX = 1 << 31


class Edges:
    """A directed graph as a list of edges."""

    __slots__ = ("sources", "targets")

    def __init__(self) -> None:
        """Makes a graph without edges."""
        self.sources = array("i")
        self.targets = array("i")

    def add(self, source: int, target: int) -> None:
        """Adds an edge; an edge may be added several times."""
        self.sources.append(source)
        self.targets.append(target)

    def extend(self, other: Edges) -> None:
        """Adds the edges of another graph over the same vertices."""
        self.sources.extend(other.sources)
        self.targets.extend(other.targets)


def components(vertices: int, edges: Edges) -> list[list[int]]:
    """Returns the strongly connected components of more than one vertex, each sorted (Tarjan 1972, not recursive).

    Args:
        vertices: Number of vertices; below ``VERTICES_MAX``.
        edges: Edges between the vertices; not changed.
    """
    assert vertices < VERTICES_MAX, f"{vertices} vertices"
    first, targets = _outgoing(vertices, edges)
    number = array("i", [NONE]) * vertices
    low = array("i", [0]) * vertices
    following = array("i", first[:vertices])  # per vertex: index of its next unvisited edge
    on_stack = bytearray(vertices)
    waiting = array("i")
    path = array("i")
    found: list[list[int]] = []
    count = 0
    for root in range(vertices):
        if number[root] != NONE or first[root] == first[root + 1]:
            continue  # It is visited, or has no outgoing edge and so is in no cycle.
        number[root] = low[root] = count
        count += 1
        on_stack[root] = 1
        waiting.append(root)
        path.append(root)
        while path:
            vertex = path[-1]
            edge = following[vertex]
            if edge < first[vertex + 1]:
                following[vertex] = edge + 1
                target = targets[edge]
                if number[target] == NONE:
                    number[target] = low[target] = count
                    count += 1
                    on_stack[target] = 1
                    waiting.append(target)
                    path.append(target)
                elif on_stack[target] and number[target] < low[vertex]:
                    low[vertex] = number[target]
                continue
            path.pop()
            if path and low[vertex] < low[path[-1]]:
                low[path[-1]] = low[vertex]
            if low[vertex] == number[vertex]:
                component = _take_component(waiting, on_stack, vertex)
                if len(component) > 1:
                    found.append(component)
    return found


def _outgoing(vertices: int, edges: Edges) -> tuple[array[int], array[int]]:
    """Sorts the edges by source; returns the first index of each vertex, and the targets."""
    counts = array("i", [0]) * (vertices + 1)
    for source in edges.sources:
        counts[source + 1] += 1
    first = array("i", accumulate(counts))
    place = array("i", first)
    targets = array("i", [0]) * len(edges.targets)
    for source, target in zip(edges.sources, edges.targets, strict=True):
        targets[place[source]] = target
        place[source] += 1
    return first, targets


def _take_component(waiting: array[int], on_stack: bytearray, root: int) -> list[int]:
    component = []
    while True:
        member = waiting.pop()
        on_stack[member] = 0
        component.append(member)
        if member == root:
            return sorted(component)
