"""Shapes of network partitions that simulation and chaos share. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

Node = TypeVar("Node")


def ring_cuts(nodes: Sequence[Node]) -> list[tuple[Node, Node]]:
    """Returns the directed links to cut so that each node hears a different majority (Jepsen's majorities ring).

    A pair is (sender, receiver). Each majority includes the node itself; the order of ``nodes`` is the ring's.
    """
    count = len(nodes)
    majority = count // 2 + 1
    cuts: list[tuple[Node, Node]] = []
    for first in range(count):
        heard = {(first + step) % count for step in range(majority)}
        listener = nodes[(first + math.ceil(majority / 2) - 1) % count]
        cuts += [(nodes[other], listener) for other in range(count) if other not in heard]
    return cuts
