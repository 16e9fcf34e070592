"""Names the nodes of a simulated cluster that recovery leaves out at first."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """The nodes that are not healed yet."""

    nodes: tuple[int, ...] = ()
    cut: bool = False
    """Whether they run but are cut off; otherwise they are down."""

    def __contains__(self, node_id: int) -> bool:
        """Returns whether a node is outside."""
        return node_id in self.nodes


NONE_OUTSIDE = Outside()
